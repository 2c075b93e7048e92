//! Parquet files as a source of records: the file ([`stored`]) is read column by column on a thread of its own ([`blocks`]), and
//! its rows become records here ([`rows`]). [`layout`] finds the columns of the job in a file.

mod blocks;
mod layout;
mod rows;
mod stored;

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use heddle_columns::FileColumn;
use heddle_parquet::{FileError, FirstValue, first_rows};
use heddle_protocol::manifest::{InputFile, TaskRange};
use heddle_storage::Reader;
use tokio::runtime::Handle;

use crate::batch::Batch;
use crate::error::ReadError;
use crate::record_format::RecordFormat;
use crate::source::{InputFormat, RecordSource, cut_evenly};
use layout::FileLayout;
use rows::ParquetRows;
pub(crate) use stored::Footers;
use stored::{BlockingFile, StoredFile};

/// Parquet files. A row has a place among the bytes of its row group, and belongs to the piece that has that byte.
pub(crate) struct Parquet;

#[async_trait]
impl InputFormat for Parquet {
    fn split(&self, file: &InputFile, length: u64) -> Vec<Range<u64>> {
        cut_evenly(0..file.bytes, file.bytes.div_ceil(length)).collect()
    }

    async fn open(
        &self,
        format: RecordFormat,
        file: &InputFile,
        piece: TaskRange,
    ) -> Result<Box<dyn RecordSource>, ReadError> {
        let table = format.table();
        let stored = StoredFile::find(file)?;
        let footer = match table.footers.get(file) {
            Some(footer) => footer,
            None => table.footers.put(file, stored.footer().await?),
        };
        let damaged = |what| ReadError::Damaged { file: stored.name(), what };
        let layout = FileLayout::find(&table, &footer, format.labels).map_err(damaged)?;
        let runs = footer.runs(piece.start..piece.end);
        Ok(Box::new(ParquetRows::new(format, Arc::new(stored), footer, layout, runs)))
    }

    fn stream(
        &self,
        _format: RecordFormat,
        name: &str,
        _input: Box<dyn Reader>,
    ) -> Box<dyn RecordSource> {
        Box::new(rows::NoStream(name.to_owned()))
    }

    fn sample(&self, _format: RecordFormat, _text: &[u8], _batch: &mut Batch) -> (u64, usize) {
        (0, 0)
    }
}

/// What the end of a Parquet file shows.
#[derive(Debug)]
pub struct ParquetHead {
    /// Its columns.
    pub columns: Vec<FileColumn>,
    /// Number of rows.
    pub rows: u64,
    /// The first bytes of its row groups.
    pub parts: Vec<u64>,
}

/// The first rows of a Parquet file, in the order of its columns.
///
/// # Errors
/// It is damaged, or the storage failed.
pub async fn parquet_rows(
    file: &InputFile,
    rows: usize,
) -> Result<Vec<Vec<FirstValue>>, ReadError> {
    let (file, bytes) = (Arc::new(StoredFile::find(file)?), file.bytes);
    let blocking = BlockingFile::new(Arc::clone(&file), Handle::current());
    let failure = blocking.failure();
    let read = tokio::task::spawn_blocking(move || first_rows(Arc::new(blocking), bytes, rows));
    // A panic of the decoder is damage too.
    let read = read.await.unwrap_or_else(|error| Err(FileError(error.to_string())));
    read.map_err(|error| failure.take().unwrap_or_else(|| file.damaged(&error)))
}

/// The columns of a Parquet file.
///
/// # Errors
/// It is damaged, or the storage failed.
pub async fn parquet_head(file: &InputFile) -> Result<ParquetHead, ReadError> {
    let footer = StoredFile::find(file)?.footer().await?;
    let columns = footer.columns.iter();
    let columns = columns.map(|column| FileColumn { name: column.name.clone(), kind: column.kind });
    let parts = footer.groups.iter().map(|group| group.start).collect();
    Ok(ParquetHead { columns: columns.collect(), rows: footer.rows(), parts })
}
