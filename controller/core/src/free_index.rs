//! The index of nodes by what they have free: the first node with room for a container, in logarithmic time.
//!
//! A tree over the nodes in their order, each inner node with the largest amount of each resource below it (a segment tree). The
//! search descends where the amounts suffice. It may descend in vain where different nodes have the CPU and the memory, so it is
//! logarithmic in practice only. First fit was chosen over best fit: it fills nodes in order and so leaves whole nodes for
//! large containers, and one index serves all resources.

use std::collections::BTreeMap;

use crate::resources::ResourceVector;

/// What room counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    pub(crate) const CLOSED: Self =
        Self { free: ResourceVector::CLOSED, soon: ResourceVector::CLOSED };

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

/// Amounts that a search compares: [now, soon, open now, open soon], *open* without what idle GPUs need.
type Amounts = [ResourceVector; 4];

/// Nodes by what they have free.
#[derive(Clone, Debug)]
pub(crate) struct FreeIndex {
    headrooms: Vec<Headroom>,
    /// `[2 × leaves]`: the root at 1, the children of i at 2i and 2i + 1, nodes from `leaves` on.
    peaks: Vec<Amounts>,
    leaves: usize,
    /// CPU and memory that this number of idle GPUs of a node needs, by the number.
    gpu_needs: Vec<ResourceVector>,
    /// By demand and index in [`Amounts`]: all nodes before this one lack room. Searches go on there.
    starts: BTreeMap<(ResourceVector, usize), usize>,
}

impl FreeIndex {
    pub(crate) fn new(headrooms: Vec<Headroom>, gpu_needs: Vec<ResourceVector>) -> Self {
        let leaves = headrooms.len().next_power_of_two();
        let peaks = vec![[ResourceVector::CLOSED; 4]; 2 * leaves];
        let mut index = Self { headrooms, peaks, leaves, gpu_needs, starts: BTreeMap::new() };
        for node in 0..index.headrooms.len() {
            index.peaks[leaves + node] = index.amounts(index.headrooms[node]);
        }
        for at in (1..leaves).rev() {
            index.peaks[at] = index.larger(at);
        }
        index
    }

    pub(crate) fn headroom(&self, node: usize) -> Headroom {
        self.headrooms[node]
    }

    pub(crate) fn set(&mut self, node: usize, headroom: Headroom) {
        self.headrooms[node] = headroom;
        let mut at = self.leaves + node;
        let (before, after) = (self.peaks[at], self.amounts(headroom));
        if before.iter().zip(after).any(|(before, after)| after.max(*before) != *before) {
            self.starts.values_mut().for_each(|start| *start = node.min(*start));
        }
        self.peaks[at] = after;
        while at > 1 {
            at /= 2;
            let peak = self.larger(at);
            if peak == self.peaks[at] {
                break;
            }
            self.peaks[at] = peak;
        }
    }

    /// The first node with room. `is_open`: CPU and memory that the node's idle GPUs need do not count.
    pub(crate) fn first(
        &mut self,
        demand: ResourceVector,
        horizon: Horizon,
        is_open: bool,
    ) -> Option<usize> {
        let amount = usize::from(horizon == Horizon::Soon) + 2 * usize::from(is_open);
        let start = self.starts.get(&(demand, amount)).copied().unwrap_or(0);
        let found = self.first_from(start, demand, amount);
        self.starts.insert((demand, amount), found.unwrap_or(self.headrooms.len()));
        found
    }

    fn first_from(&self, start: usize, demand: ResourceVector, amount: usize) -> Option<usize> {
        if start >= self.headrooms.len() {
            return None;
        }
        let mut at = self.leaves + start;
        loop {
            let found = self.first_below(at, demand, amount);
            if found.is_some() {
                return found.filter(|node| *node < self.headrooms.len());
            }
            // The next subtree to the right: the sibling of the lowest left child on the way up.
            while at % 2 == 1 {
                at /= 2;
            }
            if at == 0 {
                return None;
            }
            at += 1;
        }
    }

    fn first_below(&self, at: usize, demand: ResourceVector, amount: usize) -> Option<usize> {
        if !demand.fits_in(self.peaks[at][amount]) {
            return None;
        }
        if at >= self.leaves {
            return Some(at - self.leaves);
        }
        let left = self.first_below(2 * at, demand, amount);
        left.or_else(|| self.first_below(2 * at + 1, demand, amount))
    }

    fn larger(&self, at: usize) -> Amounts {
        let (left, right) = (&self.peaks[2 * at], &self.peaks[2 * at + 1]);
        std::array::from_fn(|amount| left[amount].max(right[amount]))
    }

    fn amounts(&self, headroom: Headroom) -> Amounts {
        let (now, soon) = (headroom.at(Horizon::Now), headroom.at(Horizon::Soon));
        [now, soon, self.open(now), self.open(soon)]
    }

    fn open(&self, free: ResourceVector) -> ResourceVector {
        let most = self.gpu_needs.len().saturating_sub(1);
        let gpus = usize::try_from(free.gpus).unwrap_or(0).min(most);
        self.gpu_needs.get(gpus).map_or(free, |needs| free - *needs)
    }
}
