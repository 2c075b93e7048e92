//! MD5 (RFC 1321) of several streams at once, one stream in each vector lane.
//!
//! Each step of MD5 needs the result of the step before, so one stream leaves most of a core idle. Streams do not depend
//! on each other: [`update_together`] processes one block of each stream at the same time. A single stream goes through
//! the `md-5` crate; use that crate directly where there is never a second stream. MD5 detects damage, not attacks.
//!
//! ```
//! use heddle_md5_lanes::{Md5Stream, update_together};
//!
//! let (mut one, mut two) = (Md5Stream::new(), Md5Stream::new());
//! update_together(&mut [(&mut one, &[[b'1'; 64]]), (&mut two, &[[b'2'; 64]])]);
//! one.update(b"the end of the first");
//! assert_ne!(one.finish(), two.finish());
//! ```

#[cfg(target_arch = "x86_64")]
mod avx2;
mod lanes;

use md5::block_api::compress;

pub use lanes::update_together;

/// Bytes of one block, the unit of MD5.
pub const BLOCK_BYTES: usize = 64;

/// Largest number of streams that [`update_together`] processes in one go.
pub const LANES_MAX: usize = 8;

/// One block.
pub type Block = [u8; BLOCK_BYTES];

/// Initial state (RFC 1321, section 3.3).
const START: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];

/// MD5 of one stream so far.
#[derive(Clone, Debug)]
pub struct Md5Stream {
    state: [u32; 4],
    /// The first [`buffered`](Self::buffered) bytes belong to an incomplete block.
    rest: Block,
    bytes: u64,
}

impl Default for Md5Stream {
    fn default() -> Self {
        Self::new()
    }
}

impl Md5Stream {
    /// An empty stream.
    pub fn new() -> Self {
        Self { state: START, rest: [0; BLOCK_BYTES], bytes: 0 }
    }

    /// Bytes of the incomplete block at the end of the stream: 0 to 63.
    pub fn buffered(&self) -> usize {
        (self.bytes % BLOCK_BYTES as u64) as usize
    }

    /// Appends bytes.
    pub fn update(&mut self, mut data: &[u8]) {
        if self.buffered() > 0 {
            let (filled, left) = data.split_at(data.len().min(BLOCK_BYTES - self.buffered()));
            self.buffer(filled);
            data = left;
        }
        let (blocks, end) = data.as_chunks();
        self.update_blocks(blocks);
        self.buffer(end);
    }

    /// Appends bytes that do not go beyond the end of the incomplete block.
    fn buffer(&mut self, data: &[u8]) {
        let begin = self.buffered();
        self.rest[begin..begin + data.len()].copy_from_slice(data);
        self.bytes += data.len() as u64;
        if self.buffered() == 0 && !data.is_empty() {
            compress(&mut self.state, &[self.rest]);
        }
    }

    /// Appends whole blocks at the start of a block.
    fn update_blocks(&mut self, blocks: &[Block]) {
        debug_assert!(self.buffered() == 0 || blocks.is_empty(), "a block is incomplete");
        compress(&mut self.state, blocks);
        self.bytes += (blocks.len() * BLOCK_BYTES) as u64;
    }

    /// The digest of all bytes.
    pub fn finish(mut self) -> [u8; 16] {
        let bits = self.bytes.wrapping_mul(8);
        let zeros = (BLOCK_BYTES + 55 - self.buffered()) % BLOCK_BYTES;
        let mut end = [0; BLOCK_BYTES + 8 + 1];
        end[0] = 0x80;
        end[1 + zeros..1 + zeros + 8].copy_from_slice(&bits.to_le_bytes());
        self.update(&end[..1 + zeros + 8]);
        let mut digest = [0; 16];
        for (to, word) in digest.chunks_exact_mut(4).zip(self.state) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        digest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use md5::{Digest, Md5};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn digest_of_pieces_equals_that_of_the_md5_crate(data: Vec<u8>, cuts: [usize; 3]) {
            let mut stream = Md5Stream::new();
            let mut cuts = cuts.map(|cut| cut % (data.len() + 1));
            cuts.sort_unstable();
            for range in [0..cuts[0], cuts[0]..cuts[1], cuts[1]..cuts[2], cuts[2]..data.len()] {
                stream.update(&data[range]);
            }
            prop_assert_eq!(stream.finish(), <[u8; 16]>::from(Md5::digest(&data)));
        }

        #[test]
        fn streams_updated_together_equal_the_md5_crate(
            lanes in 1..=LANES_MAX + 1,
            blocks in 0..5_usize,
            salt: u8,
        ) {
            let data: Vec<Vec<u8>> = (0..lanes)
                .map(|lane| {
                    let bytes = 0..blocks * BLOCK_BYTES + lane;
                    bytes.map(|n| (n * (lane + 3)) as u8 ^ salt).collect()
                })
                .collect();
            let mut streams = vec![Md5Stream::new(); lanes];
            let mut all: Vec<_> = streams
                .iter_mut()
                .zip(&data)
                .map(|(stream, data)| (stream, &data.as_chunks().0[..blocks]))
                .collect();
            update_together(&mut all);
            for (mut stream, data) in streams.into_iter().zip(&data) {
                stream.update(&data[blocks * BLOCK_BYTES..]);
                prop_assert_eq!(stream.finish(), <[u8; 16]>::from(Md5::digest(data)));
            }
        }
    }

    #[test]
    fn vectors_of_rfc_1321_come_out() {
        let of = |text: &str| {
            let mut stream = Md5Stream::new();
            stream.update(text.as_bytes());
            stream.finish().iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        assert_eq!(of(""), "d41d8cd98f00b204e9800998ecf8427e");
        assert_eq!(of("message digest"), "f96b697d7cb7938d525a2f31aaf161d0");
        assert_eq!(of(&"1234567890".repeat(8)), "57edf4a22be3c955ac49da2e2107b67a");
    }
}
