//! Snappy as Hadoop's `SnappyCodec` writes it (`BlockCompressorStream`): blocks of a u32 length of their text, then chunks until
//! that length is reached. A chunk is a u32 packed length and as many bytes in snappy's raw format. Big-endian.

use snap::raw::{Decoder, decompress_len, max_compress_len};

use super::unpacker::{CUT_OFF, TEXT_STEP, UnpackError, Unpacker};

/// Name of the packing.
pub const NAME: &str = "snappy";
/// Longest text of a block, and of a chunk, which is unpacked at once. Hadoop's blocks have 256 KiB
/// (`io.compression.codec.snappy.buffersize`).
pub const RAW_BYTES_MAX: usize = 64 << 20;
/// Bytes of a length.
const LENGTH_BYTES: usize = 4;

/// A file of snappy that is being decompressed.
#[derive(Debug, Default)]
pub struct Snappy {
    /// A length, or a chunk with its length, as far as it came.
    held: Vec<u8>,
    /// Text of the present block that is still to come; 0 between blocks.
    left: usize,
    /// Offset of the present block.
    block: u64,
    /// Packed bytes so far.
    position: u64,
}

impl Snappy {
    /// Bytes of what is held once it is whole.
    fn wanted(&self) -> Result<usize, UnpackError> {
        let Some(length) = self.held.first_chunk().filter(|_| self.left > 0) else {
            return Ok(LENGTH_BYTES);
        };
        match u32::from_be_bytes(*length) as usize {
            length if length <= max_compress_len(RAW_BYTES_MAX) => Ok(LENGTH_BYTES + length),
            length => Err(self.damaged(format!("a chunk of {length} bytes is too long"))),
        }
    }

    fn begin_block(&mut self) -> Result<(), UnpackError> {
        let length = self.held.first_chunk().map_or(0, |length| u32::from_be_bytes(*length));
        self.held.clear();
        self.block = self.position - LENGTH_BYTES as u64;
        self.left = length as usize;
        if self.left > RAW_BYTES_MAX {
            return Err(self.damaged(format!(
                "it would have {length} bytes, at most {RAW_BYTES_MAX} are read; the format is that of Hadoop's SnappyCodec"
            )));
        }
        Ok(())
    }

    fn unpack_chunk(&mut self, text: &mut Vec<u8>) -> Result<(), UnpackError> {
        let chunk = &self.held[LENGTH_BYTES..];
        let failed = |error: snap::Error| self.damaged(error.to_string());
        let (at, length) = (text.len(), decompress_len(chunk).map_err(failed)?);
        if length > self.left {
            return Err(self.damaged("its chunks are longer than it".to_owned()));
        }
        text.resize(at + length, 0);
        Decoder::new().decompress(chunk, &mut text[at..]).map_err(failed)?;
        self.left -= length;
        self.held.clear();
        Ok(())
    }

    fn damaged(&self, what: String) -> UnpackError {
        UnpackError::Damaged { packing: NAME, part: "block", at: self.block, what }
    }
}

impl Unpacker for Snappy {
    fn step(&mut self, packed: &mut &[u8], text: &mut Vec<u8>) -> Result<bool, UnpackError> {
        let full = text.len() + TEXT_STEP;
        while text.len() < full {
            let missing = self.wanted()? - self.held.len();
            if missing > 0 {
                if packed.is_empty() {
                    return Ok(true);
                }
                let (bytes, rest) = packed.split_at(packed.len().min(missing));
                self.held.extend_from_slice(bytes);
                self.position += bytes.len() as u64;
                *packed = rest;
            } else if self.left == 0 {
                self.begin_block()?;
            } else {
                self.unpack_chunk(text)?;
            }
        }
        Ok(false)
    }

    /// Zeros are empty blocks; the last one may be cut.
    fn finish(&self) -> Result<(), UnpackError> {
        let start = self.position - self.held.len() as u64;
        match (self.left, &self.held[..]) {
            (0, []) => Ok(()),
            (0, held) if start > 0 && held.iter().all(|byte| *byte == 0) => Ok(()),
            (0, _) if start > 0 => {
                Err(UnpackError::Trailing { packing: NAME, part: "block", at: start })
            }
            _ => Err(self.damaged(CUT_OFF.to_owned())),
        }
    }
}
