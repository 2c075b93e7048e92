//! Writes the snapshot of a shard to a file, piece by piece, while training continues.
//!
//! The data thread copies each piece into a buffer of the saver on request, so the two share nothing. A few pieces are
//! requested ahead. `heddle-storage` computes the sum of the bytes on its own thread. The data thread never waits for the
//! saver.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytemuck::cast_slice;
use bytes::Bytes;
use crossbeam::channel::{Receiver, Sender, bounded};
use heddle_backoff::Backoff;
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::job_spec::CheckpointDigest;
use heddle_protocol::process_figures::PROCESS;
use heddle_self_faults::Slowness;
use heddle_shard::{ShardConfig, SnapshotGone, SnapshotHead};
use heddle_storage::shard_file::{SaveError, ShardHeader, ShardWriter};
use heddle_storage::{
    Reason, Storage, StorageError, StorageUrl, StorageUrlError, StorePath, chain, sidecar_name,
};

use crate::layout::{self, Moment};
use crate::message::{Buffer, DataCommand, DataThreadHandle};
use crate::saved_shard::{SavedShard, ShardStatistics};
use crate::saver_time::SaverTime;
use crate::throttle::BandwidthLimit;

/// Values of a piece: 256 KiB, which a data thread copies in some 25 µs. A multiple of the snapshot's unit.
const PIECE_VALUES: usize = 64 * 1024;
/// Pieces requested ahead: while one is written, one is copied and one waits.
const PIECES_AHEAD: usize = 3;

/// Files that are started for one shard before its cut fails. On HDFS, a DataNode that dies at the wrong moment costs the file
/// that is being written; the next one gets other DataNodes.
const TRIES: u32 = 5;
/// Waits between the tries, 15 s in total: by then HDFS excludes a dead DataNode, or soon after.
const RETRY: Backoff = Backoff::new(1_000, 8_000);

/// A snapshot to be saved.
pub(crate) struct SaveJob {
    pub(crate) moment: Moment,
    pub(crate) config: ShardConfig,
    /// URL of the directory.
    pub(crate) staging: String,
    /// Nothing is saved: the saver only proves that it can.
    pub(crate) initial: bool,
    pub(crate) thread: DataThreadHandle,
    pub(crate) digest: CheckpointDigest,
    /// None: no limit.
    pub(crate) bandwidth: Option<Arc<BandwidthLimit>>,
    /// Ordered by an operator, to show that the job survives it.
    pub(crate) slowness: Slowness,
}

/// Why a shard was not saved.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SaveFailure {
    #[error("the cut is over")]
    Gone,
    #[error(transparent)]
    Location(#[from] StorageUrlError),
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error(transparent)]
    Save(#[from] SaveError),
}

impl From<SnapshotGone> for SaveFailure {
    fn from(_: SnapshotGone) -> Self {
        Self::Gone
    }
}

/// A buffer that returns to the saver when its bytes are written.
struct Recycled {
    buffer: Buffer,
    back: Sender<Buffer>,
}

impl AsRef<[u8]> for Recycled {
    fn as_ref(&self) -> &[u8] {
        cast_slice(&self.buffer)
    }
}

impl Drop for Recycled {
    fn drop(&mut self) {
        // Without room or receiver the buffer is freed.
        let _ = self.back.try_send(std::mem::take(&mut self.buffer));
    }
}

impl SaveFailure {
    /// The failure as the ApplicationMaster receives it.
    pub(crate) fn failure(&self) -> Failure {
        match self {
            Self::Storage(error) | Self::Save(SaveError::Storage(error)) => error.failure_of(self),
            Self::Location(_) => Failure::new(ErrorClass::Input, chain(self)),
            Self::Gone | Self::Save(_) => Failure::new(ErrorClass::Internal, chain(self)),
        }
    }

    /// Whether the cut's directory does not exist: it is removed with its cut.
    pub(crate) fn is_directory_removed(&self) -> bool {
        matches!(
            self,
            Self::Storage(error) | Self::Save(SaveError::Storage(error))
                if matches!(error.reason, Reason::NotFound)
        )
    }

    /// Whether another file may succeed.
    fn is_retryable(&self) -> bool {
        let (Self::Storage(error) | Self::Save(SaveError::Storage(error))) = self else {
            return false;
        };
        match error.reason {
            // The length differs from the written one, or the store reports an unknown error.
            Reason::Unavailable | Reason::Short { .. } | Reason::Other => true,
            // The directory is removed with its cut; the other reasons are permanent.
            Reason::NotFound
            | Reason::Exists
            | Reason::NotEmpty
            | Reason::NotADirectory
            | Reason::IsADirectory
            | Reason::NotAFile
            | Reason::Denied
            | Reason::Full
            | Reason::Quota(_)
            | Reason::Unsupported(_) => false,
        }
    }
}

/// Saves the shard. After a retryable failure it starts again in a file of another name; the failed file is ignored.
///
/// # Errors
/// The cut is over, or the storage failed.
pub(crate) async fn save(job: &SaveJob) -> Result<SavedShard, SaveFailure> {
    retry(
        RETRY,
        |error| {
            tracing::warn!(cut = %job.moment.cut, error = chain(error), "shard_file_not_written");
        },
        || save_once(job),
    )
    .await
}

/// Runs `once` until it succeeds or fails for good. `on_failure` gets the failures in between.
async fn retry<T, F: Future<Output = Result<T, SaveFailure>>>(
    mut backoff: Backoff,
    on_failure: impl Fn(&SaveFailure),
    mut once: impl FnMut() -> F,
) -> Result<T, SaveFailure> {
    let mut before = None;
    for left in (0..TRIES).rev() {
        match (once().await, before.take()) {
            // The cut is not over: writes needed the memory of copies that were read already.
            (Err(SaveFailure::Gone), Some(error)) => return Err(error),
            (Err(error), _) if error.is_retryable() && left > 0 => {
                on_failure(&error);
                before = Some(error);
            }
            (result, _) => return result,
        }
        tokio::time::sleep(backoff.next_wait()).await;
    }
    Err(before.unwrap_or(SaveFailure::Gone))
}

async fn save_once(job: &SaveJob) -> Result<SavedShard, SaveFailure> {
    let location = StorageUrl::parse(&job.staging)?;
    let storage = heddle_storage::connect(&location)?;
    let head = snapshot_head(job)?;
    let header = layout::header(&job.config, job.moment, &head);
    let mut pieces = SectionPieces::new(job, &head.sparse_rows);
    if job.initial {
        return probe(job, &*storage, location.path(), header, pieces).await;
    }
    let mut writer =
        ShardWriter::create_with(&*storage, location.path(), header, job.digest).await?;
    writer.write(Bytes::from(head.dedup_state)).await?;
    let mut saver = SaverTime::start(&PROCESS);
    let mut statistics = ShardStatistics::new(&job.config, &head.sparse_rows);
    while let Some(buffer) = pieces.next()? {
        statistics.add(&buffer);
        let back = pieces.back.0.clone();
        let piece = Bytes::from_owner(Recycled { buffer, back });
        let bytes = piece.len();
        let mut throttled = Duration::ZERO;
        if let Some(limit) = &job.bandwidth {
            throttled = limit.wait(bytes).await;
        }
        let begun = job.slowness.is_on().then(Instant::now);
        writer.write(piece).await?;
        slow_down(&job.slowness, begun).await;
        saver.wrote(bytes, throttled);
    }
    let begun = job.slowness.is_on().then(Instant::now);
    let file = writer.finish(&*storage).await?;
    slow_down(&job.slowness, begun).await;
    drop(saver);
    Ok(SavedShard { file, tables: statistics.finish() })
}

/// Proves that a file of the shard can be saved: one without values, for which as much space is reserved, is made durable
/// and removed.
async fn probe(
    job: &SaveJob,
    storage: &dyn Storage,
    dir: &StorePath,
    header: ShardHeader,
    mut pieces: SectionPieces<'_>,
) -> Result<SavedShard, SaveFailure> {
    let writer = ShardWriter::create_probe(storage, dir, header, job.digest).await?;
    let file = writer.finish(storage).await?;
    for name in [file.file.clone(), sidecar_name(&file.file)] {
        // The commit removes what is left.
        let _left = storage.delete_file(&dir.join(&name).map_err(StorageError::from)?).await;
    }
    // No write waits for copies of what is not saved.
    pieces.skip_to_last();
    pieces.next()?;
    Ok(SavedShard { file, tables: Vec::new() })
}

/// Waits as long as a slower disk would have taken for what has begun then.
async fn slow_down(slowness: &Slowness, begun: Option<Instant>) {
    if let Some(extra) = begun.and_then(|begun| slowness.extra(begun.elapsed())) {
        tokio::time::sleep(extra).await;
    }
}

fn snapshot_head(job: &SaveJob) -> Result<SnapshotHead, SaveFailure> {
    let (reply, answer) = bounded(1);
    let command = DataCommand::SaveHead { shard: job.config.shard, cut: job.moment.cut, reply };
    job.thread.send(command).map_err(|_| SaveFailure::Gone)?;
    Ok(answer.recv().map_err(|_| SaveFailure::Gone)??)
}

type SavedPiece = Result<Buffer, SnapshotGone>;

/// The pieces of all sections, in order.
struct SectionPieces<'a> {
    job: &'a SaveJob,
    /// Values of each section.
    sections: Vec<usize>,
    /// The section and the value at which the next piece starts.
    section: usize,
    at: usize,
    /// Pieces requested and not received.
    requested: usize,
    answers: (Sender<SavedPiece>, Receiver<SavedPiece>),
    back: (Sender<Buffer>, Receiver<Buffer>),
}

impl<'a> SectionPieces<'a> {
    fn new(job: &'a SaveJob, sparse_rows: &[u32]) -> Self {
        Self {
            job,
            sections: job
                .config
                .sections(sparse_rows)
                .iter()
                .map(heddle_shard::ShardSection::values)
                .collect(),
            section: 0,
            at: 0,
            requested: 0,
            answers: bounded(PIECES_AHEAD),
            back: bounded(2 * PIECES_AHEAD),
        }
    }

    /// The next piece; none after the last.
    fn next(&mut self) -> Result<Option<Buffer>, SaveFailure> {
        while self.requested < PIECES_AHEAD && self.request()? {}
        if self.requested == 0 {
            return Ok(None);
        }
        self.requested -= 1;
        Ok(Some(self.answers.1.recv().map_err(|_| SaveFailure::Gone)??))
    }

    /// Leaves out all values but the last piece's: the snapshot counts as read up to there.
    fn skip_to_last(&mut self) {
        if let Some(last) = self.sections.iter().rposition(|values| *values > 0) {
            (self.section, self.at) =
                (last, (self.sections[last] - 1) / PIECE_VALUES * PIECE_VALUES);
        }
    }

    fn request(&mut self) -> Result<bool, SaveFailure> {
        while self.sections.get(self.section).is_some_and(|&values| self.at == values) {
            (self.section, self.at) = (self.section + 1, 0);
        }
        let Some(&values) = self.sections.get(self.section) else {
            return Ok(false);
        };
        let mut buffer = self.back.1.try_recv().unwrap_or_default();
        buffer.resize(PIECE_VALUES.min(values - self.at), 0.0);
        let (section, at) = (self.section, self.at);
        self.at += buffer.len();
        self.requested += 1;
        let command = DataCommand::Save {
            shard: self.job.config.shard,
            cut: self.job.moment.cut,
            section,
            at,
            buffer,
            reply: self.answers.0.clone(),
        };
        self.job.thread.send(command).map_err(|_| SaveFailure::Gone)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_storage::Op;
    use std::cell::RefCell;

    fn storage(reason: Reason) -> SaveFailure {
        StorageError::new(Op::Write, "x", reason).into()
    }

    /// The result of these tries, and their number.
    async fn after(outcomes: Vec<Result<u32, SaveFailure>>) -> (Result<u32, String>, usize) {
        let all = outcomes.len();
        let outcomes = RefCell::new(outcomes.into_iter());
        let once = || async {
            let next = outcomes.borrow_mut().next();
            next.expect("no more tries than planned")
        };
        let result = retry(Backoff::new(0, 0), |_| {}, once).await;
        let left = outcomes.borrow().len();
        (result.map_err(|error| error.to_string()), all - left)
    }

    #[tokio::test]
    async fn retryable_failure_starts_another_file() {
        let unavailable = || Err(storage(Reason::Unavailable));
        assert_eq!(after(vec![unavailable(), unavailable(), Ok(7)]).await, (Ok(7), 3));
        let (result, tries) = after((0..TRIES + 3).map(|_| unavailable()).collect()).await;
        assert_eq!((result.is_err(), tries), (true, TRIES as usize));
        let quota = storage(Reason::Quota("of bytes".to_owned())).failure();
        assert_eq!(quota.class, ErrorClass::Denied);
        assert!(quota.text.ends_with("request a larger quota, or name another directory"));
        for reason in [Reason::Denied, Reason::Quota(String::new()), Reason::NotFound] {
            let (result, tries) = after(vec![Err(storage(reason)), Ok(1)]).await;
            assert_eq!((result.is_err(), tries), (true, 1));
        }
    }

    #[tokio::test]
    async fn snapshot_gone_after_a_failure_is_a_storage_error() {
        let (result, tries) =
            after(vec![Err(storage(Reason::Unavailable)), Err(SaveFailure::Gone)]).await;
        assert!(result.is_err_and(|error| error.contains("cannot write x")));
        assert_eq!(tries, 2);
        assert_eq!(
            after(vec![Err(SaveFailure::Gone)]).await,
            (Err(SaveFailure::Gone.to_string()), 1)
        );
    }
}
