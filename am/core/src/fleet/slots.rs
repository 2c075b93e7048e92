//! Slots of the job and the containers that fill them.
//!
//! ```text
//!            ask               allocated           registered
//!  Empty ───────────▶ Asked ───────────▶ Starting ───────────▶ Held
//!    ▲                  │ not wanted        │ exited, too late    │ exited, dead, superseded
//!    └──────────────────┴───────────────────┴─────────────────────┘
//! ```
//!
//! **Reconcile, do not count events.** A slot that is wanted and empty asks, once; so asks never exceed what is
//! needed, however often a grant or an end is reported. Each filling has its own incarnation, which belongs to the ask,
//! the process and all its connections: messages of an older incarnation are refused by number.
//!
//! A container stays in [`Slots::containers`] until the cluster reports its end, even if its slot has been
//! given to another: the end of a dead node's container may be reported ten minutes later, and the job does not wait for that.

use std::collections::btree_map::Range;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use heddle_protocol::control::{HeartbeatStats, LongStep};
use heddle_protocol::ids::{Generation, Incarnation, Member, Role, Slot};
use heddle_protocol::job_spec::{PserverSpec, TrainerSpec};
use heddle_protocol::mutation::Mutation;

use super::link::{ControlLink, PortProbe};
use crate::action::{ConnectionId, ContainerName};
use crate::time::MonotonicMs;

/// Incarnations of a generation start above this multiple, so that a new attempt, which cannot know how
/// often an earlier one filled a slot, never gives a number twice. [`Slots::exhausted`] ends the attempt before its
/// numbers reach the next generation's. A slot that is preempted each minute lasts for two months.
const INCARNATIONS_PER_GENERATION: u32 = 100_000;

/// A registered container.
#[derive(Clone, Debug)]
pub(crate) struct RegisteredContainer {
    pub member: Member,
    /// Not known of one that an earlier attempt started.
    pub container: Option<ContainerName>,
    pub pid: u32,
    pub host: String,
    /// Pserver: one per data thread.
    pub endpoints: Vec<SocketAddr>,
    pub link: ControlLink,
    /// When the last line came.
    pub last_seen: MonotonicMs,
    pub probe: PortProbe,
    /// Since when it is handing back its work.
    pub draining: Option<MonotonicMs>,
    /// Trainer: a member of the job, known to the pservers.
    pub joined: bool,
    pub registered: MonotonicMs,
    /// When its present connection registered.
    pub connected: MonotonicMs,
    /// What its last heartbeats say of its progress.
    pub standstill: Option<Standstill>,
    /// Trainer: pservers that it cannot reach, and since when.
    pub unreachable: BTreeMap<Member, MonotonicMs>,
    pub heartbeat: HeartbeatStats,
    pub heartbeat_at: MonotonicMs,
    /// Per second, between the last two beats: records (trainer), push frames (pserver).
    pub per_second: f64,
}

/// What a container's last two heartbeats say of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standstill {
    /// A thread, or the path to it, stands still: the cause, to follow its name.
    Hangs(String),
    /// Its algorithm computes a step without end.
    Stuck(LongStep),
}

/// What is in a slot.
#[derive(Clone, Debug)]
pub(crate) enum SlotStatus {
    /// Nothing; not to be filled before this time.
    Empty { not_before: MonotonicMs },
    /// A container has been asked for.
    Asked,
    /// A container was given and its process is being started; it has not registered yet.
    Starting { container: ContainerName, since: MonotonicMs },
    /// A registered container.
    Held(Box<RegisteredContainer>),
}

/// One slot.
#[derive(Clone, Debug)]
pub(crate) struct SlotEntry {
    /// Of the latest filling; 0 before the first.
    pub incarnation: Incarnation,
    pub wanted: bool,
    pub status: SlotStatus,
    /// Containers that were ended for using more memory than they had.
    pub memory_retries: u32,
}

/// A container that the cluster has given us and not yet reported as ended.
#[derive(Clone, Debug)]
pub(crate) struct ContainerInfo {
    /// The member that the container was allocated for; `None` for a container of an earlier attempt that has not registered.
    pub member: Option<Member>,
    pub node: String,
    /// We ended it: however it ends, that is not a failure.
    pub ours: bool,
    /// Its slot was taken from it before its end was known.
    pub given_up: bool,
    /// [`SlotEntry::memory_retries`] when it was asked for.
    pub memory_retries: u32,
    /// The cluster has reported that its node leaves soon.
    pub is_departing: bool,
}

impl ContainerInfo {
    /// A container of an earlier attempt on this node.
    pub(crate) fn on(node: String) -> Self {
        Self {
            member: None,
            node,
            ours: false,
            given_up: false,
            memory_retries: 0,
            is_departing: false,
        }
    }
}

/// All slots, containers and connections of the job.
#[derive(Clone, Debug)]
pub(crate) struct Slots {
    pub entries: BTreeMap<Slot, SlotEntry>,
    pub containers: BTreeMap<ContainerName, ContainerInfo>,
    /// Connections of holders. A holder's older connection is forgotten as soon as a newer one registers.
    pub connections: BTreeMap<ConnectionId, Slot>,
    /// A slot may have to be asked for: looking for it walks all of them.
    pub changed: bool,
    /// Slots that the job can begin without wait until the others have containers.
    pub rest_waits: bool,
    /// Trainers that have registered and, when last looked at, had not joined.
    pub joining: BTreeSet<Slot>,
    /// Registered containers by role. Asked with nearly every event.
    held: BTreeMap<Role, usize>,
    /// Pservers that the job needs to begin: the others are spares.
    pub pservers: u32,
    floor: Incarnation,
}

/// What became of a registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// The first of this container.
    New,
    /// The same container on a new connection; the old one, if there still is one, is to be closed.
    Again { old: Option<ConnectionId> },
    /// Not wanted.
    Refused(String),
}

impl Slots {
    /// Slots of a job's pservers and trainers, spares included.
    pub(crate) fn new(
        pservers: &PserverSpec,
        trainers: &TrainerSpec,
        generation: Generation,
    ) -> Self {
        let entry = || SlotEntry {
            incarnation: Incarnation(0),
            wanted: false,
            status: SlotStatus::Empty { not_before: MonotonicMs(0) },
            memory_retries: 0,
        };
        let slots = (0..pservers.slots()).map(Slot::pserver);
        let slots = slots.chain((0..trainers.slots()).map(Slot::trainer));
        Self {
            entries: slots.map(|slot| (slot, entry())).collect(),
            containers: BTreeMap::new(),
            connections: BTreeMap::new(),
            changed: true,
            rest_waits: false,
            joining: BTreeSet::new(),
            held: BTreeMap::new(),
            pservers: pservers.count,
            floor: Incarnation(
                generation.0.saturating_sub(1).saturating_mul(INCARNATIONS_PER_GENERATION),
            ),
        }
    }

    /// A slot that has used up the incarnations of this generation.
    pub(crate) fn exhausted(&self) -> Option<Slot> {
        let last = self.floor.0.saturating_add(INCARNATIONS_PER_GENERATION);
        self.entries
            .iter()
            .find(|(_, entry)| entry.incarnation.max(self.floor).0 >= last)
            .map(|(slot, _)| *slot)
    }

    /// The registered container in a slot.
    pub(crate) fn holder(&self, slot: Slot) -> Option<&RegisteredContainer> {
        match &self.entries.get(&slot)?.status {
            SlotStatus::Held(holder) => Some(holder),
            SlotStatus::Empty { .. } | SlotStatus::Asked | SlotStatus::Starting { .. } => None,
        }
    }

    pub(crate) fn holder_mut(&mut self, slot: Slot) -> Option<&mut RegisteredContainer> {
        match &mut self.entries.get_mut(&slot)?.status {
            SlotStatus::Held(holder) => Some(holder),
            SlotStatus::Empty { .. } | SlotStatus::Asked | SlotStatus::Starting { .. } => None,
        }
    }

    /// The registered container that is exactly this member.
    pub(crate) fn member(&self, member: Member) -> Option<&RegisteredContainer> {
        self.holder(member.slot).filter(|holder| holder.member == member)
    }

    /// The slots of a role, from this index on.
    pub(crate) fn range_from(&self, role: Role, index: u32) -> Range<'_, Slot, SlotEntry> {
        self.entries.range(Slot { role, index }..=Slot { role, index: u32::MAX })
    }

    /// All registered containers of a role, by slot.
    pub(crate) fn holders(&self, role: Role) -> impl Iterator<Item = &RegisteredContainer> {
        self.range_from(role, 0).filter_map(|(_, entry)| match &entry.status {
            SlotStatus::Held(holder) => Some(&**holder),
            SlotStatus::Empty { .. } | SlotStatus::Asked | SlotStatus::Starting { .. } => None,
        })
    }

    /// How many containers of a role are registered.
    pub(crate) fn held(&self, role: Role) -> usize {
        let held = self.held.get(&role).copied().unwrap_or_default();
        debug_assert_eq!(held, self.holders(role).count());
        held
    }

    /// The member at the other end of a connection; none if it has been replaced or given up.
    pub(crate) fn at(&self, connection: ConnectionId) -> Option<Member> {
        let holder = self.holder(*self.connections.get(&connection)?)?;
        (holder.link.connection() == Some(connection)).then_some(holder.member)
    }

    /// Slots that are wanted, empty, and whose pause is over; each becomes `Asked` with a new incarnation. And when the
    /// next pause is over.
    ///
    /// `gang_min`: until all pservers but the spares, and this number of trainers, have containers, only those.
    pub(crate) fn ask(
        &mut self,
        now: MonotonicMs,
        gang_min: Option<u32>,
    ) -> (Vec<Member>, Option<MonotonicMs>) {
        self.changed = false;
        let pservers = self.pservers;
        let needed = |slot: &Slot| match slot.role {
            Role::Pserver => slot.index < pservers,
            Role::Trainer => gang_min.is_none_or(|trainers| slot.index < trainers),
        };
        let has_container = |entry: &SlotEntry| {
            matches!(entry.status, SlotStatus::Starting { .. } | SlotStatus::Held(_))
        };
        let complete = gang_min.is_none()
            || self.entries.iter().all(|(slot, entry)| !needed(slot) || has_container(entry));
        self.rest_waits = !complete;
        let (mut asks, mut next) = (Vec::new(), None);
        for (slot, entry) in &mut self.entries {
            let SlotStatus::Empty { not_before } = entry.status else {
                continue;
            };
            if !entry.wanted || !(complete || needed(slot)) {
                continue;
            }
            if not_before <= now {
                entry.incarnation = entry.incarnation.max(self.floor).next();
                entry.status = SlotStatus::Asked;
                asks.push(Member { slot: *slot, incarnation: entry.incarnation });
            } else {
                next = Some(next.map_or(not_before, |next: MonotonicMs| next.min(not_before)));
            }
        }
        (asks, next)
    }

    /// The cluster granted a container for this ask. Returns the member to launch in it; none: it is not needed.
    pub(crate) fn allocated(
        &mut self,
        container: &ContainerName,
        slot: Slot,
        incarnation: Incarnation,
        node: String,
        now: MonotonicMs,
    ) -> Option<Member> {
        let entry = self.entries.get_mut(&slot)?;
        if !matches!(entry.status, SlotStatus::Asked)
            || entry.incarnation != incarnation
            || !entry.wanted
        {
            return None;
        }
        let member = Member { slot, incarnation };
        let memory_retries = entry.memory_retries;
        entry.status = SlotStatus::Starting { container: container.clone(), since: now };
        self.containers.insert(
            container.clone(),
            ContainerInfo {
                member: Some(member),
                node,
                ours: false,
                given_up: false,
                memory_retries,
                is_departing: false,
            },
        );
        Some(member)
    }

    /// Decides about a registration and, if it is accepted, makes it the slot's holder.
    ///
    /// `adopting`: containers of an earlier attempt may still register. They are accepted as long as this attempt has not
    /// started a container for the slot.
    pub(crate) fn register(
        &mut self,
        mut holder: RegisteredContainer,
        adopting: bool,
    ) -> Admission {
        let member = holder.member;
        let floor = self.floor;
        let Some(entry) = self.entries.get_mut(&member.slot) else {
            return Admission::Refused(format!("the job has no {}", member.slot));
        };
        // A pserver that is to go may still serve shards.
        let adopts = adopting && !Mutation::UnwantedPserverIsRefused.is_on();
        let stays = |current: &RegisteredContainer| current.member == member;
        let may_stay = member.slot.role == Role::Pserver
            && (adopts || matches!(&entry.status, SlotStatus::Held(held) if stays(held)));
        if !(entry.wanted || may_stay) {
            return Admission::Refused(format!("{} is not wanted any more", member.slot));
        }
        let superseded = || Admission::Refused(format!("{} has been replaced", member.slot));
        let old = match &entry.status {
            SlotStatus::Starting { container, .. } if entry.incarnation == member.incarnation => {
                holder.container = Some(container.clone());
                None
            }
            SlotStatus::Held(current) if current.member == member => {
                holder.container = current.container.clone();
                holder.heartbeat = current.heartbeat.clone();
                holder.heartbeat_at = current.heartbeat_at;
                holder.unreachable.clone_from(&current.unreachable);
                holder.registered = current.registered;
                holder.draining = current.draining;
                holder.joined = current.joined;
                let old = current.link.connection();
                if let Some(connection) = old {
                    self.connections.remove(&connection);
                }
                self.put(holder);
                return Admission::Again { old };
            }
            // A container of an earlier attempt, and nothing of ours runs or starts in its place. The higher
            // incarnation of two such ones wins.
            SlotStatus::Empty { .. } | SlotStatus::Asked
                if adopting && member.incarnation <= floor =>
            {
                None
            }
            SlotStatus::Held(current)
                if adopting
                    && member.incarnation <= floor
                    && current.member.incarnation < member.incarnation =>
            {
                current.link.connection()
            }
            SlotStatus::Empty { .. }
            | SlotStatus::Asked
            | SlotStatus::Starting { .. }
            | SlotStatus::Held(_) => {
                return superseded();
            }
        };
        if let Some(connection) = old {
            self.connections.remove(&connection);
        }
        entry.incarnation = entry.incarnation.max(member.incarnation);
        self.put(holder);
        match old {
            None => Admission::New,
            old => Admission::Again { old },
        }
    }

    fn put(&mut self, holder: RegisteredContainer) {
        let slot = holder.member.slot;
        if slot.role == Role::Trainer && !holder.joined {
            self.joining.insert(slot);
        }
        if let Some(connection) = holder.link.connection() {
            self.connections.insert(connection, slot);
        }
        let Some(entry) = self.entries.get_mut(&slot) else {
            debug_assert!(false, "{slot} is a slot of the job");
            return;
        };
        let before = std::mem::replace(&mut entry.status, SlotStatus::Held(Box::new(holder)));
        if !matches!(before, SlotStatus::Held(_)) {
            *self.held.entry(slot.role).or_default() += 1;
        }
    }

    /// Empties a slot. Returns the container to stop, if there is one that the cluster has not reported as ended.
    pub(crate) fn vacate(&mut self, slot: Slot, not_before: MonotonicMs) -> Option<ContainerName> {
        let entry = self.entries.get_mut(&slot);
        debug_assert!(entry.is_some(), "{slot} is a slot of the job");
        let entry = entry?;
        self.changed = true;
        let old = std::mem::replace(&mut entry.status, SlotStatus::Empty { not_before });
        let container = match old {
            SlotStatus::Empty { .. } | SlotStatus::Asked => None,
            SlotStatus::Starting { container, .. } => Some(container),
            SlotStatus::Held(holder) => {
                let held = self.held.get_mut(&slot.role);
                debug_assert!(held.as_ref().is_some_and(|held| **held > 0), "it was counted");
                if let Some(held) = held {
                    *held = held.saturating_sub(1);
                }
                if let Some(connection) = holder.link.connection() {
                    self.connections.remove(&connection);
                }
                holder.container
            }
        };
        container.filter(|container| self.containers.contains_key(container))
    }

    /// The container in a slot, starting or registered.
    pub(crate) fn container(&self, slot: Slot) -> Option<&ContainerName> {
        match &self.entries.get(&slot)?.status {
            SlotStatus::Empty { .. } | SlotStatus::Asked => None,
            SlotStatus::Starting { container, .. } => Some(container),
            SlotStatus::Held(holder) => holder.container.as_ref(),
        }
    }

    /// The driver stood still for this time: containers were not silent meanwhile.
    pub(crate) fn forgive(&mut self, late_ms: u64, now: MonotonicMs) {
        let later = |at: MonotonicMs| (at + late_ms).min(now);
        for entry in self.entries.values_mut() {
            match &mut entry.status {
                SlotStatus::Held(holder) => holder.last_seen = later(holder.last_seen),
                SlotStatus::Starting { since, .. } => *since = later(*since),
                SlotStatus::Empty { .. } | SlotStatus::Asked => {}
            }
        }
    }

    /// The node of the container in a slot, as far as known.
    pub(crate) fn node(&self, slot: Slot) -> Option<&str> {
        let info = self.containers.get(self.container(slot)?)?;
        Some(info.node.as_str()).filter(|node| !node.is_empty())
    }

    /// Distinct nodes that containers are on.
    pub(crate) fn nodes(&self) -> usize {
        let nodes: BTreeSet<&str> =
            self.containers.values().map(|info| info.node.as_str()).collect();
        nodes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_never_uses_a_number_of_the_next_generation() {
        let mut spec = heddle_protocol::job_spec::job::sample();
        (spec.pservers.count, spec.trainers.max) = (0, 1);
        let of = |generation| Slots::new(&spec.pservers, &spec.trainers, Generation(generation));
        for generation in [1, 2, 40_000, u32::MAX] {
            let mut slots = of(generation);
            let next = of(generation.saturating_add(1));
            let slot = Slot::trainer(0);
            let mut last = slots.floor;
            while slots.exhausted().is_none() {
                let entry = slots.entries.get_mut(&slot).expect("it is a slot of the job");
                entry.wanted = true;
                entry.status = SlotStatus::Empty { not_before: MonotonicMs(0) };
                let (asks, _) = slots.ask(MonotonicMs(0), None);
                assert!(asks[0].incarnation > last, "numbers rise");
                last = asks[0].incarnation;
            }
            assert!(last <= next.floor, "generation {generation}");
        }
    }
}
