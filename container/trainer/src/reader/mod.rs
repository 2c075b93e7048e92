//! From input files to minibatches.
//!
//! [`mod@line`] parses one line of text into a row; [`bytes`] turns a task's file into runs of whole lines and
//! decompresses gzip ([`gunzip`]); [`task`] combines both and handles malformed records. None of them assigns tasks: [`crate::feed`]
//! does.

pub mod bytes;
pub mod error;
pub mod gunzip;
pub mod line;
mod number;
mod row_lines;
pub mod task;

pub use error::ReadError;
pub use line::{Labels, RecordFormat};
pub use row_lines::RowLines;
pub use task::{BadPolicy, TaskReader};
