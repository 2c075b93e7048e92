//! Blocks that are read ahead by a thread: decoding is as much work as what follows it.

use std::fmt::Debug;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::mpsc;

use super::block_source::FileBlock;
use crate::error::ReadError;
use crate::storage_wait::{ReaderWait, StorageWaits};

/// Blocks that are read ahead.
const BLOCKS_AHEAD: usize = 2;

/// Reads the blocks of a piece.
pub(crate) trait BlockProducer: Debug + Send + 'static {
    /// The file as a user types it.
    fn name(&self) -> String;

    /// Reads the blocks, which `send` takes until it returns `false`. `runtime`: runs the calls to the storage.
    fn read(
        self: Box<Self>,
        runtime: Handle,
        send: &mut dyn FnMut(FileBlock) -> bool,
    ) -> Result<(), ReadError>;
}

/// The blocks of a producer, whose thread starts with the first one. It ends with the blocks, or when this is dropped.
#[derive(Debug)]
pub(crate) struct BlocksAhead {
    producer: Option<Box<dyn BlockProducer>>,
    blocks: Option<mpsc::Receiver<Result<FileBlock, ReadError>>>,
    wait: Arc<ReaderWait>,
}

impl BlocksAhead {
    pub(crate) fn new(producer: impl BlockProducer) -> Self {
        let wait = StorageWaits::default().reader();
        Self { producer: Some(Box::new(producer)), blocks: None, wait }
    }

    /// The next block, until the piece ends.
    pub(crate) async fn next(&mut self) -> Result<Option<FileBlock>, ReadError> {
        if let Some(producer) = self.producer.take() {
            self.blocks = Some(start(producer)?);
        }
        let Some(blocks) = &mut self.blocks else { return Ok(None) };
        self.wait.begin();
        let Some(received) = blocks.recv().await else { return Ok(None) };
        let block = received?;
        self.wait.over();
        Ok(Some(block))
    }

    /// Records all further waits in `wait`.
    pub(crate) fn watch(&mut self, wait: &Arc<ReaderWait>) {
        self.wait = Arc::clone(wait);
    }
}

fn start(
    producer: Box<dyn BlockProducer>,
) -> Result<mpsc::Receiver<Result<FileBlock, ReadError>>, ReadError> {
    let file = producer.name();
    let runtime = runtime().as_ref().map_err(|error| not_started(&file, error))?;
    let runtime = runtime.handle().clone();
    read_on_thread("decoder", file, BLOCKS_AHEAD, move |send| producer.read(runtime, send))
}

/// Starts a thread for a file, which sends what `read` reads and the error with which that ends. `ahead`: what waits to be
/// received at the most.
pub(crate) fn read_on_thread<T: Send + 'static>(
    thread: &str,
    file: String,
    ahead: usize,
    read: impl FnOnce(&mut dyn FnMut(T) -> bool) -> Result<(), ReadError> + Send + 'static,
) -> Result<mpsc::Receiver<Result<T, ReadError>>, ReadError> {
    let (sender, receiver) = mpsc::channel(ahead);
    let name = file.clone();
    let started = std::thread::Builder::new().name(thread.to_owned()).spawn(move || {
        let mut send = |part| sender.blocking_send(Ok(part)).is_ok();
        // Some decoders panic on damaged files (apache/arrow-rs#9742).
        let read = catch_unwind(AssertUnwindSafe(|| read(&mut send)));
        let read = read.unwrap_or_else(|_| {
            let what = "it is damaged: its decoder has panicked".to_owned();
            Err(ReadError::Damaged { file, what })
        });
        if let Err(error) = read {
            // Dropped if the receiver is gone.
            let _ = sender.blocking_send(Err(error));
        }
    });
    started.map(|_| receiver).map_err(|error| not_started(&name, &error))
}

fn not_started(file: &str, error: &io::Error) -> ReadError {
    let what = format!("it is read by threads of its own, which do not start: {error}");
    ReadError::Damaged { file: file.to_owned(), what }
}

/// Runs the calls to storages. It outlives the readers: a thread may be reading ahead when they stop.
fn runtime() -> &'static io::Result<Runtime> {
    static RUNTIME: OnceLock<io::Result<Runtime>> = OnceLock::new();
    RUNTIME.get_or_init(|| Builder::new_multi_thread().worker_threads(1).enable_all().build())
}
