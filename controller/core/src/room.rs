//! The working copy of nodes, queues and the limit. Steps on it can be taken back.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::free_index::{FreeIndex, Headroom, Horizon};
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
    /// No node has the room.
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

/// A container that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Misfit {
    pub shortage: Shortage,
    pub demand: ResourceVector,
}

/// What a container is to the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContainerKind {
    Master,
    Pserver,
    Trainer,
}

impl ContainerKind {
    /// One container of it. The master is not counted.
    pub(crate) fn one(self) -> ContainerCounts {
        match self {
            Self::Master => ContainerCounts::default(),
            Self::Pserver => ContainerCounts::new(0, 1),
            Self::Trainer => ContainerCounts::new(1, 0),
        }
    }
}

/// Equal containers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContainerGroup {
    pub kind: ContainerKind,
    pub demand: ResourceVector,
    pub count: u32,
}

/// Containers of a job that are placed together.
#[derive(Clone, Debug)]
pub(crate) struct Need {
    /// Largest first, which packs better.
    pub groups: Vec<ContainerGroup>,
    pub queue: Option<usize>,
    /// Growth stays within the limit of the load, and leaves CPU and memory to idle GPUs.
    pub is_growth: bool,
}

/// Containers of a job on a node, by the node's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeShare {
    pub node: usize,
    pub counts: ContainerCounts,
}

/// Adds containers to a list that is sorted by node.
pub(crate) fn add_share(shares: &mut Vec<NodeShare>, node: usize, counts: ContainerCounts) {
    match shares.binary_search_by_key(&node, |share| share.node) {
        Ok(at) => shares[at].counts = shares[at].counts + counts,
        Err(at) => shares.insert(at, NodeShare { node, counts }),
    }
}

#[derive(Clone, Copy, Debug)]
enum Place {
    Node(usize),
    Queue(usize),
    Limit,
}

/// Room of nodes, of queues and below the limit.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    index: FreeIndex,
    queues: Vec<Headroom>,
    limit: Headroom,
    /// Earlier values, oldest first.
    undo: Vec<(Place, Headroom)>,
}

impl Room {
    pub(crate) fn new(index: FreeIndex, queues: Vec<Headroom>, limit: Headroom) -> Self {
        Self { index, queues, limit, undo: Vec::new() }
    }

    pub(crate) fn node(&self, node: usize) -> Headroom {
        self.index.headroom(node)
    }

    pub(crate) fn limit(&self) -> Headroom {
        self.limit
    }

    /// The present state, for [`Room::roll_back`].
    pub(crate) fn mark(&self) -> usize {
        self.undo.len()
    }

    /// Takes back all steps since the mark.
    pub(crate) fn roll_back(&mut self, mark: usize) {
        while self.undo.len() > mark {
            let (place, before) = self.undo.pop().expect("longer than the mark");
            self.put(place, before);
        }
    }

    /// Places all containers, or none. Returns where, sorted by node.
    pub(crate) fn place(
        &mut self,
        need: &Need,
        horizon: Horizon,
    ) -> Result<Vec<NodeShare>, Misfit> {
        let mark = self.mark();
        let mut shares = Vec::new();
        for group in &need.groups {
            for _ in 0..group.count {
                match self.place_one(need, group.demand, horizon) {
                    Ok(node) => add_share(&mut shares, node, group.kind.one()),
                    Err(misfit) => {
                        self.roll_back(mark);
                        return Err(misfit);
                    }
                }
            }
        }
        Ok(shares)
    }

    /// Places one container of the need.
    pub(crate) fn place_one(
        &mut self,
        need: &Need,
        demand: ResourceVector,
        horizon: Horizon,
    ) -> Result<usize, Misfit> {
        let misfit = |shortage| Misfit { shortage, demand };
        if let Some(queue) = need.queue
            && !demand.fits_in(self.queues[queue].at(horizon))
        {
            return Err(misfit(Shortage::Queue));
        }
        if need.is_growth && !demand.fits_in(self.limit.at(horizon)) {
            return Err(misfit(Shortage::Limit));
        }
        let is_open = need.is_growth && demand.gpus == 0;
        let node = self.index.first(demand, horizon, is_open).ok_or(misfit(Shortage::Nodes))?;
        self.change_all(node, need.queue, |headroom| headroom.take(demand, horizon));
        Ok(node)
    }

    /// Containers are going to be released.
    pub(crate) fn release(&mut self, node: usize, queue: Option<usize>, demand: ResourceVector) {
        self.change_all(node, queue, |headroom| headroom.release(demand));
    }

    /// Keeps a released container after all, if its room is not in use. Whether it was possible.
    pub(crate) fn take_again(
        &mut self,
        node: usize,
        queue: Option<usize>,
        demand: ResourceVector,
    ) -> bool {
        let fits = demand.fits_in(self.node(node).soon)
            && queue.is_none_or(|queue| demand.fits_in(self.queues[queue].soon));
        if fits {
            self.change_all(node, queue, |headroom| headroom.take(demand, Horizon::Soon));
        }
        fits
    }

    /// Counts as load what has no node yet.
    pub(crate) fn load(&mut self, demand: ResourceVector) {
        self.change(Place::Limit, |headroom| headroom.take(demand, Horizon::Now));
    }

    /// What was counted as load has been placed and counted once more. `free`: room below the limit before that.
    pub(crate) fn unload(&mut self, demand: ResourceVector, free: ResourceVector) {
        self.change(Place::Limit, |headroom| {
            headroom.soon += demand;
            headroom.now = free.min(headroom.soon);
        });
    }

    /// The node takes no further container.
    pub(crate) fn close(&mut self, node: usize) {
        self.change(Place::Node(node), |headroom| *headroom = Headroom::CLOSED);
    }

    /// What a container changes: its node, its queue, the load of the cluster.
    fn change_all(&mut self, node: usize, queue: Option<usize>, change: impl Fn(&mut Headroom)) {
        self.change(Place::Node(node), &change);
        self.change(Place::Limit, &change);
        if let Some(queue) = queue {
            self.change(Place::Queue(queue), &change);
        }
    }

    fn change(&mut self, place: Place, change: impl FnOnce(&mut Headroom)) {
        let before = match place {
            Place::Node(node) => self.index.headroom(node),
            Place::Queue(queue) => self.queues[queue],
            Place::Limit => self.limit,
        };
        let mut after = before;
        change(&mut after);
        self.undo.push((place, before));
        self.put(place, after);
    }

    fn put(&mut self, place: Place, headroom: Headroom) {
        match place {
            Place::Node(node) => self.index.set(node, headroom),
            Place::Queue(queue) => self.queues[queue] = headroom,
            Place::Limit => self.limit = headroom,
        }
    }
}
