//! The values of another job's checkpoint (`model.init`) as the initial values of a shard, whatever the numbers of shards.
//!
//! A shard reads each file of the other job that has its rows. Every shard of a process uses the manifest that was read first:
//! a folder that is replaced meanwhile is found damaged, not mixed.

use std::sync::Arc;

use heddle_protocol::ids::TableId;
use heddle_protocol::job_spec::position::shard_positions;
use heddle_protocol::job_spec::warm_start::{WarmStart, job_of, warm_start};
use heddle_protocol::job_spec::{JobSpec, TableKind, shard_rows};
use heddle_protocol::manifest::{CutIdentity, Manifest, ShardFile};
use heddle_shard::{ContentError, Shard, ShardConfig, applied_steps};
use heddle_storage::checkpoint::{CheckpointError, StoredCheckpoint, good_copy, or_removed};
use heddle_storage::shard_file::ShardReader;
use heddle_storage::{Storage, StorageUrl, StorePath};
use tokio::sync::OnceCell;

use crate::load_error::LoadError;
use crate::shard_content::{ShardContent, common};

/// The checkpoint that a job begins with.
pub(crate) struct OtherJob {
    spec: JobSpec,
    /// URL of the checkpoint's directory.
    dir: String,
    opened: OnceCell<OpenedCheckpoint>,
}

/// What is known once its manifest was read.
struct OpenedCheckpoint {
    storage: Arc<dyn Storage>,
    dir: StorePath,
    files: Vec<ShardFile>,
    identity: CutIdentity,
    start: WarmStart,
}

impl OtherJob {
    /// The checkpoint that a job names; `None` for one that begins with initial values.
    pub(crate) fn of(spec: &JobSpec) -> Option<Self> {
        let dir = spec.model.init.as_ref()?.url();
        Some(Self { spec: spec.clone(), dir, opened: OnceCell::new() })
    }

    /// A shard that begins with these values.
    ///
    /// # Errors
    /// The checkpoint is damaged, cannot be read, or does not fit the job.
    pub(crate) async fn shard(&self, config: &ShardConfig) -> Result<Box<Shard>, LoadError> {
        let opened = self.opened.get_or_try_init(|| self.open()).await?;
        or_removed(&*opened.storage, &opened.dir, opened.shard(config)).await
    }

    async fn open(&self) -> Result<OpenedCheckpoint, LoadError> {
        let location = StorageUrl::parse(&self.dir)?;
        let storage = heddle_storage::connect(&location).map_err(CheckpointError::from)?;
        let manifest = StoredCheckpoint::manifest_at(&location).await?;
        let identity = manifest.identity();
        let Manifest { spec, shards: files, .. } = manifest;
        let start = job_of(&spec).and_then(|before| warm_start(&self.spec, &before));
        let start =
            start.map_err(|source| LoadError::WarmStart { dir: self.dir.clone(), source })?;
        let dir = location.path().clone();
        Ok(OpenedCheckpoint { storage, dir, files, identity, start })
    }
}

impl OpenedCheckpoint {
    async fn shard(&self, config: &ShardConfig) -> Result<Box<Shard>, LoadError> {
        let (storage, tables) = (&*self.storage, &self.start.tables);
        let unfit = |source| LoadError::Content { file: storage.show(&self.dir), source };
        let mut content = ShardContent::inherited(config, tables.clone());
        let mut applied = 0;
        for file in self.files_of(config) {
            // Rows are copied before the sum of their file is known.
            let file = good_copy(storage, &self.dir, file, &self.identity).await?;
            let open = async || ShardReader::open(storage, &self.dir, &file, &self.identity).await;
            let state = content.take(open().await?, open).await?;
            let no_state = |source| unfit(ContentError::Dedup { shard: file.shard, source });
            applied = applied.max(applied_steps(&state).map_err(no_state)?);
        }
        let ShardContent { mut shard, sparse_rows, .. } = content;
        shard.load_sparse_rows(&sparse_rows).map_err(unfit)?;
        let plain = (0u16..).map(TableId).zip(tables);
        let plain = plain.filter(|(_, table)| table.as_ref().is_some_and(|from| !from.keeps_state));
        let plain: Vec<TableId> = plain.map(|(id, _)| id).collect();
        shard.continue_from(&plain, if self.start.keeps_steps { applied } else { 0 });
        Ok(shard)
    }

    /// The files that have rows of this shard; the first one where none has, since the count of steps is in it.
    fn files_of(&self, config: &ShardConfig) -> Vec<&ShardFile> {
        let shards = self.identity.shards;
        let has_rows = |file: &&ShardFile| {
            let tables = config.tables.iter().zip(&self.start.tables);
            let mut tables = tables.filter_map(|(own, from)| Some((own, from.as_ref()?)));
            tables.any(|(own, from)| match own.kind {
                TableKind::Sparse => {
                    let here = shard_positions(config.shard, config.shards);
                    let there = shard_positions(file.shard, shards);
                    here.start() <= there.end() && there.start() <= here.end()
                }
                TableKind::Dense => {
                    let here = shard_rows(own.rows, config.shard, config.shards);
                    let there = shard_rows(from.spec.rows, file.shard, shards);
                    !common(&here, &there).is_empty()
                }
            })
        };
        let files: Vec<_> = self.files.iter().filter(has_rows).collect();
        if files.is_empty() { self.files.iter().take(1).collect() } else { files }
    }
}
