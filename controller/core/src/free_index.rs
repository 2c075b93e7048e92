//! Nodes by what they have free: the first node with room for a container.
//!
//! A search scans the nodes in their order, from where the last one for an equal container ended: all nodes before that lack
//! room. A node that gets room moves the start back, so that a round scans each node a few times for each kind of container. A
//! tree with the largest amounts below each node was as slow on 1,000 nodes, since it has to be kept up to date. First fit was
//! chosen over best fit: it fills nodes in order and so leaves whole nodes for large containers.

use std::collections::BTreeMap;

use crate::resources::ResourceVector;

/// What room counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Horizon {
    /// Only what is free.
    Now,
    /// Also what is being released.
    Soon,
}

/// Room of a node, of a queue, or below the limit of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Headroom {
    /// Free, without what is promised of it at once.
    free: ResourceVector,
    /// Free after all releases, without all that is promised.
    soon: ResourceVector,
}

impl Headroom {
    pub(crate) fn new(free: ResourceVector) -> Self {
        Self { free, soon: free }
    }

    /// Promises use room that is being released before room that is free, which later steps can use at once.
    pub(crate) fn at(self, horizon: Horizon) -> ResourceVector {
        match horizon {
            Horizon::Now => self.free.min(self.soon),
            Horizon::Soon => self.soon,
        }
    }

    /// With more room; with less if `amount` is negative. Steps on it can be taken back in any order.
    pub(crate) fn plus(self, amount: ResourceVector, horizon: Horizon) -> Self {
        let free = match horizon {
            Horizon::Now => self.free + amount,
            Horizon::Soon => self.free,
        };
        Self { free, soon: self.soon + amount }
    }
}

/// What a search is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Search {
    pub demand: ResourceVector,
    pub horizon: Horizon,
    /// CPU and memory that a node's idle GPUs need do not count.
    pub is_open: bool,
}

/// Nodes by what they have free.
#[derive(Clone, Debug)]
pub(crate) struct FreeIndex {
    headrooms: Vec<Headroom>,
    /// CPU and memory that this number of idle GPUs of a node needs, by the number; at least for 0.
    gpu_needs: Vec<ResourceVector>,
    /// By search: all nodes before this one lack room.
    starts: BTreeMap<Search, usize>,
}

impl FreeIndex {
    pub(crate) fn new(headrooms: Vec<Headroom>, gpu_needs: Vec<ResourceVector>) -> Self {
        Self { headrooms, gpu_needs, starts: BTreeMap::new() }
    }

    pub(crate) fn headroom(&self, node: usize) -> Headroom {
        self.headrooms[node]
    }

    pub(crate) fn set(&mut self, node: usize, headroom: Headroom) {
        let before = std::mem::replace(&mut self.headrooms[node], headroom);
        let is_less = headroom.free.fits_in(before.free) && headroom.soon.fits_in(before.soon);
        // With fewer idle GPUs, less CPU and memory is kept for them.
        if is_less && headroom.soon.gpus == before.soon.gpus {
            return;
        }
        for (search, start) in &mut self.starts {
            if node < *start && has_room(headroom, *search, &self.gpu_needs) {
                *start = node;
            }
        }
    }

    /// The first node with room.
    pub(crate) fn first(&mut self, search: Search) -> Option<usize> {
        let start = self.starts.entry(search).or_default();
        let has_room = |node: &usize| has_room(self.headrooms[*node], search, &self.gpu_needs);
        let found = (*start..self.headrooms.len()).find(has_room);
        *start = found.unwrap_or(self.headrooms.len());
        found
    }
}

fn has_room(headroom: Headroom, search: Search, gpu_needs: &[ResourceVector]) -> bool {
    let free = headroom.at(search.horizon);
    let fits = search.demand.fits_in(free);
    // Most nodes are full.
    if !fits || !search.is_open {
        return fits;
    }
    let gpus = usize::try_from(free.gpus).unwrap_or(0).min(gpu_needs.len() - 1);
    search.demand.fits_in(free - gpu_needs[gpus])
}
