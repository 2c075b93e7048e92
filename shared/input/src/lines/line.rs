//! One line of text as a record: what a format of lines provides.

use std::fmt::{self, Debug};

use heddle_protocol::spec::BatchFeatures;

use super::row_lines::RowLines;
use super::task_bytes::{BYTE_ORDER_MARK, line_of};
use crate::batch::{Batch, Negatives};

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
    fn parse(&self, text: &[u8], batch: &mut Batch) -> Result<(usize, bool), LineError>;

    /// The same, but an error leaves the batch unchanged.
    ///
    /// # Errors
    /// See [`parse`](Self::parse).
    #[inline]
    fn read_line(&self, text: &[u8], batch: &mut Batch) -> Result<(usize, bool), LineError> {
        self.parse(text, batch).map_err(|error| {
            batch.drop_unended();
            named(text, error)
        })
    }

    /// Reads the lines that start in the first `limit` bytes of `text`, until the batch is full or a line is special.
    fn read_lines(&self, text: &[u8], limit: usize, run: &mut LineRun<'_>) -> LinesRead {
        let mut bytes = 0;
        while bytes < limit && !run.batch.full(run.rows_max, run.features) {
            *run.lines += 1;
            let read = self.read_line(&text[bytes..], run.batch);
            let (len, has_record) =
                match read.and_then(|read| fitting(run.batch, run.features).map(|()| read)) {
                    Ok(read) => read,
                    Err(error) => {
                        run.row_lines.skip(run.batch.rows());
                        let rejected = line_of(&text[bytes..]).len();
                        bytes += rejected;
                        return LinesRead { bytes, special: SpecialLine::Bad { error, rejected } };
                    }
                };
            bytes += len;
            if !has_record {
                run.row_lines.skip(run.batch.rows());
            }
            let new = run.batch.negatives.without(run.negatives);
            if !new.is_empty() {
                return LinesRead { bytes, special: SpecialLine::FirstOf(new) };
            }
        }
        LinesRead { bytes, special: SpecialLine::None }
    }
}

/// What lines are read into.
pub struct LineRun<'a> {
    pub(super) batch: &'a mut Batch,
    pub(super) rows_max: usize,
    pub(super) features: BatchFeatures,
    /// Spellings of the negative class that were met before.
    pub(super) negatives: Negatives,
    /// Lines of the piece that were read.
    pub(super) lines: &'a mut u64,
    pub(super) row_lines: &'a mut RowLines,
}

/// Lines that were read.
pub struct LinesRead {
    pub(super) bytes: usize,
    /// What the last one is.
    pub(super) special: SpecialLine,
}

/// Why lines were not read further.
pub(super) enum SpecialLine {
    /// The batch is full, or there is no further line.
    None,
    /// It is malformed, and has this number of bytes.
    Bad { error: LineError, rejected: usize },
    /// It has the first spelling of the negative class of this kind.
    FirstOf(Negatives),
}

/// Takes the last record out if it has more features than one may have.
fn fitting(batch: &mut Batch, limit: BatchFeatures) -> Result<(), LineError> {
    let (features, most) = (batch.last_features(), limit.record());
    if features <= most {
        return Ok(());
    }
    batch.drop_row();
    let what = format!(
        "{features} features, more than the {most} of a record for which the trainers of this run have memory; a new run with more trainers.memory takes it"
    );
    Err(LineError { column: 1, what })
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
