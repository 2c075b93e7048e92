//! The ApplicationMaster's durable state: decisions that no other process can report.
//!
//! **Intuition.** A job makes few decisions (claim, rollback, outcome), and those that still matter fit in some
//! kilobytes ([`compact`]). So each write publishes all of them in one file, and a reader needs one file only.
//!
//! **Rules.**
//! - Each generation has its own directory `journal/g<n>/`, which no other generation writes. A successor begins its
//!   journal with the records that it continues. What a superseded ApplicationMaster still writes is never read.
//! - Write `<number>.json` and its sidecar `<number>.json.md5` at the same time, each whole under its name. Records are
//!   durable when both are there.
//! - After that delete the file before. Between two writes one file is left, whatever the number of rollbacks.
//! - The newest complete file counts. A newest file without a sidecar is a write whose records were never confirmed:
//!   the file before it counts.
//!
//! A complete file with a wrong sum is a **hard stop**, and so is a missing one: a confirmed record may be lost, and a
//! fresh start would contradict it.
//!
//! **Limits.** A write grows by 200 bytes for each evaluation of the run; its size does not depend on the number of
//! tasks, checkpoints or rollbacks.

mod error;
mod file;
mod read;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use bytes::Bytes;
use heddle_am_core::{Event, Record, RecordId, compact};
use heddle_backoff::Backoff;
use heddle_protocol::ids::Generation;
use heddle_protocol::view::{self, WarningCode};
use heddle_storage::checkpoint::{CheckpointDir, CheckpointError};
use heddle_storage::{
    Mode, Reason, StorageError, StorePath, WriteError, chain, publish_small, sidecar_line,
    sidecar_name,
};
use tokio::sync::mpsc;
use tracing::debug;

use crate::delay_warning::DelayWarning;
pub use error::JournalError;
pub use file::{Flaw, JOURNAL_VERSION, TooLong};
pub use read::{check_base, read};

/// How long a record is retried before the journal counts as broken. Far longer than a NameNode needs to restart or to
/// fail over: meanwhile training continues, and only a rollback would have to wait.
const RETRY_TIMEOUT: Duration = Duration::from_secs(1800);
/// The same where a quota or a disk is full: files of an abandoned checkpoint are being deleted, which may make room;
/// nothing else will.
const RETRY_TIMEOUT_FULL: Duration = Duration::from_secs(20);
/// Waits between two attempts.
const RETRY: Backoff = Backoff::new(200, 10_000);

/// A generation's journal, open for its owner.
#[derive(Debug)]
pub struct Journal {
    dir: CheckpointDir,
    generation: Generation,
    path: StorePath,
    /// Number of the newest file.
    number: u64,
    /// Number of the oldest file that may still be there.
    oldest: u64,
    /// The records of the newest file.
    records: Vec<Record>,
    delay: DelayWarning,
}

impl Journal {
    /// Begins the journal of a generation that was just claimed, with the records of the lineage that it continues
    /// (from [`read`]; none for a job that starts over).
    ///
    /// # Errors
    /// `Taken` when the generation has a journal already; otherwise what the storage reports.
    pub async fn open(
        dir: CheckpointDir,
        generation: Generation,
        carried: &[Record],
    ) -> Result<Self, JournalError> {
        let path = dir.journal_dir(generation)?;
        match dir.storage().mkdir(&path, Mode::DIR).await {
            Ok(()) => {}
            // Of an earlier attempt of this call, or of another process: only the latter has files.
            Err(WriteError::NotDone(error)) if error.is_exists() => {
                let entries = dir.storage().list(&path).await?;
                if entries.iter().any(|entry| file::number_of(entry.name()).is_some()) {
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
            number: 0,
            oldest: 1,
            records: Vec::new(),
            delay: DelayWarning::new("the journal"),
        };
        journal.publish(compact(carried.to_vec())).await?;
        Ok(journal)
    }

    /// Makes records durable, in one file. After a retryable error the same call may be made again.
    ///
    /// Where a record [needs it](Record::needs_claim_after), the claim is checked once more behind it: a successor claims
    /// before it reads, so it has read what is written before that check.
    ///
    /// # Errors
    /// `Checkpoint(Fenced)` when the generation was superseded; otherwise what the storage reports.
    pub async fn append(&mut self, records: &[Record]) -> Result<(), JournalError> {
        if records.is_empty() {
            return Ok(());
        }
        self.dir.check_highest(self.generation).await?;
        let all = self.records.iter().chain(records).cloned().collect();
        self.publish(compact(all)).await?;
        if records.iter().any(Record::needs_claim_after) {
            self.dir.check_highest(self.generation).await?;
        }
        Ok(())
    }

    /// Writes the next file, with these records.
    async fn publish(&mut self, records: Vec<Record>) -> Result<(), JournalError> {
        let number = self.number + 1;
        let name = file::name(number);
        let bytes = file::encode(self.generation, number, &records)?;
        let line = sidecar_line(file::sum(&bytes), &name);
        let sidecar = sidecar_name(&name);
        // One after the other would double the time until a decision may be acted upon.
        let (file, sum) =
            tokio::join!(self.put(&name, bytes.into()), self.put(&sidecar, line.into()));
        file?;
        sum?;
        self.number = number;
        self.records = records;
        Ok(())
    }

    async fn put(&self, name: &str, bytes: Bytes) -> Result<(), JournalError> {
        let file = self.path.join(name).map_err(StorageError::from)?;
        match publish_small(&**self.dir.storage(), &file, bytes).await {
            Ok(()) => Ok(()),
            // Other bytes under this number, in a directory that only this process writes.
            Err(WriteError::NotDone(error)) if error.is_exists() => {
                Err(JournalError::Taken { dir: self.dir.show(&self.path) })
            }
            Err(WriteError::NotDone(error)) => Err(error.into()),
            Err(WriteError::Unknown(source)) => {
                Err(JournalError::Unknown { file: self.dir.show(&file), source })
            }
        }
    }

    /// Deletes the files before the newest one. A file that cannot be deleted is harmless, and is tried again later.
    pub async fn delete_older(&mut self) {
        while self.oldest < self.number {
            let name = file::name(self.oldest);
            for name in [&name, &sidecar_name(&name)] {
                let Ok(file) = self.path.join(name) else { continue };
                match self.dir.storage().delete_file(&file).await {
                    Err(error) if !error.error().is_not_found() => {
                        debug!(%error, "journal_file_not_deleted");
                        return;
                    }
                    _ => {}
                }
            }
            self.oldest += 1;
        }
    }

    /// Writes the records that arrive, all that wait in one file, and reports when they are durable. Warnings about
    /// delays go to `notices`. Ends when the driver has ended, or with [`Event::JournalFailed`].
    pub async fn run(
        mut self,
        mut records: mpsc::UnboundedReceiver<(RecordId, Box<Record>)>,
        events: mpsc::UnboundedSender<Event>,
        notices: mpsc::UnboundedSender<view::JobEvent>,
    ) {
        self.delete_older().await;
        while let Some(first) = records.recv().await {
            let (mut ids, mut batch) = (vec![first.0], vec![*first.1]);
            while let Ok((id, record)) = records.try_recv() {
                ids.push(id);
                batch.push(*record);
            }
            if let Err(error) = self.append_with_retries(&batch, &notices).await {
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
            self.delete_older().await;
        }
    }

    async fn append_with_retries(
        &mut self,
        records: &[Record],
        notices: &mpsc::UnboundedSender<view::JobEvent>,
    ) -> Result<(), JournalError> {
        let begun = Instant::now();
        let mut backoff = RETRY;
        loop {
            let result = self.append(records).await;
            let retry = matches!(&result, Err(error) if begun.elapsed() < retry_timeout(error));
            let warning = match &result {
                Err(error) if retry => {
                    let error = chain(error);
                    debug!(error, "journal_write_failed");
                    self.delay.failed(Instant::now(), &error)
                }
                Ok(()) => self.delay.over(Instant::now()),
                Err(_) => None,
            };
            if let Some(text) = warning {
                let _driver_is_gone =
                    notices.send(view::JobEvent::warning(WarningCode::JournalDelayed, text));
            }
            if !retry {
                return result;
            }
            tokio::time::sleep(backoff.next_wait()).await;
        }
    }
}

/// How long retrying is worth it.
fn retry_timeout(error: &JournalError) -> Duration {
    match error {
        JournalError::Checkpoint(CheckpointError::Storage(error))
            if matches!(error.reason, Reason::Quota(_) | Reason::Full) =>
        {
            RETRY_TIMEOUT_FULL
        }
        error if error.is_retryable() => RETRY_TIMEOUT,
        _ => Duration::ZERO,
    }
}
