//! Text as a source of records, one a line: [`LineFormat`] parses a line, [`task_bytes`] turns a piece of a file into runs of
//! whole lines and unpacks gzip ([`gunzip`]).

mod gunzip;
mod line;
mod row_lines;
mod task_bytes;

use std::sync::Arc;

use async_trait::async_trait;
use heddle_protocol::spec::BatchFeatures;

use crate::batch::{Batch, Negatives};
use crate::error::ReadError;
use crate::source::{Filled, RecordSource};
use crate::storage_wait::ReaderWait;
pub use line::{LineError, LineFormat};
use line::{LineRun, SpecialLine};
pub(crate) use line::{found, line_end, skip_spaces, wrong};
use row_lines::RowLines;
pub use task_bytes::LINE_BYTES_MAX;
use task_bytes::NextLines;
pub(crate) use task_bytes::{TaskBytes, line_of};

/// Lines before the place of a label are counted if at most this many bytes precede it.
const LABEL_LINES_BYTES_MAX: u64 = 1 << 20;

/// The records of a piece of text.
#[derive(Debug)]
pub(crate) struct Lines {
    bytes: TaskBytes,
    format: Box<dyn LineFormat>,
    /// Lines of the piece already read.
    lines: u64,
    /// Lines of the rows of the batch.
    row_lines: RowLines,
    /// Lines of the file before the piece, once computed.
    lines_before: Option<u64>,
    /// Spellings of the negative class whose first place is known.
    negatives: Negatives,
    /// Bytes of the last line, if it is malformed and in the buffer.
    rejected: usize,
    /// A line was malformed, and the file is known to be text.
    is_text: bool,
}

impl Lines {
    pub(crate) fn new(bytes: TaskBytes, format: Box<dyn LineFormat>) -> Self {
        Self {
            bytes,
            format,
            lines: 0,
            row_lines: RowLines::default(),
            lines_before: None,
            negatives: Negatives::default(),
            rejected: 0,
            is_text: false,
        }
    }

    /// The last line is malformed.
    async fn bad(&mut self, error: LineError, rejected: usize) -> Result<Filled, ReadError> {
        if !self.is_text {
            self.bytes.check_kind().await?;
        }
        (self.is_text, self.rejected) = (true, rejected);
        Ok(Filled::Bad(error.to_string()))
    }

    /// The last line has a first spelling. Every piece has such a line. Lines before the piece are therefore counted only in
    /// small files of this machine: elsewhere each pass would open each file once more, also at the NameNode, which training
    /// does not need.
    async fn first_of(&mut self, negatives: Negatives) -> Result<Filled, ReadError> {
        self.negatives = self.negatives.with(negatives);
        let byte = self.bytes.position();
        let counts = self.lines_before.is_some()
            || self.bytes.begins_file()
            || self.bytes.is_local() && byte <= LABEL_LINES_BYTES_MAX;
        let place = if counts {
            self.place().await?
        } else {
            format!("{} (before byte {byte})", self.bytes.file())
        };
        Ok(Filled::FirstOf { label: negatives.word(), place })
    }
}

#[async_trait]
impl RecordSource for Lines {
    async fn fill(
        &mut self,
        batch: &mut Batch,
        rows_max: usize,
        features: BatchFeatures,
    ) -> Result<Filled, ReadError> {
        if batch.is_empty() {
            self.row_lines.begin(self.lines);
        }
        while !batch.full(rows_max, features) {
            if !batch.is_empty() && self.bytes.may_wait() {
                return Ok(Filled::Waits);
            }
            match self.bytes.lines().await? {
                NextLines::End => return Ok(Filled::End),
                NextLines::TooLong => {
                    self.lines += 1;
                    self.row_lines.skip(batch.rows());
                    let what = format!("the line is longer than {LINE_BYTES_MAX} bytes");
                    return self.bad(LineError { column: LINE_BYTES_MAX + 1, what }, 0).await;
                }
                NextLines::Some => {}
            }
            let (negatives, lines) = (self.negatives, &mut self.lines);
            let row_lines = &mut self.row_lines;
            let mut run = LineRun { batch, rows_max, features, negatives, lines, row_lines };
            let read = self.format.read_lines(self.bytes.text(), self.bytes.limit(), &mut run);
            self.bytes.take(read.bytes);
            match read.special {
                SpecialLine::None => {}
                SpecialLine::Bad { error, rejected } => return self.bad(error, rejected).await,
                SpecialLine::FirstOf(negatives) => return self.first_of(negatives).await,
            }
        }
        Ok(Filled::Full)
    }

    async fn place(&mut self) -> Result<String, ReadError> {
        let before = match self.lines_before {
            Some(before) => before,
            None => self.bytes.lines_before().await?,
        };
        self.lines_before = Some(before);
        Ok(format!("{}:{}", self.bytes.file(), before + self.lines))
    }

    fn rejected(&self) -> &[u8] {
        self.bytes.taken(self.rejected)
    }

    fn place_of(&self, row: usize) -> String {
        format!("{}:{}", self.bytes.file(), self.row_lines.of(row))
    }

    fn watch(&mut self, wait: &Arc<ReaderWait>) {
        self.bytes.watch(wait);
    }
}
