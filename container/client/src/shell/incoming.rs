//! Bytes from a shard: headers from a small buffer, values straight to the pull that asked for them.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;

use heddle_protocol::frame::{HEADER_BYTES, Header};
use tokio::net::TcpStream;

use super::Shell;
use crate::machine::Machine;

/// Holds some hundred acknowledgements, or the head of a large answer whose rest bypasses it.
const BUFFER_BYTES: usize = 64 * 1024;
/// Bytes read before other connections get their turn.
const TURN_BYTES: usize = 4 * 1024 * 1024;

pub(super) struct Incoming {
    endpoint: SocketAddr,
    buffer: Box<[u8]>,
    /// What of the buffer is filled and not consumed.
    start: usize,
    end: usize,
    /// The frame whose payload is arriving, and how many bytes of it did.
    current: Option<(Header, usize)>,
}

impl Incoming {
    pub(super) fn new(endpoint: SocketAddr) -> Self {
        Self { endpoint, buffer: vec![0; BUFFER_BYTES].into(), start: 0, end: 0, current: None }
    }

    /// Reads what is there, up to a turn's worth.
    ///
    /// # Errors
    /// The connection ended, or what came is no frame: then the next one's start is unknown.
    pub(super) fn read(&mut self, shell: &Shell, stream: &TcpStream) -> io::Result<()> {
        let now_ms = shell.now_ms();
        let mut turn = 0;
        while turn < TURN_BYTES {
            let machine = &mut shell.machine.borrow_mut();
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

    /// One system call: into the values that are expected, and into the buffer behind them.
    fn read_once(&mut self, machine: &mut Machine, stream: &TcpStream) -> io::Result<usize> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 {
            // Less than a header: whatever is more has been consumed.
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

    /// Hands whole frames to the machine.
    fn consume(&mut self, machine: &mut Machine, now_ms: u64) -> io::Result<()> {
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
