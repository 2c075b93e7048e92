//! Text as a source of records, one a line: runs of whole lines ([`task_bytes`]), unpacked ([`gunzip`]).

pub(crate) mod gunzip;
mod row_lines;
pub(crate) mod task_bytes;

pub use row_lines::RowLines;
