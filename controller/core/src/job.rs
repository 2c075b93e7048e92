//! An elastic job as a round sees it, and what of its past the rules need.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::resources::ResourceVector;
use crate::score::Score;
use crate::sizes::ContainerCounts;

/// Length of the history that the planner needs of a job, in milliseconds.
pub const HISTORY_MS: u64 = 600_000;
/// A job that has grown waits this long before it grows again: the first trainers connect and show their speed.
const GROWTH_PAUSE_MS: u64 = 10_000;
/// A job that has shrunk waits this long before it grows, so that room does not go back and forth.
const SHRINK_PAUSE_MS: u64 = 60_000;
/// The first wait after YARN did not grant what the planner saw as free. It doubles with each further time.
const BACKOFF_MS: u64 = 60_000;
/// Most doublings: 8 minutes, within [`HISTORY_MS`].
const BACKOFF_DOUBLINGS_MAX: u32 = 3;

/// Containers of a job on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeContainers {
    /// As in [`crate::NodeCapacity::name`].
    pub node: String,
    /// How many.
    #[serde(flatten)]
    pub counts: ContainerCounts,
}

/// Nodes of the containers that a job holds, in the order in which it releases them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseOrder {
    /// One for each trainer.
    pub trainers: Vec<String>,
    /// One for each pserver.
    pub pservers: Vec<String>,
}

impl ReleaseOrder {
    pub(crate) fn is_empty(&self) -> bool {
        self.trainers.is_empty() && self.pservers.is_empty()
    }
}

/// A decision of the past that a job has followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeChange {
    /// Of the controller's monotonic clock.
    pub at_ms: u64,
    /// Size before.
    pub from: ContainerCounts,
    /// Size after.
    pub to: ContainerCounts,
    /// YARN did not grant what was asked for, and the request was withdrawn.
    pub is_fallback: bool,
}

/// Why the planner leaves a job's size as it is. The job's containers count as used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FixedSize {
    /// An operator has set the size.
    Pinned,
    /// The last status of the job is too old.
    StaleStatus,
    /// The job's program has a version that the controller does not order.
    OtherVersion,
    /// The job is about to end.
    Ending,
    /// By its grant its containers are larger than the nodes that they are on.
    ClaimsTooMuch,
}

impl fmt::Display for FixedSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pinned => "an operator has pinned its size",
            Self::StaleStatus => "its last status is too old",
            Self::OtherVersion => "its program has another version than the controller",
            Self::Ending => "it is about to end",
            Self::ClaimsTooMuch => "its grant claims more than its nodes have",
        })
    }
}

/// A job whose size the planner sets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ElasticJob {
    /// Id of the application, unique.
    pub id: String,
    /// Priority: a higher class is served first.
    pub class: u32,
    /// Order of submission, of the ResourceManager's clock. Compared among jobs, not with `now_ms`.
    pub submitted_ms: u64,
    /// Name of its queue.
    pub queue: String,
    /// What its ApplicationMaster asks for until that has its container; absent once it runs.
    pub master: Option<ResourceVector>,
    /// Demand of one trainer.
    pub trainer: ResourceVector,
    /// Demand of one pserver.
    pub pserver: ResourceVector,
    /// Sizes that the job can use, ascending, the minimum first ([`crate::SizeRange::sizes`]).
    pub sizes: Vec<ContainerCounts>,
    /// Present size as ordered: what the job holds and what it asks YARN for. The minimum before it starts.
    pub wanted: ContainerCounts,
    /// Containers that are allocated and stay. Where there are more than `wanted`, the rest is about to be released.
    pub held: Vec<NodeContainers>,
    /// Containers that are being released: their nodes and queue still count them as used.
    pub draining: Vec<NodeContainers>,
    /// Which of `held` a smaller size releases; empty: those that the plan names.
    #[serde(default)]
    pub release_order: ReleaseOrder,
    /// Since when the job has lacked containers that it wants; an order for more starts again. Of the controller's monotonic
    /// clock, as all times below.
    pub asked_since_ms: Option<u64>,
    /// Changes of the last [`HISTORY_MS`], oldest first.
    pub changes: Vec<SizeChange>,
    /// Why its size stays as it is.
    pub fixed: Option<FixedSize>,
    /// YARN has announced to preempt containers of the job, which must not grow until the notice is over.
    pub is_preempted: bool,
}

impl ElasticJob {
    /// All containers that stay.
    #[must_use]
    pub fn present(&self) -> ContainerCounts {
        self.held.iter().map(|on_node| on_node.counts).sum()
    }

    /// The least size.
    #[must_use]
    pub fn min(&self) -> ContainerCounts {
        self.sizes.first().copied().unwrap_or(self.wanted)
    }

    /// The largest size of use.
    #[must_use]
    pub fn top(&self) -> ContainerCounts {
        self.sizes.last().copied().unwrap_or(self.wanted)
    }

    /// The smallest size with more trainers.
    #[must_use]
    pub fn size_above(&self, size: ContainerCounts) -> Option<ContainerCounts> {
        let at = self.sizes.partition_point(|other| other.trainers <= size.trainers);
        self.sizes.get(at).copied()
    }

    /// The largest size with fewer trainers.
    #[must_use]
    pub fn size_below(&self, size: ContainerCounts) -> Option<ContainerCounts> {
        let at = self.sizes.partition_point(|other| other.trainers < size.trainers);
        at.checked_sub(1).map(|at| self.sizes[at])
    }

    /// The largest size within `held`, but at least the minimum.
    pub(crate) fn size_within(&self, held: ContainerCounts) -> ContainerCounts {
        let fits = |size: &&ContainerCounts| size.is_within(held);
        self.sizes.iter().rfind(fits).copied().unwrap_or(self.min())
    }

    /// What these containers take.
    #[must_use]
    pub fn demand(&self, counts: ContainerCounts) -> ResourceVector {
        self.trainer.times(counts.trainers) + self.pserver.times(counts.pservers)
    }

    /// Its score at this size.
    #[must_use]
    pub fn score(&self, size: ContainerCounts) -> Score {
        Score::new(size.trainers, self.min().trainers, self.top().trainers)
    }

    /// How long the job has asked in vain.
    pub(crate) fn waited_ms(&self, now_ms: u64) -> u64 {
        self.asked_since_ms.map_or(0, |since_ms| now_ms.saturating_sub(since_ms))
    }

    /// When the job may grow again: some time after its last change, 1, 2, 4 and at most 8 minutes after requests in vain.
    pub(crate) fn pause_until_ms(&self) -> u64 {
        let mut fallbacks = 0..BACKOFF_DOUBLINGS_MAX;
        let ends = self.changes.iter().map(|change| {
            change.at_ms.saturating_add(if change.is_fallback {
                BACKOFF_MS << fallbacks.next().unwrap_or(BACKOFF_DOUBLINGS_MAX)
            } else if change.from < change.to {
                GROWTH_PAUSE_MS
            } else {
                SHRINK_PAUSE_MS
            })
        });
        ends.max().unwrap_or(0)
    }

    /// Trainers that the job has given up to others within the last minute.
    pub(crate) fn given_trainers(&self, now_ms: u64) -> u32 {
        let recent = |change: &&SizeChange| {
            !change.is_fallback && change.at_ms.saturating_add(SHRINK_PAUSE_MS) > now_ms
        };
        let given = self.changes.iter().filter(recent).map(|change| change.from.minus(change.to));
        given.sum::<ContainerCounts>().trainers
    }
}
