//! Files of one or more parts, each with a magic at its start: gzip's members (RFC 1952 §2.2), zstd's frames (RFC 8878 §3.1),
//! bzip2's streams. Their texts are one text. Zeros between and after them, with which tapes and object stores fill up their
//! blocks, are skipped.

use std::fmt::Debug;

use super::unpacker::{CUT_OFF, TEXT_STEP, UnpackError, Unpacker};

/// Decompresses a part.
pub trait PartDecoder: Debug + Default + Send {
    /// Name of the packing.
    const PACKING: &'static str;
    /// What the packing calls a part.
    const PART: &'static str;
    /// Bytes that [`begins`](Self::begins) needs.
    const MAGIC_BYTES: usize;

    /// Whether these are the first bytes of a part.
    fn begins(start: &[u8]) -> bool;

    /// Decompresses bytes from the front of `packed` into the front of `room`, as far as these reach.
    ///
    /// # Errors
    /// What is wrong with the part.
    fn decode(&mut self, packed: &[u8], room: &mut [u8]) -> Result<Decoded, String>;
}

/// Result of [`PartDecoder::decode`].
pub struct Decoded {
    /// Packed bytes that are done with.
    pub taken: usize,
    /// Bytes of text.
    pub written: usize,
    /// The part ends after them.
    pub is_over: bool,
}

/// A file of parts that is being unpacked.
#[derive(Debug)]
pub struct PackedParts<D> {
    /// The present part, once its magic is read.
    decoder: Option<D>,
    /// First bytes of a part up to its magic.
    magic: Vec<u8>,
    /// Offset of the present part.
    start: u64,
    /// Packed bytes so far.
    position: u64,
}

impl<D> Default for PackedParts<D> {
    fn default() -> Self {
        Self { decoder: None, magic: Vec::new(), start: 0, position: 0 }
    }
}

impl<D: PartDecoder> PackedParts<D> {
    /// Reads the magic of the next part, and zeros before it.
    fn begin(&mut self, packed: &mut &[u8]) -> Result<(), UnpackError> {
        if self.magic.is_empty() {
            let is_padding = |byte: &&u8| self.position > 0 && **byte == 0;
            let zeros = packed.iter().take_while(is_padding).count();
            *packed = &packed[zeros..];
            self.position += zeros as u64;
            self.start = self.position;
        }
        let (magic, rest) = packed.split_at(packed.len().min(D::MAGIC_BYTES - self.magic.len()));
        *packed = rest;
        self.magic.extend_from_slice(magic);
        self.position += magic.len() as u64;
        if self.magic.len() == D::MAGIC_BYTES {
            if !D::begins(&self.magic) {
                return Err(self.foreign(&format!("its first bytes are not {}'s", D::PACKING)));
            }
            let mut decoder = D::default();
            decoder.decode(&self.magic, &mut []).map_err(|what| self.damaged(what))?;
            self.decoder = Some(decoder);
            self.magic.clear();
        }
        Ok(())
    }

    /// Unpacks into `room` from `filled` on, and advances it.
    fn fill(
        &mut self,
        packed: &mut &[u8],
        room: &mut [u8],
        filled: &mut usize,
    ) -> Result<(), UnpackError> {
        while *filled < room.len() {
            let Some(decoder) = &mut self.decoder else {
                if packed.is_empty() {
                    break;
                }
                self.begin(packed)?;
                continue;
            };
            let decoded = decoder.decode(packed, &mut room[*filled..]);
            let Decoded { taken, written, is_over } = decoded.map_err(|what| self.damaged(what))?;
            *packed = &packed[taken..];
            self.position += taken as u64;
            *filled += written;
            if is_over {
                self.decoder = None;
            } else if taken == 0 && written == 0 {
                break;
            }
        }
        Ok(())
    }

    fn damaged(&self, what: String) -> UnpackError {
        UnpackError::Damaged { packing: D::PACKING, part: D::PART, at: self.start, what }
    }

    /// Bytes that are not a part are damage at the start of the file alone.
    fn foreign(&self, what: &str) -> UnpackError {
        match self.start {
            0 => self.damaged(what.to_owned()),
            at => UnpackError::Trailing { packing: D::PACKING, part: D::PART, at },
        }
    }
}

impl<D: PartDecoder> Unpacker for PackedParts<D> {
    fn step(&mut self, packed: &mut &[u8], text: &mut Vec<u8>) -> Result<bool, UnpackError> {
        let (at, mut filled) = (text.len(), 0);
        text.resize(at + TEXT_STEP, 0);
        let end = self.fill(packed, &mut text[at..], &mut filled);
        text.truncate(at + filled);
        end.map(|()| filled < TEXT_STEP)
    }

    fn finish(&self) -> Result<(), UnpackError> {
        match self.decoder {
            Some(_) => Err(self.damaged(CUT_OFF.to_owned())),
            None if !self.magic.is_empty() => Err(self.foreign(CUT_OFF)),
            None => Ok(()),
        }
    }
}
