//! The thread that reads the wanted columns of a file, some rows at a time.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use heddle_columns::typed::NeededLeaf;
use heddle_parquet::{FileError, Footer, ReadAt, RowReader, RowRun};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::mpsc;

use super::stored::BlockingFile;
use crate::error::ReadError;
use crate::storage_wait::{ReaderWait, StorageWaits};
use crate::typed::{BlockSource, FileBlock, StoredFile};

/// Blocks that are read ahead.
const BLOCKS_AHEAD: usize = 2;

/// What the thread reads.
#[derive(Debug)]
pub(super) struct WantedRows {
    pub(super) file: Arc<StoredFile>,
    pub(super) footer: Arc<Footer>,
    pub(super) needed: Vec<NeededLeaf>,
    pub(super) runs: Vec<RowRun>,
}

/// The rows of a piece, which a thread of its own reads.
#[derive(Debug)]
pub(super) struct ParquetBlocks {
    name: String,
    footer: Arc<Footer>,
    /// What is read, until the thread starts with the first block.
    wanted: Option<WantedRows>,
    blocks: Option<mpsc::Receiver<Result<FileBlock, ReadError>>>,
    wait: Arc<ReaderWait>,
}

impl ParquetBlocks {
    pub(super) fn new(wanted: WantedRows) -> Self {
        let (name, footer) = (wanted.file.name(), Arc::clone(&wanted.footer));
        let wait = StorageWaits::default().reader();
        Self { name, footer, wanted: Some(wanted), blocks: None, wait }
    }
}

#[async_trait]
impl BlockSource for ParquetBlocks {
    async fn next_block(&mut self) -> Result<Option<FileBlock>, ReadError> {
        if let Some(wanted) = self.wanted.take() {
            self.blocks = Some(start(wanted)?);
        }
        let Some(blocks) = &mut self.blocks else { return Ok(None) };
        self.wait.begin();
        let Some(received) = blocks.recv().await else { return Ok(None) };
        let block = received?;
        self.wait.over();
        Ok(Some(block))
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
        self.wait = Arc::clone(wait);
    }
}

/// Starts the thread. It ends with the rows, or when the receiver is gone.
fn start(wanted: WantedRows) -> Result<mpsc::Receiver<Result<FileBlock, ReadError>>, ReadError> {
    let (blocks, receiver) = mpsc::channel(BLOCKS_AHEAD);
    let name = wanted.file.name();
    let failed = |error: &io::Error| ReadError::Damaged {
        file: name.clone(),
        what: format!("it is read by threads of its own, which do not start: {error}"),
    };
    let runtime = runtime().as_ref().map_err(failed)?.handle().clone();
    let thread = std::thread::Builder::new().name("parquet".to_owned());
    let started = thread.spawn(move || {
        let file = Arc::clone(&wanted.file);
        // Some decoders panic on damaged files (apache/arrow-rs#9742).
        let read = catch_unwind(AssertUnwindSafe(|| wanted.read(runtime, &blocks)));
        let read = read.unwrap_or_else(|_| {
            Err(file.damaged(&FileError("it is damaged: its decoder has panicked".to_owned())))
        });
        if let Err(error) = read {
            // Dropped if the receiver is gone.
            let _ = blocks.blocking_send(Err(error));
        }
    });
    started.map(|_| receiver).map_err(|error| failed(&error))
}

/// Runs the calls to storages. It outlives the readers: a thread may be reading ahead when they stop.
fn runtime() -> &'static io::Result<Runtime> {
    static RUNTIME: OnceLock<io::Result<Runtime>> = OnceLock::new();
    RUNTIME.get_or_init(|| Builder::new_multi_thread().worker_threads(1).enable_all().build())
}

impl WantedRows {
    fn read(
        &self,
        runtime: Handle,
        blocks: &mpsc::Sender<Result<FileBlock, ReadError>>,
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
                if blocks.blocking_send(Ok(FileBlock { block, first_row })).is_err() {
                    return Ok(());
                }
                first_row += rows;
            }
        }
        Ok(())
    }
}
