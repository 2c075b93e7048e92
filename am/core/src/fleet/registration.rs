//! Who is in the job: asking, starting, registering, joining.
//!
//! A slot that is wanted and empty asks; its container registers with the incarnation of the ask and is told all that
//! holds. A trainer is *registered* as soon as it speaks and *joins* when no cut bars it: only then pservers
//! serve it and work is given to it. Who is silent or gone is the business of `liveness`.

use std::net::SocketAddr;
use std::sync::Arc;

use heddle_protocol::control::{Command, HeartbeatStats, PserverState, TrainerState};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::{Incarnation, Member, Role, Slot};
use heddle_protocol::mutation::Mutation;
use heddle_protocol::view;

use crate::action::{Action, ConnectionId, ContainerId};
use crate::context::deadlines::Purpose;
use crate::core::{Core, JobStage};
use crate::event::Exit;
use crate::fleet::restart_policy::{self, FailureClass};
use crate::fleet::slots::{Admission, ContainerInfo, RegisteredContainer, SlotStatus};

impl Core {
    /// Asks for what is wanted and not there.
    pub(crate) fn reconcile(&mut self) {
        if matches!(
            self.stage,
            JobStage::New | JobStage::Takeover(_) | JobStage::Stopping(_) | JobStage::Over
        ) {
            return;
        }
        if !self.slots.changed {
            return;
        }
        if let Some(slot) = self.slots.exhausted() {
            return self.fail(
                ExitCode::JobFailed,
                format!("this ApplicationMaster has no number left for another container of {slot}: run the job again to continue"),
            );
        }
        // Who can only help a job that runs is asked for once those are there without whom it cannot begin: two
        // jobs that fill a cluster with trainers would wait for each other's pservers for ever.
        let gang_min = (!self.started).then(|| self.trainers_to_start());
        let (asks, next) = self.slots.ask(self.now.mono, gang_min);
        let avoid = if asks.is_empty() { Vec::new() } else { self.nodes_to_avoid() };
        for (slot, incarnation) in asks {
            let prefer = match slot.role {
                Role::Pserver => Vec::new(),
                Role::Trainer => self.locality.hosts_for(slot.index),
            };
            self.out.push(Action::Ask {
                slot,
                incarnation,
                avoid: avoid.clone(),
                prefer,
                memory: self.memory_of(slot),
            });
        }
        match next {
            Some(at) => self.deadlines.set(Purpose::Reconcile, at),
            None => self.deadlines.clear(Purpose::Reconcile),
        }
    }

    /// Which slots are to be filled: all pservers, and so many trainers.
    pub(crate) fn set_wanted(&mut self) {
        let trainers = self.trainers_wanted;
        self.slots.changed = true;
        for (slot, entry) in &mut self.slots.entries {
            entry.wanted = slot.role == Role::Pserver || slot.index < trainers;
        }
    }

    pub(crate) fn allocated(
        &mut self,
        container: ContainerId,
        slot: Slot,
        incarnation: Incarnation,
        node: String,
    ) {
        if self.slots.containers.contains_key(&container) {
            // Granted a second time after the ResourceManager failed over.
            return;
        }
        match self.slots.allocated(&container, slot, incarnation, node, self.now.mono) {
            Some(member) => {
                self.deadlines.at_latest(
                    Purpose::Liveness,
                    self.now.mono + self.config.limits.registration_ms,
                );
                // The last of those that the job cannot begin without lets the others be asked for.
                let gang = self.config.spec.pservers.count + self.trainers_to_start();
                self.slots.changed |=
                    self.slots.rest_waits && self.slots.containers.len() >= gang as usize;
                self.out.push(Action::Launch { container, member });
            }
            None => self.out.push(Action::Release { container }),
        }
    }

    pub(crate) fn exited(&mut self, container: &ContainerId, exit: &Exit, text: &str) {
        // Told twice, or of a container that was never ours: no news.
        let Some(life) = self.slots.containers.remove(container) else {
            return;
        };
        self.preempting.remove(container);
        let Some(member) = life.member else { return };
        if self.slots.container(member.slot) != Some(container) {
            if life.given_up {
                self.exited_late(member, &life, exit, text);
            }
            return;
        }
        let draining =
            self.slots.holder(member.slot).is_some_and(|holder| holder.draining.is_some());
        let mut class = match restart_policy::classify(exit) {
            _ if life.ours || (draining && !restart_policy::by_itself(exit)) => FailureClass::None,
            class => class,
        };
        if let (Exit::OutOfMemory { error }, false) = (exit, life.ours) {
            match self.more_memory(member.slot, life.memory_retries, error) {
                Ok(()) => class = FailureClass::None,
                Err(end) => {
                    // The report names it among those that failed, not among those that ran to the end.
                    self.notice(view::Event::Lost {
                        slot: member.slot,
                        incarnation: member.incarnation,
                        cause: restart_policy::words(exit),
                    });
                    return self.fail(ExitCode::JobFailed, end);
                }
            }
        }
        // A lost node's processes may live on, and one that is still answered would never learn that it was replaced:
        // without a connection it comes back, is refused, and ends.
        let may_live = matches!(exit, Exit::NodeLost);
        if let Some(connection) =
            self.slots.holder(member.slot).and_then(|holder| holder.connection)
            && !may_live
        {
            // Its last words may still be on the way: what ended it is worth more than that it ended.
            self.last_words.insert(connection, member.slot);
        }
        let cause = restart_policy::Cause::new(exit, text);
        self.lose_for(member.slot, &cause, class, &life.node);
    }

    /// The cluster reports the end of a container whose slot was emptied before, when its port refused or it was silent.
    fn exited_late(&mut self, member: Member, life: &ContainerInfo, exit: &Exit, text: &str) {
        let slot = member.slot;
        match exit {
            Exit::OutOfMemory { .. } if Mutation::LateMemoryExitIsCrash.is_on() => {
                self.failure_history.take_back(member);
                self.note_failure_only(member, exit, text, &life.node);
            }
            Exit::OutOfMemory { error } => {
                self.failure_history.take_back(member);
                match self.more_memory(slot, life.memory_retries, error) {
                    Ok(()) => self.ask_again(slot),
                    Err(end) => self.fail(ExitCode::JobFailed, end),
                }
            }
            // It ended for its own reason before it was stopped.
            _ if restart_policy::by_itself(exit) => {
                self.failure_history.take_back(member);
                self.note_failure_only(member, exit, text, &life.node);
            }
            Exit::NodeLost | Exit::Preempted | Exit::Code(9 | 20) => {
                self.failure_history.take_back(member)
            }
            // A kill, or the stop that followed it: both leave the same codes.
            Exit::Code(_) | Exit::Signal(_) | Exit::NotStarted { .. } | Exit::ByCluster { .. } => {
                self.failure_history
                    .explain(member, &restart_policy::Cause::new(exit, text).detail);
            }
        }
    }

    /// What a slot asks for has changed: an open ask, or a container that has not registered, is of no use.
    fn ask_again(&mut self, slot: Slot) {
        let now = self.now.mono;
        let Some(entry) = self.slots.entries.get_mut(&slot) else {
            return;
        };
        match entry.place {
            SlotStatus::Asked => {
                entry.place = SlotStatus::Empty { not_before: now };
                let incarnation = entry.incarnation;
                self.slots.changed = true;
                self.out.push(Action::CancelAsk { slot, incarnation });
            }
            SlotStatus::Starting { .. } => {
                if let Some(container) = self.slots.vacate(slot, now) {
                    self.stop_container(&container, 0);
                }
            }
            SlotStatus::Empty { .. } | SlotStatus::Held(_) => {}
        }
    }

    /// A container that just registered, as a holder in the making.
    pub(crate) fn newcomer(
        &self,
        connection: ConnectionId,
        member: Member,
        container: Option<ContainerId>,
        pid: u32,
        host: String,
        endpoints: Vec<SocketAddr>,
    ) -> RegisteredContainer {
        RegisteredContainer {
            member,
            container,
            pid,
            host,
            endpoints,
            connection: Some(connection),
            heard: self.now.mono,
            closed: None,
            suspect: false,
            probing: false,
            draining: None,
            joined: false,
            doubtful: Vec::new(),
            registered: self.now.mono,
            unreachable: Default::default(),
            beat: HeartbeatStats::default(),
            beat_at: self.now.mono,
            per_second: 0.0,
        }
    }

    pub(crate) fn registered(
        &mut self,
        connection: ConnectionId,
        holder: RegisteredContainer,
        held: Option<PserverState>,
        busy: Option<TrainerState>,
    ) {
        let (member, pid, host) = (holder.member, holder.pid, holder.host.clone());
        let container = holder.container.clone();
        let refusal = match &self.stage {
            JobStage::New | JobStage::Stopping(_) | JobStage::Over => {
                Some("the job is ending".to_owned())
            }
            _ if member.slot.role == Role::Pserver && holder.endpoints.is_empty() => {
                Some("a pserver without a port".to_owned())
            }
            _ => None,
        };
        let asked = self.slots.entries.get(&member.slot).and_then(|entry| match entry.place {
            SlotStatus::Asked => Some(entry.incarnation),
            SlotStatus::Empty { .. } | SlotStatus::Starting { .. } | SlotStatus::Held(_) => None,
        });
        let before = self.slots.holder(member.slot).map(|holder| (holder.member, holder.joined));
        let admission = match refusal {
            Some(reason) => Admission::Refused(reason),
            None => self.slots.register(holder, self.adopting),
        };
        let again = match admission {
            Admission::Refused(reason) => {
                let command = Arc::new(Command::Refused { reason });
                self.out.push(Action::Send { connection, member: Some(member), command });
                self.out.push(Action::Disconnect { connection });
                if let Some(container) = container {
                    self.release_unknown(&container, member);
                }
                return;
            }
            Admission::Again { old } => {
                if let Some(connection) = old {
                    self.out.push(Action::Disconnect { connection });
                }
                true
            }
            Admission::New => {
                if let Some(incarnation) = asked {
                    // One of an earlier attempt came after all.
                    self.out.push(Action::CancelAsk { slot: member.slot, incarnation });
                }
                false
            }
        };
        if let Some(container) = container {
            // One of an earlier attempt: now it is known who is in it.
            let life = ContainerInfo {
                member: Some(member),
                node: host.clone(),
                ours: false,
                given_up: false,
                memory_retries: 0,
                leaving: false,
            };
            let life = self.slots.containers.entry(container).or_insert(life);
            (life.member, life.given_up) = (Some(member), false);
        }
        self.deadlines.at_latest(Purpose::Liveness, self.now.mono + self.config.limits.suspect_ms);
        self.send(member.slot, Arc::clone(&self.welcome));
        if !again {
            self.recovery_registered(member.slot);
            self.notice(view::Event::Registered {
                slot: member.slot,
                incarnation: member.incarnation,
                pid,
                host,
            });
        }
        if let Some((old, joined)) = before.filter(|(old, _)| *old != member)
            && !matches!(self.stage, JobStage::Takeover(_))
        {
            // A zombie of an earlier attempt was taken in first. What it was given goes on without it; a shard
            // that it held is not where its successor is.
            match member.slot.role {
                Role::Pserver => self.pserver_lost(member.slot, "was replaced"),
                Role::Trainer => self.trainer_gone(old, joined),
            }
        }
        match member.slot.role {
            Role::Pserver => self.pserver_registered(member.slot, again, held),
            Role::Trainer => self.trainer_registered(member, again, busy),
        }
    }

    /// Tells a pserver all that holds now; what it did already it only answers.
    pub(crate) fn pserver_registered(
        &mut self,
        slot: Slot,
        again: bool,
        held: Option<PserverState>,
    ) {
        if let JobStage::Takeover(takeover) = &mut self.stage {
            takeover.heard(slot, held);
            return;
        }
        self.send_members_to(slot);
        self.hold(slot);
        if !again {
            self.save_what_returns();
        }
        if again && let JobStage::Beginning { .. } = &self.stage {
            let (epoch, phase) = (self.epoch, self.phase.wire());
            self.send(slot, Command::Begin { epoch, phase });
        }
        if again && let Some(held) = held.filter(|held| held.epoch == self.epoch) {
            for shard in held.shards.iter().filter(|shard| shard.ended) {
                self.phase_ended(slot, self.epoch, shard.phase, shard.shard, shard.step);
            }
        }
        if again {
            self.order_cut_again(slot);
        }
    }

    pub(crate) fn trainer_registered(
        &mut self,
        member: Member,
        again: bool,
        busy: Option<TrainerState>,
    ) {
        if let JobStage::Takeover(takeover) = &mut self.stage {
            takeover.met(member, busy);
            return;
        }
        if let JobStage::Exporting(_) = &self.stage {
            return self.export_again(member);
        }
        if !again || !self.slots.member(member).is_some_and(|holder| holder.joined) {
            return;
        }
        // It was a member before its connection broke; what was said on the way may be lost in both directions.
        if matches!(self.stage, JobStage::Working) {
            self.send_work(member.slot);
            self.send_lanes(member);
            self.sort_out_tasks(member, busy.as_ref());
        }
        self.send_barrier_again(member);
        if self.slots.member(member).is_some_and(|holder| holder.draining.is_some()) {
            self.send(member.slot, Command::Drain);
        }
    }
}
