//! Commits a checkpoint: manifest, sidecar, one rename.
//!
//! ```text
//! Staging ──check_files──▶ Checked ──seal──▶ Sealed ──publish──▶ Checkpoint
//! ```
//!
//! Each arrow consumes its source. A manifest is written only after every file that it lists was found with its length and
//! sidecar, and a directory is renamed only with its manifest. **The rename is the commit.** Before it, no process reads
//! the directory as a checkpoint; after it, nothing in the directory changes.
//!
//! A commit may be repeated: each step recognises the work of an earlier attempt of the same process by its salt.

use std::collections::BTreeSet;

use bytes::Bytes;
use heddle_protocol::failure::ErrorClass;
use heddle_protocol::ids::CutId;
use heddle_protocol::manifest::{Manifest, Salt, ShardFile};

use super::CheckpointError;
use super::files::{Depth, DirEntries, check_shards};
use super::layout::{MANIFEST, STAGING, is_shard_name, staging_name, summed_name};
use super::load::{StoredCheckpoint, read_manifest};
use super::remove;
use super::root::DirRoot;
use crate::digest::sum_of;
use crate::error::{Op, Reason, StorageError, WriteError};
use crate::path::StorePath;
use crate::sidecar::{sidecar_line, sidecar_name};
use crate::store::{EntryKind, Mode};
use crate::summed::write_whole;

/// Attempts of a rename whose outcome is unknown, before the commit fails with `Unknown`. Each attempt has its own deadline.
const RENAME_TRIES: u32 = 3;

/// Called right before the rename; an error forbids it. For example, the ResourceManager has not responded recently, or this
/// process must stop. The text is the reason.
pub type CommitGate<'a> = &'a (dyn Fn() -> Result<(), String> + Send + Sync);

/// Why a commit failed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// There is no checkpoint. A retry may help.
    #[error("the checkpoint was not committed")]
    NotDone(#[source] CheckpointError),
    /// The gate forbade the rename: this attempt made no checkpoint.
    #[error("the checkpoint was not committed: {0}")]
    Shut(String),
    /// The outcome is unknown. The next call recognises the checkpoint if there is one.
    #[error("the outcome of the commit is unknown")]
    Unknown(#[source] CheckpointError),
    /// Another process owns the directory or the name. The caller must commit and delete nothing more.
    #[error("the checkpoint directory is owned by another process: {0}")]
    Fenced(String),
}

impl CommitError {
    /// The class of the failure.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::NotDone(error) | Self::Unknown(error) => error.class(),
            Self::Shut(_) => ErrorClass::Unreachable,
            Self::Fenced(_) => ErrorClass::Fenced,
        }
    }

    fn not_done(error: impl Into<CheckpointError>) -> Self {
        match error.into() {
            fenced @ CheckpointError::Fenced { .. } => Self::Fenced(fenced.to_string()),
            error => Self::NotDone(error),
        }
    }
}

/// Creates the directory for a cut's files unless it exists. Its name contains the salt, so no other process writes
/// there.
///
/// # Errors
/// Errors of the storage.
pub(super) async fn stage(
    root: &DirRoot,
    cut: CutId,
    salt: Salt,
) -> Result<StorePath, CheckpointError> {
    let parent = root.under(&[STAGING, &cut.generation.to_string()])?;
    root.make(&parent).await?;
    let path = parent.join(&staging_name(cut, salt.0)).map_err(StorageError::from)?;
    root.make(&path).await?;
    Ok(path)
}

/// Removes the files of a cut that did not become a checkpoint.
///
/// # Errors
/// Errors of the storage. A failure leaks space and does no other harm.
pub(super) async fn discard(root: &DirRoot, cut: CutId, salt: Salt) -> Result<(), CheckpointError> {
    remove::delete_tree(root, &staging_of(root, cut, salt)?).await
}

pub(super) fn staging_of(
    root: &DirRoot,
    cut: CutId,
    salt: Salt,
) -> Result<StorePath, CheckpointError> {
    root.under(&[STAGING, &cut.generation.to_string(), &staging_name(cut, salt.0)])
}

/// Commits a cut whose shard files are in its staging directory. Sets `manifest.salt` to `salt`. May be called again
/// after any error but `Fenced`.
///
/// # Errors
/// See [`CommitError`].
pub(super) async fn commit(
    root: &DirRoot,
    mut manifest: Manifest,
    salt: Salt,
    gate: CommitGate<'_>,
) -> Result<StoredCheckpoint, CommitError> {
    manifest.salt = salt;
    let (cut, own) = (manifest.cut, manifest.cut.generation);
    let path = staging_of(root, cut, salt).map_err(CommitError::not_done)?;
    match root.storage.stat(&path).await {
        Ok(_) => {}
        // Missing: either an earlier attempt succeeded, or another process deleted it.
        Err(error) if error.is_not_found() => return already(root, cut, salt).await,
        Err(error) => return Err(CommitError::not_done(error)),
    }
    let staging = Staging { dir: root, path };
    let checked = staging.check_files(&manifest).await.map_err(CommitError::not_done)?;
    let sealed = checked.seal(manifest).await.map_err(CommitError::not_done)?;
    root.check_highest(own).await.map_err(CommitError::not_done)?;
    gate().map_err(CommitError::Shut)?;
    let checkpoint = sealed.publish(salt).await?;
    // A claim made in the meantime does not undo the commit: the claim's base decides whether it counts. But this
    // process must not report it.
    root.check_highest(own).await.map_err(|error| match error {
        fenced @ CheckpointError::Fenced { .. } => CommitError::Fenced(fenced.to_string()),
        error => CommitError::Unknown(error),
    })?;
    Ok(checkpoint)
}

/// The result of an earlier attempt whose staging directory no longer exists.
async fn already(root: &DirRoot, cut: CutId, salt: Salt) -> Result<StoredCheckpoint, CommitError> {
    match final_of(root, cut, salt).await.map_err(CommitError::Unknown)? {
        Final::Ours(checkpoint) => Ok(*checkpoint),
        Final::Theirs => Err(theirs(cut)),
        Final::Absent => Err(CommitError::Fenced(format!("the files of {cut} were deleted"))),
    }
}

/// Looks up the final name, to resolve an unknown outcome.
async fn final_of(root: &DirRoot, cut: CutId, salt: Salt) -> Result<Final, CheckpointError> {
    let dir = root.checkpoint_dir(cut)?;
    match root.storage.stat(&dir).await {
        Ok(_) => {}
        Err(error) if error.is_not_found() => return Ok(Final::Absent),
        Err(error) => return Err(error.into()),
    }
    match read_manifest(&*root.storage, &dir).await {
        Ok(manifest) if manifest.salt == salt => {
            Ok(Final::Ours(Box::new(StoredCheckpoint { dir, manifest })))
        }
        Ok(_) => Ok(Final::Theirs),
        // This process's manifest was durable and readable before the rename, so a malformed one is not its own.
        Err(error) if error.is_damage() => Ok(Final::Theirs),
        Err(error) => Err(error),
    }
}

enum Final {
    Absent,
    Ours(Box<StoredCheckpoint>),
    Theirs,
}

fn theirs(cut: CutId) -> CommitError {
    CommitError::Fenced(format!("{cut} was written by another process"))
}

/// An existing staging directory.
struct Staging<'a> {
    dir: &'a DirRoot,
    path: StorePath,
}

/// A staging directory with exactly the files that a manifest lists.
struct Checked<'a>(Staging<'a>);

/// A staging directory with its manifest: only the rename is missing.
struct Sealed<'a> {
    staging: Staging<'a>,
    manifest: Manifest,
}

impl<'a> Staging<'a> {
    /// Checks each file of the manifest with its length and sidecar, and removes other files of this process: those of
    /// saves that failed, about which `md5sum -c` would complain.
    async fn check_files(self, manifest: &Manifest) -> Result<Checked<'a>, CheckpointError> {
        let storage = &*self.dir.storage;
        let listed = DirEntries::new(storage.list(&self.path).await?);
        check_shards(storage, &self.path, manifest, &listed, Depth::Shallow).await?;
        let wanted: BTreeSet<String> =
            manifest.shards.iter().flat_map(ShardFile::copies).map(|copy| copy.file).collect();
        for entry in listed.entries() {
            let name = entry.name();
            let of = summed_name(name);
            if entry.kind == EntryKind::File && is_shard_name(name) && !wanted.contains(of) {
                delete_quietly_gone(self.dir, &entry.path).await?;
            }
        }
        Ok(Checked(self))
    }
}

impl<'a> Checked<'a> {
    /// Writes the manifest, then its sidecar. Replaces a torn one of an earlier attempt: only this process writes here.
    async fn seal(self, manifest: Manifest) -> Result<Sealed<'a>, CheckpointError> {
        let Self(staging) = self;
        let path = staging.path.join(MANIFEST).map_err(StorageError::from)?;
        let sidecar = staging.path.join(&sidecar_name(MANIFEST)).map_err(StorageError::from)?;
        let shown = staging.dir.show(&path);
        let content =
            manifest.to_json().map_err(|error| CheckpointError::of_manifest(&shown, error))?;
        let line = sidecar_line(sum_of(&content), MANIFEST);
        staging.put(&path, Bytes::from(content)).await?;
        staging.put(&sidecar, Bytes::from(line)).await?;
        Ok(Sealed { staging, manifest })
    }
}

impl Staging<'_> {
    async fn put(&self, path: &StorePath, content: Bytes) -> Result<(), CheckpointError> {
        let storage = &*self.dir.storage;
        match write_whole(storage, path, Mode::FILE, content.clone()).await {
            Ok(()) => return Ok(()),
            Err(WriteError::NotDone(error)) if error.is_exists() => {}
            Err(error) => return Err(StorageError::from(error).into()),
        }
        // Bytes that can be read need not have been synced by the attempt that wrote them, so even identical bytes are
        // written again.
        delete_quietly_gone(self.dir, path).await?;
        Ok(write_whole(storage, path, Mode::FILE, content).await.map_err(StorageError::from)?)
    }
}

pub(super) async fn delete_quietly_gone(
    dir: &DirRoot,
    path: &StorePath,
) -> Result<(), CheckpointError> {
    match dir.storage.delete_file(path).await {
        Ok(()) => Ok(()),
        Err(error) if error.error().is_not_found() => Ok(()),
        Err(error) => Err(StorageError::from(error).into()),
    }
}

impl Sealed<'_> {
    /// Renames the directory to its final name, replacing nothing.
    async fn publish(self, salt: Salt) -> Result<StoredCheckpoint, CommitError> {
        let Self { staging, manifest } = self;
        let (dir, cut) = (staging.dir, manifest.cut);
        let to = dir.checkpoint_dir(cut).map_err(CommitError::not_done)?;
        let mut unknown = None;
        for _ in 0..RENAME_TRIES {
            let error = match dir.storage.rename(&staging.path, &to).await {
                Ok(()) => return Ok(StoredCheckpoint { dir: to, manifest }),
                Err(WriteError::NotDone(error))
                    if unknown.is_none() && !error.is_exists() && !error.is_not_found() =>
                {
                    return Err(CommitError::not_done(error));
                }
                Err(error) => StorageError::from(error),
            };
            // Unknown, or the name is taken (perhaps by an earlier attempt whose response was lost), or the staging
            // directory is missing (perhaps renamed).
            match final_of(dir, cut, salt).await {
                Ok(Final::Ours(checkpoint)) => return Ok(*checkpoint),
                Ok(Final::Theirs) => return Err(theirs(cut)),
                Ok(Final::Absent) => match dir.storage.stat(&staging.path).await {
                    Ok(_) => {}
                    Err(gone) if gone.is_not_found() => {
                        // Absent under both names: it may have been renamed between the two look-ups.
                        return already(dir, cut, salt).await;
                    }
                    Err(_) => {}
                },
                Err(_) => {}
            }
            unknown = Some(error);
        }
        let error =
            unknown.unwrap_or_else(|| StorageError::new(Op::Rename, dir.show(&to), Reason::Other));
        Err(CommitError::Unknown(error.into()))
    }
}
