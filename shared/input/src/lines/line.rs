//! One line of text as a record: what a format of lines provides.

use std::fmt::{self, Debug};

use super::row_lines::RowLines;
use super::task_bytes::{BYTE_ORDER_MARK, line_of};
use crate::batch::{Batch, Negatives};
use crate::source::BatchLimit;

/// Why a line is not a record, with the position in the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineError {
    /// Byte of the line, from 1.
    pub column: usize,
    /// The text found there and what was expected.
    pub what: String,
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.column, self.what)
    }
}

/// A format of text with a record a line. An implementer parses a line; the loop over lines is compiled for each, so that a
/// batch costs one virtual call.
pub trait LineFormat: Debug + Send {
    /// Parses the line at the start of `text` into `batch`. Returns its length with the line feed, and whether it has a
    /// record (otherwise it is blank or a comment). An error may leave features without a row.
    ///
    /// # Errors
    /// The line is malformed.
    ///
    /// # Panics
    /// If `text` has no line feed.
    fn parse(&mut self, text: &[u8], batch: &mut Batch) -> Result<(usize, bool), LineError>;

    /// The same, but an error leaves the batch unchanged.
    ///
    /// # Errors
    /// See [`parse`](Self::parse).
    #[inline]
    fn read_line(&mut self, text: &[u8], batch: &mut Batch) -> Result<(usize, bool), LineError> {
        self.parse(text, batch).map_err(|error| {
            batch.drop_unended();
            named(text, error)
        })
    }

    /// Whether a piece needs the first line of its file, a URL, and does not begin with it.
    fn lacks_first_line(&mut self, _file: &str) -> bool {
        false
    }

    /// Takes the first line of the file.
    ///
    /// # Errors
    /// The line is malformed.
    fn take_first_line(&mut self, _file: &str, _line: &[u8]) -> Result<(), LineError> {
        Ok(())
    }

    /// Reads the lines that start in the first `limit` bytes of `text`, until the batch is full or a line is special. Returns
    /// the bytes that were read, and what the last line is: malformed, or the first with a spelling of the negative class.
    fn read_lines(
        &mut self,
        text: &[u8],
        limit: usize,
        batch: &mut Batch,
        most: BatchLimit,
        lines: &mut LineCount,
    ) -> (usize, Result<Negatives, LineError>) {
        let mut at = 0;
        while at < limit && !batch.full(most.rows, most.features) {
            lines.read += 1;
            let read = self.read_line(&text[at..], batch);
            match read.and_then(|read| fits(batch.check_last(most.features), read)) {
                Ok((len, has_record)) => {
                    at += len;
                    if !has_record {
                        lines.of_rows.skip(batch.rows());
                    }
                    let new = batch.negatives.without(lines.negatives);
                    if !new.is_empty() {
                        return (at, Ok(new));
                    }
                }
                Err(error) => {
                    lines.of_rows.skip(batch.rows());
                    lines.rejected = line_of(&text[at..]).len();
                    return (at + lines.rejected, Err(error));
                }
            }
        }
        (at, Ok(Negatives::default()))
    }
}

/// The lines of a piece.
#[derive(Debug, Default)]
pub struct LineCount {
    /// Those already read.
    pub(super) read: u64,
    /// Lines of the batch's rows.
    pub(super) of_rows: RowLines,
    /// Bytes of the last malformed one, if it is in the buffer.
    pub(super) rejected: usize,
    /// Spellings of the negative class whose first place is known.
    pub(super) negatives: Negatives,
}

/// The line, if its record fits.
#[inline]
fn fits<T>(check: Result<(), String>, read: T) -> Result<T, LineError> {
    check.map(|()| read).map_err(|what| LineError { column: 1, what })
}

/// Names what is found by its cause, if it is a byte order mark.
#[cold]
fn named(text: &[u8], error: LineError) -> LineError {
    if !text[error.column - 1..].starts_with(BYTE_ORDER_MARK) {
        return error;
    }
    let what = "a byte order mark within the file, where files were joined: remove it";
    LineError { what: what.to_owned(), ..error }
}

/// The position of what follows spaces and tabs.
#[inline]
pub(crate) fn skip_spaces(text: &[u8], mut at: usize) -> usize {
    while matches!(text[at], b' ' | b'\t') {
        at += 1;
    }
    at
}

/// The position after the line feed, if only a line end or a comment follows at `at`.
#[inline]
pub(crate) fn line_end(text: &[u8], at: usize) -> Option<usize> {
    match text[at] {
        b'\n' => Some(at + 1),
        b'\r' if text.get(at + 1) == Some(&b'\n') => Some(at + 2),
        b'#' => text[at..].iter().position(|byte| *byte == b'\n').map(|feed| at + feed + 1),
        _ => None,
    }
}

/// The error that something else is at `at` than expected.
#[cold]
pub(crate) fn wrong(text: &[u8], at: usize, expected: &str) -> LineError {
    LineError { column: at + 1, what: format!("expected {expected}, found {}", found(&text[at..])) }
}

/// The start of `text`, shortened, for a message.
pub(crate) fn found(text: &[u8]) -> String {
    let word: Vec<u8> =
        text.iter().copied().take_while(|byte| !byte.is_ascii_whitespace()).take(24).collect();
    if word.is_empty() {
        return "the end of the word or line".to_owned();
    }
    format!("{:?}", String::from_utf8_lossy(&word))
}
