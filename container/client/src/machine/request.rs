//! Requests to the machine: one type from the training loop to [`super::ClientMachine::on`].

use heddle_protocol::control::{LaneGrant, Phase, ShardPlace, TaskGrant};
use heddle_protocol::ids::{CutId, Epoch, Lane, Step, TableId, TaskId};
use heddle_protocol::metrics::LossSum;

use super::unit::{Era, Unit};
use crate::gradient::Gradient;
use crate::layout::Rows;

/// Names a pull. Chosen by the caller, unique within an era.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PullId(pub u64);

/// Requested values of one table, and their buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct PullItem {
    /// The table.
    pub table: TableId,
    /// The requested rows; may be empty.
    pub rows: Rows,
    /// `values: [rows × cols]`, row-major. The content at the request does not matter; pass a used buffer to save an
    /// allocation. The reply fills all of it.
    pub values: Vec<f32>,
}

/// The state of the parameters that a pull reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullAt {
    /// The current state (constants of a phase).
    Now,
    /// For this step of a task, which must be held (SSP: no result otherwise). ASP, evaluation: the current state. SSP: the
    /// state once no trainer is too far behind.
    Step(TaskId, Step),
    /// BSP: exactly the state before this step. The pull waits for it.
    Before(Lane, Step),
}

/// The gradient of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepPush {
    /// The step of the unit.
    pub step: Step,
    /// Sums over the step's records. May be empty.
    pub gradient: Gradient,
    /// Number of records behind the sums.
    pub rows: u32,
    /// Their losses added up; BSP alone counts them, with the step.
    pub loss: LossSum,
    /// BSP: the lane has no data after this step. A lane that learns of its end after its last push sends an empty step
    /// (no gradient, 0 rows) with this flag. Ignored for tasks.
    pub end: bool,
}

/// A request to the data plane. [`super::ClientEvent`]s report the results.
///
/// The machine drops requests of another era than its own.
#[derive(Clone, Debug, PartialEq)]
pub enum DataRequest {
    /// The epoch, the phase, and the addresses of the shards. A new epoch or phase drops all work and reports
    /// [`super::ClientEvent::Begun`]; the same epoch and phase with other addresses only moves connections. A lower epoch is of
    /// a stale ApplicationMaster and is ignored.
    Work {
        /// The epoch.
        epoch: Epoch,
        /// The phase.
        phase: Phase,
        /// The address of each shard.
        places: Vec<ShardPlace>,
    },
    /// Sends the barrier of a cut on every connection, after the steps that were pushed before, and reports
    /// [`super::ClientEvent::AtBarrier`]. A repeated cut gets the same report. A lower cut or another epoch is ignored.
    Barrier {
        /// The cut.
        cut: CutId,
        /// The epoch.
        epoch: Epoch,
    },
    /// BSP: runs a lane from now on. The shards report where it stands, then [`super::ClientEvent::Compute`] or
    /// [`super::ClientEvent::Ended`] follows. A lane that runs here under this hand-out or a later one is unchanged.
    TakeOver {
        /// The sender's era.
        era: Era,
        /// The lane and its hand-out.
        grant: LaneGrant,
    },
    /// BSP: stops running a lane, in any state.
    ReleaseLane {
        /// The sender's era.
        era: Era,
        /// The lane.
        lane: Lane,
    },
    /// ASP: holds a task, so that positions include it. A task that is held with this attempt is unchanged; another
    /// attempt starts it again.
    HoldTask {
        /// The sender's era.
        era: Era,
        /// The task, its attempt and its first step.
        grant: TaskGrant,
    },
    /// ASP: releases a task, in any state.
    ReleaseTask {
        /// The sender's era.
        era: Era,
        /// The task.
        task: TaskId,
    },
    /// ASP: the task has no more steps. [`super::ClientEvent::Finished`] follows. A task may have no step at all.
    EndTask {
        /// The sender's era.
        era: Era,
        /// The task.
        task: TaskId,
    },
    /// Reads values. [`super::ClientEvent::Pulled`] returns all items. An invalid request results in [`super::ClientEvent::Fault`];
    /// a pull before a step that the lane has passed has no result.
    Pull {
        /// The sender's era.
        era: Era,
        /// Names the pull.
        pull: PullId,
        /// The state to read.
        at: PullAt,
        /// The values to read.
        items: Vec<PullItem>,
    },
    /// Pushes the whole gradient of a step. [`super::ClientEvent::Reached`] follows. An invalid one results in
    /// [`super::ClientEvent::Fault`]. A step that is not the unit's next has no result: the work was taken back meanwhile.
    ///
    /// A unit may have up to [`super::UNREACHED_STEPS_MAX`] steps in flight. BSP: a step that is pushed before the
    /// previous one is reached waits in the client.
    PushStep {
        /// The sender's era.
        era: Era,
        /// The lane or task.
        unit: Unit,
        /// The gradient.
        push: StepPush,
    },
}

impl DataRequest {
    /// The era that the request must match; none for requests of the ApplicationMaster, which name an epoch.
    pub(super) fn era(&self) -> Option<Era> {
        match self {
            Self::Work { .. } | Self::Barrier { .. } => None,
            Self::TakeOver { era, .. }
            | Self::ReleaseLane { era, .. }
            | Self::HoldTask { era, .. }
            | Self::ReleaseTask { era, .. }
            | Self::EndTask { era, .. }
            | Self::Pull { era, .. }
            | Self::PushStep { era, .. } => Some(*era),
        }
    }
}
