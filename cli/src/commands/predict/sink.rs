//! A file of scores on any storage, written beside the scoring and named at its end.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use bytes::Bytes;
use heddle_protocol::exit_code::ExitCode;
use heddle_storage::{
    Location, Storage, StorageError, StorePath, WriteError, chain, connect, make_dirs,
};
use uuid::Uuid;

use crate::am_client;
use crate::commands::checkpoint::unusable;
use crate::failure::Failure;

/// Bytes that are handed over at once.
const CHUNK_BYTES: usize = 1 << 20;
/// Chunks on their way to the storage.
const CHUNKS_MAX: usize = 4;

/// A file in the making. Dropped before [`Sink::publish`] it leaves nothing under its name.
pub(super) struct Sink {
    /// Nothing once writing has failed or ended.
    chunks: Option<SyncSender<Bytes>>,
    buffer: Vec<u8>,
    writing: Option<JoinHandle<Result<(), StorageError>>>,
    storage: Arc<dyn Storage>,
    draft: StorePath,
    target: StorePath,
    overwrite: bool,
}

impl Sink {
    /// Begins a draft beside `target`.
    ///
    /// # Errors
    /// The name is taken and may not be, or the storage refuses the draft.
    pub(super) fn create(target: &Location, overwrite: bool) -> Result<Self, Failure> {
        let fact = format!("--output {target} cannot be written");
        let storage = connect(target).map_err(|error| unusable(&fact, &error))?;
        let path = target.path().clone();
        let draft = path
            .sibling(&format!(".{}.{}", path.name(), Uuid::new_v4().simple()))
            .map_err(|error| Failure::caused(ExitCode::Input, &fact, &error))?;
        let begin = async {
            if !overwrite {
                match storage.stat(&path).await {
                    Ok(_) => {
                        return Err(Failure::new(ExitCode::Input, format!("{target} exists"))
                            .next("--overwrite replaces it"));
                    }
                    Err(error) if error.is_not_found() => {}
                    Err(error) => return Err(unusable(&fact, &error)),
                }
            }
            let mode = storage.default_mode();
            if let Some(parent) = path.parent() {
                make_dirs(&*storage, &parent, mode.of_dir())
                    .await
                    .map_err(|error| unusable(&fact, &error))?;
            }
            let writer = storage.create(&draft, mode).await;
            writer.map_err(|error| unusable(&fact, error.error()))
        };
        let mut writer = am_client::runtime()?.block_on(begin)?;
        let (chunks, incoming) = sync_channel::<Bytes>(CHUNKS_MAX);
        let write = move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(|error| {
                    StorageError::from_io(heddle_storage::Op::Write, "the file of scores", error)
                })?;
            runtime.block_on(async {
                // Nothing else runs here, so waiting for the scorer holds nothing up.
                while let Ok(chunk) = incoming.recv() {
                    writer.write(chunk).await?;
                }
                writer.sync().await?;
                writer.close().await?;
                Ok(())
            })
        };
        let writing = std::thread::Builder::new().name("scores".to_owned()).spawn(write).map_err(
            |error| Failure::caused(ExitCode::Internal, "no thread writes the scores", &error),
        )?;
        Ok(Self {
            chunks: Some(chunks),
            buffer: Vec::with_capacity(CHUNK_BYTES),
            writing: Some(writing),
            storage,
            draft,
            target: path,
            overwrite,
        })
    }

    /// Ends the file and gives it its name.
    ///
    /// # Errors
    /// The storage fails, or the name was taken meanwhile.
    pub(super) fn publish(mut self) -> Result<(), Failure> {
        let fact = format!("{} was not written", self.storage.show(&self.target));
        let handed = self.hand_over();
        let written = self.end();
        handed
            .and(written)
            .map_err(|error| Failure::caused(ExitCode::Unreachable, &fact, &error))?;
        let named = async {
            match self.overwrite {
                true => self.storage.replace(&self.draft, &self.target).await,
                false => self.storage.rename(&self.draft, &self.target).await,
            }
        };
        am_client::runtime()?
            .block_on(named)
            .map_err(|error: WriteError| unusable(&fact, error.error()))
    }

    fn hand_over(&mut self) -> io::Result<()> {
        let chunk = std::mem::replace(&mut self.buffer, Vec::with_capacity(CHUNK_BYTES));
        let sent = match &self.chunks {
            Some(chunks) if !chunk.is_empty() => chunks.send(chunk.into()).is_ok(),
            Some(_) => true,
            None => false,
        };
        if sent {
            return Ok(());
        }
        // The thread has ended, so it says why.
        self.end()?;
        Err(io::Error::other("writing has ended before"))
    }

    /// Waits for what was handed over.
    fn end(&mut self) -> io::Result<()> {
        self.chunks = None;
        match self.writing.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(error))) => Err(io::Error::other(chain(&error))),
            Some(Err(_)) => Err(io::Error::other("the writing thread panicked")),
        }
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= CHUNK_BYTES {
            self.hand_over()?;
        }
        Ok(bytes.len())
    }

    /// Nothing: the file is of use when it is whole.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        if self.writing.is_some() {
            let _failed = self.end();
        }
        // Renamed already, unless scoring failed.
        if let Ok(runtime) = am_client::runtime() {
            let _absent = runtime.block_on(self.storage.delete_file(&self.draft));
        }
    }
}
