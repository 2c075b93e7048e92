//! A value of a file, and what a column needs of it.

use std::fmt;

/// A value of a file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cell<'c> {
    /// Absent, or a text such as `NA`.
    Missing,
    /// Text, of a file without types or of a column of texts.
    Text(&'c [u8]),
    /// A number of a file with types.
    Number(f64),
    /// The key of a category of a file with types; see [`key`](crate::key).
    Key(u64),
}

/// What a column of a file with types is read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellNeed {
    /// A number: [`Cell::Number`].
    Number,
    /// The key of a value: [`Cell::Key`].
    Key,
    /// The keys of the items of a list: [`Encoder::item`](crate::Encoder::item).
    Items,
    /// Indices and values: [`Encoder::entry`](crate::Encoder::entry).
    Entries,
    /// It is not read.
    Skipped,
}

impl fmt::Display for Cell<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => Ok(()),
            Self::Text(text) => f.write_str(&String::from_utf8_lossy(text)),
            Self::Number(number) => number.fmt(f),
            Self::Key(key) => write!(f, "{key:016x}"),
        }
    }
}
