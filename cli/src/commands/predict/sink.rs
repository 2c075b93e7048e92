//! A file of scores on any storage, written in parallel to scoring and renamed at its end.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use bytes::Bytes;
use heddle_protocol::exit_code::ExitCode;
use heddle_storage::{
    Storage, StorageError, StorageUrl, StorePath, WriteError, connect, make_dirs,
};
use uuid::Uuid;

use crate::am_client;
use crate::commands::checkpoint_source::unusable;
use crate::failure::{CommandFailure, OrFail};
use crate::output;

/// Bytes of a chunk.
const CHUNK_BYTES: usize = 1 << 20;
/// Chunks queued for the storage.
const CHUNKS_MAX: usize = 4;

/// A draft of the file. If dropped before [`Sink::publish`], no file appears under the final name.
pub(super) struct Sink {
    /// `None` once writing has failed or ended.
    chunks: Option<SyncSender<Bytes>>,
    buffer: Vec<u8>,
    writing: Option<JoinHandle<Result<(), StorageError>>>,
    storage: Arc<dyn Storage>,
    draft: StorePath,
    target: StorePath,
    overwrite: bool,
}

impl Sink {
    /// Starts a draft beside `target`.
    ///
    /// # Errors
    /// The target exists and `overwrite` is false, or the storage rejects the draft.
    pub(super) fn create(target: &StorageUrl, overwrite: bool) -> Result<Self, CommandFailure> {
        let fact = format!("cannot write --output {target}");
        let storage = connect(target).or_fail_with(unusable, &fact)?;
        let path = target.path().clone();
        let draft = path
            .sibling(&format!(".{}.{}", path.name(), Uuid::new_v4().simple()))
            .or_fail(ExitCode::Input, &fact)?;
        let begin = async {
            if !overwrite {
                match storage.stat(&path).await {
                    Ok(_) => {
                        return Err(CommandFailure::new(
                            ExitCode::Input,
                            format!("--output {target} already exists"),
                        )
                        .next("pass --overwrite to replace it"));
                    }
                    Err(error) if error.is_not_found() => {}
                    Err(error) => return Err(unusable(&fact, &error)),
                }
            }
            let mode = storage.default_mode();
            if let Some(parent) = path.parent() {
                let made = make_dirs(&*storage, &parent, mode.of_dir()).await;
                made.or_fail_with(unusable, &fact)?;
            }
            let writer = storage.create(&draft, mode).await;
            writer.or_fail_with(unwritable, &fact)
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
                // Nothing else runs on this thread, so it may block.
                while let Ok(chunk) = incoming.recv() {
                    writer.write(chunk).await?;
                }
                writer.sync().await?;
                writer.close().await?;
                Ok(())
            })
        };
        let writing = std::thread::Builder::new()
            .name("scores".to_owned())
            .spawn(write)
            .or_fail(ExitCode::Internal, "cannot start the thread that writes the scores")?;
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

    /// Closes the file and renames it.
    ///
    /// # Errors
    /// The storage fails, or the target exists meanwhile.
    pub(super) fn publish(mut self) -> Result<(), CommandFailure> {
        let fact = format!("cannot write {}", self.storage.show(&self.target));
        let handed = self.hand_over();
        let written = self.end();
        handed.and(written).or_fail_with(unwritten, &fact)?;
        let named = async {
            match self.overwrite {
                true => self.storage.replace(&self.draft, &self.target).await,
                false => self.storage.rename(&self.draft, &self.target).await,
            }
        };
        am_client::runtime()?.block_on(named).or_fail_with(unwritable, &fact)
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
        // The thread has ended; its result is the error.
        self.end()?;
        Err(io::Error::other("the writing thread has ended"))
    }

    /// Waits until all chunks are written.
    fn end(&mut self) -> io::Result<()> {
        self.chunks = None;
        match self.writing.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(error))) => Err(io::Error::other(error)),
            Some(Err(_)) => Err(io::Error::other("the writing thread panicked")),
        }
    }
}

fn unwritable(fact: &str, error: &WriteError) -> CommandFailure {
    unusable(fact, error.error())
}

/// The failure of a write of scores: of the file's storage, or of standard output.
pub(super) fn unwritten(fact: &str, error: &io::Error) -> CommandFailure {
    match error.get_ref().and_then(|error| error.downcast_ref::<StorageError>()) {
        Some(error) => unusable(fact, error),
        None => output::broken(error),
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

    /// Does nothing: only the complete file is useful.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        if self.writing.is_some() {
            let _failed = self.end();
        }
        // The draft is renamed already, unless scoring failed.
        if let Ok(runtime) = am_client::runtime() {
            let _absent = runtime.block_on(self.storage.delete_file(&self.draft));
        }
    }
}
