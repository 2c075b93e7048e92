//! Effects of a frame or a command: replies, reports, connections to close.

use std::fmt;

use heddle_protocol::frame::Header;
use heddle_protocol::ids::{CutId, Member, PhaseNo, ShardId, Step, TableId, Term, ViewVersion};
use heddle_protocol::metrics::RecordSums;

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

/// A report to the ApplicationMaster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardReport {
    /// BSP: all lanes have ended, and the last step is applied.
    PhaseEnded {
        /// The shard.
        shard: ShardId,
        /// The phase.
        phase: PhaseNo,
        /// Job steps applied in the phase.
        step: Step,
        /// What its records add up to, where this shard counts them.
        sums: Option<RecordSums>,
    },
    /// Replicas: the shard is served in this view.
    ViewTaken {
        /// The shard.
        shard: ShardId,
        /// The primary's term.
        term: Term,
        /// The version of the view.
        version: ViewVersion,
    },
    /// Replicas: an in-sync backup does not acknowledge.
    Lagging {
        /// The shard.
        shard: ShardId,
        /// The primary's term.
        term: Term,
        /// The backup.
        member: Member,
    },
    /// Replicas: a filled backup has everything that was acknowledged, and answers wait for it.
    InSync {
        /// The shard.
        shard: ShardId,
        /// The primary's term.
        term: Term,
        /// The backup.
        member: Member,
        /// The number of the refill.
        order: ViewVersion,
    },
    /// Replicas: a copy of the set has changes that this copy, which was promoted, does not have.
    Ahead {
        /// The shard.
        shard: ShardId,
        /// The primary's term.
        term: Term,
        /// The copy.
        member: Member,
    },
    /// Replicas: the shard has stopped for a hand-over, and every in-sync copy has all of its changes.
    Drained {
        /// The shard.
        shard: ShardId,
        /// The primary's term.
        term: Term,
        /// The version of its view.
        version: ViewVersion,
        /// The number of the last change.
        number: u64,
    },
    /// Replicas: a view orders a refill of this thread's copy, which needs an empty shard ([`crate::ShardSet::install_empty`]).
    /// The ApplicationMaster gets no report of it.
    FillOrdered {
        /// The shard.
        shard: ShardId,
        /// The number of the refill.
        order: ViewVersion,
    },
    /// Replicas: a view left this thread's copy out, and it is dropped. The ApplicationMaster gets no report of it.
    CopyLeft {
        /// The shard.
        shard: ShardId,
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
    /// The shard has the snapshot of the cut, which can be saved now.
    SnapshotTaken {
        /// The shard.
        shard: ShardId,
        /// The cut.
        cut: CutId,
        /// BSP: job steps applied.
        step: Step,
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
    /// The shard does not take the cut.
    CutAborted {
        /// The shard.
        shard: ShardId,
        /// The cut.
        cut: CutId,
        /// BSP, if the shard is beyond the step of the cut: job steps applied.
        step: Option<Step>,
        /// The reason.
        reason: String,
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
