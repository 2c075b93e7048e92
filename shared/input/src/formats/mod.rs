//! The formats of records: one table, and a file for each format. Their names are beside
//! [`DataFormat`].

mod label;
mod number;
mod pieces;
mod table_text;
mod words;

use std::ops::Range;

use async_trait::async_trait;
use heddle_protocol::job_spec::DataFormat;
use heddle_protocol::manifest::{InputFile, TaskRange};
use heddle_storage::Reader;

use crate::batch::Batch;
use crate::error::ReadError;
use crate::lines::{LineFormat, LineRecords, TaskBytes};
use crate::record_format::RecordFormat;
use crate::source::{InputFormat, RecordSource};
use pieces::{line_pieces, sample_lines};
pub(crate) use table_text::field_names;
pub use words::words;

/// The table of formats.
#[must_use]
pub fn input_format(format: DataFormat) -> &'static dyn InputFormat {
    match format {
        DataFormat::Libsvm => &LinesOf(words::<true>),
        DataFormat::Dummy => &LinesOf(words::<false>),
        DataFormat::Csv | DataFormat::Tsv => &table_text::TableText,
    }
}

/// Files of text, plain or gzip, with a record a line: the parser of a line. They are cut at any byte, and a record belongs to
/// the piece that has its first byte; gzip files are not cut.
struct LinesOf(fn(RecordFormat) -> Box<dyn LineFormat>);

#[async_trait]
impl InputFormat for LinesOf {
    fn split(&self, file: &InputFile, length: u64) -> Vec<Range<u64>> {
        line_pieces(file, length)
    }

    async fn open(
        &self,
        format: RecordFormat,
        file: &InputFile,
        piece: TaskRange,
    ) -> Result<Box<dyn RecordSource>, ReadError> {
        let bytes = TaskBytes::open(file, piece).await?;
        Ok(Box::new(LineRecords::new(bytes, self.0(format))))
    }

    fn stream(
        &self,
        format: RecordFormat,
        name: &str,
        input: Box<dyn Reader>,
    ) -> Box<dyn RecordSource> {
        Box::new(LineRecords::new(TaskBytes::of_stream(name, input), self.0(format)))
    }

    fn sample(&self, format: RecordFormat, text: &[u8], batch: &mut Batch) -> (u64, usize) {
        sample_lines(&mut *self.0(format), text, batch)
    }
}
