//! The index of nodes by what they have free: the first node with room for a container, in logarithmic time.
//!
//! A tree over the nodes in their order, each inner node with the largest amount of each resource below it (a segment tree). The
//! search descends where the amounts suffice. It may descend in vain where different nodes have the CPU and the memory, so it is
//! logarithmic in practice only. First fit was chosen over best fit: it fills nodes in order and so leaves whole nodes for
//! large containers, and one index serves all resources.

use std::ops::Range;

use crate::resources::ResourceVector;

/// What room counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Horizon {
    /// Only what is free.
    Now,
    /// Also what is being released.
    Soon,
}

/// Room of a node, of a queue, or below the limit of the load. `now` is at most `soon`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Headroom {
    /// Free.
    pub now: ResourceVector,
    /// Free after all releases, without what is promised of it.
    pub soon: ResourceVector,
}

impl Headroom {
    pub(crate) const CLOSED: Self =
        Self { now: ResourceVector::CLOSED, soon: ResourceVector::CLOSED };

    pub(crate) fn new(free: ResourceVector) -> Self {
        Self { now: free, soon: free }
    }

    pub(crate) fn at(self, horizon: Horizon) -> ResourceVector {
        match horizon {
            Horizon::Now => self.now,
            Horizon::Soon => self.soon,
        }
    }

    /// A container is placed. Room that is being released is used before room that is free, which later steps can use at once.
    pub(crate) fn take(&mut self, demand: ResourceVector, horizon: Horizon) {
        self.soon -= demand;
        match horizon {
            Horizon::Now => self.now -= demand,
            Horizon::Soon => self.now = self.now.min(self.soon),
        }
    }

    /// A container is going to be released.
    pub(crate) fn release(&mut self, demand: ResourceVector) {
        self.soon += demand;
    }
}

/// Amounts that a search compares: [now, soon, open now, open soon], *open* without what idle GPUs need.
type Amounts = [ResourceVector; 4];

fn amount(horizon: Horizon, is_open: bool) -> usize {
    usize::from(horizon == Horizon::Soon) + 2 * usize::from(is_open)
}

/// A search for a node.
#[derive(Clone, Copy)]
struct Search {
    demand: ResourceVector,
    /// Index in [`Amounts`].
    amount: usize,
    from: usize,
}

/// Nodes by what they have free.
#[derive(Clone, Debug)]
pub(crate) struct FreeIndex {
    headrooms: Vec<Headroom>,
    /// `[2 × leaves]`: the root at 1, the children of i at 2i and 2i + 1, nodes from `leaves` on.
    peaks: Vec<Amounts>,
    leaves: usize,
    /// CPU and memory that this number of idle GPUs of a node needs, by the number.
    gpu_needs: Vec<ResourceVector>,
}

impl FreeIndex {
    pub(crate) fn new(headrooms: Vec<Headroom>, gpu_needs: Vec<ResourceVector>) -> Self {
        let leaves = headrooms.len().next_power_of_two();
        let peaks = vec![[ResourceVector::CLOSED; 4]; 2 * leaves];
        let mut index = Self { headrooms, peaks, leaves, gpu_needs };
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

    /// Whether a node has room, as in [`FreeIndex::first`].
    pub(crate) fn fits(
        &self,
        node: usize,
        demand: ResourceVector,
        horizon: Horizon,
        is_open: bool,
    ) -> bool {
        demand.fits_in(self.peaks[self.leaves + node][amount(horizon, is_open)])
    }

    pub(crate) fn set(&mut self, node: usize, headroom: Headroom) {
        self.headrooms[node] = headroom;
        let mut at = self.leaves + node;
        self.peaks[at] = self.amounts(headroom);
        while at > 1 {
            at /= 2;
            let peak = self.larger(at);
            if peak == self.peaks[at] {
                break;
            }
            self.peaks[at] = peak;
        }
    }

    /// The first node with room, from a node on. `is_open`: CPU and memory that the node's idle GPUs need do not count.
    pub(crate) fn first(
        &self,
        demand: ResourceVector,
        horizon: Horizon,
        is_open: bool,
        from: usize,
    ) -> Option<usize> {
        let search = Search { demand, amount: amount(horizon, is_open), from };
        self.first_below(1, 0..self.leaves, search)
    }

    fn first_below(&self, at: usize, nodes: Range<usize>, search: Search) -> Option<usize> {
        let peak = self.peaks[at][search.amount];
        if nodes.end <= search.from || !search.demand.fits_in(peak) {
            return None;
        }
        if at >= self.leaves {
            return Some(nodes.start).filter(|node| *node < self.headrooms.len());
        }
        let middle = nodes.start.midpoint(nodes.end);
        let left = self.first_below(2 * at, nodes.start..middle, search);
        left.or_else(|| self.first_below(2 * at + 1, middle..nodes.end, search))
    }

    fn larger(&self, at: usize) -> Amounts {
        let (left, right) = (&self.peaks[2 * at], &self.peaks[2 * at + 1]);
        std::array::from_fn(|amount| left[amount].max(right[amount]))
    }

    fn amounts(&self, Headroom { now, soon }: Headroom) -> Amounts {
        [now, soon, self.open(now), self.open(soon)]
    }

    fn open(&self, free: ResourceVector) -> ResourceVector {
        let most = self.gpu_needs.len().saturating_sub(1);
        let gpus = usize::try_from(free.gpus).unwrap_or(0).min(most);
        self.gpu_needs.get(gpus).map_or(free, |needs| free - *needs)
    }
}
