//! The blocks of a piece.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use heddle_avro::{AvroError, AvroHeader, BlockDecoder, BlockHead, MARKER_BYTES};
use heddle_columns::typed::NeededLeaf;

use crate::error::ReadError;
use crate::storage_wait::{ReaderWait, StorageWaits};
use crate::typed::{BlockSource, FileBlock, StoredFile};

/// Bytes that are read at once.
const READ_BYTES: u64 = 1 << 20;

/// The blocks whose markers begin in a piece.
#[derive(Debug)]
pub(super) struct AvroBlocks {
    bytes: BytesAhead,
    header: Arc<AvroHeader>,
    decoder: BlockDecoder,
    piece: Range<u64>,
    /// The offset of the next block, once the first marker is found.
    next: Option<u64>,
    next_row: u64,
    /// The blocks that were begun, in their order.
    begun: Vec<BegunBlock>,
}

/// A block of which rows were read.
#[derive(Clone, Copy, Debug)]
struct BegunBlock {
    offset: u64,
    first_row: u64,
}

/// A file's bytes, with those that were read ahead.
#[derive(Debug)]
struct BytesAhead {
    file: StoredFile,
    wait: Arc<ReaderWait>,
    start: u64,
    bytes: Bytes,
}

/// The error of a block.
pub(super) fn in_block(file: &StoredFile, offset: u64, error: &AvroError) -> ReadError {
    file.damaged(&format!("block at byte {offset}: {error}"))
}

impl BytesAhead {
    /// The bytes from `offset` on, `least` at least unless the file ends before.
    async fn from(&mut self, offset: u64, least: usize) -> Result<Bytes, ReadError> {
        let end = self.file.bytes();
        let least = (least as u64).min(end.saturating_sub(offset));
        let at = offset.checked_sub(self.start).filter(|at| *at <= self.bytes.len() as u64);
        let held = at.map_or_else(Bytes::new, |at| self.bytes.slice(at as usize..));
        if held.len() as u64 >= least {
            return Ok(held);
        }
        let from = offset + held.len() as u64;
        let wanted = least.max(READ_BYTES).min(end - offset) - held.len() as u64;
        self.wait.begin();
        let more = self.file.read(from, wanted as usize).await?;
        self.wait.over();
        self.start = offset;
        self.bytes = if held.is_empty() { more } else { [held, more].concat().into() };
        Ok(self.bytes.clone())
    }
}

impl AvroBlocks {
    pub(super) fn new(
        file: StoredFile,
        header: Arc<AvroHeader>,
        needed: &[NeededLeaf],
        piece: Range<u64>,
    ) -> Self {
        let decoder = BlockDecoder::new(Arc::clone(&header), needed);
        let wait = StorageWaits::default().reader();
        let bytes = BytesAhead { file, wait, start: 0, bytes: Bytes::new() };
        let (next_row, begun) = (0, Vec::new());
        Self { bytes, header, decoder, piece, next: None, next_row, begun }
    }

    /// The offset of the first block of the piece: after a marker that begins in it.
    async fn find(&mut self) -> Result<Option<u64>, ReadError> {
        let mut from = self.piece.start;
        if from <= self.header.bytes - MARKER_BYTES as u64 {
            return Ok(Some(self.header.bytes));
        }
        while from < self.piece.end {
            let bytes = self.bytes.from(from, READ_BYTES as usize).await?;
            if let Some(found) = memchr::memmem::find(&bytes, &self.header.marker) {
                return Ok(Some(from + (found + MARKER_BYTES) as u64));
            }
            // A marker may begin at its end.
            from += bytes.len().saturating_sub(MARKER_BYTES - 1).max(1) as u64;
        }
        Ok(None)
    }

    /// Begins the next block; `false` after the last one.
    async fn begin_block(&mut self) -> Result<bool, ReadError> {
        let found = match self.next {
            Some(next) => Some(next),
            None => self.find().await?,
        };
        // The end, if there is not any.
        let offset = found.unwrap_or(u64::MAX);
        self.next = Some(offset);
        let marker = offset.saturating_sub(MARKER_BYTES as u64);
        if marker >= self.piece.end || offset >= self.bytes.file.bytes() {
            return Ok(false);
        }
        let start = self.bytes.from(offset, BlockHead::BYTES_MAX).await?;
        let head = BlockHead::parse(&start).map_err(|error| self.damaged(offset, error))?;
        let len = head.head_bytes + head.bytes as usize + MARKER_BYTES;
        let bytes = self.bytes.from(offset, len).await?;
        let Some((block, marker)) =
            bytes.get(head.head_bytes..len).and_then(|block| block.split_last_chunk())
        else {
            return Err(self.damaged(offset, AvroError("the file ends within it".to_owned())));
        };
        if *marker != self.header.marker {
            let what = "it does not end with the sync marker of the file, which is damaged there";
            return Err(self.damaged(offset, AvroError(what.to_owned())));
        }
        let begun = self.decoder.begin(head, block);
        begun.map_err(|error| self.damaged(offset, error))?;
        self.begun.push(BegunBlock { offset, first_row: self.next_row });
        self.next = Some(offset + len as u64);
        Ok(true)
    }

    fn damaged(&self, offset: u64, error: AvroError) -> ReadError {
        in_block(&self.bytes.file, offset, &error)
    }
}

#[async_trait]
impl BlockSource for AvroBlocks {
    async fn next_block(&mut self) -> Result<Option<FileBlock>, ReadError> {
        loop {
            let offset = self.begun.last().map_or(0, |begun| begun.offset);
            let rows = self.decoder.next_rows();
            if let Some(block) = rows.map_err(|error| self.damaged(offset, error))? {
                let first_row = self.next_row;
                self.next_row += block.rows as u64;
                return Ok(Some(FileBlock { block, first_row }));
            }
            if !self.begin_block().await? {
                return Ok(None);
            }
        }
    }

    /// The block and record of a row of the piece.
    fn place_of(&self, row: u64) -> String {
        let file = self.bytes.file.name();
        let block = self.begun.partition_point(|begun| begun.first_row <= row);
        match block.checked_sub(1).and_then(|block| self.begun.get(block)) {
            Some(BegunBlock { offset, first_row }) => {
                format!("{file}: block at byte {offset}, record {}", row - first_row)
            }
            None => format!("{file}: record {row}"),
        }
    }

    fn watch(&mut self, wait: &Arc<ReaderWait>) {
        self.bytes.wait = Arc::clone(wait);
    }
}
