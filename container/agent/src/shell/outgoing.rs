//! Lines on their way to the socket of a control connection.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use http_body_util::channel::Sender;
use hyper::body::Frame;

/// A piece of at least this many bytes is complete. Lines that wait are joined into pieces.
const PIECE_BYTES: usize = 64 * 1024;
/// Most bytes that wait for a connection that accepts no more. Beyond them the connection is closed; the machine sends
/// its reports again on the next one.
const WAITING_BYTES_MAX: usize = 64 << 20;
/// Queue of lines before the socket. Sending never waits: the loop that sends also drives the timers after which this
/// container looks for another ApplicationMaster or ends.
pub(super) struct OutgoingLines {
    sender: Sender<Bytes>,
    /// Complete pieces that wait.
    full: VecDeque<Bytes>,
    open: BytesMut,
    waiting_bytes: usize,
}

impl OutgoingLines {
    pub(super) fn new(sender: Sender<Bytes>) -> Self {
        Self { sender, full: VecDeque::new(), open: BytesMut::new(), waiting_bytes: 0 }
    }

    /// Queues a line. Returns `false` if too many bytes wait and the connection must be closed.
    pub(super) fn send(&mut self, line: &[u8]) -> bool {
        self.open.extend_from_slice(line);
        self.waiting_bytes += line.len();
        if self.open.len() >= PIECE_BYTES {
            self.full.push_back(self.open.split().freeze());
        }
        self.pass_on();
        self.waiting_bytes <= WAITING_BYTES_MAX
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.waiting_bytes > 0
    }

    /// Passes on pieces while the connection accepts them. The end of the connection is an event of its own.
    pub(super) fn pass_on(&mut self) {
        while self.waiting_bytes > 0 {
            let piece = match self.full.pop_front() {
                Some(piece) => piece,
                None => self.open.split().freeze(),
            };
            let length = piece.len();
            if let Err(frame) = self.sender.try_send(Frame::data(piece)) {
                if let Ok(piece) = frame.into_data() {
                    self.full.push_front(piece);
                }
                return;
            }
            self.waiting_bytes -= length;
        }
    }
}
