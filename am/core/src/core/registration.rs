//! Registrations: what a container is sent when it registers, and which trainers join.

use std::sync::Arc;

use heddle_protocol::control::{PserverState, Registration, TrainerCommand, TrainerState};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::{Member, Role};
use heddle_protocol::metrics::CountedPhase;

use super::Core;
use crate::action::ConnectionId;
use crate::failure::JobFailure;
use crate::fleet::registration::AcceptedRegistration;
use crate::stage::{JobStage, NextStep, StageKind};

impl Core {
    /// Asks for containers that are wanted and missing.
    pub(super) fn reconcile(&mut self) {
        if !self.stage.takes_containers() {
            return;
        }
        let (map, started) = (self.stage.map(), self.stage.has_started());
        let serves = |slot| !map.of(slot).is_empty();
        if let Err(error) = self.fleet.reconcile(started, serves, &mut self.ctx) {
            self.give_up(JobFailure::new(ExitCode::JobFailed, error));
        }
    }

    /// Makes registered trainers members of the job.
    pub(super) fn admit(&mut self) {
        let bars = !self.stage.takes_containers() || self.checkpoints.bars_joining();
        if bars || !self.fleet.has_joining() {
            return;
        }
        let starting =
            matches!(self.stage.now(), JobStage::Idle(NextStep::StartWork | NextStep::Resume));
        let joined = self.fleet.admit(self.stage.has_started(), starting, &mut self.ctx);
        self.spares_joined(&joined);
        if joined.is_empty() || !self.stage.is_working() {
            return;
        }
        let work = self.work.command(self.stage.map(), &self.fleet, &self.ctx);
        for member in joined {
            self.fleet.send(member.slot, Arc::clone(&work), &mut self.ctx);
        }
        self.share_lanes();
        self.assign_tasks();
    }

    /// A container registers.
    pub(super) fn registered(&mut self, connection: ConnectionId, mut registration: Registration) {
        let member = registration.member;
        let pserver_state = registration.pserver_state.take();
        let trainer_state = registration.trainer_state.take();
        let refusal = match self.stage.kind() {
            StageKind::New | StageKind::Stopping | StageKind::Over => Some("the job is ending"),
            _ if member.slot.role == Role::Pserver && registration.endpoints.is_empty() => {
                Some("a pserver without a port")
            }
            _ => None,
        };
        let registered = self.fleet.register(connection, registration, refusal, &mut self.ctx);
        let Some(AcceptedRegistration { again, replaced }) = registered else {
            return;
        };
        if !again {
            self.stage.recoveries_mut().registered(member.slot, &self.ctx);
        }
        if let Some((old, joined)) = replaced
            && self.stage.kind() != StageKind::Takeover
        {
            // A stale process of an earlier attempt was taken in first. Its work goes on without it; a shard that it held is
            // not where its successor is.
            match member.slot.role {
                Role::Pserver => self.pserver_lost(member.slot, "was replaced"),
                Role::Trainer => self.trainer_left(old, joined),
            }
        }
        // Before the orders that need a file system.
        self.credentials.registered(member.slot, &self.fleet, &mut self.ctx);
        match member.slot.role {
            Role::Pserver => self.pserver_registered(member, again, pserver_state),
            Role::Trainer => self.trainer_registered(member, again, trainer_state),
        }
    }

    /// Sends a pserver all that holds now; what it did already it only answers.
    fn pserver_registered(
        &mut self,
        member: Member,
        again: bool,
        pserver_state: Option<PserverState>,
    ) {
        let slot = member.slot;
        if self.stage.kind() == StageKind::Takeover {
            return self.stage.pserver_is_back(member, pserver_state);
        }
        self.fleet.send_members_to(slot, &mut self.ctx);
        if !again && self.spare_takes_waiting_shards(slot) {
            return;
        }
        self.load_shards(slot);
        if !again {
            self.save_before_return();
        }
        let is_here = |state: &PserverState| state.epoch == self.ctx.epoch();
        if !(again || pserver_state.as_ref().is_some_and(is_here)) {
            // That order has all that holds. One that an earlier attempt has brought into the epoch only answers it.
            return;
        }
        self.send_views_again(slot);
        // Also while others train or wait for a cut: a phase begins without a pserver that serves no shard, and it may serve one
        // later.
        if matches!(self.stage.kind(), StageKind::Beginning | StageKind::Idle | StageKind::Working)
        {
            self.begin_on(slot);
        }
        if let Some(state) = &pserver_state {
            self.checkpoints.end_again(slot, state.cut, &self.fleet, &mut self.ctx);
        }
        if let Some(state) = pserver_state.filter(|state| state.epoch == self.ctx.epoch()) {
            for shard in state.shards.iter().filter(|shard| shard.ended) {
                let of_phase = |counted: &CountedPhase| counted.phase == shard.phase;
                let sums = shard.counted.filter(of_phase).map(|counted| counted.sums);
                let (epoch, phase) = (state.epoch, shard.phase);
                self.shard_ended(slot, epoch, phase, shard.shard, shard.step, sums);
            }
        }
        self.checkpoints.order_again(slot, self.stage.map(), &self.fleet, &mut self.ctx);
    }

    fn trainer_registered(
        &mut self,
        member: Member,
        again: bool,
        trainer_state: Option<TrainerState>,
    ) {
        if let Some(takeover) = self.stage.takeover() {
            return takeover.trainer_registered(member, trainer_state);
        }
        self.work.forget_doubtful(member);
        self.export_again(member);
        if self.stage.export().is_some() {
            return;
        }
        if !again || !self.fleet.member(member).is_some_and(|holder| holder.joined) {
            return;
        }
        // It was a member before its connection broke: messages on the way may be lost in both directions.
        if self.stage.is_working() {
            let work = self.work.command(self.stage.map(), &self.fleet, &self.ctx);
            self.fleet.send(member.slot, work, &mut self.ctx);
            self.work.send_lanes(member, &self.fleet, &mut self.ctx);
            let over = self.work.registered_again(member, trainer_state.as_ref(), &self.ctx);
            self.work.withdraw(member, over, &self.fleet, &mut self.ctx);
        }
        self.checkpoints.send_barrier_again(member, &self.fleet, &mut self.ctx);
        if self.fleet.member(member).is_some_and(|holder| holder.draining.is_some()) {
            self.fleet.send(member.slot, TrainerCommand::Drain, &mut self.ctx);
        }
    }
}
