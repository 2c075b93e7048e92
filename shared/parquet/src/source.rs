//! The bytes of a file, read where they are needed.

use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use heddle_columns::typed::ReadAhead;
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};

use crate::thrift::{Compact, NUMBER};

/// The largest page that is read, packed and unpacked.
pub(crate) const PAGE_BYTES_MAX: u64 = 64 << 20;
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

/// The bytes of one column of a row group, which is read from start to end.
pub(crate) struct ColumnBytes {
    file: Arc<dyn ReadAt>,
    /// One beyond the last byte, as an offset in the file.
    end: u64,
    /// Whether pages are read with their headers.
    with_headers: bool,
    ahead: Mutex<ReadAhead>,
}

impl ColumnBytes {
    pub(crate) fn new(file: Arc<dyn ReadAt>, end: u64, ahead: ReadAhead) -> Self {
        Self { file, end, with_headers: false, ahead: ahead.into() }
    }

    /// The same of pages that are read with their headers.
    pub(crate) fn with_headers(self) -> Self {
        Self { with_headers: true, ..self }
    }

    /// The bytes from `start` on, `least` at least unless the column ends before.
    fn from(&self, start: u64, least: usize) -> Result<Bytes> {
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        let read = |from, len| {
            let read = self.file.read_at(from, len);
            read.map_err(|error| ParquetError::External(Box::new(error)))
        };
        ahead.from(start, least, self.end, read)
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
        let bytes = self.from(start, HEADER_BYTES)?;
        // Before memory is taken for it.
        unpacked_length(&bytes).map_or(Ok(()), check_length)?;
        Ok(HeaderBytes(bytes))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        check_length(length as u64)?;
        let bytes = self.from(start, length)?;
        if bytes.len() < length {
            return Err(ParquetError::EOF("a page ends beyond its column".to_owned()));
        }
        if self.with_headers {
            unpacked_length(&bytes).map_or(Ok(()), check_length)?;
        }
        Ok(bytes.slice(..length))
    }
}

/// Refuses long pages.
pub(crate) fn check_length(bytes: u64) -> Result<()> {
    if bytes <= PAGE_BYTES_MAX {
        return Ok(());
    }
    let limit = PAGE_BYTES_MAX >> 20;
    let what = format!("a page of {bytes} bytes; pages of at most {limit} MiB are read");
    Err(ParquetError::General(what))
}

/// The unpacked length of a page: field 2 of its header (`PageHeader` of the format, in Thrift's compact protocol). A header
/// where another field than a number comes before is left to the decoder.
fn unpacked_length(header: &[u8]) -> Option<u64> {
    const LENGTH: u64 = 2;
    let (mut header, mut last) = (Compact(header), 0);
    loop {
        let field = header.field(last)?;
        if field.kind != NUMBER {
            return None;
        }
        let number = header.varint()?;
        if field.id == LENGTH {
            // Zigzag: an odd one is negative.
            return (number & 1 == 0).then_some(number >> 1);
        }
        last = field.id;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpacked_length_is_the_second_number() {
        // Type 0, length 300, packed 7.
        assert_eq!(unpacked_length(&[0x15, 0, 0x15, 0xd8, 0x04, 0x15, 14]), Some(300));
        assert_eq!(unpacked_length(&[0x15, 0, 0x05, 4, 0xd8, 0x04]), Some(300), "long form");
        assert_eq!(unpacked_length(&[0x25, 1]), None, "negative");
        assert_eq!(unpacked_length(&[0x15, 0, 0x18, 1, b'x']), None, "a text");
        assert_eq!(unpacked_length(&[0x15, 0, 0x15, 0xff]), None, "it ends");
        assert!(check_length(PAGE_BYTES_MAX).is_ok());
        assert!(check_length(PAGE_BYTES_MAX + 1).is_err());
    }
}
