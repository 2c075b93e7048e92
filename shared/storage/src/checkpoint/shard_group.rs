//! Copies that stand in for each other: a manifest lists them, and the same checkpoint in mirrors has them.
//!
//! A shard can be restored while a copy is good. Each copy is compared with the **manifest**, so a file that was
//! replaced together with its sidecar is detected. A copy of another cut or run is never used. One that cannot be read at
//! the moment is not damaged: if no other copy is good, the result is an error of the storage, and no older checkpoint is
//! used in its place.

use heddle_protocol::ids::{CutId, ShardId};
use heddle_protocol::manifest::{CutIdentity, Manifest, ShardCopy, ShardFile};
use tracing::warn;

use super::files::{Depth, check_content};
use super::load::{StoredCheckpoint, read_manifest};
use super::root::DirRoot;
use super::{CheckpointError, Damage};
use crate::error::{StorageError, chain};
use crate::path::StorePath;
use crate::shard_file::{ShardHeader, check_sidecar, name_other_version};
use crate::store::EntryKind;

/// State of one copy.
#[derive(Debug)]
pub enum CopyState {
    /// Every check passed. The header of the file where it was read.
    Good(Option<Box<ShardHeader>>),
    /// There is no such file.
    Missing,
    /// Another length, sum or sidecar than in the manifest.
    Damaged(CheckpointError),
    /// A file of another shard, cut, epoch or run.
    OtherVersion(CheckpointError),
    /// It cannot be read at the moment, or a later version wrote it.
    Unread(CheckpointError),
}

impl CopyState {
    fn of(result: Result<Option<ShardHeader>, CheckpointError>) -> Self {
        match result {
            Ok(header) => Self::Good(header.map(Box::new)),
            Err(CheckpointError::Damaged { damage: Damage::Missing, .. }) => Self::Missing,
            Err(error @ CheckpointError::Damaged { damage: Damage::OtherVersion { .. }, .. }) => {
                Self::OtherVersion(error)
            }
            Err(error @ CheckpointError::Damaged { .. }) => Self::Damaged(error),
            Err(error) => Self::Unread(error),
        }
    }

    /// Whether the copy may be used.
    pub fn is_good(&self) -> bool {
        matches!(self, Self::Good(_))
    }

    /// The word for it in listings.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Good(_) => "good",
            Self::Missing => "missing",
            Self::Damaged(_) => "damaged",
            Self::OtherVersion(_) => "other version",
            Self::Unread(_) => "unread",
        }
    }

    /// What is wrong with it beyond the word.
    pub fn error(&self) -> Option<&CheckpointError> {
        match self {
            Self::Good(_) | Self::Missing => None,
            Self::Damaged(error) | Self::OtherVersion(error) | Self::Unread(error) => Some(error),
        }
    }
}

/// One copy and its state.
#[derive(Debug)]
pub struct CheckedCopy {
    /// The copy, as the manifest lists it.
    pub copy: ShardCopy,
    /// The directory of its checkpoint, as a user types it.
    pub dir: String,
    /// The mirror that holds it, an index; `None`: the checkpoint directory.
    pub mirror: Option<usize>,
    /// Its state.
    pub state: CopyState,
}

/// The copies of one shard that stand in for each other.
#[derive(Debug)]
pub struct ShardGroup {
    /// The shard.
    pub shard: ShardId,
    /// Copies in the order in which a restore tries them: in the directory, then in each mirror.
    pub copies: Vec<CheckedCopy>,
}

impl ShardGroup {
    /// Whether the shard can be restored.
    pub fn is_restorable(&self) -> bool {
        self.copies.iter().any(|copy| copy.state.is_good())
    }

    /// Whether every copy of the directory itself is good.
    pub fn is_whole(&self) -> bool {
        self.copies.iter().all(|copy| copy.mirror.is_some() || copy.state.is_good())
    }
}

/// A copy that was passed over for another one.
#[derive(Debug)]
pub struct PassedOver {
    /// The checkpoint.
    pub cut: CutId,
    /// Why.
    pub error: CheckpointError,
}

/// Checks one copy in the directory of a checkpoint.
pub(super) async fn check_copy(
    root: &DirRoot,
    dir: &StorePath,
    file: &ShardFile,
    identity: &CutIdentity,
    depth: Depth,
) -> CopyState {
    let checked = match depth {
        Depth::Shallow => check_length(root, dir, file, identity).await.map(|()| None),
        // A missing file counts as missing, also where its sidecar is missing too.
        Depth::Full => match check_length(root, dir, file, identity).await {
            Err(error @ CheckpointError::Damaged { damage: Damage::Missing, .. }) => Err(error),
            _ => check_content(&*root.storage, dir, file, identity).await.map(Some),
        },
    };
    CopyState::of(checked)
}

async fn check_length(
    root: &DirRoot,
    dir: &StorePath,
    file: &ShardFile,
    identity: &CutIdentity,
) -> Result<(), CheckpointError> {
    let path = dir.join(&file.file).map_err(StorageError::from)?;
    let damage = match root.storage.stat(&path).await {
        Err(error) if error.is_not_found() => Some(Damage::Missing),
        Err(error) => return Err(error.into()),
        Ok(entry) if entry.kind != EntryKind::File => Some(Damage::NotAFile),
        Ok(entry) if entry.bytes != file.bytes => {
            Some(Damage::Length { expected: file.bytes, found: entry.bytes })
        }
        Ok(_) => None,
    };
    let error = match damage {
        Some(damage) => CheckpointError::Damaged { file: root.show(&path), damage },
        None => match check_sidecar(&*root.storage, dir, file).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        },
    };
    Err(name_other_version(&*root.storage, dir, file, identity, error).await)
}

/// The copies of one shard, here and in mirrors.
///
/// # Errors
/// A path is too long.
pub(super) async fn group(
    root: &DirRoot,
    manifest: &Manifest,
    file: &ShardFile,
    depth: Depth,
) -> Result<ShardGroup, CheckpointError> {
    let identity = manifest.identity();
    let mut group = ShardGroup { shard: file.shard, copies: Vec::new() };
    let mirrors = root.mirrors.iter().enumerate().map(|(at, mirror)| (Some(at), mirror));
    for (mirror, place) in std::iter::once((None, root)).chain(mirrors) {
        let dir = place.checkpoint_dir(manifest.cut)?;
        for copy in file.copies() {
            let alone = file.alone(copy.clone());
            let state = check_copy(place, &dir, &alone, &identity, depth).await;
            group.copies.push(CheckedCopy { copy, dir: place.show(&dir), mirror, state });
        }
    }
    Ok(group)
}

/// The manifest of a checkpoint in the directory, else the same one in a mirror, and then also the error of the directory's
/// manifest.
///
/// # Errors
/// See [`read_manifest`]; the error of the directory's own manifest if no mirror has it.
pub(super) async fn manifest_of(
    root: &DirRoot,
    cut: CutId,
) -> Result<(Manifest, Option<CheckpointError>), CheckpointError> {
    let own = named_manifest(root, cut).await;
    let error = match own {
        Err(error) if error.is_damage() && !root.mirrors.is_empty() => error,
        own => return own.map(|manifest| (manifest, None)),
    };
    // The claim names the process that committed the checkpoint, so a manifest of another run is not taken for it.
    let claim = root.claim(cut.generation).await?;
    for mirror in &root.mirrors {
        match named_manifest(mirror, cut).await {
            Ok(manifest) if manifest.salt == claim.salt && manifest.run == claim.run => {
                return Ok((manifest, Some(error)));
            }
            Ok(manifest) => {
                warn!(
                    %cut,
                    run = %manifest.run,
                    mirror = mirror.show(&mirror.path),
                    "manifest_of_another_run_in_mirror"
                );
            }
            Err(CheckpointError::Storage(unread)) if !unread.is_not_found() => {
                return Err(unread.into());
            }
            Err(error) => warn!(%cut, error = %chain(&error), "manifest_not_in_mirror"),
        }
    }
    Err(error)
}

/// The manifest in the directory of a checkpoint, which must name the checkpoint.
async fn named_manifest(root: &DirRoot, cut: CutId) -> Result<Manifest, CheckpointError> {
    let dir = root.checkpoint_dir(cut)?;
    let manifest = read_manifest(&*root.storage, &dir).await?;
    match manifest.cut == cut {
        true => Ok(manifest),
        false => {
            let damage = Damage::Content(format!("it must name {cut} (got {})", manifest.cut));
            Err(CheckpointError::Damaged { file: root.show(&dir), damage })
        }
    }
}

/// A checkpoint in which each shard has a good copy, here or in a mirror, and the copies that were passed over.
///
/// # Errors
/// See [`DirRoot::load`]: `Storage` if a shard has no good copy and one of its copies cannot be read at the moment.
pub(super) async fn load_usable(
    root: &DirRoot,
    cut: CutId,
    depth: Depth,
) -> Result<(StoredCheckpoint, Vec<PassedOver>), CheckpointError> {
    let error = match root.load(cut, depth).await {
        Ok(checkpoint) => return Ok((checkpoint, Vec::new())),
        Err(error) => error,
    };
    // Another copy may be good, also where one cannot be read at the moment.
    if !error.is_damage() && !matches!(error, CheckpointError::Storage(_)) {
        return Err(error);
    }
    let (manifest, other) = manifest_of(root, cut).await?;
    let has_copies = manifest.shards.iter().any(|file| !file.copies.is_empty());
    if !has_copies && root.mirrors.is_empty() {
        return Err(error);
    }
    let mut passed: Vec<PassedOver> =
        other.into_iter().map(|error| PassedOver { cut, error }).collect();
    for file in &manifest.shards {
        usable(group(root, &manifest, file, depth).await?, cut, &mut passed)?;
    }
    Ok((StoredCheckpoint { dir: root.checkpoint_dir(cut)?, manifest }, passed))
}

/// Adds the bad copies of the directory to `passed`, if one copy is good.
fn usable(
    group: ShardGroup,
    cut: CutId,
    passed: &mut Vec<PassedOver>,
) -> Result<(), CheckpointError> {
    let is_restorable = group.is_restorable();
    let (mut damaged, mut unread) = (None, None);
    for copy in group.copies {
        let error = match copy.state {
            CopyState::Good(_) => continue,
            CopyState::Missing => CheckpointError::Damaged {
                file: format!("{}/{}", copy.dir, copy.copy.file),
                damage: Damage::Missing,
            },
            CopyState::Unread(error) => {
                unread.get_or_insert(error);
                continue;
            }
            CopyState::Damaged(error) | CopyState::OtherVersion(error) => error,
        };
        if is_restorable && copy.mirror.is_none() {
            passed.push(PassedOver { cut, error });
        } else {
            damaged.get_or_insert(error);
        }
    }
    match (is_restorable, unread, damaged) {
        (false, Some(error), _) | (false, None, Some(error)) => Err(error),
        _ => Ok(()),
    }
}
