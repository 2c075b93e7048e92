//! A mirror of the checkpoint directory, as a view shows it.

use serde::{Deserialize, Serialize};

use crate::ids::CutId;

/// A mirror of the checkpoint directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirrorView {
    /// Its directory, as in the job file.
    pub dir: String,
    /// The newest checkpoint that this attempt has copied to it; none before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CutId>,
    /// Checkpoints committed since.
    pub behind: u32,
    /// Time since the first of them was committed, ms; 0 if there is none.
    pub late_ms: u64,
    /// Attempts of this ApplicationMaster to copy that failed.
    pub failures: u64,
    /// Why the last attempt failed; none after a successful one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl MirrorView {
    /// Its state in words: what it has, and what is late.
    #[must_use]
    pub fn text(&self) -> String {
        let newest = match self.checkpoint {
            Some(cut) => format!("has {cut}"),
            None => "has none yet".to_owned(),
        };
        let late = match self.behind {
            0 => String::new(),
            behind => format!(", {behind} behind for {} s", self.late_ms / 1000),
        };
        let error = self.error.as_deref().map(|error| format!(": {error}")).unwrap_or_default();
        format!("{newest}{late}{error}")
    }
}
