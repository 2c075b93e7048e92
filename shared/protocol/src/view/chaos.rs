//! The chaos session of a job, as it is reported.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A job that takes orders of `heddle chaos` (`run.chaos`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChaosView {
    /// The session that gives orders now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<Uuid>,
    /// Faults that this attempt of the ApplicationMaster has ordered.
    pub faults: u64,
}
