//! bzip2: streams of blocks of up to 900 kB, which may unpack to fifty times as much. The decompressor needs 4 MB.

use ::bzip2::{Decompress, Status};

use super::parts::{Decoded, PartDecoder};

/// A stream of bzip2.
pub struct Bzip2(Decompress);

impl std::fmt::Debug for Bzip2 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Bzip2")
    }
}

impl Default for Bzip2 {
    fn default() -> Self {
        Self(Decompress::new(false))
    }
}

impl PartDecoder for Bzip2 {
    const PACKING: &'static str = "bzip2";
    const PART: &'static str = "stream";
    const MAGIC_BYTES: usize = 3;

    fn begins(start: &[u8]) -> bool {
        start.starts_with(b"BZh")
    }

    fn decode(&mut self, packed: &[u8], room: &mut [u8]) -> Result<Decoded, String> {
        let before = (self.0.total_in(), self.0.total_out());
        let status = self.0.decompress(packed, room).map_err(|error| error.to_string())?;
        if status == Status::MemNeeded {
            return Err("no memory to unpack it".to_owned());
        }
        Ok(Decoded {
            taken: (self.0.total_in() - before.0) as usize,
            written: (self.0.total_out() - before.1) as usize,
            is_over: status == Status::StreamEnd,
        })
    }
}
