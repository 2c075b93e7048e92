//! The tokens of a job, for users.

use serde::{Deserialize, Serialize};

/// The tokens with which a job uses file systems.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CredentialsView {
    /// When the first of them ends, ms since 1970. The job ends before, unless others come.
    pub until_ms: u64,
    /// Whether the ApplicationMaster fetches others before, by the job's keytab.
    #[serde(default)]
    pub is_refreshed: bool,
    /// Fetches that failed in this attempt.
    #[serde(default)]
    pub failures: u64,
    /// Why the last fetch failed; empty after one that did not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// Containers that have not confirmed the newest tokens.
    #[serde(default)]
    pub pending_containers: u32,
}
