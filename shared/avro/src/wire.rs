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
    #[inline(always)]
    pub(crate) fn long(&mut self) -> Result<i64, AvroError> {
        if let [byte @ 0..128, rest @ ..] = self.0 {
            self.0 = rest;
            return Ok(zigzag(u64::from(*byte)));
        }
        // The bits above the numbers' own show the last byte; this is half the time of a byte after the other.
        if let Some(word) = self.0.first_chunk() {
            let word = u64::from_le_bytes(*word);
            let last = !word & 0x8080_8080_8080_8080;
            if last != 0 {
                let number = word & (last ^ (last - 1)) & 0x7f7f_7f7f_7f7f_7f7f;
                let pairs = number & 0x007f_007f_007f_007f | (number & 0x7f00_7f00_7f00_7f00) >> 1;
                let fours = pairs & 0x3fff_0000_3fff | (pairs & 0x3fff_0000_3fff_0000) >> 2;
                let number = fours & 0x0fff_ffff | (fours & 0x0fff_ffff_0000_0000) >> 4;
                self.take(last.trailing_zeros() as usize / 8 + 1)?;
                return Ok(zigzag(number));
            }
        }
        self.long_by_bytes()
    }

    /// The same for long numbers, and at the end.
    #[inline(never)]
    fn long_by_bytes(&mut self) -> Result<i64, AvroError> {
        let mut number = 0_u64;
        for (place, byte) in self.0.iter().take(10).enumerate() {
            number |= u64::from(byte & 127) << (7 * place);
            if byte & 128 == 0 {
                self.0 = &self.0[place + 1..];
                return Ok(zigzag(number));
            }
        }
        Err(if self.0.len() < 10 { short() } else { AvroError("a number is too long".to_owned()) })
    }

    /// A length.
    #[inline(always)]
    pub(crate) fn length(&mut self) -> Result<usize, AvroError> {
        let length = self.long()?;
        usize::try_from(length).map_err(|_| no_length(length))
    }

    /// A `string` or `bytes`.
    #[inline(always)]
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

#[inline(always)]
fn zigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}

#[cold]
fn no_length(length: i64) -> AvroError {
    AvroError(format!("a length of {length}"))
}

#[cold]
fn short() -> AvroError {
    AvroError("it ends within a value".to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_are_those_of_the_bytes_one_by_one(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..14),
            long in 0_usize..12,
        ) {
            bytes.iter_mut().take(long).for_each(|byte| *byte |= 128);
            let (mut fast, mut slow) = (Wire(&bytes), Wire(&bytes));
            prop_assert_eq!(fast.long(), slow.long_by_bytes());
            prop_assert_eq!(fast.0, slow.0);
        }
    }
}
