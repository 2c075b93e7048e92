//! Frames of the RPC: a 4-byte big-endian length and that many bytes, in both directions.
//!
//! Pure: bytes in, frames out. The length is checked against the limit first, and memory is allocated only for bytes
//! that have arrived. So a peer that announces 128 MiB and sends nothing costs no memory.
//! Source: `ipc.Client.IpcStreams`, `ipc.Server.Connection`.

use std::fmt;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

/// Why a stream of frames is unreadable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RpcFrameError {
    /// The length is negative. A server of another RPC version begins its answer with `-1`.
    #[error(
        "the length of a frame must not be negative (got {0}); check that the port serves Hadoop RPC version 9"
    )]
    Negative(i32),
    /// The first bytes are `HTTP`: a web server has the port.
    #[error("the server answers in HTTP; use its RPC port instead of its web port")]
    Http,
    /// The length exceeds the limit (`ipc.maximum.response.length`).
    #[error("a frame must be at most {limit} bytes (got {length})")]
    TooLong {
        /// Length that the peer announced, in bytes.
        length: usize,
        /// Longest permitted frame, in bytes.
        limit: usize,
    },
    /// A message inside a frame does not decode.
    #[error("cannot decode {what}")]
    Malformed {
        /// The message that was expected.
        what: &'static str,
        /// The cause; `None` when the frame ended too early.
        source: Option<prost::DecodeError>,
    },
}

/// Collects received bytes and returns whole frames.
pub struct FrameDecoder {
    buffer: BytesMut,
    limit: usize,
}

/// Only the length: replies may carry tokens.
impl fmt::Debug for FrameDecoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameDecoder")
            .field("buffered_bytes", &self.buffer.len())
            .field("limit", &self.limit)
            .finish()
    }
}

impl FrameDecoder {
    /// A decoder that rejects frames longer than `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { buffer: BytesMut::new(), limit }
    }

    /// Changes the limit for the next frames.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Adds received bytes, in pieces of any length.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The buffer into which a socket may read directly.
    pub fn buffer_mut(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// The next whole frame without its length, or `None` until more bytes arrive.
    ///
    /// # Errors
    /// [`RpcFrameError::Negative`], [`RpcFrameError::Http`] and [`RpcFrameError::TooLong`]. The stream is unusable after any of
    /// them.
    pub fn next_frame(&mut self) -> Result<Option<Bytes>, RpcFrameError> {
        let Some(head) = self.buffer.first_chunk::<4>() else {
            return Ok(None);
        };
        if head == b"HTTP" {
            return Err(RpcFrameError::Http);
        }
        let announced = i32::from_be_bytes(*head);
        let length = usize::try_from(announced).map_err(|_| RpcFrameError::Negative(announced))?;
        if length > self.limit {
            return Err(RpcFrameError::TooLong { length, limit: self.limit });
        }
        if self.buffer.len() - 4 < length {
            return Ok(None);
        }
        self.buffer.advance(4);
        Ok(Some(self.buffer.split_to(length).freeze()))
    }

    /// Whether the buffer has bytes of an incomplete frame.
    pub fn is_mid_frame(&self) -> bool {
        !self.buffer.is_empty()
    }
}

/// Appends one frame of delimited messages: its length, then each message after its own varint length.
///
/// # Errors
/// [`RpcFrameError::TooLong`] if the frame exceeds `limit` bytes; `out` is then unchanged.
pub fn put_frame(
    out: &mut BytesMut,
    limit: usize,
    parts: &[&dyn Part],
) -> Result<(), RpcFrameError> {
    let length: usize = parts.iter().map(|part| part.part_len()).sum();
    if length > limit || i32::try_from(length).is_err() {
        return Err(RpcFrameError::TooLong { length, limit });
    }
    out.reserve(4 + length);
    out.put_u32(u32::try_from(length).expect("checked above to fit an i32"));
    for part in parts {
        part.put(out);
    }
    Ok(())
}

/// A part of a frame: a message, which gets a varint length, or [`Delimited`] bytes, which have one.
pub trait Part {
    /// Bytes that [`Part::put`] appends.
    fn part_len(&self) -> usize;
    /// Appends the part.
    fn put(&self, out: &mut BytesMut);
}

impl<M: Message> Part for M {
    fn part_len(&self) -> usize {
        let length = self.encoded_len();
        prost::length_delimiter_len(length) + length
    }

    fn put(&self, out: &mut BytesMut) {
        self.encode_length_delimited(out).expect("a BytesMut grows as needed");
    }
}

/// An encoded message with its varint length before it.
#[derive(Clone)]
pub struct Delimited(Bytes);

/// Only the length: requests may carry tokens.
impl fmt::Debug for Delimited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Delimited([{} bytes])", self.0.len())
    }
}

impl Delimited {
    /// Encodes `message` once. A retried call reuses the bytes.
    pub fn of(message: &impl Message) -> Self {
        Self(Bytes::from(message.encode_length_delimited_to_vec()))
    }

    /// Puts the length before an encoded message.
    pub fn of_encoded(message: &[u8]) -> Self {
        let mut bytes =
            BytesMut::with_capacity(prost::length_delimiter_len(message.len()) + message.len());
        prost::encode_length_delimiter(message.len(), &mut bytes)
            .expect("a BytesMut grows as needed");
        bytes.extend_from_slice(message);
        Self(bytes.freeze())
    }
}

impl Part for Delimited {
    fn part_len(&self) -> usize {
        self.0.len()
    }

    fn put(&self, out: &mut BytesMut) {
        out.extend_from_slice(&self.0);
    }
}

/// Removes and decodes the first delimited message of a frame.
///
/// # Errors
/// [`RpcFrameError::Malformed`] if the length exceeds the frame or the message does not decode.
pub fn take_message<M: Message + Default>(
    frame: &mut Bytes,
    what: &'static str,
) -> Result<M, RpcFrameError> {
    let body = take_delimited(frame, what)?;
    M::decode(body).map_err(|source| RpcFrameError::Malformed { what, source: Some(source) })
}

/// Removes the first delimited message of a frame and returns its bytes.
///
/// # Errors
/// [`RpcFrameError::Malformed`] if the length exceeds the frame.
pub fn take_delimited(frame: &mut Bytes, what: &'static str) -> Result<Bytes, RpcFrameError> {
    let length = prost::decode_length_delimiter(&mut *frame)
        .map_err(|source| RpcFrameError::Malformed { what, source: Some(source) })?;
    if length > frame.len() {
        return Err(RpcFrameError::Malformed { what, source: None });
    }
    Ok(frame.split_to(length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn frames_decode_however_the_bytes_are_split(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..8),
            piece in 1_usize..20,
        ) {
            let mut wire = BytesMut::new();
            for body in &bodies {
                put_frame(&mut wire, 1000, &[&Delimited::of_encoded(body)]).expect("is short");
            }
            let mut decoder = FrameDecoder::new(1000);
            let mut found = Vec::new();
            for bytes in wire.chunks(piece) {
                decoder.extend(bytes);
                while let Some(mut frame) = decoder.next_frame().expect("is good") {
                    found.push(take_delimited(&mut frame, "body").expect("is whole").to_vec());
                    prop_assert!(frame.is_empty());
                }
            }
            prop_assert_eq!(found, bodies);
            prop_assert!(!decoder.is_mid_frame());
        }

        #[test]
        fn any_bytes_give_frames_or_an_error(
            bytes in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let mut decoder = FrameDecoder::new(64);
            decoder.extend(&bytes);
            while let Ok(Some(mut frame)) = decoder.next_frame() {
                prop_assert!(frame.len() <= 64);
                while !frame.is_empty() && take_delimited(&mut frame, "piece").is_ok() {}
            }
        }
    }

    #[test]
    fn a_message_longer_than_its_frame_is_malformed() {
        let mut frame = Bytes::from_static(&[5, 1, 2]);
        let cut = RpcFrameError::Malformed { what: "it", source: None };
        assert_eq!(take_delimited(&mut frame, "it"), Err(cut));
    }
}
