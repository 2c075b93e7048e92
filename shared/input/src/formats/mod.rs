//! The formats of records.

mod number;
pub(crate) mod words;
