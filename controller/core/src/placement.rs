//! Containers of a job that are placed together.

use crate::free_index::Horizon;
use crate::resources::ResourceVector;
use crate::room::{Candidates, Claim, ClusterRoom, Misfit, Shortage};
use crate::sizes::ContainerCounts;

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
    /// The first node that may have room.
    pub from: usize,
}

/// What is placed together.
#[derive(Clone, Debug)]
pub(crate) struct Need {
    /// Largest first, which packs better.
    pub groups: Vec<ContainerGroup>,
    pub queue: Option<usize>,
    /// As in [`Claim::is_growth`].
    pub is_growth: bool,
}

impl Need {
    /// How many there are.
    pub(crate) fn containers(&self) -> u32 {
        self.groups.iter().map(|group| group.count).sum()
    }
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

/// Places all containers; the room is unchanged if they do not fit. Returns where, sorted by node.
pub(crate) fn place(
    room: &mut ClusterRoom,
    need: &Need,
    horizon: Horizon,
) -> Result<Vec<NodeShare>, Misfit> {
    let mark = room.mark();
    let mut placement = PartialPlacement::new(need, horizon);
    match placement.advance(room, &[]) {
        Ok(()) => Ok(placement.shares),
        Err(misfit) => {
            room.roll_back(mark);
            Err(misfit)
        }
    }
}

/// The need as far as it is placed. What is placed stays while other jobs release room for the rest.
#[derive(Clone, Debug)]
pub(crate) struct PartialPlacement<'n> {
    need: &'n Need,
    horizon: Horizon,
    group: usize,
    /// Of the group.
    count: u32,
    /// All nodes were too full for the next container of the group.
    is_stuck: bool,
    shares: Vec<NodeShare>,
}

impl<'n> PartialPlacement<'n> {
    pub(crate) fn new(need: &'n Need, horizon: Horizon) -> Self {
        Self { need, horizon, group: 0, count: 0, is_stuck: false, shares: Vec::new() }
    }

    /// Places what is left, up to the first container that does not fit. `released`: the nodes with more room than before.
    pub(crate) fn advance(
        &mut self,
        room: &mut ClusterRoom,
        released: &[usize],
    ) -> Result<(), Misfit> {
        while let Some(group) = self.need.groups.get(self.group) {
            let mut from = group.from;
            while self.count < group.count {
                let Need { queue, is_growth, .. } = *self.need;
                let (demand, horizon) = (group.demand, self.horizon);
                let claim = Claim { demand, queue, is_growth, horizon };
                let among =
                    if self.is_stuck { Candidates::Only(released) } else { Candidates::From(from) };
                let node = room.place(claim, among).inspect_err(|misfit| {
                    self.is_stuck |= misfit.shortage == Shortage::Nodes;
                })?;
                from = node;
                self.count += 1;
                add_share(&mut self.shares, node, group.kind.one());
            }
            (self.group, self.count, self.is_stuck) = (self.group + 1, 0, false);
        }
        Ok(())
    }
}
