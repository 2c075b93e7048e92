//! The rows of a piece: a thread reads and unpacks blocks, another one decodes them.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use async_trait::async_trait;
use heddle_avro::{AvroHeader, BlockDecoder, UnpackedBlock};
use heddle_columns::typed::{NeededLeaf, ReadAhead};
use tokio::runtime::Handle;

use super::pieces::{PieceReader, RunBlock, UnpackedRun, in_block};
use crate::error::ReadError;
use crate::storage_wait::ReaderWait;
use crate::typed::{
    BlockProducer, BlockSource, BlocksAhead, FileBlock, StoredFile, read_on_thread,
};

/// Runs in memory: one is decoded while the other one is unpacked.
const RUNS: usize = 2;

/// The rows of a piece.
#[derive(Debug)]
pub(super) struct AvroBlocks {
    name: String,
    blocks: BlocksAhead,
    begun: Arc<BegunBlocks>,
}

/// The blocks with records that were decoded, in their order.
type BegunBlocks = Mutex<Vec<BegunBlock>>;

/// A block of which rows may have come.
#[derive(Clone, Copy, Debug)]
struct BegunBlock {
    offset: u64,
    first_row: u64,
}

/// Decodes the blocks of a piece.
#[derive(Debug)]
struct PieceDecoder {
    file: Arc<StoredFile>,
    header: Arc<AvroHeader>,
    piece: Range<u64>,
    decoder: BlockDecoder,
    /// The number of the next row that is sent.
    next_row: u64,
    begun: Arc<BegunBlocks>,
}

impl AvroBlocks {
    pub(super) fn new(
        file: StoredFile,
        header: Arc<AvroHeader>,
        needed: &[NeededLeaf],
        piece: Range<u64>,
    ) -> Self {
        let (name, decoder) = (file.name(), BlockDecoder::new(Arc::clone(&header), needed));
        let begun = Arc::<BegunBlocks>::default();
        let (file, own) = (Arc::new(file), Arc::clone(&begun));
        let decoder = PieceDecoder { file, header, piece, decoder, next_row: 0, begun: own };
        Self { name, blocks: BlocksAhead::new(decoder), begun }
    }
}

impl PieceDecoder {
    /// Decodes the blocks of a run; `false` if their rows are not wanted any more.
    fn decode(
        &mut self,
        run: &UnpackedRun,
        send: &mut dyn FnMut(FileBlock) -> bool,
    ) -> Result<bool, ReadError> {
        let (mut start, mut before) = (0, self.next_row + self.decoder.rows() as u64);
        for RunBlock { offset, head, end } in &run.blocks {
            let damaged = |error| in_block(&self.file, *offset, &error);
            let records = &run.records[start..*end];
            let mut block = UnpackedBlock::new(*head, records).map_err(damaged)?;
            if head.records > 0 {
                let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
                begun.push(BegunBlock { offset: *offset, first_row: before });
            }
            while self.decoder.decode(&mut block).map_err(damaged)? {
                if !send_rows(&mut self.decoder, &mut self.next_row, send) {
                    return Ok(false);
                }
            }
            (start, before) = (*end, before + head.records);
        }
        Ok(true)
    }

    fn decode_all(
        &mut self,
        runtime: Handle,
        send: &mut dyn FnMut(FileBlock) -> bool,
    ) -> Result<(), ReadError> {
        let (free, spare) = mpsc::channel();
        // The receiver is here.
        (0..RUNS).for_each(|_| drop(free.send(UnpackedRun::default())));
        let (file, header) = (Arc::clone(&self.file), Arc::clone(&self.header));
        let (piece, ahead) = (self.piece.clone(), ReadAhead::default());
        let mut reader = PieceReader { file, header, piece, next: None, ahead, runtime };
        let mut runs = read_on_thread("unpacker", self.file.name(), RUNS, move |send| {
            while let Ok(mut run) = spare.recv() {
                let unpacked = reader.unpack(&mut run);
                let is_end = run.blocks.is_empty();
                if is_end || !send(run) || unpacked.is_err() {
                    return unpacked;
                }
            }
            Ok(())
        })?;
        while let Some(run) = runs.blocking_recv() {
            let run = run?;
            if !self.decode(&run, send)? {
                break;
            }
            // Not wanted after the last one.
            let _ = free.send(run);
        }
        Ok(())
    }
}

/// Sends what was decoded; `false` if it is not wanted any more.
fn send_rows(
    decoder: &mut BlockDecoder,
    next_row: &mut u64,
    send: &mut dyn FnMut(FileBlock) -> bool,
) -> bool {
    let Some(block) = decoder.take_rows() else { return true };
    let first_row = *next_row;
    *next_row += block.rows as u64;
    send(FileBlock { block, first_row })
}

impl BlockProducer for PieceDecoder {
    fn name(&self) -> String {
        self.file.name()
    }

    fn read(
        mut self: Box<Self>,
        runtime: Handle,
        send: &mut dyn FnMut(FileBlock) -> bool,
    ) -> Result<(), ReadError> {
        let decoded = self.decode_all(runtime, send);
        // The rows before an error, too.
        send_rows(&mut self.decoder, &mut self.next_row, send);
        decoded
    }
}

#[async_trait]
impl BlockSource for AvroBlocks {
    async fn next_block(&mut self) -> Result<Option<FileBlock>, ReadError> {
        self.blocks.next().await
    }

    /// The block and record of a row of the piece.
    fn place_of(&self, row: u64) -> String {
        let begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        let block = begun.partition_point(|begun| begun.first_row <= row);
        match block.checked_sub(1).and_then(|block| begun.get(block)) {
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
