//! The working copy of nodes, queues and the limit, and what is placed on it.

use std::fmt;
use std::iter::repeat_n;

use serde::{Deserialize, Serialize};

use crate::free_index::{FreeIndex, Headroom, Horizon, Search};
use crate::resources::ResourceVector;
use crate::sizes::ContainerCounts;

/// What lacks for a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shortage {
    /// Its queue is at its maximum.
    Queue,
    /// The cluster would be loaded above its limit.
    Limit,
    /// All nodes are too full.
    Nodes,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Queue => "its queue has no room for the next size",
            Self::Limit => "the cluster would be loaded above its limit",
            Self::Nodes => "no node has room for the next size",
        })
    }
}

/// Equal containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ContainerGroup {
    /// What each adds to the size of the job: a trainer or a pserver; empty for an ApplicationMaster.
    pub one: ContainerCounts,
    pub demand: ResourceVector,
    pub count: u32,
}

/// Containers of an application that are placed together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Need {
    /// Largest first, which packs better.
    pub groups: Vec<ContainerGroup>,
    pub queue: usize,
    /// Growth stays within the limit of the load, and leaves CPU and memory to idle GPUs.
    pub is_growth: bool,
}

impl Need {
    /// Each container's group, in the order in which they are placed.
    pub(crate) fn containers(&self) -> impl Iterator<Item = &ContainerGroup> {
        self.groups.iter().flat_map(|group| repeat_n(group, group.count as usize))
    }
}

/// Room of nodes, of queues and below the limit.
#[derive(Clone, Debug)]
pub(crate) struct ClusterRoom {
    pub index: FreeIndex,
    /// As the cluster lists them, then an unlimited one for jobs in other queues.
    pub queues: Vec<Headroom>,
    pub limit: Headroom,
}

impl ClusterRoom {
    /// What is free on a node after all releases.
    pub(crate) fn node(&self, node: usize) -> ResourceVector {
        self.index.headroom(node).at(Horizon::Soon)
    }

    /// Places all containers, or leaves the room as it is. Returns the node of each.
    pub(crate) fn place(&mut self, need: &Need, horizon: Horizon) -> Result<Vec<usize>, Shortage> {
        let mut nodes = Vec::new();
        let placed = self.place_further(need, horizon, &mut nodes);
        if placed.is_err() {
            self.remove(need, horizon, &nodes);
        }
        placed.map(|()| nodes)
    }

    /// Whether all containers have room. It stays as it is.
    pub(crate) fn fits(&mut self, need: &Need, horizon: Horizon) -> bool {
        let placed = self.place(need, horizon);
        placed.map(|nodes| self.remove(need, horizon, &nodes)).is_ok()
    }

    /// Places the containers after those on `nodes`, up to the first that does not fit.
    pub(crate) fn place_further(
        &mut self,
        need: &Need,
        horizon: Horizon,
        nodes: &mut Vec<usize>,
    ) -> Result<(), Shortage> {
        for ContainerGroup { demand, .. } in need.containers().skip(nodes.len()) {
            let is_open = need.is_growth && demand.gpus == 0;
            let search = Search { demand: *demand, horizon, is_open };
            let node = self.index.first(search).ok_or(Shortage::Nodes)?;
            if !demand.fits_in(self.queues[need.queue].at(horizon)) {
                return Err(Shortage::Queue);
            }
            if need.is_growth && !demand.fits_in(self.limit.at(horizon)) {
                return Err(Shortage::Limit);
            }
            self.change(node, need.queue, ResourceVector::default() - *demand, horizon);
            nodes.push(node);
        }
        Ok(())
    }

    /// Takes back what has been placed.
    pub(crate) fn remove(&mut self, need: &Need, horizon: Horizon, nodes: &[usize]) {
        for (group, node) in need.containers().zip(nodes) {
            self.change(*node, need.queue, group.demand, horizon);
        }
    }

    /// What a container changes: its node, its queue, the load of the cluster. `amount` is positive when it leaves.
    pub(crate) fn change(
        &mut self,
        node: usize,
        queue: usize,
        amount: ResourceVector,
        horizon: Horizon,
    ) {
        self.index.set(node, self.index.headroom(node).plus(amount, horizon));
        self.limit = self.limit.plus(amount, horizon);
        self.queues[queue] = self.queues[queue].plus(amount, horizon);
    }

    /// The node does not take further containers.
    pub(crate) fn close(&mut self, node: usize) {
        self.index.set(node, Headroom::new(ResourceVector::CLOSED));
    }
}
