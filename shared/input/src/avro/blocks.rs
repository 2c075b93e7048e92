//! The rows of a piece, block by block.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use heddle_avro::{AvroError, AvroHeader, BlockDecoder, BlockHead, MARKER_BYTES};
use heddle_columns::typed::NeededLeaf;
use tokio::runtime::Handle;

use crate::error::ReadError;
use crate::storage_wait::ReaderWait;
use crate::typed::{BlockProducer, BlockSource, BlocksAhead, FileBlock, StoredFile};

/// Bytes that are read at once.
const READ_BYTES: u64 = 1 << 20;

/// The rows of a piece.
#[derive(Debug)]
pub(super) struct AvroBlocks {
    name: String,
    blocks: BlocksAhead,
    /// The blocks of which rows came, in their order.
    begun: Vec<BegunBlock>,
}

/// A block of which rows came.
#[derive(Clone, Copy, Debug)]
struct BegunBlock {
    offset: u64,
    first_row: u64,
}

/// Reads the blocks whose markers begin in a piece.
#[derive(Debug)]
struct PieceReader {
    bytes: BytesAhead,
    header: Arc<AvroHeader>,
    decoder: BlockDecoder,
    piece: Range<u64>,
    /// The offset of the next block, once the first marker is found.
    next: Option<u64>,
}

/// A file's bytes, with those that were read ahead.
#[derive(Debug)]
struct BytesAhead {
    file: StoredFile,
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
        let more = self.file.read(from, wanted as usize).await?;
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
        let (name, decoder) = (file.name(), BlockDecoder::new(Arc::clone(&header), needed));
        let bytes = BytesAhead { file, start: 0, bytes: Bytes::new() };
        let blocks = BlocksAhead::new(PieceReader { bytes, header, decoder, piece, next: None });
        Self { name, blocks, begun: Vec::new() }
    }
}

impl PieceReader {
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

    /// Begins the next block of the piece. Returns its offset.
    async fn begin_block(&mut self) -> Result<Option<u64>, ReadError> {
        let found = match self.next {
            Some(next) => Some(next),
            None => self.find().await?,
        };
        // The end, if there is not any.
        let offset = found.unwrap_or(u64::MAX);
        self.next = Some(offset);
        let marker = offset.saturating_sub(MARKER_BYTES as u64);
        if marker >= self.piece.end || offset >= self.bytes.file.bytes() {
            return Ok(None);
        }
        let start = self.bytes.from(offset, BlockHead::BYTES_MAX).await?;
        let head = BlockHead::parse(&start).map_err(|error| self.damaged(offset, &error))?;
        let len = head.head_bytes + head.bytes as usize + MARKER_BYTES;
        let bytes = self.bytes.from(offset, len).await?;
        let Some((block, marker)) =
            bytes.get(head.head_bytes..len).and_then(|block| block.split_last_chunk())
        else {
            return Err(self.damaged(offset, &AvroError("the file ends within it".to_owned())));
        };
        if *marker != self.header.marker {
            let what = "it does not end with the sync marker of the file, which is damaged there";
            return Err(self.damaged(offset, &AvroError(what.to_owned())));
        }
        let begun = self.decoder.begin(head, block);
        begun.map_err(|error| self.damaged(offset, &error))?;
        self.next = Some(offset + len as u64);
        Ok(Some(offset))
    }

    fn damaged(&self, offset: u64, error: &AvroError) -> ReadError {
        in_block(&self.bytes.file, offset, error)
    }
}

impl BlockProducer for PieceReader {
    fn name(&self) -> String {
        self.bytes.file.name()
    }

    fn read(
        mut self: Box<Self>,
        runtime: Handle,
        send: &mut dyn FnMut(FileBlock) -> bool,
    ) -> Result<(), ReadError> {
        let mut first_row = 0;
        while let Some(offset) = runtime.block_on(self.begin_block())? {
            while let Some(block) =
                self.decoder.next_rows().map_err(|error| self.damaged(offset, &error))?
            {
                let rows = block.rows as u64;
                if !send(FileBlock { block, first_row, offset }) {
                    return Ok(());
                }
                first_row += rows;
            }
        }
        Ok(())
    }
}

#[async_trait]
impl BlockSource for AvroBlocks {
    async fn next_block(&mut self) -> Result<Option<FileBlock>, ReadError> {
        let found = self.blocks.next().await?;
        if let Some(FileBlock { first_row, offset, .. }) = found
            && self.begun.last().is_none_or(|begun| begun.offset != offset)
        {
            self.begun.push(BegunBlock { offset, first_row });
        }
        Ok(found)
    }

    /// The block and record of a row of the piece.
    fn place_of(&self, row: u64) -> String {
        let block = self.begun.partition_point(|begun| begun.first_row <= row);
        match block.checked_sub(1).and_then(|block| self.begun.get(block)) {
            Some(BegunBlock { offset, first_row }) => {
                format!("{}: block at byte {offset}, record {}", self.name, row - first_row)
            }
            None => format!("{}: record {row}", self.name),
        }
    }

    fn watch(&mut self, wait: &Arc<ReaderWait>) {
        self.blocks.watch(wait);
    }
}
