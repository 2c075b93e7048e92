//! The blocks of a piece, unpacked.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use heddle_avro::{AvroError, AvroHeader, BlockHead, MARKER_BYTES};
use heddle_columns::typed::ReadAhead;
use tokio::runtime::Handle;

use crate::error::ReadError;
use crate::typed::StoredFile;

/// Bytes that are searched for a marker at once.
const SEARCH_BYTES: usize = 1 << 20;
/// A run of as many unpacked bytes is full.
const RUN_BYTES: usize = 256 << 10;

/// Reads the blocks whose markers begin in a piece.
#[derive(Debug)]
pub(super) struct PieceReader {
    pub(super) file: Arc<StoredFile>,
    pub(super) header: Arc<AvroHeader>,
    pub(super) piece: Range<u64>,
    /// The offset of the next block, once the first marker is found.
    pub(super) next: Option<u64>,
    pub(super) ahead: ReadAhead,
    /// Runs the calls to the storage.
    pub(super) runtime: Handle,
}

/// Blocks that follow each other, unpacked.
#[derive(Debug, Default)]
pub(super) struct UnpackedRun {
    /// Of its blocks, with room after them.
    pub(super) records: Vec<u8>,
    pub(super) blocks: Vec<RunBlock>,
}

/// A block of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunBlock {
    /// Its place in the file.
    pub(super) offset: u64,
    pub(super) head: BlockHead,
    /// Where its records end in the run.
    pub(super) end: usize,
}

impl UnpackedRun {
    /// Where the records of its blocks end.
    fn end(&self) -> usize {
        self.blocks.last().map_or(0, |block| block.end)
    }
}

/// The error of a block.
pub(super) fn in_block(file: &StoredFile, offset: u64, error: &AvroError) -> ReadError {
    file.damaged(&format!("block at byte {offset}: {error}"))
}

impl PieceReader {
    /// Unpacks the next blocks into `run`, which is without any at the end of the piece. After an error it has the blocks
    /// before.
    pub(super) fn unpack(&mut self, run: &mut UnpackedRun) -> Result<(), ReadError> {
        run.blocks.clear();
        while run.end() < RUN_BYTES && self.unpack_block(run)? {}
        Ok(())
    }

    /// Unpacks the next block of the piece, if there is one.
    fn unpack_block(&mut self, run: &mut UnpackedRun) -> Result<bool, ReadError> {
        let found = match self.next {
            Some(next) => Some(next),
            None => self.find()?,
        };
        // The end, if there is not any.
        let offset = found.unwrap_or(u64::MAX);
        self.next = Some(offset);
        let marker = offset.saturating_sub(MARKER_BYTES as u64);
        if marker >= self.piece.end || offset >= self.file.bytes() {
            return Ok(false);
        }
        let start = self.bytes(offset, BlockHead::BYTES_MAX)?;
        let head = BlockHead::parse(&start).map_err(|error| self.damaged(offset, &error))?;
        let len = head.head_bytes + head.bytes as usize + MARKER_BYTES;
        let bytes = self.bytes(offset, len)?;
        let Some((block, marker)) =
            bytes.get(head.head_bytes..len).and_then(|block| block.split_last_chunk())
        else {
            return Err(self.damaged(offset, &AvroError("the file ends within it".to_owned())));
        };
        if *marker != self.header.marker {
            let what = "it does not end with the sync marker of the file, which is damaged there";
            return Err(self.damaged(offset, &AvroError(what.to_owned())));
        }
        let start = run.end();
        let unpacked = self.header.unpack(block, &mut run.records, start);
        let end = unpacked.map_err(|error| self.damaged(offset, &error))?;
        run.blocks.push(RunBlock { offset, head, end });
        self.next = Some(offset + len as u64);
        Ok(true)
    }

    /// The offset of the first block of the piece: after a marker that begins in it.
    fn find(&mut self) -> Result<Option<u64>, ReadError> {
        let mut from = self.piece.start;
        if from <= self.header.bytes - MARKER_BYTES as u64 {
            return Ok(Some(self.header.bytes));
        }
        while from < self.piece.end {
            let bytes = self.bytes(from, SEARCH_BYTES)?;
            if let Some(found) = memchr::memmem::find(&bytes, &self.header.marker) {
                return Ok(Some(from + (found + MARKER_BYTES) as u64));
            }
            // A marker may begin at its end.
            from += bytes.len().saturating_sub(MARKER_BYTES - 1).max(1) as u64;
        }
        Ok(None)
    }

    /// The bytes from `offset` on, `least` at least unless the file ends before.
    fn bytes(&mut self, offset: u64, least: usize) -> Result<Bytes, ReadError> {
        let read = |from, len| self.runtime.block_on(self.file.read(from, len));
        self.ahead.from(offset, least, self.file.bytes(), read)
    }

    fn damaged(&self, offset: u64, error: &AvroError) -> ReadError {
        in_block(&self.file, offset, error)
    }
}
