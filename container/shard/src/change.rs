//! One change of a replicated shard: the frame that made it, as it travels to the backups.

use std::fmt;

use heddle_protocol::frame::Header;

use crate::effect::Conn;
use crate::frame::Frame;

/// A change, with its own copy of the payload. The tail and the streams share it.
#[derive(Clone, PartialEq)]
pub struct ShardChange {
    header: Header,
    keys: Box<[u32]>,
    values: Box<[f32]>,
}

impl ShardChange {
    pub(crate) fn of(frame: &Frame<'_>) -> Self {
        Self { header: frame.header, keys: frame.keys.into(), values: frame.values.into() }
    }

    /// A change without payload: a phase that began, a snapshot that was taken.
    pub(crate) fn bare(header: Header) -> Self {
        Self { header, keys: Box::default(), values: Box::default() }
    }

    /// The frame, on no connection.
    #[must_use]
    pub fn frame(&self) -> Frame<'_> {
        Frame { conn: Conn(0), header: self.header, keys: &self.keys, values: &self.values }
    }

    /// Memory that the change takes.
    pub(crate) fn bytes(&self) -> usize {
        4 * (self.keys.len() + self.values.len()) + size_of::<Self>()
    }
}

impl fmt::Debug for ShardChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of step {}", self.header.kind, self.header.step)
    }
}
