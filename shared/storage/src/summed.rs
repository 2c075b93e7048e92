//! A file with its sum beside it, in the one order that is safe: durable data, then sidecar.
//!
//! The sidecar is begun when the data is on the disks and its sum is known; the file is closed meanwhile, since on
//! HDFS either takes up to half a second in which nothing is done but wait. A failure leaves files that nothing refers
//! to; the writer begins again **under another name**.

use bytes::Bytes;
use heddle_protocol::manifest::Md5;
use uuid::Uuid;

use crate::digest::Digester;
use crate::error::{Op, Reason, StorageError, WriteError};
use crate::path::StorePath;
use crate::read_small;
use crate::sidecar::{sidecar_line, sidecar_name};
use crate::store::{Mode, Storage, Writer};

/// How often a sidecar that failed is written again.
const SIDECAR_AGAIN: u32 = 3;

/// A file that is being written and summed.
#[derive(Debug)]
pub struct SummedWriter {
    path: StorePath,
    writer: Box<dyn Writer>,
    digester: Digester,
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
    /// Length of the file.
    pub bytes: u64,
}

impl SummedWriter {
    /// Creates the file, exclusively, in a directory that exists.
    ///
    /// # Errors
    /// What [`Storage::create`] says.
    pub async fn create(storage: &dyn Storage, path: &StorePath) -> Result<Self, StorageError> {
        let mode = Mode::FILE;
        Ok(Self::new(path, storage.create(path, mode).await?, mode))
    }

    /// The same for a file of which is known that it will have `bytes` bytes; the file and its sidecar get `mode`.
    ///
    /// # Errors
    /// What [`Storage::create_sized`] says.
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
        Self { path: path.clone(), writer, digester: Digester::new(), bytes: 0, mode }
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// What [`Writer::write`] says.
    pub async fn write(&mut self, data: Bytes) -> Result<(), StorageError> {
        self.bytes += data.len() as u64;
        let no_thread =
            |error| StorageError::new(Op::Write, &self.path, Reason::Other).because(error);
        self.digester.update(data.clone()).await.map_err(no_thread)?;
        self.writer.write(data).await?;
        Ok(())
    }

    /// Forces the data onto the disks, ends the file and writes its sidecar. The file's length is looked up and
    /// compared, since a store that says "done" and has another length would be found out only at the restore.
    ///
    /// # Errors
    /// What the storage says, or `Short` when the length is not what was written. The sidecar is gone then, or it
    /// vouches for a file that nothing refers to.
    pub async fn finish(mut self, storage: &dyn Storage) -> Result<Summed, StorageError> {
        self.writer.sync().await?;
        let (path, bytes, mode) = (self.path, self.bytes, self.mode);
        let no_sum = |error| StorageError::new(Op::Close, &path, Reason::Other).because(error);
        let md5 = self.digester.finish().await.map_err(no_sum)?;
        let sidecar = path.sibling(&sidecar_name(path.name()))?;
        let (closed, vouched) = tokio::join!(
            close(self.writer, storage, &path, bytes),
            vouch(storage, &path, &sidecar, mode, md5)
        );
        if closed.is_err() && vouched.is_ok() {
            let _leaks = storage.delete_file(&sidecar).await;
        }
        closed?;
        vouched?;
        let name = path.name().to_owned();
        Ok(Summed { name, md5, bytes })
    }
}

/// The sum of a file, which is read from its start to its end.
///
/// # Errors
/// What the storage says.
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

/// Writes the sidecar. One that fails in passing is removed and written again: the file it vouches for may have taken
/// minutes. An unknown outcome is resolved by reading it back first.
async fn vouch(
    storage: &dyn Storage,
    path: &StorePath,
    sidecar: &StorePath,
    mode: Mode,
    md5: Md5,
) -> Result<(), StorageError> {
    let line = Bytes::from(sidecar_line(md5, path.name()));
    let mut again = 0..SIDECAR_AGAIN;
    let mut result = write_whole(storage, sidecar, mode, line.clone()).await;
    while let Err(error) = &result
        && error.error().is_retryable()
        && again.next().is_some()
    {
        // What is there of it is ours, as the file beside it is.
        match storage.delete_file(sidecar).await {
            Ok(()) => {}
            Err(gone) if gone.error().is_not_found() => {}
            Err(_) => break,
        }
        result = write_whole(storage, sidecar, mode, line.clone()).await;
    }
    Ok(result?)
}

/// Writes a small file whole: create, write, sync, close. When the outcome of the close is unknown,
/// the file is read back: the very same bytes there, synced before, mean that it is done. An unknown
/// outcome of an earlier call stays unknown, since bytes that can be read need not be durable.
///
/// # Errors
/// What the storage says.
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

fn draft_name(name: &str, uuid: Uuid) -> String {
    format!(".{name}.{}", uuid.simple())
}

/// Whether a name is that of a draft which [`publish_small`] made for a file called `of`; one may be left when
/// its writer died.
pub(crate) fn is_draft_of(name: &str, of: &str) -> bool {
    name.strip_prefix('.')
        .and_then(|rest| rest.strip_prefix(of))
        .and_then(|rest| rest.strip_prefix('.'))
        .is_some_and(|uuid| uuid.len() == 32 && uuid.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Makes a small file appear whole under its name, or not at all, replacing nothing: a draft beside it
/// (`.<name>.<uuid>`) is made durable and renamed. So nobody ever sees a torn one, and after a failure
/// the same call may simply be made again.
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
        // Nobody reads drafts, so whatever became of this one, the name was not taken.
        let _leaks = storage.delete_file(&draft).await;
        return Err(WriteError::NotDone(error.into()));
    }
    let error = match storage.rename(&draft, path).await {
        Ok(()) => return Ok(()),
        Err(error) => error,
    };
    match read_small(storage, path, data.len()).await {
        // These very bytes, durable as the draft was before it got this name.
        Ok(found) if found == data => {
            if !error.is_unknown() {
                // The name was taken by the same bytes, so the draft is still there.
                let _leaks = storage.delete_file(&draft).await;
            }
            return Ok(());
        }
        Err(read) if read.is_not_found() && error.is_unknown() => {
            // A late rename may still come: without its draft it cannot.
            return match storage.delete_file(&draft).await {
                Ok(()) => Err(WriteError::NotDone(error.into())),
                Err(_) => Err(error),
            };
        }
        // Other bytes: somebody else's, whatever became of ours.
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
