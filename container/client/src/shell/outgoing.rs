//! Sent frames: many in one system call, values straight from the gradient.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::SocketAddr;

use heddle_channel::ChannelStream;
use heddle_fail_points::fail_point;
use heddle_protocol::frame::HEADER_BYTES;

use super::state::ClientState;
use crate::gradient::Payload;

/// Frames in one write: three slices each stay below the system's limit of 1024.
const FRAMES_MAX: usize = 256;
/// Bytes taken from the machine at a time: a few parts, so that the socket always has data, and a barrier or a small pull
/// waits for no more than this.
const BYTES_MAX: usize = 1024 * 1024;

#[derive(Default)]
pub(super) struct Outgoing {
    frames: VecDeque<([u8; HEADER_BYTES], Payload)>,
    /// Written bytes of the first frame.
    written: usize,
    /// Bytes of all frames here, including written ones.
    bytes: usize,
}

impl Outgoing {
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Writes until no frame is left or the socket is full.
    ///
    /// # Errors
    /// The connection ended.
    pub(super) fn write(
        &mut self,
        state: &ClientState,
        endpoint: SocketAddr,
        stream: &mut ChannelStream,
    ) -> io::Result<()> {
        stream.flush_pending()?;
        loop {
            self.fill(state, endpoint);
            if self.frames.is_empty() {
                return Ok(());
            }
            let slices = self.slices();
            match stream.try_write_vectored(&slices) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.advance(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn fill(&mut self, state: &ClientState, endpoint: SocketAddr) {
        let mut machine = state.machine.borrow_mut();
        while self.frames.len() < FRAMES_MAX
            && self.bytes < BYTES_MAX
            && let Some(frame) = machine.next_frame(endpoint)
        {
            // Frames of earlier calls for other connections are in their sockets, as far as those had room.
            fail_point!(
                "frame-sent",
                kind = format_args!("{:?}", frame.header.kind),
                step = frame.header.step,
                lane = frame.header.unit,
                peer = endpoint,
            );
            self.bytes += HEADER_BYTES + frame.header.payload_bytes();
            self.frames.push_back((frame.header.encode(), frame.payload));
        }
    }

    fn slices(&self) -> Vec<IoSlice<'_>> {
        let mut skip = self.written;
        let mut slices = Vec::with_capacity(self.frames.len() * 3);
        for (header, payload) in &self.frames {
            for bytes in [&header[..], payload.key_bytes(), payload.value_bytes()] {
                let rest = &bytes[skip.min(bytes.len())..];
                skip -= bytes.len() - rest.len();
                if !rest.is_empty() {
                    slices.push(IoSlice::new(rest));
                }
            }
        }
        slices
    }

    fn advance(&mut self, count: usize) {
        self.written += count;
        while let Some((_, payload)) = self.frames.front() {
            let len = HEADER_BYTES + payload.key_bytes().len() + payload.value_bytes().len();
            if self.written < len {
                return;
            }
            self.written -= len;
            self.bytes -= len;
            self.frames.pop_front();
        }
    }
}
