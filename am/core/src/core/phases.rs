//! Phases: the job goes from one to the next, and its work is dispatched.

use std::collections::BTreeSet;

use heddle_protocol::control::{BeginPhase, PserverCommand};
use heddle_protocol::ids::{Epoch, PhaseNo, Role, ShardId, Slot, Step};
use heddle_protocol::job_spec::{job_phase, phase_text};
use heddle_protocol::metrics::RecordSums;
use heddle_protocol::view;

use super::Core;
use crate::checkpoint::cut::CutReason;
use crate::context::deadlines::Purpose;
use crate::stage::{JobStage, NextStep};
use crate::work::PhaseEnded;

/// How long a pass whose steps are all applied waits for its figures: reports take one message.
const FIGURES_MS: u64 = 2_000;

impl Core {
    pub(super) fn advance_idle(&mut self) -> bool {
        let JobStage::Idle(next) = *self.stage.now() else {
            return false;
        };
        // The end has its own rule: an open cut is replaced, not awaited.
        let waits = self.stage.saves_last() && next != NextStep::End;
        let may_wait = !matches!(next, NextStep::Resume | NextStep::End);
        if waits || (may_wait && self.checkpoints.holds_up(&self.ctx)) {
            return false;
        }
        match next {
            NextStep::Begin(phase) => {
                self.begin_phase(phase);
                true
            }
            NextStep::StartWork | NextStep::Resume => self.start_work(),
            NextStep::End => self.advance_end(),
        }
    }

    fn begin_phase(&mut self, phase: PhaseNo) {
        self.work.begin_phase(phase, &self.ctx);
        self.fleet.send_to_all(Role::Pserver, self.begin_command(), &mut self.ctx);
        self.stage.go(JobStage::Beginning { begun: BTreeSet::new() });
        self.notice_phase();
    }

    /// Sends a pserver the present phase; one that is in it only answers.
    pub(super) fn begin_on(&mut self, slot: Slot) {
        self.fleet.send(slot, self.begin_command(), &mut self.ctx);
    }

    fn begin_command(&self) -> PserverCommand {
        PserverCommand::Begin(BeginPhase { epoch: self.ctx.epoch(), phase: self.work.wire() })
    }

    fn notice_phase(&mut self) {
        let phase = self.work.phase();
        let text = phase_text(&self.ctx.config().spec, phase);
        self.ctx.notice(view::JobEvent::PhaseBegun { phase, text });
    }

    /// Dispatches the work of the phase, if enough trainers are there.
    fn start_work(&mut self) -> bool {
        let started = self.stage.has_started();
        let needed = if started { 1 } else { self.fleet.trainers_to_start(&self.ctx) };
        // Asked with each registration at the start: the number is compared first.
        let enough = |count: usize| count >= needed as usize;
        if !enough(self.fleet.held(Role::Trainer)) || !enough(self.fleet.workers().len()) {
            self.ctx.set_message(format!("waiting for {needed} trainers"));
            return false;
        }
        self.stage.go(JobStage::Working);
        self.ctx.clear_message();
        if !started {
            self.stage.set_started(true);
            self.fleet.look_at_slots();
            self.notice_phase();
            self.plan_next_cut(false, true);
        }
        self.fleet.recall_trainers(self.work.useful_trainers());
        self.work.start(self.stage.map(), &self.fleet, &mut self.ctx);
        true
    }

    /// BSP: gives every lane an owner among the present trainers, while work is dispatched. A job that has failed leaves them
    /// without: the shards stand at the step of its last checkpoint.
    pub(super) fn share_lanes(&mut self) {
        if self.stage.is_working() && !self.stage.saves_last() {
            self.work.share_lanes(&self.fleet, &mut self.ctx);
        }
    }

    /// ASP, evaluation: lets every trainer hold the tasks that it should, while work is dispatched.
    pub(super) fn assign_tasks(&mut self) {
        if self.stage.is_working() {
            self.work.assign_tasks(&self.fleet, &mut self.ctx);
        }
    }

    pub(super) fn advance_beginning(&mut self) -> bool {
        let begun = self.stage.has_begun();
        if begun {
            self.stage.go(JobStage::Idle(NextStep::StartWork));
        }
        begun
    }

    /// BSP: all lanes have ended on a shard.
    pub(super) fn shard_ended(
        &mut self,
        slot: Slot,
        epoch: Epoch,
        phase: PhaseNo,
        shard: ShardId,
        step: Step,
        sums: Option<RecordSums>,
    ) {
        if self.work.is_current(epoch, phase, &self.ctx) && self.stage.holds(slot, shard) {
            self.work.shard_ended(shard, step, sums, &self.ctx);
        }
    }

    pub(super) fn advance_working(&mut self) -> bool {
        match self.work.phase_end(self.stage.map().len()) {
            None => return false,
            Some(Ok(_)) if self.waits_for_figures() => return false,
            Some(Ok(ended)) => self.phase_ended(&ended),
            Some(Err(failure)) => self.fail(failure),
        }
        true
    }

    /// Whether trainers still owe figures of the pass: its last steps are applied before the tasks' ends are reported. A
    /// trainer that dies between the two never reports, so the wait is bounded.
    fn waits_for_figures(&mut self) -> bool {
        let now = self.ctx.now();
        match self.work.figures_until(now + FIGURES_MS, &self.ctx) {
            Some(until) if now < until => {
                self.ctx.set_deadline_at_latest(Purpose::Figures, until);
                true
            }
            Some(_) | None => false,
        }
    }

    fn phase_ended(&mut self, ended: &PhaseEnded) {
        self.fleet.made_progress();
        self.stage.recoveries_mut().phase_over(&mut self.ctx);
        self.leave_extra_trainers();
        self.checkpoints.count_phase(ended, &self.ctx);
        self.work.record_set_aside(&mut self.ctx);
        if let Some(pass) = ended.kind.and_then(|phase| phase.trains) {
            self.work.pass_trained(pass, &mut self.ctx);
        }
        if let Some(pass) = ended.kind.and_then(|phase| phase.scores) {
            self.work.evaluated(pass, &mut self.ctx);
        }
        let next = ended.phase.next();
        let training_is_over = self.work.is_over_before(next, &self.ctx);
        self.checkpoints.phase_ended(ended, training_is_over, &self.ctx);
        if !training_is_over && self.work.best_pass(&self.ctx).is_some() {
            // At the end of training the final cut is that of its last pass.
            self.checkpoints.want(CutReason::Best);
        }
        if training_is_over && job_phase(&self.ctx.config().spec, next).is_some() {
            self.work.report_early_stop(&mut self.ctx);
        }
        if training_is_over {
            self.work.warn_if_worse_than_constant(&mut self.ctx);
        }
        let next = if training_is_over { NextStep::End } else { NextStep::Begin(next) };
        self.stage.go(JobStage::Idle(next));
    }
}
