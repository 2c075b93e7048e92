//! From what a round has read to the planner's input, with what has to be remembered between rounds.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use heddle_controller_core::{
    ClusterState, ContainerCounts, ElasticJob, FixedSize, HISTORY_MS, NodeCapacity, NodeContainers,
    QueueCapacity, ResourceVector, ScalingDecision, SizeChange, SizeRange,
};
use heddle_protocol::grant::{ControllerGrant, GPU, GrantedResources};
use heddle_protocol::handshake::PROTOCOL_VERSION;
use heddle_protocol::view::SetBy;
use heddle_yarn::client::{ApplicationState, QueueInfo};
use heddle_yarn::{
    AllocationSteps, ApplicationReport, Memory, NodeReport, NodeState, Resources, VCores,
};

use crate::grants::FoundGrant;
use crate::seen_job::SeenJob;

/// How often a round is made, in milliseconds.
pub const ROUND_MS: u64 = 2_000;
/// A status that is older than two rounds is not planned with.
const STALE_MS: u64 = 2 * ROUND_MS;
/// Rounds for which a list of nodes must stay as it is if it is a leader's first, or has shrunk by more than a tenth: a
/// ResourceManager that has just started lists the nodes that have registered so far.
const NODES_STAND: u32 = 2;
/// Nodes with more containers than vcores that show that the scheduler does not count these; the only node does too. One alone
/// may have been made smaller.
const OVERFULL_NODES: usize = 2;
/// A grant without a living application is removed after this time: it may be of a job that is about to be submitted.
const GRANT_LAPSES_MS: u64 = 600_000;

/// What a round has read from YARN and from the controller's folder.
#[derive(Clone, Debug, Default)]
pub struct Observation {
    /// Applications of Heddle's type that have not ended.
    pub applications: Vec<ApplicationReport>,
    /// All nodes that run.
    pub nodes: Vec<NodeReport>,
    /// The root of all queues, if the ResourceManager shows it.
    pub queues: Option<QueueInfo>,
    /// The grants.
    pub grants: Vec<FoundGrant>,
    /// Other files in their folder.
    pub other_files: Vec<String>,
}

/// Most of a resource that a container is taken to ask for: a grant is written by a user.
const AMOUNT_MAX: u32 = 1 << 31;

/// What YARN gives for a request.
fn granted_resources(each: GrantedResources, steps: AllocationSteps) -> ResourceVector {
    let bounded = |n: u64| n.min(AMOUNT_MAX.into());
    let asked =
        Resources::new(Memory::mib(bounded(each.memory_mib)), VCores(each.vcores.min(AMOUNT_MAX)));
    let gpus = bounded(each.gpus) as i64;
    ResourceVector { gpus, ..vector(&steps.rounded(&asked)) }
}

/// A job that takes part: its application, and what it grants.
#[derive(Clone, Debug)]
pub struct GrantedJob {
    /// What YARN reports.
    pub report: ApplicationReport,
    /// What the job allows.
    pub grant: ControllerGrant,
}

impl GrantedJob {
    /// Whether an attempt of its ApplicationMaster has run.
    fn has_started(&self) -> bool {
        self.report.state == Some(ApplicationState::Running) || self.grant.am.is_some()
    }
}

/// Input of the planner.
#[derive(Clone, Debug, Default)]
pub struct PlannerInput {
    /// The cluster.
    pub cluster: ClusterState,
    /// The jobs, sorted by id.
    pub jobs: Vec<ElasticJob>,
}

#[derive(Clone, Debug, Default)]
struct JobMemory {
    seen: Option<(SeenJob, u64)>,
    changes: Vec<SizeChange>,
    asked_since_ms: Option<u64>,
}

/// What is remembered between rounds. Times are of the controller's monotonic clock.
#[derive(Clone, Debug, Default)]
pub struct Rounds {
    jobs: BTreeMap<String, JobMemory>,
    /// Number of nodes of the last round with a plan, the last number, and for how many rounds it has stood.
    nodes: (usize, usize, u32),
    /// Files in the folder of grants that do not count for a living application, and since when.
    lapsing: BTreeMap<String, u64>,
}

impl Rounds {
    /// The jobs that take part, and a line for each grant that does not count, or whose job does not get orders.
    #[must_use]
    pub fn granted(&self, read: &Observation) -> (Vec<GrantedJob>, Vec<String>) {
        let mut jobs = Vec::new();
        let mut lines = Vec::new();
        let reports: BTreeMap<String, &ApplicationReport> =
            read.applications.iter().map(|report| (report.id.to_string(), report)).collect();
        for FoundGrant { owner, grant } in &read.grants {
            let Some(report) = reports.get(&grant.application) else { continue };
            if !owner.is_empty() && *owner != report.user {
                lines.push(format!(
                    "the grant of {} is ignored: it is of user {owner}, and the application of {}",
                    grant.application, report.user
                ));
                continue;
            }
            if grant.protocol != PROTOCOL_VERSION {
                let why = FixedSize::OtherVersion;
                lines.push(format!("the size of {} stays: {why}", grant.application));
            }
            jobs.push(GrantedJob { report: (*report).clone(), grant: grant.clone() });
        }
        if read.queues.is_none() {
            let line = "the ResourceManager does not show its queues: plans without their limits";
            lines.push(line.to_owned());
        }
        (jobs, lines)
    }

    /// Files in the folder of grants that have not been a grant of a living application for some time: their applications have
    /// ended, or users have left them there.
    pub fn lapsed(
        &mut self,
        read: &Observation,
        granted: &[GrantedJob],
        now_ms: u64,
    ) -> Vec<String> {
        let file = |grant: &ControllerGrant| ControllerGrant::file_name(&grant.application);
        let counted: BTreeSet<String> = granted.iter().map(|job| file(&job.grant)).collect();
        let grants = read.grants.iter().map(|found| file(&found.grant));
        let before = std::mem::take(&mut self.lapsing);
        for name in grants.chain(read.other_files.iter().cloned()) {
            if !counted.contains(&name) {
                let since = before.get(&name).copied().unwrap_or(now_ms);
                self.lapsing.insert(name, since);
            }
        }
        let due = self.lapsing.iter().filter(|(_, since)| now_ms - **since >= GRANT_LAPSES_MS);
        due.map(|(name, _)| name.clone()).collect()
    }

    /// A job has reported.
    pub fn saw(&mut self, application: &str, seen: SeenJob, now_ms: u64) {
        let memory = self.jobs.entry(application.to_owned()).or_default();
        memory.asked_since_ms = seen.asks.then(|| memory.asked_since_ms.unwrap_or(now_ms));
        memory.seen = Some((seen, now_ms));
    }

    /// A job has accepted an order.
    pub fn ordered(&mut self, decision: &ScalingDecision, now_ms: u64) {
        let memory = self.jobs.entry(decision.job.clone()).or_default();
        memory.changes.push(decision.as_change(now_ms));
        memory.asked_since_ms = None;
        if let Some((seen, _)) = &mut memory.seen {
            seen.wanted = decision.to;
        }
    }

    /// What a job last reported.
    #[must_use]
    pub fn seen(&self, application: &str) -> Option<&SeenJob> {
        self.jobs.get(application)?.seen.as_ref().map(|(seen, _)| seen)
    }

    /// Whether the list of nodes may be planned with: it has at least nine tenths of those planned with before, or stands
    /// as it is.
    pub fn has_all_nodes(&mut self, nodes: usize) -> bool {
        let (planned, last, stood) = self.nodes;
        let stood = if nodes == last { stood + 1 } else { 0 };
        let has_most = planned > 0 && nodes * 10 >= planned * 9;
        let is_whole = nodes > 0 && (has_most || stood >= NODES_STAND);
        self.nodes = (if is_whole { nodes } else { planned }, nodes, stood);
        is_whole
    }

    /// The input of the planner.
    pub fn input(
        &mut self,
        read: &Observation,
        granted: &[GrantedJob],
        steps: AllocationSteps,
        now_ms: u64,
    ) -> PlannerInput {
        let ids: BTreeSet<&str> = granted.iter().map(|job| &*job.grant.application).collect();
        self.jobs.retain(|id, _| ids.contains(&**id));
        for memory in self.jobs.values_mut() {
            memory.changes.retain(|change| change.at_ms + HISTORY_MS > now_ms);
        }
        for job in granted.iter().filter(|job| !job.has_started()) {
            // YARN has been asked for its ApplicationMaster since its submission.
            let memory = self.jobs.entry(job.grant.application.clone()).or_default();
            memory.asked_since_ms.get_or_insert(now_ms);
        }
        let nodes = usable(&read.nodes).map(capacity).collect();
        let mut cluster = ClusterState { nodes, ..ClusterState::default() };
        if let Some(root) = &read.queues {
            leaves(root, 1.0, cluster.total(), None, &mut cluster.queues);
        }
        let mut jobs: Vec<ElasticJob> =
            granted.iter().map(|job| self.job(job, &cluster.queues, steps, now_ms)).collect();
        jobs.sort_by(|a, b| a.id.cmp(&b.id));
        drop_absurd_claims(&mut jobs, &cluster.nodes);
        (cluster.asked_by_others, cluster.containers_asked_by_others) =
            self.asked_by_others(read, &jobs);
        let overfull = cluster.nodes.iter().filter(|node| node.free.vcores < 0).count();
        if overfull >= OVERFULL_NODES.min(cluster.nodes.len()).max(1) {
            // The scheduler counts memory alone (`DefaultResourceCalculator`).
            for node in &mut cluster.nodes {
                node.total.vcores = VCORES_UNCOUNTED;
                node.free.vcores = VCORES_UNCOUNTED;
            }
        }
        PlannerInput { cluster, jobs }
    }

    fn job(
        &self,
        job: &GrantedJob,
        queues: &[QueueCapacity],
        steps: AllocationSteps,
        now_ms: u64,
    ) -> ElasticJob {
        let GrantedJob { report, grant } = job;
        let memory = self.jobs.get(&grant.application);
        let seen = memory.and_then(|memory| memory.seen.as_ref());
        let (trainers, pservers) = (grant.trainers, grant.pservers);
        let least = trainers.min.clamp(1, TRAINERS_MAX);
        let range = SizeRange {
            trainers_min: least,
            trainers_max: trainers.max.clamp(least, TRAINERS_MAX),
            trainers_useful: seen.map_or(trainers.max, |(seen, _)| seen.useful),
            lanes: grant.lanes,
            pservers_min: pservers.min,
            pservers_max: pservers.max,
        };
        let has_started = job.has_started();
        let is_stale = seen.is_none_or(|(_, at_ms)| now_ms.saturating_sub(*at_ms) > STALE_MS);
        let fixed = match seen {
            _ if grant.protocol != PROTOCOL_VERSION => Some(FixedSize::OtherVersion),
            _ if is_stale && has_started => Some(FixedSize::StaleStatus),
            Some((seen, _)) if seen.ends => Some(FixedSize::Ending),
            Some((seen, _)) if seen.set_by == SetBy::Operator => Some(FixedSize::Pinned),
            _ => None,
        };
        let at_start = ContainerCounts::new(trainers.start, pservers.start);
        let seen = seen.map(|(seen, _)| seen);
        ElasticJob {
            id: grant.application.clone(),
            class: u32::try_from(report.priority).unwrap_or(0),
            submitted_ms: u64::try_from(report.start_time_ms).unwrap_or(0),
            queue: leaf_of(queues, &report.queue),
            master: (!has_started).then(|| granted_resources(grant.master, steps)),
            trainer: granted_resources(trainers.each, steps),
            pserver: granted_resources(pservers.each, steps),
            sizes: range.sizes(),
            wanted: seen.map_or(at_start, |seen| seen.wanted),
            held: seen.map(|seen| seen.held.clone()).unwrap_or_default(),
            draining: seen.map(|seen| seen.draining.clone()).unwrap_or_default(),
            release_order: seen.map(|seen| seen.release_order.clone()).unwrap_or_default(),
            asked_since_ms: memory.and_then(|memory| memory.asked_since_ms),
            changes: memory.map(|memory| memory.changes.clone()).unwrap_or_default(),
            fixed,
            is_preempted: seen.is_some_and(|seen| seen.is_preempted),
        }
    }

    /// What applications ask for that are not elastic jobs, and in how many containers.
    fn asked_by_others(&self, read: &Observation, jobs: &[ElasticJob]) -> (ResourceVector, u32) {
        let Some(root) = &read.queues else { return (ResourceVector::default(), 0) };
        let mut asked = ResourceVector::new(0, root.vcores.pending, root.memory_mib.pending);
        let mut containers = root.containers_pending;
        for job in jobs {
            if let Some(master) = job.master {
                asked -= master;
                containers = containers.saturating_sub(1);
                // Its containers are asked for when its ApplicationMaster runs.
                continue;
            }
            // Without a status it is not known what the job lacks of its start.
            let Some(seen) = self.seen(&job.id) else { continue };
            let missing = job.wanted.minus(job.present()) + seen.spares_asked;
            asked -= job.demand(missing);
            let missing = i64::from(missing.trainers) + i64::from(missing.pservers);
            containers = containers.saturating_sub(missing);
        }
        let positive = ResourceVector::new(0, asked.vcores.max(0), asked.memory_mib.max(0));
        (positive, u32::try_from(containers.max(0)).unwrap_or(u32::MAX))
    }
}

/// Keeps jobs whose containers would be larger than their nodes out of the plan: room that they release would hold any number of
/// containers of others.
fn drop_absurd_claims(jobs: &mut [ElasticJob], nodes: &[NodeCapacity]) {
    let memory: HashMap<&str, i64> =
        nodes.iter().map(|node| (&*node.name, node.total.memory_mib)).collect();
    for job in jobs {
        let is_absurd = |on: &NodeContainers| {
            memory.get(&*on.node).is_some_and(|has| job.demand(on.counts).memory_mib > *has)
        };
        if job.held.iter().chain(&job.draining).any(is_absurd) {
            job.fixed = Some(FixedSize::ClaimsTooMuch);
            job.held.clear();
            job.draining.clear();
        }
    }
}

/// Most trainers of a job that are considered: a grant is written by a user.
const TRAINERS_MAX: u32 = 10_000;

/// Vcores of a node where they are not counted: enough for any job, and sums of them are numbers.
const VCORES_UNCOUNTED: i64 = 1 << 32;

/// Nodes without a label: jobs with a label do not take part.
fn usable(nodes: &[NodeReport]) -> impl Iterator<Item = &NodeReport> {
    let plain = |node: &&NodeReport| node.labels.iter().all(String::is_empty);
    nodes.iter().filter(|node| node.state == Some(NodeState::Running)).filter(plain)
}

fn capacity(node: &NodeReport) -> NodeCapacity {
    let total = vector(&node.capability);
    NodeCapacity { name: node.id.to_string(), total, free: total - vector(&node.used) }
}

fn vector(resources: &Resources) -> ResourceVector {
    let gpus = resources.others.get(GPU).map_or(0, |amount| amount.value);
    let memory = i64::try_from(resources.memory.as_mib()).unwrap_or(i64::MAX);
    ResourceVector::new(gpus, resources.vcores.0.into(), memory)
}

/// The queues without queues below them. `share`: of the cluster, that the parents can have at the most; `parents_free`: what they
/// have left.
fn leaves(
    queue: &QueueInfo,
    share: f32,
    total: ResourceVector,
    parents_free: Option<ResourceVector>,
    found: &mut Vec<QueueCapacity>,
) {
    // The FairScheduler reports 0 or less for a queue without a maximum.
    let own = if queue.maximum_capacity > 0.0 { queue.maximum_capacity.min(1.0) } else { 1.0 };
    let share = share * own;
    let part = |amount: i64| (amount as f64 * f64::from(share)).round() as i64;
    let most = ResourceVector::new(total.gpus, part(total.vcores), part(total.memory_mib));
    let most = (share < 1.0).then_some(most);
    let used = ResourceVector::new(0, queue.vcores.allocated, queue.memory_mib.allocated);
    if queue.children.is_empty() {
        found.push(QueueCapacity { name: queue.name.clone(), most, used, parents_free });
    }
    let free = most.map(|most| most - used);
    let free = free.map_or(parents_free, |free| Some(free.min(parents_free.unwrap_or(free))));
    for child in &queue.children {
        leaves(child, share, total, free, found);
    }
}

/// The leaf that a report names: schedulers name a queue by its path or by its last part.
fn leaf_of(queues: &[QueueCapacity], name: &str) -> String {
    let last = |path: &str| path.rsplit('.').next().unwrap_or(path).to_owned();
    let exact = queues.iter().find(|queue| queue.name == name);
    let found = exact.or_else(|| queues.iter().find(|queue| last(&queue.name) == last(name)));
    found.map_or_else(|| name.to_owned(), |queue| queue.name.clone())
}
