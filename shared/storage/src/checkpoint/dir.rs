//! A checkpoint directory that belongs to Heddle: the public calls.
//!
//! Every call delegates to the module of its subject: `root` (marker, claims, names), `commit`, `remove`, `restore`.

use std::sync::Arc;

use heddle_protocol::ids::{CutId, Generation, RunId, ShardId};
use heddle_protocol::manifest::{Manifest, Salt};

use super::CheckpointError;
use super::commit::{self, CommitError, CommitGate};
use super::files::Depth;
use super::layout::{CLAIMS, DAMAGED, JOURNAL, STAGING};
use super::lineage::{ClaimRecord, Lineage};
use super::load::StoredCheckpoint;
use super::mirror;
use super::remove::{self, Swept};
use super::repair::{self, Repair, RepairMode};
use super::restore::{self, Candidate, DamagePolicy, KeptCheckpoint, Newest};
use super::root::DirRoot;
use super::scratch::probe_root;
use super::shard_group::{self, ShardGroup};
use crate::path::StorePath;
use crate::store::{Mode, Storage};
use crate::{check_place, make_dirs, try_place};

/// A checkpoint directory with a job's checkpoints, claims and journal.
#[derive(Debug, Clone)]
pub struct CheckpointDir {
    pub(super) root: DirRoot,
}

impl CheckpointDir {
    /// Opens a job's directory for writing. A missing or empty one is created and marked (mode 0700). Then the store is
    /// probed.
    ///
    /// # Errors
    /// `Foreign` if it has content and no marker, `Newer` if a later version created it, `Storage` if it cannot be written
    /// or the store does not have the required semantics.
    pub async fn open_or_create(
        storage: Arc<dyn Storage>,
        root: StorePath,
    ) -> Result<Self, CheckpointError> {
        check_place(&*storage, &root).await?;
        // Parents get the default mode: other users may have to read a model beside the checkpoints.
        if let Some(above) = root.parent() {
            make_dirs(&*storage, &above, storage.default_mode().of_dir()).await?;
        }
        make_dirs(&*storage, &root, Mode::DIR).await?;
        let dir = DirRoot { storage, path: root, mirrors: Vec::new() };
        if !dir.is_marked().await? {
            dir.mark().await?;
        }
        for name in [CLAIMS, JOURNAL, STAGING, DAMAGED] {
            dir.make(&dir.at(name)?).await?;
        }
        probe_root(&dir).await?;
        Ok(Self { root: dir })
    }

    /// Checks whether [`open_or_create`](Self::open_or_create) would succeed. If `writing` is allowed, it also probes the
    /// store beside the directory. It leaves no files.
    ///
    /// # Errors
    /// As `open_or_create`.
    pub async fn rehearse(
        storage: Arc<dyn Storage>,
        root: StorePath,
        writing: bool,
    ) -> Result<(), CheckpointError> {
        let at = check_place(&*storage, &root).await?;
        let dir = DirRoot { storage, path: root, mirrors: Vec::new() };
        if at == dir.path {
            if dir.is_marked().await? {
                let staging = dir.at(STAGING)?;
                if writing && dir.storage.stat(&staging).await.is_ok() {
                    return probe_root(&dir).await;
                }
            } else {
                dir.check_empty().await?;
            }
        }
        if writing {
            try_place(&*dir.storage, &dir.path).await?;
        }
        Ok(())
    }

    /// Opens a directory for reading.
    ///
    /// # Errors
    /// `NotOurs` if it has no marker, `Newer` if a later version created it.
    pub async fn open(storage: Arc<dyn Storage>, root: StorePath) -> Result<Self, CheckpointError> {
        let dir = DirRoot { storage, path: root, mirrors: Vec::new() };
        if dir.is_marked().await? {
            Ok(Self { root: dir })
        } else {
            Err(CheckpointError::NotOurs { dir: dir.show(&dir.path) })
        }
    }

    /// A directory that this process has opened before. Does not access the storage.
    pub fn existing(storage: Arc<dyn Storage>, root: StorePath) -> Self {
        Self { root: DirRoot { storage, path: root, mirrors: Vec::new() } }
    }

    /// The same directory with mirrors: directories that hold copies of its checkpoints. A file that is missing or damaged
    /// here is then taken from the same checkpoint there.
    #[must_use]
    pub fn with_mirrors(mut self, mirrors: Vec<Self>) -> Self {
        self.root.mirrors = mirrors.into_iter().map(|mirror| mirror.root).collect();
        self
    }

    /// The storage of the directory.
    pub fn storage(&self) -> &Arc<dyn Storage> {
        &self.root.storage
    }

    /// The directory itself.
    pub fn root(&self) -> &StorePath {
        &self.root.path
    }

    /// A path in the directory, as a user types it.
    pub fn show(&self, path: &StorePath) -> String {
        self.root.show(path)
    }

    /// Directory of a generation's journal.
    ///
    /// # Errors
    /// The path is too long.
    pub fn journal_dir(&self, generation: Generation) -> Result<StorePath, CheckpointError> {
        self.root.journal_dir(generation)
    }

    /// Generations with a journal, lowest first.
    ///
    /// # Errors
    /// Errors of the storage.
    pub async fn journals(&self) -> Result<Vec<Generation>, CheckpointError> {
        self.root.journals().await
    }

    /// Claimed generations, lowest first.
    ///
    /// # Errors
    /// Errors of the storage.
    pub async fn claimed(&self) -> Result<Vec<Generation>, CheckpointError> {
        self.root.claimed().await
    }

    /// Reads one claim.
    ///
    /// # Errors
    /// `Damaged` if it does not parse; `Newer`; `Storage`.
    pub async fn claim(&self, generation: Generation) -> Result<ClaimRecord, CheckpointError> {
        self.root.claim(generation).await
    }

    /// Claims a generation: the record appears under its name completely or not at all, and replaces nothing. Returns
    /// `false` if another process has that generation.
    ///
    /// # Errors
    /// Errors of the storage. An unknown outcome is resolved by reading the claim back. If that fails too, the caller must
    /// do nothing under this generation.
    pub async fn write_claim(&self, claim: &ClaimRecord) -> Result<bool, CheckpointError> {
        self.root.write_claim(claim).await
    }

    /// The lineage of the present claims.
    ///
    /// # Errors
    /// A claim of the lineage cannot be read.
    pub async fn lineage(&self) -> Result<Lineage, CheckpointError> {
        self.root.lineage().await
    }

    /// The lineage of one claim, without later claims.
    ///
    /// # Errors
    /// A claim of the lineage cannot be read.
    pub async fn lineage_from(
        &self,
        from: Option<Generation>,
        claimed: &[Generation],
    ) -> Result<Lineage, CheckpointError> {
        self.root.lineage_from(from, claimed).await
    }

    /// Whether a run has made a claim of the lineage: what the run wrote is the job's own.
    ///
    /// # Errors
    /// A claim of the lineage cannot be read.
    pub async fn has_run(&self, run: RunId) -> Result<bool, CheckpointError> {
        for (generation, _) in self.lineage().await?.generations() {
            if self.claim(generation).await?.run == run {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Fails if another process has claimed a generation above `own`.
    ///
    /// # Errors
    /// `Fenced`, or errors of the storage.
    pub async fn check_highest(&self, own: Generation) -> Result<(), CheckpointError> {
        self.root.check_highest(own).await
    }

    /// Names of all checkpoints, also damaged ones and those outside the lineage; oldest first.
    ///
    /// # Errors
    /// Errors of the storage.
    pub async fn names(&self) -> Result<Vec<CutId>, CheckpointError> {
        self.root.names().await
    }

    /// Directory of a checkpoint.
    ///
    /// # Errors
    /// The path is too long.
    pub fn checkpoint_dir(&self, cut: CutId) -> Result<StorePath, CheckpointError> {
        self.root.checkpoint_dir(cut)
    }

    /// Reads and checks one checkpoint.
    ///
    /// # Errors
    /// `Unknown` if there is none of that name, `Damaged`, `Newer`, `Storage`.
    pub async fn load(
        &self,
        cut: CutId,
        depth: Depth,
    ) -> Result<StoredCheckpoint, CheckpointError> {
        self.root.load(cut, depth).await
    }

    /// Creates the directory for a cut's files unless it exists. Its name contains the salt, so no other process writes
    /// there.
    ///
    /// # Errors
    /// Errors of the storage.
    pub async fn stage(&self, cut: CutId, salt: Salt) -> Result<StorePath, CheckpointError> {
        commit::stage(&self.root, cut, salt).await
    }

    /// Removes the files of a cut that did not become a checkpoint.
    ///
    /// # Errors
    /// Errors of the storage. A failure leaks space and does no other harm.
    pub async fn discard(&self, cut: CutId, salt: Salt) -> Result<(), CheckpointError> {
        commit::discard(&self.root, cut, salt).await
    }

    /// Commits a cut whose shard files are in its [staging directory](Self::stage). Sets `manifest.salt` to `salt`. May be
    /// called again after any error but `Fenced`.
    ///
    /// # Errors
    /// See [`CommitError`].
    pub async fn commit(
        &self,
        manifest: Manifest,
        salt: Salt,
        gate: CommitGate<'_>,
    ) -> Result<StoredCheckpoint, CommitError> {
        commit::commit(&self.root, manifest, salt, gate).await
    }

    /// Deletes checkpoints older than the newest `keep` complete ones (at least two remain), those outside the lineage, and
    /// orphans; only of generations not above `own`, which must be the highest claim. Never deletes those in `held`.
    ///
    /// # Errors
    /// `Fenced` if `own` is not the highest claim; errors of the storage. The next call deletes what remained.
    pub async fn retain(
        &self,
        keep: usize,
        own: Generation,
        held: &[CutId],
    ) -> Result<Swept, CheckpointError> {
        remove::retain(&self.root, keep, own, held).await
    }

    /// Deletes one checkpoint at a user's request. Rejects the newest two complete ones of the lineage. The caller ensures
    /// that no job runs on this directory.
    ///
    /// # Errors
    /// `Unknown`, `Kept`, errors of the storage.
    pub async fn remove(&self, cut: CutId) -> Result<(), CheckpointError> {
        remove::remove(&self.root, cut).await
    }

    /// All checkpoints, oldest first, each with its state. The listing continues after one that cannot be read, and leaves out
    /// one that is removed meanwhile.
    ///
    /// # Errors
    /// The directory itself or its claims cannot be read.
    pub async fn listing(&self, depth: Depth) -> Result<Vec<Candidate>, CheckpointError> {
        restore::listing(&self.root, depth).await
    }

    /// The newest checkpoint of the lineage that passes the checks, and those skipped for it.
    ///
    /// # Errors
    /// - `Storage`: one cannot be read at the moment; no older one was tried.
    /// - `Newer`: one is of a later version; no older one was tried.
    /// - `Damaged`: the newest is damaged and `on_corrupt` is [`DamagePolicy::Fail`].
    /// - `NoneUsable`, `Lost`: checkpoints exist and none is usable.
    pub async fn newest(
        &self,
        lineage: &Lineage,
        depth: Depth,
        on_corrupt: DamagePolicy,
    ) -> Result<Newest, CheckpointError> {
        self.newest_below(lineage, None, depth, on_corrupt).await
    }

    /// The checkpoint whose model a run publishes that has come to `newest`: that of the best pass where the job keeps it.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub async fn kept(&self, newest: StoredCheckpoint) -> Result<KeptCheckpoint, CheckpointError> {
        restore::kept(&self.root, newest).await
    }

    /// The same among those older than `below`. In the order of the lineage: generation, then number, never by time.
    ///
    /// # Errors
    /// See [`newest`](Self::newest).
    pub async fn newest_below(
        &self,
        lineage: &Lineage,
        below: Option<CutId>,
        depth: Depth,
        on_corrupt: DamagePolicy,
    ) -> Result<Newest, CheckpointError> {
        restore::newest_below(&self.root, lineage, below, depth, on_corrupt).await
    }

    /// Copies a checkpoint and the claims of its lineage into another checkpoint directory. `gate` is called right before
    /// the copy gets its name. A repeated call continues.
    ///
    /// # Errors
    /// `NotDone` with `OtherRun` if `to` holds the claims of another run; `Fenced` if it has a higher claim; see
    /// [`CommitError`].
    pub async fn copy_to(
        &self,
        cut: CutId,
        to: &Self,
        gate: CommitGate<'_>,
    ) -> Result<(), CommitError> {
        mirror::copy_checkpoint(&self.root, cut, &to.root, gate).await
    }

    /// Whether `other`, which was opened for writing, is this directory under another name.
    ///
    /// # Errors
    /// Errors of the storages.
    pub async fn is_same_as(&self, other: &Self) -> Result<bool, CheckpointError> {
        mirror::is_same(&other.root, &self.root).await
    }

    /// The manifest of a checkpoint and its copies, shard by shard, here and in mirrors.
    ///
    /// # Errors
    /// `Unknown` if there is no such checkpoint, or none any more; `Damaged`, `Newer`, `Storage` for its manifest.
    pub async fn groups(
        &self,
        cut: CutId,
        depth: Depth,
    ) -> Result<(Manifest, Vec<ShardGroup>), CheckpointError> {
        self.check_name(cut).await?;
        let read = async {
            let (manifest, _) = shard_group::manifest_of(&self.root, cut).await?;
            let mut groups = Vec::new();
            for file in &manifest.shards {
                groups.push(shard_group::group(&self.root, &manifest, file, depth).await?);
            }
            Ok((manifest, groups))
        };
        let read = read.await;
        if !read.as_ref().is_ok_and(|(_, groups)| groups.iter().all(ShardGroup::is_whole)) {
            self.check_name(cut).await?;
        }
        read
    }

    async fn check_name(&self, cut: CutId) -> Result<(), CheckpointError> {
        match self.root.names().await?.contains(&cut) {
            true => Ok(()),
            false => Err(CheckpointError::Unknown { dir: self.show(self.root()), cut }),
        }
    }

    /// Puts good copies in the place of bad ones, of all shards of a checkpoint or of one. The bad files go to `damaged/`.
    /// The caller owns the directory, or ensures that no job runs on it.
    ///
    /// # Errors
    /// `Fenced` if another process has claimed the directory meanwhile; `Storage` if a shard has no good copy and one
    /// cannot be read at the moment; errors of the manifest.
    pub async fn repair(
        &self,
        cut: CutId,
        only: Option<ShardId>,
        mode: RepairMode,
    ) -> Result<Repair, CheckpointError> {
        repair::repair(&self.root, cut, only, mode).await
    }

    /// Moves a damaged checkpoint to `damaged/`. Deletes nothing: a user may still recover data from it. Returns its present
    /// directory; a checkpoint that was moved before stays there.
    ///
    /// # Errors
    /// Errors of the storage; `Unknown` if it does not exist and was never moved.
    pub async fn set_aside(&self, cut: CutId) -> Result<StorePath, CheckpointError> {
        restore::set_aside(&self.root, cut).await
    }
}
