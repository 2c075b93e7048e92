//! The bytes of a file, read where they are needed.

use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};

/// Bytes that are read ahead of a column.
const AHEAD_BYTES: u64 = 1 << 20;
/// The largest page that is read.
const PAGE_BYTES_MAX: usize = 64 << 20;
/// Bytes from which the header of a page is read, as a rule: it may have the lowest and the highest value of the page.
const HEADER_BYTES: usize = 64 << 10;

/// A file whose bytes can be read at any place. A call blocks its thread.
pub trait ReadAt: Send + Sync {
    /// Reads exactly `len` bytes from byte `offset`.
    ///
    /// # Errors
    /// The storage failed, or the file is shorter.
    fn read_at(&self, offset: u64, len: usize) -> io::Result<Bytes>;
}

/// The bytes of one column of a row group, which is read from start to end: 1 MiB ahead of the present page.
pub(crate) struct ColumnBytes {
    file: Arc<dyn ReadAt>,
    /// One beyond the last byte, as an offset in the file.
    end: u64,
    ahead: Mutex<ReadAhead>,
}

/// What was read.
#[derive(Default)]
struct ReadAhead {
    start: u64,
    bytes: Bytes,
}

impl ColumnBytes {
    pub(crate) fn new(file: Arc<dyn ReadAt>, end: u64) -> Self {
        Self { file, end, ahead: Mutex::default() }
    }

    /// The bytes from `start` on, `least` at least unless the column ends before.
    fn from(&self, start: u64, least: usize) -> Result<Bytes> {
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        let least = (least as u64).min(self.end.saturating_sub(start));
        let at = start.checked_sub(ahead.start).filter(|at| *at <= ahead.bytes.len() as u64);
        let held = at.map_or_else(Bytes::new, |at| ahead.bytes.slice(at as usize..));
        if held.len() as u64 >= least {
            return Ok(held);
        }
        let from = start + held.len() as u64;
        let wanted = least.max(AHEAD_BYTES).min(self.end - start) - held.len() as u64;
        let more = self.file.read_at(from, wanted as usize);
        let more = more.map_err(|error| ParquetError::External(Box::new(error)))?;
        *ahead = ReadAhead {
            start,
            bytes: if held.is_empty() { more } else { [&held[..], &more[..]].concat().into() },
        };
        Ok(ahead.bytes.clone())
    }
}

impl Length for ColumnBytes {
    fn len(&self) -> u64 {
        self.end
    }
}

impl ChunkReader for ColumnBytes {
    type T = HeaderBytes;

    /// For the header of a page.
    fn get_read(&self, start: u64) -> Result<Self::T> {
        Ok(HeaderBytes(self.from(start, HEADER_BYTES)?))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        if length > PAGE_BYTES_MAX {
            let limit = PAGE_BYTES_MAX >> 20;
            let what = format!("a page of {length} bytes; pages of at most {limit} MiB are read");
            return Err(ParquetError::General(what));
        }
        let bytes = self.from(start, length)?;
        if bytes.len() < length {
            return Err(ParquetError::EOF("a page ends beyond its column".to_owned()));
        }
        Ok(bytes.slice(..length))
    }
}

/// Bytes at the place of a header.
pub(crate) struct HeaderBytes(Bytes);

impl Read for HeaderBytes {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = buf.len().min(self.0.len());
        buf[..len].copy_from_slice(&self.0.split_to(len));
        Ok(len)
    }
}
