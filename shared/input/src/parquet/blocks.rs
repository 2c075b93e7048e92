//! The wanted columns of a piece, some rows at a time.

use std::sync::Arc;

use async_trait::async_trait;
use heddle_columns::typed::NeededLeaf;
use heddle_parquet::{FileError, Footer, ReadAt, RowReader, RowRun};
use tokio::runtime::Handle;

use super::stored::BlockingFile;
use crate::error::ReadError;
use crate::storage_wait::ReaderWait;
use crate::typed::{BlockProducer, BlockSource, BlocksAhead, FileBlock, StoredFile};

/// What is read.
#[derive(Debug)]
pub(super) struct WantedRows {
    pub(super) file: Arc<StoredFile>,
    pub(super) footer: Arc<Footer>,
    pub(super) needed: Vec<NeededLeaf>,
    pub(super) runs: Vec<RowRun>,
}

/// The rows of a piece.
#[derive(Debug)]
pub(super) struct ParquetBlocks {
    name: String,
    footer: Arc<Footer>,
    blocks: BlocksAhead,
}

impl ParquetBlocks {
    pub(super) fn new(wanted: WantedRows) -> Self {
        let (name, footer) = (wanted.file.name(), Arc::clone(&wanted.footer));
        Self { name, footer, blocks: BlocksAhead::new(wanted) }
    }
}

#[async_trait]
impl BlockSource for ParquetBlocks {
    async fn next_block(&mut self) -> Result<Option<FileBlock>, ReadError> {
        self.blocks.next().await
    }

    /// The row group and row of a row of the file.
    fn place_of(&self, row: u64) -> String {
        let groups = self.footer.groups.iter();
        let group =
            groups.filter(|group| group.rows_before <= row).max_by_key(|group| group.rows_before);
        match group {
            Some(group) => {
                let (number, within) = (group.number, row - group.rows_before);
                format!("{}: row group {number}, row {within}", self.name)
            }
            None => format!("{}: row {row}", self.name),
        }
    }

    fn watch(&mut self, wait: &Arc<ReaderWait>) {
        self.blocks.watch(wait);
    }
}

impl BlockProducer for WantedRows {
    fn name(&self) -> String {
        self.file.name()
    }

    fn read(
        self: Box<Self>,
        runtime: Handle,
        send: &mut dyn FnMut(FileBlock) -> bool,
    ) -> Result<(), ReadError> {
        let file = BlockingFile::new(Arc::clone(&self.file), runtime);
        let failure = file.failure();
        let file: Arc<dyn ReadAt> = Arc::new(file);
        for run in &self.runs {
            let failed = |error: FileError| {
                failure.take().unwrap_or_else(|| {
                    let error = format!("row group {}: {error}", run.group.number);
                    self.file.damaged(&FileError(error))
                })
            };
            let mut rows =
                RowReader::open(&file, &self.footer, run, &self.needed).map_err(failed)?;
            let mut first_row = run.group.rows_before + run.rows.start;
            while let Some(block) = rows.next_block().map_err(failed)? {
                let rows = block.rows as u64;
                if !send(FileBlock { block, first_row }) {
                    return Ok(());
                }
                first_row += rows;
            }
        }
        Ok(())
    }
}
