//! A checkpoint directory that is known to be ours, and the checkpoints in it.

use std::sync::Arc;

use bytes::Bytes;
use heddle_protocol::ids::{CutId, Generation};
use heddle_protocol::manifest::{MANIFEST_BYTES_MAX, Manifest};
use serde::{Deserialize, Serialize};

use super::files::{DirEntries, check_shards};
use super::layout::{
    CLAIMS, DAMAGED, JOURNAL, MANIFEST, MARKER, STAGING, cut_of, generation_of,
    is_hidden_probe_name,
};
use super::{CheckpointError, ClaimRecord, Damage, Lineage};
use crate::digest::sum_of;
use crate::error::{Reason, StorageError, WriteError};
use crate::path::StorePath;
use crate::sidecar::{SIDECAR_BYTES_MAX, SidecarError, read_sidecar, sidecar_name};
use crate::store::{Entry, Kind, Mode, Storage};
use crate::summed::{is_draft_of, publish_small};
use crate::{Location, check_place, make_dirs, read_small, try_place};

/// Longest marker or claim that is read.
const SMALL_BYTES_MAX: usize = 64 << 10;
/// Version of the directory's layout.
const LAYOUT_VERSION: u32 = 1;

/// Content of the marker file.
#[derive(Serialize, Deserialize)]
struct Marker {
    format_version: u32,
    made_by: String,
}

/// How thoroughly a checkpoint is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// The manifest and its sum; every shard file's presence and length; every sidecar's content.
    /// Costs a few calls per shard.
    Shallow,
    /// All of that, and every file's sum and header: reads every byte.
    Full,
}

/// A complete checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    /// Its directory.
    pub dir: StorePath,
    /// What is in it.
    pub manifest: Manifest,
}

/// A checkpoint directory: where a job's checkpoints, claims and journal are.
#[derive(Debug, Clone)]
pub struct CheckpointDir {
    pub(super) storage: Arc<dyn Storage>,
    pub(super) root: StorePath,
}

impl CheckpointDir {
    /// Opens a job's directory for writing. One that is missing or empty is made and marked as ours
    /// (mode 0700); then the store is probed.
    ///
    /// # Errors
    /// `Foreign` when it holds things and no marker, `Newer` when a later version made it, `Storage`
    /// when it cannot be written or the store breaks a promise.
    pub async fn open_or_create(
        storage: Arc<dyn Storage>,
        root: StorePath,
    ) -> Result<Self, CheckpointError> {
        check_place(&*storage, &root).await?;
        // What lies above holds nothing of ours; a model beside the checkpoints may be for others too.
        if let Some(above) = root.parent() {
            make_dirs(&*storage, &above, storage.default_mode().of_dir()).await?;
        }
        make_dirs(&*storage, &root, Mode::DIR).await?;
        let dir = Self { storage, root };
        if !dir.is_marked().await? {
            dir.mark().await?;
        }
        for name in [CLAIMS, JOURNAL, STAGING, DAMAGED] {
            dir.make(&dir.at(name)?).await?;
        }
        dir.probe().await?;
        Ok(dir)
    }

    /// Finds out, for a person who waits, whether [`open_or_create`](Self::open_or_create) would succeed: looks
    /// at what is there, and where `writing` is allowed tries the store beside it, leaving nothing.
    ///
    /// # Errors
    /// As `open_or_create`.
    pub async fn rehearse(
        storage: Arc<dyn Storage>,
        root: StorePath,
        writing: bool,
    ) -> Result<(), CheckpointError> {
        let at = check_place(&*storage, &root).await?;
        let dir = Self { storage, root };
        if at == dir.root {
            if dir.is_marked().await? {
                let staging = dir.at(STAGING)?;
                if writing && dir.storage.stat(&staging).await.is_ok() {
                    return dir.probe().await;
                }
            } else {
                dir.check_empty().await?;
            }
        }
        if writing {
            try_place(&*dir.storage, &dir.root).await?;
        }
        Ok(())
    }

    /// Opens a directory for looking at it.
    ///
    /// # Errors
    /// `NotOurs` when it has no marker, `Newer` when a later version made it.
    pub async fn open(storage: Arc<dyn Storage>, root: StorePath) -> Result<Self, CheckpointError> {
        let dir = Self { storage, root };
        if dir.is_marked().await? {
            Ok(dir)
        } else {
            Err(CheckpointError::NotOurs { dir: dir.show(&dir.root) })
        }
    }

    /// A directory that this process has opened before, without looking again.
    pub fn existing(storage: Arc<dyn Storage>, root: StorePath) -> Self {
        Self { storage, root }
    }

    async fn is_marked(&self) -> Result<bool, CheckpointError> {
        let path = self.at(MARKER)?;
        let content = match read_small(&*self.storage, &path, SMALL_BYTES_MAX).await {
            Ok(content) => content,
            Err(error) if error.is_not_found() => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let marker: Marker = self.parse(&path, &content)?;
        if marker.format_version > LAYOUT_VERSION {
            let (file, found) = (self.show(&path), marker.format_version);
            return Err(CheckpointError::Newer { file, found, newest: LAYOUT_VERSION });
        }
        Ok(true)
    }

    /// Refuses a directory that holds what is not ours; drafts of a marker and probes do not count. Returns
    /// whether it was marked meanwhile.
    async fn check_empty(&self) -> Result<bool, CheckpointError> {
        let listed = self.storage.list(&self.root).await?;
        let mut names: Vec<_> = listed
            .iter()
            .map(|entry| entry.name().to_owned())
            .filter(|name| !is_hidden_probe_name(name) && !is_draft_of(name, MARKER))
            .collect();
        // Another process may have marked it between the two looks.
        if names.iter().any(|name| name == MARKER) && self.is_marked().await? {
            return Ok(true);
        }
        if names.is_empty() {
            return Ok(false);
        }
        names.truncate(5);
        Err(CheckpointError::Foreign { dir: self.show(&self.root), names })
    }

    async fn mark(&self) -> Result<(), CheckpointError> {
        if self.check_empty().await? {
            return Ok(());
        }
        let marker = Marker {
            format_version: LAYOUT_VERSION,
            made_by: concat!("heddle ", env!("CARGO_PKG_VERSION")).to_owned(),
        };
        let mut content = serde_json::to_vec(&marker).expect("two plain fields are JSON");
        content.push(b'\n');
        match publish_small(&*self.storage, &self.at(MARKER)?, Bytes::from(content)).await {
            Ok(()) => Ok(()),
            // Two jobs at once; which of them may go on is decided by the claims.
            Err(WriteError::NotDone(error)) if error.is_exists() => Ok(()),
            Err(error) => Err(StorageError::from(error).into()),
        }
    }

    /// The storage it lies on.
    pub fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    /// The directory itself.
    pub fn root(&self) -> &StorePath {
        &self.root
    }

    /// A path in it, as a person would type it.
    pub fn show(&self, path: &StorePath) -> String {
        self.storage.show(path)
    }

    /// Where the segments of a generation's journal are.
    ///
    /// # Errors
    /// When the path would be too long.
    pub fn journal_dir(&self, generation: Generation) -> Result<StorePath, CheckpointError> {
        self.under(&[JOURNAL, &generation.to_string()])
    }

    /// The generations that have a journal, lowest first.
    ///
    /// # Errors
    /// What the storage says.
    pub async fn journals(&self) -> Result<Vec<Generation>, CheckpointError> {
        let children = self.children(&self.at(JOURNAL)?).await?;
        let mut found: Vec<_> = children
            .iter()
            .filter(|entry| entry.kind == Kind::Dir)
            .filter_map(|entry| generation_of(entry.name()))
            .collect();
        found.sort_unstable();
        Ok(found)
    }

    /// The generations that were claimed, lowest first.
    ///
    /// # Errors
    /// What the storage says.
    pub async fn claimed(&self) -> Result<Vec<Generation>, CheckpointError> {
        let children = self.children(&self.at(CLAIMS)?).await?;
        let mut found: Vec<_> =
            children.iter().filter_map(|entry| generation_of(entry.name())).collect();
        found.sort_unstable();
        Ok(found)
    }

    /// Reads one claim.
    ///
    /// # Errors
    /// `Damaged` when it is none; `Newer`; `Storage`.
    pub async fn claim(&self, generation: Generation) -> Result<ClaimRecord, CheckpointError> {
        #[derive(Deserialize)]
        struct Version {
            format_version: u32,
        }
        let path = self.under(&[CLAIMS, &generation.to_string()])?;
        let content = read_small(&*self.storage, &path, SMALL_BYTES_MAX).await?;
        let version: Version = self.parse(&path, &content)?;
        if version.format_version > 1 {
            let (file, found) = (self.show(&path), version.format_version);
            return Err(CheckpointError::Newer { file, found, newest: 1 });
        }
        let claim: ClaimRecord = self.parse(&path, &content)?;
        if claim.generation != generation {
            let damage = Damage::Content(format!("it speaks of {}", claim.generation));
            return Err(CheckpointError::Damaged { file: self.show(&path), damage });
        }
        Ok(claim)
    }

    /// Claims a generation: the record appears under its name wholly or not at all, and replaces
    /// nothing. Returns whether it is ours now; if not, somebody else has that generation.
    ///
    /// # Errors
    /// What the storage says. When the outcome is unknown it is looked up by our salt; it stays
    /// unknown only if that fails too, and then nothing may be done under this generation.
    pub async fn write_claim(&self, claim: &ClaimRecord) -> Result<bool, CheckpointError> {
        let path = self.under(&[CLAIMS, &claim.generation.to_string()])?;
        let mut content = serde_json::to_vec_pretty(claim).expect("plain fields are JSON");
        content.push(b'\n');
        match publish_small(&*self.storage, &path, Bytes::from(content)).await {
            Ok(()) => Ok(true),
            Err(WriteError::NotDone(error)) if error.is_exists() => Ok(false),
            Err(error) => Err(StorageError::from(error).into()),
        }
    }

    /// The lineage of the claims there are.
    ///
    /// # Errors
    /// When a claim that matters cannot be read.
    pub async fn lineage(&self) -> Result<Lineage, CheckpointError> {
        let claimed = self.claimed().await?;
        let highest = claimed.last().copied();
        self.lineage_from(highest, &claimed).await
    }

    /// The lineage that one of the claims makes, whatever was claimed after it.
    ///
    /// # Errors
    /// When a claim that matters cannot be read.
    pub async fn lineage_from(
        &self,
        from: Option<Generation>,
        claimed: &[Generation],
    ) -> Result<Lineage, CheckpointError> {
        let mut next = from;
        let mut bases = Vec::new();
        while let Some(generation) = next {
            let base = self.claim(generation).await?.base;
            bases.push((generation, base));
            // A copy of the directory without its old claims is as good as the original.
            next = base
                .map(|base| base.generation)
                .filter(|lower| *lower < generation && claimed.contains(lower));
        }
        Ok(Lineage::new(bases))
    }

    /// Refuses when somebody has claimed a generation above `own`.
    ///
    /// # Errors
    /// `Fenced`, or what the storage says.
    pub async fn check_highest(&self, own: Generation) -> Result<(), CheckpointError> {
        match self.claimed().await?.last() {
            Some(&highest) if highest > own => {
                Err(CheckpointError::Fenced { dir: self.show(&self.root), own, highest })
            }
            _ => Ok(()),
        }
    }

    /// Names of all checkpoints, complete or damaged, in no lineage or in it; oldest first.
    ///
    /// # Errors
    /// What the storage says.
    pub async fn names(&self) -> Result<Vec<CutId>, CheckpointError> {
        let children = self.storage.list(&self.root).await?;
        let mut found: Vec<_> = children
            .iter()
            .filter(|entry| entry.kind == Kind::Dir)
            .filter_map(|entry| cut_of(entry.name()))
            .collect();
        found.sort_unstable();
        Ok(found)
    }

    /// Where a checkpoint is.
    ///
    /// # Errors
    /// When the path would be too long.
    pub fn checkpoint_dir(&self, cut: CutId) -> Result<StorePath, CheckpointError> {
        self.at(&cut.to_string())
    }

    /// Reads and checks one checkpoint.
    ///
    /// # Errors
    /// `Unknown` when there is none of that name, `Damaged`, `Newer`, `Storage`.
    pub async fn load(&self, cut: CutId, depth: Depth) -> Result<Checkpoint, CheckpointError> {
        let dir = self.checkpoint_dir(cut)?;
        if let Err(error) = self.storage.stat(&dir).await {
            return Err(if error.is_not_found() {
                CheckpointError::Unknown { dir: self.show(&self.root), cut }
            } else {
                error.into()
            });
        }
        let checkpoint = Checkpoint::load(&*self.storage, &dir, depth).await?;
        if checkpoint.manifest.cut != cut {
            let file = self.show(&dir.join(MANIFEST).map_err(StorageError::from)?);
            let damage = Damage::Content(format!("it speaks of {}", checkpoint.manifest.cut));
            return Err(CheckpointError::Damaged { file, damage });
        }
        Ok(checkpoint)
    }

    pub(super) fn at(&self, name: &str) -> Result<StorePath, CheckpointError> {
        Ok(self.root.join(name).map_err(StorageError::from)?)
    }

    pub(super) fn under(&self, names: &[&str]) -> Result<StorePath, CheckpointError> {
        let mut path = self.root.clone();
        for name in names {
            path = path.join(name).map_err(StorageError::from)?;
        }
        Ok(path)
    }

    /// Makes a directory unless it is there.
    pub(super) async fn make(&self, path: &StorePath) -> Result<(), CheckpointError> {
        match self.storage.mkdir(path, Mode::DIR).await {
            Ok(()) => Ok(()),
            Err(WriteError::NotDone(error)) if error.is_exists() => Ok(()),
            Err(WriteError::NotDone(error)) => Err(error.into()),
            // A directory is the same whoever made it, so looking resolves it.
            Err(WriteError::Unknown(error)) => match self.storage.stat(path).await {
                Ok(entry) if entry.kind == Kind::Dir => Ok(()),
                _ => Err(error.into()),
            },
        }
    }

    /// The children of a directory; none when it is not there.
    pub(super) async fn children(&self, path: &StorePath) -> Result<Vec<Entry>, CheckpointError> {
        match self.storage.list(path).await {
            Ok(children) => Ok(children),
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }

    fn parse<T: serde::de::DeserializeOwned>(
        &self,
        path: &StorePath,
        content: &[u8],
    ) -> Result<T, CheckpointError> {
        serde_json::from_slice(content).map_err(|error| {
            let damage = Damage::Content(error.to_string());
            CheckpointError::Damaged { file: self.show(path), damage }
        })
    }
}

impl Checkpoint {
    /// Reads and checks the checkpoint in a directory, wherever that lies: a copy is as good as the
    /// original, since all names in it are relative.
    ///
    /// # Errors
    /// `Damaged`, `Newer`, `Storage`.
    pub async fn load(
        storage: &dyn Storage,
        dir: &StorePath,
        depth: Depth,
    ) -> Result<Self, CheckpointError> {
        let manifest = read_manifest(storage, dir).await?;
        let listed = DirEntries::new(storage.list(dir).await?);
        check_shards(storage, dir, &manifest.shards, &listed, depth).await?;
        Ok(Self { dir: dir.clone(), manifest })
    }

    /// Opens the checkpoint at a location such as `hdfs:///ctr/ckpt/g1-c4`.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub async fn at(
        location: &Location,
        depth: Depth,
    ) -> Result<(Arc<dyn Storage>, Self), CheckpointError> {
        let storage = crate::connect(location)?;
        let checkpoint = Self::load(&*storage, location.path(), depth).await?;
        Ok((storage, checkpoint))
    }
}

/// Reads a manifest and checks its sum and itself.
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
