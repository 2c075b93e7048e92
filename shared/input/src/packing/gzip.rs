//! gzip: RFC 1952.

use flate2::{Decompress, FlushDecompress, Status};

use super::parts::{Decoded, PartDecoder};

/// A member of gzip.
#[derive(Debug)]
pub struct Gzip(Decompress);

impl Default for Gzip {
    fn default() -> Self {
        // The widest window, which any member may need.
        Self(Decompress::new_gzip(15))
    }
}

impl PartDecoder for Gzip {
    const PACKING: &'static str = "gzip";
    const PART: &'static str = "member";
    const MAGIC_BYTES: usize = 3;

    fn begins(start: &[u8]) -> bool {
        // The third is the only method there is.
        start.starts_with(&[0x1f, 0x8b, 8])
    }

    fn decode(&mut self, packed: &[u8], room: &mut [u8]) -> Result<Decoded, String> {
        let before = (self.0.total_in(), self.0.total_out());
        let status = self.0.decompress(packed, room, FlushDecompress::None);
        Ok(Decoded {
            is_over: status.map_err(|error| error.to_string())? == Status::StreamEnd,
            taken: (self.0.total_in() - before.0) as usize,
            written: (self.0.total_out() - before.1) as usize,
        })
    }
}
