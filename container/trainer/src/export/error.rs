//! Why a model cannot be exported.

use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_storage::checkpoint::CheckpointError;
use heddle_storage::{PathError, Reason, StorageError, StorageUrlError};

/// Why a model could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The checkpoint cannot be used.
    #[error("the checkpoint cannot be exported")]
    Checkpoint(#[from] CheckpointError),
    /// Reading or writing failed.
    #[error("cannot write the model")]
    Storage(#[from] StorageError),
    /// Not a location.
    #[error("not a valid location")]
    Location(#[from] StorageUrlError),
    /// A name that is too long.
    #[error("not a valid path")]
    Path(#[from] PathError),
    /// The job of the checkpoint cannot be read.
    #[error("cannot read the job of the checkpoint: {0}")]
    Spec(String),
    /// A file has another table than the job.
    #[error("{file}: {what}")]
    Table {
        /// The file.
        file: String,
        /// What is wrong with it.
        what: String,
    },
    /// Training has diverged.
    #[error(
        "row {row} of table {table} holds {value}: training diverged; lower the rate of model.optimizer, or set model.standardise = true"
    )]
    NotFinite {
        /// The table.
        table: String,
        /// The row, from 0; of a sparse table its key.
        row: u64,
        /// The value.
        value: f32,
    },
    /// Means and scales cannot be computed.
    #[error("{0}")]
    Standard(Failure),
    /// Clusters have no centres before a pass.
    #[error("the checkpoint has no centres: it was taken before the end of the first pass")]
    NoPass,
    /// The text format holds one weight per feature and a bias.
    #[error(
        "the format text is for models with one weight for each feature; others can be written as safetensors"
    )]
    Text,
    /// The directory has content.
    #[error("{0} exists and is not empty")]
    Exists(String),
    /// The system provides no event queue.
    #[error("cannot start the export")]
    Runtime(#[source] std::io::Error),
}

impl ExportError {
    /// Whether the checkpoint is gone, so that a newer one may be there.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        matches!(self, Self::Checkpoint(CheckpointError::Removed { .. }))
    }

    /// The class of the failure.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            // What has no class of its own may be of this node: another trainer tries.
            Self::Storage(error) | Self::Checkpoint(CheckpointError::Storage(error))
                if error.reason == Reason::Other =>
            {
                ErrorClass::Internal
            }
            Self::Storage(error) => error.class(),
            Self::Checkpoint(error) => error.class(),
            Self::Location(_) | Self::Path(_) | Self::NoPass | Self::Text | Self::Exists(_) => {
                ErrorClass::Input
            }
            Self::Spec(_) | Self::Table { .. } => ErrorClass::Corrupt,
            Self::NotFinite { .. } => ErrorClass::Training,
            Self::Standard(failure) => failure.class,
            Self::Runtime(_) => ErrorClass::Internal,
        }
    }
}
