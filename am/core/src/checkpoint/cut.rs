//! The open cut: how far it is, and what shards and trainers have reported about it.
//!
//! ```text
//!  wanted ─▶ Staging ─▶ Staged ─▶ Arming ─▶ Snapping ─▶ Committing ─▶ a checkpoint
//!            directory  until the  Cut to    Barrier to   manifest,
//!            is made    job can be pservers, trainers;    rename
//!                       cut        answered  snapped,
//!                                            saved
//!     └─────────┴──────────┴─────────┴──────────┴──▶ given up: shard, timeout, lost pserver, replaced
//! ```
//!
//! **Where.** Between phases no step is under way: every shard cuts where it stands. An evaluation changes nothing: the same
//! holds, and the evaluation starts again after a rollback. In ASP trainers send barriers. In BSP the cut names a step that
//! no shard has reached yet: the probable frontier, and a margin. A shard that is beyond it gives the cut up, and the next
//! try names a step further ahead. A phase that ends before the step is cut at its end. The cut of a job that has failed
//! names the furthest step that shards are known to have applied: no other may follow.
//!
//! **The queue of the cut** (ASP) is the queue when the pservers were ordered. From then on only reports of the cut's
//! trainers with an older cut number move it: what they report with this cut's number happened after the barrier. It may
//! be behind the snapshots, never ahead of them: shards refuse what they have.
//!
//! **Joins** wait from the order until all shards have snapped: a trainer in one shard's snapshot must be in all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use heddle_protocol::control::{Command, CutAt, PserverCommand, Sharing, TakeCut};
use heddle_protocol::ids::{CutId, Epoch, Member, PhaseNo, ShardId, Slot, Step};
use heddle_protocol::set_aside::SetAsideTask;
use heddle_protocol::table_statistics::TableStatistics;
use heddle_protocol::view::{EvaluationView, TrainingPassView};

use super::saved_files::SavedFiles;
use crate::action::{CallId, OperationId, RecordId};
use crate::time::MonotonicMs;
use crate::work::queue::QueueProgress;

/// Why a cut is wanted, the most important last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CutReason {
    /// `checkpoint.every`.
    Due,
    /// An operator's order.
    Ordered,
    /// Before the first step of the job: there is a checkpoint to return to. Without `model.init` shards make its values again,
    /// and it needs no files.
    Initial,
    /// Before the first step of training, after measuring or with `model.init`: what was measured or inherited is safe.
    First,
    /// `training.keep = "best"`: a pass is better than all before.
    Best,
    /// An operator stops the job.
    Stop,
    /// The job has failed, and its shards are whole.
    LastSave,
    /// Training has ended.
    Final,
}

/// Where the job can be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CutPoint {
    /// Between phases, or before the work of a phase.
    Idle { phase_is_over: bool },
    /// Trainers work on the phase.
    Working,
}

/// How far a cut is.
#[derive(Clone, Debug)]
pub(crate) enum CutState {
    /// Its directory is being made by this call.
    Staging(CallId),
    /// It can be ordered as soon as the job is in a stage that can be cut.
    Staged { staging: String },
    /// Pservers have the order.
    Ordered(Box<OrderedCut>),
}

/// The commit of a cut.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Commit {
    /// The store call under way. While there is none, the commit waits for its next try or for the lease.
    pub call: Option<CallId>,
    /// The last record before the first try; that one waits for it.
    pub after: Option<RecordId>,
    /// Tries that failed.
    pub tries: u32,
    /// The outcome of a try could not be found out: nothing of the cut may be removed.
    pub outcome_unknown: bool,
    /// A warning reported that the commit waits for the ResourceManager.
    pub delay_reported: bool,
}

/// How far an ordered cut is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CutProgress {
    /// These pservers have answered.
    Arming(BTreeSet<Slot>),
    /// Trainers have the order (ASP). Shards snap and save.
    Snapping,
    /// All is saved.
    Committing(Commit),
}

/// What belongs to a cut once it is ordered.
#[derive(Clone, Debug)]
pub(crate) struct OrderedCut {
    pub staging: String,
    pub progress: CutProgress,
    /// The phase whose values it holds.
    pub phase: PhaseNo,
    pub sharing: Sharing,
    pub at: CutAt,
    /// The phase is over in it: a restart begins with the next one.
    pub phase_is_over: bool,
    /// ASP: its trainers, and whether the barrier of each was sent.
    pub trainers: BTreeMap<Member, bool>,
    /// ASP: the positions of the tasks.
    pub tasks: QueueProgress,
    pub snapped: BTreeMap<ShardId, Step>,
    pub saved: SavedFiles,
    /// Figures of the tables of those.
    pub tables: BTreeMap<ShardId, Vec<TableStatistics>>,
    /// The scores when it was ordered.
    pub evaluations: Vec<EvaluationView>,
    /// The pass that it is the end of, if that is better than all before and is to be kept.
    pub best_pass: Option<u32>,
    /// The training losses when it was ordered.
    pub passes: Vec<TrainingPassView>,
    /// The tasks that were set aside when it was ordered, as `tasks` has them: one that is set aside later is tried again by a job
    /// that continues from it.
    pub set_aside: Vec<SetAsideTask>,
}

/// The open cut.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    pub id: CutId,
    pub reason: CutReason,
    pub asked_by: Vec<OperationId>,
    pub epoch: Epoch,
    pub opened: MonotonicMs,
    /// Shards of the job.
    pub shards: usize,
    pub state: CutState,
}

impl OrderedCut {
    /// Whether trainers send barriers for it.
    pub(crate) fn has_barriers(&self) -> bool {
        matches!(&self.at, CutAt::Barriers(trainers) if !trainers.is_empty())
    }

    /// Whether the shards have not all snapped, so that one can still give the cut up.
    pub(crate) fn can_be_given_up(&self) -> bool {
        matches!(self.progress, CutProgress::Arming(_) | CutProgress::Snapping)
    }

    /// The step at which the shards have cut.
    pub(crate) fn step(&self) -> Step {
        self.snapped.values().next().copied().unwrap_or_default()
    }

    /// The commit, once it has begun.
    pub(crate) fn commit(&mut self) -> Option<&mut Commit> {
        match &mut self.progress {
            CutProgress::Committing(commit) => Some(commit),
            CutProgress::Arming(_) | CutProgress::Snapping => None,
        }
    }

    /// BSP: the different steps that shards have cut at, if there are several. `latest`: of the shard that was just added.
    /// The steps before it are equal, so the ends of the list and the latest suffice.
    pub(crate) fn different_steps(&self, latest: Step) -> Option<BTreeSet<Step>> {
        if !matches!(self.sharing, Sharing::Lanes { .. }) {
            return None;
        }
        let ends = [self.snapped.first_key_value(), self.snapped.last_key_value()];
        let ends = ends.into_iter().flatten().map(|(_, step)| *step);
        let steps: BTreeSet<Step> = ends.chain([latest]).collect();
        (steps.len() > 1).then_some(steps)
    }
}

impl Cut {
    /// What belongs to the cut once it is ordered.
    pub(crate) fn ordered(&self) -> Option<&OrderedCut> {
        match &self.state {
            CutState::Ordered(ordered) => Some(ordered),
            CutState::Staging(_) | CutState::Staged { .. } => None,
        }
    }

    pub(crate) fn ordered_mut(&mut self) -> Option<&mut OrderedCut> {
        match &mut self.state {
            CutState::Ordered(ordered) => Some(ordered),
            CutState::Staging(_) | CutState::Staged { .. } => None,
        }
    }

    /// Whether pservers have the order.
    pub(crate) fn is_ordered(&self) -> bool {
        self.ordered().is_some()
    }

    /// Whether all shards have snapped.
    pub(crate) fn all_snapped(&self) -> bool {
        self.ordered().is_some_and(|ordered| ordered.snapped.len() == self.shards)
    }

    /// Whether the cut is complete: all shards are saved, no copy is awaited, and all barriers were sent.
    pub(crate) fn is_complete(&self) -> bool {
        self.ordered().is_some_and(|ordered| {
            ordered.snapped.len() == self.shards
                && ordered.saved.len() == self.shards
                && !ordered.saved.awaits_any()
                && ordered.trainers.values().all(|sent| *sent)
        })
    }

    /// The commit, once it has begun.
    pub(crate) fn commit(&self) -> Option<&Commit> {
        match &self.ordered()?.progress {
            CutProgress::Committing(commit) => Some(commit),
            CutProgress::Arming(_) | CutProgress::Snapping => None,
        }
    }

    /// The staging directory, once it is made.
    pub(crate) fn staging(&self) -> Option<&str> {
        match &self.state {
            CutState::Staging(_) => None,
            CutState::Staged { staging } => Some(staging),
            CutState::Ordered(ordered) => Some(&ordered.staging),
        }
    }

    /// Whether each shard has a file, and copies are awaited besides.
    pub(crate) fn awaits_only_copies(&self) -> bool {
        self.ordered()
            .is_some_and(|ordered| ordered.saved.len() == self.shards && ordered.saved.awaits_any())
    }

    /// The command that orders it, for a pserver.
    pub(crate) fn command(&self, slot: Slot) -> Option<Arc<Command>> {
        let copies = self.ordered()?.saved.awaited_of(slot);
        self.command_with(copies)
    }

    /// The command that orders it, for pservers that save no copies beside the shards that they serve.
    pub(crate) fn command_without_copies(&self) -> Option<Arc<Command>> {
        self.command_with(Vec::new())
    }

    fn command_with(&self, copies: Vec<ShardId>) -> Option<Arc<Command>> {
        let OrderedCut { phase, at, staging, .. } = self.ordered()?;
        let (cut, epoch) = (self.id, self.epoch);
        let order = PserverCommand::Cut(TakeCut {
            cut,
            epoch,
            phase: *phase,
            at: at.clone(),
            staging: staging.clone(),
            copies,
            initial: self.reason == CutReason::Initial,
            last: matches!(self.reason, CutReason::Stop | CutReason::LastSave),
        });
        Some(order.into())
    }
}
