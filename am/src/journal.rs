//! The ApplicationMaster's durable memory: what cannot be found out again by asking.
//!
//! A journal is a directory of small files, `journal/g<n>/00000001`, `…2`, …: each appears whole under
//! its name and is never changed. So there is no open file to recover, no lease, no torn tail, and a
//! missing number shows. Each generation has its own directory, which nobody else writes.
//!
//! The first segment of a journal is a snapshot: all records that matter of the lineage that the generation
//! continues ([`compact`]), so that a journal's length does not grow with the number of rollbacks. Therefore the newest journal alone tells the whole story; what a predecessor that was
//! given up still writes into its own is never read. Further snapshots bound what must be read, and
//! the segments before one are deleted after it is durable.
//!
//! A missing number, a wrong sum or a broken chain is a **hard stop**: a record that was acted upon
//! may be gone, and a fresh start would contradict it. Only a last segment that ends in the middle is
//! dropped: nobody was told that it is durable.

mod segment;

use heddle_protocol::exit_code::ExitCode;

#[cfg(test)]
mod tests;

use heddle_storage::chain;
use std::time::{Duration, Instant};

use bytes::Bytes;
use heddle_am_core::{Event, Record, RecordId, compact};
use heddle_protocol::ids::{CutId, Generation};
use heddle_protocol::view;
use heddle_storage::checkpoint::{CheckpointDir, CheckpointError};
use heddle_storage::{
    Mode, Reason, StorageError, StorePath, WriteError, publish_small, read_small,
};
use tokio::sync::mpsc;
use tracing::{debug, warn};

use crate::delay_warning::DelayWarning;
use crate::driver::notice;
use crate::store::exit_code_of;
pub use segment::{Flaw, JOURNAL_VERSION, SegmentError, TooLong};
use segment::{Kind, Link, SEGMENT_BYTES_MAX, START};

/// Segments after which a snapshot is written.
const SNAPSHOT_EVERY: u64 = 32;
/// How long a record is tried before the journal counts as broken. Far longer than a NameNode needs to
/// restart or to fail over: meanwhile training goes on, and only a rollback would have to wait.
const PATIENCE: Duration = Duration::from_secs(1800);
/// The same where a quota or a disk is full: files of a checkpoint that was given up are being deleted, which may
/// make room; nothing else will.
const PATIENCE_FULL: Duration = Duration::from_secs(20);
/// First wait between two tries; doubled up to the last.
const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_LAST: Duration = Duration::from_secs(10);

/// Why the journal cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The checkpoint directory: storage, or owned by somebody else.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A segment is damaged, or of a later version.
    #[error("{file} is damaged")]
    Segment {
        /// Which.
        file: String,
        /// Where and how.
        #[source]
        source: SegmentError,
    },
    /// A segment is missing.
    #[error("{dir}: segment {missing:08} is missing")]
    Gap {
        /// The journal.
        dir: String,
        /// The number.
        missing: u64,
    },
    /// A record is no record of ours.
    #[error("{file}: record {index} cannot be read")]
    Record {
        /// Which segment.
        file: String,
        /// Which record in it, from 0.
        index: usize,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// A record is too long.
    #[error(transparent)]
    TooLong(#[from] TooLong),
    /// The outcome of a write is unknown; the same call may be made again.
    #[error("whether {file} was written is unknown")]
    Unknown {
        /// Which.
        file: String,
        /// What was lost.
        #[source]
        source: StorageError,
    },
    /// The generation has a journal already: somebody else writes under our claim.
    #[error("{dir} is not empty: somebody else writes the journal of this generation")]
    Taken {
        /// The journal.
        dir: String,
    },
}

impl From<StorageError> for JournalError {
    fn from(error: StorageError) -> Self {
        Self::Checkpoint(error.into())
    }
}

impl JournalError {
    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unknown { .. } => true,
            Self::Checkpoint(error) => error.is_retryable(),
            _ => false,
        }
    }

    /// How long it is worth trying again.
    fn patience(&self) -> Duration {
        match self {
            Self::Checkpoint(CheckpointError::Storage(error))
                if matches!(error.reason, Reason::Quota(_) | Reason::Full) =>
            {
                PATIENCE_FULL
            }
            error if error.is_retryable() => PATIENCE,
            _ => Duration::ZERO,
        }
    }

    /// The exit code of a run that cannot go on because of it.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            error if error.is_fenced() => ExitCode::Fenced,
            Self::Checkpoint(CheckpointError::Storage(error)) => exit_code_of(error),
            Self::Unknown { .. } => ExitCode::Unreachable,
            _ => ExitCode::Checkpoint,
        }
    }

    /// Whether another ApplicationMaster owns the directory.
    pub fn is_fenced(&self) -> bool {
        match self {
            Self::Checkpoint(error) => error.is_fenced(),
            Self::Taken { .. } => true,
            _ => false,
        }
    }
}

/// A generation's journal, open for its owner.
#[derive(Debug)]
pub struct Journal {
    dir: CheckpointDir,
    generation: Generation,
    path: StorePath,
    /// Number of the last segment.
    seq: u64,
    /// Its last record.
    tip: Link,
    /// Number of the last snapshot.
    snapshot: u64,
    /// The records that the next snapshot holds, and those since the last one.
    records: Vec<Record>,
    late: DelayWarning,
}

/// All records of the lineage: those of the newest journal that has any. `below` bounds the
/// generations that are looked at.
///
/// # Errors
/// A gap, a damaged segment or a broken chain, naming file and offset.
pub async fn read(dir: &CheckpointDir, below: Generation) -> Result<Vec<Record>, JournalError> {
    for generation in dir.journals().await?.into_iter().rev().filter(|one| *one < below) {
        let path = dir.journal_dir(generation)?;
        if let Some(payloads) = read_one(dir, generation, &path).await? {
            return payloads
                .iter()
                .enumerate()
                .map(|(index, payload)| {
                    serde_json::from_slice(payload).map_err(|source| JournalError::Record {
                        file: dir.show(&path),
                        index,
                        source,
                    })
                })
                .collect();
        }
        // Claimed by one that died before its first record: it decided nothing.
        debug!(%generation, "an empty journal is passed over");
    }
    Ok(Vec::new())
}

/// Refuses to start from initial values where the records say that there was a checkpoint: somebody
/// has removed them, and what was trained would be lost silently.
///
/// # Errors
/// `Lost`, naming the last checkpoint recorded.
pub fn check_base(
    dir: &CheckpointDir,
    records: &[Record],
    base: Option<CutId>,
) -> Result<(), CheckpointError> {
    let last = records.iter().rev().find_map(|record| match record {
        Record::Commit { cut, .. } => Some(*cut),
        _ => None,
    });
    match (base, last) {
        (None, Some(cut)) => {
            let dir = dir.show(dir.root());
            Err(CheckpointError::Lost { dir, cut })
        }
        _ => Ok(()),
    }
}

fn segment_name(seq: u64) -> String {
    format!("{seq:08}")
}

fn seq_of(name: &str) -> Option<u64> {
    let seq = name.parse().ok().filter(|seq| *seq > 0)?;
    (segment_name(seq) == name).then_some(seq)
}

/// The payloads of one generation's journal; `None` when it has no complete segment.
async fn read_one(
    dir: &CheckpointDir,
    generation: Generation,
    path: &StorePath,
) -> Result<Option<Vec<Vec<u8>>>, JournalError> {
    let mut seqs: Vec<u64> =
        dir.storage().list(path).await?.iter().filter_map(|entry| seq_of(entry.name())).collect();
    seqs.sort_unstable();
    let mut found = Vec::new();
    // From the newest back to the nearest snapshot. Segments before it may be half deleted.
    for (index, &seq) in seqs.iter().enumerate().rev() {
        if found.last().is_some_and(|(later, _): &(u64, _)| *later != seq + 1) {
            return Err(JournalError::Gap { dir: dir.show(path), missing: seq + 1 });
        }
        let file = path.join(&segment_name(seq)).map_err(StorageError::from)?;
        let bytes = read_small(&**dir.storage(), &file, SEGMENT_BYTES_MAX).await?;
        match segment::decode(&bytes, generation, seq) {
            Ok(segment) => {
                let begin = segment.kind == Kind::Snapshot;
                found.push((seq, segment));
                if begin {
                    break;
                }
            }
            Err(error) if error.what == Flaw::Partial && index + 1 == seqs.len() => {
                warn!(file = %dir.show(&file), "a torn last journal segment is dropped");
            }
            Err(source) => {
                return Err(JournalError::Segment { file: dir.show(&file), source });
            }
        }
    }
    let Some((lowest, first)) = found.last() else {
        return Ok(None);
    };
    if first.kind != Kind::Snapshot {
        return Err(JournalError::Gap { dir: dir.show(path), missing: lowest - 1 });
    }
    let (mut payloads, mut tip) = (Vec::new(), START);
    for (seq, segment) in found.into_iter().rev() {
        if segment.after.is_some_and(|after| after != tip) {
            let file = path.join(&segment_name(seq)).map_err(StorageError::from)?;
            let source = SegmentError { offset: 32, what: Flaw::Chain };
            return Err(JournalError::Segment { file: dir.show(&file), source });
        }
        if !segment.payloads.is_empty() {
            tip = segment.last;
        }
        payloads.extend(segment.payloads);
    }
    Ok(Some(payloads))
}

impl Journal {
    /// Begins the journal of a generation just claimed, with the records of the lineage that it
    /// continues (from [`read`]; none for a job that trains anew).
    ///
    /// # Errors
    /// `Taken` when there is one already; what the storage says.
    pub async fn open(
        dir: CheckpointDir,
        generation: Generation,
        carried: &[Record],
    ) -> Result<Self, JournalError> {
        let path = dir.journal_dir(generation)?;
        match dir.storage().mkdir(&path, Mode::DIR).await {
            Ok(()) => {}
            // Of an earlier try of ours, or somebody else's: its content tells.
            Err(WriteError::NotDone(error)) if error.is_exists() => {
                if dir
                    .storage()
                    .list(&path)
                    .await?
                    .iter()
                    .any(|entry| seq_of(entry.name()).is_some())
                {
                    return Err(JournalError::Taken { dir: dir.show(&path) });
                }
            }
            Err(WriteError::NotDone(error)) => return Err(error.into()),
            Err(WriteError::Unknown(source)) => {
                if dir.storage().stat(&path).await.is_err() {
                    return Err(JournalError::Unknown { file: dir.show(&path), source });
                }
            }
        }
        let mut journal = Self {
            dir,
            generation,
            path,
            seq: 0,
            tip: START,
            snapshot: 0,
            records: carried.to_vec(),
            late: DelayWarning::new("the journal"),
        };
        journal.write_snapshot().await?;
        Ok(journal)
    }

    /// Makes records durable, in one segment. When it returns well they are; after a retryable error
    /// the same call may be made again.
    ///
    /// # Errors
    /// `Checkpoint(Fenced)` when the generation was superseded; what the storage says.
    pub async fn append(&mut self, records: &[Record]) -> Result<(), JournalError> {
        if records.is_empty() {
            return Ok(());
        }
        self.dir.check_highest(self.generation).await?;
        let payloads = payloads_of(records);
        let (bytes, tip) =
            segment::encode(self.generation, self.seq + 1, Kind::Records, self.tip, &payloads)?;
        self.put(self.seq + 1, bytes).await?;
        self.seq += 1;
        self.tip = tip;
        self.records.extend_from_slice(records);
        if self.seq - self.snapshot >= SNAPSHOT_EVERY {
            // The records are durable; a snapshot only makes the next start quicker.
            if let Err(error) = self.write_snapshot().await {
                warn!(%error, "no journal snapshot was written");
            }
        }
        Ok(())
    }

    async fn write_snapshot(&mut self) -> Result<(), JournalError> {
        let seq = self.seq + 1;
        self.records = compact(std::mem::take(&mut self.records));
        let payloads = payloads_of(&self.records);
        let (bytes, tip) = segment::encode(self.generation, seq, Kind::Snapshot, START, &payloads)?;
        self.put(seq, bytes).await?;
        let before = self.snapshot;
        self.seq = seq;
        self.snapshot = seq;
        self.tip = tip;
        // Down to the snapshot before, newest first: whatever stops this, what is left has no reader
        // and the segments from the new snapshot on are without a gap.
        for old in (before.max(1)..seq).rev() {
            let file = self.path.join(&segment_name(old)).map_err(StorageError::from)?;
            if let Err(error) = self.dir.storage().delete_file(&file).await {
                debug!(%error, "an old journal segment is left");
            }
        }
        Ok(())
    }

    async fn put(&self, seq: u64, bytes: Vec<u8>) -> Result<(), JournalError> {
        let file = self.path.join(&segment_name(seq)).map_err(StorageError::from)?;
        match publish_small(&**self.dir.storage(), &file, Bytes::from(bytes)).await {
            Ok(()) => Ok(()),
            // Other bytes under our number, in a directory that only we write.
            Err(WriteError::NotDone(error)) if error.is_exists() => {
                Err(JournalError::Taken { dir: self.dir.show(&self.path) })
            }
            Err(WriteError::NotDone(error)) => Err(error.into()),
            Err(WriteError::Unknown(source)) => {
                Err(JournalError::Unknown { file: self.dir.show(&file), source })
            }
        }
    }

    /// Writes what comes, all that is waiting in one segment, and tells when it is durable. Ends when
    /// the driver is gone, or with [`Event::JournalFailed`].
    pub async fn run(
        mut self,
        mut records: mpsc::UnboundedReceiver<(RecordId, Box<Record>)>,
        events: mpsc::UnboundedSender<Event>,
    ) {
        while let Some(first) = records.recv().await {
            let (mut ids, mut batch) = (vec![first.0], vec![*first.1]);
            while let Ok((id, record)) = records.try_recv() {
                ids.push(id);
                batch.push(*record);
            }
            if let Err(error) = self.append_patiently(&batch).await {
                let _driver_is_gone = events.send(Event::JournalFailed {
                    exit_code: error.exit_code(),
                    fenced: error.is_fenced(),
                    error: chain(&error),
                });
                return;
            }
            for record in ids {
                if events.send(Event::RecordDurable { record }).is_err() {
                    return;
                }
            }
        }
    }

    /// Appends, and tries again while that may help.
    async fn append_patiently(&mut self, records: &[Record]) -> Result<(), JournalError> {
        let begun = Instant::now();
        let mut wait = RETRY_FIRST;
        loop {
            let result = self.append(records).await;
            let told = match &result {
                Err(error) if begun.elapsed() < error.patience() => {
                    let error = chain(error);
                    debug!(error, "the journal is late");
                    self.late.failed(Instant::now(), &error)
                }
                Ok(()) => self.late.over(Instant::now()),
                Err(_) => None,
            };
            if let Some(text) = told {
                notice(&view::Event::Warning { text });
            }
            match result {
                Err(error) if begun.elapsed() < error.patience() => {
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(RETRY_LAST);
                }
                result => return result,
            }
        }
    }
}

fn payloads_of(records: &[Record]) -> Vec<Vec<u8>> {
    let json = |record| serde_json::to_vec(record).expect("records are plain data with text keys");
    records.iter().map(json).collect()
}
