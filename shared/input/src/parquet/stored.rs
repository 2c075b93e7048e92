//! A Parquet file in a storage: its end, and its bytes for a thread.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use heddle_parquet::{Footer, ReadAt, TAIL_BYTES, footer_bytes};
use tokio::runtime::Handle;

use crate::error::ReadError;
use crate::typed::StoredFile;

/// A footer above this length is large.
const LARGE_BYTES: u64 = 1 << 20;

/// Reads the end of the file.
pub(super) async fn footer(file: &StoredFile) -> Result<Footer, ReadError> {
    let damaged = |error: heddle_parquet::FileError| file.damaged(&error);
    let bytes = file.bytes();
    let tail = file.read(bytes - bytes.min(TAIL_BYTES), bytes.min(TAIL_BYTES) as usize).await?;
    let len = footer_bytes(&tail, bytes).map_err(damaged)?;
    // One large footer at a time, for bounded memory where many files are asked.
    static LARGE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let _alone = if len > LARGE_BYTES { Some(LARGE.lock().await) } else { None };
    let footer = if len <= tail.len() as u64 {
        tail.slice(tail.len() - len as usize..)
    } else {
        file.read(bytes - len, len as usize).await?
    };
    let parsed = std::panic::catch_unwind(|| Footer::parse(&footer, bytes));
    let parsed = parsed.unwrap_or_else(|_| {
        Err(heddle_parquet::FileError(
            "its footer is damaged: no part of it makes sense".to_owned(),
        ))
    });
    parsed.map_err(damaged)
}

/// A file that is read by a thread without a runtime.
pub(super) struct BlockingFile {
    file: Arc<StoredFile>,
    runtime: Handle,
    failure: ReadFailure,
}

/// Why a read failed: decoders pass on a text.
#[derive(Clone, Default)]
pub(super) struct ReadFailure(Arc<Mutex<Option<ReadError>>>);

impl ReadFailure {
    pub(super) fn take(&self) -> Option<ReadError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl BlockingFile {
    pub(super) fn new(file: Arc<StoredFile>, runtime: Handle) -> Self {
        Self { file, runtime, failure: ReadFailure::default() }
    }

    pub(super) fn failure(&self) -> ReadFailure {
        self.failure.clone()
    }
}

impl ReadAt for BlockingFile {
    fn read_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        self.runtime.block_on(self.file.read(offset, len)).map_err(|error| {
            let text = error.to_string();
            *self.failure.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            io::Error::other(text)
        })
    }
}
