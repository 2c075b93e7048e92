//! What a job's status means to the planner.

use std::collections::BTreeMap;

use heddle_controller_core::{ContainerCounts, NodeContainers, ReleaseOrder};
use heddle_protocol::ids::Role;
use heddle_protocol::view::{ElasticView, JobState, JobView, SetBy, SlotState};

/// A job as its ApplicationMaster reported it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenJob {
    /// What has set its numbers.
    pub set_by: SetBy,
    /// The highest generation that has given it an order.
    pub generation: u64,
    /// The numbers that are wanted, without trainers that lack work at present.
    pub wanted: ContainerCounts,
    /// Trainers that it has work for.
    pub useful: u32,
    /// Containers that stay, as many as are wanted at the most: spares and extra trainers are beside its size.
    pub held: Vec<NodeContainers>,
    /// Containers that are being released.
    pub draining: Vec<NodeContainers>,
    /// Which of `held` it releases first: the slots with the highest numbers.
    pub release_order: ReleaseOrder,
    /// It asks YARN for containers that it lacks.
    pub asks: bool,
    /// Spares and extra trainers that it asks for.
    pub spares_asked: ContainerCounts,
    /// The cluster has announced to preempt containers.
    pub is_preempted: bool,
    /// It is about to end.
    pub ends: bool,
}

impl SeenJob {
    /// Reads the status of a job that takes part. `node_of`: the name of the node with this web address.
    #[must_use]
    pub fn from_view(view: &JobView, node_of: impl Fn(&str) -> String) -> Option<Self> {
        let ElasticView { set_by, generation, trainers, released, useful, .. } = view.elastic?;
        let ElasticView { pservers, is_preempted, .. } = view.elastic?;
        let departing = view.pservers.as_ref().map(|pservers| &pservers.departing);
        let leaves = |slot| departing.is_some_and(|departing| departing.contains_key(slot));
        let wanted = ContainerCounts::new(trainers.saturating_sub(released), pservers);
        let (mut held, mut draining) = (BTreeMap::new(), BTreeMap::new());
        let mut release_order = ReleaseOrder::default();
        let (mut stay, mut asked) = (ContainerCounts::default(), ContainerCounts::default());
        for slot in &view.slots {
            let one = match slot.slot.role {
                Role::Trainer => ContainerCounts::new(1, 0),
                Role::Pserver => ContainerCounts::new(0, 1),
            };
            let node = || {
                let placement = slot.placement.as_ref();
                node_of(placement.map_or("", |placement| &placement.node_http))
            };
            match slot.state {
                SlotState::Empty => {}
                SlotState::Asked => asked = asked + one,
                SlotState::Draining => add(&mut draining, node(), one),
                _ if leaves(&slot.slot) => add(&mut draining, node(), one),
                SlotState::Starting | SlotState::Running | SlotState::Suspect => {
                    if slot.spare || !(stay + one).is_within(wanted) {
                        continue;
                    }
                    stay = stay + one;
                    add(&mut held, node(), one);
                    match slot.slot.role {
                        Role::Trainer => release_order.trainers.push(node()),
                        Role::Pserver => release_order.pservers.push(node()),
                    }
                }
            }
        }
        // They are listed with ascending numbers.
        release_order.trainers.reverse();
        release_order.pservers.reverse();
        let lacks = wanted.minus(stay);
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
            wanted,
            useful,
            held: list(held),
            draining: list(draining),
            release_order,
            asks: !lacks.minus(lacks.minus(asked)).is_empty(),
            spares_asked: asked.minus(lacks),
            is_preempted,
            ends,
        })
    }
}

fn add(nodes: &mut BTreeMap<String, ContainerCounts>, node: String, one: ContainerCounts) {
    let on = nodes.entry(node).or_default();
    *on = *on + one;
}

#[cfg(test)]
mod tests {
    use heddle_protocol::ids::{Incarnation, Slot};
    use heddle_protocol::view::{Placement, SlotView};

    use super::*;

    #[test]
    fn spares_and_released_trainers_are_beside_a_jobs_size() {
        let slot = |slot, state, node: &str| {
            let node_http = node.to_owned();
            let placement = Some(Placement { node_http, ..Placement::default() });
            SlotView { placement, ..SlotView::empty(slot, Incarnation(1), state) }
        };
        let trainer = |index, state, node| slot(Slot::trainer(index), state, node);
        let running = SlotState::Running;
        let spare = SlotView { spare: true, ..trainer(1, running, "n1") };
        let elastic =
            ElasticView { trainers: 4, released: 1, pservers: 1, ..ElasticView::default() };
        let view = JobView {
            elastic: Some(elastic),
            slots: vec![
                slot(Slot::pserver(0), running, "n2"),
                trainer(0, running, "n1"),
                spare,
                trainer(2, running, "n2"),
                trainer(3, SlotState::Empty, ""),
                trainer(4, SlotState::Asked, ""),
                trainer(5, SlotState::Asked, ""),
            ],
            ..JobView::default()
        };
        let seen = |view: &JobView| SeenJob::from_view(view, str::to_owned).expect("it takes part");
        let job = seen(&view);
        assert_eq!(job.wanted, ContainerCounts::new(3, 1));
        let held: ContainerCounts = job.held.iter().map(|on| on.counts).sum();
        assert_eq!(held, ContainerCounts::new(2, 1));
        assert_eq!(job.release_order.trainers, ["n2", "n1"]);
        assert!(job.asks);
        assert_eq!(
            job.spares_asked,
            ContainerCounts::new(1, 0),
            "it lacks one trainer, and asks for two"
        );
        let full = ElasticView { trainers: 3, ..elastic };
        let job = seen(&JobView { elastic: Some(full), ..view });
        assert_eq!((job.asks, job.spares_asked), (false, ContainerCounts::new(2, 0)));
    }
}
