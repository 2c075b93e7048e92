//! The cluster as a round sees it: nodes, queues and the limit of the load.

use serde::{Deserialize, Serialize};

use crate::resources::ResourceVector;

/// A node that takes containers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCapacity {
    /// Host and port, as YARN names the node.
    pub name: String,
    /// What its NodeManager offers.
    pub total: ResourceVector,
    /// `total` minus all containers, those that are being released included. Negative if the node offers less than it has
    /// allocated.
    pub free: ResourceVector,
}

/// A queue of the scheduler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueCapacity {
    /// As in [`crate::ElasticJob::queue`].
    pub name: String,
    /// Most that its applications may use together; absent: the cluster.
    pub most: Option<ResourceVector>,
    /// What its applications use, containers that are being released included.
    pub used: ResourceVector,
    /// What the queues above it have left of their maximums; absent: these are unlimited.
    #[serde(default)]
    pub parents_free: Option<ResourceVector>,
}

impl QueueCapacity {
    /// What its applications may use further.
    pub(crate) fn free(&self) -> ResourceVector {
        let own = self.most.map_or(ResourceVector::UNLIMITED, |most| most - self.used);
        own.min(self.parents_free.unwrap_or(ResourceVector::UNLIMITED))
    }
}

/// Shares of the cluster up to which jobs grow, in thousandths. GPUs may all be used.
///
/// The rest is for new applications of others, which start without waiting until jobs shrink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadLimit {
    /// 0–1,000; 970 by default.
    pub vcores_permille: u32,
    /// 0–1,000; 970 by default.
    pub memory_permille: u32,
}

impl Default for LoadLimit {
    fn default() -> Self {
        Self { vcores_permille: 970, memory_permille: 970 }
    }
}

/// The cluster at the beginning of a round.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterState {
    /// All nodes that take containers, in any order, each name once.
    pub nodes: Vec<NodeCapacity>,
    /// In any order, each name once. A queue that is absent here is unlimited.
    pub queues: Vec<QueueCapacity>,
    /// What applications that are not elastic jobs ask for and YARN has not granted, all together.
    pub asked_by_others: ResourceVector,
    /// In how many containers, as far as known.
    pub containers_asked_by_others: u32,
    /// Up to where jobs grow.
    pub limit: LoadLimit,
}

impl ClusterState {
    /// What all nodes offer together.
    #[must_use]
    pub fn total(&self) -> ResourceVector {
        self.nodes.iter().fold(ResourceVector::default(), |sum, node| sum + node.total)
    }

    /// How much may be used: all GPUs, the limit's shares of CPU and memory.
    #[must_use]
    pub fn usable(&self) -> ResourceVector {
        let total = self.total();
        let share = |amount: i64, permille: u32| amount.saturating_mul(permille.into()) / 1000;
        ResourceVector {
            gpus: total.gpus,
            vcores: share(total.vcores, self.limit.vcores_permille),
            memory_mib: share(total.memory_mib, self.limit.memory_permille),
        }
    }
}
