//! Columns of Parquet files (Apache Parquet format 2.x) for tables with columns.
//!
//! A [`Footer`] has the columns of a file with their types, and its row groups. A [`RowReader`] reads the wanted columns of a
//! run of rows as [blocks](heddle_columns::typed::RowBlock), page by page. Texts are read as the keys of their features
//! ([`heddle_columns::key`]): a text of a dictionary is hashed once.
//!
//! Bytes come in through [`ReadAt`], so that the crate is free of input and output.

mod column_pages;
mod encrypted;
mod first_rows;
mod footer;
mod key_pages;
mod leaf;
mod page_index;
mod row_reader;
mod source;
#[cfg(test)]
mod tests;
mod thrift;
mod types;

pub use first_rows::first_rows;
pub use footer::{Footer, RowGroup, RowRun, TAIL_BYTES, footer_bytes};
pub use row_reader::RowReader;
pub use source::ReadAt;

/// Why a file cannot be read. The file is the caller's to name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FileError(pub String);

impl From<parquet::errors::ParquetError> for FileError {
    fn from(error: parquet::errors::ParquetError) -> Self {
        Self(error.to_string())
    }
}
