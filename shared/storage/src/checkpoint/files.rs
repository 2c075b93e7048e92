//! Whether the shard files that a manifest lists are there.
//!
//! Costs one listing, one look-up a file, and one small read a file, many of which are under way at once: on HDFS a read
//! is a few round trips, and a job may have thousands of shards.

use std::collections::BTreeMap;

use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use heddle_protocol::manifest::ShardFile;

use super::{CheckpointError, Damage};
use crate::error::StorageError;
use crate::path::StorePath;
use crate::shard_file::{ShardReader, check_sidecar};
use crate::store::{Entry, Kind, Storage};

/// How thoroughly a checkpoint is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// The manifest and its sum; every shard file's presence and length; every sidecar's content.
    /// Costs a few calls per shard.
    Shallow,
    /// All of that, and every file's sum and header: reads every byte.
    Full,
}

/// Sidecars that are read at once: many enough to hide round trips, few enough for a NameNode's handlers
/// (`dfs.namenode.handler.count`, 10 by default) to serve others too.
const SIDECARS_AT_ONCE: usize = 32;

/// A directory's entries, found by name.
pub(super) struct DirEntries(BTreeMap<String, Entry>);

impl DirEntries {
    pub(super) fn new(entries: Vec<Entry>) -> Self {
        let named = |entry: Entry| (entry.name().to_owned(), entry);
        Self(entries.into_iter().map(named).collect())
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.0.values()
    }
}

/// Checks each file's presence and length, then what `depth` wants.
///
/// # Errors
/// `Damaged`, of the first file that is; what the storage says.
pub(super) async fn check_shards(
    storage: &dyn Storage,
    dir: &StorePath,
    files: &[ShardFile],
    listed: &DirEntries,
    depth: Depth,
) -> Result<(), CheckpointError> {
    for file in files {
        let damage = match listed.0.get(&file.file) {
            None => Damage::Missing,
            Some(entry) if entry.kind == Kind::Dir => Damage::NotAFile,
            Some(entry) if entry.bytes != file.bytes => {
                Damage::Length { expected: file.bytes, found: entry.bytes }
            }
            Some(_) => continue,
        };
        let path = dir.join(&file.file).map_err(StorageError::from)?;
        return Err(CheckpointError::Damaged { file: storage.show(&path), damage });
    }
    match depth {
        Depth::Shallow => {
            let checks: Vec<BoxFuture<'_, _>> = files
                .iter()
                .map(|file| Box::pin(check_sidecar(storage, dir, file)) as BoxFuture<'_, _>)
                .collect();
            stream::iter(checks).buffered(SIDECARS_AT_ONCE).try_collect().await
        }
        // Bounded by the disks and not by round trips: one after the other.
        Depth::Full => {
            for file in files {
                check_content(storage, dir, file).await?;
            }
            Ok(())
        }
    }
}

async fn check_content(
    storage: &dyn Storage,
    dir: &StorePath,
    file: &ShardFile,
) -> Result<(), CheckpointError> {
    match ShardReader::open(storage, dir, file).await?.check().await {
        // Once more before it is called damaged: on HDFS another replica may serve the second
        // reading, and a bit that fell over on the way is no damage of the file.
        Err(CheckpointError::Damaged { damage: Damage::Sum { .. }, .. }) => {
            ShardReader::open(storage, dir, file).await?.check().await.map(drop)
        }
        other => other.map(drop),
    }
}
