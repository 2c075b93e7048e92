//! Hadoop's own serialisation, as far as tokens need it: variable-length integers, texts, byte strings.
//!
//! | value | bytes |
//! | --- | --- |
//! | −112 … 127 | the value itself |
//! | other, ≥ 0 | −113 … −120 for 1 … 8 following bytes, then the value, big-endian |
//! | other, < 0 | −121 … −128 for 1 … 8 following bytes, then the value's complement, big-endian |
//!
//! Source: `io.WritableUtils`, `io.Text`.

/// Why bytes do not decode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at byte {offset}: {problem}")]
pub struct WritableError {
    /// Position of the value that does not decode.
    pub offset: usize,
    /// Why it does not decode.
    pub problem: WritableProblem,
}

/// Why a value does not decode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WritableProblem {
    /// The input ends within the value.
    #[error("the input is too short")]
    Truncated,
    /// A negative length or count, or one beyond the input.
    #[error("a length must be between 0 and {available} (got {length})")]
    Length {
        /// The length in the input.
        length: i64,
        /// Bytes that follow it.
        available: usize,
    },
    /// An integer of more than 32 bits where 32 are allowed.
    #[error("an integer must fit in 32 bits (got {0})")]
    TooLarge(i64),
    /// A text that is not UTF-8.
    #[error("the text is not UTF-8")]
    Utf8,
    /// Bytes after the end of the value.
    #[error("{0} bytes follow the value")]
    Trailing(usize),
}

/// Decodes values from the front of a byte slice.
#[derive(Clone, Debug)]
pub struct WritableReader<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> WritableReader<'a> {
    /// A reader at the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, offset: 0 }
    }

    /// Number of unread bytes.
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.offset
    }

    fn error(&self, problem: WritableProblem) -> WritableError {
        WritableError { offset: self.offset, problem }
    }

    /// The next `count` bytes.
    ///
    /// # Errors
    /// [`WritableProblem::Truncated`].
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], WritableError> {
        let Some(taken) = self.bytes[self.offset..].get(..count) else {
            return Err(self.error(WritableProblem::Truncated));
        };
        self.offset += count;
        Ok(taken)
    }

    /// The next byte.
    ///
    /// # Errors
    /// [`WritableProblem::Truncated`].
    pub fn byte(&mut self) -> Result<u8, WritableError> {
        Ok(self.take(1)?[0])
    }

    /// `WritableUtils.readVLong`.
    ///
    /// # Errors
    /// [`WritableProblem::Truncated`].
    pub fn vlong(&mut self) -> Result<i64, WritableError> {
        let mut ahead = self.clone();
        let first = ahead.byte()?.cast_signed();
        if first >= -112 {
            *self = ahead;
            return Ok(i64::from(first));
        }
        let is_negative = first < -120;
        let base: i16 = if is_negative { -120 } else { -112 };
        let count = usize::try_from(base - i16::from(first)).expect("1 to 8 by the ranges above");
        let Ok(magnitude) = ahead.take(count) else {
            return Err(self.error(WritableProblem::Truncated));
        };
        let value =
            magnitude.iter().fold(0_u64, |value, byte| value << 8 | u64::from(*byte)).cast_signed();
        *self = ahead;
        Ok(if is_negative { !value } else { value })
    }

    /// `WritableUtils.readVInt`.
    ///
    /// # Errors
    /// [`WritableProblem::Truncated`], [`WritableProblem::TooLarge`].
    pub fn vint(&mut self) -> Result<i32, WritableError> {
        let mut ahead = self.clone();
        let value = ahead.vlong()?;
        let narrow =
            i32::try_from(value).map_err(|_| self.error(WritableProblem::TooLarge(value)))?;
        *self = ahead;
        Ok(narrow)
    }

    /// A count of elements. Each has at least one byte, so a count above the remaining bytes is an error.
    ///
    /// # Errors
    /// [`WritableProblem::Truncated`], [`WritableProblem::Length`].
    pub fn count(&mut self) -> Result<usize, WritableError> {
        let mut ahead = self.clone();
        let length = i64::from(ahead.vint()?);
        let available = ahead.remaining();
        let count = usize::try_from(length).ok().filter(|count| *count <= available);
        let count =
            count.ok_or_else(|| self.error(WritableProblem::Length { length, available }))?;
        *self = ahead;
        Ok(count)
    }

    /// A byte string: vint length, bytes.
    ///
    /// # Errors
    /// [`WritableProblem::Truncated`], [`WritableProblem::Length`].
    pub fn bytes(&mut self) -> Result<&'a [u8], WritableError> {
        let count = self.count()?;
        self.take(count)
    }

    /// `io.Text`: vint length in bytes, UTF-8.
    ///
    /// # Errors
    /// [`WritableProblem::Truncated`], [`WritableProblem::Length`], [`WritableProblem::Utf8`].
    pub fn text(&mut self) -> Result<&'a str, WritableError> {
        let mut ahead = self.clone();
        let bytes = ahead.bytes()?;
        let text = std::str::from_utf8(bytes).map_err(|_| self.error(WritableProblem::Utf8))?;
        *self = ahead;
        Ok(text)
    }

    /// Checks that all bytes have been read.
    ///
    /// # Errors
    /// [`WritableProblem::Trailing`].
    pub fn end(&self) -> Result<(), WritableError> {
        match self.remaining() {
            0 => Ok(()),
            left => Err(self.error(WritableProblem::Trailing(left))),
        }
    }
}

/// Appends a `vlong` or `vint`; the two have the same form.
pub fn put_vlong(out: &mut Vec<u8>, value: i64) {
    if let Ok(small) = i8::try_from(value)
        && small >= -112
    {
        out.push(small.cast_unsigned());
        return;
    }
    let (magnitude, base) = if value < 0 { (!value, -120_i8) } else { (value, -112) };
    let bytes = magnitude.to_be_bytes();
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count().min(7);
    let count = i8::try_from(8 - zeros).expect("1 to 8");
    out.push((base - count).cast_unsigned());
    out.extend_from_slice(&bytes[zeros..]);
}

/// Appends a byte string.
///
/// # Panics
/// It is longer than 2 GiB, the limit of a `vint`; no token is.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_vlong(out, i64::from(i32::try_from(bytes.len()).expect("below 2 GiB")));
    out.extend_from_slice(bytes);
}

/// Appends a text.
///
/// # Panics
/// It is longer than 2 GiB.
pub fn put_text(out: &mut Vec<u8>, text: &str) {
    put_bytes(out, text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn integers_encode_as_in_java() {
        for (value, expected) in [
            (0, "00"),
            (127, "7f"),
            (-1, "ff"),
            (-112, "90"),
            (-113, "8770"),
            (128, "8f80"),
            (255, "8fff"),
            (256, "8e0100"),
            (65_535, "8effff"),
            (65_536, "8d010000"),
            (-128, "877f"),
            (-129, "8780"),
            (1_690_672_432_660, "8a0189a3ee0614"),
            (-1_690_672_432_660, "820189a3ee0613"),
            (i64::MAX, "887fffffffffffffff"),
            (i64::MIN, "807fffffffffffffff"),
        ] {
            let mut out = Vec::new();
            put_vlong(&mut out, value);
            assert_eq!(hex::encode(&out), expected, "{value}");
            assert_eq!(WritableReader::new(&out).vlong(), Ok(value));
        }
    }

    #[test]
    fn negative_and_excessive_lengths_are_rejected() {
        let huge = [0x8c, 0x7f, 0xff, 0xff, 0xff];
        let problem = WritableProblem::Length { length: 0x7fff_ffff, available: 0 };
        assert_eq!(WritableReader::new(&huge).bytes(), Err(WritableError { offset: 0, problem }));
        let negative = [0xff, 1, 2];
        let problem = WritableProblem::Length { length: -1, available: 2 };
        assert_eq!(
            WritableReader::new(&negative).text(),
            Err(WritableError { offset: 0, problem })
        );
        let wide = [0x88, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        assert_eq!(
            WritableReader::new(&wide).vint(),
            Err(WritableError { offset: 0, problem: WritableProblem::TooLarge(i64::MAX) })
        );
    }

    proptest! {
        #[test]
        fn values_survive_a_round_trip(value: i64, bytes: Vec<u8>, text: String) {
            let mut out = Vec::new();
            put_vlong(&mut out, value);
            put_bytes(&mut out, &bytes);
            put_text(&mut out, &text);
            let mut reader = WritableReader::new(&out);
            prop_assert_eq!(reader.vlong(), Ok(value));
            prop_assert_eq!(reader.bytes(), Ok(&bytes[..]));
            prop_assert_eq!(reader.text(), Ok(&text[..]));
            prop_assert_eq!(reader.end(), Ok(()));
        }

        #[test]
        fn any_bytes_give_a_value_or_an_error(
            bytes in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let mut reader = WritableReader::new(&bytes);
            while reader.remaining() > 0 {
                let before = reader.remaining();
                let failed = reader.vlong().is_err() || reader.text().is_err();
                if failed || reader.remaining() == before {
                    break;
                }
            }
        }
    }
}
