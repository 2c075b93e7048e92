//! What a shard has applied of its phase, by the phase's consistency.

use heddle_protocol::control::{Phase, Sharing, TaskPosition};
use heddle_protocol::ids::{ShardId, Step, TaskAttempt, TaskId};
use heddle_protocol::task_set::TaskSet;

use crate::content::ContentError;
use crate::dedup::{DedupState, Seen};
use crate::lanes::StagedLanes;
use crate::task_progress::{NextPart, TaskProgress};

/// Progress in a phase.
pub(crate) enum PhaseProgress {
    /// The shard serves no phase.
    Idle,
    /// BSP.
    Lanes(StagedLanes),
    /// ASP, SSP.
    Queue(TaskProgress),
    /// Evaluation.
    ReadOnly,
}

impl PhaseProgress {
    /// Progress as the dedup state has it. `tables`: number of tables.
    pub(crate) fn of(seen: Seen, step: Step, tables: usize, early_bytes_max: usize) -> Self {
        match seen {
            Seen::Lanes { ended, .. } => {
                Self::Lanes(StagedLanes::new(step, ended, tables, early_bytes_max))
            }
            Seen::Queue(tasks) => Self::Queue(tasks),
            Seen::ReadOnly => Self::ReadOnly,
        }
    }

    /// The dedup state; none while no phase is served.
    pub(crate) fn seen(&self) -> Option<Seen> {
        match self {
            Self::Lanes(lanes) => Some(lanes.seen()),
            Self::Queue(tasks) => Some(Seen::Queue(tasks.clone())),
            Self::ReadOnly => Some(Seen::ReadOnly),
            Self::Idle => None,
        }
    }

    pub(crate) fn lanes(&self) -> Option<&StagedLanes> {
        match self {
            Self::Lanes(lanes) => Some(lanes),
            Self::Idle | Self::Queue(_) | Self::ReadOnly => None,
        }
    }

    /// ASP and SSP: pushes are applied as they come.
    pub(crate) fn is_queue(&self) -> bool {
        matches!(self, Self::Queue(_))
    }

    /// Whether the phase has pushes.
    pub(crate) fn takes_pushes(&self) -> bool {
        matches!(self, Self::Lanes(_) | Self::Queue(_))
    }

    /// BSP: job steps applied in the phase.
    pub(crate) fn step(&self) -> Step {
        self.lanes().map_or(Step(0), StagedLanes::step)
    }

    /// BSP: whether all lanes have ended.
    pub(crate) fn all_ended(&self) -> bool {
        self.lanes().is_some_and(StagedLanes::all_ended)
    }

    /// ASP: unfinished tasks, and finished ones.
    pub(crate) fn tasks(&self) -> (Vec<TaskPosition>, TaskSet) {
        let Self::Queue(tasks) = self else {
            return (Vec::new(), TaskSet::default());
        };
        let position = |(&task, next): (&TaskId, &NextPart)| TaskPosition {
            task,
            attempt: TaskAttempt(0),
            step: next.step,
        };
        let done = tasks.done.iter().map(|(&first, &last)| (TaskId(first), TaskId(last)));
        (tasks.unfinished.iter().map(position).collect(), done.collect())
    }
}

/// The dedup state at the start of a phase.
pub(crate) fn start_of(phase: Phase) -> Seen {
    match phase.sharing {
        Sharing::Lanes { lanes } => {
            Seen::Lanes { step: Step(0), ended: vec![false; lanes as usize] }
        }
        Sharing::Queue | Sharing::ClockedQueue { .. } => Seen::Queue(TaskProgress::default()),
        Sharing::ReadOnly => Seen::ReadOnly,
    }
}

/// Whether a loaded state is of this phase and step.
///
/// # Errors
/// The first difference.
pub(crate) fn check(
    state: &DedupState,
    shard: ShardId,
    phase: Phase,
    step: Step,
) -> Result<(), ContentError> {
    if state.phase > phase.no {
        return Err(ContentError::Phase { shard, saved: state.phase, wanted: phase.no });
    }
    match (&state.seen, phase.sharing) {
        (Seen::Lanes { step: saved, .. }, Sharing::Lanes { .. }) if *saved != step => {
            Err(ContentError::Step { shard, saved: *saved, wanted: step })
        }
        (Seen::Lanes { ended, .. }, Sharing::Lanes { lanes }) if ended.len() == lanes as usize => {
            Ok(())
        }
        (Seen::Queue(_), sharing) if sharing.is_queue_of_pushes() => Ok(()),
        (Seen::ReadOnly, Sharing::ReadOnly) => Ok(()),
        _ => Err(ContentError::Sharing { shard }),
    }
}
