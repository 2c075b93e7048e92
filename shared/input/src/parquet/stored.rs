//! A Parquet file in a storage.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use heddle_parquet::{Footer, ReadAt, TAIL_BYTES, footer_bytes};
use heddle_protocol::manifest::InputFile;
use heddle_storage::{FileVersion, OfVersion, Storage, StorageUrl, StorePath, connect};
use tokio::runtime::Handle;

use crate::error::ReadError;

/// A footer above this length is large.
const LARGE_BYTES: u64 = 1 << 20;

/// A file of the plan.
#[derive(Debug)]
pub(super) struct StoredFile {
    storage: Arc<dyn Storage>,
    path: StorePath,
    version: FileVersion,
}

impl StoredFile {
    /// The file, which is not looked at yet.
    pub(super) fn find(file: &InputFile) -> Result<Self, ReadError> {
        let location =
            StorageUrl::parse(&file.url).map_err(|_| ReadError::Url { url: file.url.clone() })?;
        let (storage, path) = (connect(&location)?, location.path().clone());
        let version = FileVersion { bytes: file.bytes, modified_ms: file.modified_ms };
        Ok(Self { storage, path, version })
    }

    /// As a user types it.
    pub(super) fn name(&self) -> String {
        self.storage.show(&self.path)
    }

    /// Reads exactly `len` bytes from byte `offset`.
    pub(super) async fn read(&self, offset: u64, len: usize) -> Result<Bytes, ReadError> {
        match self.storage.read_version(&self.path, self.version, offset, len).await? {
            OfVersion::Same(bytes) => Ok(bytes),
            OfVersion::Changed { bytes } => Err(ReadError::Changed {
                file: self.name(),
                planned: self.version.bytes,
                found: bytes,
            }),
        }
    }

    /// Reads the end of the file.
    pub(super) async fn footer(&self) -> Result<Footer, ReadError> {
        let damaged = |error: heddle_parquet::FileError| self.damaged(&error);
        let bytes = self.version.bytes;
        let tail = self.read(bytes - bytes.min(TAIL_BYTES), bytes.min(TAIL_BYTES) as usize).await?;
        let len = footer_bytes(&tail, bytes).map_err(damaged)?;
        // One large footer at a time, for bounded memory where many files are asked.
        static LARGE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
        let _alone = if len > LARGE_BYTES { Some(LARGE.lock().await) } else { None };
        let footer = if len <= tail.len() as u64 {
            tail.slice(tail.len() - len as usize..)
        } else {
            self.read(bytes - len, len as usize).await?
        };
        let parsed = std::panic::catch_unwind(|| Footer::parse(&footer, bytes));
        let parsed = parsed.unwrap_or_else(|_| {
            Err(heddle_parquet::FileError(
                "its footer is damaged: no part of it makes sense".to_owned(),
            ))
        });
        parsed.map_err(damaged)
    }

    pub(super) fn damaged(&self, error: &heddle_parquet::FileError) -> ReadError {
        ReadError::Damaged { file: self.name(), what: error.to_string() }
    }
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

/// The ends of files that were read last: the tasks of a file need the same.
#[derive(Debug, Default)]
pub(crate) struct Footers(Mutex<VecDeque<(InputFile, Arc<Footer>)>>);

/// Footers that are kept.
const FOOTERS_MAX: usize = 16;

impl Footers {
    pub(super) fn get(&self, file: &InputFile) -> Option<Arc<Footer>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().find(|(other, _)| other == file).map(|(_, footer)| Arc::clone(footer))
    }

    pub(super) fn put(&self, file: &InputFile, footer: Footer) -> Arc<Footer> {
        let footer = Arc::new(footer);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.truncate(FOOTERS_MAX - 1);
        known.push_front((file.clone(), Arc::clone(&footer)));
        footer
    }
}
