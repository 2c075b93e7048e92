//! Retention: deletes old checkpoints and orphans.
//!
//! A wrong deletion loses a model; a failed deletion only leaks space. Therefore:
//! - A checkpoint is deleted only if enough newer complete checkpoints exist. They are checked right before.
//! - A checkpoint is first renamed to a trash name and then deleted. No process sees part of a checkpoint under the name of
//!   a complete one.
//! - The deleting process reads the claims again between the rename and the deletion. A claiming process checks after its
//!   claim that its base still exists. In every order of these four steps, either the deleting process sees the claim and
//!   restores the checkpoint, or the claiming process sees that it is missing and chooses another one.

use heddle_protocol::ids::{CutId, Generation};
use tracing::{info, warn};
use uuid::Uuid;

use super::CheckpointError;
use super::files::Depth;
use super::layout::{STAGING, StagingEntry, generation_of, old_name, staged_of, trash_name};
use super::lineage::Lineage;
use super::root::DirRoot;
use crate::error::{StorageError, WriteError, chain};
use crate::path::StorePath;
use crate::store::EntryKind;

/// Complete checkpoints that always remain.
const KEEP_MIN: usize = 2;

/// Result of a retention.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Swept {
    /// Deleted checkpoints.
    pub checkpoints: Vec<CutId>,
    /// Number of deleted staging directories and other orphans.
    pub orphans: usize,
}

/// Deletes checkpoints older than the newest `keep` complete ones (at least two remain), those outside the lineage, and
/// orphans; only of generations not above `own`, which must be the highest claim. Never deletes those in `held`.
///
/// # Errors
/// `Fenced` if `own` is not the highest claim; errors of the storage. The next call deletes what remained.
pub(super) async fn retain(
    root: &DirRoot,
    keep: usize,
    own: Generation,
    held: &[CutId],
) -> Result<Swept, CheckpointError> {
    root.check_highest(own).await?;
    let lineage = root.lineage().await?;
    let mut swept = Swept::default();
    for cut in superfluous(root, keep, own, held, &lineage).await? {
        if remove_checked(root, cut, own).await? {
            swept.checkpoints.push(cut);
        }
    }
    swept.orphans = delete_orphans(root, own).await?;
    Ok(swept)
}

/// The checkpoints that may be deleted.
async fn superfluous(
    root: &DirRoot,
    keep: usize,
    own: Generation,
    held: &[CutId],
    lineage: &Lineage,
) -> Result<Vec<CutId>, CheckpointError> {
    let keep = keep.max(KEEP_MIN);
    let (mut complete, mut gone) = (0, Vec::new());
    for cut in root.names().await?.into_iter().rev().filter(|cut| cut.generation <= own) {
        if held.contains(&cut) {
            complete += 1;
        } else if !lineage.holds(cut) || complete >= keep {
            gone.push(cut);
        } else {
            match root.load(cut, Depth::Shallow).await {
                Ok(_) => complete += 1,
                // Damaged ones do not count as kept, and stay as long as fewer than `keep` newer ones are complete.
                Err(error) if error.is_damage() => {
                    warn!(%cut, %error, "damaged_checkpoint_kept")
                }
                // A checkpoint that cannot be checked now, and all older ones, are checked again by the next call.
                Err(error) => return Err(error),
            }
        }
    }
    // Also outside the lineage: nothing is deleted before a complete checkpoint exists.
    if complete < KEEP_MIN {
        gone.clear();
    }
    gone.reverse();
    Ok(gone)
}

/// Renames one checkpoint to the trash, reads the claims again, and deletes it. Returns whether this call deleted it.
async fn remove_checked(
    root: &DirRoot,
    cut: CutId,
    own: Generation,
) -> Result<bool, CheckpointError> {
    let from = root.checkpoint_dir(cut)?;
    let Some(trash) = to_trash(root, cut, own).await? else {
        return Ok(false);
    };
    if let Err(error) = root.check_highest(own).await {
        // Another process may continue from it: rename it back. If that fails too, it is complete in the trash, and
        // the new owner finds its base missing and chooses another.
        let back = root.storage.rename(&trash, &from).await;
        warn!(%cut, restored = back.is_ok(), "checkpoint_not_deleted_directory_claimed");
        return Err(error);
    }
    delete_tree(root, &trash).await?;
    Ok(true)
}

/// Renames a checkpoint to a name that no process reads. `None` if it no longer exists.
async fn to_trash(
    root: &DirRoot,
    cut: CutId,
    own: Generation,
) -> Result<Option<StorePath>, CheckpointError> {
    let staging = root.under(&[STAGING, &own.to_string()])?;
    root.make(&staging).await?;
    let trash = staging.join(&trash_name(cut, Uuid::new_v4())).map_err(StorageError::from)?;
    match root.storage.rename(&root.checkpoint_dir(cut)?, &trash).await {
        Ok(()) => Ok(Some(trash)),
        Err(WriteError::NotDone(error)) if error.is_not_found() => Ok(None),
        // Only this process uses the trash's name: if it exists, the rename took effect.
        Err(error) => match root.storage.stat(&trash).await {
            Ok(_) => Ok(Some(trash)),
            Err(_) => Err(StorageError::from(error).into()),
        },
    }
}

/// Deletes a directory that no process reads. One in which a process still has a file open (NFS keeps its name) stays until
/// the next retention.
pub(super) async fn delete_tree(root: &DirRoot, path: &StorePath) -> Result<(), CheckpointError> {
    match root.storage.delete_dir(path).await {
        Ok(()) => Ok(()),
        Err(error) if error.error().is_not_found() => Ok(()),
        Err(error) if error.error().is_not_empty() => {
            info!(error = chain(error.error()), "folder_left_for_the_next_retention");
            Ok(())
        }
        Err(error) => Err(StorageError::from(error).into()),
    }
}

/// Deletes orphans: all staging of generations below `own`, probes that saw no claim above them, and of `own` the trash
/// and cuts below a committed one. Returns their number. Does not disturb a probe that saw the claim of `own`: its
/// process may be about to take over.
async fn delete_orphans(root: &DirRoot, own: Generation) -> Result<usize, CheckpointError> {
    let newest_own = root.names().await?.into_iter().rfind(|cut| cut.generation == own);
    let staging = root.at(STAGING)?;
    let own_staging = root.under(&[STAGING, &own.to_string()])?;
    root.make(&own_staging).await?;
    for entry in root.children(&staging).await? {
        if entry.kind != EntryKind::Dir {
            continue;
        }
        let aside = match (generation_of(entry.name()), staged_of(entry.name())) {
            (Some(old), _) if old < own => old_name(old, Uuid::new_v4()),
            (None, Some(StagingEntry::Probe(seen))) if seen < Some(own) => entry.name().to_owned(),
            _ => continue,
        };
        // Renamed in one step first. An owner that is still alive then fails to commit what is being deleted, and
        // finds nothing of its probe rather than a part.
        let aside = own_staging.join(&aside).map_err(StorageError::from)?;
        root.check_highest(own).await?;
        match root.storage.rename(&entry.path, &aside).await {
            Ok(()) => {}
            Err(error) if error.error().is_not_found() => {}
            Err(error) => return Err(StorageError::from(error).into()),
        }
    }
    delete_own_orphans(root, &own_staging, newest_own).await
}

async fn delete_own_orphans(
    root: &DirRoot,
    dir: &StorePath,
    newest: Option<CutId>,
) -> Result<usize, CheckpointError> {
    let mut swept = 0;
    for entry in root.children(dir).await? {
        let orphan = match staged_of(entry.name()) {
            // Cuts are opened in sequence, so one below a committed cut is closed.
            Some(StagingEntry::Cut(number)) => newest.is_some_and(|newest| number <= newest.number),
            Some(StagingEntry::Trash(_) | StagingEntry::Old(_) | StagingEntry::Probe(_)) => true,
            None => false,
        };
        if orphan && entry.kind == EntryKind::Dir {
            delete_tree(root, &entry.path).await?;
            swept += 1;
        }
    }
    Ok(swept)
}

/// Deletes one checkpoint at a user's request. Rejects the newest two complete ones of the lineage. The caller ensures
/// that no job runs on this directory.
/// # Errors
/// `Unknown`, `Kept`, errors of the storage.
pub(super) async fn remove(root: &DirRoot, cut: CutId) -> Result<(), CheckpointError> {
    let lineage = root.lineage().await?;
    if !root.names().await?.contains(&cut) {
        return Err(CheckpointError::Unknown { dir: root.show(&root.path), cut });
    }
    let mut newest = Vec::new();
    for other in root.names().await?.into_iter().rev().filter(|other| lineage.holds(*other)) {
        match root.load(other, Depth::Shallow).await {
            Ok(_) => newest.push(other),
            Err(error) if error.is_damage() => {}
            Err(error) => return Err(error),
        }
        if newest.len() == KEEP_MIN {
            break;
        }
    }
    if newest.contains(&cut) {
        return Err(CheckpointError::Kept { cut });
    }
    let own = lineage.highest().unwrap_or(cut.generation);
    match to_trash(root, cut, own).await? {
        Some(trash) => delete_tree(root, &trash).await,
        None => Err(CheckpointError::Unknown { dir: root.show(&root.path), cut }),
    }
}
