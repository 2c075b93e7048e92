//! The one trait behind which files live.

use std::fmt::Debug;

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::{StorageError, WriteError};
use crate::path::StorePath;

/// Permission bits of a new file or directory, set whatever the process's umask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mode(pub u32);

impl Mode {
    /// `0600`: a file that its owner alone reads and writes.
    pub const FILE: Self = Self(0o600);
    /// `0700`: a directory that its owner alone enters.
    pub const DIR: Self = Self(0o700);

    /// The mode of a directory of files of this mode: whoever reads the files may list and enter it.
    #[must_use]
    pub fn of_dir(self) -> Self {
        let readable = self.0 & 0o444;
        Self(self.0 | readable >> 2)
    }
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
}

/// What a storage says about one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The full path.
    pub path: StorePath,
    /// File or directory.
    pub kind: EntryKind,
    /// Length in bytes; 0 for directories.
    pub bytes: u64,
    /// Time of the last change, in milliseconds since 1970. **For people only:** nothing in Heddle
    /// orders by it, because clocks of machines differ.
    pub modified_ms: u64,
}

impl Entry {
    /// The last name of the path.
    pub fn name(&self) -> &str {
        self.path.name()
    }
}

/// What a file was when it was listed: another length or time of change means another content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileVersion {
    /// Length in bytes.
    pub bytes: u64,
    /// Time of the last change, in milliseconds since 1970.
    pub modified_ms: u64,
}

/// What [`Storage::open_version`] finds.
#[derive(Debug)]
pub enum OpenedVersion {
    /// The file is the version asked for.
    Same(Box<dyn Reader>),
    /// The file is another version.
    Changed {
        /// Its length now, in bytes.
        bytes: u64,
    },
}

/// A run of a file's bytes and who has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockPlace {
    /// Of the first byte in the file.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Host names as their cluster writes them, each a copy of all the bytes; the better ones first.
    pub hosts: Vec<String>,
}

/// A file system as far as Heddle needs one: files are written once, from start to end; names
/// appear by exclusive create or by a rename that replaces nothing.
///
/// Every implementation keeps these promises, and [`crate::probe`] checks those that a foreign
/// store could break:
/// - [`create`](Self::create) and [`rename`](Self::rename) check and take the name in one atomic
///   step; of two callers one gets [`Reason::Exists`](crate::Reason::Exists). [`mkdir`](Self::mkdir)
///   refuses a name that is taken, but of two at once both may succeed (HDFS does not tell them apart).
/// - Nothing creates missing parents, so a deleted directory stops its writers.
/// - What was synced and then named by `create` or `rename` is there after a power loss, once
///   `close` or `rename` has returned.
/// - Every call ends: where a peer is involved there is a deadline, after which a read fails with
///   `Unavailable` and a write with [`WriteError::Unknown`].
///
/// # Cancel safety
/// None: a dropped future may still take effect later. Await calls to their end.
#[async_trait]
pub trait Storage: Debug + Send + Sync + 'static {
    /// The path as a person would type it, for messages.
    fn show(&self, path: &StorePath) -> String;

    /// Creates a file exclusively and returns its writer. The parent must exist.
    ///
    /// # Errors
    /// `Exists` when the name is taken, also by a directory; `NotFound` without the parent.
    async fn create(&self, path: &StorePath, mode: Mode) -> Result<Box<dyn Writer>, WriteError>;

    /// The same for a file of which is known that it will have `bytes` bytes: a store that sets room aside while a
    /// file is being written need not set aside more (HDFS counts a whole block of each copy against a quota).
    ///
    /// # Errors
    /// As [`create`](Self::create).
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
    /// A storage may remember where the bytes of a version are, and then opens it again without asking
    /// anything but the peers that have them (HDFS: no call to the NameNode). The bytes are those of the version or
    /// the read fails; a file that was replaced may be noticed at a later call.
    ///
    /// # Errors
    /// As [`open`](Self::open) and [`stat`](Self::stat).
    async fn open_version(
        &self,
        path: &StorePath,
        version: FileVersion,
        offset: u64,
    ) -> Result<OpenedVersion, StorageError> {
        let entry = self.stat(path).await?;
        let found = FileVersion { bytes: entry.bytes, modified_ms: entry.modified_ms };
        if found != version {
            return Ok(OpenedVersion::Changed { bytes: found.bytes });
        }
        Ok(OpenedVersion::Same(self.open(path, offset).await?))
    }

    /// Reads exactly `len` bytes from byte `offset`.
    ///
    /// # Errors
    /// As [`open`](Self::open); `Short` when the file ends before.
    async fn read_range(
        &self,
        path: &StorePath,
        offset: u64,
        len: usize,
    ) -> Result<Bytes, StorageError>;

    /// What lies at a path.
    ///
    /// # Errors
    /// `NotFound` and whatever kept the storage from answering.
    async fn stat(&self, path: &StorePath) -> Result<Entry, StorageError>;

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

    /// Gives a file or directory another name, **replacing nothing** and never moving *into* a
    /// directory of that name.
    ///
    /// # Errors
    /// `Exists` when `to` is taken; `NotFound` when `from` or the parent of `to` is missing.
    async fn rename(&self, from: &StorePath, to: &StorePath) -> Result<(), WriteError>;

    /// Gives a file another name and replaces the file of that name, if there is one, in the same
    /// atomic step: a reader of `to` finds the old file or the new one, whole. For outputs alone;
    /// what a checkpoint holds is never replaced.
    ///
    /// # Errors
    /// `NotFound` when `from` or the parent of `to` is missing; `to` is a directory.
    async fn replace(&self, from: &StorePath, to: &StorePath) -> Result<(), WriteError>;

    /// Deletes one file.
    ///
    /// # Errors
    /// `NotFound`; `IsADirectory`.
    async fn delete_file(&self, path: &StorePath) -> Result<(), WriteError>;

    /// Deletes a directory with all it holds; links are removed, never followed. Callers pass only
    /// names of their own grammar.
    ///
    /// # Errors
    /// `NotFound`; `NotADirectory`. A failure may leave a part deleted.
    async fn delete_dir(&self, path: &StorePath) -> Result<(), WriteError>;

    /// Where the bytes of a file are, in order. Nothing where all of them are equally far, as on this
    /// machine's file system.
    ///
    /// # Errors
    /// As [`stat`](Self::stat).
    async fn blocks(&self, _path: &StorePath) -> Result<Vec<BlockPlace>, StorageError> {
        Ok(Vec::new())
    }

    /// Refuses a directory, which must exist, in which files cannot be made durable as the publish
    /// protocol needs it (HDFS: an erasure-coded one, where nothing can be synced).
    ///
    /// # Errors
    /// `Unsupported` saying what to do; as [`stat`](Self::stat).
    async fn check_dir(&self, _path: &StorePath) -> Result<(), StorageError> {
        Ok(())
    }

    /// The mode of new files where the user asks for none: what the umask leaves of `0666`.
    fn default_mode(&self) -> Mode {
        Mode::FILE
    }

    /// Looks whether anybody is there, within seconds: for a person who waits. Calls themselves are
    /// patient, since a peer that restarts comes back.
    ///
    /// # Errors
    /// `Unavailable` when nobody is.
    async fn reach(&self) -> Result<(), StorageError> {
        Ok(())
    }
}

/// A file being written. Dropping it unclosed leaves a torn file, which no published name ever
/// refers to.
#[async_trait]
pub trait Writer: Debug + Send {
    /// Appends bytes.
    ///
    /// # Errors
    /// `Full`, `Quota`, `Unavailable`. After an error the file is worthless: drop the writer and
    /// begin again under another name.
    async fn write(&mut self, data: Bytes) -> Result<(), WriteError>;

    /// Forces what was written onto the disks (HDFS: hsync on each DataNode of the pipeline).
    ///
    /// # Errors
    /// As [`write`](Self::write).
    async fn sync(&mut self) -> Result<(), WriteError>;

    /// Ends the file; it has its final length from here on. Does not sync by itself.
    ///
    /// # Errors
    /// As [`write`](Self::write). An unknown outcome here is resolved like the others: by length
    /// and digest of what can be read back.
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
}
