//! The stream of commands to one container.

use bytes::Bytes;
use heddle_protocol::control::CommandEnvelope;
use heddle_protocol::lines::encode_line;
use http_body_util::channel::{Channel, Sender};
use hyper::body::Frame;

/// Most commands in flight to one container. A container with this many unread commands does not read at all.
const LINES_IN_FLIGHT: usize = 4096;
/// Commands up to this length are copied into their line: that is cheaper than a frame of their own.
const COPIED_BYTES: usize = 1024;

/// The commands to one container, as lines of a response body.
pub struct CommandStream(Option<Sender<Bytes>>);

impl std::fmt::Debug for CommandStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CommandStream")
    }
}

impl CommandStream {
    /// A stream, and the body of the answer that carries it.
    pub(super) fn new() -> (Self, Channel<Bytes>) {
        let (sender, body) = Channel::new(LINES_IN_FLIGHT);
        (Self(Some(sender)), body)
    }

    /// Queues a line; false when the container has closed the connection or does not read; the caller closes it then.
    ///
    /// `head`: the line without its command. `command`: that as JSON, shared with other connections.
    #[must_use]
    pub fn send(&mut self, head: &CommandEnvelope, command: Option<Bytes>) -> bool {
        let Some(sender) = &mut self.0 else {
            return false;
        };
        let mut send = |bytes: Bytes| sender.try_send(Frame::data(bytes)).is_ok();
        let Some(command) = command else {
            return encode_line(head).is_ok_and(|line| send(line.into()));
        };
        let Some(mut line) = head.open() else {
            return false;
        };
        if command.len() <= COPIED_BYTES {
            line.extend_from_slice(&command);
            line.extend_from_slice(CommandEnvelope::CLOSE);
            return send(line.into());
        }
        send(line.into()) && send(command) && send(Bytes::from_static(CommandEnvelope::CLOSE))
    }

    /// Whether the container leaves as many commands unread as are queued at most.
    pub fn is_full(&mut self) -> bool {
        self.0.as_mut().is_some_and(|sender| sender.capacity() == 0)
    }

    /// Ends the stream after what was sent. The container sees the end and closes its side.
    pub fn close(&mut self) {
        self.0 = None;
    }
}
