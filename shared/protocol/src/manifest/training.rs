//! What a manifest has of the training loss.

use serde::{Deserialize, Serialize};

use crate::view::TrainingPassView;

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
