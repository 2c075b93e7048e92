//! Commit: a cut that is saved becomes a checkpoint.
//!
//! A checkpoint is committed when it has its final name; only the store call does that. **Gate:** the lease. **Unknown
//! outcome:** the call is repeated, since the store recognises its own manifest by its salt; nothing of the cut is deleted.
//! Then the journal's record follows, then older checkpoints may be removed (retention).

use heddle_protocol::control::{EndCut, ShardCommand};
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::Role;
use heddle_protocol::view::{self, WarningCode};

use super::cut::{Cut, CutReason, OrderedCut};
use super::{Checkpoints, Committed, CutEnded, checkpoint_view};
use crate::action::{CallId, Checkpoint, StoreCall};
use crate::context::deadlines::Retried;
use crate::context::{Context, StoreCallPurpose};
use crate::event::Stored;
use crate::fleet::Fleet;
use crate::record::Record;
use crate::work::JobWork;

/// What came of a try to commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CommitOutcome {
    /// Nothing follows: another try is made later, or the answer is stale.
    NothingFollows,
    GivenUp(CutEnded),
    Committed(Committed),
}

impl Checkpoints {
    /// Starts a try to commit, unless one is under way or has to wait. Returns whether it did.
    pub(crate) fn try_commit(&mut self, work: &JobWork, fleet: &Fleet, ctx: &mut Context) -> bool {
        let commit = self.open.as_mut().and_then(Cut::ordered_mut).and_then(OrderedCut::commit);
        let Some(commit) = commit.filter(|commit| commit.call.is_none()) else {
            return false;
        };
        if ctx.waits_to_retry(Retried::Commit) {
            return false;
        }
        let after = *commit.after.get_or_insert(ctx.last_record());
        if !ctx.can_publish(after) {
            self.warn_of_delay(ctx);
            return false;
        }
        let Some((staging, manifest)) = self.manifest(work, fleet, ctx) else {
            debug_assert!(false, "a cut that commits has a manifest");
            return false;
        };
        let call = StoreCall::Commit { staging, manifest: Box::new(manifest) };
        let call = ctx.store_at_once(StoreCallPurpose::Commit, call);
        let ordered = self.open.as_mut().and_then(Cut::ordered_mut);
        if let Some(commit) = ordered.and_then(OrderedCut::commit) {
            commit.call = Some(call);
        }
        true
    }

    /// Warns once that a checkpoint waits for the ResourceManager.
    fn warn_of_delay(&mut self, ctx: &mut Context) {
        if ctx.holds_lease() {
            return;
        }
        let Some(cut) = &mut self.open else {
            return;
        };
        let id = cut.id;
        let commit = cut.ordered_mut().and_then(OrderedCut::commit);
        if commit.is_some_and(|commit| !std::mem::replace(&mut commit.delay_reported, true)) {
            ctx.warn(WarningCode::CommitDelayed, format!(
                "checkpoint {id} is saved but not yet committed: the ResourceManager has not responded for {} s; training continues",
                ctx.cluster_silent_ms() / 1000
            ));
        }
    }

    /// The store has answered a try to commit.
    pub(crate) fn commit_answered(
        &mut self,
        call: CallId,
        outcome: Stored,
        fleet: &Fleet,
        ctx: &mut Context,
    ) -> CommitOutcome {
        let ordered = self.open.as_mut().and_then(Cut::ordered_mut);
        let commit = ordered.and_then(OrderedCut::commit);
        let Some(commit) = commit.filter(|commit| commit.call == Some(call)) else {
            return CommitOutcome::NothingFollows;
        };
        let failure = match outcome {
            Stored::Committed(checkpoint) => return self.committed(*checkpoint, fleet, ctx),
            Stored::Unknown { failure } => {
                commit.outcome_unknown = true;
                failure
            }
            Stored::NotDone { failure } => failure,
            other => Failure::new(
                ErrorClass::Internal,
                format!("the store replied to a commit with {other:?}"),
            ),
        };
        commit.tries += 1;
        commit.call = None;
        let tries = commit.tries;
        if tries >= ctx.limits().store_tries {
            let failure = failure.preventing("its manifest could not be committed");
            let ended = self.cut_failed(failure, fleet, ctx);
            return ended.map_or(CommitOutcome::NothingFollows, CommitOutcome::GivenUp);
        }
        ctx.retry_later(Retried::Commit, tries);
        ctx.warn(
            WarningCode::CommitRetried,
            format!("a checkpoint's commit is tried again: {failure}"),
        );
        CommitOutcome::NothingFollows
    }

    /// The cut is a checkpoint.
    fn committed(
        &mut self,
        checkpoint: Checkpoint,
        fleet: &Fleet,
        ctx: &mut Context,
    ) -> CommitOutcome {
        let Some(cut) = self.open.take() else {
            debug_assert!(false, "the cut of a commit is open");
            return CommitOutcome::NothingFollows;
        };
        warn_of_shortage(&cut, ctx);
        let manifest = &checkpoint.manifest;
        let view = checkpoint_view(&checkpoint, ctx.now().since(cut.opened));
        ctx.journal(Record::Commit {
            cut: cut.id,
            dir: checkpoint.dir.clone(),
            phase: manifest.phase,
            step: manifest.step(),
            at_ms: ctx.wall_ms(),
        });
        if checkpoint.manifest.best_pass.is_some() {
            self.best = Some(checkpoint.clone());
        }
        self.base = Some(checkpoint);
        self.committed += 1;
        self.saved_ms = Some(view.took_ms);
        self.missed_step_tries = 0;
        self.final_failures = 0;
        fleet.send_to_all(
            Role::Pserver,
            ShardCommand::CutEnd(EndCut { cut: cut.id, committed: true }),
            ctx,
        );
        // The last one of a job that failed is one more: it must not displace a checkpoint from before the failure.
        let more = u32::from(cut.reason == CutReason::LastSave);
        let keep = ctx.config().spec.checkpoint.keep.max(2).saturating_add(more);
        let best = self.best.as_ref().map(|best| best.manifest.cut);
        let (generation, held) = (ctx.generation(), self.held);
        let retain = StoreCall::Retain { keep, generation, base: cut.id, best, held };
        ctx.store(StoreCallPurpose::Housekeeping, retain);
        self.views.push(view.clone());
        let mut surplus = self.views.len().saturating_sub(keep as usize);
        self.views.retain(|view| {
            let is_surplus = surplus > 0;
            surplus = surplus.saturating_sub(1);
            !is_surplus || Some(view.cut) == best
        });
        for id in cut.asked_by {
            ctx.answer(id, Ok(format!("checkpoint {} committed in {}", cut.id, view.dir)));
        }
        ctx.notice(view::JobEvent::CheckpointCommitted(view));
        CommitOutcome::Committed(Committed { reason: cut.reason })
    }
}

/// Warns that a checkpoint has fewer copies than the job wants.
fn warn_of_shortage(cut: &Cut, ctx: &mut Context) {
    let wanted = ctx.config().spec.checkpoint.copies;
    let ordered = cut.ordered().filter(|_| cut.reason != CutReason::Initial);
    let shortage = ordered.and_then(|ordered| ordered.saved.shortage(wanted));
    if let Some((shards, cause)) = shortage {
        let (id, count, all) = (cut.id, shards.len(), cut.shards);
        let first = shards.first().copied().unwrap_or_default();
        ctx.warn(WarningCode::CopiesMissing, format!(
            "checkpoint {id} has fewer than {wanted} copies (checkpoint.copies) of {count} of {all} shards, the first is shard {first}: {cause}"
        ));
    }
}
