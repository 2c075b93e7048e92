//! The spreading of containers over nodes, and what YARN alone has of each container. Pure: no socket and no clock.
//!
//! The core's slots are the table of containers. This table has what YARN needs besides, by YARN's own id: the grant (ask,
//! node, token) and whether the process was started. The ask id names the member (see `ask_id`), so no table translates,
//! and an open ask keeps the core's request as it came. A container of an earlier attempt may register before the
//! ResourceManager reports it, or after, or never: it is checked, and released in time.
//!
//! **Spreading.** Two pservers on one node are lost together, and share its memory and network. Intuition: while another node
//! has room it costs a second or two to get it. Rule: a grant for a pserver on a node that has one already is released while
//! the cluster has a node without one that is not avoided, and so is a grant on a node to be avoided: by the request, or as
//! containers could not be started there (see `failed_starts`). Limits for each ask: at most [`RETURNS_MAX`] times
//! ([`RETURNS_MAX_OF_COPIES`] where the copies of a shard need different hosts), and for [`RETURNS_FOR`] from the first; then
//! it is accepted, with a warning. Rejected: placement constraints, which a default cluster does not accept, and requests for
//! hosts by name, which starve if those are full.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use heddle_am_core::{ContainerRequest, InputHost};
use heddle_protocol::ids::{Member, Role, Slot};
use heddle_protocol::job_spec::{Bytes, JobSpec};
use heddle_protocol::view::Placement as PlacementView;
use heddle_yarn::am::{DEFAULT_RACK, NodeName};
use heddle_yarn::{
    Amount, AskId, Container, ContainerId, Memory, NodeId, Priority, RequestedPlacement, Resources,
    VCores,
};

use super::ask_id::{ask_id, member_of};
use super::failed_starts::FailedStarts;

/// Most grants of one ask that are released because of their node.
const RETURNS_MAX: u32 = 8;
/// The same with `pservers.replicas`: on a small cluster the scheduler offers the nodes that have one again and again, and
/// shards whose pservers share a host have no backup there.
const RETURNS_MAX_OF_COPIES: u32 = 40;
/// How long grants of one ask are released.
const RETURNS_FOR: Duration = Duration::from_secs(10);
/// Most hosts that an ask names. Each is two rows of the ResourceManager's table.
const PREFERRED_MAX: usize = 8;
/// Time for a container that the ResourceManager reports late to register: it looks for a new ApplicationMaster every
/// four seconds, on a file system that may be slow after the same restart.
const LATE_MAX: Duration = Duration::from_secs(60);
/// How long requests exclude a node whose NodeManager could not be reached.
const UNREACHABLE_FOR: Duration = Duration::from_secs(60);

/// Resources of a job's containers, and their nodes.
#[derive(Clone, Debug)]
pub struct Sizes {
    pserver: Size,
    trainer: Size,
    label: Option<String>,
    trainers_min: u32,
    /// See [`RETURNS_MAX`].
    returns_max: u32,
}

#[derive(Clone, Debug)]
struct Size {
    resources: Resources,
    /// Memory of the process, without the overhead.
    memory: Bytes,
    overhead: Bytes,
}

impl Sizes {
    /// The resources that this job requests.
    #[must_use]
    pub fn of(spec: &JobSpec) -> Self {
        let size = |memory: Bytes, vcores: u32| {
            let all = spec.container_memory(memory);
            Size {
                resources: Resources::new(mib(all), VCores(vcores)),
                memory,
                overhead: Bytes(all.0.saturating_sub(memory.0)),
            }
        };
        let mut trainer = size(spec.trainers.memory, spec.trainers.vcores);
        for (name, amount) in &spec.trainers.resources {
            let amount =
                Amount { value: i64::try_from(*amount).unwrap_or(i64::MAX), unit: String::new() };
            trainer.resources = trainer.resources.with(name.as_str(), amount);
        }
        Self {
            pserver: size(spec.pservers.memory, spec.pservers.vcores),
            trainer,
            label: spec.yarn.node_label.clone(),
            trainers_min: spec.trainers.min,
            returns_max: match spec.pservers.replicas {
                0 => RETURNS_MAX,
                _ => RETURNS_MAX_OF_COPIES,
            },
        }
    }

    /// The initial resources of each role, with the section of the job file that states them.
    #[must_use]
    pub fn all(&self) -> [(&'static str, &Resources); 2] {
        [("pservers", &self.pserver.resources), ("trainers", &self.trainer.resources)]
    }

    fn resources(&self, role: Role, memory: Option<Bytes>) -> Resources {
        let size = match role {
            Role::Pserver => &self.pserver,
            Role::Trainer => &self.trainer,
        };
        let mut resources = size.resources.clone();
        if let Some(memory) = memory {
            // The overhead grows with it.
            let share = u128::from(size.overhead.0) * u128::from(memory.0)
                / u128::from(size.memory.0.max(1));
            let overhead = u64::try_from(share).unwrap_or(0);
            resources.memory = mib(Bytes(memory.0.saturating_add(overhead)));
        }
        resources
    }

    /// Lower is served first: training begins only with all pservers and the minimum of trainers.
    fn priority(&self, slot: Slot) -> Priority {
        match slot.role {
            Role::Pserver => Priority(1),
            Role::Trainer if slot.index < self.trainers_min => Priority(2),
            Role::Trainer => Priority(3),
        }
    }
}

fn mib(bytes: Bytes) -> Memory {
    Memory::mib(bytes.0.div_ceil(1 << 20))
}

/// An ask that has no container yet.
#[derive(Clone, Debug)]
struct OpenAsk {
    request: ContainerRequest,
    /// When the first grant was released because of its node.
    returned: Option<Duration>,
    returns: u32,
}

/// A container of this application.
#[derive(Clone, Debug)]
pub(super) struct HeldContainer {
    grant: Container,
    state: HeldState,
}

/// What has been done with a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeldState {
    /// Its process has not been started.
    Granted,
    /// An earlier attempt left it, and it has not registered. A container that was reported late is released at this time.
    Surviving { release_at: Option<Duration> },
    /// Its process was started.
    Started,
    /// It is being ended.
    Ending,
}

impl HeldContainer {
    /// The member that it was allocated for.
    pub(super) fn member(&self) -> Option<Member> {
        self.grant.ask.and_then(member_of)
    }

    /// Its node.
    pub(super) fn node(&self) -> &NodeId {
        &self.grant.node
    }
}

/// The decision about a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum GrantVerdict {
    /// It is for this incarnation of this slot. `crowded`: two pservers share a node from now on.
    Take { member: Member, crowded: bool },
    /// Release it; its ask stays open.
    Return,
    /// Release it; no ask is open for it.
    Unwanted,
}

/// See the module.
#[derive(Debug)]
pub(super) struct ContainerRegistry {
    sizes: Sizes,
    /// Asks without a container: grants are judged here, before the core gets them.
    open: BTreeMap<AskId, OpenAsk>,
    /// Containers that have not ended: only YARN's grant has the node's address and the token.
    held: BTreeMap<ContainerId, HeldContainer>,
    /// The requested memory of a slot's last container, and the allocated memory, which YARN rounds up. The container has
    /// ended when its successor is requested.
    given: BTreeMap<Slot, (Option<Bytes>, Memory)>,
    /// Hosts whose NodeManager could not be reached, and until when requests exclude them.
    unreachable: BTreeMap<String, Duration>,
    failed_starts: FailedStarts,
    /// Containers that registered before the ResourceManager reported them: there is no grant to note it at.
    registered_early: BTreeSet<ContainerId>,
}

impl ContainerRegistry {
    pub(super) fn new(sizes: Sizes) -> Self {
        Self {
            sizes,
            open: BTreeMap::new(),
            held: BTreeMap::new(),
            given: BTreeMap::new(),
            unreachable: BTreeMap::new(),
            failed_starts: FailedStarts::default(),
            registered_early: BTreeSet::new(),
        }
    }

    /// Records an ask and translates it to YARN's terms.
    pub(super) fn ask(&mut self, request: ContainerRequest) -> (AskId, heddle_yarn::Ask) {
        let ContainerRequest { member, prefer, memory, .. } = &request;
        let (slot, id) = (member.slot, ask_id(*member));
        let placement = if prefer.is_empty() {
            RequestedPlacement::Any
        } else {
            let node = |host: &InputHost| {
                let rack = if host.rack.is_empty() { DEFAULT_RACK } else { &host.rack };
                NodeName { host: host.name.clone(), rack: rack.to_owned() }
            };
            let nodes = prefer.iter().take(PREFERRED_MAX).map(node);
            RequestedPlacement::Near { nodes: nodes.collect(), racks: Vec::new(), relax: true }
        };
        let mut resources = self.sizes.resources(slot.role, *memory);
        // A raised request must exceed the allocation that was too small, after rounding.
        if let Some((before, given)) = self.given.get(&slot)
            && memory > before
        {
            resources.memory = resources.memory.max(Memory::mib(given.as_mib() + 1));
        }
        let wanted = heddle_yarn::Ask {
            resources,
            priority: self.sizes.priority(slot),
            placement,
            label: self.sizes.label.clone(),
            ..heddle_yarn::Ask::default()
        };
        self.open.insert(id, OpenAsk { request, returned: None, returns: 0 });
        (id, wanted)
    }

    /// Cancels the ask for a member.
    pub(super) fn cancel(&mut self, member: Member) -> Option<AskId> {
        let id = ask_id(member);
        self.open.remove(&id).map(|_| id)
    }

    /// Decides about a grant and records it if it is taken. `nodes`: number of nodes of the cluster.
    pub(super) fn granted(
        &mut self,
        ask: AskId,
        container: Container,
        nodes: usize,
        now: Duration,
    ) -> GrantVerdict {
        let pserver_hosts = pserver_hosts(&self.held);
        let Some(open) = self.open.get_mut(&ask) else {
            return GrantVerdict::Unwanted;
        };
        let member = open.request.member;
        let host = container.node.host.as_str();
        let crowded = member.slot.role == Role::Pserver && pserver_hosts.contains(host);
        let mut avoided = self.failed_starts.avoided_by(&[member.slot], nodes, now);
        avoided.extend(open.request.avoid.iter().map(String::as_str));
        let room = nodes > pserver_hosts.union(&avoided).count();
        let avoided = avoided.contains(host);
        let first = open.returned.unwrap_or(now);
        let may_return =
            open.returns < self.sizes.returns_max && now.saturating_sub(first) < RETURNS_FOR;
        if (crowded && room || avoided) && may_return {
            open.returns += 1;
            open.returned = Some(first);
            return GrantVerdict::Return;
        }
        self.given.insert(member.slot, (open.request.memory, container.resources.memory));
        self.open.remove(&ask);
        // A ResourceManager may leave the id out: the session has found the ask by its priority.
        let mut grant = container;
        grant.ask = Some(ask);
        self.held.insert(grant.id, HeldContainer { grant, state: HeldState::Granted });
        GrantVerdict::Take { member, crowded }
    }

    /// Notes a container that an earlier attempt left.
    pub(super) fn kept(&mut self, container: Container) {
        self.survived(container, None);
    }

    /// Notes a container that an earlier attempt left and that the ResourceManager reports only now, after a restart of
    /// its own. The job refills its slot unless it registers in time.
    pub(super) fn reported_after_restart(&mut self, container: Container, now: Duration) {
        self.survived(container, Some(now + LATE_MAX));
    }

    fn survived(&mut self, grant: Container, release_at: Option<Duration>) {
        let state = match self.registered_early.remove(&grant.id) {
            true => HeldState::Started,
            false => HeldState::Surviving { release_at },
        };
        self.held.entry(grant.id).or_insert(HeldContainer { grant, state });
    }

    /// Containers that were reported late and have not registered in time. They are released: nothing else would
    /// end them before the job does.
    pub(super) fn overdue(&self, now: Duration) -> Vec<ContainerId> {
        let is_due = |held: &HeldContainer| match held.state {
            HeldState::Surviving { release_at } => release_at.is_some_and(|at| at <= now),
            HeldState::Granted | HeldState::Started | HeldState::Ending => false,
        };
        self.held.iter().filter(|(_, held)| is_due(held)).map(|(id, _)| *id).collect()
    }

    /// Notes a registered container, which the ResourceManager may report later.
    pub(super) fn registered(&mut self, id: ContainerId) {
        match self.held.get_mut(&id) {
            Some(held) => {
                if let HeldState::Surviving { .. } = held.state {
                    held.state = HeldState::Started;
                }
            }
            None => {
                self.registered_early.insert(id);
            }
        }
    }

    /// Containers that an earlier attempt left and that have not registered, and their nodes.
    pub(super) fn unregistered(&self) -> Vec<(ContainerId, NodeId)> {
        let is_surviving = |held: &HeldContainer| matches!(held.state, HeldState::Surviving { .. });
        let unregistered = self.held.iter().filter(|(_, held)| is_surviving(held));
        unregistered.map(|(id, held)| (*id, held.node().clone())).collect()
    }

    /// A container of this application.
    pub(super) fn held(&self, id: ContainerId) -> Option<&HeldContainer> {
        self.held.get(&id)
    }

    /// The grant of a container whose process is started now. `None`: it has ended or is being ended.
    pub(super) fn start(&mut self, id: ContainerId) -> Option<Container> {
        let held = self.held.get_mut(&id)?;
        if held.state != HeldState::Granted {
            return None;
        }
        held.state = HeldState::Started;
        Some(held.grant.clone())
    }

    /// The container of a member.
    pub(super) fn of_member(&self, member: Member) -> Option<(ContainerId, &HeldContainer)> {
        let mut held = self.held.iter();
        held.find(|(_, held)| held.member() == Some(member)).map(|(id, held)| (*id, held))
    }

    /// Marks a container as ending; its completion is awaited.
    pub(super) fn mark_stopping(&mut self, id: ContainerId) {
        if let Some(held) = self.held.get_mut(&id) {
            held.state = HeldState::Ending;
        }
    }

    /// A container has ended. `None`: it is unknown, or its end was reported before.
    pub(super) fn ended(&mut self, id: ContainerId) -> Option<HeldContainer> {
        self.registered_early.remove(&id);
        self.held.remove(&id)
    }

    /// Notes that the NodeManager of a host does not answer: requests exclude the host for a time.
    pub(super) fn is_unreachable(&mut self, host: &str, now: Duration) {
        self.unreachable.insert(host.to_owned(), now + UNREACHABLE_FOR);
    }

    /// Notes that it answers again.
    pub(super) fn is_back(&mut self, host: &str) {
        self.unreachable.remove(host);
    }

    /// Notes that a container could not be started on a host, though its NodeManager answers. Returns whether all slots avoid
    /// the host from now on.
    pub(super) fn start_failed(&mut self, host: &str, slot: Slot, now: Duration) -> bool {
        self.failed_starts.note(host, slot, now)
    }

    /// Hosts to exclude now; never more than a third of `nodes`, or half where containers could not be started, so that the job
    /// cannot exclude itself from the cluster.
    pub(super) fn exclusions(&mut self, nodes: usize, now: Duration) -> BTreeSet<String> {
        self.unreachable.retain(|_, until| *until > now);
        let slots: Vec<Slot> = self.open.values().map(|open| open.request.member.slot).collect();
        let failed = self.failed_starts.avoided_by(&slots, nodes, now);
        let requested = self.open.values().flat_map(|open| &open.request.avoid);
        let requested: BTreeSet<&String> = requested.collect();
        let mut excluded: BTreeSet<String> = failed.into_iter().map(str::to_owned).collect();
        for host in self.unreachable.keys().chain(requested) {
            if excluded.len() < nodes / 3 {
                excluded.insert(host.clone());
            }
        }
        excluded
    }

    /// Whether a grant or a completion is awaited.
    pub(super) fn awaits(&self) -> bool {
        !self.open.is_empty() || self.held.values().any(|held| held.state == HeldState::Ending)
    }

    /// Where a container is, for display.
    pub(super) fn placement(&self, id: ContainerId) -> Option<PlacementView> {
        let grant = &self.held.get(&id)?.grant;
        Some(PlacementView {
            container: id.to_string(),
            node: grant.node.host.clone(),
            node_http: grant.node_http_address.clone(),
        })
    }
}

/// Distinct hosts that have a pserver which is not being ended.
fn pserver_hosts(held: &BTreeMap<ContainerId, HeldContainer>) -> BTreeSet<&str> {
    let is_pserver = |held: &&HeldContainer| {
        let role = held.member().map(|member| member.slot.role);
        held.state != HeldState::Ending && role == Some(Role::Pserver)
    };
    held.values().filter(is_pserver).map(|held| held.node().host.as_str()).collect()
}

#[cfg(test)]
#[path = "containers_tests.rs"]
mod tests;
