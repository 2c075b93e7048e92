//! Effects of a frame or a command: replies, reports, connections to close.

use std::fmt;

use heddle_protocol::control::ShardReport;
use heddle_protocol::frame::Header;
use heddle_protocol::ids::{CutId, ShardId, Step, TableId, ViewVersion};

/// A connection of a trainer, numbered by [`crate::ShardSet::connect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Conn(pub u64);

impl fmt::Display for Conn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Rows of a pull. The table, start and count are in the reply's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PulledRows {
    /// `start .. start + count`.
    Range,
    /// These row numbers, ascending.
    Keys(Box<[u32]>),
}

/// What the owner of the sockets has to do, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardEffect {
    /// Send this header, which has no payload.
    Reply {
        /// The connection.
        conn: Conn,
        /// The whole reply.
        header: Header,
    },
    /// Send this header and the values. Read them with [`crate::ShardSet::range`] or [`crate::ShardSet::gather`] when they
    /// can be written, straight from the table.
    Values {
        /// The connection.
        conn: Conn,
        /// `value_bytes` is set.
        header: Header,
        /// The rows.
        rows: PulledRows,
    },
    /// Close this connection without reading the rest of it.
    Close {
        /// The connection.
        conn: Conn,
    },
    /// Send a report to the ApplicationMaster.
    Report(ShardReport),
    /// Report to the own process.
    Local(LocalReport),
    /// Replicas: there are entries for backups. Send them ([`crate::ShardSet::next_entry`]).
    Replicate,
    /// Replicas: this copy is to serve the shard and cannot, since a change of its primary did not fit. End the process.
    CannotServe {
        /// The shard.
        shard: ShardId,
    },
    /// Replicas: the backups have all that the command with this number changed ([`crate::ShardSet::settle`]).
    Settled {
        /// The number.
        ask: u64,
    },
}

/// A report to the own process. The ApplicationMaster does not get it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalReport {
    /// Replicas: a view orders a refill of this thread's copy, which needs an empty shard ([`crate::ShardSet::install_empty`]).
    FillOrdered {
        /// The shard.
        shard: ShardId,
        /// The number of the refill.
        order: ViewVersion,
    },
    /// Replicas: a view left this thread's copy out, and it is dropped.
    CopyLeft {
        /// The shard.
        shard: ShardId,
    },
    /// Replicas: a backup has the snapshot of the cut, where its primary took it. It can be saved, or serve after a promotion.
    CopySnapped {
        /// The shard.
        shard: ShardId,
        /// The cut.
        cut: CutId,
        /// BSP: job steps applied.
        step: Step,
    },
    /// A sparse table has no room for a new row, and `model.table-full` is "fail".
    TableFull {
        /// The shard.
        shard: ShardId,
        /// The table.
        table: TableId,
        /// Its rows on this shard.
        rows: u32,
    },
}

/// Result of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Flow {
    /// The frame is answered, parked or held.
    Taken,
    /// Nothing has happened. Stop reading this connection, and pass the frame again after the saver has read more or a cut
    /// is over.
    Wait,
}
