//! Loads a shard from a checkpoint's file and checks its sum, or creates it with initial values, its own or those of another
//! job's checkpoint (`warm_start`).

use std::sync::Arc;

use bytemuck::cast_slice_mut;
use heddle_backoff::Backoff;
use heddle_protocol::ids::Epoch;
use heddle_protocol::manifest::ShardFile;
use heddle_shard::{Shard, ShardConfig, SnapshotHead};
use heddle_storage::checkpoint::CheckpointError;
use heddle_storage::shard_file::ShardReader;
use heddle_storage::{StorageUrl, chain};

use crate::layout;
use crate::load_error::LoadError;
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
    /// The initialisers of its tables.
    InitialValues,
    /// A checkpoint of another job, at the start of this one.
    OtherJob(Arc<OtherJob>),
    /// A file of a checkpoint of this job: URL of the directory, and the file in it.
    File(String, ShardFile),
}

/// Loads the shard.
///
/// # Errors
/// The file is damaged, of other content, or cannot be read after some tries.
pub(crate) async fn load(job: &LoadJob) -> Result<Box<Shard>, LoadError> {
    let mut backoff = RETRY;
    let (mut tries, mut wrong_sums) = (1, 0);
    loop {
        let read = match &job.from {
            LoadFrom::InitialValues => return Ok(Box::new(Shard::initial(&job.config))),
            LoadFrom::OtherJob(other) => other.shard(&job.config).await,
            LoadFrom::File(dir, file) => read(&job.config, dir, file).await,
        };
        match read {
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

async fn read(config: &ShardConfig, dir: &str, file: &ShardFile) -> Result<Box<Shard>, LoadError> {
    let location = StorageUrl::parse(dir)?;
    let storage = heddle_storage::connect(&location).map_err(CheckpointError::from)?;
    let mut reader = ShardReader::open(&*storage, location.path(), file).await?;
    let shown = || format!("{dir}/{}", file.file);
    let places = layout::check(config, reader.header())
        .map_err(|what| LoadError::Other { file: shown(), what })?;
    let mut shard = Box::new(Shard::new(config));
    let mut state = Vec::new();
    while let Some(piece) = reader.next().await? {
        // The header was checked: its sections are the dedup state, then sections of the shard, with the same lengths.
        let Some(section) = piece.section.checked_sub(1) else {
            state.extend_from_slice(&piece.data);
            continue;
        };
        let at = piece.offset as usize;
        let place = places.sections.get(section).copied();
        let values = place.and_then(|place| shard.section_mut(place));
        let bytes: Option<&mut [u8]> = values.map(cast_slice_mut);
        match bytes.and_then(|bytes| bytes.get_mut(at..at + piece.data.len())) {
            Some(place) => place.copy_from_slice(&piece.data),
            None => {
                let what = format!("section {} is longer than in the header", piece.section);
                return Err(LoadError::Other { file: shown(), what });
            }
        }
    }
    let head = SnapshotHead { dedup_state: state, sparse_rows: places.sparse_rows };
    shard.load_head(&head).map_err(|source| LoadError::Content { file: shown(), source })?;
    Ok(shard)
}
