//! Numbers and texts as they are written ("binary encoding").

use crate::AvroError;

/// Bytes that are read from the front.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wire<'b>(pub(crate) &'b [u8]);

impl<'b> Wire<'b> {
    /// The next bytes.
    #[inline]
    pub(crate) fn take(&mut self, len: usize) -> Result<&'b [u8], AvroError> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or_else(short)?;
        self.0 = rest;
        Ok(taken)
    }

    /// The next bytes, of which there are `N`.
    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], AvroError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or_else(short)?;
        self.0 = rest;
        Ok(*taken)
    }

    /// An `int` or `long`: seven bits a byte, the lowest first, zigzag.
    #[inline]
    pub(crate) fn long(&mut self) -> Result<i64, AvroError> {
        let mut number = 0_u64;
        for (place, byte) in self.0.iter().take(10).enumerate() {
            number |= u64::from(byte & 127) << (7 * place);
            if byte & 128 == 0 {
                self.0 = &self.0[place + 1..];
                return Ok((number >> 1).cast_signed() ^ -(number & 1).cast_signed());
            }
        }
        Err(if self.0.len() < 10 { short() } else { AvroError("a number is too long".to_owned()) })
    }

    /// A length.
    #[inline]
    pub(crate) fn length(&mut self) -> Result<usize, AvroError> {
        let length = self.long()?;
        usize::try_from(length).map_err(|_| AvroError(format!("a length of {length}")))
    }

    /// A `string` or `bytes`.
    #[inline]
    pub(crate) fn text(&mut self) -> Result<&'b [u8], AvroError> {
        let length = self.length()?;
        self.take(length)
    }

    /// The number of items of the next part of an array or a map; 0 ends it. Each item takes a byte at least.
    #[inline]
    pub(crate) fn items(&mut self) -> Result<usize, AvroError> {
        let count = self.long()?;
        if count < 0 {
            // The number of bytes follows, by which a reader may skip the part.
            self.long()?;
        }
        let count = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
        if count > self.0.len() { Err(short()) } else { Ok(count) }
    }
}

#[cold]
fn short() -> AvroError {
    AvroError("it ends within a value".to_owned())
}
