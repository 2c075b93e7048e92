//! Decompresses a gzip file piece by piece: its members (RFC 1952 §2.2), and the zeros with which tapes and object stores fill up
//! their blocks.

use std::io::{self, Write};

use flate2::write::GzDecoder;

/// Compressed bytes per call of the decompressor. They decompress to at most 1032 times as much (the limit
/// of DEFLATE), 17 MB here, even in a hostile file.
pub const PACKED_STEP: usize = 16 << 10;

/// Why a file is not gzip to its end.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum GunzipError {
    /// A member is damaged, or the file ends within it.
    #[error("not a sound gzip file: {what} (in the member at byte {member})")]
    Damaged {
        /// Offset of the member.
        member: u64,
        /// The decompressor's text.
        what: String,
    },
    /// Other bytes than zeros come after the last member.
    #[error("bytes after the last gzip member, at byte {at}")]
    Trailing {
        /// Offset of the first of them that is not zero.
        at: u64,
    },
}

/// A gzip file that is being decompressed.
#[derive(Debug, Default)]
pub struct Gunzip {
    /// Of the present member; `None` between members.
    decoder: Option<GzDecoder<Vec<u8>>>,
    /// Offset of the present member.
    member: u64,
    /// Compressed bytes so far.
    position: u64,
    unpacked: Vec<u8>,
}

impl Gunzip {
    /// Decompresses the next bytes of the file, at most [`PACKED_STEP`] for bounded memory.
    ///
    /// # Errors
    /// See [`GunzipError`].
    pub fn push(&mut self, mut bytes: &[u8]) -> Result<(), GunzipError> {
        while !bytes.is_empty() {
            let Some(decoder) = &mut self.decoder else {
                let is_zero = |byte: &&u8| self.position > 0 && **byte == 0;
                let zeros = bytes.iter().take_while(is_zero).count();
                bytes = &bytes[zeros..];
                self.position += zeros as u64;
                self.member = self.position;
                self.decoder = (!bytes.is_empty()).then(|| GzDecoder::new(Vec::new()));
                continue;
            };
            let taken = decoder.write(bytes).map_err(|error| self.failed(&error))?;
            if taken == 0 {
                self.end_member()?;
            }
            bytes = &bytes[taken..];
            self.position += taken as u64;
        }
        if let Some(decoder) = &mut self.decoder {
            self.unpacked.append(decoder.get_mut());
        }
        Ok(())
    }

    /// Ends the file.
    ///
    /// # Errors
    /// See [`GunzipError`].
    pub fn finish(&mut self) -> Result<(), GunzipError> {
        self.end_member()
    }

    /// The text since the last call; the caller takes it.
    pub fn unpacked(&mut self) -> &mut Vec<u8> {
        &mut self.unpacked
    }

    fn end_member(&mut self) -> Result<(), GunzipError> {
        if let Some(decoder) = &mut self.decoder {
            decoder.try_finish().map_err(|error| self.failed(&error))?;
        }
        if let Some(mut decoder) = self.decoder.take() {
            self.unpacked.append(decoder.get_mut());
        }
        Ok(())
    }

    /// Bytes without the header of a member are not a member, except at the start of the file.
    fn failed(&self, error: &io::Error) -> GunzipError {
        let has_header = self.decoder.as_ref().is_some_and(|decoder| decoder.header().is_some());
        match self.member {
            at if at > 0 && !has_header => GunzipError::Trailing { at },
            member => GunzipError::Damaged { member, what: error.to_string() },
        }
    }
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn pack(text: &str) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(text.as_bytes()).expect("packed");
        encoder.finish().expect("packed")
    }

    /// In pieces of each length up to 30 bytes.
    fn unpack(packed: &[u8]) -> Result<String, GunzipError> {
        let whole = (1..30).map(|len| {
            let mut gunzip = Gunzip::default();
            packed.chunks(len).try_for_each(|piece| gunzip.push(piece))?;
            gunzip.finish()?;
            Ok(String::from_utf8(std::mem::take(gunzip.unpacked())).expect("text"))
        });
        let whole: Vec<_> = whole.collect();
        assert!(whole.windows(2).all(|pair| pair[0] == pair[1]), "{whole:?}");
        whole.into_iter().next().expect("tried")
    }

    #[test]
    fn members_and_zeros_are_one_text() {
        let two = [pack("one "), pack("two")].concat();
        assert_eq!(unpack(&two).as_deref(), Ok("one two"));
        let padded = [&two[..], &[0; 512]].concat();
        assert_eq!(unpack(&padded).as_deref(), Ok("one two"));
        let between = [pack("one "), vec![0; 9], pack("two"), vec![0; 7]].concat();
        assert_eq!(unpack(&between).as_deref(), Ok("one two"));
    }

    #[test]
    fn other_bytes_are_placed() {
        let one = pack("one");
        let len = one.len() as u64;
        for (rest, zeros) in
            [(&b"rubbish"[..], 0), (b"x", 0), (b"\0\0x\0", 2), (b"\x1f\x8b\x07", 0)]
        {
            let all = [&one[..], rest].concat();
            assert_eq!(unpack(&all), Err(GunzipError::Trailing { at: len + zeros }), "{rest:?}");
        }
        for cut in 1..one.len() {
            let error = unpack(&one[..cut]).expect_err("cut");
            assert!(matches!(error, GunzipError::Damaged { member: 0, .. }), "{error}");
        }
        let second = [&one[..], &one[..one.len() - 3]].concat();
        let error = unpack(&second).expect_err("cut");
        assert!(matches!(error, GunzipError::Damaged { member, .. } if member == len), "{error}");
        assert!(matches!(unpack(&[0; 40]), Err(GunzipError::Damaged { member: 0, .. })));
    }
}
