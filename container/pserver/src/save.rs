//! Writes the snapshot of a shard to a file, piece by piece, while training goes on.
//!
//! The data thread copies each piece into a buffer of ours when it is asked to, so that nothing is
//! shared between the two; a few pieces are asked for ahead. The sum is taken on a thread of its own
//! by `heddle-storage` as the bytes go by. The data thread never waits for any of this.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytemuck::cast_slice;
use bytes::Bytes;
use crossbeam::channel::{Receiver, Sender, bounded};
use heddle_protocol::failure::ErrorClass;
use heddle_protocol::manifest::ShardFile;
use heddle_shard::{ShardConfig, SnapshotGone};
use heddle_storage::shard_file::{SaveError, ShardWriter};
use heddle_storage::{Location, LocationError, Reason, StorageError, chain};

use crate::command::{Buffer, DataThread, ToData};
use crate::layout::{self, Moment};
use crate::throttle::Throttle;

/// Values of a piece: 512 KiB, which a data thread copies in some 50 µs. A multiple of the snapshot's unit.
const PIECE_VALUES: usize = 128 * 1024;
/// Pieces asked for ahead: while one is written, one is copied and one waits for its turn.
const PIECES_AHEAD: usize = 3;

/// Files begun for one shard before it is given up for this cut. On HDFS a pipeline whose DataNode dies at the
/// wrong moment costs the file that is being written; the next one gets other DataNodes.
const TRIES: u32 = 5;
/// First wait before the next try; doubled. Together 15 s: a dead DataNode is left out by then or soon.
const AGAIN: Duration = Duration::from_secs(1);

/// What all savers of a pserver share: how fast they may write.
pub(crate) struct Pace {
    begun: Instant,
    /// Not on the data path: a saver takes from it once for each piece.
    throttle: Mutex<Throttle>,
}

impl Pace {
    /// At most so many bytes a second.
    pub(crate) fn new(bytes_per_second: u64) -> Arc<Self> {
        Arc::new(Self {
            begun: Instant::now(),
            throttle: Mutex::new(Throttle::new(bytes_per_second)),
        })
    }

    async fn wait(&self, bytes: usize) {
        let wait = {
            let mut throttle = self.throttle.lock().unwrap_or_else(PoisonError::into_inner);
            throttle.take(bytes as u64, self.begun.elapsed())
        };
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }
}

/// A snapshot to be saved.
pub(crate) struct SaveJob {
    pub(crate) moment: Moment,
    pub(crate) config: ShardConfig,
    /// URL of the directory.
    pub(crate) staging: String,
    pub(crate) thread: DataThread,
    /// None: as fast as it goes.
    pub(crate) pace: Option<Arc<Pace>>,
}

/// Why it was not.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failed {
    #[error("the cut is over")]
    Gone,
    #[error(transparent)]
    Location(#[from] LocationError),
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error(transparent)]
    Save(#[from] SaveError),
}

impl From<SnapshotGone> for Failed {
    fn from(_: SnapshotGone) -> Self {
        Self::Gone
    }
}

/// A buffer that goes back to be filled again when nobody reads it any more.
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
        // No room or nobody there: the memory is given back instead.
        let _ = self.back.try_send(std::mem::take(&mut self.buffer));
    }
}

impl Failed {
    /// The class of the failure.
    pub(crate) fn class(&self) -> ErrorClass {
        match self {
            Self::Storage(error) | Self::Save(SaveError::Storage(error)) => error.class(),
            Self::Location(_) => ErrorClass::Input,
            Self::Gone | Self::Save(_) => ErrorClass::Internal,
        }
    }

    /// Whether another file may succeed.
    fn is_worth_a_try(&self) -> bool {
        let (Self::Storage(error) | Self::Save(SaveError::Storage(error))) = self else {
            return false;
        };
        match error.reason {
            // The length that was found is not what was written, or whatever else a store says.
            Reason::Unavailable | Reason::Short { .. } | Reason::Other => true,
            // The directory is gone with its cut; the others do not change by themselves.
            Reason::NotFound
            | Reason::Exists
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

/// Saves the shard; after a failure that may pass, again into a file of another name. What was written of one
/// that fails counts for nothing.
///
/// # Errors
/// The cut is over, or the storage failed.
pub(crate) async fn save(job: &SaveJob) -> Result<ShardFile, Failed> {
    tried(AGAIN, |error| {
        tracing::warn!(shard = %job.config.shard, cut = %job.moment.cut, error = chain(error), "a shard's file failed, another one is begun");
    }, || save_once(job)).await
}

/// Runs `once` until it succeeds or another try is of no use; `told` hears of failures in between.
async fn tried<T, F: Future<Output = Result<T, Failed>>>(
    mut wait: Duration,
    told: impl Fn(&Failed),
    mut once: impl FnMut() -> F,
) -> Result<T, Failed> {
    let mut before = None;
    for left in (0..TRIES).rev() {
        match (once().await, before.take()) {
            // Not because the cut is over: writes needed the memory of what was read already.
            (Err(Failed::Gone), Some(error)) => return Err(error),
            (Err(error), _) if error.is_worth_a_try() && left > 0 => {
                told(&error);
                before = Some(error);
            }
            (result, _) => return result,
        }
        tokio::time::sleep(wait).await;
        wait *= 2;
    }
    Err(before.unwrap_or(Failed::Gone))
}

async fn save_once(job: &SaveJob) -> Result<ShardFile, Failed> {
    let location = Location::parse(&job.staging)?;
    let storage = heddle_storage::connect(&location)?;
    let memory = memory(job)?;
    let header = layout::header(&job.config, job.moment, memory.len() as u64);
    let mut writer = ShardWriter::create(&*storage, location.path(), header).await?;
    writer.write(Bytes::from(memory)).await?;
    let mut pieces = Pieces::new(job);
    while let Some(buffer) = pieces.next()? {
        let back = pieces.back.0.clone();
        let piece = Bytes::from_owner(Recycled { buffer, back });
        if let Some(pace) = &job.pace {
            pace.wait(piece.len()).await;
        }
        writer.write(piece).await?;
    }
    Ok(writer.finish(&*storage).await?)
}

fn memory(job: &SaveJob) -> Result<Vec<u8>, Failed> {
    let (reply, answer) = bounded(1);
    let command = ToData::SaveMemory { shard: job.config.shard, cut: job.moment.cut, reply };
    job.thread.send(command).map_err(|_| Failed::Gone)?;
    Ok(answer.recv().map_err(|_| Failed::Gone)??)
}

type Piece = Result<Buffer, SnapshotGone>;

/// The pieces of all sections, in order.
struct Pieces<'a> {
    job: &'a SaveJob,
    /// Values of each section, and the next piece to ask for.
    sections: Vec<usize>,
    section: usize,
    at: usize,
    asked: usize,
    answers: (Sender<Piece>, Receiver<Piece>),
    back: (Sender<Buffer>, Receiver<Buffer>),
}

impl<'a> Pieces<'a> {
    fn new(job: &'a SaveJob) -> Self {
        Self {
            job,
            sections: job.config.sections().iter().map(heddle_shard::Section::values).collect(),
            section: 0,
            at: 0,
            asked: 0,
            answers: bounded(PIECES_AHEAD),
            back: bounded(2 * PIECES_AHEAD),
        }
    }

    /// The next piece; nothing after the last.
    fn next(&mut self) -> Result<Option<Buffer>, Failed> {
        while self.asked < PIECES_AHEAD && self.ask()? {}
        if self.asked == 0 {
            return Ok(None);
        }
        self.asked -= 1;
        Ok(Some(self.answers.1.recv().map_err(|_| Failed::Gone)??))
    }

    fn ask(&mut self) -> Result<bool, Failed> {
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
        self.asked += 1;
        let command = ToData::Save {
            shard: self.job.config.shard,
            cut: self.job.moment.cut,
            section,
            at,
            buffer,
            reply: self.answers.0.clone(),
        };
        self.job.thread.send(command).map_err(|_| Failed::Gone)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_storage::Op;
    use std::cell::RefCell;

    fn storage(reason: Reason) -> Failed {
        StorageError::new(Op::Write, "x", reason).into()
    }

    /// How it ends when the tries go so, and how many there were.
    async fn after(outcomes: Vec<Result<u32, Failed>>) -> (Result<u32, String>, usize) {
        let all = outcomes.len();
        let outcomes = RefCell::new(outcomes.into_iter());
        let once = || async {
            let next = outcomes.borrow_mut().next();
            next.expect("no more tries than planned")
        };
        let result = tried(Duration::ZERO, |_| {}, once).await;
        let left = outcomes.borrow().len();
        (result.map_err(|error| error.to_string()), all - left)
    }

    #[tokio::test]
    async fn a_file_that_fails_in_passing_is_begun_again_and_a_refusal_is_final() {
        let unavailable = || Err(storage(Reason::Unavailable));
        assert_eq!(after(vec![unavailable(), unavailable(), Ok(7)]).await, (Ok(7), 3));
        let (result, tries) = after((0..TRIES + 3).map(|_| unavailable()).collect()).await;
        assert_eq!((result.is_err(), tries), (true, TRIES as usize));
        for reason in [Reason::Denied, Reason::Quota(String::new()), Reason::NotFound] {
            let (result, tries) = after(vec![Err(storage(reason)), Ok(1)]).await;
            assert_eq!((result.is_err(), tries), (true, 1));
        }
    }

    #[tokio::test]
    async fn a_snapshot_that_cannot_be_read_twice_is_a_failure_of_storage_and_no_end_of_the_cut() {
        let (result, tries) =
            after(vec![Err(storage(Reason::Unavailable)), Err(Failed::Gone)]).await;
        assert!(result.is_err_and(|error| error.contains("cannot write x")));
        assert_eq!(tries, 2);
        assert_eq!(after(vec![Err(Failed::Gone)]).await, (Err(Failed::Gone.to_string()), 1));
    }
}
