//! What a loss cost: the five stretches of a recovery.

use std::collections::VecDeque;

use heddle_protocol::ids::{CutId, Epoch, Member, PhaseNo, Role, Slot, Step};
use heddle_protocol::view::{self, RECOVERIES_MAX, RecoveryView};

use crate::core::Core;
use crate::time::MonotonicMs;
use crate::work::phases::Work;

/// A recovery under way or over.
#[derive(Clone, Debug)]
pub(crate) struct RecoveryTiming {
    pub view: RecoveryView,
    noticed: MonotonicMs,
    registered: Option<MonotonicMs>,
    held: Option<MonotonicMs>,
    /// The ApplicationMaster's: containers work on where they are.
    taken_over: bool,
}

impl RecoveryTiming {
    /// Whether shards go back to a checkpoint for it, or may have to.
    fn rolls_back(&self) -> bool {
        let slot = self.view.slot;
        slot.is_none_or(|slot| slot.role == Role::Pserver)
    }
}

/// The recoveries of this attempt, oldest first: the newest [`RECOVERIES_MAX`], and how many there were.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecoveryTimings {
    kept: VecDeque<RecoveryTiming>,
    total: u64,
}

impl RecoveryTimings {
    /// Recoveries as people see them, oldest first.
    pub(crate) fn views(&self) -> impl Iterator<Item = &RecoveryView> {
        self.kept.iter().map(|recovery| &recovery.view)
    }

    /// How many there were.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    fn push(&mut self, recovery: RecoveryTiming) {
        self.total += 1;
        if self.kept.len() >= RECOVERIES_MAX {
            // One that is under way is told when it is over; a job that lost so many containers at once lacks a row.
            let over = self.kept.iter().position(|recovery| recovery.view.done);
            self.kept.remove(over.unwrap_or(0));
        }
        self.kept.push_back(recovery);
    }
}

impl Core {
    /// Opens the report of a loss. `sign` is the last sign of life.
    pub(crate) fn open_recovery(&mut self, slot: Slot, cause: String, sign: MonotonicMs) {
        let notice_ms = Some(self.now.mono.since(sign));
        self.push_recovery(Some(slot), cause, notice_ms);
    }

    /// Opens the report of the loss of the ApplicationMaster before this attempt. The containers that it left tell when
    /// they lost it.
    pub(crate) fn open_am_recovery(&mut self) {
        let cause = format!("the ApplicationMaster was lost; attempt {} took over", self.attempt.0);
        self.push_recovery(None, cause, None);
    }

    fn push_recovery(&mut self, slot: Option<Slot>, cause: String, notice_ms: Option<u64>) {
        let noticed = self.now.mono;
        let view = RecoveryView {
            cause,
            slot,
            at_ms: self.now.wall_ms,
            epoch_before: self.epoch,
            epoch_after: self.epoch,
            base: None,
            phase: self.phase.no,
            step: self.phase.frontier(),
            base_step: None,
            checkpoint_ms: None,
            notice_ms,
            restart_ms: None,
            load_ms: None,
            resume_ms: None,
            done: false,
        };
        self.recoveries.push(RecoveryTiming {
            view,
            noticed,
            registered: None,
            held: None,
            taken_over: false,
        });
    }

    /// A container lost the ApplicationMaster before this attempt so long ago.
    pub(crate) fn am_was_lost(&mut self, ago_ms: u64) {
        let now = self.now.mono;
        let mut known = false;
        // Also one that is over: the first heartbeat may come after the first step under this attempt.
        for recovery in &mut self.recoveries.kept {
            if recovery.view.slot.is_none() && recovery.view.notice_ms.is_none() {
                recovery.view.notice_ms = Some(ago_ms.saturating_sub(now.since(recovery.noticed)));
                known = true;
            }
        }
        if known {
            self.close_recoveries(|recovery| recovery.taken_over);
        }
    }

    /// Containers work on where they are, under this attempt.
    pub(crate) fn am_recovery_taken_over(&mut self) {
        let now = self.now.mono;
        for recovery in self.open_recoveries() {
            if recovery.view.slot.is_none() && recovery.registered.is_none() {
                recovery.registered = Some(now);
                recovery.view.restart_ms = Some(now.since(recovery.noticed));
                recovery.taken_over = true;
            }
        }
        // Else the first heartbeat that tells when the other one was lost.
        self.close_recoveries(|recovery| recovery.taken_over && recovery.view.notice_ms.is_some());
    }

    fn open_recoveries(&mut self) -> impl Iterator<Item = &mut RecoveryTiming> {
        self.recoveries.kept.iter_mut().filter(|recovery| !recovery.view.done)
    }

    /// A rollback begins: it answers every loss that is not over.
    pub(crate) fn recoveries_roll_back(
        &mut self,
        epoch: Epoch,
        base: Option<(CutId, u64, PhaseNo, Step)>,
    ) {
        let (wall_ms, now) = (self.now.wall_ms, self.now.mono);
        for recovery in self.open_recoveries().filter(|it| it.rolls_back()) {
            if recovery.view.slot.is_none() && recovery.registered.is_none() {
                recovery.registered = Some(now);
                recovery.view.restart_ms = Some(now.since(recovery.noticed));
            }
            recovery.view.epoch_after = epoch;
            recovery.view.base = base.map(|(cut, ..)| cut);
            recovery.view.base_step = base.map(|(.., step)| step);
            recovery.view.checkpoint_ms = base.map(|(_, at_ms, ..)| wall_ms.saturating_sub(at_ms));
            recovery.view.load_ms = None;
            recovery.held = None;
        }
    }

    /// A replacement has registered.
    pub(crate) fn recovery_registered(&mut self, slot: Slot) {
        let now = self.now.mono;
        let open = |recovery: &&mut RecoveryTiming| {
            recovery.view.slot == Some(slot) && recovery.registered.is_none()
        };
        for recovery in self.open_recoveries().filter(open) {
            recovery.registered = Some(now);
            recovery.view.restart_ms = Some(now.since(recovery.noticed));
        }
    }

    /// All shards stand again.
    pub(crate) fn recoveries_held(&mut self) {
        let now = self.now.mono;
        for recovery in self.open_recoveries().filter(|it| it.rolls_back()) {
            let from = recovery.registered.unwrap_or(recovery.noticed);
            recovery.view.load_ms = Some(now.since(from));
            recovery.held = Some(now);
        }
    }

    /// Whether every trainer with work has taken a step since it got it. One look at each lane or trainer.
    fn all_step(&self) -> bool {
        let steps = |member: &Member| self.phase.stepping.contains(member);
        let registered = |member: &Member| self.slots.member(*member).is_some();
        match &self.phase.work {
            Work::Lanes(lanes) => lanes.owners().all(|owner| steps(&owner) || !registered(&owner)),
            Work::Queue(queue) => self
                .slots
                .holders(Role::Trainer)
                .map(|holder| holder.member)
                .all(|member| steps(&member) || !queue.holds(member)),
        }
    }

    /// A trainer has taken its first step in this epoch: a rollback is over when all have, the loss of a trainer when
    /// its replacement has.
    pub(crate) fn recoveries_stepping(&mut self, member: Member) {
        self.phase.stepping.insert(member);
        if self.open_recoveries().next().is_none() {
            return;
        }
        let all = self.all_step();
        self.close_recoveries(|recovery| match recovery.rolls_back() {
            true => all && recovery.held.is_some(),
            false => recovery.registered.is_some() && recovery.view.slot == Some(member.slot),
        });
    }

    /// The phase is over: whatever was lost has been made up for.
    pub(crate) fn recoveries_phase_over(&mut self) {
        self.close_recoveries(|recovery| {
            !recovery.rolls_back() || recovery.held.is_some() || recovery.taken_over
        });
    }

    fn close_recoveries(&mut self, over: impl Fn(&RecoveryTiming) -> bool) {
        let now = self.now.mono;
        let mut told = Vec::new();
        for recovery in self.open_recoveries() {
            if over(recovery) {
                let from = recovery.held.or(recovery.registered).unwrap_or(recovery.noticed);
                // Where nothing was rolled back, trainers worked on without an ApplicationMaster.
                if !recovery.taken_over {
                    recovery.view.resume_ms = Some(now.since(from));
                }
                recovery.view.done = true;
                told.push(recovery.view.clone());
            }
        }
        for view in told {
            self.notice(view::Event::Recovered(view));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recovery(at_ms: u64, done: bool) -> RecoveryTiming {
        RecoveryTiming {
            view: RecoveryView {
                cause: String::new(),
                slot: Some(Slot::trainer(0)),
                at_ms,
                epoch_before: Epoch::default(),
                epoch_after: Epoch::default(),
                base: None,
                phase: PhaseNo(0),
                step: Step(0),
                base_step: None,
                checkpoint_ms: None,
                notice_ms: None,
                restart_ms: None,
                load_ms: None,
                resume_ms: None,
                done,
            },
            noticed: MonotonicMs::default(),
            registered: None,
            held: None,
            taken_over: false,
        }
    }

    #[test]
    fn of_many_recoveries_the_newest_are_kept_and_all_are_counted() {
        let mut recoveries = RecoveryTimings::default();
        // The first is under way for as long as it takes.
        recoveries.push(recovery(0, false));
        let most = RECOVERIES_MAX as u64;
        for at_ms in 1..most + 20 {
            recoveries.push(recovery(at_ms, true));
        }
        let kept: Vec<u64> = recoveries.views().map(|view| view.at_ms).collect();
        let newest = 21..most + 20;
        let expected: Vec<u64> = std::iter::once(0).chain(newest).collect();
        assert_eq!(kept, expected);
        assert_eq!(recoveries.total(), most + 20);
        // Without one that is over, the oldest goes.
        let mut open = RecoveryTimings::default();
        for at_ms in 0..=most {
            open.push(recovery(at_ms, false));
        }
        assert_eq!(open.views().next().map(|view| view.at_ms), Some(1));
        assert_eq!(open.views().count(), RECOVERIES_MAX);
    }
}
