//! What a round decides, and the reasons in words: the log of decisions, `status` and the page print them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::job::{FixedSize, NodeContainers, SizeChange};
use crate::room::Shortage;
use crate::score::Score;
use crate::sizes::ContainerCounts;

/// Result of a round.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScalingPlan {
    /// Sorted by job id; at most one for each job.
    pub decisions: Vec<ScalingDecision>,
    /// Jobs that could use more than they have, sorted by id.
    pub waiting: Vec<WaitingJob>,
}

/// A job changes its size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScalingDecision {
    /// Application id.
    pub job: String,
    /// Size that the job has been ordered before.
    pub from: ContainerCounts,
    /// Size that it is ordered now.
    pub to: ContainerCounts,
    /// Of the last rule that changed the size.
    pub reason: ScalingReason,
    /// Where containers should be released, sorted by node. Hints: the job may release others.
    pub leave: Vec<NodeContainers>,
    /// Where the plan sees room for further containers, sorted by node. Hints as well.
    pub room: Vec<NodeContainers>,
}

impl ScalingDecision {
    /// The entry of the job's history once the job has accepted the order.
    #[must_use]
    pub fn as_change(&self, at_ms: u64) -> SizeChange {
        let is_fallback = matches!(self.reason, ScalingReason::AskedInVain { .. });
        SizeChange { at_ms, from: self.from, to: self.to, is_fallback }
    }
}

/// Why a job changes its size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum ScalingReason {
    /// R1: it has more than it may have or can use.
    AboveTop,
    /// R1: YARN has not granted its last request.
    AskedInVain {
        /// How long it asked.
        waited_ms: u64,
    },
    /// R3: it is ordered less than its minimum.
    BelowMinimum,
    /// R3: it makes room for the minimum of another job.
    ForMinimum {
        /// The other job.
        of: String,
    },
    /// R4: the cluster is loaded above its limit.
    Overload,
    /// R5: there is free room.
    FreeRoom {
        /// Its score before the last step.
        score: Score,
    },
    /// R6: its trainers use the CPU or memory that an idle GPU needs.
    ForIdleGpu {
        /// The job that can use it.
        of: String,
    },
    /// R7: a job with a lower score is left without room.
    Fairness {
        /// The other job.
        of: String,
        /// Score of the other job.
        lower: Score,
    },
}

impl fmt::Display for ScalingReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AboveTop => f.write_str("its size is above the most that it can use"),
            Self::AskedInVain { waited_ms } => {
                write!(f, "YARN has granted no container for {} s", waited_ms / 1000)
            }
            Self::BelowMinimum => f.write_str("its size is below its minimum"),
            Self::ForMinimum { of } => write!(f, "{of} needs room for its minimum"),
            Self::Overload => f.write_str("the cluster is loaded above its limit"),
            Self::FreeRoom { score } => write!(f, "its score {score} was the lowest that fits"),
            Self::ForIdleGpu { of } => write!(f, "{of} can use an idle GPU with its CPU or memory"),
            Self::Fairness { of, lower } => {
                write!(f, "its score is above the score {lower} of {of}, which has no room")
            }
        }
    }
}

impl fmt::Display for ScalingDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { job, from, to, reason, .. } = self;
        let verb = if from < to { "grows" } else { "shrinks" };
        write!(f, "{job} {verb} from {} to {} trainers", from.trainers, to.trainers)?;
        if from.pservers != to.pservers {
            write!(f, " and from {} to {} pservers", from.pservers, to.pservers)?;
        }
        write!(f, ": {reason}")
    }
}

/// A job that could use more than it has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingJob {
    /// Application id.
    pub job: String,
    /// What it waits for.
    pub reason: WaitingReason,
}

impl fmt::Display for WaitingJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} waits: {}", self.job, self.reason)
    }
}

/// Why a job does not get more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum WaitingReason {
    /// The planner leaves its size.
    Fixed {
        /// Why.
        by: FixedSize,
    },
    /// Its minimum does not fit on the cluster, or into its queue, even if these were empty.
    NeverFits,
    /// There is room for its minimum, which YARN is about to grant.
    MinimumAsked,
    /// Room for its minimum is being released.
    MinimumComing,
    /// Its minimum does not fit, even if other jobs shrink.
    MinimumHasNoRoom {
        /// How long it has waited.
        waited_ms: u64,
        /// Nodes that are kept from the growth of jobs of its class and lower classes.
        nodes_kept: usize,
    },
    /// YARN has announced to preempt containers of it.
    Preempted,
    /// YARN has not granted its last request.
    Asked,
    /// It has changed its size a short while ago, or has withdrawn requests in vain.
    Pause {
        /// End of the pause, of the controller's clock.
        until_ms: u64,
    },
    /// The next size does not fit.
    NoRoom {
        /// What lacks.
        shortage: Shortage,
    },
    /// Room for the next size is being released.
    RoomComing,
}

impl fmt::Display for WaitingReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed { by } => by.fmt(f),
            Self::NeverFits => f.write_str("its minimum is larger than the cluster or its queue"),
            Self::MinimumAsked => f.write_str("its minimum fits, and YARN has not granted it yet"),
            Self::MinimumComing => f.write_str("room for its minimum is being released"),
            Self::MinimumHasNoRoom { waited_ms, nodes_kept } => {
                write!(f, "its minimum has found no room for {} s", waited_ms / 1000)?;
                write!(f, ", with {nodes_kept} nodes kept for it")
            }
            Self::Preempted => f.write_str("YARN has announced to preempt containers of it"),
            Self::Asked => f.write_str("YARN has not granted its last request yet"),
            Self::Pause { .. } => f.write_str("its last change, or request in vain, is too recent"),
            Self::NoRoom { shortage } => shortage.fmt(f),
            Self::RoomComing => f.write_str("room for its next size is being released"),
        }
    }
}
