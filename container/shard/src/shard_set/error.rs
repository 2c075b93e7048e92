//! Why a command was not performed.

use heddle_protocol::ids::Epoch;

use crate::content::ContentError;

/// Why a command was not performed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShardSetError {
    /// The command is of another epoch.
    #[error("the epoch of a command must be {own} (got {got})")]
    Epoch {
        /// The set's epoch.
        own: Epoch,
        /// The command's epoch.
        got: Epoch,
    },
    /// The content of a shard does not fit.
    #[error(transparent)]
    Content(#[from] ContentError),
}
