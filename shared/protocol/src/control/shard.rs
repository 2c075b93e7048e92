//! What shards report, and what is ordered from them alone. Pservers pass these messages on as they are.

use serde::{Deserialize, Serialize};

use super::replica::{HandOver, SetViews};
use crate::ids::{CutId, Member, PhaseNo, ShardId, Step, Term, ViewVersion};
use crate::metrics::RecordSums;

/// A command to all shards of a pserver.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "shard_command")]
pub enum ShardCommand {
    /// Exactly these trainers may be connected. Connections of others are closed unread, and an open cut does
    /// not wait for them.
    Members {
        /// All trainers of the job now.
        trainers: Vec<Member>,
    },
    /// Views of shards, sent to their old and new holders once they are durable. A primary starts to serve, or
    /// stops waiting for a backup, by a view alone. Answered by [`ShardReport::ViewTaken`] by the primary.
    Views(SetViews),
    /// To the primary of these shards: another copy is to serve them. Change them no more, and report when every in-sync copy
    /// has everything ([`ShardReport::Drained`]). A later view ends that, and so do a phase, a cut,
    /// and two seconds.
    HandOver(HandOver),
    /// The cut has ended. Committed: keep its snapshot for a rollback and drop older ones. Else: drop it.
    CutEnd(EndCut),
}

/// See [`ShardCommand::CutEnd`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct EndCut {
    /// The cut.
    pub cut: CutId,
    /// Whether it became a checkpoint.
    pub committed: bool,
}

/// A report of a shard. [`Report::Shard`](super::Report::Shard) adds the epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "shard_report")]
pub enum ShardReport {
    /// BSP: all lanes have ended on this shard and its last step is applied.
    PhaseEnded {
        /// The shard.
        shard: ShardId,
        /// The phase.
        phase: PhaseNo,
        /// Job steps applied in the phase; the same on every shard.
        step: Step,
        /// What its records add up to, from the shard that counts.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sums: Option<RecordSums>,
    },
    /// The primary serves the shard in this view, the answer to [`ShardCommand::Views`].
    ViewTaken {
        /// The shard.
        shard: ShardId,
        /// The primary's term.
        term: Term,
        /// The version of the view.
        version: ViewVersion,
    },
    /// Of the primary: a backup of the in-sync set is unreachable, or has not acknowledged for `liveness.lag`. The primary
    /// waits for it until a view without it arrives. Or one that is being filled makes no progress. Repeated as
    /// long as it holds.
    Lagging {
        /// The shard.
        shard: ShardId,
        /// The primary's term.
        term: Term,
        /// The backup.
        member: Member,
    },
    /// Of the primary: the backup that the view `order` ordered to fill has everything that was acknowledged, and answers wait
    /// for it. From now on only a view ends that.
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
    /// Of a promoted primary: this copy of the set has changes that the primary does not have. The primary has made none since,
    /// and waits for another view.
    Ahead {
        /// The shard.
        shard: ShardId,
        /// The primary's term.
        term: Term,
        /// The copy.
        member: Member,
    },
    /// Of the primary: it has stopped, and every in-sync copy has the change with this number, which is the last. The answer to
    /// [`ShardCommand::HandOver`].
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
    /// The shard has the snapshot of the cut, which can be saved now.
    SnapshotTaken {
        /// The shard.
        shard: ShardId,
        /// The cut.
        cut: CutId,
        /// BSP: job steps applied.
        step: Step,
    },
    /// The shard aborted the cut (waited too long, is beyond it, has received a higher one).
    CutAborted {
        /// The shard.
        shard: ShardId,
        /// The cut.
        cut: CutId,
        /// BSP, if it stands beyond the step that the cut names: job steps applied.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        step: Option<Step>,
        /// Why.
        reason: String,
    },
}

impl ShardReport {
    /// The cut that it is about. Reports of a cut follow the report that all data threads have it.
    #[must_use]
    pub fn cut(&self) -> Option<CutId> {
        match self {
            Self::SnapshotTaken { cut, .. } | Self::CutAborted { cut, .. } => Some(*cut),
            _ => None,
        }
    }
}
