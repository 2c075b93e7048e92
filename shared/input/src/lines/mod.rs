//! Text as a source of records, one a line: [`LineFormat`] parses a line, `task_bytes` turns a piece of a file into runs of
//! whole lines and unpacks it.

mod line;
mod row_lines;
mod task_bytes;

use std::sync::Arc;

use async_trait::async_trait;

use crate::batch::{Batch, Negatives};
use crate::error::ReadError;
use crate::source::{BatchLimit, Filled, RecordSource};
use crate::storage_wait::ReaderWait;
pub use line::{LineCount, LineError, LineFormat};
pub(crate) use line::{found, line_end, skip_spaces, wrong};
pub use task_bytes::LINE_BYTES_MAX;
use task_bytes::NextLines;
pub(crate) use task_bytes::{
    BYTE_ORDER_MARK, TaskBytes, first_line, is_blank, line_of, refusal, text_of_records,
};

/// Lines before the place of a label are counted if at most this many bytes precede it.
const LABEL_LINES_BYTES_MAX: u64 = 1 << 20;

/// The records of a piece of text.
#[derive(Debug)]
pub(crate) struct LineRecords {
    bytes: TaskBytes,
    format: Box<dyn LineFormat>,
    lines: LineCount,
    /// Lines of the file before the piece, once computed.
    lines_before: Option<u64>,
    /// A line was malformed, and the file is known to be text.
    is_text: bool,
}

impl LineRecords {
    pub(crate) fn new(bytes: TaskBytes, format: Box<dyn LineFormat>) -> Self {
        Self { bytes, format, lines: LineCount::default(), lines_before: None, is_text: false }
    }

    /// The last line is malformed.
    async fn bad(&mut self, error: &LineError) -> Result<Filled, ReadError> {
        if !self.is_text {
            self.bytes.check_kind().await?;
            self.is_text = true;
        }
        Ok(Filled::Bad(error.to_string()))
    }

    /// The last line has a first spelling. Every piece has such a line. Lines before the piece are therefore counted only in
    /// small files of this machine: elsewhere each pass would open each file once more, also at the NameNode, which training
    /// does not need.
    async fn first_of(&mut self, negatives: Negatives) -> Result<Filled, ReadError> {
        self.lines.negatives = self.lines.negatives.with(negatives);
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
impl RecordSource for LineRecords {
    async fn fill(&mut self, batch: &mut Batch, most: BatchLimit) -> Result<Filled, ReadError> {
        if batch.is_empty() {
            self.lines.of_rows.begin(self.lines.read);
        }
        while !batch.full(most.rows, most.features) {
            if !batch.is_empty() && self.bytes.may_wait() {
                return Ok(Filled::Waits);
            }
            match self.bytes.lines().await? {
                NextLines::End => return Ok(Filled::End),
                NextLines::TooLong => {
                    self.lines.read += 1;
                    self.lines.of_rows.skip(batch.rows());
                    self.lines.rejected = 0;
                    let what = format!("the line is longer than {LINE_BYTES_MAX} bytes");
                    return self.bad(&LineError { column: LINE_BYTES_MAX + 1, what }).await;
                }
                NextLines::Some => {}
            }
            let (text, limit) = (self.bytes.text(), self.bytes.limit());
            let (bytes, last) = self.format.read_lines(text, limit, batch, most, &mut self.lines);
            self.bytes.take(bytes);
            match last {
                Err(error) => return self.bad(&error).await,
                Ok(new) if !new.is_empty() => return self.first_of(new).await,
                Ok(_) => {}
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
        Ok(format!("{}:{}", self.bytes.file(), before + self.lines.read))
    }

    fn rejected(&self) -> &[u8] {
        self.bytes.taken(self.lines.rejected)
    }

    fn place_of(&self, row: usize) -> String {
        format!("{}:{}", self.bytes.file(), self.lines.of_rows.of(row))
    }

    fn watch(&mut self, wait: &Arc<ReaderWait>) {
        self.bytes.watch(wait);
    }
}
