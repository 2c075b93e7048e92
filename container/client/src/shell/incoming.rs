//! Received bytes: headers from a small buffer, values straight to the buffer of their pull.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;

use heddle_channel::ChannelStream;
use heddle_protocol::frame::{HEADER_BYTES, Header};

use super::state::ClientState;
use crate::machine::ClientMachine;

/// Room for some hundred acknowledgements, or the start of a large reply whose rest bypasses the buffer.
const BUFFER_BYTES: usize = 64 * 1024;
/// Bytes read before other connections are served.
const TURN_BYTES: usize = 4 * 1024 * 1024;

pub(super) struct Incoming {
    endpoint: SocketAddr,
    buffer: Box<[u8]>,
    /// `start..end` of the buffer is filled and not consumed.
    start: usize,
    end: usize,
    /// The frame whose payload is arriving, and the number of bytes that have.
    current: Option<(Header, usize)>,
}

impl Incoming {
    pub(super) fn new(endpoint: SocketAddr) -> Self {
        Self { endpoint, buffer: vec![0; BUFFER_BYTES].into(), start: 0, end: 0, current: None }
    }

    /// Reads the available bytes, up to [`TURN_BYTES`].
    ///
    /// # Errors
    /// The connection ended, or the bytes are not a frame: then the start of the next one is unknown.
    pub(super) fn read(
        &mut self,
        state: &ClientState,
        stream: &mut ChannelStream,
    ) -> io::Result<()> {
        let now_ms = state.now_ms();
        let mut turn = 0;
        while turn < TURN_BYTES {
            let machine = &mut state.machine.borrow_mut();
            match self.read_once(machine, stream) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => turn += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
            self.consume(machine, now_ms)?;
        }
        Ok(())
    }

    /// One system call: into the expected values, and into the buffer after them.
    fn read_once(
        &mut self,
        machine: &mut ClientMachine,
        stream: &mut ChannelStream,
    ) -> io::Result<usize> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 {
            // Less than a header: the rest has been consumed.
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if let Some((header, filled)) = &mut self.current
            && let Some(place) = machine.destination(self.endpoint, header)
        {
            let values: &mut [u8] = bytemuck::cast_slice_mut(place);
            let values = &mut values[*filled..];
            let missing = values.len();
            let count = stream.try_read_vectored(&mut [
                IoSliceMut::new(values),
                IoSliceMut::new(&mut self.buffer),
            ])?;
            *filled += count.min(missing);
            self.end = count.saturating_sub(missing);
            return Ok(count);
        }
        let count = stream.try_read(&mut self.buffer[self.end..])?;
        self.end += count;
        Ok(count)
    }

    /// Passes whole frames to the machine.
    fn consume(&mut self, machine: &mut ClientMachine, now_ms: u64) -> io::Result<()> {
        loop {
            let ready = &self.buffer[self.start..self.end];
            let Some((header, filled)) = &mut self.current else {
                let Some((bytes, _)) = ready.split_first_chunk::<HEADER_BYTES>() else {
                    return Ok(());
                };
                let header = Header::decode(bytes).map_err(io::Error::other)?;
                self.start += HEADER_BYTES;
                self.current = Some((header, 0));
                continue;
            };
            let take = ready.len().min(header.payload_bytes() - *filled);
            if take > 0
                && let Some(place) = machine.destination(self.endpoint, header)
            {
                let values: &mut [u8] = bytemuck::cast_slice_mut(place);
                values[*filled..*filled + take].copy_from_slice(&ready[..take]);
            }
            self.start += take;
            *filled += take;
            if *filled < header.payload_bytes() {
                return Ok(());
            }
            machine.frame(self.endpoint, header, now_ms);
            self.current = None;
        }
    }
}
