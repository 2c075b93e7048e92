//! Checkpoints: schedule, cuts, snapshots, commit, manifest, retention.
//!
//! This component decides when a cut is taken, follows it over all shards and makes a checkpoint of it. It has the newest
//! checkpoint, to which a rollback returns. Handlers return facts ([`CutEnded`], [`Committed`]); what follows from them for
//! the stage of the job is decided by the dispatcher in `core`.

pub(crate) mod commit;
pub(crate) mod cut;
#[cfg(test)]
mod cut_edges;
pub(crate) mod manifest;
pub(crate) mod order;
pub(crate) mod period;
pub(crate) mod saved_files;
pub(crate) mod schedule;
pub(crate) mod snapshots;

use std::collections::BTreeMap;

use heddle_protocol::failure::Failure;
use heddle_protocol::ids::{CutId, Epoch, PhaseNo, ShardId, Step};
use heddle_protocol::manifest::{Manifest, Progress};
use heddle_protocol::mutation::Mutation;
use heddle_protocol::view::{self, CheckpointView};

use crate::action::{Checkpoint, OperationId};
use crate::context::Context;
use crate::context::deadlines::{Purpose, Retried};
use crate::event::DamagedCheckpoint;
use crate::failure::{JobFailure, exit_after_tries};
use crate::time::MonotonicMs;
use cut::{Cut, CutReason};
use period::{AutoPeriod, SaveLoss};

/// How long work waits at the end of a phase for a periodic cut whose directory is being made. Usually that takes
/// milliseconds. Where the store does not answer, the cut is taken later and training goes on.
const STAGING_HOLDS_MS: u64 = 5_000;

/// BSP: tries in a row that name a step too late, each four times further ahead, before the cut waits for the next time.
pub(crate) const TRIES_MAX: u32 = 6;

/// The open cut was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CutEnded {
    pub reason: CutReason,
    pub failure: Failure,
    /// A pserver was lost, or copies of a shard differed: the storage has not failed, and if it happens again and again another
    /// limit ends the job.
    pub has_own_limit: bool,
}

impl CutEnded {
    /// Another limit ends the job if this happens again and again.
    pub(crate) fn with_own_limit(self) -> Self {
        Self { has_own_limit: true, ..self }
    }
}

/// The open cut has become a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Committed {
    pub reason: CutReason,
}

/// The open cut, the checkpoints of the job, and what is remembered between cuts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Checkpoints {
    open: Option<Cut>,
    /// The checkpoint that a rollback returns to.
    base: Option<Checkpoint>,
    /// `training.keep = "best"`: the end of the best pass so far. It is exported, and is not removed.
    best: Option<Checkpoint>,
    /// The one that a save of the model is made from: it is not removed.
    held: Option<CutId>,
    views: Vec<CheckpointView>,
    /// Figures of the run before the checkpoint that this attempt started from.
    earlier: Progress,
    /// Numbers used in this generation.
    last_number: u32,
    wanted: Option<CutReason>,
    /// Operators that wait for the next cut.
    asked_by: Vec<OperationId>,
    /// Whether a phase pushes to tables: cuts are of jobs that do.
    has_state: bool,
    /// BSP: tries in a row that named a step too late.
    missed_step_tries: u32,
    /// Tries in a row of the final cut, or of that of the best pass, that failed.
    final_failures: u32,
    /// Checkpoints committed by this attempt.
    committed: u32,
    /// BSP: job steps of phases that are over.
    steps_before: u64,
    /// `checkpoint.every` in steps: where the next cut is due.
    next_steps: u64,
    /// A rollback ended a periodic cut that was due or under way.
    overdue: bool,
    /// The last phase that ended, with BSP's number of steps.
    ended: Option<(Epoch, PhaseNo, Option<Step>)>,
    /// `checkpoint.every = "auto"`.
    auto: AutoPeriod,
    save_loss: SaveLoss,
    /// The duration of a checkpoint that was committed since the next one was planned.
    saved_ms: Option<u64>,
    /// Updates that the job has lost by local recoveries.
    updates_lost: BTreeMap<ShardId, u64>,
    /// A warning reported that saving slows training.
    slowness_reported: bool,
    /// When copies of a shard differed, within the last hour.
    differed: Vec<MonotonicMs>,
    /// How often they differed in this attempt.
    times_differed: u64,
}

pub(crate) fn checkpoint_view(checkpoint: &Checkpoint, took_ms: u64) -> CheckpointView {
    let manifest = &checkpoint.manifest;
    CheckpointView {
        cut: manifest.cut,
        phase: manifest.phase,
        step: manifest.step(),
        at_ms: manifest.at_ms,
        took_ms,
        bytes: manifest.bytes(),
        dir: checkpoint.dir.clone(),
        tables: manifest.tables.clone(),
    }
}

impl Checkpoints {
    /// The attempt starts with these checkpoints. `has_state`: whether a phase pushes to tables.
    pub(crate) fn begin(&mut self, base: Option<Checkpoint>, all: &[Checkpoint], has_state: bool) {
        self.has_state = has_state || Mutation::CutsWithoutState.is_on();
        self.views = all.iter().map(|checkpoint| checkpoint_view(checkpoint, 0)).collect();
        if let Some(base) = &base {
            self.earlier = base.manifest.progress.clone();
        }
        // A pass that is kept was better than all before it.
        self.best = all.iter().rev().find(|one| one.manifest.best_pass.is_some()).cloned();
        self.base = base;
    }

    /// The checkpoint whose model is exported.
    pub(crate) fn to_export(&self) -> Option<&Checkpoint> {
        self.best.as_ref().or(self.base.as_ref())
    }

    /// A save of the model is made from this checkpoint, or (with `None`) needs none any more.
    pub(crate) fn hold(&mut self, cut: Option<CutId>) {
        self.held = cut;
    }

    /// The last cut of the job so far.
    pub(crate) fn last_cut(&self, ctx: &Context) -> CutId {
        let base = self.base_manifest().map(|base| base.cut).unwrap_or_default();
        base.max(CutId { generation: ctx.generation(), number: self.last_number })
    }

    /// The cut that is open.
    pub(crate) fn open_cut(&self) -> Option<CutId> {
        self.open.as_ref().map(|cut| cut.id)
    }

    /// The checkpoint of the best pass is damaged: the last one is exported. Returns whether that is another one.
    pub(crate) fn give_up_best(&mut self) -> bool {
        let best = self.best.take().map(|best| best.manifest.cut);
        best.is_some() && best != self.base_manifest().map(|base| base.cut)
    }

    /// The pass whose model would be exported now, if that is not simply the last one.
    pub(crate) fn kept_pass(&self) -> Option<u32> {
        self.best.as_ref()?.manifest.best_pass
    }

    /// The checkpoint that a rollback returns to.
    pub(crate) fn base(&self) -> Option<&Checkpoint> {
        self.base.as_ref()
    }

    /// The manifest of the base.
    pub(crate) fn base_manifest(&self) -> Option<&Manifest> {
        self.base.as_ref().map(|base| &*base.manifest)
    }

    /// The position of the base: phase, and in BSP the job steps applied.
    pub(crate) fn base_position(&self) -> (PhaseNo, Step) {
        self.base_manifest()
            .map_or((PhaseNo(0), Step(0)), |manifest| (manifest.phase, manifest.step()))
    }

    /// An older checkpoint is used, because the base is damaged.
    pub(crate) fn use_older(&mut self, base: Checkpoint) {
        self.views.retain(|checkpoint| checkpoint.cut <= base.manifest.cut);
        // A later pass is trained and evaluated again.
        let older = self.best.take().filter(|best| best.manifest.cut <= base.manifest.cut);
        let is_best = base.manifest.best_pass.is_some();
        self.best = older.or_else(|| is_best.then(|| base.clone()));
        self.base = Some(base);
    }

    /// The checkpoints of the job, oldest first.
    pub(crate) fn views(&self) -> &[CheckpointView] {
        &self.views
    }

    /// From the order of a checkpoint to its commit, if this attempt took it.
    pub(crate) fn save_ms(&self, cut: CutId) -> Option<u64> {
        let view = self.views.iter().find(|view| view.cut == cut)?;
        (view.took_ms > 0).then_some(view.took_ms)
    }

    /// Checkpoints committed by this attempt.
    pub(crate) fn committed_count(&self) -> u32 {
        self.committed
    }

    /// Reports checkpoints that are set aside.
    pub(crate) fn report_damaged(damaged: Vec<DamagedCheckpoint>, ctx: &mut Context) {
        for DamagedCheckpoint { cut, dir, error } in damaged {
            ctx.notice(view::JobEvent::CheckpointDamaged { cut, dir, error });
        }
    }

    /// Whether the job has anything to save.
    pub(crate) fn has_state(&self) -> bool {
        self.has_state
    }

    /// A cut is wanted, if there is anything to save.
    pub(crate) fn want(&mut self, reason: CutReason) {
        if self.has_state {
            self.wanted = self.wanted.max(Some(reason));
        }
    }

    /// No cut is wanted any more.
    pub(crate) fn unwant(&mut self) {
        self.wanted = None;
    }

    /// Why a cut is wanted, if one is.
    pub(crate) fn wanted(&self) -> Option<CutReason> {
        self.wanted
    }

    /// An operator wants a checkpoint.
    pub(crate) fn ordered_by(&mut self, id: OperationId) {
        self.want(CutReason::Ordered);
        self.asked_by.push(id);
    }

    /// A cut is wanted as soon as possible; an open one serves.
    pub(crate) fn want_now(&mut self) {
        if self.open.is_none() {
            self.want(CutReason::Ordered);
        }
    }

    /// Whether a cut is open that some shard has not snapped, and that only saves work.
    pub(crate) fn waits_for_work(&self) -> bool {
        let open = self.open.as_ref();
        open.is_some_and(|cut| cut.reason < CutReason::Best && !cut.all_snapped())
    }

    /// Whether a cut is open.
    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Whether a manifest may or may not be under its final name: the outcome of the commit must be awaited. A commit that
    /// only waits for the lease has not been tried.
    pub(crate) fn is_outcome_open(&self) -> bool {
        let commit = self.open.as_ref().and_then(Cut::commit);
        commit.is_some_and(|commit| commit.call.is_some() || commit.tries > 0)
    }

    /// Whether work cannot go on to the next phase: some shard still has to snap, or a cut is wanted that belongs here.
    /// (A periodic cut that comes while another is being saved is taken later.)
    pub(crate) fn holds_up(&self, ctx: &Context) -> bool {
        match &self.open {
            Some(cut)
                if cut.reason == CutReason::Due
                    && (self.wanted < Some(CutReason::Best)
                        || Mutation::BestPassIsNotHeld.is_on())
                    && !cut.is_ordered()
                    && ctx.now().since(cut.opened) >= STAGING_HOLDS_MS =>
            {
                false
            }
            // Were the next pass trained meanwhile, a failure to save would lose the best one.
            Some(cut) if cut.reason == CutReason::Best => !Mutation::BestPassIsNotHeld.is_on(),
            Some(cut) => !cut.all_snapped() || self.wanted >= Some(CutReason::Initial),
            None => self.wanted.is_some(),
        }
    }

    /// Whether no trainer can join now.
    pub(crate) fn bars_joining(&self) -> bool {
        self.open.as_ref().is_some_and(|cut| {
            cut.ordered().is_some_and(|ordered| ordered.has_barriers()) && !cut.all_snapped()
        })
    }

    /// Local recoveries have lost these updates.
    pub(crate) fn set_updates_lost(&mut self, lost: BTreeMap<ShardId, u64>) {
        self.updates_lost = lost;
    }

    /// Shards go back to the base: a phase that ended has not ended, and training is not over.
    pub(crate) fn roll_back(&mut self, ctx: &mut Context) {
        self.ended = None;
        self.save_loss.interrupted();
        self.missed_step_tries = 0;
        self.final_failures = 0;
        ctx.clear_deadline(Purpose::Retry(Retried::FinalCut));
        ctx.clear_deadline(Purpose::Retry(Retried::BestCut));
        if matches!(self.wanted, Some(CutReason::Final | CutReason::Best | CutReason::Due)) {
            self.wanted = None;
        }
    }

    /// A try of the final cut failed: the next one follows after a wait.
    ///
    /// # Errors
    /// There were too many; the job ends.
    pub(crate) fn final_cut_failed(
        &mut self,
        ended: &CutEnded,
        ctx: &mut Context,
    ) -> Result<(), JobFailure> {
        self.try_again_later("the final checkpoint", Retried::FinalCut, ended, ctx)
    }

    /// A try of the best pass's cut failed: the next one follows after a wait, before the next pass.
    ///
    /// # Errors
    /// There were too many; the job ends.
    pub(crate) fn best_cut_failed(
        &mut self,
        ended: &CutEnded,
        ctx: &mut Context,
    ) -> Result<(), JobFailure> {
        let what = "the checkpoint of the best pass (training.keep)";
        self.try_again_later(what, Retried::BestCut, ended, ctx)?;
        self.want(CutReason::Best);
        Ok(())
    }

    /// Waits for the next try of a cut without which the job cannot go on. What has a limit elsewhere is not counted.
    fn try_again_later(
        &mut self,
        what: &str,
        retried: Retried,
        CutEnded { failure, has_own_limit, .. }: &CutEnded,
        ctx: &mut Context,
    ) -> Result<(), JobFailure> {
        if *has_own_limit {
            ctx.retry_later(retried, 1);
            return Ok(());
        }
        self.final_failures += 1;
        if self.final_failures >= ctx.limits().store_tries {
            let message = format!("{what} could not be taken: {failure}");
            return Err(JobFailure::new(exit_after_tries(failure), message));
        }
        ctx.retry_later(retried, self.final_failures);
        Ok(())
    }

    /// Whether the open cut holds the end of training, or its commit is under way: then the final cut does not replace it.
    pub(crate) fn serves_as_final(&self, phase: PhaseNo, tasks: usize) -> bool {
        self.open.as_ref().is_some_and(|cut| {
            let holds_end = cut.ordered().is_some_and(|ordered| {
                ordered.phase == phase && cut.all_snapped() && self.holds_whole_phase(cut, tasks)
            });
            cut.reason == CutReason::Final || holds_end || cut.commit().is_some()
        })
    }

    /// The job ends: operators that wait for a checkpoint are answered.
    pub(crate) fn end(&mut self, ctx: &mut Context) {
        let open = self.open.take().map(|cut| cut.asked_by).unwrap_or_default();
        for id in open.into_iter().chain(std::mem::take(&mut self.asked_by)) {
            ctx.answer(id, Err("the job is ending".to_owned()));
        }
    }

    /// BSP's number of steps of a phase, if it was the last one to end.
    fn end_of(&self, epoch: Epoch, phase: PhaseNo) -> Option<Option<Step>> {
        self.ended.filter(|(e, p, _)| *e == epoch && *p == phase).map(|(.., step)| step)
    }
}
