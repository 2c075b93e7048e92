//! What a shard has applied of its phase, by the phase's consistency.

use heddle_protocol::control::{Phase, Sharing, TaskPosition};
use heddle_protocol::ids::{RECORD_COUNTER, ShardId, Step, TaskAttempt, TaskId};
use heddle_protocol::metrics::RecordSums;
use heddle_protocol::task_set::TaskSet;

use crate::content::ContentError;
use crate::dedup::{DedupState, Seen, SeenLanes};
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
    pub(crate) fn of(seen: Seen, tables: usize, early_bytes_max: usize) -> Self {
        match seen {
            Seen::Lanes(lanes) => Self::Lanes(StagedLanes::new(lanes, tables, early_bytes_max)),
            Seen::Queue(tasks) => Self::Queue(tasks),
            Seen::ReadOnly => Self::ReadOnly,
        }
    }

    /// The dedup state; none while no phase is served.
    pub(crate) fn seen(&self) -> Option<Seen> {
        match self {
            Self::Lanes(lanes) => Some(Seen::Lanes(lanes.seen())),
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

    /// BSP: what the records of all lanes add up to, once all have ended; none where this shard does not count.
    pub(crate) fn sums(&self) -> Option<RecordSums> {
        self.lanes().filter(|lanes| lanes.all_ended()).and_then(StagedLanes::sums)
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
pub(crate) fn start_of(phase: Phase, shard: ShardId) -> Seen {
    match phase.sharing {
        Sharing::Lanes { lanes } => {
            let lanes = lanes as usize;
            let counted = if shard == RECORD_COUNTER { lanes } else { 0 };
            Seen::Lanes(SeenLanes {
                step: Step(0),
                ended: vec![false; lanes],
                totals: vec![RecordSums::default(); counted],
            })
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
        (Seen::Lanes(saved), Sharing::Lanes { .. }) if saved.step != step => {
            Err(ContentError::Step { shard, saved: saved.step, wanted: step })
        }
        (Seen::Lanes(saved), Sharing::Lanes { lanes }) if saved.ended.len() == lanes as usize => {
            Ok(())
        }
        (Seen::Queue(_), sharing) if sharing.is_queue_of_pushes() => Ok(()),
        (Seen::ReadOnly, Sharing::ReadOnly) => Ok(()),
        _ => Err(ContentError::Sharing { shard }),
    }
}
