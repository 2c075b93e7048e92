//! Files and checkpoints over `file://` and `hdfs://`. Every call reports whether it changed something, or that it is unknown.
//!
//! Three layers, each built on the one below:
//! - [`Storage`], one small trait over a file system, without any notion of jobs or checkpoints.
//! - Files with an MD5 sidecar ([`SummedWriter`]), and [shard files](shard_file).
//! - The [checkpoint directory](checkpoint): its layout, commits, the choice of a checkpoint to restore, and deletion.
//!
//! Callers (the ApplicationMaster, pservers, trainers) decide about deadlines, retries and the time of each call.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use heddle_storage::{StorageUrl, Mode, connect, read_small, write_whole};
//!
//! let location = StorageUrl::parse(&format!("file://{}/heddle-{}", std::env::temp_dir().display(), std::process::id()))?;
//! let storage = connect(&location)?;
//! write_whole(&*storage, location.path(), Mode::FILE, "content".into()).await?;
//! assert_eq!(read_small(&*storage, location.path(), 100).await?, "content");
//! storage.delete_file(location.path()).await?;
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod background;
pub mod checkpoint;
mod digest;
mod error;
mod glob;
#[cfg(feature = "hdfs")]
mod hdfs;
mod local;
mod numbered;
mod path;
mod probe;
pub mod shard_file;
mod sidecar;
mod store;
mod summed;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod url;

use std::sync::Arc;

pub use background::lower_priority_of_thread;
pub use error::{Op, Reason, StorageError, WriteError, chain};
pub use glob::{FoundFiles, find_files, folders_left_out};
#[cfg(feature = "hdfs")]
pub use hdfs::{
    HdfsStorage, InstallError, IssueError, IssuedToken, TokenIssuer, adopt_token_file,
    cancel_fetched_tokens, install_tokens, keep_fetched_tokens,
};
pub use local::LocalStorage;
pub use numbered::{NumberedError, numbered_files, read_highest};
pub use path::{PathError, StorePath};
pub use probe::{check_place, probe, try_place};
pub use sidecar::{SIDECAR_SUFFIX, SidecarError, read_sidecar, sidecar_line, sidecar_name};
pub use store::{
    BlockHost, BlockPlace, Entry, EntryKind, FileAccess, FileVersion, Mode, OfVersion, Reader,
    Storage, Writer,
};
pub use summed::{Summed, SummedWriter, md5_of, publish_small, replace_small, write_whole};
pub use url::{StorageUrl, StorageUrlError};

/// The storage of a location. For `hdfs://` it reads the Hadoop configuration of this process (`HADOOP_CONF_DIR`), and
/// makes no call to the cluster.
///
/// # Errors
/// The configuration cannot be read or does not name such a storage; `Unsupported` for `hdfs://` in a build without the
/// feature `hdfs`.
pub fn connect(location: &StorageUrl) -> Result<Arc<dyn Storage>, StorageError> {
    match location {
        StorageUrl::Local(_) => Ok(Arc::new(LocalStorage)),
        #[cfg(feature = "hdfs")]
        StorageUrl::Hdfs { authority, .. } => Ok(HdfsStorage::connect(authority)?),
        #[cfg(not(feature = "hdfs"))]
        StorageUrl::Hdfs { .. } => Err(StorageError::new(
            Op::Open,
            location,
            Reason::Unsupported("this build has no hdfs:// storage".to_owned()),
        )),
    }
}

/// Reads a whole small file.
///
/// # Errors
/// Errors of the storage; `Unsupported` if the file has more than `bytes_max` bytes, so that a foreign or damaged file
/// cannot fill the memory.
pub async fn read_small(
    storage: &dyn Storage,
    path: &StorePath,
    bytes_max: usize,
) -> Result<bytes::Bytes, StorageError> {
    let mut reader = storage.open(path, 0).await?;
    let mut data = bytes::BytesMut::new();
    while let Some(chunk) = reader.next().await? {
        if data.len() + chunk.len() > bytes_max {
            let reason = Reason::Unsupported(format!("the file has more than {bytes_max} bytes"));
            return Err(StorageError::new(Op::Read, storage.show(path), reason));
        }
        data.extend_from_slice(&chunk);
    }
    Ok(data.freeze())
}

/// Creates a directory and all missing directories above it, each with `mode`. Existing directories do not change.
///
/// # Errors
/// Errors of the storage; `NotADirectory` if a file has a name of the path.
pub async fn make_dirs(
    storage: &dyn Storage,
    path: &StorePath,
    mode: Mode,
) -> Result<(), StorageError> {
    let mut missing = Vec::new();
    let mut at = path.clone();
    loop {
        match storage.stat(&at).await {
            Ok(entry) if entry.kind == EntryKind::Dir => break,
            Ok(_) => {
                return Err(StorageError::new(Op::Mkdir, storage.show(&at), Reason::NotADirectory));
            }
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
        let parent = at.parent();
        missing.push(at);
        match parent {
            Some(parent) => at = parent,
            None => break,
        }
    }
    for dir in missing.iter().rev() {
        match storage.mkdir(dir, mode).await {
            Ok(()) => {}
            // Another process created it in the meantime.
            Err(error) if error.error().is_exists() => {}
            // It does not matter which process created the directory, so a look-up resolves the outcome.
            Err(WriteError::Unknown(error)) => match storage.stat(dir).await {
                Ok(entry) if entry.kind == EntryKind::Dir => {}
                _ => return Err(error),
            },
            Err(WriteError::NotDone(error)) => return Err(error),
        }
    }
    Ok(())
}
