//! The containers that a job needs to begin: how long it waits for them.

use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::Role;
use heddle_protocol::mutation::Mutation;

use super::Core;
use crate::context::deadlines::Purpose;
use crate::failure::JobFailure;
use crate::stage::StageKind;

impl Core {
    /// Sets the allocation timeout while containers are missing that the job needs to begin, and clears it when they are
    /// there: loading, cuts and exports that follow have limits of their own.
    pub(super) fn watch_allocation(&mut self) {
        if !self.stage.takes_containers() {
            return;
        }
        let config = self.ctx.config();
        let allocation_ms = config.limits.allocation_ms;
        let started = self.stage.has_started();
        let trainers = self.fleet.held(Role::Trainer);
        let waits = if started || allocation_ms == 0 {
            false
        } else if self.stage.kind() == StageKind::Exporting {
            // The job is trained: one trainer writes the model.
            config.output.is_some() && trainers == 0
        } else {
            self.fleet.held(Role::Pserver) < self.fleet.wanted().pservers as usize
                || trainers < self.fleet.trainers_to_start(&self.ctx) as usize
        };
        match (waits, self.ctx.is_waiting_for(Purpose::Allocation)) {
            (true, false) => {
                self.ctx.set_deadline(Purpose::Allocation, self.ctx.now() + allocation_ms);
            }
            (false, true) if !started && Mutation::AllocationTimeoutRunsOn.is_on() => {}
            (false, true) => self.ctx.clear_deadline(Purpose::Allocation),
            (true, true) | (false, false) => {}
        }
    }

    /// Containers that the job needs to begin have not come in time.
    pub(super) fn allocation_timed_out(&mut self) {
        let (pservers, trainers) = (self.fleet.held(Role::Pserver), self.fleet.held(Role::Trainer));
        let config = self.ctx.config();
        let mut message = format!(
            "not enough containers came in {} s: {pservers} of {} pservers, {trainers} of at least {} trainers",
            config.limits.allocation_ms / 1000,
            self.fleet.wanted().pservers,
            config.spec.trainers.min
        );
        let cluster_message = self.fleet.cluster_message();
        if !cluster_message.is_empty() {
            message += &format!("; {cluster_message}");
        }
        message += "; all were released: ask for fewer or smaller ones, another yarn.queue, ";
        message += "or a longer yarn.allocation-timeout";
        self.fail(JobFailure::new(ExitCode::Busy, message));
    }
}
