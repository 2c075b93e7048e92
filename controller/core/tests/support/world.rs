//! A cluster with a scheduler like YARN's, jobs that work, and a service, in simulated time.

use std::collections::BTreeMap;

use heddle_controller_core::{
    ClusterState, ContainerCounts, ElasticJob, FixedSize, LoadLimit, NodeCapacity, NodeContainers,
    QueueCapacity, ReleaseOrder, ResourceVector, ScalingPlan, SizeChange, plan,
};

const TRAINER: ContainerCounts = ContainerCounts::new(1, 0);
const PSERVER: ContainerCounts = ContainerCounts::new(0, 1);

/// Time between two rounds of the controller.
pub const ROUND_MS: u64 = 5_000;

/// How jobs get their size, and in which order the scheduler serves them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Jobs ask for their maximum, and work only with all of it. First come first served.
    Fixed,
    /// Jobs ask for their maximum, and work with what they get. First come first served.
    Fifo,
    /// As before, but the job that uses least is served first.
    Fair,
    /// Jobs ask for their minimum, and the planner changes it.
    Planner,
}

#[derive(Clone, Debug)]
pub struct Node {
    pub name: String,
    pub total: ResourceVector,
    pub free: ResourceVector,
}

#[derive(Clone, Copy, Debug)]
pub struct Draining {
    pub until_ms: u64,
    pub node: usize,
    pub counts: ContainerCounts,
}

#[derive(Clone, Debug)]
pub struct Job {
    pub id: String,
    pub class: u32,
    pub queue: String,
    pub submitted_ms: u64,
    pub trainer: ResourceVector,
    pub pserver: ResourceVector,
    pub sizes: Vec<ContainerCounts>,
    /// What is left, trainers × ms.
    pub work: u64,
    pub wanted: ContainerCounts,
    pub held: BTreeMap<usize, ContainerCounts>,
    /// Containers as YARN has granted them: the job releases the last of a role first.
    pub granted: Vec<(usize, ContainerCounts)>,
    pub count: ContainerCounts,
    pub draining: Vec<Draining>,
    pub asked_since_ms: Option<u64>,
    pub changes: Vec<SizeChange>,
    pub changes_count: u32,
    pub fixed: Option<FixedSize>,
    pub started_ms: Option<u64>,
    pub ended_ms: Option<u64>,
}

impl Job {
    pub fn new(
        id: String,
        submitted_ms: u64,
        trainer: ResourceVector,
        pserver: ResourceVector,
        sizes: Vec<ContainerCounts>,
        work: u64,
    ) -> Self {
        Self {
            id,
            class: 0,
            queue: "default".to_owned(),
            submitted_ms,
            trainer,
            pserver,
            wanted: sizes[0],
            sizes,
            work,
            held: BTreeMap::new(),
            granted: Vec::new(),
            count: ContainerCounts::default(),
            draining: Vec::new(),
            asked_since_ms: None,
            changes: Vec::new(),
            changes_count: 0,
            fixed: None,
            started_ms: None,
            ended_ms: None,
        }
    }

    pub fn demand(&self, counts: ContainerCounts) -> ResourceVector {
        self.trainer.times(counts.trainers) + self.pserver.times(counts.pservers)
    }

    /// Nodes of the containers of a role, in the order in which they are released.
    fn release_order(&self, one: ContainerCounts) -> impl Iterator<Item = usize> {
        let of_role = move |granted: &&(usize, ContainerCounts)| granted.1 == one;
        self.granted.iter().rev().filter(of_role).map(|(node, _)| *node)
    }

    pub fn is_present(&self, now_ms: u64) -> bool {
        self.submitted_ms <= now_ms && self.ended_ms.is_none()
    }
}

/// Containers of an application that is not elastic, served before all jobs.
#[derive(Clone, Debug, Default)]
pub struct Service {
    pub demand: ResourceVector,
    pub wanted: u32,
    pub held: Vec<usize>,
    /// Containers that were wanted and lacked, × ms.
    pub lacked: u64,
}

#[derive(Clone, Debug)]
pub struct World {
    pub now_ms: u64,
    pub policy: Policy,
    pub nodes: Vec<Node>,
    pub jobs: Vec<Job>,
    pub service: Service,
    pub queues: Vec<QueueCapacity>,
    pub limit: LoadLimit,
    pub drain_ms: u64,
    /// Virtual cores in use × ms.
    pub used: i64,
    /// Whether the scheduler may have something to grant.
    is_changed: bool,
    cursor: usize,
}

impl World {
    pub fn new(policy: Policy, totals: Vec<ResourceVector>, mut jobs: Vec<Job>) -> Self {
        let node = |(at, total)| Node { name: format!("n{at:05}"), total, free: total };
        if policy != Policy::Planner {
            for job in &mut jobs {
                job.wanted = *job.sizes.last().expect("it is there");
            }
        }
        Self {
            now_ms: 0,
            policy,
            nodes: totals.into_iter().enumerate().map(node).collect(),
            jobs,
            service: Service::default(),
            queues: Vec::new(),
            limit: LoadLimit::default(),
            drain_ms: 3_000,
            used: 0,
            is_changed: true,
            cursor: 0,
        }
    }

    /// `ms` pass: containers end, the scheduler grants, jobs work. Then a round of the controller, if one is to come.
    pub fn advance(&mut self, ms: u64) -> Option<ScalingPlan> {
        let before_ms = self.now_ms;
        self.now_ms += ms;
        let arrived = before_ms + 1..=self.now_ms;
        let mut submitted = self.jobs.iter().map(|job| job.submitted_ms);
        self.is_changed |= submitted.any(|at_ms| arrived.contains(&at_ms));
        self.end_drains();
        self.schedule();
        self.work(ms);
        let is_round = self.policy == Policy::Planner && self.now_ms.is_multiple_of(ROUND_MS);
        is_round.then(|| self.round())
    }

    pub fn round(&mut self) -> ScalingPlan {
        let plan = plan(&self.cluster(), &self.elastic_jobs(), self.now_ms);
        self.follow(&plan);
        plan
    }

    fn end_drains(&mut self) {
        for at in 0..self.jobs.len() {
            let now_ms = self.now_ms;
            let (ended, left) =
                self.jobs[at].draining.iter().partition(|drain| drain.until_ms <= now_ms);
            self.jobs[at].draining = left;
            let ended: Vec<Draining> = ended;
            for drain in ended {
                self.give_back(at, drain.node, drain.counts);
            }
        }
        let surplus = self.service.held.len().saturating_sub(self.service.wanted as usize);
        for _ in 0..surplus {
            let node = self.service.held.pop().expect("it is there");
            self.nodes[node].free += self.service.demand;
            self.is_changed = true;
        }
    }

    fn give_back(&mut self, job: usize, node: usize, counts: ContainerCounts) {
        let demand = self.jobs[job].demand(counts);
        self.nodes[node].free += demand;
        let queue = self.jobs[job].queue.clone();
        if let Some(queue) = self.queues.iter_mut().find(|of| of.name == queue) {
            queue.used -= demand;
        }
        self.is_changed = true;
    }

    /// The next node with room, in turn, as nodes report to YARN.
    fn node_with_room(&mut self, demand: ResourceVector) -> Option<usize> {
        let count = self.nodes.len();
        let mut nodes = (0..count).map(|at| (self.cursor + at) % count);
        let node = nodes.find(|node| demand.fits_in(self.nodes[*node].free))?;
        self.cursor = (node + 1) % count;
        Some(node)
    }

    fn schedule(&mut self) {
        let lacking = self.service.wanted as usize > self.service.held.len();
        if !self.is_changed && !lacking {
            return;
        }
        while (self.service.held.len() as u32) < self.service.wanted {
            let Some(node) = self.node_with_room(self.service.demand) else { break };
            self.nodes[node].free -= self.service.demand;
            self.service.held.push(node);
        }
        self.is_changed = false;
        let now_ms = self.now_ms;
        let asks = |job: &Job| job.is_present(now_ms) && !job.wanted.minus(job.count).is_empty();
        let mut open: Vec<usize> =
            (0..self.jobs.len()).filter(|at| asks(&self.jobs[*at])).collect();
        open.sort_by_key(|at| {
            let job = &self.jobs[*at];
            (std::cmp::Reverse(job.class), job.submitted_ms, job.id.clone())
        });
        while !open.is_empty() {
            let first = match self.policy {
                Policy::Fair => {
                    let used = |at: &usize| self.jobs[*at].demand(self.jobs[*at].count);
                    (0..open.len()).min_by_key(|at| used(&open[*at])).expect("it is there")
                }
                _ => 0,
            };
            let job = open[first];
            let is_done = !self.grant_one(job) || !asks(&self.jobs[job]);
            if is_done {
                open.remove(first);
            }
        }
    }

    fn grant_one(&mut self, at: usize) -> bool {
        let job = &self.jobs[at];
        let missing = job.wanted.minus(job.count);
        let one = if missing.pservers > 0 {
            ContainerCounts::new(0, 1)
        } else {
            ContainerCounts::new(1, 0)
        };
        let demand = job.demand(one);
        let queue = self.queues.iter().position(|queue| queue.name == job.queue);
        if let Some(queue) = queue
            && let Some(most) = self.queues[queue].most
            && !demand.fits_in(most - self.queues[queue].used)
        {
            return false;
        }
        let Some(node) = self.node_with_room(demand) else { return false };
        self.hold(at, node, one);
        true
    }

    /// A job gets containers on a node.
    pub fn hold(&mut self, at: usize, node: usize, counts: ContainerCounts) {
        let demand = self.jobs[at].demand(counts);
        self.nodes[node].free -= demand;
        let job = &mut self.jobs[at];
        if let Some(queue) = self.queues.iter_mut().find(|of| of.name == job.queue) {
            queue.used += demand;
        }
        let held = job.held.entry(node).or_default();
        *held = *held + counts;
        let each = [(TRAINER, counts.trainers), (PSERVER, counts.pservers)];
        for (one, count) in each {
            job.granted.extend((0..count).map(|_| (node, one)));
        }
        job.count = job.count + counts;
    }

    fn work(&mut self, ms: u64) {
        let total: i64 = self.nodes.iter().map(|node| node.total.vcores).sum();
        let free: i64 = self.nodes.iter().map(|node| node.free.vcores).sum();
        if self.jobs.iter().any(|job| job.ended_ms.is_none()) {
            self.used += (total - free) * ms as i64;
        }
        let lacks = u64::from(self.service.wanted).saturating_sub(self.service.held.len() as u64);
        self.service.lacked += lacks * ms;
        for at in 0..self.jobs.len() {
            let job = &mut self.jobs[at];
            if !job.is_present(self.now_ms) {
                continue;
            }
            job.asked_since_ms = if job.wanted.is_within(job.count) {
                None
            } else {
                job.asked_since_ms.or(Some(self.now_ms))
            };
            let least = if self.policy == Policy::Fixed { job.wanted } else { job.sizes[0] };
            if !least.is_within(job.count) {
                continue;
            }
            job.started_ms.get_or_insert(self.now_ms);
            job.work = job.work.saturating_sub(u64::from(job.count.trainers) * ms);
            if job.work == 0 {
                self.end(at);
            }
        }
    }

    fn end(&mut self, at: usize) {
        self.jobs[at].granted.clear();
        let held = std::mem::take(&mut self.jobs[at].held);
        let draining = std::mem::take(&mut self.jobs[at].draining);
        let draining = draining.into_iter().map(|drain| (drain.node, drain.counts));
        for (node, counts) in held.into_iter().chain(draining) {
            self.give_back(at, node, counts);
        }
        self.jobs[at].count = ContainerCounts::default();
        self.jobs[at].ended_ms = Some(self.now_ms);
    }

    pub fn cluster(&self) -> ClusterState {
        let lacking = self.service.wanted as usize
            - self.service.held.len().min(self.service.wanted as usize);
        let node = |node: &Node| NodeCapacity {
            name: node.name.clone(),
            total: node.total,
            free: node.free,
        };
        ClusterState {
            nodes: self.nodes.iter().map(node).collect(),
            queues: self.queues.clone(),
            asked_by_others: self
                .service
                .demand
                .times(u32::try_from(lacking).expect("it is there")),
            containers_asked_by_others: u32::try_from(lacking).expect("it is there"),
            limit: self.limit,
        }
    }

    pub fn elastic_jobs(&self) -> Vec<ElasticJob> {
        let present = self.jobs.iter().filter(|job| job.is_present(self.now_ms));
        let on =
            |node: usize, counts| NodeContainers { node: self.nodes[node].name.clone(), counts };
        let order = |job: &Job, one| {
            job.release_order(one).map(|node| self.nodes[node].name.clone()).collect()
        };
        let elastic = present.map(|job| ElasticJob {
            id: job.id.clone(),
            class: job.class,
            submitted_ms: job.submitted_ms,
            queue: job.queue.clone(),
            master: None,
            trainer: job.trainer,
            pserver: job.pserver,
            sizes: job.sizes.clone(),
            wanted: job.wanted,
            held: job.held.iter().map(|(node, counts)| on(*node, *counts)).collect(),
            draining: job.draining.iter().map(|drain| on(drain.node, drain.counts)).collect(),
            release_order: ReleaseOrder {
                trainers: order(job, TRAINER),
                pservers: order(job, PSERVER),
            },
            asked_since_ms: job.asked_since_ms,
            changes: job.changes.clone(),
            fixed: job.fixed,
            is_preempted: false,
        });
        elastic.collect()
    }

    /// Forgets the last containers of a role that the job was granted; returns their number by node.
    fn release_last(
        &mut self,
        at: usize,
        one: ContainerCounts,
        count: u32,
    ) -> BTreeMap<String, u32> {
        let granted = &mut self.jobs[at].granted;
        let mut released = BTreeMap::new();
        for _ in 0..count {
            let last = granted.iter().rposition(|(_, of)| *of == one).expect("it is there");
            let (node, _) = granted.remove(last);
            *released.entry(self.nodes[node].name.clone()).or_default() += 1;
        }
        released
    }

    /// Jobs follow the decisions at once. They release the containers that they were granted last: those that the plan names.
    pub fn follow(&mut self, plan: &ScalingPlan) {
        for decision in &plan.decisions {
            let at = self.jobs.iter().position(|job| job.id == decision.job).expect("it is there");
            let until_ms = self.now_ms + self.drain_ms;
            for one in [TRAINER, PSERVER] {
                let on = |on: &NodeContainers| {
                    let count =
                        if one == TRAINER { on.counts.trainers } else { on.counts.pservers };
                    (count > 0).then(|| (on.node.clone(), count))
                };
                let named: BTreeMap<String, u32> = decision.leave.iter().filter_map(on).collect();
                let count = named.values().sum();
                assert_eq!(named, self.release_last(at, one, count), "{decision}");
            }
            for NodeContainers { node, counts } in &decision.leave {
                let node: usize = node[1..].parse().expect("it is there");
                let job = &mut self.jobs[at];
                let held = job.held.get_mut(&node).expect("it is there");
                *held = held.minus(*counts);
                if held.is_empty() {
                    job.held.remove(&node);
                }
                job.count = job.count.minus(*counts);
                job.draining.push(Draining { until_ms, node, counts: *counts });
            }
            let job = &mut self.jobs[at];
            assert!(job.count.is_within(decision.to), "{decision}");
            job.wanted = decision.to;
            job.changes.push(decision.as_change(self.now_ms));
            job.changes
                .retain(|change| change.at_ms + heddle_controller_core::HISTORY_MS > self.now_ms);
            job.changes_count += 1;
            job.asked_since_ms = (!job.wanted.is_within(job.count)).then_some(self.now_ms);
            self.is_changed = true;
        }
    }
}
