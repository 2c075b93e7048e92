//! Opening a cut, ordering it, and giving it up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use heddle_protocol::control::{Command, CutAt, EndCut, ShardCommand, TrainerCommand};
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::{CutId, Role, Slot};
use heddle_protocol::view;

use super::cut::{Cut, CutPoint, CutProgress, CutReason, CutState, OrderedCut};
use super::saved_files::{COPIES_WAIT_MS, SavedFiles};
use super::{Checkpoints, CutEnded, STAGING_HOLDS_MS};
use crate::action::{CallId, StoreCall};
use crate::context::deadlines::{Purpose, Retried};
use crate::context::{Context, StoreCallPurpose};
use crate::event::Stored;
use crate::fleet::Fleet;
use crate::stage::replicas::ViewList;
use crate::stage::shard_map::ShardMap;
use crate::time::MonotonicMs;
use crate::work::JobWork;

impl Checkpoints {
    /// Opens the cut that is wanted: its directory is made. `timeout`: when it is given up.
    pub(crate) fn open(
        &mut self,
        reason: CutReason,
        timeout: MonotonicMs,
        shards: usize,
        ctx: &mut Context,
    ) {
        debug_assert!(self.open.is_none(), "one cut is open at a time");
        self.wanted = None;
        self.last_number += 1;
        let id = CutId { generation: ctx.generation(), number: self.last_number };
        let call = ctx.store(StoreCallPurpose::Stage(id), StoreCall::Stage { cut: id });
        ctx.clear_deadline(Purpose::CutDue);
        ctx.set_deadline(Purpose::CutTimeout, timeout);
        ctx.set_deadline(Purpose::CutStaging, ctx.now() + STAGING_HOLDS_MS);
        self.open = Some(Cut {
            id,
            reason,
            asked_by: std::mem::take(&mut self.asked_by),
            epoch: ctx.epoch(),
            opened: ctx.now(),
            shards,
            state: CutState::Staging(call),
        });
    }

    /// The store has made a cut's directory, or could not.
    pub(crate) fn staged(
        &mut self,
        call: CallId,
        cut: CutId,
        outcome: Stored,
        fleet: &Fleet,
        ctx: &mut Context,
    ) -> Option<CutEnded> {
        let waits = |open: &&mut Cut| matches!(open.state, CutState::Staging(own) if own == call);
        match (outcome, self.open.as_mut().filter(waits)) {
            (Stored::Staged(staging), Some(open)) => open.state = CutState::Staged { staging },
            (Stored::Staged(staging), None) => {
                ctx.store(StoreCallPurpose::Housekeeping, StoreCall::Discard { cut, staging });
            }
            (Stored::NotDone { failure } | Stored::Unknown { failure }, Some(_)) => {
                let failure = failure.preventing("its directory could not be made");
                return self.cut_failed(failure, fleet, ctx);
            }
            _ => {}
        }
        None
    }

    /// Where the open cut is to be taken.
    fn place(&self, point: CutPoint, work: &JobWork, fleet: &Fleet, ctx: &Context) -> CutAt {
        let reason = self.open.as_ref().map(|cut| cut.reason);
        match (work.has_lanes(), work.sharing(), point) {
            (true, _, CutPoint::Idle { .. }) => CutAt::Steps(work.frontier()),
            (true, _, CutPoint::Working) if reason == Some(CutReason::LastSave) => {
                CutAt::Steps(fleet.shards_step(ctx.epoch(), work.phase()))
            }
            (true, _, CutPoint::Working) => {
                CutAt::Steps(self.step_ahead(work, self.missed_step_tries, ctx))
            }
            (false, sharing, CutPoint::Working) if sharing.is_queue_of_pushes() => {
                CutAt::Barriers(fleet.joined().into_iter().collect())
            }
            (false, _, _) => CutAt::Barriers(Vec::new()),
        }
    }

    /// Orders the staged cut at the pservers.
    pub(crate) fn order(
        &mut self,
        point: CutPoint,
        work: &JobWork,
        map: &ShardMap,
        views: &ViewList,
        fleet: &Fleet,
        ctx: &mut Context,
    ) {
        let at = self.place(point, work, fleet, ctx);
        let Some(cut) = &mut self.open else {
            debug_assert!(false, "only an open cut is ordered");
            return;
        };
        let CutState::Staged { staging } = &mut cut.state else {
            debug_assert!(false, "only a staged cut is ordered");
            return;
        };
        let trainers = match &at {
            CutAt::Barriers(trainers) => trainers.iter().map(|member| (*member, false)).collect(),
            CutAt::Steps(_) => BTreeMap::new(),
        };
        let copies = match cut.reason {
            CutReason::Initial => 1,
            _ => ctx.config().spec.checkpoint.copies,
        };
        let phase_is_over = matches!(point, CutPoint::Idle { phase_is_over: true });
        let positions = work.positions().filter(|_| work.sharing().is_queue_of_pushes());
        cut.state = CutState::Ordered(Box::new(OrderedCut {
            staging: std::mem::take(staging),
            progress: CutProgress::Arming(BTreeSet::new()),
            phase: work.phase(),
            sharing: work.sharing(),
            at,
            phase_is_over,
            trainers,
            tasks: positions.unwrap_or_default(),
            snapped: BTreeMap::new(),
            saved: SavedFiles::expecting(views.savers(copies)),
            tables: BTreeMap::new(),
            evaluations: work.scores(),
            best_pass: work.best_pass(ctx).filter(|_| phase_is_over),
            passes: work.passes(),
            set_aside: work.set_aside().to_vec(),
        }));
        let copies = cut.ordered().map(|ordered| ordered.saved.awaited_slots()).unwrap_or_default();
        if let Some(command) = cut.command_without_copies() {
            // Pservers with backups alone may be promoted while the cut is open.
            let slots: BTreeSet<Slot> = map.slots().chain(views.held().into_keys()).collect();
            for slot in slots.into_iter().filter(|slot| !copies.contains(slot)) {
                fleet.send(slot, Arc::clone(&command), ctx);
            }
        }
        for slot in copies {
            if let Some(command) = cut.command(slot) {
                fleet.send(slot, command, ctx);
            }
        }
    }

    /// Moves the open cut on as far as the reports allow. Returns whether it moved. `point`: where the job can be cut now.
    pub(crate) fn advance(
        &mut self,
        point: Option<CutPoint>,
        work: &JobWork,
        map: &ShardMap,
        views: &ViewList,
        fleet: &Fleet,
        ctx: &mut Context,
    ) -> bool {
        let Some(cut) = &mut self.open else {
            return false;
        };
        let complete = cut.is_complete();
        if cut.awaits_only_copies() {
            ctx.set_deadline_at_latest(Purpose::CutCopies, ctx.now() + COPIES_WAIT_MS);
        }
        let ordered = match &mut cut.state {
            CutState::Staging(_) => return false,
            CutState::Staged { .. } => {
                if let Some(point) = point {
                    self.order(point, work, map, views, fleet, ctx);
                }
                return point.is_some();
            }
            CutState::Ordered(ordered) => ordered,
        };
        match &mut ordered.progress {
            CutProgress::Arming(armed) if map.is_covered_by(armed) => {
                ordered.progress = CutProgress::Snapping;
                let barrier: Arc<Command> =
                    TrainerCommand::Barrier { cut: cut.id, epoch: cut.epoch }.into();
                for member in ordered.trainers.keys() {
                    fleet.send(member.slot, Arc::clone(&barrier), ctx);
                }
                true
            }
            CutProgress::Snapping if complete => {
                ordered.progress = CutProgress::Committing(Default::default());
                ctx.clear_deadline(Purpose::CutTimeout);
                ctx.clear_deadline(Purpose::CutCopies);
                true
            }
            CutProgress::Arming(_) | CutProgress::Snapping => false,
            CutProgress::Committing(_) => self.try_commit(work, fleet, ctx),
        }
    }

    /// The open cut goes on with the files that it has.
    pub(crate) fn stop_waiting_for_copies(&mut self) {
        if let Some(cut) = self.open.as_mut().and_then(Cut::ordered_mut) {
            cut.saved.stop_waiting();
        }
    }

    /// The open cut has taken too long.
    pub(crate) fn timed_out(&mut self, fleet: &Fleet, ctx: &mut Context) -> Option<CutEnded> {
        let timeout = ctx.config().spec.checkpoint.timeout;
        self.give_up(&format!("it took longer than checkpoint.timeout ({timeout})"), fleet, ctx)
    }

    /// Gives the open cut up for a cause that is not the storage's.
    pub(crate) fn give_up(
        &mut self,
        cause: &str,
        fleet: &Fleet,
        ctx: &mut Context,
    ) -> Option<CutEnded> {
        self.cut_failed(Failure::new(ErrorClass::Unreachable, cause), fleet, ctx)
    }

    /// Gives the open cut up: its files are removed, trainers can join, the job goes on.
    pub(super) fn cut_failed(
        &mut self,
        failure: Failure,
        fleet: &Fleet,
        ctx: &mut Context,
    ) -> Option<CutEnded> {
        let cut = self.remove_open(fleet, ctx)?;
        self.missed_step_tries = 0;
        for id in cut.asked_by {
            ctx.answer(id, Err(format!("checkpoint {} was given up: {failure}", cut.id)));
        }
        let reason = failure.text.clone();
        ctx.notice(view::JobEvent::CheckpointGivenUp { cut: cut.id, reason });
        Some(CutEnded { reason: cut.reason, failure, has_own_limit: false })
    }

    /// BSP: takes the open cut again at once, with a step further ahead. Only the last of such tries is reported.
    pub(crate) fn name_later_step(&mut self, fleet: &Fleet, ctx: &mut Context) {
        let Some(cut) = self.remove_open(fleet, ctx) else {
            debug_assert!(false, "a shard has just given it up");
            return;
        };
        self.missed_step_tries += 1;
        self.asked_by.extend(cut.asked_by);
        self.want(cut.reason);
    }

    /// A rollback begins: a cut that is open ends, and a periodic one that was due is taken soon after.
    pub(crate) fn end_for_rollback(
        &mut self,
        fleet: &Fleet,
        ctx: &mut Context,
    ) -> Option<CutEnded> {
        let open = self.open.as_ref().map(|cut| cut.reason);
        self.overdue |= open == Some(CutReason::Due) || self.wanted == Some(CutReason::Due);
        self.give_up("a pserver was lost", fleet, ctx)
    }

    /// Ends the open cut on the pservers and removes its files.
    fn remove_open(&mut self, fleet: &Fleet, ctx: &mut Context) -> Option<Cut> {
        let cut = self.open.take()?;
        ctx.clear_deadline(Purpose::CutTimeout);
        ctx.clear_deadline(Purpose::CutCopies);
        ctx.clear_deadline(Purpose::Retry(Retried::Commit));
        if cut.is_ordered() {
            let command = ShardCommand::CutEnd(EndCut { cut: cut.id, committed: false });
            fleet.send_to_all(Role::Pserver, command, ctx);
        }
        // What may have become a checkpoint after all is left for the next attempt to judge.
        let unknown = cut.commit().is_some_and(|commit| commit.outcome_unknown);
        if let Some(staging) = cut.staging().filter(|_| !unknown) {
            let discard = StoreCall::Discard { cut: cut.id, staging: staging.to_owned() };
            ctx.store(StoreCallPurpose::Housekeeping, discard);
        }
        Some(cut)
    }
}
