//! Events that the machine reports to the training program.

use heddle_protocol::control::{LaneGrant, TaskPosition};
use heddle_protocol::ids::{
    CutId, Epoch, Lane, Member, ShardId, Step, TableId, TaskAttempt, TaskId,
};

use super::request::{PullId, PullItem};
use super::unit::{Era, Unit};
use crate::error::Fault;
use crate::gradient::Gradient;

/// A report to the training program. Events are in the order in which things happened.
#[derive(Clone, Debug, PartialEq)]
pub enum ClientEvent {
    /// A new era. All pulls, steps, lanes and tasks of the previous era are dropped; later events belong to the new one.
    Begun {
        /// The new era.
        era: Era,
    },
    /// BSP: compute from this step on. Follows a take-over, and a step that another trainer completed first: all work of
    /// the lane that was in flight is dropped.
    Compute {
        /// The lane.
        lane: Lane,
        /// The next step to compute.
        step: Step,
    },
    /// BSP: every shard has recorded the end of the lane.
    Ended {
        /// The lane.
        lane: Lane,
    },
    /// BSP: a shard rejected the lane because a later hand-out has asked it. The lane does not run here any more, and its
    /// work in flight is dropped.
    LaneFenced {
        /// The lane, with the rejected hand-out.
        grant: LaneGrant,
    },
    /// A pull is complete.
    Pulled {
        /// The pull.
        pull: PullId,
        /// The requested items, with their values.
        items: Vec<PullItem>,
    },
    /// Every shard has acknowledged the whole step (BSP: its `Done`).
    Reached {
        /// The lane or task.
        unit: Unit,
        /// The step.
        step: Step,
        /// The last cut whose barrier this client has sent.
        cut: CutId,
        /// The pushed gradient, for reuse of its buffers; empty while a copy is in use.
        gradient: Gradient,
    },
    /// ASP: every shard has marked the task as done. The trainer may report it as finished only now.
    Finished {
        /// The task.
        task: TaskId,
        /// Its attempt.
        attempt: TaskAttempt,
        /// Its steps.
        steps: u64,
        /// The last cut whose barrier this client has sent.
        cut: CutId,
    },
    /// The barrier of a cut is queued on every connection, after whole steps. All later events carry this cut.
    AtBarrier {
        /// The cut.
        cut: CutId,
        /// The epoch.
        epoch: Epoch,
        /// Unfinished tasks, each with the first step that some shard has not acknowledged. Ordered by task.
        tasks: Vec<TaskPosition>,
    },
    /// A data connection broke or could not be opened. Reported once for each outage, and again when the port refuses.
    Unreachable {
        /// The pserver's container.
        member: Member,
        /// Whether the port refused the connection: the process is gone.
        refused: bool,
    },
    /// The set of unreachable pservers has changed: those with a connection that broke or could not be opened since it was
    /// open last, or whose data thread does not answer a probe. Sorted, unique.
    Outages {
        /// The whole set, each with the time for which it has been out of reach, ms.
        members: Vec<(Member, u64)>,
    },
    /// A part contained NaN or infinity. Shards have recorded it and not applied it.
    NotFinite {
        /// The lane or task.
        unit: Unit,
        /// The step.
        step: Step,
        /// The table.
        table: TableId,
        /// The shard.
        shard: ShardId,
    },
    /// An error that waiting does not cure. The job should end with it.
    Fault(Fault),
}
