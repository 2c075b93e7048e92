//! Frames: one type from the socket to the shard that handles them.

use heddle_protocol::frame::{Header, Kind, Status, flags};

use crate::effect::{Conn, PulledRows, ShardEffect};

/// A whole received frame. It borrows its payload from the receive buffer.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// The connection that it came from.
    pub conn: Conn,
    /// The header.
    pub header: Header,
    /// `keys: [header.key_bytes / 4]`.
    pub keys: &'a [u32],
    /// `values: [header.value_bytes / 4]`.
    pub values: &'a [f32],
}

impl Frame<'_> {
    /// The reply of a request that is done, or was done before.
    pub(crate) fn acknowledgement(&self, status: Status) -> ShardEffect {
        ShardEffect::Reply { conn: self.conn, header: self.header.reply(Kind::Ack, status) }
    }

    /// The reply of a rejected request.
    pub(crate) fn refusal(&self, status: Status) -> ShardEffect {
        ShardEffect::Reply { conn: self.conn, header: self.header.reply(Kind::Refused, status) }
    }

    /// A copy that can wait.
    pub(crate) fn to_waiting(self) -> WaitingFrame {
        let Frame { conn, header, keys, values } = self;
        WaitingFrame { conn, header, keys: keys.to_vec(), values: values.to_vec() }
    }
}

/// The reply of a checked pull with `bytes` bytes of values.
pub(crate) fn values_reply(
    conn: Conn,
    header: &Header,
    bytes: u32,
    keys: Box<[u32]>,
) -> ShardEffect {
    let mut reply = header.reply(Kind::Values, Status::Ok);
    // Kept until the values are read: it decides whether the step matters.
    reply.flags = header.flags & flags::FREE;
    reply.value_bytes = bytes;
    let rows = if header.has(flags::KEYS) { PulledRows::Keys(keys) } else { PulledRows::Range };
    ShardEffect::Values { conn, header: reply, rows }
}

/// A frame that waits, with its own copy of the payload.
pub(crate) struct WaitingFrame {
    pub(crate) conn: Conn,
    pub(crate) header: Header,
    keys: Vec<u32>,
    values: Vec<f32>,
}

impl WaitingFrame {
    pub(crate) fn frame(&self) -> Frame<'_> {
        Frame { conn: self.conn, header: self.header, keys: &self.keys, values: &self.values }
    }

    /// Memory that the frame takes.
    pub(crate) fn bytes(&self) -> usize {
        4 * (self.keys.len() + self.values.len()) + size_of::<Self>()
    }
}
