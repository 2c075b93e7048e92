//! Records of the journal: decisions that no other process can report.
//!
//! It has no task completions (shards have them, and a rollback would make them false) and no containers (the
//! cluster has them). Records are only ever added to; unknown fields of later versions are ignored.

use heddle_protocol::ids::{Attempt, CutId, Epoch, Generation, PhaseNo, Slot, Step};
use heddle_protocol::view::{EvaluationView, TrainingPassView};
use serde::{Deserialize, Serialize};

use crate::outcome::Outcome;

/// One journal entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "record")]
pub enum Record {
    /// An attempt has started to lead the job.
    Claim {
        /// The attempt.
        attempt: Attempt,
        /// Its generation.
        generation: Generation,
        /// The checkpoint it would return to.
        base: Option<CutId>,
        /// Milliseconds since 1970.
        at_ms: u64,
    },
    /// An epoch begins: the start of the job, or a rollback. Durable before any command carries it.
    Restore {
        /// The epoch.
        epoch: Epoch,
        /// The checkpoint that all shards are to be in; none: initial values.
        base: Option<CutId>,
        /// Where the base is, as a URL.
        dir: Option<String>,
        /// The phase that the base is in.
        phase: PhaseNo,
        /// BSP: job steps of the phase applied in the base.
        step: Step,
        /// The shard map: by shard, its slot.
        holders: Vec<Slot>,
        /// What was lost, for reports.
        cause: String,
        /// Milliseconds since 1970.
        at_ms: u64,
    },
    /// A cut has become a checkpoint. (If this record is missing, the directory's listing shows it.)
    Commit {
        /// The cut.
        cut: CutId,
        /// Its directory, as a URL.
        dir: String,
        /// The phase.
        phase: PhaseNo,
        /// BSP: job steps of the phase applied.
        step: Step,
        /// Milliseconds since 1970.
        at_ms: u64,
    },
    /// An evaluation is done: its scores would otherwise be lost between two checkpoints. One of an
    /// epoch after which a `Restore` went below its phase is forgotten.
    Evaluated {
        /// In which epoch.
        epoch: Epoch,
        /// Which phase.
        phase: PhaseNo,
        /// The scores.
        scores: EvaluationView,
    },
    /// A pass is over: its training loss would otherwise be lost between two checkpoints. One with a `Restore` to its
    /// phase or below after it is forgotten.
    PassTrained {
        /// Which phase.
        phase: PhaseNo,
        /// Its loss.
        trained: TrainingPassView,
    },
    /// An operator changed the number of trainers; holds for the attempts of this run.
    Scaled {
        /// How many.
        trainers: u32,
        /// Milliseconds since 1970.
        at_ms: u64,
    },
    /// The job is over. One that finished is never run again.
    Outcome(Outcome),
}

impl Record {
    /// Whether others must not see what follows from it before it is durable. False for what a successor
    /// finds out without it or can do without: a committed checkpoint (its directory shows it), scores (unless
    /// `training.early-stop` makes the number of passes follow from them), losses, the number of trainers.
    #[must_use]
    pub fn is_decision(&self) -> bool {
        match self {
            Self::Claim { .. } | Self::Restore { .. } | Self::Outcome(_) => true,
            Self::Commit { .. }
            | Self::Evaluated { .. }
            | Self::PassTrained { .. }
            | Self::Scaled { .. } => false,
        }
    }
}
