//! Copies a checkpoint into another checkpoint directory: a mirror, or the directory that takes a lost one's place.
//!
//! The copy has the same names and the same order of writing: claims, files with their sidecars, manifest, one rename. So
//! a mirror is a checkpoint directory itself. The claims come along because they say which checkpoints count and which
//! process committed them.

use heddle_protocol::ids::{CutId, Generation};
use heddle_protocol::manifest::{Manifest, ShardFile};

use super::commit::{self, CommitError, CommitGate};
use super::layout::STAGING;
use super::repair::{copy_file, names_of};
use super::root::DirRoot;
use super::shard_group::manifest_of;
use super::{CheckpointError, Damage};
use crate::error::StorageError;
use crate::path::StorePath;
use crate::shard_file::check_sidecar;

/// Copies one checkpoint and the claims of its lineage. A repeated call continues: complete files are kept.
///
/// # Errors
/// `OtherRun` inside `NotDone` if `to` holds the claims of another run; `Fenced` if `to` has a higher claim; errors of both
/// storages; `Damaged` if no copy of a shard in `from` has the bytes of the manifest.
pub(super) async fn copy_checkpoint(
    from: &DirRoot,
    cut: CutId,
    to: &DirRoot,
    gate: CommitGate<'_>,
) -> Result<(), CommitError> {
    let not_done = CommitError::NotDone;
    let (manifest, _) = manifest_of(from, cut).await.map_err(not_done)?;
    copy_claims(from, cut.generation, to).await.map_err(not_done)?;
    if to.names().await.map_err(not_done)?.contains(&cut) {
        let (there, _) = manifest_of(to, cut).await.map_err(not_done)?;
        return match there.salt == manifest.salt {
            true => Ok(()),
            false => Err(not_done(other_run(to, cut.generation, &there, &manifest))),
        };
    }
    let staging = commit::stage(to, cut, manifest.salt).await.map_err(not_done)?;
    let source = from.checkpoint_dir(cut).map_err(not_done)?;
    for shard in &manifest.shards {
        for file in shard.files() {
            copy_shard(from, &source, shard, to, &staging, &file).await.map_err(not_done)?;
        }
    }
    let salt = manifest.salt;
    commit::commit(to, manifest, salt, gate).await.map(drop)
}

/// Copies the claims of the lineage of a generation, oldest first.
async fn copy_claims(
    from: &DirRoot,
    generation: Generation,
    to: &DirRoot,
) -> Result<(), CheckpointError> {
    let claimed = from.claimed().await?;
    let lineage = from.lineage_from(Some(generation), &claimed).await?;
    let mut generations: Vec<Generation> =
        lineage.generations().map(|(generation, _)| generation).collect();
    generations.retain(|generation| claimed.contains(generation));
    for generation in generations.into_iter().rev() {
        let claim = from.claim(generation).await?;
        if to.write_claim(&claim).await? {
            continue;
        }
        let there = to.claim(generation).await?;
        if there.salt != claim.salt {
            let dir = to.show(&to.path);
            let (expected, found) = (claim.run, there.run);
            return Err(CheckpointError::OtherRun { dir, generation, expected, found });
        }
    }
    Ok(())
}

fn other_run(
    to: &DirRoot,
    generation: Generation,
    there: &Manifest,
    manifest: &Manifest,
) -> CheckpointError {
    let dir = to.show(&to.path);
    CheckpointError::OtherRun { dir, generation, expected: manifest.run, found: there.run }
}

/// Copies one file from the first copy of its shard that has the right bytes.
async fn copy_shard(
    from: &DirRoot,
    source: &StorePath,
    shard: &ShardFile,
    to: &DirRoot,
    staging: &StorePath,
    file: &ShardFile,
) -> Result<(), CheckpointError> {
    if is_there(to, staging, file).await? {
        return Ok(());
    }
    let path = staging.join(&file.file).map_err(StorageError::from)?;
    let mut failure = None;
    for candidate in std::iter::once(file.clone()).chain(shard.files()) {
        for name in names_of(file) {
            let left = staging.join(&name).map_err(StorageError::from)?;
            commit::delete_quietly_gone(to, &left).await?;
        }
        let from_path = source.join(&candidate.file).map_err(StorageError::from)?;
        match copy_file(&*from.storage, &from_path, &*to.storage, &path, file).await {
            Ok(()) => return Ok(()),
            Err(CheckpointError::Storage(error)) if error.is_not_found() => {
                let file = from.show(&from_path);
                failure.get_or_insert(CheckpointError::Damaged { file, damage: Damage::Missing });
            }
            Err(error @ CheckpointError::Damaged { .. }) => {
                failure.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    failure.map_or(Ok(()), Err)
}

/// Whether an earlier attempt has written the file completely: its sidecar is written when its bytes are durable.
async fn is_there(
    to: &DirRoot,
    staging: &StorePath,
    file: &ShardFile,
) -> Result<bool, CheckpointError> {
    let path = staging.join(&file.file).map_err(StorageError::from)?;
    match to.storage.stat(&path).await {
        Ok(entry) if entry.bytes == file.bytes => {}
        Ok(_) => return Ok(false),
        Err(error) if error.is_not_found() => return Ok(false),
        Err(error) => return Err(error.into()),
    }
    match check_sidecar(&*to.storage, staging, file).await {
        Ok(()) => Ok(true),
        Err(error) if error.is_damage() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether two names lead to one directory, for example by a link. Both must have been opened for writing.
///
/// # Errors
/// Errors of the storages.
pub(super) async fn is_same(one: &DirRoot, other: &DirRoot) -> Result<bool, CheckpointError> {
    let name = super::layout::probe_name(None, uuid::Uuid::new_v4());
    let scratch = one.under(&[STAGING, &name])?;
    one.make(&scratch).await?;
    let seen = other.storage.stat(&other.under(&[STAGING, &name])?).await;
    let _leaks = one.storage.delete_dir(&scratch).await;
    match seen {
        Ok(_) => Ok(true),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error.into()),
    }
}
