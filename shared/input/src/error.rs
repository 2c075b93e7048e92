//! Why a task cannot be read.

use heddle_protocol::failure::ErrorClass;
use heddle_protocol::metrics::too_many_bad;
use heddle_storage::{Reason, StorageError};

/// Why a task cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The storage failed.
    #[error("cannot read the input")]
    Storage(#[from] StorageError),
    /// The plan holds a malformed URL, which a checked plan never does.
    #[error("'{url}' is not the URL of an input file")]
    Url {
        /// The URL in the plan.
        url: String,
    },
    /// The file differs from the one in the plan.
    #[error(
        "{file} has changed while the job ran: it had {planned} bytes and has {found} now, or was written again; \
         start over with --fresh"
    )]
    Changed {
        /// The file.
        file: String,
        /// Length in the plan.
        planned: u64,
        /// Length now.
        found: u64,
    },
    /// Packed in another way than its name implies, damaged, or of another format than the job's.
    #[error("{file}: {what}")]
    Damaged {
        /// The file.
        file: String,
        /// What is wrong.
        what: String,
    },
    /// A malformed record, and the job allows none.
    #[error("{place}")]
    Record {
        /// `file:line:column: what`.
        place: String,
    },
    /// One task has more malformed records than the job allows in a pass.
    #[error("{}", too_many_bad(*allowed, place))]
    TooManyBad {
        /// Most records that may be skipped.
        allowed: u64,
        /// `file:line:column: what` of the first one.
        place: String,
    },
    /// The file of malformed records could not be written.
    #[error("cannot write malformed records to {file}")]
    Quarantine {
        /// The file.
        file: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// What was kept of a task is damaged, and was dropped.
    #[error("cannot read what data.cache has kept of a task")]
    Cache {
        /// The cause.
        #[source]
        source: std::io::Error,
    },
}

impl ReadError {
    /// Whether a retry, here or on another trainer, may succeed. Malformed data does not change.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Storage(error) => error.is_retryable(),
            Self::Quarantine { .. } | Self::Cache { .. } => true,
            Self::Url { .. }
            | Self::Changed { .. }
            | Self::Damaged { .. }
            | Self::Record { .. }
            | Self::TooManyBad { .. } => false,
        }
    }

    /// The class of the failure.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Storage(error) => error.class(),
            Self::Quarantine { source, .. } | Self::Cache { source } => {
                Reason::of_io(source).class()
            }
            Self::Url { .. }
            | Self::Changed { .. }
            | Self::Damaged { .. }
            | Self::Record { .. }
            | Self::TooManyBad { .. } => ErrorClass::Input,
        }
    }
}
