//! What a format with types shows of a file before it is read as records.

use std::ops::Range;

use async_trait::async_trait;
use heddle_columns::FileColumn;
use heddle_columns::typed::{FirstValue, TypedColumn, TypedColumns};
use heddle_protocol::manifest::{InputFile, TaskRange};
use heddle_storage::Reader;

use super::rows::NoStream;
use crate::batch::Batch;
use crate::error::ReadError;
use crate::record_format::RecordFormat;
use crate::source::{InputFormat, RecordSource, cut_evenly};

/// What a file with types shows before its rows are read.
#[derive(Debug)]
pub struct TypedHead {
    /// Its columns.
    pub columns: Vec<FileColumn>,
    /// Number of rows, or about as many.
    pub rows: u64,
    /// The first bytes of its parts (Parquet: row groups), where tasks may begin best.
    pub parts: Vec<u64>,
}

impl TypedHead {
    pub(crate) fn new(columns: &TypedColumns, rows: u64, parts: Vec<u64>) -> Self {
        let columns = columns.columns.iter();
        let own =
            |column: &TypedColumn| FileColumn { name: column.name.clone(), kind: column.kind };
        Self { columns: columns.map(own).collect(), rows, parts }
    }
}

/// A format with types; [`typed_format`](crate::typed_format) has one for each. It is an [`InputFormat`] too.
#[async_trait]
pub trait TypedFormat: Sync {
    /// Its name in messages.
    fn name(&self) -> &'static str;

    /// Opens the rows of a piece.
    ///
    /// # Errors
    /// The file is damaged or lacks a column, or the storage failed.
    async fn open_rows(
        &self,
        format: RecordFormat,
        file: &InputFile,
        piece: TaskRange,
    ) -> Result<Box<dyn RecordSource>, ReadError>;

    /// What a file shows before its rows are read.
    ///
    /// # Errors
    /// It is damaged, or the storage failed.
    async fn head(&self, file: &InputFile) -> Result<TypedHead, ReadError>;

    /// The first rows of a file, in the order of its columns.
    ///
    /// # Errors
    /// It is damaged, or the storage failed.
    async fn rows(&self, file: &InputFile, most: usize) -> Result<Vec<Vec<FirstValue>>, ReadError>;
}

#[async_trait]
impl<F: TypedFormat> InputFormat for F {
    fn split(&self, file: &InputFile, length: u64) -> Vec<Range<u64>> {
        cut_evenly(0..file.bytes, file.bytes.div_ceil(length)).collect()
    }

    async fn open(
        &self,
        format: RecordFormat,
        file: &InputFile,
        piece: TaskRange,
    ) -> Result<Box<dyn RecordSource>, ReadError> {
        self.open_rows(format, file, piece).await
    }

    fn stream(
        &self,
        _format: RecordFormat,
        name: &str,
        _input: Box<dyn Reader>,
    ) -> Box<dyn RecordSource> {
        Box::new(NoStream { name: name.to_owned(), format: self.name() })
    }

    fn sample(&self, _format: RecordFormat, _text: &[u8], _batch: &mut Batch) -> (u64, usize) {
        (0, 0)
    }
}
