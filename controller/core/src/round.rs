//! The working copy of one round: jobs, and the room that they share. The rules change it in their order.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::cluster::ClusterState;
use crate::decision::{ScalingReason, WaitingReason};
use crate::free_index::{FreeIndex, Headroom, Horizon};
use crate::job::{ElasticJob, NodeContainers};
use crate::placement::{ContainerGroup, ContainerKind, Need, NodeShare, add_share};
use crate::resources::ResourceVector;
use crate::room::{Candidates, Claim, ClusterRoom, Misfit, Shortage};
use crate::score::{Rank, Score};
use crate::sizes::ContainerCounts;

/// A job, as changed so far.
#[derive(Clone, Debug)]
pub(crate) struct RoundJob<'a> {
    pub spec: &'a ElasticJob,
    /// Index of its queue, if that has a maximum.
    pub queue: Option<usize>,
    /// Its ApplicationMaster runs and it holds its minimum.
    pub has_minimum: bool,
    /// `held`, `expected` and `unplaced` together.
    pub size: ContainerCounts,
    /// Containers that stay, sorted by node.
    pub held: Vec<NodeShare>,
    /// Where the plan expects YARN to place what the job asks for, sorted by node.
    pub expected: Vec<NodeShare>,
    /// What the job asks for and does not fit.
    pub unplaced: ContainerCounts,
    /// Containers that this round releases, sorted by node.
    pub left: Vec<NodeShare>,
    /// Where this round grows the job, sorted by node.
    pub grown: Vec<NodeShare>,
    pub reason: Option<ScalingReason>,
    pub waiting: Option<WaitingReason>,
    /// R5 left it without room.
    pub misfit: Option<Misfit>,
}

impl RoundJob<'_> {
    pub(crate) fn has_grown(&self) -> bool {
        self.size > self.spec.wanted
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
        is_above_min && self.spec.fixed.is_none() && self.has_minimum && !self.has_grown()
    }

    fn demand(&self, kind: ContainerKind) -> ResourceVector {
        match kind {
            ContainerKind::Master => self.spec.master.unwrap_or_default(),
            ContainerKind::Pserver => self.spec.pserver,
            ContainerKind::Trainer => self.spec.trainer,
        }
    }
}

/// A container that a shrinking job no longer has on a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReleasedContainer {
    pub node: usize,
    pub kind: ContainerKind,
    /// YARN has not granted it yet.
    pub was_expected: bool,
}

/// Nodes that wait for the minimum of a job of this class.
#[derive(Clone, Debug)]
pub(crate) struct KeptNodes {
    pub class: u32,
    pub nodes: Vec<usize>,
}

/// The state of a round.
#[derive(Debug)]
pub(crate) struct Round<'a> {
    pub cluster: &'a ClusterState,
    pub now_ms: u64,
    /// Sorted by id.
    pub jobs: Vec<RoundJob<'a>>,
    pub room: ClusterRoom,
    pub kept: Vec<KeptNodes>,
    /// By index: nodes without GPUs first, so that first fit keeps GPUs free, then by name.
    pub nodes: Vec<&'a crate::cluster::NodeCapacity>,
}

impl<'a> Round<'a> {
    pub(crate) fn new(cluster: &'a ClusterState, jobs: &'a [ElasticJob], now_ms: u64) -> Self {
        let mut nodes: Vec<_> = cluster.nodes.iter().collect();
        nodes.sort_by(|a, b| (a.total.gpus, &a.name).cmp(&(b.total.gpus, &b.name)));
        let node_of: BTreeMap<&str, usize> =
            nodes.iter().enumerate().map(|(at, node)| (node.name.as_str(), at)).collect();
        let queue_of: BTreeMap<&str, usize> = cluster
            .queues
            .iter()
            .enumerate()
            .map(|(at, queue)| (queue.name.as_str(), at))
            .collect();
        let mut specs: Vec<&ElasticJob> = jobs.iter().collect();
        specs.sort_by(|a, b| a.id.cmp(&b.id));
        let headrooms = nodes.iter().map(|node| Headroom::new(node.free)).collect();
        let used = nodes.iter().map(|node| node.total - node.free);
        let used = used.fold(ResourceVector::default(), |sum, used| sum + used);
        let room = ClusterRoom::new(
            FreeIndex::new(headrooms, gpu_needs(&nodes, &specs)),
            cluster
                .queues
                .iter()
                .map(|queue| queue.most.map_or(ResourceVector::UNLIMITED, |most| most - queue.used))
                .map(Headroom::new)
                .collect(),
            Headroom::new(cluster.usable() - used),
        );
        let mut round = Self { cluster, now_ms, jobs: Vec::new(), room, kept: Vec::new(), nodes };
        for spec in specs {
            round.add(spec, &node_of, queue_of.get(spec.queue.as_str()).copied());
        }
        round
    }

    /// Containers on nodes that the cluster does not list are lost: they do not count, and their room is not offered.
    fn add(&mut self, spec: &'a ElasticJob, nodes: &BTreeMap<&str, usize>, queue: Option<usize>) {
        let shares = |containers: &[NodeContainers]| {
            let mut shares = Vec::with_capacity(containers.len());
            for NodeContainers { node, counts } in containers {
                if let Some(node) = nodes.get(node.as_str()) {
                    add_share(&mut shares, *node, *counts);
                }
            }
            shares
        };
        let held = shares(&spec.held);
        let count = sum(&held);
        let job = self.jobs.len();
        for share in shares(&spec.draining) {
            let demand = spec.trainer.times(share.counts.trainers)
                + spec.pserver.times(share.counts.pservers);
            self.room.release(share.node, queue, demand);
        }
        self.jobs.push(RoundJob {
            spec,
            queue,
            has_minimum: spec.master.is_none() && spec.min().is_within(count),
            size: spec.wanted + count.minus(spec.wanted),
            held,
            expected: Vec::new(),
            unplaced: spec.wanted.minus(count),
            left: Vec::new(),
            grown: Vec::new(),
            reason: None,
            waiting: spec.fixed.map(|by| WaitingReason::Fixed { by }),
            misfit: None,
        });
        // More than is wanted: the job has accepted a smaller size and is about to release the rest.
        self.shrink_to(job, spec.wanted, None);
        self.jobs[job].left.clear();
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
    pub(crate) fn ranks<C: FromIterator<Rank>>(&self, is_in: impl Fn(&RoundJob<'a>) -> bool) -> C {
        let jobs = (0..self.jobs.len()).filter(|job| is_in(&self.jobs[*job]));
        jobs.map(|job| self.rank(job)).collect()
    }

    /// Containers to place for a job.
    pub(crate) fn need(&self, job: usize, counts: ContainerCounts, is_growth: bool) -> Need {
        let RoundJob { queue, .. } = self.jobs[job];
        let group = |kind, count| ContainerGroup {
            kind,
            demand: self.jobs[job].demand(kind),
            count,
            from: 0,
        };
        let mut groups = vec![
            group(ContainerKind::Trainer, counts.trainers),
            group(ContainerKind::Pserver, counts.pservers),
        ];
        groups.sort_by_key(|group| Reverse(group.demand));
        Need { groups, queue, is_growth }
    }

    /// What the next size needs, if the job has one.
    pub(crate) fn next_step(&self, job: usize) -> Option<(ContainerCounts, Need)> {
        let RoundJob { spec, size, .. } = self.jobs[job];
        let next = spec.size_above(size)?;
        Some((next, self.need(job, next.minus(size), true)))
    }

    /// Places what the job asks for, as far as there is room.
    pub(crate) fn place_asked(&mut self, job: usize) {
        let Need { groups, queue, is_growth } = self.need(job, self.jobs[job].unplaced, false);
        for group in groups {
            for _ in 0..group.count {
                let claim = Claim { demand: group.demand, queue, is_growth, horizon: Horizon::Now };
                let soon = Claim { horizon: Horizon::Soon, ..claim };
                let now = self.room.place(claim, Candidates::From(0));
                let placed = now.or_else(|_| self.room.place(soon, Candidates::From(0)));
                let Ok(node) = placed else { break };
                let job = &mut self.jobs[job];
                job.unplaced = job.unplaced.minus(group.kind.one());
                add_share(&mut job.expected, node, group.kind.one());
            }
        }
    }

    /// Takes the next smaller size from a job.
    pub(crate) fn shrink(
        &mut self,
        job: usize,
        wanted: Option<ResourceVector>,
    ) -> Vec<ReleasedContainer> {
        let RoundJob { spec, size, .. } = self.jobs[job];
        let to = spec.size_below(size).expect("callers shrink jobs above their minimum");
        self.shrink_to(job, to, wanted)
    }

    /// Requests are withdrawn first, then what YARN has not granted, then containers are released.
    pub(crate) fn shrink_to(
        &mut self,
        job: usize,
        to: ContainerCounts,
        wanted: Option<ResourceVector>,
    ) -> Vec<ReleasedContainer> {
        let surplus = self.jobs[job].size.minus(to);
        // A smaller size may have more pservers where the ranges have changed.
        let further = to.minus(self.jobs[job].size);
        self.jobs[job].unplaced = self.jobs[job].unplaced + further;
        self.jobs[job].size = to;
        let mut released = Vec::new();
        for (kind, count) in
            [(ContainerKind::Trainer, surplus.trainers), (ContainerKind::Pserver, surplus.pservers)]
        {
            for _ in 0..count {
                released.extend(self.release_one(job, kind, wanted));
            }
        }
        released
    }

    fn release_one(
        &mut self,
        at: usize,
        kind: ContainerKind,
        wanted: Option<ResourceVector>,
    ) -> Option<ReleasedContainer> {
        let one = kind.one();
        let job = &mut self.jobs[at];
        if one.is_within(job.unplaced) {
            job.unplaced = job.unplaced.minus(one);
            return None;
        }
        let expected = job.expected.iter().rev().find(|share| one.is_within(share.counts));
        let released = match expected {
            Some(share) => ReleasedContainer { node: share.node, kind, was_expected: true },
            None => {
                let node = self.node_to_leave(at, kind, wanted)?;
                ReleasedContainer { node, kind, was_expected: false }
            }
        };
        self.release(at, released);
        Some(released)
    }

    /// The job no longer has a container. Its size is the caller's part.
    pub(crate) fn release(&mut self, at: usize, released: ReleasedContainer) {
        let ReleasedContainer { node, kind, was_expected } = released;
        let job = &mut self.jobs[at];
        let shares = if was_expected { &mut job.expected } else { &mut job.held };
        remove_share(shares, node, kind.one());
        if !was_expected {
            add_share(&mut job.left, node, kind.one());
        }
        self.release_room(at, released);
    }

    /// The room alone, on trial.
    pub(crate) fn release_room(&mut self, at: usize, released: ReleasedContainer) {
        let job = &self.jobs[at];
        self.room.release(released.node, job.queue, job.demand(released.kind));
    }

    /// Takes the room again, on trial. Whether it is not in use.
    pub(crate) fn take_again(&mut self, at: usize, released: ReleasedContainer) -> bool {
        let job = &self.jobs[at];
        self.room.take_again(released.node, job.queue, job.demand(released.kind))
    }

    /// The node whose container serves a wanted container best: one more fits there, or most of one. Then the
    /// node where the job has the fewest, so that it has containers on fewer nodes, then the last one, which has GPUs.
    fn node_to_leave(
        &self,
        job: usize,
        kind: ContainerKind,
        wanted: Option<ResourceVector>,
    ) -> Option<usize> {
        let RoundJob { held, .. } = &self.jobs[job];
        let demand = self.jobs[job].demand(kind);
        let gain = |share: &&NodeShare| {
            let Some(wanted) = wanted else { return (false, 0) };
            let before = self.room.node(share.node).soon.ratio(wanted);
            let after = (self.room.node(share.node).soon + demand).ratio(wanted);
            let is_useful = self.is_useful(job, share.node, wanted);
            let completes = is_useful && after / 1024 > before / 1024;
            (completes, if is_useful { after % 1024 } else { -1 })
        };
        let shares = held.iter().filter(|share| kind.one().is_within(share.counts));
        let best = shares.max_by_key(|share| {
            let count = share.counts.trainers + share.counts.pservers;
            (gain(share), Reverse(count), share.node)
        });
        best.map(|share| share.node)
    }

    /// Whether trainers of the job that leave the node can help a container to fit there. Only trainers with GPUs release GPUs.
    fn is_useful(&self, job: usize, node: usize, demand: ResourceVector) -> bool {
        let has_gpus = demand.gpus <= self.room.node(node).soon.gpus;
        demand.fits_in(self.nodes[node].total) && (has_gpus || self.jobs[job].spec.trainer.gpus > 0)
    }

    /// Whether a size less of the job can help a container to fit.
    pub(crate) fn can_help(&self, job: usize, misfit: Misfit, queue: Option<usize>) -> bool {
        let RoundJob { held, expected, .. } = &self.jobs[job];
        match misfit.shortage {
            Shortage::Queue => self.jobs[job].queue == queue,
            Shortage::Limit => true,
            Shortage::Nodes => {
                let mut nodes = held.iter().chain(expected).map(|share| share.node);
                nodes.any(|node| self.is_useful(job, node, misfit.demand))
            }
        }
    }

    /// What the job no longer has if it had `size` instead of its present one.
    pub(crate) fn settle(&mut self, job: usize, size: ContainerCounts) {
        let job = &mut self.jobs[job];
        job.size = size;
        job.unplaced = size.minus(sum(&job.held) + sum(&job.expected));
    }
}

/// All containers of a list.
pub(crate) fn sum(shares: &[NodeShare]) -> ContainerCounts {
    shares.iter().fold(ContainerCounts::default(), |sum, share| sum + share.counts)
}

fn remove_share(shares: &mut Vec<NodeShare>, node: usize, counts: ContainerCounts) {
    let at = shares.binary_search_by_key(&node, |share| share.node);
    let at = at.expect("a container is released where the job has it");
    shares[at].counts = shares[at].counts.minus(counts);
    if shares[at].counts.is_empty() {
        shares.remove(at);
    }
}

/// CPU and memory that idle GPUs of a node need, by their number: most that jobs which could use them take with that many.
fn gpu_needs(nodes: &[&crate::cluster::NodeCapacity], jobs: &[&ElasticJob]) -> Vec<ResourceVector> {
    let most = nodes.iter().map(|node| node.total.gpus).max().unwrap_or(0).clamp(0, 64);
    let mut kinds: Vec<ResourceVector> = jobs
        .iter()
        .filter(|job| job.trainer.gpus > 0 && job.size_above(job.wanted).is_some())
        .map(|job| job.trainer)
        .collect();
    kinds.sort_unstable();
    kinds.dedup();
    let need = |gpus: i64| {
        let of_kind = |kind: &ResourceVector| {
            let count = u32::try_from(gpus / kind.gpus).unwrap_or(0);
            ResourceVector { gpus: 0, ..kind.times(count) }
        };
        kinds.iter().map(of_kind).fold(ResourceVector::default(), ResourceVector::max)
    };
    (0..=most).map(need).collect()
}
