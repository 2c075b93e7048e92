//! One change of a replicated shard: the frame that made it, as it travels to the backups.

use std::fmt;

use heddle_protocol::fill_frame::FillName;
use heddle_protocol::frame::{Header, Kind};
use heddle_protocol::ids::Part;

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

    /// A part of a refill.
    pub(crate) fn fill(header: Header, values: Vec<f32>) -> Self {
        let value_bytes = 4 * values.len() as u32;
        let header = Header { value_bytes, ..header };
        Self { header, keys: Box::default(), values: values.into() }
    }

    /// The same part with the name of the refill.
    pub(crate) fn named(&self, name: FillName) -> Self {
        Self { header: name.on(self.header), ..self.clone() }
    }

    /// The same part with its number among those of the refill.
    pub(crate) fn numbered(mut self, part: Part) -> Self {
        self.header.part = part;
        self
    }

    pub(crate) fn kind(&self) -> Kind {
        self.header.kind
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
