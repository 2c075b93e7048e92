//! Why the journal cannot be read or written.

use heddle_protocol::exit_code::ExitCode;
use heddle_storage::StorageError;
use heddle_storage::checkpoint::CheckpointError;

use super::file::{Flaw, TooLong};
use crate::store::exit_code_of;

/// Why the journal cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The storage failed, or another ApplicationMaster owns the checkpoint directory.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The newest file is damaged.
    #[error("cannot read the journal: {file} is damaged")]
    Damaged {
        /// The file.
        file: String,
        /// What is wrong with it.
        #[source]
        source: Flaw,
    },
    /// A file that was written completely has been removed since.
    #[error(
        "cannot read the journal: neither {file} nor the file before it is there with its sidecar"
    )]
    Missing {
        /// The newest file.
        file: String,
    },
    /// Segments of an earlier version.
    #[error(
        "cannot read the journal in {dir}: its format version 1 is not supported; use another checkpoint.dir, or \
         continue with the version of Heddle that wrote it"
    )]
    OldFormat {
        /// The journal.
        dir: String,
    },
    /// The records are too long.
    #[error(transparent)]
    TooLong(#[from] TooLong),
    /// The outcome of a write is unknown. The same call may be made again.
    #[error("cannot determine whether {file} was written")]
    Unknown {
        /// The file.
        file: String,
        /// Why.
        #[source]
        source: StorageError,
    },
    /// The generation has a journal already: another process writes under its claim.
    #[error("{dir} must be empty: another process writes the journal of this generation")]
    Taken {
        /// The journal.
        dir: String,
    },
}

impl From<StorageError> for JournalError {
    fn from(error: StorageError) -> Self {
        Self::Checkpoint(error.into())
    }
}

impl JournalError {
    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unknown { .. } => true,
            Self::Checkpoint(error) => error.is_retryable(),
            _ => false,
        }
    }

    /// The exit code of a run that cannot continue because of it.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            error if error.is_fenced() => ExitCode::Fenced,
            Self::Checkpoint(CheckpointError::Storage(error)) => exit_code_of(error),
            Self::Unknown { .. } => ExitCode::Unreachable,
            _ => ExitCode::Checkpoint,
        }
    }

    /// Whether another ApplicationMaster owns the directory.
    pub fn is_fenced(&self) -> bool {
        match self {
            Self::Checkpoint(error) => error.is_fenced(),
            Self::Taken { .. } => true,
            _ => false,
        }
    }
}
