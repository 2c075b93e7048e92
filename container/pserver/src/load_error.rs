//! Why a shard was not loaded.

use heddle_protocol::failure::ErrorClass;
use heddle_protocol::job_spec::warm_start::WarmStartError;
use heddle_shard::{ContentError, ShardSetError};
use heddle_storage::StorageUrlError;
use heddle_storage::checkpoint::{CheckpointError, Damage};

/// Why a shard was not loaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error(transparent)]
    Location(#[from] StorageUrlError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The manifest does not have a file for the shard.
    #[error("the checkpoint in {dir} has no file of shard {shard}")]
    NoFile { dir: String, shard: heddle_protocol::ids::ShardId },
    #[error("{file}: {what}")]
    Other { file: String, what: String },
    #[error("{file}")]
    Content { file: String, source: ContentError },
    #[error("model.init = {dir}")]
    WarmStart { dir: String, source: WarmStartError },
}

impl LoadError {
    /// The class of the failure. Corrupt is only a file that is proven to differ from what was saved: the job then returns
    /// to an older checkpoint. A file of a later version is not damaged.
    pub(crate) fn class(&self) -> ErrorClass {
        match self {
            Self::Checkpoint(CheckpointError::Damaged { .. }) | Self::Content { .. } => {
                ErrorClass::Corrupt
            }
            Self::Checkpoint(CheckpointError::Storage(error)) => error.class(),
            Self::Checkpoint(_)
            | Self::Location(_)
            | Self::Other { .. }
            | Self::NoFile { .. }
            | Self::WarmStart { .. } => ErrorClass::Input,
        }
    }

    /// Whether another read may find the right bytes.
    pub(crate) fn is_wrong_sum(&self) -> bool {
        matches!(
            self,
            Self::Checkpoint(CheckpointError::Damaged { damage: Damage::Sum { .. }, .. })
        )
    }

    /// Whether the file is proven to differ from what was saved.
    pub(crate) fn is_damage(&self) -> bool {
        self.class() == ErrorClass::Corrupt
    }

    /// Whether the storage did not answer.
    pub(crate) fn is_retryable(&self) -> bool {
        matches!(self, Self::Checkpoint(CheckpointError::Storage(_)))
    }
}

/// Content that does not fit proves that the checkpoint's file is wrong; another epoch only that the command is stale.
pub(crate) fn class_of(error: &ShardSetError) -> ErrorClass {
    match error {
        ShardSetError::Content(_) => ErrorClass::Corrupt,
        ShardSetError::Epoch { .. } => ErrorClass::Internal,
    }
}
