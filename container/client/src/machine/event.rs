//! What the machine tells the training program, and the names both use.

use std::fmt;

use heddle_protocol::control::{LaneGrant, TaskPosition};
use heddle_protocol::ids::{
    CutId, Epoch, Lane, Member, PhaseNo, ShardId, Step, TableId, TaskAttempt, TaskId,
};

use crate::error::Fault;
use crate::gradient::Gradient;
use crate::layout::Rows;

/// The epoch and phase that a request or an event belongs to. Requests of another era than the machine's are
/// dropped without a word: whoever made them has not yet seen [`Event::Begun`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Era {
    /// Raised by rollbacks.
    pub epoch: Epoch,
    /// The phase of the job.
    pub phase: PhaseNo,
}

impl fmt::Display for Era {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {} phase {}", self.epoch, self.phase)
    }
}

/// Whose step it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unit {
    /// A lane (BSP); steps are job steps of the phase.
    Lane(Lane),
    /// A task (ASP); steps are the task's own.
    Task(TaskId),
}

impl Unit {
    /// The number that frames carry.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::Lane(lane) => lane.0,
            Self::Task(task) => task.0,
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lane(lane) => write!(f, "lane {lane}"),
            Self::Task(task) => write!(f, "task {task}"),
        }
    }
}

/// Names a pull. Chosen by whoever asks, never twice within an era.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PullId(pub u64);

/// Values asked for of one table, and where they go.
#[derive(Clone, Debug, PartialEq)]
pub struct PullItem {
    /// The table.
    pub table: TableId,
    /// Which rows; none are fine.
    pub rows: Rows,
    /// `values: [rows × cols]`, row-major. Its content when asked does not matter: hand in an old buffer to
    /// save an allocation. When the pull is answered every value is filled in.
    pub values: Vec<f32>,
}

/// State of the parameters that a pull wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullAt {
    /// Whatever there is (ASP, evaluation, constants of a phase).
    Now,
    /// BSP: exactly the state before this step; waits for it.
    Before(Lane, Step),
}

/// The gradient of a step, handed over whole.
#[derive(Clone, Debug, PartialEq)]
pub struct StepPush {
    /// Which step of the unit.
    pub step: Step,
    /// The sums over the step's records. Empty is fine.
    pub gradient: Gradient,
    /// Records behind it.
    pub rows: u32,
    /// BSP: the lane has no data after this step. A lane that learns of its end too late sends an
    /// empty step (no gradient, 0 rows) with this set. Ignored for tasks.
    pub end: bool,
}

/// What the training program is told. Events come in the order in which things happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A new era: all pulls, steps, lanes and tasks of the one before are forgotten; what comes after this
    /// belongs to the new one.
    Begun {
        /// The new era.
        era: Era,
    },
    /// BSP: compute from this step on. Comes after a take-over, and again when somebody else was faster:
    /// whatever of the lane was under way is forgotten.
    Compute {
        /// The lane.
        lane: Lane,
        /// The next step to compute.
        step: Step,
    },
    /// BSP: every shard knows that the lane has ended.
    Ended {
        /// The lane.
        lane: Lane,
    },
    /// BSP: a shard refused the lane because a later hand-out has asked it. The lane is not run here any more, and
    /// whatever of it was under way is forgotten.
    LaneFenced {
        /// The lane, with the hand-out that was refused.
        grant: LaneGrant,
    },
    /// A pull is answered.
    Pulled {
        /// Which.
        pull: PullId,
        /// As asked, with the values.
        items: Vec<PullItem>,
    },
    /// Every shard has acknowledged all of the step (BSP: its `Done`).
    Reached {
        /// Whose step.
        unit: Unit,
        /// Which.
        step: Step,
        /// The last cut whose barrier this client has sent.
        cut: CutId,
        /// What was pushed, for reuse of its buffers; empty while a copy is still in use.
        gradient: Gradient,
    },
    /// ASP: every shard has marked the task done. Only now may it be reported as finished.
    Finished {
        /// The task.
        task: TaskId,
        /// Which hand-out.
        attempt: TaskAttempt,
        /// The last cut whose barrier this client has sent.
        cut: CutId,
    },
    /// The barrier of a cut is in every connection, behind whole steps; these are the unfinished tasks with the
    /// first step not acknowledged by every shard. All later events carry this cut.
    AtBarrier {
        /// The cut.
        cut: CutId,
        /// The epoch.
        epoch: Epoch,
        /// Positions, by task.
        tasks: Vec<TaskPosition>,
    },
    /// A data connection broke or could not be opened. Said once for each outage, and again when the port refuses.
    Unreachable {
        /// The pserver's container.
        member: Member,
        /// Whether the port refused: the process is gone.
        refused: bool,
    },
    /// The pservers' containers that cannot be reached have changed: those with a data connection that is wanted and
    /// broke, or could not be opened, since when it was open last. Sorted, unique.
    Outages {
        /// All of them.
        members: Vec<Member>,
    },
    /// A part held NaN or infinity; shards have marked it as seen and not applied it.
    NotFinite {
        /// Whose step.
        unit: Unit,
        /// Which.
        step: Step,
        /// The table.
        table: TableId,
        /// The shard.
        shard: ShardId,
    },
    /// Something that waiting does not cure. The job should end with it.
    Fault(Fault),
}
