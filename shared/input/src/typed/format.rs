//! What a format with types shows of a file before it is read as records.

use async_trait::async_trait;
use heddle_columns::FileColumn;
use heddle_columns::typed::{FirstValue, TypedColumn, TypedColumns};
use heddle_protocol::manifest::InputFile;

use crate::error::ReadError;

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

/// A format with types; [`typed_format`](crate::typed_format) has one for each.
#[async_trait]
pub trait TypedFormat: Sync {
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
