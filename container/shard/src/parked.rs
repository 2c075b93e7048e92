//! BSP: pulls of a later step, kept until the step before it is applied.

use heddle_protocol::frame::Header;
use heddle_protocol::ids::Step;

use crate::effect::Conn;
use crate::frame::Frame;

/// Bytes of pulls that a shard keeps: hundreds of thousands of ranges, or the keys of a thousand full frames.
const BYTES_MAX: usize = 256 << 20;

/// A pull that waits for its step.
pub(crate) struct ParkedPull {
    conn: Conn,
    header: Header,
    keys: Box<[u32]>,
}

impl ParkedPull {
    pub(crate) fn frame(&self) -> Frame<'_> {
        Frame { conn: self.conn, header: self.header, keys: &self.keys, values: &[] }
    }

    pub(crate) fn into_keys(self) -> Box<[u32]> {
        self.keys
    }
}

/// All parked pulls of a shard.
pub(crate) struct ParkedPulls {
    pulls: Vec<ParkedPull>,
    bytes: usize,
    bytes_max: usize,
}

fn bytes(keys: &[u32]) -> usize {
    size_of_val(keys) + size_of::<ParkedPull>()
}

impl ParkedPulls {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { pulls: Vec::new(), bytes: 0, bytes_max: bytes_max.min(BYTES_MAX) }
    }

    /// Keeps a pull. False if there is no room.
    pub(crate) fn park(&mut self, frame: &Frame<'_>) -> bool {
        if self.bytes + bytes(frame.keys) > self.bytes_max {
            return false;
        }
        self.bytes += bytes(frame.keys);
        self.pulls.push(ParkedPull {
            conn: frame.conn,
            header: frame.header,
            keys: frame.keys.into(),
        });
        true
    }

    /// Removes the pulls of a step, in order.
    pub(crate) fn take(&mut self, step: Step) -> Vec<ParkedPull> {
        let pulls = std::mem::take(&mut self.pulls);
        let (due, parked): (_, Vec<_>) =
            pulls.into_iter().partition(|pull| pull.header.step == step);
        self.pulls = parked;
        self.count();
        due
    }

    /// Removes all pulls, in order.
    pub(crate) fn take_all(&mut self) -> Vec<ParkedPull> {
        self.bytes = 0;
        std::mem::take(&mut self.pulls)
    }

    /// Drops the pulls of a closed connection.
    pub(crate) fn disconnect(&mut self, conn: Conn) {
        self.pulls.retain(|pull| pull.conn != conn);
        self.count();
    }

    fn count(&mut self) {
        self.bytes = self.pulls.iter().map(|pull| bytes(&pull.keys)).sum();
    }
}
