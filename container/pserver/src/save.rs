//! Writes the snapshot of a shard to a file, piece by piece, while training goes on.
//!
//! The data thread copies each piece into a buffer of ours when it is asked to, so that nothing is
//! shared between the two; a few pieces are asked for ahead. The sum is taken on a thread of its own
//! by `heddle-storage` as the bytes go by. The data thread never waits for any of this.

use bytemuck::cast_slice;
use bytes::Bytes;
use crossbeam::channel::{Receiver, Sender, bounded};
use heddle_protocol::manifest::ShardFile;
use heddle_shard::{ShardConfig, SnapshotGone};
use heddle_storage::shard_file::{SaveError, ShardWriter};
use heddle_storage::{Location, LocationError, StorageError};

use crate::command::{Buffer, DataThread, ToData};
use crate::layout::{self, Moment};

/// Values of a piece: 512 KiB, which a data thread copies in some 50 µs. A multiple of the snapshot's unit.
const PIECE_VALUES: usize = 128 * 1024;
/// Pieces asked for ahead: while one is written, one is copied and one waits for its turn.
const PIECES_AHEAD: usize = 3;

/// A snapshot to be saved.
pub(crate) struct SaveJob {
    pub(crate) moment: Moment,
    pub(crate) config: ShardConfig,
    /// URL of the directory.
    pub(crate) staging: String,
    pub(crate) thread: DataThread,
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

/// Saves the shard. What was written of one that fails counts for nothing.
///
/// # Errors
/// The cut is over, or the storage failed.
pub(crate) async fn save(job: &SaveJob) -> Result<ShardFile, Failed> {
    let location = Location::parse(&job.staging)?;
    let storage = heddle_storage::connect(&location)?;
    let memory = memory(job)?;
    let header = layout::header(&job.config, job.moment, memory.len() as u64);
    let mut writer = ShardWriter::create(&*storage, location.path(), header).await?;
    writer.write(Bytes::from(memory)).await?;
    let mut pieces = Pieces::new(job);
    while let Some(buffer) = pieces.next()? {
        let back = pieces.back.0.clone();
        writer
            .write(Bytes::from_owner(Recycled { buffer, back }))
            .await?;
    }
    Ok(writer.finish(&*storage).await?)
}

fn memory(job: &SaveJob) -> Result<Vec<u8>, Failed> {
    let (reply, answer) = bounded(1);
    let command = ToData::SaveMemory {
        shard: job.config.shard,
        cut: job.moment.cut,
        reply,
    };
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
            sections: job
                .config
                .sections()
                .iter()
                .map(heddle_shard::Section::values)
                .collect(),
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
        while self
            .sections
            .get(self.section)
            .is_some_and(|&values| self.at == values)
        {
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
