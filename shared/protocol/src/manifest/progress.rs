//! Figures of a manifest that continue after a restart.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::ShardId;
use crate::set_aside::SetAsideTask;
use crate::view::TrainingPassView;

/// Counters that continue after a restart. For display: no decision uses them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Progress {
    /// When the run began, milliseconds since 1970.
    pub started_ms: u64,
    /// Time spent running before this cut, all attempts together, ms.
    pub ran_ms: u64,
    /// Records computed, recomputed ones included.
    pub rows: u64,
    /// Records left out as bad.
    pub bad_records: u64,
    /// Those of the tasks that this checkpoint holds as done in its phase.
    pub bad_records_in_phase: u64,
    /// The training loss.
    #[serde(skip_serializing_if = "TrainingProgress::is_empty")]
    pub training: TrainingProgress,
    /// Tasks that passes left out, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub set_aside: Vec<SetAsideTask>,
    /// Updates that each shard has lost by local recoveries (`pservers.recovery`).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub updates_lost: BTreeMap<ShardId, u64>,
    /// Checkpoints committed before this one, those deleted since included.
    pub checkpoints: u32,
}

/// Training loss of passes that are over, and of the part of the present one that the checkpoint holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrainingProgress {
    /// Passes that are over, oldest first.
    pub passes: Vec<TrainingPassView>,
    /// Records of the tasks that the checkpoint holds as done in its phase.
    pub rows: u64,
    /// Sum of their losses; a number that JSON has.
    pub loss: f64,
}

impl TrainingProgress {
    /// Whether there is nothing: before the first task, and in manifests of earlier programs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
