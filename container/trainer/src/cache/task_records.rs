//! The records of a task, from its file or from what is kept of it.

use std::io::ErrorKind;
use std::sync::Arc;

use heddle_input::{
    BadCount, BadPolicy, Batch, ReadError, ReaderWait, TaskReader, check_unchanged,
};
use heddle_protocol::manifest::InputFile;
use heddle_protocol::process_figures::{PROCESS, ProcessFigure};

use super::{KeptKey, TaskContent, TaskRecorder, block};

/// The records of a task in batches.
#[derive(Debug)]
pub(crate) enum TaskRecords {
    /// From its file; `Some`: they are kept.
    Read(Box<TaskReader>, Option<TaskRecorder>),
    /// From the cache.
    Kept(KeptRecords),
}

/// What is kept of a task, and how far it was read.
#[derive(Debug)]
pub(crate) struct KeptRecords {
    key: KeptKey,
    content: Arc<TaskContent>,
    /// Segments that were read before the present one.
    segments: usize,
    /// The present segment, if it is on disk.
    read: Vec<u8>,
    /// Bytes of the present segment that were read.
    at: usize,
}

impl TaskRecords {
    /// What is kept of a task, unless its file has changed.
    pub(crate) async fn kept(
        key: KeptKey,
        content: Arc<TaskContent>,
        file: &InputFile,
    ) -> Result<Self, ReadError> {
        check_unchanged(file).await?;
        Ok(Self::Kept(KeptRecords::new(key, content)))
    }

    /// The same, with its reads recorded in `wait`.
    pub(crate) fn watched(self, wait: &Arc<ReaderWait>) -> Self {
        match self {
            Self::Read(reader, recorder) => Self::Read(Box::new(reader.watched(wait)), recorder),
            Self::Kept(kept) => Self::Kept(kept),
        }
    }

    /// See [`TaskReader::next_batch`]; `rows_max` is the same for each pass.
    pub(crate) async fn next_batch(
        &mut self,
        rows_max: usize,
        batch: &mut Batch,
    ) -> Result<(), ReadError> {
        let (reader, recorder) = match self {
            Self::Kept(kept) => return kept.next_batch(batch),
            Self::Read(reader, recorder) => (reader, recorder),
        };
        reader.next_batch(rows_max, batch).await?;
        if !batch.is_empty() {
            // Dropped if it does not fit.
            *recorder = recorder.take().and_then(|mut kept| kept.add(batch).then_some(kept));
        } else if let Some(recorder) = recorder.take() {
            let bad = reader.bad_records();
            // Each pass writes its own file of records that are set apart.
            if bad.records == 0 || !matches!(reader.policy(), BadPolicy::Quarantine(_)) {
                recorder.finish(bad.clone());
            }
        }
        Ok(())
    }

    /// See [`TaskReader::bad_records`], at the end of the task.
    pub(crate) fn bad_records(&self) -> &BadCount {
        match self {
            Self::Read(reader, _) => reader.bad_records(),
            Self::Kept(kept) => &kept.content.bad,
        }
    }
}

impl KeptRecords {
    pub(super) fn new(key: KeptKey, content: Arc<TaskContent>) -> Self {
        Self { key, content, segments: 0, read: Vec::new(), at: 0 }
    }

    pub(super) fn next_batch(&mut self, batch: &mut Batch) -> Result<(), ReadError> {
        let content = &self.content;
        let read = loop {
            let Some(segment) = content.segments.get(self.segments) else {
                batch.clear();
                return Ok(());
            };
            let bytes = content.cache.place.bytes(segment, self.at > 0, &mut self.read);
            match bytes.map(|bytes| (bytes.len(), bytes.get(self.at..).unwrap_or_default())) {
                Ok((_, [])) => (self.segments, self.at) = (self.segments + 1, 0),
                Ok((len, block)) => {
                    let rest = block::read(block, batch);
                    break rest.map(|rest| len - rest.len()).ok_or(ErrorKind::InvalidData.into());
                }
                Err(error) => break Err(error),
            }
        };
        match read {
            Ok(at) => self.at = at,
            Err(source) => {
                content.cache.forget(self.key);
                return Err(ReadError::Cache { source });
            }
        }
        PROCESS.add(ProcessFigure::CachedRows, batch.rows() as u64);
        Ok(())
    }
}
