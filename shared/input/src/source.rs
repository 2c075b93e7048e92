//! What a format of records provides: how its files are cut into pieces, and the records of a piece.
//!
//! A piece is a [`TaskRange`]: its start and end are in a unit of the format (bytes of a file of text), and only the format
//! interprets them. Pieces of a file lie next to each other, and each record has its piece.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use heddle_protocol::job_spec::BatchFeatures;
use heddle_protocol::manifest::{InputFile, TaskRange};
use heddle_storage::Reader;

use crate::batch::Batch;
use crate::error::ReadError;
use crate::record_format::RecordFormat;
use crate::storage_wait::ReaderWait;

/// A format of files; [`formats`](crate::formats) has one for each [`DataFormat`](heddle_protocol::job_spec::DataFormat).
#[async_trait]
pub trait InputFormat: Sync {
    /// Cuts a file into pieces of at most `length` bytes, as far as it can be cut.
    fn split(&self, file: &InputFile, length: u64) -> Vec<Range<u64>>;

    /// Opens a piece, after a check that the file is still the plan's.
    ///
    /// # Errors
    /// Errors of the storage; [`ReadError::Changed`].
    async fn open(
        &self,
        format: RecordFormat,
        file: &InputFile,
        piece: TaskRange,
    ) -> Result<Box<dyn RecordSource>, ReadError>;

    /// The records of a stream such as standard input, all of which are one piece. `name` stands for it in messages.
    fn stream(
        &self,
        format: RecordFormat,
        name: &str,
        input: Box<dyn Reader>,
    ) -> Box<dyn RecordSource>;

    /// Reads the records in `text`, the unpacked beginning of a file, which may end within a record. Returns their number, also
    /// of malformed ones, which are not in the batch, and the bytes that they take.
    fn sample(&self, format: RecordFormat, text: &[u8], batch: &mut Batch) -> (u64, usize);
}

/// Cuts a range into pieces whose lengths differ by one byte at most.
pub(crate) fn cut_evenly(range: Range<u64>, pieces: u64) -> impl Iterator<Item = Range<u64>> {
    let length = u128::from(range.end - range.start);
    // 128 bits, since length × pieces may exceed 64.
    let bound = move |n: u64| range.start + (length * u128::from(n) / u128::from(pieces)) as u64;
    (0..pieces).map(move |n| bound(n)..bound(n + 1))
}

/// The records of a piece, in the order of the file. [`TaskReader`](crate::TaskReader) owns one and has the policy for malformed
/// records.
#[async_trait]
pub trait RecordSource: Debug + Send {
    /// Appends records until the batch is [full](Batch::full), or something else in [`Filled`] comes first. An empty batch begins
    /// the next one. One call reads many records.
    ///
    /// # Errors
    /// See [`ReadError`].
    async fn fill(&mut self, batch: &mut Batch, most: BatchLimit) -> Result<Filled, ReadError>;

    /// The place of the record that [`fill`](Self::fill) has just returned as malformed: in text `file:line`.
    ///
    /// # Errors
    /// Errors of the storage.
    async fn place(&mut self) -> Result<String, ReadError>;

    /// That record as it is quarantined, with a line feed; empty if it is too long to be kept.
    fn rejected(&self) -> &[u8];

    /// The place of a row of the batch, counted from the start of the piece.
    fn place_of(&self, row: usize) -> String;

    /// Records all further reads in `wait`.
    fn watch(&mut self, wait: &Arc<ReaderWait>);
}

/// When a batch is full, see [`Batch::full`].
#[derive(Clone, Copy, Debug)]
pub struct BatchLimit {
    /// Records.
    pub rows: usize,
    /// Features of the batch, and of a record.
    pub features: BatchFeatures,
}

/// Why a source has stopped to fill a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filled {
    /// The batch is full.
    Full,
    /// The piece was read to its end.
    End,
    /// The batch has records, and the stream's next record is still to come.
    Waits,
    /// A record is malformed. The next call continues after it. In text `column: what`.
    Bad(String),
    /// The last record has the first label of this spelling of the negative class in the piece.
    FirstOf {
        /// As it is written.
        label: &'static str,
        /// Its place.
        place: String,
    },
}
