//! The interface of all storages: [`Storage`], [`Writer`] and [`Reader`].

use std::fmt::Debug;

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::{StorageError, WriteError};
use crate::path::{NAME_BYTES_MAX, StorePath};

/// Permission bits of a new file or directory. The umask does not change them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mode(pub u32);

impl Mode {
    /// `0600`: only the owner reads and writes the file.
    pub const FILE: Self = Self(0o600);
    /// `0700`: only the owner enters the directory.
    pub const DIR: Self = Self(0o700);

    /// The mode of a directory of files of this mode: users that may read the files may list and enter it.
    #[must_use]
    pub fn of_dir(self) -> Self {
        let readable = self.0 & 0o444;
        Self(self.0 | readable >> 2)
    }
}

/// Which users may use a file or directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileAccess {
    /// The name of the owner.
    pub owner: String,
    /// The permission bits, with the sticky bit.
    pub mode: Mode,
}

/// File or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A file (links are followed).
    File,
    /// A directory.
    Dir,
    /// A device, socket or pipe, or a link that leads nowhere. Never read, written or deleted.
    Other,
    /// A name that no path has: it is not UTF-8, or too long. The path of the entry resembles it, for messages alone.
    Unnameable,
}

/// One name in a storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The full path.
    pub path: StorePath,
    /// File or directory.
    pub kind: EntryKind,
    /// Length in bytes; 0 for directories.
    pub bytes: u64,
    /// Time of the last change, in milliseconds since 1970. **Only displayed:** Heddle does not order by it, because the
    /// clocks of machines differ.
    pub modified_ms: u64,
}

impl Entry {
    /// The entry of a name in `dir` that no path has; `None` if not even the cut name has one.
    pub(crate) fn unnameable(dir: &StorePath, name: &str) -> Option<Self> {
        let path = dir.join(&name[..name.floor_char_boundary(NAME_BYTES_MAX)]).ok()?;
        Some(Self { path, kind: EntryKind::Unnameable, bytes: 0, modified_ms: 0 })
    }

    /// The version of the file's content.
    pub fn version(&self) -> FileVersion {
        FileVersion { bytes: self.bytes, modified_ms: self.modified_ms }
    }

    /// The last name of the path.
    pub fn name(&self) -> &str {
        self.path.name()
    }
}

/// Identity of a file's content when it was listed: another length or time of change means another content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileVersion {
    /// Length in bytes.
    pub bytes: u64,
    /// Time of the last change, in milliseconds since 1970.
    pub modified_ms: u64,
}

/// What was asked for of a version of a file.
#[derive(Debug)]
pub enum OfVersion<T> {
    /// The file is that version.
    Same(T),
    /// The file is another version.
    Changed {
        /// Its length now, in bytes.
        bytes: u64,
    },
}

/// A run of a file's bytes and the hosts that store it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockPlace {
    /// Offset of the first byte in the file.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Hosts, each with a copy of all the bytes; closest first.
    pub hosts: Vec<BlockHost>,
}

/// A host that stores a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockHost {
    /// Its name as the cluster writes it.
    pub name: String,
    /// Its place in the network topology, such as `/rack-1`.
    pub rack: String,
}

/// The operations of a file system that Heddle needs. A file is written once, from start to end. A name appears by
/// exclusive create or by a rename that does not replace.
///
/// Every implementation provides these guarantees. [`crate::probe`] checks those that a foreign store could break:
/// - [`create`](Self::create) and [`rename`](Self::rename) check and take the name in one atomic
///   step; of two callers one gets [`Reason::Exists`](crate::Reason::Exists). [`mkdir`](Self::mkdir)
///   rejects a name that is taken, but of two concurrent calls both may succeed (HDFS does not distinguish them).
/// - No call creates missing parents, so a deleted directory stops its writers.
/// - What was synced and then named by `create` or `rename` survives a power loss, once `close` or `rename` has returned.
/// - Every call ends: a call to a peer has a deadline, after which a read fails with `Unavailable` and a write with
///   [`WriteError::Unknown`].
///
/// # Cancel safety
/// None: a dropped future may still take effect later. Await calls to their end.
#[async_trait]
pub trait Storage: Debug + Send + Sync + 'static {
    /// The path as a user types it, for messages.
    fn show(&self, path: &StorePath) -> String;

    /// Creates a file exclusively and returns its writer. The parent must exist.
    ///
    /// # Errors
    /// `Exists` when the name is taken, also by a directory; `NotFound` without the parent.
    async fn create(&self, path: &StorePath, mode: Mode) -> Result<Box<dyn Writer>, WriteError>;

    /// The same for a file that will have `bytes` bytes. A store that reserves space while a file is being written reserves
    /// no more than that (HDFS counts a whole block of each copy against a quota).
    ///
    /// # Errors
    /// See [`create`](Self::create).
    async fn create_sized(
        &self,
        path: &StorePath,
        mode: Mode,
        _bytes: u64,
    ) -> Result<Box<dyn Writer>, WriteError> {
        self.create(path, mode).await
    }

    /// Opens a file for streaming from byte `offset` to its end.
    ///
    /// # Errors
    /// `NotFound`, `IsADirectory`, `Denied`, `Unavailable`; an offset beyond the end is not an
    /// error here, the stream is empty.
    async fn open(&self, path: &StorePath, offset: u64) -> Result<Box<dyn Reader>, StorageError>;

    /// Opens a file that is expected to be `version` for streaming from byte `offset` to its end.
    ///
    /// A storage may cache the locations of a version's bytes, and then opens it again by calls to the peers that store them
    /// (HDFS: no call to the NameNode). The bytes are those of the version or the read fails; a later call may be the first
    /// to detect that a file was replaced.
    ///
    /// # Errors
    /// See [`open`](Self::open) and [`stat`](Self::stat).
    async fn open_version(
        &self,
        path: &StorePath,
        version: FileVersion,
        offset: u64,
    ) -> Result<OfVersion<Box<dyn Reader>>, StorageError> {
        let found = self.stat(path).await?.version();
        if found != version {
            return Ok(OfVersion::Changed { bytes: found.bytes });
        }
        Ok(OfVersion::Same(self.open(path, offset).await?))
    }

    /// Reads exactly `len` bytes from byte `offset`.
    ///
    /// # Errors
    /// See [`open`](Self::open); `Short` when the file ends before.
    async fn read_range(
        &self,
        path: &StorePath,
        offset: u64,
        len: usize,
    ) -> Result<Bytes, StorageError>;

    /// Reads exactly `len` bytes from byte `offset` of a file that is expected to be `version`; locations are cached as by
    /// [`open_version`](Self::open_version).
    ///
    /// # Errors
    /// See [`read_range`](Self::read_range) and [`stat`](Self::stat).
    async fn read_version(
        &self,
        path: &StorePath,
        version: FileVersion,
        offset: u64,
        len: usize,
    ) -> Result<OfVersion<Bytes>, StorageError> {
        let found = self.stat(path).await?.version();
        if found != version {
            return Ok(OfVersion::Changed { bytes: found.bytes });
        }
        Ok(OfVersion::Same(self.read_range(path, offset, len).await?))
    }

    /// The entry of a path.
    ///
    /// # Errors
    /// `NotFound`; errors of the storage.
    async fn stat(&self, path: &StorePath) -> Result<Entry, StorageError>;

    /// The owner and permissions of a path; `None` where the storage has none.
    ///
    /// # Errors
    /// See [`stat`](Self::stat).
    async fn access(&self, _path: &StorePath) -> Result<Option<FileAccess>, StorageError> {
        Ok(None)
    }

    /// The direct children of a directory, sorted by name.
    ///
    /// # Errors
    /// `NotFound`; `NotADirectory` for a file.
    async fn list(&self, path: &StorePath) -> Result<Vec<Entry>, StorageError>;

    /// Makes one directory. The parent must exist.
    ///
    /// # Errors
    /// `Exists` when the name is taken; `NotFound` without the parent.
    async fn mkdir(&self, path: &StorePath, mode: Mode) -> Result<(), WriteError>;

    /// Renames a file or directory. **Replaces nothing** and never moves *into* a directory of that name.
    ///
    /// # Errors
    /// `Exists` when `to` is taken; `NotFound` when `from` or the parent of `to` is missing.
    async fn rename(&self, from: &StorePath, to: &StorePath) -> Result<(), WriteError>;

    /// Renames a file and replaces the file of that name, if there is one, in the same atomic step: a reader of `to` finds
    /// the old file or the new one, complete. Only for outputs; a file of a checkpoint is never replaced.
    ///
    /// # Errors
    /// `NotFound` when `from` or the parent of `to` is missing; `to` is a directory.
    async fn replace(&self, from: &StorePath, to: &StorePath) -> Result<(), WriteError>;

    /// Deletes one file.
    ///
    /// # Errors
    /// `NotFound`; `IsADirectory`.
    async fn delete_file(&self, path: &StorePath) -> Result<(), WriteError>;

    /// Deletes a directory and its content; links are removed, never followed. Callers pass only names of their own
    /// grammar.
    ///
    /// # Errors
    /// `NotFound`; `NotADirectory`. A failure may leave a part deleted.
    async fn delete_dir(&self, path: &StorePath) -> Result<(), WriteError>;

    /// The locations of a file's bytes, in order. Empty if all locations are equally distant, as on this machine's file
    /// system.
    ///
    /// # Errors
    /// See [`stat`](Self::stat).
    async fn blocks(&self, _path: &StorePath) -> Result<Vec<BlockPlace>, StorageError> {
        Ok(Vec::new())
    }

    /// Rejects an existing directory in which files cannot be made durable as the publish protocol needs it (HDFS: an
    /// erasure-coded directory, in which sync is not supported).
    ///
    /// # Errors
    /// `Unsupported` with the next step; errors as [`stat`](Self::stat).
    async fn check_dir(&self, _path: &StorePath) -> Result<(), StorageError> {
        Ok(())
    }

    /// The mode of new files if the user sets none: `0666` without the bits of the umask.
    fn default_mode(&self) -> Mode {
        Mode::FILE
    }

    /// Checks within seconds whether the storage responds, for a waiting user. Other calls wait longer, since a peer may
    /// restart.
    ///
    /// # Errors
    /// `Unavailable` if it does not respond.
    async fn reach(&self) -> Result<(), StorageError> {
        Ok(())
    }
}

/// A file being written. Dropping it unclosed leaves a torn file, to which no published name refers.
#[async_trait]
pub trait Writer: Debug + Send {
    /// Appends bytes.
    ///
    /// # Errors
    /// `Full`, `Quota`, `Unavailable`. After an error the file is useless: drop the writer and begin again under another
    /// name.
    async fn write(&mut self, data: Bytes) -> Result<(), WriteError>;

    /// Makes the written bytes durable (HDFS: hsync on each DataNode of the pipeline).
    ///
    /// # Errors
    /// See [`write`](Self::write).
    async fn sync(&mut self) -> Result<(), WriteError>;

    /// Ends the file; its length is final. Does not sync.
    ///
    /// # Errors
    /// See [`write`](Self::write). An unknown outcome is resolved like the others: by length and digest of the bytes that can
    /// be read back.
    async fn close(self: Box<Self>) -> Result<(), WriteError>;
}

/// A file being read from start to end.
#[async_trait]
pub trait Reader: Debug + Send {
    /// The next bytes, at least one and at most 1 MiB; `None` at the end of the file.
    ///
    /// # Errors
    /// `Unavailable` and other read failures.
    async fn next(&mut self) -> Result<Option<Bytes>, StorageError>;

    /// Appends the next bytes to `buffer`, as [`next`](Self::next), without a copy where the storage can do that. Returns their
    /// number; 0 at the end of the file. The content of `buffer` is lost if the call is dropped before it ends.
    ///
    /// # Errors
    /// See [`next`](Self::next); `buffer` keeps what it had.
    async fn append_to(&mut self, buffer: &mut Vec<u8>) -> Result<usize, StorageError> {
        let chunk = self.next().await?.unwrap_or_default();
        buffer.extend_from_slice(&chunk);
        Ok(chunk.len())
    }
}
