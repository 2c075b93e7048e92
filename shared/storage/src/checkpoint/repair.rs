//! Repair: good copies take the place of bad ones.
//!
//! ```text
//! source ──▶ .staging/g1/c4-<salt>/shard-….ckpt, its sidecar      durable, MD5 as in the manifest
//! bad file and sidecar ──▶ damaged/files-g1-c4-<uuid>/            never deleted
//! staged file, then sidecar ──▶ g1-c4/shard-….ckpt                a rename that replaces nothing
//! ```
//!
//! After each step another repair may begin again: the source is still there, and staged files are only drafts. The
//! directory's next owner deletes drafts that remain (`remove`).

use heddle_protocol::ids::{CutId, Generation, ShardId};
use heddle_protocol::manifest::{Manifest, ShardFile};
use uuid::Uuid;

use super::files::Depth;
use super::layout::{DAMAGED, MANIFEST, damaged_files_name};
use super::root::DirRoot;
use super::shard_group::{CheckedCopy, CopyState, ShardGroup, group, manifest_of};
use super::{CheckpointError, Damage, commit};
use crate::error::{StorageError, WriteError, chain};
use crate::path::StorePath;
use crate::sidecar::{sha256_name, sidecar_line, sidecar_name};
use crate::store::{Mode, Storage};
use crate::summed::{SummedWriter, md5_of, write_whole};

/// What a repair may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepairMode {
    /// Only report what it would do.
    DryRun,
    /// Replace, while this is the highest claim.
    Replace {
        /// `None`: no process has claimed the directory.
        own: Option<Generation>,
    },
}

/// A file that was replaced, or would be.
#[derive(Debug)]
pub struct ReplacedFile {
    /// The shard; `None` for the manifest.
    pub shard: Option<ShardId>,
    /// Name of the file.
    pub file: String,
    /// What was wrong with it.
    pub was: String,
    /// The copy that takes its place.
    pub source: String,
}

/// A shard without a good copy.
#[derive(Debug)]
pub struct LostShard {
    /// The shard.
    pub shard: ShardId,
    /// Its copies, each with its damage.
    pub copies: Vec<String>,
}

/// Result of a repair.
#[derive(Debug)]
pub struct Repair {
    /// The checkpoint.
    pub cut: CutId,
    /// Files that were replaced, or would be.
    pub replaced: Vec<ReplacedFile>,
    /// Shards that cannot be repaired.
    pub lost: Vec<LostShard>,
    /// Where the bad files are now, as a user types it; `None` if none was moved.
    pub set_aside: Option<String>,
}

impl Repair {
    /// One sentence for each replaced file and each lost shard.
    pub fn texts(&self) -> Vec<String> {
        let cut = self.cut;
        let aside = match &self.set_aside {
            Some(dir) => format!("; the bad file is in {dir}"),
            None => String::new(),
        };
        let replaced = self.replaced.iter().map(|file| {
            let ReplacedFile { file, was, source, .. } = file;
            format!("checkpoint {cut}: {file} ({was}) is replaced by {source}{aside}")
        });
        let lost = self.lost.iter().map(|lost| {
            let LostShard { shard, copies } = lost;
            format!("checkpoint {cut}: shard {shard} has no good copy ({})", copies.join("; "))
        });
        replaced.chain(lost).collect()
    }
}

/// Replaces bad copies of a checkpoint, of all shards or of one, by good ones from the directory or its mirrors.
///
/// # Errors
/// `Fenced` if another process has claimed the directory meanwhile; `Storage` if a shard has no good copy and one cannot
/// be read at the moment; errors as of the manifest.
pub(super) async fn repair(
    root: &DirRoot,
    cut: CutId,
    only: Option<ShardId>,
    mode: RepairMode,
) -> Result<Repair, CheckpointError> {
    let (manifest, bad_manifest) = manifest_of(root, cut).await?;
    let mut work = RepairWork { root, manifest: &manifest, mode, aside: None, staging: None };
    let mut repair = Repair { cut, replaced: Vec::new(), lost: Vec::new(), set_aside: None };
    work.drop_drafts().await?;
    if let Some(error) = bad_manifest {
        work.replace_manifest().await?;
        repair.replaced.push(ReplacedFile {
            shard: None,
            file: MANIFEST.to_owned(),
            was: chain(&error),
            source: "the manifest of a mirror".to_owned(),
        });
    }
    for file in &manifest.shards {
        if only.is_some_and(|only| only != file.shard) {
            continue;
        }
        let group = group(root, &manifest, file, Depth::Full).await?;
        if !group.is_whole() {
            work.shard(file, group, &mut repair).await?;
        }
    }
    work.drop_drafts().await?;
    repair.set_aside = work.aside.map(|dir| root.show(&dir));
    Ok(repair)
}

/// A repair under way.
struct RepairWork<'a> {
    root: &'a DirRoot,
    manifest: &'a Manifest,
    mode: RepairMode,
    /// Directory of the files that were set aside.
    aside: Option<StorePath>,
    staging: Option<StorePath>,
}

impl RepairWork<'_> {
    /// Fails unless `own` is the highest claim.
    async fn check_claims(&self, own: Option<Generation>) -> Result<(), CheckpointError> {
        let highest = self.root.claimed().await?.last().copied();
        match highest {
            Some(highest) if Some(highest) != own => Err(CheckpointError::Fenced {
                dir: self.root.show(&self.root.path),
                own: own.unwrap_or_default(),
                highest,
            }),
            _ => Ok(()),
        }
    }

    async fn drop_drafts(&mut self) -> Result<(), CheckpointError> {
        self.staging = None;
        match self.mode {
            RepairMode::DryRun => Ok(()),
            RepairMode::Replace { .. } => {
                commit::discard(self.root, self.manifest.cut, self.manifest.salt).await
            }
        }
    }

    /// Replaces the bad copies of one shard.
    async fn shard(
        &mut self,
        file: &ShardFile,
        group: ShardGroup,
        repair: &mut Repair,
    ) -> Result<(), CheckpointError> {
        let Some((place, from, source)) = self.source(file, &group).await? else {
            let mut unread = None;
            let mut copies = Vec::new();
            for copy in group.copies {
                copies.push(described(&copy));
                if let CopyState::Unread(error) = copy.state {
                    unread.get_or_insert(error);
                }
            }
            repair.lost.push(LostShard { shard: file.shard, copies });
            return unread.map_or(Ok(()), Err);
        };
        for bad in group.copies {
            // A copy that cannot be read now may be good.
            let keeps = bad.mirror.is_some() || matches!(bad.state, CopyState::Unread(_));
            if keeps || bad.state.is_good() {
                continue;
            }
            let replaced = ReplacedFile {
                shard: Some(file.shard),
                file: bad.copy.file.clone(),
                was: described(&bad),
                source: source.clone(),
            };
            self.replace(&file.alone(bad.copy), &place, &from).await?;
            repair.replaced.push(replaced);
        }
        Ok(())
    }

    /// The storage and the path of a copy with the right bytes, and its name for messages. A file whose sidecar alone is
    /// wrong has them too.
    async fn source(
        &self,
        file: &ShardFile,
        group: &ShardGroup,
    ) -> Result<Option<(DirRoot, StorePath, String)>, CheckpointError> {
        let good = group.copies.iter().filter(|copy| copy.state.is_good());
        let sidecar_only = group.copies.iter().filter(|copy| {
            let error = copy.state.error();
            matches!(error, Some(CheckpointError::Damaged { damage: Damage::Sidecar(_), .. }))
        });
        for copy in good.chain(sidecar_only) {
            let place = match copy.mirror {
                None => self.root,
                Some(at) => match self.root.mirrors.get(at) {
                    Some(mirror) => mirror,
                    None => continue,
                },
            };
            let dir = place.checkpoint_dir(self.manifest.cut)?;
            let path = dir.join(&copy.copy.file).map_err(StorageError::from)?;
            let name = format!("{}/{}", copy.dir, copy.copy.file);
            if copy.state.is_good() {
                return Ok(Some((place.clone(), path, name)));
            }
            match md5_of(&*place.storage, &path).await {
                Ok(sum) if sum == file.md5 => return Ok(Some((place.clone(), path, name))),
                Ok(_) => {}
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    async fn replace(
        &mut self,
        bad: &ShardFile,
        place: &DirRoot,
        from: &StorePath,
    ) -> Result<(), CheckpointError> {
        let RepairMode::Replace { own } = self.mode else {
            return Ok(());
        };
        let draft = self.staging().await?.join(&bad.file).map_err(StorageError::from)?;
        copy_file(&*place.storage, from, &*self.root.storage, &draft, bad).await?;
        self.check_claims(own).await?;
        self.swap(&names_of(bad)).await
    }

    async fn replace_manifest(&mut self) -> Result<(), CheckpointError> {
        let RepairMode::Replace { own } = self.mode else {
            return Ok(());
        };
        let staging = self.staging().await?;
        let path = staging.join(MANIFEST).map_err(StorageError::from)?;
        let shown = self.root.show(&path);
        let content =
            self.manifest.to_json().map_err(|error| CheckpointError::of_manifest(&shown, error))?;
        let line = sidecar_line(crate::digest::sum_of(&content), MANIFEST);
        let sidecar = path.sibling(&sidecar_name(MANIFEST)).map_err(StorageError::from)?;
        for (path, content) in [(&path, content), (&sidecar, line.into_bytes())] {
            let storage = &*self.root.storage;
            write_whole(storage, path, Mode::FILE, content.into())
                .await
                .map_err(StorageError::from)?;
        }
        self.check_claims(own).await?;
        self.swap(&[MANIFEST.to_owned(), sidecar_name(MANIFEST)]).await
    }

    async fn staging(&mut self) -> Result<StorePath, CheckpointError> {
        if let Some(staging) = &self.staging {
            return Ok(staging.clone());
        }
        let staging = commit::stage(self.root, self.manifest.cut, self.manifest.salt).await?;
        self.staging = Some(staging.clone());
        Ok(staging)
    }

    async fn aside(&mut self) -> Result<StorePath, CheckpointError> {
        if let Some(aside) = &self.aside {
            return Ok(aside.clone());
        }
        self.root.make(&self.root.at(DAMAGED)?).await?;
        let name = damaged_files_name(self.manifest.cut, Uuid::new_v4());
        let aside = self.root.under(&[DAMAGED, &name])?;
        self.root.make(&aside).await?;
        self.aside = Some(aside.clone());
        Ok(aside)
    }

    /// Moves a bad file and its sidecars aside, and the staged ones to their names.
    async fn swap(&mut self, names: &[String]) -> Result<(), CheckpointError> {
        let (aside, staging) = (self.aside().await?, self.staging().await?);
        let place = self.root.checkpoint_dir(self.manifest.cut)?;
        for name in names {
            self.rename(&place, &aside, name, true).await?;
        }
        for name in names {
            self.rename(&staging, &place, name, false).await?;
        }
        Ok(())
    }

    async fn rename(
        &self,
        from: &StorePath,
        to: &StorePath,
        name: &str,
        may_be_missing: bool,
    ) -> Result<(), CheckpointError> {
        let from = from.join(name).map_err(StorageError::from)?;
        let to = to.join(name).map_err(StorageError::from)?;
        let storage = &*self.root.storage;
        match storage.rename(&from, &to).await {
            Ok(()) => Ok(()),
            Err(WriteError::NotDone(error)) if may_be_missing && error.is_not_found() => Ok(()),
            Err(WriteError::NotDone(error)) => Err(error.into()),
            // Only this process uses the name in the staging directory or the directory of bad files.
            Err(WriteError::Unknown(error)) => match storage.stat(&from).await {
                Err(gone) if gone.is_not_found() => Ok(()),
                _ => Err(error.into()),
            },
        }
    }
}

fn described(copy: &CheckedCopy) -> String {
    match copy.state.error() {
        Some(error) => chain(error),
        None => format!("{}/{} is {}", copy.dir, copy.copy.file, copy.state.word()),
    }
}

/// The names of a shard's file and of its sidecars.
pub(super) fn names_of(file: &ShardFile) -> Vec<String> {
    let mut names = vec![file.file.clone(), sidecar_name(&file.file)];
    names.extend(file.sha256.map(|_| sha256_name(&file.file)));
    names
}

/// Copies one shard file with its sidecars. The copy has the name of `path` and the MD5 of `expected`.
///
/// # Errors
/// Errors of both storages; `Damaged` if the source has other bytes. What was written is then useless.
pub(super) async fn copy_file(
    storage: &dyn Storage,
    from: &StorePath,
    to: &dyn Storage,
    path: &StorePath,
    expected: &ShardFile,
) -> Result<(), CheckpointError> {
    let mut reader = storage.open(from, 0).await?;
    let mut writer = SummedWriter::create_sized(to, path, Mode::FILE, expected.bytes).await?;
    if expected.sha256.is_some() {
        writer = writer.with_sha256();
    }
    while let Some(chunk) = reader.next().await? {
        writer.write(chunk).await?;
    }
    let written = writer.finish(to).await?;
    let damage = match () {
        () if written.bytes != expected.bytes => {
            Damage::Length { expected: expected.bytes, found: written.bytes }
        }
        () if written.md5 != expected.md5 => {
            Damage::Sum { expected: expected.md5, found: written.md5 }
        }
        () => match (expected.sha256, written.sha256) {
            (Some(expected), Some(found)) if expected != found => {
                Damage::StrongSum { expected, found }
            }
            _ => return Ok(()),
        },
    };
    Err(CheckpointError::Damaged { file: storage.show(from), damage })
}
