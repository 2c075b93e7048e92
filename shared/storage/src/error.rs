//! Errors of storage calls: the reason, and whether the call changed something.

use std::error::Error;
use std::fmt;
use std::io;

use heddle_protocol::failure::{ErrorClass, Failure};
use nix::errno::Errno;

use crate::path::PathError;

/// The operation that failed, as a verb for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the trait's methods")]
pub enum Op {
    Create,
    Write,
    Sync,
    Close,
    Open,
    Read,
    Stat,
    List,
    Mkdir,
    Rename,
    Delete,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Create => "create",
            Self::Write => "write",
            Self::Sync => "sync",
            Self::Close => "close",
            Self::Open => "open",
            Self::Read => "read",
            Self::Stat => "look up",
            Self::List => "list",
            Self::Mkdir => "make directory",
            Self::Rename => "rename",
            Self::Delete => "delete",
        })
    }
}

/// The reason of a failure: what a caller can act on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The name does not exist (for create, mkdir and rename: the parent is missing).
    #[error("no such file or directory")]
    NotFound,
    /// The name is taken.
    #[error("it exists already")]
    Exists,
    /// The directory to delete has entries: another process made one meanwhile, or has a file of it open (NFS).
    #[error("the directory is not empty")]
    NotEmpty,
    /// A directory was wanted.
    #[error("not a directory")]
    NotADirectory,
    /// A file was wanted.
    #[error("is a directory")]
    IsADirectory,
    /// A file was wanted, and this is a pipe, a socket or a device.
    #[error("is not a regular file")]
    NotAFile,
    /// The account lacks a permission.
    #[error("permission denied")]
    Denied,
    /// The disk or file system is full.
    #[error("no space left")]
    Full,
    /// A quota is exhausted; the text is the storage's own.
    #[error("quota exceeded: {0}")]
    Quota(String),
    /// The storage does not respond or cannot serve the call, or this process lacks descriptors or memory. The same call may
    /// succeed later. The file is **not** known to be damaged.
    #[error("unavailable")]
    Unavailable,
    /// The file ends before the requested range.
    #[error("the file must have at least {expected} bytes (got {found})")]
    Short {
        /// Bytes that the range needs.
        expected: u64,
        /// Bytes that the file has.
        found: u64,
    },
    /// The storage lacks the operation, or performs it with other semantics.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// Any other reason; the source has it.
    #[error("failed")]
    Other,
}

impl Reason {
    /// The reason of an error of the local system.
    pub fn of_io(error: &io::Error) -> Self {
        use io::ErrorKind as K;
        match error.kind() {
            K::NotFound => Reason::NotFound,
            K::AlreadyExists | K::DirectoryNotEmpty => Reason::Exists,
            K::NotADirectory => Reason::NotADirectory,
            K::IsADirectory => Reason::IsADirectory,
            K::PermissionDenied | K::ReadOnlyFilesystem => Reason::Denied,
            K::StorageFull => Reason::Full,
            K::QuotaExceeded => Reason::Quota("disk quota".to_owned()),
            K::FileTooLarge => {
                Reason::Quota("the limit of a file's size here (ulimit -f)".to_owned())
            }
            // A local read error (EIO), a stale NFS handle or a timeout does not prove damage: a repair, a remount or a retry
            // may still read the bytes.
            K::TimedOut
            | K::Interrupted
            | K::WouldBlock
            | K::StaleNetworkFileHandle
            | K::HostUnreachable
            | K::NetworkUnreachable
            | K::NetworkDown
            | K::ConnectionReset
            | K::ConnectionRefused
            | K::ConnectionAborted
            | K::NotConnected
            | K::BrokenPipe => Reason::Unavailable,
            // Descriptors or memory become available when another user of them ends.
            K::OutOfMemory => Reason::Unavailable,
            _ => match error.raw_os_error().map(Errno::from_raw) {
                Some(Errno::EIO | Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS) => {
                    Reason::Unavailable
                }
                _ => Reason::Other,
            },
        }
    }

    /// What the user does about it, where that follows from the reason alone.
    #[must_use]
    pub fn next_step(&self) -> Option<&'static str> {
        match self {
            Self::Quota(_) => Some("request a larger quota, or name another directory"),
            _ => None,
        }
    }

    /// The class of a failure for this reason.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Denied | Self::Quota(_) | Self::Full => ErrorClass::Denied,
            Self::Unavailable => ErrorClass::Unreachable,
            _ => ErrorClass::Input,
        }
    }
}

/// A failed call: operation, path and reason.
///
/// `Display` does not repeat the source; print the chain.
#[derive(Debug)]
pub struct StorageError {
    /// The operation.
    pub op: Op,
    /// The full location, as a user types it.
    pub place: String,
    /// Why it failed.
    pub reason: Reason,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl StorageError {
    /// A failure without a deeper cause.
    pub fn new(op: Op, place: impl fmt::Display, reason: Reason) -> Self {
        Self { op, place: place.to_string(), reason, source: None }
    }

    /// The same error with its cause.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// A failure of the local file system. The reason follows from the error number; the system's text becomes the cause
    /// if it adds to the reason.
    pub fn from_io(op: Op, place: impl fmt::Display, source: io::Error) -> Self {
        use io::ErrorKind as K;
        let reason = match (op, source.kind()) {
            // Of a rename: the name is taken.
            (Op::Delete, K::DirectoryNotEmpty) => Reason::NotEmpty,
            _ => Reason::of_io(&source),
        };
        let error = Self::new(op, place, reason);
        match source.kind() {
            K::NotFound
            | K::AlreadyExists
            | K::DirectoryNotEmpty
            | K::NotADirectory
            | K::IsADirectory
            | K::PermissionDenied
            | K::StorageFull => error,
            _ => error.because(source),
        }
    }

    /// Whether the same call may succeed later without a change by a user.
    pub fn is_retryable(&self) -> bool {
        self.reason == Reason::Unavailable
    }

    /// Whether a user must grant a permission or free space before the call can succeed.
    pub fn is_refused(&self) -> bool {
        matches!(self.reason, Reason::Denied | Reason::Quota(_) | Reason::Full)
    }

    /// The class of the failure.
    pub fn class(&self) -> ErrorClass {
        self.reason.class()
    }

    /// The failure as other processes receive it.
    pub fn failure(&self) -> Failure {
        self.failure_of(self)
    }

    /// The same for an error that it is the reason of.
    pub fn failure_of(&self, error: &(dyn Error + 'static)) -> Failure {
        let next = self.reason.next_step().map(|next| format!("; {next}"));
        Failure::new(self.class(), format!("{}{}", chain(error), next.unwrap_or_default()))
    }

    /// Whether the name does not exist.
    pub fn is_not_found(&self) -> bool {
        self.reason == Reason::NotFound
    }

    /// Whether the name belongs to something other than a regular file, so that its content is not what was written.
    pub fn is_no_file(&self) -> bool {
        matches!(self.reason, Reason::IsADirectory | Reason::NotAFile)
    }

    /// Whether a directory could not be deleted because it has entries.
    pub fn is_not_empty(&self) -> bool {
        self.reason == Reason::NotEmpty
    }

    /// Whether the name is taken.
    pub fn is_exists(&self) -> bool {
        self.reason == Reason::Exists
    }
}

/// For paths that join a directory of the user and a name of Heddle.
impl From<PathError> for StorageError {
    fn from(error: PathError) -> Self {
        Self::new(Op::Open, "a path", Reason::Other).because(error)
    }
}

impl fmt::Display for StorageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} {}: {}", self.op, self.place, self.reason)
    }
}

impl Error for StorageError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// The two ways in which a call that changes something may fail; success is the third outcome.
///
/// **A call with an unknown outcome is not repeated blindly, and nothing is deleted because of it.** The caller reads
/// back and compares what it finds with an identity that only it can have written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// It did not take effect.
    #[error(transparent)]
    NotDone(StorageError),
    /// It may have taken effect, or may do so later: the response was lost or came after the deadline.
    #[error("the outcome is unknown")]
    Unknown(#[source] StorageError),
}

impl WriteError {
    /// The failed call, whatever its outcome.
    pub fn error(&self) -> &StorageError {
        match self {
            Self::NotDone(error) | Self::Unknown(error) => error,
        }
    }

    /// Whether the outcome is unknown.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown(_))
    }
}

/// For callers to which the difference does not matter.
impl From<WriteError> for StorageError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::NotDone(error) | WriteError::Unknown(error) => error,
        }
    }
}

/// An error with its causes, in one line, for a log or a report. The `Display` of an error has its own part only; its
/// source has the cause.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exhausted_descriptors_and_memory_are_retried() {
        for errno in
            [Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM, Errno::ENOBUFS, Errno::EIO, Errno::ESTALE]
        {
            let error = io::Error::from_raw_os_error(errno as i32);
            let error = StorageError::from_io(Op::List, "/c/claims", error);
            assert!(error.is_retryable(), "{errno}: {error}");
        }
        for errno in [Errno::ENOSPC, Errno::EROFS, Errno::EACCES, Errno::ENOENT] {
            let error = io::Error::from_raw_os_error(errno as i32);
            let error = StorageError::from_io(Op::List, "/c/claims", error);
            assert!(!error.is_retryable(), "{errno}: {error}");
        }
    }

    #[test]
    fn causes_are_not_repeated() {
        let io = |kind| StorageError::from_io(Op::Open, "/a", io::Error::from(kind));
        assert_eq!(
            chain(&io(io::ErrorKind::NotFound)),
            "cannot open /a: no such file or directory"
        );
        assert_eq!(
            chain(&io(io::ErrorKind::PermissionDenied)),
            "cannot open /a: permission denied"
        );
        let read_only = io::Error::from_raw_os_error(Errno::EROFS as i32);
        let read_only = chain(&StorageError::from_io(Op::Create, "/a", read_only));
        assert!(read_only.contains("Read-only"), "{read_only}");
        let too_large = io::Error::from_raw_os_error(Errno::EFBIG as i32);
        assert_eq!(Reason::of_io(&too_large).class(), ErrorClass::Denied);
        let too_large = chain(&StorageError::from_io(Op::Write, "/a", too_large));
        assert!(too_large.contains("quota exceeded: the limit of a file's size"), "{too_large}");
        let unknown = WriteError::Unknown(io(io::ErrorKind::NotFound));
        assert_eq!(
            chain(&unknown),
            "the outcome is unknown: cannot open /a: no such file or directory"
        );
    }

    #[test]
    fn entries_of_a_directory_to_delete_are_not_a_taken_name() {
        let error = |op| {
            StorageError::from_io(op, "/d", io::Error::from_raw_os_error(Errno::ENOTEMPTY as i32))
        };
        assert_eq!(chain(&error(Op::Delete)), "cannot delete /d: the directory is not empty");
        assert!(error(Op::Delete).is_not_empty() && !error(Op::Delete).is_exists());
        assert!(error(Op::Rename).is_exists());
    }

    /// The ApplicationMaster derives its exit code from these words if a container reports nothing else.
    #[test]
    fn refusals_name_their_reason_behind_a_colon() {
        for (reason, words) in [
            (Reason::Denied, ": permission denied"),
            (Reason::Full, ": no space left"),
            (Reason::Quota("names".to_owned()), ": quota exceeded"),
        ] {
            let error = StorageError::new(Op::Write, "/f", reason);
            assert!(error.is_refused() && error.to_string().contains(words), "{error}");
        }
        assert!(!StorageError::new(Op::Write, "/f", Reason::Unavailable).is_refused());
        let quota = StorageError::new(Op::Write, "/f", Reason::Quota("of names".to_owned()));
        let advice = "cannot write /f: quota exceeded: of names; request a larger quota, or name \
            another directory";
        assert_eq!(quota.failure().text, advice);
    }
}
