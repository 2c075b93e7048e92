//! Reads a shard file as a stream and verifies it.

use bytes::{Bytes, BytesMut};
use heddle_protocol::manifest::{CutIdentity, Md5, Sha256, ShardFile};
use sha2::Digest as _;

use super::header::{ALIGN, FormatError, PROLOGUE_BYTES, ShardHeader, decode_prologue};
use super::identity::{check_identity, name_other_version};
use crate::checkpoint::{CheckpointError, Damage};
use crate::digest::Digester;
use crate::error::{Op, Reason, StorageError};
use crate::path::StorePath;
use crate::read_small;
use crate::sidecar::{SIDECAR_BYTES_MAX, SidecarError, read_sidecar, sidecar_name};
use crate::store::{EntryKind, Reader, Storage};

/// Values of one section are returned in pieces of a multiple of this many bytes (the last may be shorter),
/// so that no value is split between two.
const VALUE_BYTES_MAX: usize = 8;

/// A run of one section's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Index into [`ShardHeader::sections`].
    pub section: usize,
    /// Offset in the section, in bytes.
    pub offset: u64,
    /// The bytes; whole values, at least one.
    pub data: Bytes,
}

/// A shard file being read. Order of checks: sidecar, length, magic and version, header, the cut that it names, and at the
/// end the sum over all bytes.
///
/// **The bytes may be used only after [`next`](Self::next) has returned `None`:** until then the file may still prove to be
/// damaged.
#[derive(Debug)]
pub struct ShardReader {
    source: SummedReader,
    header: ShardHeader,
    section: usize,
    /// Bytes of the section returned so far.
    given: u64,
}

impl ShardReader {
    /// Opens a file that the manifest of `cut` lists, and reads its header.
    ///
    /// # Errors
    /// `Damaged` if sidecar, length or header are wrong or the file is missing, with [`Damage::OtherVersion`] if it names
    /// another shard or cut; `Newer` for a later format; `Storage` if it cannot be read at the moment.
    pub async fn open(
        storage: &dyn Storage,
        dir: &StorePath,
        expected: &ShardFile,
        cut: &CutIdentity,
    ) -> Result<Self, CheckpointError> {
        let reader = match Self::open_any(storage, dir, expected).await {
            Ok(reader) => reader,
            Err(error) => return Err(name_other_version(storage, dir, expected, cut, error).await),
        };
        match check_identity(&reader.header, expected.shard, cut) {
            Ok(()) => Ok(reader),
            Err(damage) => Err(reader.source.damaged(damage)),
        }
    }

    /// Opens a file of any shard and cut.
    async fn open_any(
        storage: &dyn Storage,
        dir: &StorePath,
        expected: &ShardFile,
    ) -> Result<Self, CheckpointError> {
        let path = dir.join(&expected.file).map_err(StorageError::from)?;
        let shown = storage.show(&path);
        let damaged = |damage| CheckpointError::Damaged { file: shown.clone(), damage };
        check_sidecar(storage, dir, expected).await?;
        let found = match storage.stat(&path).await {
            Ok(entry) if entry.kind != EntryKind::File => return Err(damaged(Damage::NotAFile)),
            Ok(entry) => entry.bytes,
            Err(error) if error.is_not_found() => return Err(damaged(Damage::Missing)),
            Err(error) => return Err(error.into()),
        };
        if found != expected.bytes {
            return Err(damaged(Damage::Length { expected: expected.bytes, found }));
        }
        let format = |error| CheckpointError::of_format(&shown, error);
        let mut source = SummedReader::open(storage, &path, expected).await?;
        let start = source.take(PROLOGUE_BYTES).await?;
        let prologue = start
            .first_chunk()
            .ok_or_else(|| damaged(Damage::Length { expected: PROLOGUE_BYTES as u64, found }))?;
        let json_bytes = decode_prologue(prologue).map_err(format)?;
        // Bounded by HEADER_BYTES_MAX and read incrementally, so a wrong length allocates nothing.
        let json = source.take(json_bytes).await?;
        let header = ShardHeader::decode(&json).map_err(format)?;
        let (start, end) = header.layout(json_bytes as u64).map_err(format)?;
        if end != found {
            return Err(format(FormatError::Length { expected: end, found }));
        }
        let padding = start - (PROLOGUE_BYTES + json_bytes) as u64;
        source.take(padding as usize).await?;
        Ok(Self { source, header, section: 0, given: 0 })
    }

    /// The file, as a user types it.
    pub fn file(&self) -> &str {
        &self.source.shown
    }

    /// The header of the file.
    pub fn header(&self) -> &ShardHeader {
        &self.header
    }

    /// The next bytes of the sections, in the order of the file; `None` once all were returned **and**
    /// the sum over the file matches the manifest's.
    ///
    /// # Errors
    /// `Damaged` if the file ends early or its sum is wrong; `Storage` if it cannot be read at the moment.
    pub async fn next(&mut self) -> Result<Option<Piece>, CheckpointError> {
        while let Some(section) = self.header.sections.get(self.section) {
            let room = section.bytes() - self.given;
            if room == 0 {
                let padding = self.given.next_multiple_of(ALIGN) - self.given;
                self.source.take(padding as usize).await?;
                self.section += 1;
                self.given = 0;
                continue;
            }
            let data = self.source.some(room).await?;
            let piece = Piece { section: self.section, offset: self.given, data };
            self.given += piece.data.len() as u64;
            return Ok(Some(piece));
        }
        self.source.finish().await?;
        Ok(None)
    }

    /// Reads to the end only for the check.
    ///
    /// # Errors
    /// See [`next`](Self::next).
    pub async fn check(mut self) -> Result<ShardHeader, CheckpointError> {
        while self.next().await?.is_some() {}
        Ok(self.header)
    }
}

pub(crate) async fn check_sidecar(
    storage: &dyn Storage,
    dir: &StorePath,
    file: &ShardFile,
) -> Result<(), CheckpointError> {
    let path = dir.join(&sidecar_name(&file.file)).map_err(StorageError::from)?;
    let wrong = |error| {
        let damage = Damage::Sidecar(error);
        Err(CheckpointError::Damaged { file: storage.show(&path), damage })
    };
    let content = match read_small(storage, &path, SIDECAR_BYTES_MAX).await {
        Ok(content) => content,
        Err(error) if error.is_not_found() => return wrong(SidecarError::Missing),
        // Longer than any sidecar.
        Err(error) if matches!(error.reason, Reason::Unsupported(_)) || error.is_no_file() => {
            return wrong(SidecarError::Form);
        }
        Err(error) => return Err(error.into()),
    };
    match read_sidecar(&content, &file.file) {
        Ok(sum) if sum == file.md5 => Ok(()),
        Ok(found) => wrong(SidecarError::Differs { expected: file.md5, found }),
        Err(error) => wrong(error),
    }
}

/// The bytes of the file in order, summed as they arrive.
#[derive(Debug)]
struct SummedReader {
    shown: String,
    reader: Box<dyn Reader>,
    /// Read and summed, not yet returned.
    ahead: Bytes,
    digester: Option<Digester>,
    /// The SHA-256 of the bytes so far, if the manifest has one.
    strong: Option<sha2::Sha256>,
    expected_strong: Option<Sha256>,
    /// Bytes of the file not yet read.
    left: u64,
    bytes: u64,
    expected: Md5,
    /// The sum over all bytes, once all were read.
    sum: Option<Md5>,
}

impl SummedReader {
    async fn open(
        storage: &dyn Storage,
        path: &StorePath,
        file: &ShardFile,
    ) -> Result<Self, CheckpointError> {
        let shown = storage.show(path);
        let reader = storage.open(path, 0).await?;
        Ok(Self {
            shown,
            reader,
            ahead: Bytes::new(),
            digester: Some(Digester::new()),
            strong: file.sha256.map(|_| sha2::Sha256::new()),
            expected_strong: file.sha256,
            left: file.bytes,
            bytes: file.bytes,
            expected: file.md5,
            sum: None,
        })
    }

    fn damaged(&self, damage: Damage) -> CheckpointError {
        CheckpointError::Damaged { file: self.shown.clone(), damage }
    }

    /// Reads the next chunk of the file. The end of the file here is an error.
    async fn chunk(&mut self) -> Result<Bytes, CheckpointError> {
        let chunk = self.reader.next().await?.unwrap_or_default();
        // The length was correct when the file was opened. A file that ends before it or continues after it has changed
        // since.
        let length = chunk.len() as u64;
        if length == 0 || length > self.left {
            let found =
                if length == 0 { self.bytes - self.left } else { self.bytes - self.left + length };
            return Err(self.damaged(Damage::Length { expected: self.bytes, found }));
        }
        self.left -= length;
        if let Some(strong) = &mut self.strong {
            strong.update(&chunk);
        }
        if let Some(digester) = &mut self.digester {
            let no_thread =
                |error| StorageError::new(Op::Read, &self.shown, Reason::Other).because(error);
            digester.update(chunk.clone()).await.map_err(no_thread)?;
        }
        Ok(chunk)
    }

    /// Exactly `count` bytes, in one buffer.
    async fn take(&mut self, count: usize) -> Result<Bytes, CheckpointError> {
        if self.ahead.len() >= count {
            return Ok(self.ahead.split_to(count));
        }
        let mut taken = BytesMut::new();
        while taken.len() < count {
            if self.ahead.is_empty() {
                self.ahead = self.chunk().await?;
            }
            let more = (count - taken.len()).min(self.ahead.len());
            taken.extend_from_slice(&self.ahead.split_to(more));
        }
        Ok(taken.freeze())
    }

    /// At least one and at most `room` bytes, whole values unless the room ends within one.
    async fn some(&mut self, room: u64) -> Result<Bytes, CheckpointError> {
        if self.ahead.is_empty() {
            self.ahead = self.chunk().await?;
        }
        let usable =
            usize::try_from(room).map_or(self.ahead.len(), |room| room.min(self.ahead.len()));
        if usable as u64 == room || usable >= VALUE_BYTES_MAX {
            let whole = if usable as u64 == room {
                usable
            } else {
                usable / VALUE_BYTES_MAX * VALUE_BYTES_MAX
            };
            return Ok(self.ahead.split_to(whole));
        }
        // A value is split between two chunks: join them.
        let torn = usize::try_from(room).map_or(VALUE_BYTES_MAX, |room| room.min(VALUE_BYTES_MAX));
        self.take(torn).await
    }

    /// Compares the sum; a repeated call returns the same result.
    async fn finish(&mut self) -> Result<(), CheckpointError> {
        if let Some(digester) = self.digester.take() {
            let no_sum =
                |error| StorageError::new(Op::Read, &self.shown, Reason::Other).because(error);
            self.sum = Some(digester.finish().await.map_err(no_sum)?);
        }
        if let (Some(strong), Some(expected)) = (self.strong.take(), self.expected_strong) {
            let found = Sha256(strong.finalize().into());
            if found != expected && self.sum == Some(self.expected) {
                return Err(self.damaged(Damage::StrongSum { expected, found }));
            }
        }
        match self.sum {
            Some(found) if found != self.expected => {
                let expected = self.expected;
                Err(self.damaged(Damage::Sum { expected, found }))
            }
            _ => Ok(()),
        }
    }
}
