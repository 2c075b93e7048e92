//! A file in a storage, read at any place.

use std::sync::Arc;

use bytes::Bytes;
use heddle_protocol::manifest::InputFile;
use heddle_storage::{FileVersion, OfVersion, Storage, StorageUrl, StorePath, connect};

use crate::error::ReadError;
use crate::table_format::TableFormat;

/// A file of the plan.
#[derive(Debug)]
pub(crate) struct StoredFile {
    storage: Arc<dyn Storage>,
    path: StorePath,
    version: FileVersion,
}

impl StoredFile {
    /// The file, which is not looked at yet.
    pub(crate) fn find(file: &InputFile) -> Result<Self, ReadError> {
        let location =
            StorageUrl::parse(&file.url).map_err(|_| ReadError::Url { url: file.url.clone() })?;
        let (storage, path) = (connect(&location)?, location.path().clone());
        let version = FileVersion { bytes: file.bytes, modified_ms: file.modified_ms };
        Ok(Self { storage, path, version })
    }

    /// As a user types it.
    pub(crate) fn name(&self) -> String {
        self.storage.show(&self.path)
    }

    /// Reads exactly `len` bytes from byte `offset`.
    pub(crate) async fn read(&self, offset: u64, len: usize) -> Result<Bytes, ReadError> {
        match self.storage.read_version(&self.path, self.version, offset, len).await? {
            OfVersion::Same(bytes) => Ok(bytes),
            OfVersion::Changed { bytes } => Err(self.changed(bytes)),
        }
    }

    /// Checks that it is still the plan's, by one call to its storage.
    pub(crate) async fn check_unchanged(&self) -> Result<(), ReadError> {
        let found = self.storage.stat(&self.path).await?.version();
        if found == self.version { Ok(()) } else { Err(self.changed(found.bytes)) }
    }

    fn changed(&self, found: u64) -> ReadError {
        ReadError::Changed { file: self.name(), planned: self.version.bytes, found }
    }

    /// Its length in the plan.
    pub(crate) fn bytes(&self) -> u64 {
        self.version.bytes
    }

    /// The error of columns that do not fit the job's.
    pub(crate) fn unfit(&self, table: &TableFormat, what: &str) -> ReadError {
        let first = table.first_file.get().and_then(|first| Self::find(first).ok());
        match first.map(|first| first.name()).filter(|first| *first != self.name()) {
            Some(first) => {
                self.damaged(&format!("{what}; the columns of the job are those of {first}"))
            }
            None => self.damaged(&what),
        }
    }

    pub(crate) fn damaged(&self, error: &impl ToString) -> ReadError {
        ReadError::Damaged { file: self.name(), what: error.to_string() }
    }
}
