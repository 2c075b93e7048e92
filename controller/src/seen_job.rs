//! What a job's status means to the planner.

use std::collections::BTreeMap;

use heddle_controller_core::{ContainerCounts, NodeContainers};
use heddle_protocol::ids::Role;
use heddle_protocol::view::{ElasticView, JobState, JobView, SetBy, SlotState};

/// A job as its ApplicationMaster reported it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenJob {
    /// What has set its numbers.
    pub set_by: SetBy,
    /// The highest generation that has given it an order.
    pub generation: u64,
    /// The numbers that are wanted.
    pub wanted: ContainerCounts,
    /// Trainers that it has work for.
    pub useful: u32,
    /// Containers that stay.
    pub held: Vec<NodeContainers>,
    /// Containers that are being released.
    pub draining: Vec<NodeContainers>,
    /// It asks YARN for containers.
    pub asks: bool,
    /// The cluster has announced to preempt containers.
    pub is_preempted: bool,
    /// It is about to end.
    pub ends: bool,
}

impl SeenJob {
    /// Reads the status of a job that takes part. `node_of`: the name of the node with this web address.
    #[must_use]
    pub fn from_view(view: &JobView, node_of: impl Fn(&str) -> String) -> Option<Self> {
        let ElasticView { set_by, generation, trainers, useful, pservers, is_preempted, .. } =
            view.elastic?;
        let departing = view.pservers.as_ref().map(|pservers| &pservers.departing);
        let leaves = |slot| departing.is_some_and(|departing| departing.contains_key(slot));
        let (mut held, mut draining) = (BTreeMap::new(), BTreeMap::new());
        let mut asks = false;
        for slot in &view.slots {
            let list = match slot.state {
                SlotState::Empty => continue,
                SlotState::Asked => {
                    asks = true;
                    continue;
                }
                SlotState::Draining => &mut draining,
                SlotState::Starting | SlotState::Running | SlotState::Suspect => {
                    if leaves(&slot.slot) { &mut draining } else { &mut held }
                }
            };
            let node = slot.placement.as_ref().map_or("", |placement| &placement.node_http);
            let counts: &mut ContainerCounts = list.entry(node_of(node)).or_default();
            match slot.slot.role {
                Role::Trainer => counts.trainers += 1,
                Role::Pserver => counts.pservers += 1,
            }
        }
        let list = |nodes: BTreeMap<String, ContainerCounts>| {
            nodes.into_iter().map(|(node, counts)| NodeContainers { node, counts }).collect()
        };
        let ends = matches!(
            view.state,
            JobState::Finishing | JobState::Finished | JobState::Failed | JobState::Stopped
        );
        Some(Self {
            set_by,
            generation,
            wanted: ContainerCounts::new(trainers, pservers),
            useful,
            held: list(held),
            draining: list(draining),
            asks,
            is_preempted,
            ends,
        })
    }
}
