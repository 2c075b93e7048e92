//! Losses, drains and preemption: what they mean for work, checkpoints and stage.

use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::{Member, Role, Slot};
use heddle_protocol::mutation::Mutation;
use heddle_protocol::view::WarningCode;

use super::Core;
use crate::action::ContainerName;
use crate::event::Exit;
use crate::failure::JobFailure;
use crate::fleet::registration::ContainerEnd;
use crate::fleet::{Fleet, Loss, LossOutcome, Lost};
use crate::stage::StageKind;
use crate::stage::recovery_timing::JobPosition;

impl Core {
    /// A container has ended.
    pub(super) fn exited(&mut self, container: &ContainerName, exit: &Exit, text: &str) {
        match self.fleet.exited(container, exit, text, &mut self.ctx) {
            ContainerEnd::NothingFollows => {}
            ContainerEnd::Lost(loss) => self.lose(loss),
            ContainerEnd::Fails { error, loss } => {
                self.lose_all(loss);
                self.give_up(JobFailure::new(ExitCode::JobFailed, error));
            }
        }
    }

    /// Gives containers up, one after the other.
    pub(super) fn lose_all(&mut self, losses: impl IntoIterator<Item = Loss>) {
        for loss in losses {
            self.lose(loss);
        }
    }

    fn lose(&mut self, mut loss: Loss) {
        if let Some((member, node)) = self.fleet.failed_trainer(&loss) {
            match self.work.trainer_died(member, node, &mut self.ctx) {
                Ok(blameless) if blameless.is_empty() => {}
                Ok(blameless) => {
                    self.fleet.excuse(&blameless);
                    loss.excuse();
                }
                Err(failure) => {
                    self.give_up(failure);
                    if self.stage.is_stopping() {
                        return;
                    }
                }
            }
        }
        match self.fleet.lose(loss, self.stage.is_stopping(), &mut self.ctx) {
            LossOutcome::NothingFollows => {}
            LossOutcome::CrashLoop(error, lost) => self.crash_loop(error, lost),
            LossOutcome::Lost(lost) => self.lost(&lost),
        }
    }

    /// Containers failed too often, the last one with what it held.
    fn crash_loop(&mut self, error: String, lost: Option<Lost>) {
        let failure = JobFailure::new(ExitCode::JobFailed, error);
        match lost.filter(|_| !self.stage.is_stopping()) {
            Some(lost) if lost.member.slot.role == Role::Trainer => {
                // Before its lanes could go to others: no step follows.
                self.give_up(failure);
                if !self.stage.is_stopping() {
                    self.trainer_left(lost.member, lost.joined);
                }
            }
            Some(_) => self.fail(failure),
            None => self.give_up(failure),
        }
    }

    fn lost(&mut self, lost: &Lost) {
        let slot = lost.member.slot;
        let matters = match self.stage.kind() {
            StageKind::Takeover
            | StageKind::AwaitingCommit
            | StageKind::FindingCheckpoint
            | StageKind::Restoring => true,
            StageKind::Idle | StageKind::Beginning | StageKind::Working => self.stage.has_started(),
            StageKind::New | StageKind::Exporting | StageKind::Stopping | StageKind::Over => false,
        };
        if !lost.drained && matters {
            let cause = format!("{slot} {}", lost.cause);
            let position = self.position();
            let recoveries = self.stage.recoveries_mut();
            recoveries.open(slot, cause, lost.last_seen, position, &self.ctx);
        }
        match slot.role {
            Role::Pserver => self.pserver_lost(slot, &lost.cause),
            Role::Trainer => self.trainer_left(lost.member, lost.joined),
        }
    }

    /// The position of the job, for the report of a recovery.
    pub(super) fn position(&self) -> JobPosition {
        JobPosition { phase: self.work.phase(), step: self.work.frontier() }
    }

    /// A trainer has left the job: pservers fence it, its work moves, the open cut goes on without it.
    pub(super) fn trainer_left(&mut self, member: Member, joined: bool) {
        self.checkpoints.trainer_left(member);
        self.work.release(member);
        if joined {
            self.fleet.send_members(&mut self.ctx);
            self.share_lanes();
            self.assign_tasks();
        }
        self.exporter_left(member);
        if let Some(takeover) = self.stage.takeover() {
            takeover.lost(member.slot);
        }
    }

    /// Orders a trainer to hand back its work and to leave.
    pub(super) fn drain(&mut self, slot: Slot) {
        if let Some(member) = self.fleet.drain(slot, &mut self.ctx) {
            self.drained(member);
        }
    }

    /// A trainer has handed back its work.
    pub(super) fn drained(&mut self, member: Member) {
        if let Some(drained) = self.fleet.drained(member, &self.ctx) {
            self.trainer_left(drained.member, drained.joined);
            self.fleet.stop_drained(member, &mut self.ctx);
        }
    }

    /// The cluster may preempt a container.
    pub(super) fn preemption_announced(
        &mut self,
        container: &ContainerName,
        deadline_ms: Option<u64>,
    ) {
        let Some(slot) = self.fleet.preemption_announced(container) else {
            return;
        };
        match slot.role {
            Role::Trainer => self.drain(slot),
            Role::Pserver => {
                let needs_ms = self.checkpoints.views().last().map_or(0, |last| last.took_ms);
                let there_is_time = deadline_ms.is_none_or(|deadline_ms| deadline_ms > needs_ms);
                if there_is_time {
                    self.save_now();
                }
                let no_time = "; there is no time for a checkpoint";
                self.ctx.warn(
                    WarningCode::PserverPreempted,
                    format!(
                        "the cluster may take {slot} for another job{}",
                        if there_is_time { "" } else { no_time }
                    ),
                );
            }
        }
    }

    /// A node will be gone soon.
    pub(super) fn node_leaves(&mut self, node: &str) {
        for (slot, starts) in self.fleet.node_leaves(node, &mut self.ctx) {
            let holds_nothing = !self.stage.has_started() || self.stage.map().of(slot).is_empty();
            match slot.role {
                _ if starts => self.lose(Fleet::moves_off(slot)),
                Role::Trainer => self.drain(slot),
                Role::Pserver if holds_nothing => self.lose(Fleet::moves_off(slot)),
                Role::Pserver if self.waits_for_copies(slot) => {}
                Role::Pserver => self.save_now(),
            }
        }
    }

    /// A checkpoint exists: pservers on nodes that will be gone move without losing work. Those whose shards have, or can get,
    /// copies elsewhere wait for these.
    pub(super) fn move_departing_pservers(&mut self) {
        let gives_up = Mutation::UnwantedPserverIsGivenUp.is_on();
        let mut slots = self.fleet.departing_pservers();
        slots.extend(self.fleet.unwanted_pservers().filter(|_| gives_up));
        for slot in slots {
            if gives_up || !self.waits_for_copies(slot) {
                self.lose(Fleet::moves_off(slot));
            }
        }
    }

    /// Ends an unwanted pserver, or moves a pserver off a node that will be gone, if its shards are elsewhere. Returns whether it
    /// did.
    pub(super) fn move_dispensable_pserver(&mut self) -> bool {
        let slots = self.fleet.emptied_pservers();
        let Some(slot) = slots.into_iter().find(|slot| self.is_dispensable(*slot)) else {
            return false;
        };
        let is_unwanted = self.fleet.unwanted_pservers().any(|unwanted| unwanted == slot);
        if is_unwanted {
            self.retire(slot);
        } else {
            self.lose(Fleet::moves_off(slot));
        }
        true
    }

    /// A pserver that is not wanted any more leaves the job: each of its shards is served elsewhere.
    fn retire(&mut self, slot: Slot) {
        if let Some(left) = self.stage.views_in_phase().and_then(|views| views.leave(slot)) {
            self.stage.follow_views(Some(slot));
            self.change_views(&left, format!("{slot} is not needed any more"));
        }
        self.fleet.retire(slot, &mut self.ctx);
    }

    /// The job goes on after a rollback: pservers on nodes that will be gone still need a checkpoint to move, unless they
    /// only wait for copies elsewhere.
    pub(super) fn save_before_departure(&mut self) {
        let departing = self.fleet.departing_pservers();
        if departing.into_iter().any(|slot| !self.waits_for_copies(slot)) {
            self.save_now();
        }
    }

    /// Wants a cut as soon as possible.
    pub(super) fn save_now(&mut self) {
        if self.can_cut() {
            self.checkpoints.want_now();
        }
    }
}
