//! Why a task cannot be read.

use heddle_storage::StorageError;

/// Why a task cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The storage did not deliver.
    #[error("cannot read the input")]
    Storage(#[from] StorageError),
    /// The plan holds a URL that is none, which a checked plan never does.
    #[error("'{url}' is not the URL of an input file")]
    Url {
        /// As in the plan.
        url: String,
    },
    /// The file is not the one that was planned with.
    #[error(
        "{file}: the file was changed while the job ran: it had {planned} bytes and has {found} now, or was written \
         again; start the job anew with --fresh"
    )]
    Changed {
        /// The file.
        file: String,
        /// Length in the plan.
        planned: u64,
        /// Length now.
        found: u64,
    },
    /// Packed in a way that its name does not say, damaged, or no text at all.
    #[error("{file}: {what}")]
    Gzip {
        /// The file.
        file: String,
        /// What the unpacker says.
        what: String,
    },
    /// A malformed record, and none may be.
    #[error("{place}")]
    Record {
        /// `file:line:column: what`.
        place: String,
    },
    /// More malformed records in one task than a whole pass may have.
    #[error("more than {allowed} malformed records (data.bad-records), the last: {place}")]
    TooManyBad {
        /// How many are left out at the most.
        allowed: u64,
        /// `file:line:column: what` of the one too many.
        place: String,
    },
    /// The file of malformed records could not be written.
    #[error("cannot write malformed records to {file}")]
    Quarantine {
        /// The file.
        file: String,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
}

impl ReadError {
    /// Whether another try, here or elsewhere, may succeed. Bad data stays bad.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Storage(error) => error.is_retryable(),
            Self::Quarantine { .. } => true,
            Self::Url { .. }
            | Self::Changed { .. }
            | Self::Gzip { .. }
            | Self::Record { .. }
            | Self::TooManyBad { .. } => false,
        }
    }
}
