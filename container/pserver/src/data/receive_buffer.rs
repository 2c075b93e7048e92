//! Received bytes of one connection: one aligned buffer, reused.
//!
//! All parts of a frame are multiples of four bytes, so keys and values of every frame in the buffer are aligned for u32 and
//! f32, and are passed on without a copy. The start of an incomplete frame is moved to the front of the buffer. While a
//! large frame arrives, at most the next header is read after it, so that few bytes are moved.

use bytemuck::{cast_slice, cast_slice_mut};
use heddle_protocol::frame::{FrameError, HEADER_BYTES, Header};
use heddle_shard::{Conn, Frame};

/// Initial size, for many small frames; the buffer grows by multiples of it to the size of one part.
const BYTES_MIN: usize = 64 * 1024;
/// A frame of at least this many bytes is read without the frames after it.
const LARGE: usize = 32 * 1024;

/// The buffer.
pub(crate) struct ReceiveBuffer {
    words: Vec<u32>,
    /// Bytes `start .. end` are received and not yet taken.
    start: usize,
    end: usize,
}

impl ReceiveBuffer {
    pub(crate) fn new() -> Self {
        Self { words: vec![0; BYTES_MIN / 4], start: 0, end: 0 }
    }

    /// The frame at the front, if all of it is here. `conn` is this connection.
    ///
    /// # Errors
    /// The bytes are not a frame; the connection has to be closed.
    pub(crate) fn front(&self, conn: Conn) -> Result<Option<Frame<'_>>, FrameError> {
        let Some(header) = self.header()? else {
            return Ok(None);
        };
        let keys_at = self.start + HEADER_BYTES;
        let values_at = keys_at + header.key_bytes as usize;
        let end = values_at + header.value_bytes as usize;
        if end > self.end {
            return Ok(None);
        }
        // The header's decoder has checked that the length of every part is a multiple of four.
        let keys = &self.words[keys_at / 4..values_at / 4];
        let values = cast_slice(&self.words[values_at / 4..end / 4]);
        Ok(Some(Frame { conn, header, keys, values }))
    }

    /// Removes the frame at the front, which has this many bytes of payload.
    pub(crate) fn take(&mut self, payload_bytes: usize) {
        self.start += HEADER_BYTES + payload_bytes;
        debug_assert!(self.start <= self.end);
    }

    /// Whether a part of a frame has come.
    pub(crate) fn has_part(&self) -> bool {
        self.end > self.start
    }

    /// Room for the next bytes; never empty. Call [`Self::filled`] with the number of received bytes.
    ///
    /// # Errors
    /// See [`Self::front`].
    pub(crate) fn space(&mut self) -> Result<&mut [u8], FrameError> {
        let frame =
            self.header()?.map_or(HEADER_BYTES, |header| HEADER_BYTES + header.payload_bytes());
        if self.start > 0 {
            // `start` is the start of a frame, a multiple of four; `end` is any number.
            self.words.copy_within(self.start / 4..self.end.div_ceil(4), 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let wanted = frame + HEADER_BYTES;
        if self.words.len() * 4 < wanted {
            self.words.resize(wanted.next_multiple_of(BYTES_MIN) / 4, 0);
        }
        let limit = if frame >= LARGE { wanted } else { self.words.len() * 4 };
        let bytes: &mut [u8] = cast_slice_mut(&mut self.words);
        Ok(&mut bytes[self.end..limit])
    }

    /// This many bytes were written to [`Self::space`].
    pub(crate) fn filled(&mut self, bytes: usize) {
        self.end += bytes;
    }

    fn header(&self) -> Result<Option<Header>, FrameError> {
        let bytes: &[u8] = cast_slice(&self.words);
        match bytes[self.start..self.end].first_chunk() {
            Some(header) => Header::decode(header).map(Some),
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use heddle_protocol::frame::{Kind, flags};
    use heddle_protocol::ids::Epoch;
    use proptest::prelude::*;

    use super::*;

    fn frame(request: u64, keys: usize, values: usize) -> Vec<u8> {
        let mut header = Header::new(Kind::Push, Epoch::default());
        header.request = request;
        header.flags = flags::KEYS;
        header.count = keys as u32;
        header.key_bytes = keys as u32 * 4;
        header.value_bytes = values as u32 * 4;
        let mut bytes = header.encode().to_vec();
        (0..keys as u32).for_each(|key| bytes.extend(key.to_le_bytes()));
        (0..values).for_each(|value| bytes.extend((value as f32).to_le_bytes()));
        bytes
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn frames_are_the_same_for_any_split_of_the_bytes(
            sizes in prop::collection::vec((0usize..300, 0usize..40_000), 1..8),
            cuts in prop::collection::vec(1usize..100_000, 1..10),
        ) {
            let frames = sizes.iter().zip(0..).flat_map(|(&(k, v), n)| frame(n, k, v));
            let sent: Vec<u8> = frames.collect();
            let (mut received, mut rest) = (ReceiveBuffer::new(), &sent[..]);
            let mut cuts = cuts.iter().cycle();
            let mut seen = Vec::new();
            while !rest.is_empty() {
                let space = received.space().expect("good frames");
                prop_assert!(!space.is_empty());
                let n = space.len().min(rest.len()).min(*cuts.next().expect("endless"));
                space[..n].copy_from_slice(&rest[..n]);
                received.filled(n);
                rest = &rest[n..];
                while let Some(frame) = received.front(Conn(1)).expect("good frames") {
                    prop_assert_eq!(frame.header.request, seen.len() as u64);
                    prop_assert!(frame.keys.iter().copied().eq(0..frame.keys.len() as u32));
                    prop_assert!(frame.values.iter().enumerate().all(|(i, &v)| v == i as f32));
                    seen.push((frame.keys.len(), frame.values.len()));
                    let bytes = frame.header.payload_bytes();
                    received.take(bytes);
                }
            }
            prop_assert_eq!(seen, sizes);
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let mut received = ReceiveBuffer::new();
            received.space().expect("empty")[..bytes.len()].copy_from_slice(&bytes);
            received.filled(bytes.len());
            let _ = received.front(Conn(1));
            let _ = received.space();
        }
    }
}
