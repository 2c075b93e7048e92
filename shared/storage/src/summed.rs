//! Writes a file and its sidecar in the only safe order: durable data, then sidecar.
//!
//! The sidecar is written once the data is durable and its sum is known. The file is closed at the same time, since on
//! HDFS each of the two takes up to half a second of waiting. A failure leaves files to which nothing refers; the writer
//! begins again **under another name**.

use bytes::Bytes;
use heddle_protocol::manifest::{Md5, Sha256};
use sha2::Digest as _;
use uuid::Uuid;

use crate::digest::Digester;
use crate::error::{Op, Reason, StorageError, WriteError};
use crate::path::StorePath;
use crate::read_small;
use crate::sidecar::{sha256_line, sha256_name, sidecar_line, sidecar_name};
use crate::store::{Mode, Storage, Writer};

/// Repeated writes of a sidecar that failed.
const SIDECAR_AGAIN: u32 = 3;

/// A file that is being written and summed.
#[derive(Debug)]
pub struct SummedWriter {
    path: StorePath,
    writer: Box<dyn Writer>,
    digester: Digester,
    /// The SHA-256 of the bytes, if it is wanted.
    strong: Option<sha2::Sha256>,
    bytes: u64,
    mode: Mode,
}

/// A file and its sidecar, both durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summed {
    /// Name in its directory.
    pub name: String,
    /// Sum over the whole file.
    pub md5: Md5,
    /// SHA-256 over the whole file, if it was wanted.
    pub sha256: Option<Sha256>,
    /// Length of the file.
    pub bytes: u64,
}

impl SummedWriter {
    /// Creates the file, exclusively, in a directory that exists.
    ///
    /// # Errors
    /// Errors of [`Storage::create`].
    pub async fn create(storage: &dyn Storage, path: &StorePath) -> Result<Self, StorageError> {
        let mode = Mode::FILE;
        Ok(Self::new(path, storage.create(path, mode).await?, mode))
    }

    /// The same for a file that will have `bytes` bytes; the file and its sidecar get `mode`.
    ///
    /// # Errors
    /// Errors of [`Storage::create_sized`].
    pub async fn create_sized(
        storage: &dyn Storage,
        path: &StorePath,
        mode: Mode,
        bytes: u64,
    ) -> Result<Self, StorageError> {
        let writer = storage.create_sized(path, mode, bytes).await?;
        Ok(Self::new(path, writer, mode))
    }

    fn new(path: &StorePath, writer: Box<dyn Writer>, mode: Mode) -> Self {
        let (path, digester) = (path.clone(), Digester::new());
        Self { path, writer, digester, strong: None, bytes: 0, mode }
    }

    /// Sums the bytes by SHA-256 too, and writes a file for `sha256sum -c`. To be called before the first byte.
    #[must_use]
    pub fn with_sha256(mut self) -> Self {
        self.strong = Some(sha2::Sha256::new());
        self
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// Errors of [`Writer::write`].
    pub async fn write(&mut self, data: Bytes) -> Result<(), StorageError> {
        self.bytes += data.len() as u64;
        let no_thread =
            |error| StorageError::new(Op::Write, &self.path, Reason::Other).because(error);
        self.digester.update(data.clone()).await.map_err(no_thread)?;
        if let Some(strong) = &mut self.strong {
            strong.update(&data);
        }
        self.writer.write(data).await?;
        Ok(())
    }

    /// Makes the data durable, ends the file and writes its sidecar. Compares the file's length, since a store that reports
    /// success with another length would otherwise be detected only at the restore.
    ///
    /// # Errors
    /// Errors of the storage, or `Short` if the length is not what was written. The sidecar is then removed, or it belongs
    /// to a file to which nothing refers.
    pub async fn finish(mut self, storage: &dyn Storage) -> Result<Summed, StorageError> {
        self.writer.sync().await?;
        let (path, bytes, mode) = (self.path, self.bytes, self.mode);
        let no_sum = |error| StorageError::new(Op::Close, &path, Reason::Other).because(error);
        let md5 = self.digester.finish().await.map_err(no_sum)?;
        let sha256 = self.strong.map(|strong| Sha256(strong.finalize().into()));
        if let Some(sha256) = sha256 {
            let beside = path.sibling(&sha256_name(path.name()))?;
            vouch(storage, &beside, mode, sha256_line(sha256, path.name())).await?;
        }
        let sidecar = path.sibling(&sidecar_name(path.name()))?;
        let (closed, vouched) = tokio::join!(
            close(self.writer, storage, &path, bytes),
            vouch(storage, &sidecar, mode, sidecar_line(md5, path.name()))
        );
        if closed.is_err() && vouched.is_ok() {
            let _leaks = storage.delete_file(&sidecar).await;
        }
        closed?;
        vouched?;
        let name = path.name().to_owned();
        Ok(Summed { name, md5, sha256, bytes })
    }
}

/// The sum of a file, read from its start to its end.
///
/// # Errors
/// Errors of the storage.
pub async fn md5_of(storage: &dyn Storage, path: &StorePath) -> Result<Md5, StorageError> {
    let no_sum =
        |error| StorageError::new(Op::Read, storage.show(path), Reason::Other).because(error);
    let mut digester = Digester::new();
    let mut reader = storage.open(path, 0).await?;
    while let Some(chunk) = reader.next().await? {
        digester.update(chunk).await.map_err(no_sum)?;
    }
    digester.finish().await.map_err(no_sum)
}

async fn close(
    writer: Box<dyn Writer>,
    storage: &dyn Storage,
    path: &StorePath,
    bytes: u64,
) -> Result<(), StorageError> {
    writer.close().await?;
    let found = storage.stat(path).await?.bytes;
    if found == bytes {
        return Ok(());
    }
    let reason = Reason::Short { expected: bytes, found };
    Err(StorageError::new(Op::Close, storage.show(path), reason))
}

/// Writes the sidecar. After a temporary failure the sidecar is removed and written again: its file may have taken
/// minutes. An unknown outcome is resolved by reading the sidecar back first.
async fn vouch(
    storage: &dyn Storage,
    sidecar: &StorePath,
    mode: Mode,
    line: String,
) -> Result<(), StorageError> {
    let line = Bytes::from(line);
    let mut again = 0..SIDECAR_AGAIN;
    let mut result = write_whole(storage, sidecar, mode, line.clone()).await;
    while let Err(error) = &result
        && error.error().is_retryable()
        && again.next().is_some()
    {
        // This process owns the partial sidecar, as it owns the file beside it.
        match storage.delete_file(sidecar).await {
            Ok(()) => {}
            Err(gone) if gone.error().is_not_found() => {}
            Err(_) => break,
        }
        result = write_whole(storage, sidecar, mode, line.clone()).await;
    }
    Ok(result?)
}

/// Writes a small file whole: create, write, sync, close. If the outcome of the close is unknown, the file is read back:
/// the same bytes, synced before, prove that the file is complete. An unknown outcome of an earlier call stays unknown,
/// since bytes that can be read need not be durable.
///
/// # Errors
/// Errors of the storage.
pub async fn write_whole(
    storage: &dyn Storage,
    path: &StorePath,
    mode: Mode,
    data: Bytes,
) -> Result<(), WriteError> {
    let mut writer = storage.create_sized(path, mode, data.len() as u64).await?;
    writer.write(data.clone()).await?;
    writer.sync().await?;
    let error = match writer.close().await {
        Err(error @ WriteError::Unknown(_)) => error,
        known => return known,
    };
    match read_small(storage, path, data.len()).await {
        Ok(found) if found == data => Ok(()),
        // Not there (yet), other bytes, or unreadable: still unknown.
        Ok(_) | Err(_) => Err(error),
    }
}

/// Writes a small file, also in place of an old file of that name: a reader finds the old or the new content, complete.
///
/// # Errors
/// Errors of the storage. The old or the new file is there.
pub async fn replace_small(
    storage: &dyn Storage,
    path: &StorePath,
    mode: Mode,
    data: Bytes,
) -> Result<(), WriteError> {
    let draft = path
        .sibling(&draft_name(path.name(), Uuid::new_v4()))
        .map_err(|error| WriteError::NotDone(error.into()))?;
    let mut written = write_whole(storage, &draft, mode, data).await;
    if written.is_ok() {
        written = storage.replace(&draft, path).await;
    }
    if written.is_err() {
        let _leaks = storage.delete_file(&draft).await;
    }
    written
}

fn draft_name(name: &str, uuid: Uuid) -> String {
    format!(".{name}.{}", uuid.simple())
}

/// Whether a name is that of a draft which [`publish_small`] creates for a file called `of`. A draft remains if its
/// writer dies.
pub(crate) fn is_draft_of(name: &str, of: &str) -> bool {
    name.strip_prefix('.')
        .and_then(|rest| rest.strip_prefix(of))
        .and_then(|rest| rest.strip_prefix('.'))
        .is_some_and(|uuid| uuid.len() == 32 && uuid.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Makes a small file appear under its name completely or not at all, replacing nothing: a draft beside it
/// (`.<name>.<uuid>`) is made durable and renamed. No process reads a torn file, and after a failure the same call may be
/// repeated.
///
/// # Errors
/// `NotDone` with `Exists` when the name is taken by other bytes. `Unknown` only when reading back
/// failed too.
pub async fn publish_small(
    storage: &dyn Storage,
    path: &StorePath,
    data: Bytes,
) -> Result<(), WriteError> {
    let draft = path
        .sibling(&draft_name(path.name(), Uuid::new_v4()))
        .map_err(|error| WriteError::NotDone(error.into()))?;
    if let Err(error) = write_whole(storage, &draft, Mode::FILE, data.clone()).await {
        // No process reads drafts. Whatever the outcome of this one, the name was not taken.
        let _leaks = storage.delete_file(&draft).await;
        return Err(WriteError::NotDone(error.into()));
    }
    let error = match storage.rename(&draft, path).await {
        Ok(()) => return Ok(()),
        Err(error) => error,
    };
    match read_small(storage, path, data.len()).await {
        // The same bytes, durable since the draft was synced before it got this name.
        Ok(found) if found == data => {
            if !error.is_unknown() {
                // The name was taken by the same bytes, so the draft is still there.
                let _leaks = storage.delete_file(&draft).await;
            }
            return Ok(());
        }
        Err(read) if read.is_not_found() && error.is_unknown() => {
            // A delayed rename may still take effect; without its draft it cannot.
            return match storage.delete_file(&draft).await {
                Ok(()) => Err(WriteError::NotDone(error.into())),
                Err(_) => Err(error),
            };
        }
        // Other bytes: of another process, whatever the outcome of this one.
        Ok(_) => {}
        Err(read) if matches!(read.reason, Reason::Unsupported(_)) => {}
        Err(_) if error.is_unknown() => return Err(error),
        Err(_) => {}
    }
    let _leaks = storage.delete_file(&draft).await;
    match error {
        WriteError::NotDone(error) => Err(WriteError::NotDone(error)),
        WriteError::Unknown(error) => {
            let taken = StorageError::new(Op::Rename, storage.show(path), Reason::Exists);
            Err(WriteError::NotDone(taken.because(error)))
        }
    }
}
