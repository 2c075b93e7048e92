//! Files and checkpoints over file:// and hdfs://, with every outcome known.
//!
//! Three layers, each built on the one below:
//! - One small trait, [`Storage`], over a file system; it knows nothing of Heddle.
//! - Files with a sum beside them ([`SummedWriter`]), and [shards](shard_file) in such files.
//! - The [checkpoint directory](checkpoint): what is in it, how a checkpoint comes to exist, which one
//!   to go back to, what may be deleted.
//!
//! Deadlines, retries and when to do what are the caller's: the ApplicationMaster and the pservers.

#![forbid(unsafe_code)]

pub mod checkpoint;
mod digest;
#[cfg(any(test, feature = "double"))]
pub mod double;
mod error;
mod glob;
#[cfg(feature = "hdfs")]
mod hdfs;
mod local;
mod location;
mod numbered;
mod path;
mod probe;
pub mod shard_file;
mod sidecar;
mod store;
mod summed;

use std::sync::Arc;

pub use error::{Op, Reason, StorageError, WriteError, chain};
pub use glob::find_files;
#[cfg(feature = "hdfs")]
pub use hdfs::HdfsStorage;
pub use local::LocalStorage;
pub use location::{Location, LocationError};
pub use numbered::{NumberedError, read_highest};
pub use path::{PathError, StorePath};
pub use probe::{check_place, probe, try_place};
pub use sidecar::{SIDECAR_SUFFIX, SidecarError, read_sidecar, sidecar_line, sidecar_name};
pub use store::{
    BlockPlace, Entry, FileVersion, Kind, Mode, OpenedVersion, Reader, Storage, Writer,
};
pub use summed::{Summed, SummedWriter, md5_of, publish_small, write_whole};

/// The storage that a location lies on. For `hdfs://` the configuration of this process counts
/// (`HADOOP_CONF_DIR`); nothing is asked of the cluster yet.
///
/// # Errors
/// When the configuration cannot be read or names no such storage; `Unsupported` for `hdfs://` in a
/// build without the feature `hdfs`.
pub fn connect(location: &Location) -> Result<Arc<dyn Storage>, StorageError> {
    match location {
        Location::Local(_) => Ok(Arc::new(LocalStorage)),
        #[cfg(feature = "hdfs")]
        Location::Hdfs { authority, .. } => Ok(HdfsStorage::connect(authority)?),
        #[cfg(not(feature = "hdfs"))]
        Location::Hdfs { .. } => Err(StorageError::new(
            Op::Open,
            location,
            Reason::Unsupported("this build has no hdfs:// storage".to_owned()),
        )),
    }
}

/// Reads a whole small file.
///
/// # Errors
/// What the storage says; `Unsupported` when the file has more than `bytes_max` bytes, so that a
/// foreign or damaged file cannot fill the memory.
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

/// Makes a directory and all missing directories above it, each with `mode`. Those that exist stay
/// as they are.
///
/// # Errors
/// What the storage says; `NotADirectory` when a file is in the way.
pub async fn make_dirs(
    storage: &dyn Storage,
    path: &StorePath,
    mode: Mode,
) -> Result<(), StorageError> {
    let mut missing = Vec::new();
    let mut at = path.clone();
    loop {
        match storage.stat(&at).await {
            Ok(entry) if entry.kind == Kind::Dir => break,
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
            // Somebody else made it meanwhile.
            Err(error) if error.error().is_exists() => {}
            // A directory is the same whoever made it, so looking resolves it.
            Err(WriteError::Unknown(error)) => match storage.stat(dir).await {
                Ok(entry) if entry.kind == Kind::Dir => {}
                _ => return Err(error),
            },
            Err(WriteError::NotDone(error)) => return Err(error),
        }
    }
    Ok(())
}
