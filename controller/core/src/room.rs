//! The working copy of nodes, queues and the limit. Steps on it can be taken back.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::free_index::{FreeIndex, Headroom, Horizon};
use crate::resources::ResourceVector;

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

/// A container that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Misfit {
    pub shortage: Shortage,
    pub demand: ResourceVector,
}

/// A container to place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub demand: ResourceVector,
    pub queue: Option<usize>,
    /// Growth stays within the limit of the load, and leaves CPU and memory to idle GPUs.
    pub is_growth: bool,
    pub horizon: Horizon,
}

/// Nodes where a container may fit.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Candidates<'n> {
    From(usize),
    Only(&'n [usize]),
}

#[derive(Clone, Copy, Debug)]
enum RoomPart {
    Node(usize),
    Queue(usize),
    Limit,
}

/// Room of nodes, of queues and below the limit.
#[derive(Clone, Debug)]
pub(crate) struct ClusterRoom {
    index: FreeIndex,
    queues: Vec<Headroom>,
    limit: Headroom,
    /// Earlier values, oldest first.
    undo: Vec<(RoomPart, Headroom)>,
}

impl ClusterRoom {
    pub(crate) fn new(index: FreeIndex, queues: Vec<Headroom>, limit: Headroom) -> Self {
        Self { index, queues, limit, undo: Vec::new() }
    }

    pub(crate) fn node(&self, node: usize) -> Headroom {
        self.index.headroom(node)
    }

    pub(crate) fn limit(&self) -> Headroom {
        self.limit
    }

    /// The present state, for [`ClusterRoom::roll_back`].
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

    /// Places a container on the first of the nodes with room.
    pub(crate) fn place(&mut self, claim: Claim, among: Candidates) -> Result<usize, Misfit> {
        let Claim { demand, queue, is_growth, horizon } = claim;
        let misfit = |shortage| Misfit { shortage, demand };
        let is_open = is_growth && demand.gpus == 0;
        let node = match among {
            Candidates::From(from) => self.index.first(demand, horizon, is_open, from),
            Candidates::Only(nodes) => {
                let fits = |node: &usize| self.index.fits(*node, demand, horizon, is_open);
                nodes.iter().copied().find(fits)
            }
        };
        // First, so that the caller need not search again once queue and limit have room.
        let node = node.ok_or(misfit(Shortage::Nodes))?;
        if let Some(queue) = queue
            && !demand.fits_in(self.queues[queue].at(horizon))
        {
            return Err(misfit(Shortage::Queue));
        }
        if is_growth && !demand.fits_in(self.limit.at(horizon)) {
            return Err(misfit(Shortage::Limit));
        }
        self.change_all(node, queue, |headroom| headroom.take(demand, horizon));
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

    /// Counts as load what is not on a node yet.
    pub(crate) fn load(&mut self, demand: ResourceVector) {
        self.change(RoomPart::Limit, |headroom| headroom.take(demand, Horizon::Now));
    }

    /// What was counted as load has been placed and counted once more. `free`: room below the limit before that.
    pub(crate) fn unload(&mut self, demand: ResourceVector, free: ResourceVector) {
        self.change(RoomPart::Limit, |headroom| {
            headroom.soon += demand;
            headroom.now = free.min(headroom.soon);
        });
    }

    /// The node does not take further containers.
    pub(crate) fn close(&mut self, node: usize) {
        self.change(RoomPart::Node(node), |headroom| *headroom = Headroom::CLOSED);
    }

    /// What a container changes: its node, its queue, the load of the cluster.
    fn change_all(&mut self, node: usize, queue: Option<usize>, change: impl Fn(&mut Headroom)) {
        self.change(RoomPart::Node(node), &change);
        self.change(RoomPart::Limit, &change);
        if let Some(queue) = queue {
            self.change(RoomPart::Queue(queue), &change);
        }
    }

    fn change(&mut self, place: RoomPart, change: impl FnOnce(&mut Headroom)) {
        let before = match place {
            RoomPart::Node(node) => self.index.headroom(node),
            RoomPart::Queue(queue) => self.queues[queue],
            RoomPart::Limit => self.limit,
        };
        let mut after = before;
        change(&mut after);
        self.undo.push((place, before));
        self.put(place, after);
    }

    fn put(&mut self, place: RoomPart, headroom: Headroom) {
        match place {
            RoomPart::Node(node) => self.index.set(node, headroom),
            RoomPart::Queue(queue) => self.queues[queue] = headroom,
            RoomPart::Limit => self.limit = headroom,
        }
    }
}
