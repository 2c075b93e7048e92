//! Parquet files: a file ([`stored`]) is read column by column on a thread of its own ([`blocks`]).

mod blocks;
mod stored;

use std::sync::Arc;

use async_trait::async_trait;
use heddle_columns::typed::FirstValue;
use heddle_parquet::{FileError, ReadAt, first_rows};
use heddle_protocol::manifest::{InputFile, TaskRange};
use tokio::runtime::Handle;

use crate::error::ReadError;
use crate::record_format::RecordFormat;
use crate::source::RecordSource;
use crate::typed::{FileLayout, StoredFile, TypedFormat, TypedHead, TypedRows};
use blocks::{ParquetBlocks, WantedRows};
use stored::{BlockingFile, footer};

/// Parquet files. A row has a place among the bytes of its row group, and belongs to the piece that has that byte.
pub(crate) struct Parquet;

#[async_trait]
impl TypedFormat for Parquet {
    fn name(&self) -> &'static str {
        "Parquet"
    }

    async fn open_rows(
        &self,
        format: RecordFormat,
        file: &InputFile,
        piece: TaskRange,
    ) -> Result<Box<dyn RecordSource>, ReadError> {
        let table = format.table();
        let stored = StoredFile::find(file)?;
        let footer = table.footers.get_or_read(file, footer(&stored)).await?;
        let layout = FileLayout::find(&table, &footer.columns, format.labels);
        let layout = layout.map_err(|what| stored.unfit(&table, &what))?;
        let runs = footer.runs(piece.start..piece.end);
        let (file, needed) = (Arc::new(stored), layout.needed.clone());
        let blocks = ParquetBlocks::new(WantedRows { file, footer, needed, runs });
        Ok(Box::new(TypedRows::new(format, layout, Box::new(blocks))))
    }

    async fn head(&self, file: &InputFile) -> Result<TypedHead, ReadError> {
        let footer = footer(&StoredFile::find(file)?).await?;
        let parts = footer.groups.iter().map(|group| group.start).collect();
        Ok(TypedHead::new(&footer.columns, footer.rows(), parts))
    }

    async fn rows(&self, file: &InputFile, most: usize) -> Result<Vec<Vec<FirstValue>>, ReadError> {
        let file = Arc::new(StoredFile::find(file)?);
        let footer = footer(&file).await?;
        let blocking = BlockingFile::new(Arc::clone(&file), Handle::current());
        let failure = blocking.failure();
        let blocking: Arc<dyn ReadAt> = Arc::new(blocking);
        let read = tokio::task::spawn_blocking(move || first_rows(&blocking, &footer, most));
        // A panic of the decoder is damage too.
        let read = read.await.unwrap_or_else(|error| Err(FileError(error.to_string())));
        read.map_err(|error| failure.take().unwrap_or_else(|| file.damaged(&error)))
    }
}
