//! Checks the shard files that a manifest lists.
//!
//! A check costs one listing, and one look-up and one small read per file. Many reads run at once: on HDFS a read takes a few
//! round trips, and a job may have thousands of shards.

use std::collections::BTreeMap;

use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use heddle_protocol::manifest::{CutIdentity, Manifest, ShardFile};

use tracing::warn;

use super::{CheckpointError, Damage};
use crate::error::{StorageError, chain};
use crate::path::StorePath;
use crate::shard_file::{ShardHeader, ShardReader, check_sidecar};
use crate::store::{Entry, EntryKind, Storage};

/// Extent of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// The manifest and its MD5; presence and length of every shard file; content of every sidecar. A few calls per shard.
    Shallow,
    /// Also the MD5 and the header of every file. Reads every byte.
    Full,
}

/// Sidecars that are read at once: enough to hide round trips, and few enough that a NameNode's handlers
/// (`dfs.namenode.handler.count`, 10 by default) also serve other clients.
const SIDECARS_AT_ONCE: usize = 32;

/// Entries of a directory by name.
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

/// Checks presence and length of each file, then what `depth` adds.
///
/// # Errors
/// `Damaged` for the first damaged file; errors of the storage.
pub(super) async fn check_shards(
    storage: &dyn Storage,
    dir: &StorePath,
    manifest: &Manifest,
    listed: &DirEntries,
    depth: Depth,
) -> Result<(), CheckpointError> {
    let files: Vec<ShardFile> = manifest.shards.iter().flat_map(ShardFile::files).collect();
    for file in &files {
        let damage = match listed.0.get(&file.file) {
            None => Damage::Missing,
            Some(entry) if entry.kind != EntryKind::File => Damage::NotAFile,
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
        // The disks are the limit, not round trips: one file after the other.
        Depth::Full => {
            for file in &files {
                check_content(storage, dir, file, &manifest.identity()).await?;
            }
            Ok(())
        }
    }
}

/// Reads every byte of a file: length, sidecar, MD5 of the manifest, and what its header names. Returns the header.
///
/// # Errors
/// `Damaged`, `Newer`, `Storage`.
pub(super) async fn check_content(
    storage: &dyn Storage,
    dir: &StorePath,
    file: &ShardFile,
    identity: &CutIdentity,
) -> Result<ShardHeader, CheckpointError> {
    let read = async || ShardReader::open(storage, dir, file, identity).await?.check().await;
    match read().await {
        // A second attempt before the file counts as damaged: on HDFS another replica may serve it, and a bit error in
        // transfer is not damage of the file.
        Err(CheckpointError::Damaged { damage: Damage::Sum { .. }, .. }) => read().await,
        other => other,
    }
}

/// The first copy of a shard that passes every check, as its only file. A file without copies is returned unread: its reader
/// checks it.
///
/// # Errors
/// No copy is good. If a copy cannot be read at the moment, the error is its error: it proves no damage.
pub async fn good_copy(
    storage: &dyn Storage,
    dir: &StorePath,
    file: &ShardFile,
    identity: &CutIdentity,
) -> Result<ShardFile, CheckpointError> {
    let mut failure: Option<CheckpointError> = None;
    for copy in file.files() {
        if file.copies.is_empty() {
            return Ok(copy);
        }
        match check_content(storage, dir, &copy, identity).await {
            Ok(_) => return Ok(copy),
            Err(error) => {
                warn!(error = chain(&error), "shard_copy_passed_over");
                if failure.as_ref().is_none_or(|before| before.is_damage() && !error.is_damage()) {
                    failure = Some(error);
                }
            }
        }
    }
    let missing = || CheckpointError::Damaged { file: file.file.clone(), damage: Damage::Missing };
    Err(failure.unwrap_or_else(missing))
}
