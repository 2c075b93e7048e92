//! Containers from the ask to the registration, and their ends.
//!
//! A slot that is wanted and empty asks. Its container registers with the incarnation of the ask. A trainer is
//! *registered* as soon as its first line arrives and *joins* when no cut bars it (see `membership`): only then pservers
//! serve it and work is dispatched to it. Silent and vanished containers are handled in `liveness`.

use std::sync::Arc;

use heddle_protocol::control::{Command, HeartbeatStats, Registration};
use heddle_protocol::ids::{Incarnation, Member, Role, Slot};
use heddle_protocol::mutation::Mutation;
use heddle_protocol::view;

use super::link::{ControlLink, PortProbe};
use super::reservations::{are_trainers_smaller, step_back};
use super::restart_policy::{self, Cause, FailureClass};
use super::slots::{Admission, ContainerInfo, RegisteredContainer, SlotStatus};
use super::{Fleet, Loss};
use crate::action::{Action, ConnectionId, ContainerName, ContainerOrder, ContainerRequest};
use crate::context::Context;
use crate::context::deadlines::Purpose;
use crate::event::Exit;

/// A registration that was accepted.
#[derive(Clone, Debug)]
pub(crate) struct AcceptedRegistration {
    /// The same container registered before, on another connection.
    pub again: bool,
    /// A stale container that held the slot until now, and whether it was a member of the job.
    pub replaced: Option<(Member, bool)>,
}

/// What follows from the end of a container.
#[derive(Clone, Debug)]
pub(crate) enum ContainerEnd {
    /// Nothing.
    NothingFollows,
    /// Its slot is to be emptied.
    Lost(Loss),
    /// The job ends with this error. With its loss, if a trainer's slot is to be emptied.
    Fails { error: String, loss: Option<Loss> },
}

impl Fleet {
    /// Asks for the containers that are wanted and missing. `gang_min`: until all pservers and this many trainers have
    /// containers, only those are asked for. (Otherwise two jobs that fill a cluster with trainers would wait for each
    /// other's pservers without end.) `serves`: whether a pserver has shards.
    ///
    /// # Errors
    /// A slot has used up its incarnations.
    pub(crate) fn reconcile(
        &mut self,
        started: bool,
        serves: impl Fn(Slot) -> bool,
        ctx: &mut Context,
    ) -> Result<(), String> {
        if !self.slots.changed {
            return Ok(());
        }
        if let Some(slot) = self.slots.exhausted() {
            return Err(format!(
                "this ApplicationMaster has no number left for another container of {slot}: run the job again to continue"
            ));
        }
        let spec = &ctx.config().spec;
        if started && are_trainers_smaller(spec) {
            for member in step_back(&mut self.slots, spec.trainers.min, serves, ctx.now()) {
                ctx.order(ContainerOrder::CancelAsk(member));
            }
        }
        let gang_min = (!started).then(|| self.trainers_to_start(ctx));
        let (asks, next) = self.slots.ask(ctx.now(), gang_min);
        let avoid = if asks.is_empty() { Vec::new() } else { self.nodes_to_avoid(ctx) };
        for member in asks {
            let slot = member.slot;
            let prefer = match slot.role {
                Role::Pserver => Vec::new(),
                Role::Trainer => self.locality.hosts_for(slot.index),
            };
            let memory = self.memory_of(slot, ctx);
            let mut avoid = avoid.clone();
            if let Some(node) = self.slow_nodes.take_left(slot)
                && !avoid.contains(&node)
            {
                avoid.push(node);
            }
            let request = ContainerRequest { member, avoid, prefer, memory };
            ctx.order(ContainerOrder::Ask(request));
        }
        match next {
            Some(at) => ctx.set_deadline(Purpose::Reconcile, at),
            None => ctx.clear_deadline(Purpose::Reconcile),
        }
        Ok(())
    }

    /// Sets which slots are to be filled: all pservers, the first trainers, and extra ones. Those that join
    /// first work, the others are spares.
    pub(super) fn set_wanted(&mut self) {
        self.slots.changed = true;
        self.slots.pservers = self.wanted.size.pservers;
        let slots = self.slots.entries.keys().copied();
        let wanted: Vec<bool> = slots.map(|slot| self.has_part(slot)).collect();
        for (entry, wanted) in self.slots.entries.values_mut().zip(wanted) {
            entry.wanted = wanted;
        }
    }

    /// Whether a slot has a part in the job by the numbers of containers, also when the job ends.
    fn has_part(&self, slot: Slot) -> bool {
        let is_counted = slot.index < self.slots_wanted(slot.role);
        (is_counted && !self.idle.has_released(slot)) || self.extra.is_wanted(slot)
    }

    /// How many slots of a role the wanted number and spares fill.
    pub(super) fn slots_wanted(&self, role: Role) -> u32 {
        let (wanted, spares) = match role {
            Role::Pserver => (self.wanted.size.pservers, self.spares.pservers),
            Role::Trainer => (self.wanted.size.trainers, self.spares.trainers),
        };
        wanted.saturating_add(spares)
    }

    /// Whether a slot is empty and has a part in the job only if the numbers change.
    pub(crate) fn is_unused(&self, slot: Slot) -> bool {
        let entry = self.slots.entries.get(&slot);
        let is_empty = entry.is_none_or(|slot| matches!(slot.status, SlotStatus::Empty { .. }));
        is_empty && !self.has_part(slot)
    }

    /// The cluster has granted a container for an ask. Returns whether a process is started in it.
    pub(crate) fn allocated(
        &mut self,
        container: ContainerName,
        slot: Slot,
        incarnation: Incarnation,
        node: String,
        ctx: &mut Context,
    ) -> bool {
        if self.slots.containers.contains_key(&container) {
            // Granted a second time after the ResourceManager failed over.
            return false;
        }
        match self.slots.allocated(&container, slot, incarnation, node, ctx.now()) {
            Some(member) => {
                let registration_ms = ctx.limits().registration_ms;
                ctx.set_deadline_at_latest(Purpose::Liveness, ctx.now() + registration_ms);
                // The last container that the job needs to begin lets the others be asked for.
                let gang = self.wanted.size.pservers + self.trainers_to_start(ctx);
                self.slots.changed |=
                    self.slots.rest_waits && self.slots.containers.len() >= gang as usize;
                ctx.order(ContainerOrder::Launch { container, member });
                true
            }
            None => {
                ctx.order(ContainerOrder::Release(container));
                false
            }
        }
    }

    /// A container has ended.
    pub(crate) fn exited(
        &mut self,
        container: &ContainerName,
        exit: &Exit,
        text: &str,
        ctx: &mut Context,
    ) -> ContainerEnd {
        // The end of a container is reported several times; those of strangers are ignored.
        let Some(info) = self.slots.containers.remove(container) else {
            return ContainerEnd::NothingFollows;
        };
        self.preempted.remove(container);
        let Some(member) = info.member else {
            return ContainerEnd::NothingFollows;
        };
        if self.slots.container(member.slot) != Some(container) {
            return match info.given_up {
                true => self.exited_after_loss(member, &info, exit, text, ctx),
                false => ContainerEnd::NothingFollows,
            };
        }
        let holder = self.slots.holder(member.slot);
        let draining = holder.is_some_and(|holder| holder.draining.is_some());
        let mut class = match restart_policy::classify(exit) {
            _ if info.ours || (draining && !restart_policy::by_itself(exit)) => FailureClass::None,
            class => class,
        };
        if let (Exit::OutOfMemory { error }, false) = (exit, info.ours) {
            match self.more_memory(member.slot, info.memory_retries, error, ctx) {
                Ok(()) => class = FailureClass::None,
                Err(error) if member.slot.role == Role::Trainer => {
                    let (slot, node) = (member.slot, info.node);
                    let cause = Cause::new(exit, text);
                    let loss = Some(Loss { slot, cause, class: FailureClass::None, node });
                    return ContainerEnd::Fails { error, loss };
                }
                Err(error) => {
                    // The report names it among those that failed, not among those that ran to the end.
                    ctx.notice(view::JobEvent::Lost {
                        slot: member.slot,
                        incarnation: member.incarnation,
                        cause: restart_policy::words(exit),
                    });
                    return ContainerEnd::Fails { error, loss: None };
                }
            }
        }
        // The processes of a lost node may live on. One that still gets answers would never learn that it was replaced:
        // without a connection it registers again, is refused, and ends.
        let may_live = matches!(exit, Exit::NodeLost);
        let connection = self.slots.holder(member.slot).and_then(|holder| holder.link.connection());
        if let Some(connection) = connection.filter(|_| !may_live) {
            // Its last report may still be on the way: the reason of an end is worth more than the end.
            self.ended_connections.insert(connection, member.slot);
        }
        let cause = Cause::new(exit, text);
        ContainerEnd::Lost(Loss { slot: member.slot, cause, class, node: info.node })
    }

    /// The cluster reports the end of a container whose slot was emptied before, when its port refused or it was silent.
    fn exited_after_loss(
        &mut self,
        member: Member,
        info: &ContainerInfo,
        exit: &Exit,
        text: &str,
        ctx: &mut Context,
    ) -> ContainerEnd {
        let slot = member.slot;
        match exit {
            Exit::OutOfMemory { .. } if Mutation::LateMemoryExitIsCrash.is_on() => {
                self.failures.take_back(member);
                self.note_failure_only(member, exit, text, &info.node, ctx)
            }
            Exit::OutOfMemory { error } => {
                self.failures.take_back(member);
                match self.more_memory(slot, info.memory_retries, error, ctx) {
                    Ok(()) => self.ask_again(slot, ctx),
                    Err(error) => return ContainerEnd::Fails { error, loss: None },
                }
                ContainerEnd::NothingFollows
            }
            // It ended for its own reason before it was stopped.
            _ if restart_policy::by_itself(exit) => {
                self.failures.take_back(member);
                self.note_failure_only(member, exit, text, &info.node, ctx)
            }
            Exit::NodeLost | Exit::Preempted | Exit::Code(9 | 20) => {
                self.failures.take_back(member);
                ContainerEnd::NothingFollows
            }
            // A kill, or the stop that followed it: both leave the same codes.
            Exit::Code(_) | Exit::Signal(_) | Exit::NotStarted { .. } | Exit::ByCluster { .. } => {
                self.failures.explain(member, &Cause::new(exit, text).detail);
                ContainerEnd::NothingFollows
            }
        }
    }

    /// Counts a failure of a container whose slot was given up before its end was known.
    fn note_failure_only(
        &mut self,
        member: Member,
        exit: &Exit,
        text: &str,
        node: &str,
        ctx: &Context,
    ) -> ContainerEnd {
        let cause = Cause::new(exit, text).detail;
        let class = restart_policy::classify(exit);
        self.failures.note(ctx.now(), member, node, class, self.progress, &cause);
        match self.crash_loop(ctx) {
            Some(error) => ContainerEnd::Fails { error, loss: None },
            None => ContainerEnd::NothingFollows,
        }
    }

    /// The ask of a slot has changed: an open ask, or a container that has not registered, is of no use.
    fn ask_again(&mut self, slot: Slot, ctx: &mut Context) {
        let now = ctx.now();
        let Some(entry) = self.slots.entries.get_mut(&slot) else {
            debug_assert!(false, "{slot} had a container");
            return;
        };
        match entry.status {
            SlotStatus::Asked => {
                entry.status = SlotStatus::Empty { not_before: now };
                let incarnation = entry.incarnation;
                self.slots.changed = true;
                ctx.order(ContainerOrder::CancelAsk(Member { slot, incarnation }));
            }
            SlotStatus::Starting { .. } => {
                if let Some(container) = self.slots.vacate(slot, now) {
                    self.stop_container(&container, 0, ctx);
                }
            }
            SlotStatus::Empty { .. } | SlotStatus::Held(_) => {}
        }
    }

    /// A container registers. `refusal`: why the job takes no container now. Returns nothing if it is refused.
    pub(crate) fn register(
        &mut self,
        connection: ConnectionId,
        registration: Registration,
        refusal: Option<&str>,
        ctx: &mut Context,
    ) -> Option<AcceptedRegistration> {
        let (member, pid) = (registration.member, registration.pid);
        let (container, host) =
            (registration.container.clone().map(ContainerName), registration.host.clone());
        let asked = self.slots.entries.get(&member.slot).and_then(|entry| match entry.status {
            SlotStatus::Asked => Some(entry.incarnation),
            SlotStatus::Empty { .. } | SlotStatus::Starting { .. } | SlotStatus::Held(_) => None,
        });
        let before = self.slots.holder(member.slot).map(|holder| (holder.member, holder.joined));
        let is_adopted = refusal.is_none() && self.adopts_extra_trainer(member.slot);
        let admission = match refusal {
            Some(reason) => Admission::Refused(reason.to_owned()),
            None => {
                let registered = registered_container(connection, registration, ctx);
                self.slots.register(registered, self.adopting)
            }
        };
        let again = match admission {
            Admission::Refused(reason) => {
                if is_adopted {
                    self.forget_extra_trainer(member.slot);
                }
                self.refuse(connection, member, container.as_ref(), reason, ctx);
                return None;
            }
            Admission::Again { old } => {
                if let Some(connection) = old {
                    ctx.push(Action::Disconnect { connection });
                }
                true
            }
            Admission::New => {
                if let Some(incarnation) = asked {
                    // A container of an earlier attempt has registered after all.
                    ctx.order(ContainerOrder::CancelAsk(Member { slot: member.slot, incarnation }));
                }
                false
            }
        };
        if let Some(container) = container {
            // A container of an earlier attempt: now its member is known.
            let known = self.slots.containers.entry(container);
            let info = known.or_insert_with(|| ContainerInfo::on(host.clone()));
            (info.member, info.given_up) = (Some(member), false);
        }
        let suspect_ms = ctx.limits().suspect_ms;
        ctx.set_deadline_at_latest(Purpose::Liveness, ctx.now() + suspect_ms);
        self.send(member.slot, Arc::clone(&self.welcome), ctx);
        if !again {
            let (slot, incarnation) = (member.slot, member.incarnation);
            ctx.notice(view::JobEvent::Registered { slot, incarnation, pid, host });
        }
        Some(AcceptedRegistration { again, replaced: before.filter(|(old, _)| *old != member) })
    }

    fn refuse(
        &mut self,
        connection: ConnectionId,
        member: Member,
        container: Option<&ContainerName>,
        reason: String,
        ctx: &mut Context,
    ) {
        let command = Arc::new(Command::Refused { reason });
        ctx.push(Action::Send { connection, member: Some(member), command });
        ctx.push(Action::Disconnect { connection });
        // A container of an earlier attempt is not one that may still register.
        if let Some(container) = container
            && let Some(info) = self.slots.containers.get_mut(container)
            && info.member.is_none()
        {
            (info.member, info.given_up) = (Some(member), true);
            self.stop_container(container, 0, ctx);
        }
    }
}

fn registered_container(
    connection: ConnectionId,
    registration: Registration,
    ctx: &Context,
) -> RegisteredContainer {
    let Registration { member, pid, host, container, endpoints, .. } = registration;
    RegisteredContainer {
        member,
        container: container.map(ContainerName),
        pid,
        host,
        endpoints,
        link: ControlLink::Open(connection),
        last_seen: ctx.now(),
        probe: PortProbe::default(),
        draining: None,
        joined: false,
        registered: ctx.now(),
        connected: ctx.now(),
        standstill: None,
        unreachable: Default::default(),
        heartbeat: HeartbeatStats::default(),
        heartbeat_at: ctx.now(),
        per_second: 0.0,
    }
}
