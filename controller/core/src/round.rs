//! The working copy of one round: jobs, and the room that they share. The rules change it in their order.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::cluster::{ClusterState, NodeCapacity, QueueCapacity};
use crate::decision::{ScalingReason, WaitingReason};
use crate::free_index::{FreeIndex, Headroom, Horizon};
use crate::job::{ElasticJob, NodeContainers};
use crate::resources::ResourceVector;
use crate::room::{ClusterRoom, ContainerGroup, Need};
use crate::score::{Rank, Score};
use crate::sizes::ContainerCounts;

const TRAINER: ContainerCounts = ContainerCounts::new(1, 0);
const PSERVER: ContainerCounts = ContainerCounts::new(0, 1);

/// Where containers of a job are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ContainerPlace {
    /// YARN has not granted them: the plan expects that it places them here.
    pub is_expected: bool,
    /// Index in [`Round::nodes`].
    pub node: usize,
}

/// Containers of a job.
pub(crate) type PlacedContainers = BTreeMap<ContainerPlace, ContainerCounts>;

/// A job, as changed so far.
#[derive(Clone, Debug)]
pub(crate) struct RoundJob<'a> {
    pub spec: &'a ElasticJob,
    /// Index in [`ClusterRoom::queues`].
    pub queue: usize,
    /// Its ApplicationMaster runs and it holds its minimum.
    pub has_minimum: bool,
    pub size: ContainerCounts,
    /// What it holds at the beginning of the round and keeps if its size does not change.
    pub before: PlacedContainers,
    /// What stays, and what it asks for as far as that fits.
    pub containers: PlacedContainers,
    /// [`ElasticJob::release_order`] of trainers and of pservers, as indexes in [`Round::nodes`].
    release_order: [Vec<usize>; 2],
    pub reason: Option<ScalingReason>,
    pub waiting: Option<WaitingReason>,
}

impl RoundJob<'_> {
    /// What the job asks for and does not fit.
    pub(crate) fn unplaced(&self) -> ContainerCounts {
        self.size.minus(self.placed())
    }

    fn placed(&self) -> ContainerCounts {
        self.containers.values().copied().sum()
    }

    /// All containers that stay.
    pub(crate) fn held(&self) -> ContainerCounts {
        let held = self.containers.iter().filter(|(place, _)| !place.is_expected);
        held.map(|(_, counts)| *counts).sum()
    }

    /// Where the container of this role is that the job releases next, if it has an order.
    fn next_released(&self, one: ContainerCounts) -> Option<ContainerPlace> {
        let (order, held) = match one {
            TRAINER => (&self.release_order[0], self.held().trainers),
            _ => (&self.release_order[1], self.held().pservers),
        };
        let node = *order.get(order.len().checked_sub(held as usize)?)?;
        Some(ContainerPlace { is_expected: false, node })
    }

    pub(crate) fn has_shrunk(&self) -> bool {
        self.size < self.spec.wanted
    }

    pub(crate) fn score(&self) -> Score {
        self.spec.score(self.size)
    }

    /// Whether rules may take a size of it for others.
    pub(crate) fn can_give(&self) -> bool {
        let is_above_min = self.spec.size_below(self.size).is_some();
        let has_grown = self.size > self.spec.wanted;
        is_above_min && self.spec.fixed.is_none() && self.has_minimum && !has_grown
    }
}

/// A container that other jobs wait for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'r> {
    pub demand: ResourceVector,
    /// By node: what it may have free in the end.
    pub reach: &'r [ResourceVector],
}

/// A job becomes smaller.
#[derive(Debug)]
pub(crate) struct SizeStep {
    pub job: usize,
    /// By how much.
    pub counts: ContainerCounts,
    /// What this frees; fewer than `counts` if it withdraws requests without room.
    released: Vec<(ContainerPlace, ContainerCounts)>,
}

impl SizeStep {
    /// Whether the job held all that it gives.
    pub(crate) fn is_held(&self) -> bool {
        let held = self.released.iter().filter(|(place, _)| !place.is_expected);
        self.counts == held.map(|(_, one)| *one).sum()
    }
}

/// Nodes by name: each container of each job is looked up in a round.
#[expect(clippy::disallowed_types, reason = "looked up in, its order is not used")]
type NodesByName<'n> = std::collections::HashMap<&'n str, usize>;

/// The state of a round.
#[derive(Debug)]
pub(crate) struct Round<'a> {
    pub cluster: &'a ClusterState,
    pub now_ms: u64,
    /// Sorted by id.
    pub jobs: Vec<RoundJob<'a>>,
    pub room: ClusterRoom,
    /// Nodes that wait for the minimum of a job, with its class.
    pub kept: Vec<(u32, usize)>,
    /// By index: nodes without GPUs first, so that first fit keeps GPUs free, then by name.
    pub nodes: Vec<&'a NodeCapacity>,
}

impl<'a> Round<'a> {
    pub(crate) fn new(cluster: &'a ClusterState, jobs: &'a [ElasticJob], now_ms: u64) -> Self {
        let mut nodes: Vec<_> = cluster.nodes.iter().collect();
        nodes.sort_by(|a, b| (a.total.gpus, &a.name).cmp(&(b.total.gpus, &b.name)));
        let node_of: NodesByName = nodes.iter().map(|node| node.name.as_str()).zip(0..).collect();
        let mut specs: Vec<&ElasticJob> = jobs.iter().collect();
        specs.sort_by(|a, b| a.id.cmp(&b.id));
        let add = |room, node: &&NodeCapacity| room + node.free - node.total;
        let free = nodes.iter().map(|node| Headroom::new(node.free)).collect();
        let queues = cluster.queues.iter().map(QueueCapacity::free);
        let queues = queues.chain([ResourceVector::UNLIMITED]);
        let room = ClusterRoom {
            index: FreeIndex::new(free, gpu_needs(&nodes, &specs)),
            queues: queues.map(Headroom::new).collect(),
            limit: Headroom::new(nodes.iter().fold(cluster.usable(), add)),
        };
        let kept = Vec::new();
        let mut round = Self { cluster, now_ms, jobs: Vec::new(), room, kept, nodes };
        for spec in specs {
            let queue = cluster.queues.iter().position(|queue| queue.name == spec.queue);
            round.add(spec, &node_of, queue.unwrap_or(cluster.queues.len()));
        }
        round
    }

    /// Containers on nodes that the cluster does not list are lost: they do not count, and their room is not offered.
    fn add(&mut self, spec: &'a ElasticJob, nodes: &NodesByName, queue: usize) {
        let listed = |containers: &'a [NodeContainers]| {
            let node = |on: &NodeContainers| Some((*nodes.get(on.node.as_str())?, on.counts));
            containers.iter().filter_map(node)
        };
        for (node, counts) in listed(&spec.draining) {
            self.room.change(node, queue, spec.demand(counts), Horizon::Soon);
        }
        let mut containers = BTreeMap::new();
        for (node, counts) in listed(&spec.held) {
            add(&mut containers, ContainerPlace { is_expected: false, node }, counts);
        }
        let job = self.jobs.len();
        self.jobs.push(RoundJob {
            spec,
            queue,
            has_minimum: spec.master.is_none()
                && spec.min().is_within(containers.values().copied().sum()),
            size: spec.wanted,
            before: BTreeMap::new(),
            containers,
            release_order: [&spec.release_order.trainers, &spec.release_order.pservers].map(
                |order| order.iter().filter_map(|on| nodes.get(on.as_str()).copied()).collect(),
            ),
            reason: None,
            waiting: spec.fixed.map(|by| WaitingReason::Fixed { by }),
        });
        // More than is wanted: the job has accepted a smaller size and is about to release the rest.
        self.shrink_to(job, spec.wanted, None);
        self.jobs[job].before = self.jobs[job].containers.clone();
    }

    pub(crate) fn rank(&self, job: usize) -> Rank {
        let RoundJob { spec, .. } = self.jobs[job];
        Rank {
            class: Reverse(spec.class),
            score: self.jobs[job].score(),
            demand: spec.trainer,
            submitted_ms: spec.submitted_ms,
            job,
        }
    }

    /// The ranks of the jobs that this is true of.
    pub(crate) fn ranks(&self, is_in: impl Fn(&RoundJob<'a>) -> bool) -> BTreeSet<Rank> {
        let jobs = (0..self.jobs.len()).filter(|job| is_in(&self.jobs[*job]));
        jobs.map(|job| self.rank(job)).collect()
    }

    /// Containers to place for a job, with its ApplicationMaster if that has none.
    pub(crate) fn need(&self, job: usize, counts: ContainerCounts, is_growth: bool) -> Need {
        let RoundJob { spec, queue, .. } = self.jobs[job];
        let group = |one, count| ContainerGroup { one, demand: spec.demand(one), count };
        let mut groups = vec![group(TRAINER, counts.trainers), group(PSERVER, counts.pservers)];
        groups.sort_by_key(|group| Reverse(group.demand));
        let one = ContainerCounts::default();
        groups.extend(spec.master.map(|demand| ContainerGroup { one, demand, count: 1 }));
        Need { groups, queue, is_growth }
    }

    /// The next size of a job, if it has one, and what it needs.
    pub(crate) fn next_step(
        &self,
        job: usize,
        size: ContainerCounts,
    ) -> Option<(ContainerCounts, Need)> {
        let next = self.jobs[job].spec.size_above(size)?;
        // A job may have started with more pservers than its sizes have.
        let next = ContainerCounts { pservers: next.pservers.max(size.pservers), ..next };
        Some((next, self.need(job, next.minus(size), true)))
    }

    /// The need has been placed on `nodes` for a job.
    pub(crate) fn expect(&mut self, job: usize, need: &Need, nodes: &[usize]) {
        for (group, node) in need.containers().zip(nodes) {
            let place = ContainerPlace { is_expected: true, node: *node };
            add(&mut self.jobs[job].containers, place, group.one);
        }
    }

    /// Takes the next smaller size from a job.
    pub(crate) fn shrink(&mut self, job: usize, wanted: Option<Wanted>) -> SizeStep {
        let RoundJob { spec, size, .. } = self.jobs[job];
        let to = spec.size_below(size).expect("callers shrink jobs above their minimum");
        self.shrink_to(job, to, wanted)
    }

    /// Requests are withdrawn first, then what YARN has not granted, then containers are released.
    pub(crate) fn shrink_to(
        &mut self,
        job: usize,
        to: ContainerCounts,
        wanted: Option<Wanted>,
    ) -> SizeStep {
        let counts = self.jobs[job].size.minus(to);
        self.jobs[job].size = to;
        let surplus = self.jobs[job].placed().minus(to);
        let mut released = Vec::new();
        for (one, count) in [(TRAINER, surplus.trainers), (PSERVER, surplus.pservers)] {
            for _ in 0..count {
                let place = self.place_to_release(job, one, wanted);
                self.release(job, place, one);
                released.push((place, one));
            }
        }
        SizeStep { job, counts, released }
    }

    /// Takes a step again that has been spared.
    pub(crate) fn take(&mut self, step: &SizeStep) {
        self.jobs[step.job].size = self.jobs[step.job].size.minus(step.counts);
        step.released.iter().for_each(|(place, one)| self.release(step.job, *place, *one));
    }

    /// Takes a step back: of the last steps, or with as much released as these.
    pub(crate) fn spare(&mut self, step: &SizeStep) {
        let job = &mut self.jobs[step.job];
        job.size = job.size + step.counts;
        for (place, one) in &step.released {
            add(&mut job.containers, *place, *one);
            let amount = ResourceVector::default() - job.spec.demand(*one);
            self.room.change(place.node, job.queue, amount, Horizon::Soon);
        }
    }

    fn release(&mut self, job: usize, place: ContainerPlace, one: ContainerCounts) {
        let job = &mut self.jobs[job];
        let on = job.containers.get_mut(&place).expect("a job releases what it has");
        *on = on.minus(one);
        if on.is_empty() {
            job.containers.remove(&place);
        }
        self.room.change(place.node, job.queue, job.spec.demand(one), Horizon::Soon);
    }

    /// What YARN has not granted, else what the job's order has next. Without an order the container that serves the wanted one
    /// best: another fits on its node, or the largest part of it. Then the node where the job has the fewest, so that it has
    /// containers on fewer nodes, then the last node, which has GPUs.
    fn place_to_release(
        &self,
        job: usize,
        one: ContainerCounts,
        wanted: Option<Wanted>,
    ) -> ContainerPlace {
        let RoundJob { spec, containers, .. } = &self.jobs[job];
        let next = self.jobs[job].next_released(one);
        let gain = |node: usize| {
            let Some(Wanted { demand, reach }) = wanted else { return (false, 0) };
            if !demand.fits_in(reach[node]) {
                return (false, -1);
            }
            let before = self.room.node(node).ratio(demand);
            let after = (self.room.node(node) + spec.demand(one)).ratio(demand);
            (after / 1024 > before / 1024, after % 1024)
        };
        let places = containers.iter().filter(|(_, counts)| one.is_within(**counts));
        let best = places.max_by_key(|(place, counts)| {
            let fewest = Reverse(counts.trainers + counts.pservers);
            (place.is_expected, next == Some(**place), gain(place.node), fewest, place.node)
        });
        *best.expect("callers release what the job has").0
    }
}

fn add(containers: &mut PlacedContainers, place: ContainerPlace, counts: ContainerCounts) {
    let on = containers.entry(place).or_default();
    *on = *on + counts;
}

/// CPU and memory that idle GPUs of a node need, by their number: most that jobs which could use them take with that many.
fn gpu_needs(nodes: &[&NodeCapacity], jobs: &[&ElasticJob]) -> Vec<ResourceVector> {
    let most = nodes.iter().map(|node| node.total.gpus).max().unwrap_or(0).clamp(0, 64);
    let users = jobs.iter().map(|job| (job.trainer, job.size_above(job.wanted)));
    let users = users.filter(|(trainer, above)| trainer.gpus > 0 && above.is_some());
    let need = |gpus: i64| {
        let beside = users.clone().map(|(trainer, _)| {
            let count = u32::try_from(gpus / trainer.gpus).unwrap_or(0);
            ResourceVector { gpus: 0, ..trainer.times(count) }
        });
        beside.fold(ResourceVector::default(), ResourceVector::max)
    };
    (0..=most).map(need).collect()
}
