//! How the records of a block are packed.

use std::io::{self, Read};

use bzip2::bufread::BzDecoder;
use libdeflater::{DecompressionError, Decompressor};

use crate::{AvroError, BLOCK_BYTES_MAX};

/// Bytes after a block of snappy.
const CHECKSUM_BYTES: usize = 4;

/// Room for unpacked bytes at the least.
const ROOM_BYTES: usize = 32 << 10;

/// The widest window of zstd, as a power of two: the largest block.
const WINDOW_LOG_MAX: u32 = BLOCK_BYTES_MAX.ilog2();

/// The codec of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codec {
    Null,
    Deflate,
    Snappy,
    Zstandard,
    Bzip2,
}

const CODECS: [(&str, Codec); 5] = [
    ("null", Codec::Null),
    ("deflate", Codec::Deflate),
    ("snappy", Codec::Snappy),
    ("zstandard", Codec::Zstandard),
    ("bzip2", Codec::Bzip2),
];

impl Codec {
    pub(crate) fn of_name(name: &[u8]) -> Result<Self, AvroError> {
        let codec = CODECS.iter().find(|(own, _)| own.as_bytes() == name).map(|(_, codec)| *codec);
        codec.ok_or_else(|| {
            let names = CODECS.map(|(name, _)| name).join(", ");
            let name = String::from_utf8_lossy(name);
            AvroError(format!("its codec is {name:?}, which is not read; those are: {names}"))
        })
    }

    /// Unpacks a block into `records` from `start` on. Returns where it ends; bytes after that are room.
    pub(crate) fn unpack(
        self,
        packed: &[u8],
        records: &mut Vec<u8>,
        start: usize,
    ) -> Result<usize, AvroError> {
        if self != Self::Deflate {
            records.truncate(start);
        }
        match self {
            Self::Null => records.extend_from_slice(packed),
            Self::Deflate => return inflate(packed, records, start),
            Self::Bzip2 => read_limited(BzDecoder::new(packed), records)?,
            Self::Zstandard => {
                let mut decoder =
                    zstd::Decoder::with_buffer(packed).map_err(|error| damaged(&error))?;
                decoder.window_log_max(WINDOW_LOG_MAX).map_err(|error| damaged(&error))?;
                read_limited(decoder, records)?;
            }
            Self::Snappy => unpack_snappy(packed, records)?,
        }
        Ok(records.len())
    }
}

fn read_limited(decoder: impl Read, records: &mut Vec<u8>) -> Result<(), AvroError> {
    let mut limited = decoder.take(BLOCK_BYTES_MAX + 1);
    let read = limited.read_to_end(records).map_err(|error| damaged(&error))?;
    check_length(read as u64)
}

/// At once, by a decoder that takes a sixth less time than a decoder of streams. A block does not state its length: the room
/// grows until it is enough, and stays for the blocks that follow.
fn inflate(packed: &[u8], records: &mut Vec<u8>, start: usize) -> Result<usize, AvroError> {
    let mut decoder = Decompressor::new();
    let mut room = (2 * packed.len()).max(ROOM_BYTES).max(records.len().saturating_sub(start));
    loop {
        room = room.min(BLOCK_BYTES_MAX as usize);
        if records.len() < start + room {
            records.reserve_exact(start + room - records.len());
            records.resize(start + room, 0);
        }
        match decoder.deflate_decompress(packed, &mut records[start..start + room]) {
            Ok(len) => return Ok(start + len),
            Err(DecompressionError::BadData) => {
                return Err(damaged(&io::Error::other("corrupt deflate stream")));
            }
            Err(DecompressionError::InsufficientSpace) => {
                let is_all = room as u64 == BLOCK_BYTES_MAX;
                check_length(room as u64 + u64::from(is_all))?;
                room *= 2;
            }
        }
    }
}

fn check_length(bytes: u64) -> Result<(), AvroError> {
    let most = BLOCK_BYTES_MAX >> 20;
    if bytes > BLOCK_BYTES_MAX {
        return Err(AvroError(format!("it has more than {most} MiB, unpacked")));
    }
    Ok(())
}

fn unpack_snappy(packed: &[u8], records: &mut Vec<u8>) -> Result<(), AvroError> {
    let Some((packed, checksum)) = packed.split_last_chunk::<CHECKSUM_BYTES>() else {
        return Err(AvroError("it has no checksum".to_owned()));
    };
    let len = snap::raw::decompress_len(packed).map_err(|error| AvroError(error.to_string()))?;
    check_length(len as u64)?;
    let start = records.len();
    records.resize(start + len, 0);
    let records = &mut records[start..];
    let unpacked = snap::raw::Decoder::new().decompress(packed, records);
    unpacked.map_err(|error| AvroError(format!("it is damaged: {error}")))?;
    if libdeflater::crc32(records) != u32::from_be_bytes(*checksum) {
        return Err(AvroError("its checksum is wrong".to_owned()));
    }
    Ok(())
}

fn damaged(error: &io::Error) -> AvroError {
    AvroError(format!("it is damaged: {error}"))
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::read::DeflateEncoder;

    use super::*;

    fn deflated(bytes: u64) -> Vec<u8> {
        let mut packed = Vec::new();
        let mut encoder = DeflateEncoder::new(io::repeat(7).take(bytes), Compression::fast());
        encoder.read_to_end(&mut packed).expect("packed");
        packed
    }

    #[test]
    fn deflated_blocks_of_any_ratio_are_unpacked_up_to_the_limit() {
        for bytes in [0, 1, 1_000, 10 << 20, BLOCK_BYTES_MAX] {
            let mut records = b"abc".to_vec();
            let end = inflate(&deflated(bytes), &mut records, 2).expect("sound");
            assert_eq!(end as u64, 2 + bytes);
            assert!(records.starts_with(b"ab") && records[2..end].iter().all(|byte| *byte == 7));
        }
        let (packed, mut records, mut error) = (deflated(BLOCK_BYTES_MAX + 1), Vec::new(), None);
        let taken = allocation_counter::measure(|| error = inflate(&packed, &mut records, 0).err());
        assert_eq!(
            error.map(|error| error.0).as_deref(),
            Some("it has more than 64 MiB, unpacked")
        );
        assert!(taken.bytes_max < 2 * BLOCK_BYTES_MAX, "{} bytes", taken.bytes_max);
    }

    #[test]
    fn deflated_blocks_that_are_cut_are_damaged() {
        let packed = deflated(1_000);
        for end in 0..packed.len() {
            let error = inflate(&packed[..end], &mut Vec::new(), 0).expect_err("cut").to_string();
            assert_eq!(error, "it is damaged: corrupt deflate stream");
        }
    }
}
