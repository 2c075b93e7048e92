//! Writes a shard file as a stream.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use heddle_protocol::job_spec::CheckpointDigest;
use heddle_protocol::manifest::ShardFile;
use uuid::Uuid;

use super::header::{ALIGN, FormatError, ShardHeader};
use crate::error::StorageError;
use crate::path::StorePath;
use crate::store::{Mode, Storage};
use crate::summed::SummedWriter;

/// Why a shard was not saved. The partial file is useless; a retry writes another file.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// The storage failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The header contradicts itself.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// More bytes than the sections take, or a section that is not full.
    #[error("section '{section}' takes {expected} bytes (got {given})")]
    Amount {
        /// The section.
        section: String,
        /// Its length.
        expected: u64,
        /// Bytes written to it.
        given: u64,
    },
}

/// Length of the file with this header.
fn length(header: &ShardHeader) -> Result<u64, FormatError> {
    let start = header.encode()?.len() as u64;
    let padded = header.sections.iter().map(|section| section.bytes().next_multiple_of(ALIGN));
    Ok(padded.fold(start, u64::saturating_add))
}

/// A shard file being written: header first, then the bytes of all sections in order. The writer adds the padding
/// between them.
///
/// A writer that is dropped leaves a file to which nothing refers.
#[derive(Debug)]
pub struct ShardWriter {
    file: SummedWriter,
    header: ShardHeader,
    uuid: Uuid,
    /// The section being written; one past the last once all are.
    section: usize,
    /// Bytes of it written so far.
    written: u64,
}

impl ShardWriter {
    /// Creates a new file, named by a new uuid, in a directory that exists, and writes the header.
    ///
    /// # Errors
    /// Errors of the storage; `Format` if the header contradicts itself.
    pub async fn create(
        storage: &dyn Storage,
        dir: &StorePath,
        header: ShardHeader,
    ) -> Result<Self, SaveError> {
        Self::create_with(storage, dir, header, CheckpointDigest::Md5).await
    }

    /// The same with these sums.
    ///
    /// # Errors
    /// See [`create`](Self::create).
    pub async fn create_with(
        storage: &dyn Storage,
        dir: &StorePath,
        header: ShardHeader,
        digest: CheckpointDigest,
    ) -> Result<Self, SaveError> {
        let bytes = length(&header)?;
        Self::create_sized(storage, dir, header, digest, bytes).await
    }

    /// Creates a file without values, which takes as much space while it is written as one with this header: where a store
    /// reserves space, a quota shows.
    ///
    /// # Errors
    /// See [`create`](Self::create).
    pub async fn create_probe(
        storage: &dyn Storage,
        dir: &StorePath,
        header: ShardHeader,
        digest: CheckpointDigest,
    ) -> Result<Self, SaveError> {
        let bytes = length(&header)?;
        let header = ShardHeader { tables: Vec::new(), sections: Vec::new(), ..header };
        Self::create_sized(storage, dir, header, digest, bytes).await
    }

    async fn create_sized(
        storage: &dyn Storage,
        dir: &StorePath,
        header: ShardHeader,
        digest: CheckpointDigest,
        bytes: u64,
    ) -> Result<Self, SaveError> {
        let uuid = Uuid::new_v4();
        let start = header.encode()?;
        let name = ShardFile::name(header.shard, uuid);
        let path = dir.join(&name).map_err(StorageError::from)?;
        let mut file = SummedWriter::create_sized(storage, &path, Mode::FILE, bytes).await?;
        if digest == CheckpointDigest::Md5AndSha256 {
            file = file.with_sha256();
        }
        file.write(Bytes::from(start)).await?;
        let mut writer = Self { file, header, uuid, section: 0, written: 0 };
        writer.skip_full().await?;
        Ok(writer)
    }

    /// Appends little-endian values. They may begin and end anywhere, also across sections.
    ///
    /// # Errors
    /// Errors of the storage; `Amount` for bytes beyond the last section.
    pub async fn write(&mut self, mut data: Bytes) -> Result<(), SaveError> {
        while !data.is_empty() {
            let Some(section) = self.header.sections.get(self.section) else {
                let (section, given) = ("the end".to_owned(), data.len() as u64);
                return Err(SaveError::Amount { section, expected: 0, given });
            };
            let room = section.bytes() - self.written;
            let take = usize::try_from(room).map_or(data.len(), |room| room.min(data.len()));
            self.file.write(data.split_to(take)).await?;
            self.written += take as u64;
            self.skip_full().await?;
        }
        Ok(())
    }

    /// Pads full sections and advances to the next one with room.
    async fn skip_full(&mut self) -> Result<(), SaveError> {
        while let Some(section) = self.header.sections.get(self.section)
            && section.bytes() == self.written
        {
            let padding = self.written.next_multiple_of(ALIGN) - self.written;
            static ZEROS: [u8; ALIGN as usize] = [0; ALIGN as usize];
            self.file.write(Bytes::from_static(&ZEROS[..padding as usize])).await?;
            self.section += 1;
            self.written = 0;
        }
        Ok(())
    }

    /// Makes data and sidecar durable. Returns the file's entry for the manifest.
    ///
    /// # Errors
    /// Errors of the storage; `Amount` if a section is not full.
    pub async fn finish(self, storage: &dyn Storage) -> Result<ShardFile, SaveError> {
        if let Some(section) = self.header.sections.get(self.section) {
            return Err(SaveError::Amount {
                section: section.name.clone(),
                expected: section.bytes(),
                given: self.written,
            });
        }
        let summed = self.file.finish(storage).await?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(ShardFile {
            shard: self.header.shard,
            uuid: self.uuid,
            file: summed.name,
            md5: summed.md5,
            bytes: summed.bytes,
            at_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            sha256: summed.sha256,
            copies: Vec::new(),
        })
    }
}
