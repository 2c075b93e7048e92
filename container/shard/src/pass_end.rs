//! How far the end of a training pass is carried out on a shard.

use heddle_protocol::control::Phase;

/// The end of a training pass while it is carried out: rows before this one of the table are done. Then `next` is served.
pub(crate) struct PassEnd {
    pub(crate) table: usize,
    pub(crate) row: usize,
    pub(crate) next: Phase,
}
