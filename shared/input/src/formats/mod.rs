//! The formats of records: one table, and a file for each format. Their names are beside
//! [`DataFormat`].

pub(crate) mod label;
mod number;
mod table_text;
mod words;

use std::ops::Range;

use async_trait::async_trait;
use heddle_protocol::job_spec::DataFormat;
use heddle_protocol::manifest::{Compression, InputFile, TaskRange};
use heddle_storage::Reader;

use crate::avro::Avro;
use crate::batch::Batch;
use crate::error::ReadError;
use crate::lines::{LineFormat, LineRecords, TaskBytes, first_line, line_of};
use crate::parquet::Parquet;
use crate::record_format::RecordFormat;
use crate::source::{InputFormat, RecordSource, cut_evenly};
use crate::typed::TypedFormat;
pub(crate) use table_text::{Splitter, field_names};
pub use words::words;

/// The table of formats.
#[must_use]
pub fn input_format(format: DataFormat) -> &'static dyn InputFormat {
    match format {
        DataFormat::Libsvm => &LinesOf(words::<true>),
        DataFormat::Dummy => &LinesOf(words::<false>),
        DataFormat::Csv | DataFormat::Tsv => &LinesOf(table_text::table_lines),
        DataFormat::Parquet => &Parquet,
        DataFormat::Avro => &Avro,
    }
}

/// The formats whose values have types.
#[must_use]
pub fn typed_format(format: DataFormat) -> Option<&'static dyn TypedFormat> {
    match format {
        DataFormat::Parquet => Some(&Parquet),
        DataFormat::Avro => Some(&Avro),
        DataFormat::Libsvm | DataFormat::Dummy | DataFormat::Csv | DataFormat::Tsv => None,
    }
}

/// Files of text, plain or packed, with a record a line: the parser of a line. They are cut at any byte, and a record belongs to
/// the piece that has its first byte; packed files are not cut.
struct LinesOf(fn(RecordFormat) -> Box<dyn LineFormat>);

#[async_trait]
impl InputFormat for LinesOf {
    fn split(&self, file: &InputFile, length: u64) -> Vec<Range<u64>> {
        let pieces = match file.compression {
            Compression::None => file.bytes.div_ceil(length),
            _ => u64::from(file.bytes > 0),
        };
        cut_evenly(0..file.bytes, pieces).collect()
    }

    async fn open(
        &self,
        format: RecordFormat,
        file: &InputFile,
        piece: TaskRange,
    ) -> Result<Box<dyn RecordSource>, ReadError> {
        let (bytes, mut lines) = (TaskBytes::open(file, piece).await?, self.0(format));
        let begins_file = piece.start == 0 || file.compression != Compression::None;
        if !begins_file && lines.lacks_first_line(&file.url) {
            let place = |error| ReadError::Record { place: format!("{}:1:{error}", file.url) };
            lines.take_first_line(&file.url, &first_line(file).await?).map_err(place)?;
        }
        Ok(Box::new(LineRecords::new(bytes, lines)))
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
        let (mut lines, mut records, mut at) = (self.0(format), 0, 0);
        while text[at..].contains(&b'\n') {
            let read = lines.read_line(&text[at..], batch);
            let (len, has_record) = read.unwrap_or_else(|_| (line_of(&text[at..]).len(), true));
            at += len;
            records += u64::from(has_record);
        }
        (records, at)
    }
}
