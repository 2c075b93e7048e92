//! What comes out of a host: replies, reports, connections to close.

use std::fmt;

use heddle_protocol::frame::Header;
use heddle_protocol::ids::{CutId, PhaseNo, ShardId, Step};

/// A connection of a trainer, named by the host when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Conn(pub u64);

impl fmt::Display for Conn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Rows that a pull asked for; table, start and count are in the reply's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rows {
    /// `start .. start + count`.
    Range,
    /// These row numbers, ascending.
    Keys(Box<[u32]>),
}

/// What whoever owns the sockets has to do, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send this header, which has no payload.
    Reply {
        /// To whom.
        conn: Conn,
        /// All of the reply.
        header: Header,
    },
    /// Send this header and the values, which are read with [`crate::ShardSet::range`] or
    /// [`crate::ShardSet::gather`] when their turn comes, straight from the table.
    Values {
        /// To whom.
        conn: Conn,
        /// `value_bytes` is set.
        header: Header,
        /// Which rows.
        rows: Rows,
    },
    /// Close this connection without reading what is still in it.
    Close {
        /// Which.
        conn: Conn,
    },
    /// Tell the ApplicationMaster.
    Report(ShardReport),
}

/// What the ApplicationMaster must hear of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardReport {
    /// BSP: all lanes have ended here and the last step is applied.
    PhaseEnded {
        /// The shard.
        shard: ShardId,
        /// The phase.
        phase: PhaseNo,
        /// Job steps applied in it.
        step: Step,
    },
    /// The shard's state of the cut is fixed and can be saved.
    SnapshotTaken {
        /// The shard.
        shard: ShardId,
        /// The cut.
        cut: CutId,
        /// BSP: job steps applied.
        step: Step,
    },
    /// The shard gave the cut up.
    CutAborted {
        /// The shard.
        shard: ShardId,
        /// The cut.
        cut: CutId,
        /// BSP, if it stands beyond the step that the cut names: job steps applied.
        step: Option<Step>,
        /// Why.
        reason: String,
    },
}

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Flow {
    /// It is dealt with: answered, parked or held.
    Taken,
    /// Nothing has happened. Read no more from this connection, and hand the frame in again when the
    /// saver has read on or a cut is over.
    Wait,
}
