//! Loads a shard from a copy of its file in a checkpoint and checks its sum, or creates it with initial values, its own or those of another
//! job's checkpoint (`warm_start`).

use std::sync::Arc;

use heddle_backoff::Backoff;
use heddle_protocol::ids::Epoch;
use heddle_protocol::manifest::{CutIdentity, ShardFile};
use heddle_shard::{Shard, ShardConfig, SnapshotHead};
use heddle_storage::checkpoint::CheckpointError;
use heddle_storage::shard_file::ShardReader;
use heddle_storage::{StorageUrl, chain};

use crate::load_error::LoadError;
use crate::shard_content::ShardContent;
use crate::warm_start::OtherJob;

/// Tries to read a file.
const TRIES: u32 = 8;
/// Waits between the tries: 25 s in total, longer than a DataNode takes to restart.
const RETRY: Backoff = Backoff::new(200, 12_800);
/// Reads with a wrong sum after which the file counts as damaged. Another replica may serve the next read, and a bit that
/// flipped in transfer is not a damage of the file.
const WRONG_SUMS: u32 = 3;

/// A shard to load.
pub(crate) struct LoadJob {
    pub(crate) epoch: Epoch,
    pub(crate) config: ShardConfig,
    pub(crate) from: LoadFrom,
}

/// Where the content of a shard comes from.
pub(crate) enum LoadFrom {
    /// The initialisers of its tables, at the start or from a checkpoint of initial values.
    InitialValues,
    /// A checkpoint of another job, at the start of this one.
    OtherJob(Arc<OtherJob>),
    /// A checkpoint of this job.
    Checkpoint(Box<ShardSources>),
}

/// The copies of a shard's file, which stand in for each other.
pub(crate) struct ShardSources {
    /// URLs of the directories of the checkpoint: its own, then those in mirrors.
    pub(crate) dirs: Vec<String>,
    /// The shard's file, with its copies.
    pub(crate) file: ShardFile,
    /// What the headers must name.
    pub(crate) identity: CutIdentity,
}

/// A shard that was loaded.
pub(crate) struct LoadedShard {
    pub(crate) shard: Box<Shard>,
    /// Copies that were not used, each with its damage.
    pub(crate) passed_over: Vec<String>,
}

/// Loads the shard: from the first copy that passes all checks.
///
/// # Errors
/// Every copy is damaged, or one cannot be read after some tries and no other is good. The error then is that one: it
/// proves no damage of the checkpoint.
pub(crate) async fn load(job: &LoadJob) -> Result<LoadedShard, LoadError> {
    let loaded = |shard| LoadedShard { shard, passed_over: Vec::new() };
    let copies = match &job.from {
        LoadFrom::InitialValues => return Ok(loaded(Box::new(Shard::initial(&job.config)))),
        LoadFrom::OtherJob(other) => {
            return retried(|| other.shard(&job.config)).await.map(loaded);
        }
        LoadFrom::Checkpoint(copies) => copies,
    };
    let (mut passed_over, mut failure) = (Vec::new(), None);
    for dir in &copies.dirs {
        for file in copies.file.files() {
            let read = || read(&job.config, dir, &file, &copies.identity);
            let error = match retried(read).await {
                Ok(shard) => return Ok(LoadedShard { shard, passed_over }),
                Err(error) => error,
            };
            let text = chain(&error);
            tracing::warn!(error = text, "shard_copy_passed_over");
            passed_over.push(text);
            let replaces = |before: &LoadError| before.is_damage() && !error.is_damage();
            if failure.as_ref().is_none_or(replaces) {
                failure = Some(error);
            }
        }
    }
    Err(failure.unwrap_or_else(|| LoadError::NoFile {
        dir: copies.dirs.join(", "),
        shard: job.config.shard,
    }))
}

/// Runs `read` until it succeeds or fails for good.
async fn retried<F: Future<Output = Result<Box<Shard>, LoadError>>>(
    mut read: impl FnMut() -> F,
) -> Result<Box<Shard>, LoadError> {
    let mut backoff = RETRY;
    let (mut tries, mut wrong_sums) = (1, 0);
    loop {
        match read().await {
            Err(error) if error.is_wrong_sum() && wrong_sums + 1 < WRONG_SUMS => {
                tracing::warn!(error = chain(&error), "shard_file_sum_wrong");
                wrong_sums += 1;
            }
            Err(error) if error.is_retryable() && tries < TRIES => {
                tracing::warn!(error = chain(&error), tries, "shard_file_not_read");
                tokio::time::sleep(backoff.next_wait()).await;
                tries += 1;
            }
            result => return result,
        }
    }
}

/// Reads one copy.
async fn read(
    config: &ShardConfig,
    dir: &str,
    file: &ShardFile,
    identity: &CutIdentity,
) -> Result<Box<Shard>, LoadError> {
    let location = StorageUrl::parse(dir)?;
    let storage = heddle_storage::connect(&location).map_err(CheckpointError::from)?;
    let open = async || ShardReader::open(&*storage, location.path(), file, identity).await;
    let reader = open().await?;
    let shown = reader.file().to_owned();
    let mut content = ShardContent::restored(config);
    let dedup_state = content.take(reader, open).await?;
    let ShardContent { mut shard, sparse_rows, .. } = content;
    let head = SnapshotHead { dedup_state, sparse_rows };
    shard.load_head(&head).map_err(|source| LoadError::Content { file: shown, source })?;
    Ok(shard)
}
