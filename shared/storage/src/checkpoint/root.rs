//! The files of a checkpoint directory, one call each: marker, claims, journals, and the names of checkpoints.

use std::sync::Arc;

use bytes::Bytes;
use heddle_protocol::ids::{CutId, Generation};
use serde::{Deserialize, Serialize};

use super::files::Depth;
use super::layout::{
    CLAIMS, JOURNAL, MANIFEST, MARKER, cut_of, generation_of, is_hidden_probe_name,
};
use super::lineage::{ClaimRecord, Lineage};
use super::load::StoredCheckpoint;
use super::{CheckpointError, Damage};
use crate::error::{StorageError, WriteError};
use crate::path::StorePath;
use crate::read_small;
use crate::store::{Entry, EntryKind, Mode, Storage};
use crate::summed::{is_draft_of, publish_small};

/// Largest marker or claim that is read.
const SMALL_BYTES_MAX: usize = 64 << 10;
/// Version of the directory's layout.
const LAYOUT_VERSION: u32 = 1;

/// Content of the marker file.
#[derive(Serialize, Deserialize)]
struct Marker {
    format_version: u32,
    made_by: String,
}

/// A checkpoint directory: its storage and its path.
#[derive(Debug, Clone)]
pub(super) struct DirRoot {
    pub(super) storage: Arc<dyn Storage>,
    pub(super) path: StorePath,
    /// Directories with copies of its checkpoints, from which single files are taken.
    pub(super) mirrors: Vec<DirRoot>,
}

impl DirRoot {
    pub(super) async fn is_marked(&self) -> Result<bool, CheckpointError> {
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

    /// Rejects a directory with foreign content; drafts of a marker and probes do not count. Returns whether another
    /// process has marked it in the meantime.
    pub(super) async fn check_empty(&self) -> Result<bool, CheckpointError> {
        let listed = self.storage.list(&self.path).await?;
        let mut names: Vec<_> = listed
            .iter()
            .map(|entry| entry.name().to_owned())
            .filter(|name| !is_hidden_probe_name(name) && !is_draft_of(name, MARKER))
            .collect();
        // Another process may have marked it between the two calls.
        if names.iter().any(|name| name == MARKER) && self.is_marked().await? {
            return Ok(true);
        }
        if names.is_empty() {
            return Ok(false);
        }
        names.truncate(5);
        Err(CheckpointError::Foreign { dir: self.show(&self.path), names })
    }

    pub(super) async fn mark(&self) -> Result<(), CheckpointError> {
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
            // Two jobs at once: the claims decide which of them continues.
            Err(WriteError::NotDone(error)) if error.is_exists() => Ok(()),
            Err(error) => Err(StorageError::from(error).into()),
        }
    }

    /// A path in the directory, as a user types it.
    pub(super) fn show(&self, path: &StorePath) -> String {
        self.storage.show(path)
    }

    /// Directory of a generation's journal.
    ///
    /// # Errors
    /// The path is too long.
    pub(super) fn journal_dir(&self, generation: Generation) -> Result<StorePath, CheckpointError> {
        self.under(&[JOURNAL, &generation.to_string()])
    }

    /// Generations with a journal, lowest first.
    ///
    /// # Errors
    /// Errors of the storage.
    pub(super) async fn journals(&self) -> Result<Vec<Generation>, CheckpointError> {
        let children = self.children(&self.at(JOURNAL)?).await?;
        let mut found: Vec<_> = children
            .iter()
            .filter(|entry| entry.kind == EntryKind::Dir)
            .filter_map(|entry| generation_of(entry.name()))
            .collect();
        found.sort_unstable();
        Ok(found)
    }

    /// Claimed generations, lowest first.
    ///
    /// # Errors
    /// Errors of the storage.
    pub(super) async fn claimed(&self) -> Result<Vec<Generation>, CheckpointError> {
        let children = self.children(&self.at(CLAIMS)?).await?;
        let mut found: Vec<_> =
            children.iter().filter_map(|entry| generation_of(entry.name())).collect();
        found.sort_unstable();
        Ok(found)
    }

    /// Reads one claim.
    ///
    /// # Errors
    /// `Damaged` if it does not parse; `Newer`; `Storage`.
    pub(super) async fn claim(
        &self,
        generation: Generation,
    ) -> Result<ClaimRecord, CheckpointError> {
        #[derive(Deserialize)]
        struct ClaimVersion {
            format_version: u32,
        }
        let path = self.under(&[CLAIMS, &generation.to_string()])?;
        let content = read_small(&*self.storage, &path, SMALL_BYTES_MAX).await?;
        let version: ClaimVersion = self.parse(&path, &content)?;
        if version.format_version > 1 {
            let (file, found) = (self.show(&path), version.format_version);
            return Err(CheckpointError::Newer { file, found, newest: 1 });
        }
        let claim: ClaimRecord = self.parse(&path, &content)?;
        if claim.generation != generation {
            let damage =
                Damage::Content(format!("it must name {generation} (got {})", claim.generation));
            return Err(CheckpointError::Damaged { file: self.show(&path), damage });
        }
        Ok(claim)
    }

    /// Claims a generation: the record appears under its name completely or not at all, and replaces nothing. Returns
    /// `false` if another process has that generation.
    ///
    /// # Errors
    /// Errors of the storage. An unknown outcome is resolved by reading the claim back. If that fails too, the caller must
    /// do nothing under this generation.
    pub(super) async fn write_claim(&self, claim: &ClaimRecord) -> Result<bool, CheckpointError> {
        let path = self.under(&[CLAIMS, &claim.generation.to_string()])?;
        let mut content = serde_json::to_vec_pretty(claim).expect("plain fields are JSON");
        content.push(b'\n');
        match publish_small(&*self.storage, &path, Bytes::from(content)).await {
            Ok(()) => Ok(true),
            Err(WriteError::NotDone(error)) if error.is_exists() => Ok(false),
            Err(error) => Err(StorageError::from(error).into()),
        }
    }

    /// The lineage of the present claims.
    ///
    /// # Errors
    /// A claim of the lineage cannot be read.
    pub(super) async fn lineage(&self) -> Result<Lineage, CheckpointError> {
        let claimed = self.claimed().await?;
        let highest = claimed.last().copied();
        self.lineage_from(highest, &claimed).await
    }

    /// The lineage of one claim, without later claims.
    ///
    /// # Errors
    /// A claim of the lineage cannot be read.
    pub(super) async fn lineage_from(
        &self,
        from: Option<Generation>,
        claimed: &[Generation],
    ) -> Result<Lineage, CheckpointError> {
        let mut next = from;
        let mut bases = Vec::new();
        while let Some(generation) = next {
            let base = self.claim(generation).await?.base;
            bases.push((generation, base));
            // A copy of the directory without its old claims is valid too.
            next = base
                .map(|base| base.generation)
                .filter(|lower| *lower < generation && claimed.contains(lower));
        }
        Ok(Lineage::new(bases))
    }

    /// Fails if another process has claimed a generation above `own`.
    ///
    /// # Errors
    /// `Fenced`, or errors of the storage.
    pub(super) async fn check_highest(&self, own: Generation) -> Result<(), CheckpointError> {
        match self.claimed().await?.last() {
            Some(&highest) if highest > own => {
                Err(CheckpointError::Fenced { dir: self.show(&self.path), own, highest })
            }
            _ => Ok(()),
        }
    }

    /// Names of all checkpoints, also damaged ones and those outside the lineage; oldest first.
    ///
    /// # Errors
    /// Errors of the storage.
    pub(super) async fn names(&self) -> Result<Vec<CutId>, CheckpointError> {
        let children = self.storage.list(&self.path).await?;
        let mut found: Vec<_> = children
            .iter()
            .filter(|entry| entry.kind == EntryKind::Dir)
            .filter_map(|entry| cut_of(entry.name()))
            .collect();
        found.sort_unstable();
        Ok(found)
    }

    /// Directory of a checkpoint.
    ///
    /// # Errors
    /// The path is too long.
    pub(super) fn checkpoint_dir(&self, cut: CutId) -> Result<StorePath, CheckpointError> {
        self.at(&cut.to_string())
    }

    /// Reads and checks one checkpoint.
    ///
    /// # Errors
    /// `Unknown` if there is none of that name, `Damaged`, `Newer`, `Storage`.
    pub(super) async fn load(
        &self,
        cut: CutId,
        depth: Depth,
    ) -> Result<StoredCheckpoint, CheckpointError> {
        let dir = self.checkpoint_dir(cut)?;
        if let Err(error) = self.storage.stat(&dir).await {
            return Err(if error.is_not_found() {
                CheckpointError::Unknown { dir: self.show(&self.path), cut }
            } else {
                error.into()
            });
        }
        let checkpoint = StoredCheckpoint::load(&*self.storage, &dir, depth).await?;
        if checkpoint.manifest.cut != cut {
            let file = self.show(&dir.join(MANIFEST).map_err(StorageError::from)?);
            let damage =
                Damage::Content(format!("it must name {cut} (got {})", checkpoint.manifest.cut));
            return Err(CheckpointError::Damaged { file, damage });
        }
        Ok(checkpoint)
    }

    pub(super) fn at(&self, name: &str) -> Result<StorePath, CheckpointError> {
        Ok(self.path.join(name).map_err(StorageError::from)?)
    }

    pub(super) fn under(&self, names: &[&str]) -> Result<StorePath, CheckpointError> {
        let mut path = self.path.clone();
        for name in names {
            path = path.join(name).map_err(StorageError::from)?;
        }
        Ok(path)
    }

    /// Creates a directory unless it exists.
    pub(super) async fn make(&self, path: &StorePath) -> Result<(), CheckpointError> {
        match self.storage.mkdir(path, Mode::DIR).await {
            Ok(()) => Ok(()),
            Err(WriteError::NotDone(error)) if error.is_exists() => Ok(()),
            Err(WriteError::NotDone(error)) => Err(error.into()),
            // It does not matter which process created the directory, so a look-up resolves the outcome.
            Err(WriteError::Unknown(error)) => match self.storage.stat(path).await {
                Ok(entry) if entry.kind == EntryKind::Dir => Ok(()),
                _ => Err(error.into()),
            },
        }
    }

    /// Children of a directory; empty if it is missing.
    pub(super) async fn children(&self, path: &StorePath) -> Result<Vec<Entry>, CheckpointError> {
        match self.storage.list(path).await {
            Ok(children) => Ok(children),
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn parse<T: serde::de::DeserializeOwned>(
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
