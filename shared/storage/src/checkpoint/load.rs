//! Reads a checkpoint: its manifest, and whether its files are complete.

use std::sync::Arc;

use heddle_protocol::manifest::{MANIFEST_BYTES_MAX, Manifest};

use super::files::{Depth, DirEntries, check_shards, good_copy};
use super::layout::MANIFEST;
use super::{CheckpointError, Damage};
use crate::digest::sum_of;
use crate::error::{Reason, StorageError};
use crate::path::StorePath;
use crate::sidecar::{SIDECAR_BYTES_MAX, SidecarError, read_sidecar, sidecar_name};
use crate::store::Storage;
use crate::{StorageUrl, read_small};

/// A complete checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredCheckpoint {
    /// Its directory.
    pub dir: StorePath,
    /// Its manifest.
    pub manifest: Manifest,
}

impl StoredCheckpoint {
    /// Reads and checks the checkpoint in a directory. All names in it are relative, so a copy elsewhere is valid too.
    ///
    /// # Errors
    /// `Damaged`, `Newer`, `Storage`, `Removed`.
    pub async fn load(
        storage: &dyn Storage,
        dir: &StorePath,
        depth: Depth,
    ) -> Result<Self, CheckpointError> {
        let load = async {
            let manifest = read_manifest(storage, dir).await?;
            let listed = DirEntries::new(storage.list(dir).await?);
            check_shards(storage, dir, &manifest, &listed, depth).await?;
            Ok::<_, CheckpointError>(Self { dir: dir.clone(), manifest })
        };
        or_removed(storage, dir, load).await
    }

    /// Opens the checkpoint at a location such as `hdfs:///ctr/ckpt/g1-c4`.
    ///
    /// # Errors
    /// See [`load`](Self::load).
    pub async fn at(
        location: &StorageUrl,
        depth: Depth,
    ) -> Result<(Arc<dyn Storage>, Self), CheckpointError> {
        let storage = crate::connect(location)?;
        let checkpoint = Self::load(&*storage, location.path(), depth).await?;
        Ok((storage, checkpoint))
    }

    /// Opens a checkpoint for a reader of all its files. A shard with copies has one file in the manifest, the first good one;
    /// its copies are read up to there. Other files are checked as at [`Depth::Shallow`].
    ///
    /// # Errors
    /// See [`load`](Self::load); `Untrained`.
    pub async fn readable(
        location: &StorageUrl,
    ) -> Result<(Arc<dyn Storage>, Self), CheckpointError> {
        let storage = crate::connect(location)?;
        let dir = location.path();
        let read = async {
            let mut manifest = Self::manifest_at(location).await?;
            let identity = manifest.identity();
            for shard in &mut manifest.shards {
                *shard = good_copy(&*storage, dir, shard, &identity).await?;
            }
            let listed = DirEntries::new(storage.list(dir).await?);
            check_shards(&*storage, dir, &manifest, &listed, Depth::Shallow).await?;
            Ok::<_, CheckpointError>(Self { dir: dir.clone(), manifest })
        };
        let checkpoint = or_removed(&*storage, dir, read).await?;
        Ok((storage, checkpoint))
    }

    /// Reads the manifest of a checkpoint alone. A reader of its files checks each of them.
    ///
    /// # Errors
    /// See [`load`](Self::load); `Untrained`.
    pub async fn manifest_at(location: &StorageUrl) -> Result<Manifest, CheckpointError> {
        let (storage, dir) = (crate::connect(location)?, location.path());
        let manifest = or_removed(&*storage, dir, read_manifest(&*storage, dir)).await?;
        match manifest.initial {
            true => Err(CheckpointError::Untrained { dir: location.to_string() }),
            false => Ok(manifest),
        }
    }
}

/// Awaits a reader of the checkpoint in `dir`. If the directory is gone after its error, that is the error: retention renames
/// a checkpoint before it deletes the files, so none of them is damaged.
///
/// # Errors
/// `Removed`; else the reader's errors.
pub async fn or_removed<T, E>(
    storage: &dyn Storage,
    dir: &StorePath,
    read: impl Future<Output = Result<T, E>>,
) -> Result<T, E>
where
    E: From<CheckpointError>,
{
    match read.await {
        Err(_) if storage.stat(dir).await.is_err_and(|error| error.is_not_found()) => {
            Err(CheckpointError::Removed { dir: storage.show(dir) }.into())
        }
        read => read,
    }
}

/// Reads a manifest and checks its MD5 and its content.
pub(super) async fn read_manifest(
    storage: &dyn Storage,
    dir: &StorePath,
) -> Result<Manifest, CheckpointError> {
    let path = dir.join(MANIFEST).map_err(StorageError::from)?;
    let shown = storage.show(&path);
    let damaged = |damage| CheckpointError::Damaged { file: shown.clone(), damage };
    let content = match read_small(storage, &path, MANIFEST_BYTES_MAX).await {
        Ok(content) => content,
        Err(error) if error.is_not_found() => return Err(damaged(Damage::Missing)),
        Err(error) if error.is_no_file() => return Err(damaged(Damage::NotAFile)),
        Err(error) => return Err(error.into()),
    };
    let sidecar = path.sibling(&sidecar_name(MANIFEST)).map_err(StorageError::from)?;
    let line = match read_small(storage, &sidecar, SIDECAR_BYTES_MAX).await {
        Ok(line) => line,
        Err(error) if error.is_not_found() => {
            return Err(damaged(Damage::Sidecar(SidecarError::Missing)));
        }
        Err(error) if matches!(error.reason, Reason::Unsupported(_)) || error.is_no_file() => {
            return Err(damaged(Damage::Sidecar(SidecarError::Form)));
        }
        Err(error) => return Err(error.into()),
    };
    let expected =
        read_sidecar(&line, MANIFEST).map_err(|error| damaged(Damage::Sidecar(error)))?;
    let found = sum_of(&content);
    if found != expected {
        return Err(damaged(Damage::Sum { expected, found }));
    }
    Manifest::from_json(&content).map_err(|error| CheckpointError::of_manifest(&shown, error))
}
