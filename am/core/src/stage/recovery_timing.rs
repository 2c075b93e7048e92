//! Recovery timing, in five phases: the checkpoint that is returned to, notice, restart, load, resumption.

use std::collections::VecDeque;

use heddle_protocol::ids::{CutId, Member, PhaseNo, Role, Slot, Step};
use heddle_protocol::view::{self, RECOVERIES_MAX, RecoveryKind, RecoveryView};

use crate::context::Context;
use crate::time::MonotonicMs;

/// A recovery under way or over.
#[derive(Clone, Debug)]
pub(crate) struct RecoveryTiming {
    pub view: RecoveryView,
    noticed: MonotonicMs,
    /// The replacement is being started.
    launched: Option<MonotonicMs>,
    registered: Option<MonotonicMs>,
    held: Option<MonotonicMs>,
    path: RecoveryPath,
    /// An earlier attempt had it under way.
    carried: bool,
    /// Containers of an earlier attempt are to report when they lost the ApplicationMaster.
    awaits_notice: bool,
    /// Since when that report alone is missing.
    over: Option<MonotonicMs>,
}

/// What the job goes on with, and how far that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecoveryPath {
    /// Another container in the slot; the shards of a pserver go back to a checkpoint.
    Replacement,
    /// A pserver without shards takes those of the lost one.
    Spare { recorded: bool },
    /// A trainer that waited has joined.
    SpareTrainer(Slot),
    /// Copies serve instead of the shards of a pserver.
    Failover(FailoverStep),
    /// Containers work on where they are, under the next attempt.
    TakenOver,
}

const WITHOUT_PROMOTION: RecoveryPath = RecoveryPath::Failover(FailoverStep::Over);

/// How far a failover is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FailoverStep {
    /// The views' record is not durable yet.
    Recording { promotes: bool },
    /// The new primaries do not serve yet.
    Promoting,
    /// No trainer has taken a step since they serve.
    Serving,
    /// Nothing was promoted: pushes waited for the record alone.
    Over,
}

impl RecoveryTiming {
    /// The slot of the container that takes the lost one's place.
    fn replacement(&self) -> Option<Slot> {
        match self.path {
            RecoveryPath::SpareTrainer(slot) => Some(slot),
            _ => self.view.slot,
        }
    }

    fn fails_over(&self) -> bool {
        matches!(self.path, RecoveryPath::Failover(_))
    }

    fn is_taken_over(&self) -> bool {
        self.path == RecoveryPath::TakenOver
    }

    /// Whether shards go back to a checkpoint for it, or may have to.
    fn rolls_back(&self) -> bool {
        let slot = self.view.slot;
        !self.fails_over() && slot.is_none_or(|slot| slot.role == Role::Pserver)
    }
}

/// The recoveries of this attempt, oldest first: the newest [`RECOVERIES_MAX`], and how many there were.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecoveryTimings {
    kept: VecDeque<RecoveryTiming>,
    total: u64,
}

impl RecoveryTimings {
    /// The recoveries as they are reported, oldest first.
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
            // One that is under way is reported when it is over; a job that lost this many containers at once lacks a row.
            let over = self.kept.iter().position(|recovery| recovery.view.done);
            self.kept.remove(over.unwrap_or(0));
        }
        self.kept.push_back(recovery);
    }
}

/// The checkpoint that a rollback returns to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RestoredCheckpoint {
    pub cut: CutId,
    /// When it was committed, ms since 1970.
    pub at_ms: u64,
    /// From its order to its commit; none if another attempt took it.
    pub save_ms: Option<u64>,
    pub phase: PhaseNo,
    /// BSP: the step it holds.
    pub step: Step,
}

/// The position of the job when a recovery begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JobPosition {
    pub phase: PhaseNo,
    pub step: Step,
}

impl RecoveryTimings {
    /// A container is lost. `last_seen`: the last sign of life.
    pub(crate) fn open(
        &mut self,
        slot: Slot,
        cause: String,
        last_seen: MonotonicMs,
        position: JobPosition,
        ctx: &Context,
    ) {
        let notice_ms = Some(ctx.now().since(last_seen));
        self.push_new(Some(slot), cause, notice_ms, position, ctx);
    }

    /// The ApplicationMaster before this attempt is lost, during these recoveries. They go on in this attempt, and the time until
    /// its start counts as their notice.
    pub(crate) fn open_for_am(
        &mut self,
        unfinished: Vec<RecoveryView>,
        position: JobPosition,
        ctx: &Context,
    ) {
        for before in unfinished {
            let RecoveryView { cause, slot, at_ms, notice_ms, phase, step, .. } = before;
            let passed_ms = ctx.wall_ms().saturating_sub(at_ms);
            let notice_ms = Some(notice_ms.unwrap_or(0).saturating_add(passed_ms));
            self.push_new(slot, cause, notice_ms, JobPosition { phase, step }, ctx);
            if let Some(carried) = self.kept.back_mut() {
                (carried.carried, carried.view.at_ms) = (true, at_ms);
                // This attempt has no epoch yet.
                carried.view.epoch_before = before.epoch_before;
                carried.view.epoch_after = before.epoch_after;
            }
        }
        let cause =
            format!("the ApplicationMaster was lost; attempt {} took over", ctx.attempt().0);
        self.push_new(None, cause, None, position, ctx);
    }

    /// Containers that the attempt before has left report when they lost it.
    pub(crate) fn await_notice(&mut self) {
        for recovery in self.open_ones() {
            recovery.awaits_notice =
                recovery.view.slot.is_none() && recovery.view.notice_ms.is_none();
        }
    }

    /// A pserver that the attempt before had is gone. It was lost before this attempt began, unless that is known.
    pub(crate) fn open_at_takeover(&mut self, slot: Slot, position: JobPosition, ctx: &Context) {
        let began = self.open_ones().find(|it| it.view.slot.is_none() && !it.carried);
        let began = began.map_or(ctx.now(), |it| it.noticed);
        if !self.open_ones().any(|it| it.view.slot == Some(slot)) {
            let cause = format!("{slot} did not come back after the ApplicationMaster's restart");
            self.open(slot, cause, began, position, ctx);
        }
    }

    fn push_new(
        &mut self,
        slot: Option<Slot>,
        cause: String,
        notice_ms: Option<u64>,
        position: JobPosition,
        ctx: &Context,
    ) {
        let kind = match slot.map(|slot| slot.role) {
            None => RecoveryKind::ApplicationMaster,
            Some(Role::Pserver) => RecoveryKind::Rollback,
            Some(Role::Trainer) => RecoveryKind::Trainer,
        };
        let view = RecoveryView {
            cause,
            slot,
            kind,
            at_ms: ctx.wall_ms(),
            epoch_before: ctx.epoch(),
            epoch_after: ctx.epoch(),
            base: None,
            phase: position.phase,
            step: position.step,
            base_step: None,
            steps_again: None,
            updates_lost: None,
            checkpoint_ms: None,
            save_ms: None,
            notice_ms,
            restart_ms: None,
            load_ms: None,
            resume_ms: None,
            done: false,
        };
        self.push(RecoveryTiming {
            view,
            noticed: ctx.now(),
            launched: None,
            registered: None,
            held: None,
            path: RecoveryPath::Replacement,
            carried: false,
            awaits_notice: false,
            over: None,
        });
    }

    /// The shards of a lost pserver go to a spare.
    pub(crate) fn spare_loads(&mut self, slot: Slot) {
        for recovery in self.unregistered(slot) {
            recovery.view.kind = RecoveryKind::Spare;
            recovery.path = RecoveryPath::Spare { recorded: false };
        }
    }

    /// The lost shards alone go back: with them go these updates, as soon as the number is known. Several losses that are
    /// answered together are one number.
    pub(crate) fn lose_updates(&mut self, updates: Option<u64>) {
        let mut last = None;
        for recovery in self.open_ones().filter(|it| it.rolls_back() && it.view.slot.is_some()) {
            recovery.view.kind = RecoveryKind::Local;
            recovery.view.updates_lost = None;
            last = Some(recovery);
        }
        if let Some(recovery) = last {
            recovery.view.updates_lost = updates;
        }
    }

    /// Trainers have joined. Each is the spare of a lost trainer whose own replacement has not registered, unless it is a
    /// replacement itself.
    pub(crate) fn spares_joined(&mut self, joined: &[Member], ctx: &Context) {
        let now = ctx.now();
        for member in joined {
            let is_open =
                |it: &RecoveryTiming| it.view.kind == RecoveryKind::Trainer && !it.view.done;
            let own = self.kept.iter().any(|it| is_open(it) && it.view.slot == Some(member.slot));
            if own {
                continue;
            }
            let mut open = self.kept.iter_mut().filter(|it| is_open(it));
            if let Some(recovery) = open.find(|it| it.registered.is_none()) {
                recovery.view.kind = RecoveryKind::Spare;
                recovery.path = RecoveryPath::SpareTrainer(member.slot);
                (recovery.launched, recovery.registered) = (Some(now), Some(now));
                recovery.view.restart_ms = Some(now.since(recovery.noticed));
                recovery.view.load_ms = Some(0);
            }
        }
    }

    /// Backups serve instead of the shards of this pserver, or it held backups alone: no rollback follows.
    pub(crate) fn fail_over(&mut self, slot: Slot, promotes: bool, ctx: &Context) {
        let epoch = ctx.epoch();
        for recovery in self.open_ones() {
            if recovery.view.slot == Some(slot) && !recovery.fails_over() {
                recovery.view.kind = RecoveryKind::Failover;
                recovery.view.epoch_after = epoch;
                recovery.path = RecoveryPath::Failover(FailoverStep::Recording { promotes });
            }
        }
    }

    /// The records of all decisions are durable.
    pub(crate) fn decisions_durable(&mut self, ctx: &mut Context) {
        let now = ctx.now();
        for recovery in self.open_ones() {
            recovery.path = match recovery.path {
                RecoveryPath::Spare { recorded: false } => {
                    recovery.registered = Some(now);
                    RecoveryPath::Spare { recorded: true }
                }
                RecoveryPath::Failover(FailoverStep::Recording { promotes }) => {
                    RecoveryPath::Failover(match promotes {
                        true => FailoverStep::Promoting,
                        false => FailoverStep::Over,
                    })
                }
                _ => continue,
            };
            recovery.launched = Some(now);
            recovery.view.restart_ms = Some(now.since(recovery.noticed));
        }
        self.close(|recovery| recovery.path == WITHOUT_PROMOTION, ctx);
    }

    /// All promoted primaries serve.
    pub(crate) fn failed_over(&mut self, ctx: &mut Context) {
        let now = ctx.now();
        for recovery in self.open_ones() {
            if recovery.path == RecoveryPath::Failover(FailoverStep::Promoting) {
                let from = recovery.launched.unwrap_or(recovery.noticed);
                recovery.view.load_ms = Some(now.since(from));
                recovery.held = Some(now);
                recovery.path = RecoveryPath::Failover(FailoverStep::Serving);
            }
        }
    }

    /// A container reports how long ago it lost the ApplicationMaster before this attempt.
    pub(crate) fn am_was_lost(&mut self, ago_ms: u64, ctx: &mut Context) {
        let now = ctx.now();
        let mut known = false;
        for recovery in self.open_ones().filter(|it| it.awaits_notice) {
            recovery.view.notice_ms = Some(ago_ms.saturating_sub(now.since(recovery.noticed)));
            recovery.awaits_notice = false;
            known = true;
        }
        if known {
            self.close(|recovery| recovery.is_taken_over() || recovery.over.is_some(), ctx);
        }
    }

    /// Containers continue under this attempt without a rollback.
    pub(crate) fn taken_over(&mut self, ctx: &mut Context) {
        let now = ctx.now();
        for recovery in self.open_ones().filter(|recovery| !recovery.fails_over()) {
            let is_there = match recovery.view.slot.map(|slot| slot.role) {
                None => true,
                // All shards are there, by whatever the attempt before did.
                Some(Role::Pserver) => recovery.carried,
                Some(Role::Trainer) => recovery.carried && recovery.registered.is_some(),
            };
            if is_there {
                recovery.registered = Some(now);
                recovery.view.restart_ms = Some(now.since(recovery.noticed));
                recovery.view.load_ms = None;
                recovery.view.kind = RecoveryKind::ApplicationMaster;
                recovery.path = RecoveryPath::TakenOver;
            }
        }
        // Else the first heartbeat that reports when the other one was lost.
        self.close(RecoveryTiming::is_taken_over, ctx);
    }

    fn open_ones(&mut self) -> impl Iterator<Item = &mut RecoveryTiming> {
        self.kept.iter_mut().filter(|recovery| !recovery.view.done)
    }

    /// A rollback begins in the context's epoch: it answers every loss that is not over.
    pub(crate) fn roll_back(&mut self, base: Option<RestoredCheckpoint>, ctx: &Context) {
        let (wall_ms, now) = (ctx.wall_ms(), ctx.now());
        for recovery in self.open_ones() {
            // What a second loss interrupts is part of the rollback.
            if recovery.fails_over() {
                recovery.path = RecoveryPath::Replacement;
                recovery.view.kind = RecoveryKind::Rollback;
            }
        }
        for recovery in self.open_ones().filter(|it| it.rolls_back()) {
            if recovery.view.slot.is_none() && recovery.registered.is_none() {
                recovery.registered = Some(now);
                recovery.view.restart_ms = Some(now.since(recovery.noticed));
            }
            let view = &mut recovery.view;
            view.epoch_after = ctx.epoch();
            view.base = base.map(|base| base.cut);
            view.base_step = base.map(|base| base.step);
            view.steps_again = base
                .filter(|base| ctx.is_bsp() && base.phase == view.phase)
                .map(|base| view.step.0.saturating_sub(base.step.0));
            view.checkpoint_ms = base.map(|base| wall_ms.saturating_sub(base.at_ms));
            view.save_ms = base.and_then(|base| base.save_ms);
            view.load_ms = None;
            recovery.held = None;
        }
    }

    /// A replacement is being started.
    pub(crate) fn launched(&mut self, slot: Slot, ctx: &Context) {
        let now = ctx.now();
        for recovery in self.unregistered(slot) {
            recovery.launched = Some(now);
            recovery.view.restart_ms = Some(now.since(recovery.noticed));
        }
    }

    /// A replacement has registered.
    pub(crate) fn registered(&mut self, slot: Slot, ctx: &Context) {
        let now = ctx.now();
        for recovery in self.unregistered(slot) {
            recovery.registered = Some(now);
            // A process of another attempt was there already.
            let launched = *recovery.launched.get_or_insert(now);
            recovery.view.restart_ms = Some(launched.since(recovery.noticed));
            if !recovery.rolls_back() {
                recovery.view.load_ms = Some(now.since(launched));
            }
        }
    }

    fn unregistered(&mut self, slot: Slot) -> impl Iterator<Item = &mut RecoveryTiming> {
        self.open_ones().filter(move |recovery| {
            recovery.view.slot == Some(slot)
                && recovery.registered.is_none()
                && recovery.path == RecoveryPath::Replacement
        })
    }

    /// All shards are loaded.
    pub(crate) fn loaded(&mut self, ctx: &Context) {
        let now = ctx.now();
        for recovery in self.open_ones().filter(|it| it.rolls_back()) {
            let from = recovery.launched.or(recovery.registered).unwrap_or(recovery.noticed);
            recovery.view.load_ms = Some(now.since(from));
            recovery.held = Some(now);
        }
    }

    /// Whether a recovery is under way.
    pub(crate) fn is_any_open(&self) -> bool {
        self.kept.iter().any(|recovery| !recovery.view.done)
    }

    /// A trainer has taken its first step in this epoch: a rollback is over when all have, the loss of a trainer when its
    /// replacement has.
    pub(crate) fn stepping(&mut self, member: Member, all_step: bool, ctx: &mut Context) {
        self.close(
            |recovery| match recovery.path {
                RecoveryPath::Failover(step) => step == FailoverStep::Serving,
                _ if recovery.rolls_back() => all_step && recovery.held.is_some(),
                _ => recovery.registered.is_some() && recovery.replacement() == Some(member.slot),
            },
            ctx,
        );
    }

    /// The phase is over: its work was done again.
    pub(crate) fn phase_over(&mut self, ctx: &mut Context) {
        self.close(
            |recovery| match recovery.path {
                RecoveryPath::Failover(step) => {
                    matches!(step, FailoverStep::Serving | FailoverStep::Over)
                }
                RecoveryPath::TakenOver => true,
                _ => !recovery.rolls_back() || recovery.held.is_some(),
            },
            ctx,
        );
    }

    /// The job is over, and with it the wait for reports.
    pub(crate) fn job_over(&mut self, ctx: &mut Context) {
        for recovery in self.open_ones() {
            recovery.awaits_notice = false;
        }
        self.close(|recovery| recovery.is_taken_over() || recovery.over.is_some(), ctx);
    }

    /// Ends recoveries and reports them. One of the ApplicationMaster whose loss containers have not reported yet waits for
    /// that, so that each reader gets the same time: for less time than until a silent container is given up.
    fn close(&mut self, over: impl Fn(&RecoveryTiming) -> bool, ctx: &mut Context) {
        let (now, longest_ms) = (ctx.now(), ctx.limits().dead_ms);
        for recovery in self.open_ones() {
            if over(recovery) {
                let from = recovery.held.or(recovery.registered).unwrap_or(recovery.noticed);
                // Where nothing was rolled back, trainers worked on without an ApplicationMaster.
                if !recovery.is_taken_over() && recovery.path != WITHOUT_PROMOTION {
                    recovery.view.resume_ms.get_or_insert(now.since(from));
                }
                let since = *recovery.over.get_or_insert(now);
                if recovery.awaits_notice && now.since(since) < longest_ms {
                    continue;
                }
                recovery.view.done = true;
                ctx.notice(view::JobEvent::Recovered(recovery.view.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_protocol::ids::Epoch;

    fn recovery(at_ms: u64, done: bool) -> RecoveryTiming {
        RecoveryTiming {
            view: RecoveryView {
                cause: String::new(),
                slot: Some(Slot::trainer(0)),
                kind: RecoveryKind::Trainer,
                at_ms,
                epoch_before: Epoch::default(),
                epoch_after: Epoch::default(),
                base: None,
                phase: PhaseNo(0),
                step: Step(0),
                base_step: None,
                steps_again: None,
                updates_lost: None,
                checkpoint_ms: None,
                save_ms: None,
                notice_ms: None,
                restart_ms: None,
                load_ms: None,
                resume_ms: None,
                done,
            },
            noticed: MonotonicMs::default(),
            launched: None,
            registered: None,
            held: None,
            path: RecoveryPath::Replacement,
            carried: false,
            awaits_notice: false,
            over: None,
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
