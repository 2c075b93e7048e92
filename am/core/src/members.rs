//! Who is in the job: asking, starting, registering, listening, losing.
//!
//! **Liveness.** First signal wins. A process that ended is told by the cluster; one whose control connection closes
//! has its port tried at once: refused means gone, in milliseconds; anything else means that only silence
//! can tell, and silence is waited out (`dead_ms`). What a trainer says of a pserver that it cannot reach starts
//! the same probe: nobody is declared dead on hearsay. YARN alone takes ten minutes to report a lost node.
//!
//! A container that is given up is stopped, its connection closed, and its incarnation refused from then on: if it
//! lives after all (its node was cut off), it is a zombie that can do no harm.

use std::net::SocketAddr;

use heddle_protocol::control::{Beat, Busy, Command, Held, TaskGrant, Up, Welcome};
use heddle_protocol::ids::{CutId, Incarnation, Member, Role, Slot};
use heddle_protocol::view;

use crate::action::{Action, ConnectionId, ContainerId};
use crate::blame::{self, Blame};
use crate::core::{Core, Stage};
use crate::deadlines::Purpose;
use crate::event::{Exit, Probe};
use crate::phases::Work;
use crate::slots::{Admission, Holder, Life, Place};
use crate::time::Mono;

impl Core {
    /// Asks for what is wanted and not there.
    pub(crate) fn reconcile(&mut self) {
        if matches!(
            self.stage,
            Stage::Fresh | Stage::Takeover(_) | Stage::Stopping(_) | Stage::Over
        ) {
            return;
        }
        if self.adopting && self.unidentified() > 0 {
            // What seems to be missing may be about to register.
            return;
        }
        let avoid = self.ledger.bad_nodes(self.slots.nodes());
        for (slot, incarnation) in self.slots.ask(self.now.mono) {
            self.out.push(Action::Ask {
                slot,
                incarnation,
                avoid: avoid.clone(),
            });
        }
        match self.slots.next_ask() {
            Some(at) => self.deadlines.set(Purpose::Reconcile, at),
            None => self.deadlines.clear(Purpose::Reconcile),
        }
    }

    /// Which slots are to be filled: all pservers, and so many trainers.
    pub(crate) fn set_wanted(&mut self) {
        let trainers = self.trainers_wanted;
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
        match self
            .slots
            .allocated(&container, slot, incarnation, node, self.now.mono)
        {
            Some(member) => {
                self.deadlines.at_latest(
                    Purpose::Liveness,
                    self.now.mono + self.config.limits.registration_ms,
                );
                self.out.push(Action::Launch { container, member });
            }
            None => self.out.push(Action::Release { container }),
        }
    }

    pub(crate) fn exited(&mut self, container: &ContainerId, exit: &Exit) {
        // Told twice, or of a container that was never ours: no news.
        let Some(life) = self.slots.containers.remove(container) else {
            return;
        };
        let Some(member) = life.member else { return };
        let in_place = self.slots.container(member.slot) == Some(container);
        if !in_place {
            // Its slot was given up before; the ledger knows about it.
            return;
        }
        let draining = self
            .slots
            .holder(member.slot)
            .is_some_and(|holder| holder.draining.is_some());
        let blame = match blame::blame(exit) {
            _ if life.ours || (draining && *exit == Exit::Code(0)) => Blame::None,
            blame => blame,
        };
        self.lose(member.slot, &blame::words(exit), blame, &life.node);
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
    ) -> Holder {
        Holder {
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
            told: None,
            doubtful: Vec::new(),
            cut: CutId::default(),
            registered: self.now.mono,
            beat: Beat::default(),
            beat_at: self.now.mono,
            per_second: 0.0,
        }
    }

    pub(crate) fn registered(
        &mut self,
        connection: ConnectionId,
        holder: Holder,
        held: Option<Held>,
        busy: Option<Busy>,
    ) {
        let (member, pid, host) = (holder.member, holder.pid, holder.host.clone());
        let container = holder.container.clone();
        let refusal = match &self.stage {
            Stage::Fresh | Stage::Stopping(_) | Stage::Over => Some("the job is ending".to_owned()),
            _ if member.slot.role == Role::Pserver && holder.endpoints.is_empty() => {
                Some("a pserver without a port".to_owned())
            }
            _ => None,
        };
        let asked = self
            .slots
            .entries
            .get(&member.slot)
            .and_then(|entry| match entry.place {
                Place::Asked => Some(entry.incarnation),
                Place::Empty { .. } | Place::Starting { .. } | Place::Held(_) => None,
            });
        let admission = match refusal {
            Some(reason) => Admission::Refused(reason),
            None => self.slots.register(holder, self.adopting),
        };
        let again = match admission {
            Admission::Refused(reason) => {
                let command = Box::new(Command::Refused { reason });
                self.out.push(Action::Send {
                    connection,
                    member: Some(member),
                    command,
                });
                self.out.push(Action::Disconnect { connection });
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
                    self.out.push(Action::CancelAsk {
                        slot: member.slot,
                        incarnation,
                    });
                }
                false
            }
        };
        if let Some(container) = container {
            // One of an earlier attempt: now it is known who is in it.
            let life = Life {
                member: Some(member),
                node: host.clone(),
                ours: false,
            };
            self.slots
                .containers
                .entry(container)
                .or_insert(life)
                .member = Some(member);
        }
        self.deadlines.at_latest(
            Purpose::Liveness,
            self.now.mono + self.config.limits.suspect_ms,
        );
        self.send(member.slot, Command::Welcome(Box::new(self.welcome())));
        if !again {
            self.incident_registered(member.slot);
            self.notice(view::Event::Registered {
                slot: member.slot,
                incarnation: member.incarnation,
                pid,
                host,
            });
        }
        match member.slot.role {
            Role::Pserver => self.pserver_registered(member.slot, again, held),
            Role::Trainer => self.trainer_registered(member, again, busy),
        }
    }

    fn welcome(&self) -> Welcome {
        Welcome {
            run: self.config.run,
            spec: (*self.config.spec).clone(),
            plan: (*self.config.plan).clone(),
            heartbeat_ms: self.config.limits.heartbeat_ms,
            orphan_ms: self.config.limits.orphan_ms,
        }
    }

    /// Tells a pserver all that holds now; what it did already it only answers.
    fn pserver_registered(&mut self, slot: Slot, again: bool, held: Option<Held>) {
        if let Stage::Takeover(takeover) = &mut self.stage {
            takeover.heard(slot, held);
            return;
        }
        self.send_members_to(slot);
        self.hold(slot);
        if again && let Stage::Beginning { .. } = &self.stage {
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

    fn trainer_registered(&mut self, member: Member, again: bool, busy: Option<Busy>) {
        if let Stage::Takeover(takeover) = &mut self.stage {
            takeover.met(member, busy);
            return;
        }
        if let Stage::Exporting(_) = &self.stage {
            return self.export_again(member);
        }
        if !again
            || !self
                .slots
                .member(member)
                .is_some_and(|holder| holder.joined)
        {
            return;
        }
        // It was a member before its connection broke; what was said on the way may be lost in both directions.
        if matches!(self.stage, Stage::Working) {
            self.send_work(member.slot);
            self.send_lanes(member);
            self.sort_out_tasks(member, busy.as_ref());
        }
        self.send_barrier_again(member);
        if self
            .slots
            .member(member)
            .is_some_and(|holder| holder.draining.is_some())
        {
            self.send(member.slot, Command::Drain);
        }
    }

    /// A trainer is back and may lack tasks that it was handed: the order was lost with the connection, or it has finished
    /// them and its report is about to be repeated. Reports come before heartbeats, so the next heartbeat tells which.
    fn sort_out_tasks(&mut self, member: Member, busy: Option<&Busy>) {
        let here = busy.filter(|busy| busy.epoch == self.epoch && busy.phase == self.phase.no);
        let has = here.map_or(&[][..], |busy| &busy.tasks);
        let Work::Queue(queue) = &mut self.phase.work else {
            return;
        };
        queue.progress(member, has);
        let lacks = |grant: &TaskGrant| {
            !has.iter()
                .any(|task| task.task == grant.task && task.attempt == grant.attempt)
        };
        let doubtful: Vec<TaskGrant> = queue.held_by(member).into_iter().filter(lacks).collect();
        if let Some(holder) = self.slots.holder_mut(member.slot) {
            holder.doubtful = doubtful;
        }
    }

    /// What a trainer that came back neither holds nor has finished is todo again; shards refuse what they have of it.
    fn take_back_doubtful(&mut self, member: Member) {
        let Some(holder) = self.slots.holder_mut(member.slot) else {
            return;
        };
        let doubtful = std::mem::take(&mut holder.doubtful);
        if doubtful.is_empty() {
            return;
        }
        if let Work::Queue(queue) = &mut self.phase.work {
            for grant in doubtful {
                queue.take_back(member, grant.task, grant.attempt);
            }
        }
        self.feed();
    }

    /// Makes trainers that are ready members of the job.
    pub(crate) fn admit(&mut self) {
        let barred = match &self.stage {
            Stage::Fresh | Stage::Takeover(_) | Stage::Stopping(_) | Stage::Over => true,
            _ => self.cuts.bars_joins(),
        };
        if barred {
            return;
        }
        let ready = |holder: &&Holder| {
            holder.connection.is_some() && !holder.joined && holder.draining.is_none()
        };
        let joiners: Vec<Member> = self
            .slots
            .holders(Role::Trainer)
            .filter(ready)
            .map(|holder| holder.member)
            .collect();
        if joiners.is_empty() {
            return;
        }
        for member in &joiners {
            if let Some(holder) = self.slots.holder_mut(member.slot) {
                holder.joined = true;
            }
        }
        self.send_members();
        if matches!(self.stage, Stage::Working) {
            for member in joiners {
                self.send_work(member.slot);
            }
            self.share_lanes();
            self.feed();
        }
    }

    /// Tells all pservers which trainers may be connected.
    pub(crate) fn send_members(&mut self) {
        for slot in self.registered_slots(Role::Pserver) {
            self.send_members_to(slot);
        }
    }

    fn send_members_to(&mut self, slot: Slot) {
        let trainers = self.joined().into_iter().collect();
        self.send(slot, Command::Members { trainers });
    }

    pub(crate) fn report(&mut self, connection: ConnectionId, report: Up) {
        // Of a connection that was replaced or whose container was given up: nobody's word.
        let Some(member) = self.slots.at(connection) else {
            return;
        };
        let slot = member.slot;
        self.alive(slot);
        if matches!(self.stage, Stage::Stopping(_)) && !matches!(report, Up::Heartbeat(_)) {
            return;
        }
        match report {
            // The driver turns registrations into events of their own.
            Up::Register { .. } => {}
            Up::Heartbeat(beat) => self.beat(member, beat),
            Up::Holding {
                epoch,
                from_memory: _,
                from_storage: _,
                load_ms: _,
            } => self.holding(slot, epoch),
            Up::HoldFailed {
                epoch,
                corrupt,
                error,
            } => self.hold_failed(slot, epoch, corrupt, &error),
            Up::Begun { epoch, phase } => self.begun(slot, epoch, phase),
            Up::PhaseEnded {
                epoch,
                phase,
                shard,
                step,
            } => self.phase_ended(slot, epoch, phase, shard, step),
            Up::CutArmed { cut, epoch } => self.cut_armed(slot, cut, epoch),
            Up::Snapped {
                cut,
                epoch,
                shard,
                step,
            } => self.snapped(slot, cut, epoch, shard, step),
            Up::LetGo {
                cut,
                epoch,
                shard,
                reason,
            } => self.let_go(slot, cut, epoch, shard, &reason),
            Up::Saved { cut, epoch, file } => self.saved(slot, cut, epoch, file),
            Up::SaveFailed {
                cut,
                epoch,
                shard,
                error,
            } => self.save_failed(slot, cut, epoch, shard, &error),
            Up::AtBarrier { cut, epoch, tasks } => self.at_barrier(member, cut, epoch, &tasks),
            Up::Progress {
                epoch,
                phase,
                cut,
                tasks,
            } => {
                if epoch == self.epoch
                    && phase == self.phase.no
                    && let Work::Queue(queue) = &mut self.phase.work
                {
                    queue.progress(member, &tasks);
                    self.cut_progress(member, cut, &tasks);
                }
            }
            Up::TaskFinished {
                epoch,
                phase,
                cut,
                task,
                attempt,
                metrics,
            } => {
                if epoch == self.epoch
                    && phase == self.phase.no
                    && let Work::Queue(queue) = &mut self.phase.work
                    && queue.finished(member, task, attempt)
                {
                    self.cut_finished(member, cut, task);
                    self.add_metrics(phase, task, *metrics);
                    self.feed();
                }
            }
            Up::TaskSteps {
                phase,
                task,
                steps,
                metrics,
            } => {
                self.task_steps.insert(task, steps);
                self.add_metrics(phase, task, *metrics);
            }
            Up::Stepping { epoch } => {
                if epoch == self.epoch {
                    self.incidents_stepping(member);
                }
            }
            Up::TaskFailed {
                epoch,
                phase,
                task,
                attempt,
                retryable,
                error,
            } => {
                if epoch == self.epoch && phase == self.phase.no {
                    self.task_failed(member, task, attempt, retryable, &error);
                }
            }
            Up::Drained {
                epoch,
                phase,
                tasks,
                lanes: _,
            } => {
                if epoch == self.epoch
                    && phase == self.phase.no
                    && let Work::Queue(queue) = &mut self.phase.work
                {
                    queue.progress(member, &tasks);
                }
                self.drained(member);
            }
            Up::Unreachable {
                member: other,
                refused: _,
            } => self.probe(other),
            Up::Exported {
                checkpoint,
                dir,
                files,
            } => self.exported(member, &checkpoint, dir, files),
            Up::ExportFailed { checkpoint, error } => {
                self.export_failed(member, &checkpoint, &error)
            }
            Up::Fatal { exit_code, error } => self.fail(exit_code, format!("{slot}: {error}")),
        }
    }

    fn alive(&mut self, slot: Slot) {
        let now = self.now.mono;
        if let Some(holder) = self.slots.holder_mut(slot) {
            holder.heard = now;
            holder.suspect = false;
        }
    }

    fn beat(&mut self, member: Member, beat: Beat) {
        let now = self.now.mono;
        let current = beat.epoch == self.epoch && beat.phase == self.phase.no;
        let (compute_ms, step) = (beat.compute_ms, beat.step);
        if let Some(holder) = self.slots.holder_mut(member.slot) {
            let span_ms = now.since(holder.beat_at);
            let (before, after) = match member.slot.role {
                Role::Pserver => (holder.beat.pushes, beat.pushes),
                Role::Trainer => (holder.beat.rows, beat.rows),
            };
            if span_ms > 0 {
                holder.per_second = after.saturating_sub(before) as f64 * 1000.0 / span_ms as f64;
            }
            holder.beat = beat;
            holder.beat_at = now;
        }
        match &mut self.phase.work {
            Work::Lanes(_) if current => self.phase.saw(step, now),
            Work::Queue(queue) if member.slot.role == Role::Trainer => {
                queue.computed(member, compute_ms)
            }
            Work::Lanes(_) | Work::Queue(_) => {}
        }
        self.check_steps();
        self.take_back_doubtful(member);
    }

    pub(crate) fn closed(&mut self, connection: ConnectionId) {
        let Some(member) = self.slots.at(connection) else {
            return;
        };
        self.slots.connections.remove(&connection);
        let now = self.now.mono;
        if let Some(holder) = self.slots.holder_mut(member.slot) {
            holder.connection = None;
            holder.closed = Some(now);
        }
        self.probe(member);
    }

    /// Tries the port of a pserver, unless that is under way. Trainers have none.
    fn probe(&mut self, member: Member) {
        let Some(holder) = self
            .slots
            .holder_mut(member.slot)
            .filter(|holder| holder.member == member)
        else {
            return;
        };
        if let (false, Some(endpoint)) = (holder.probing, holder.endpoints.first().copied()) {
            holder.probing = true;
            self.out.push(Action::ProbePort { member, endpoint });
        }
    }

    pub(crate) fn probed(&mut self, member: Member, outcome: Probe) {
        let Some(holder) = self
            .slots
            .holder_mut(member.slot)
            .filter(|holder| holder.member == member)
        else {
            return;
        };
        holder.probing = false;
        match outcome {
            Probe::Refused => self.lose(
                member.slot,
                "does not listen any more: its process is gone",
                Blame::None,
                "",
            ),
            // It is there, or nobody knows: silence will tell.
            Probe::Open | Probe::Silent => {}
        }
    }

    /// Gives up who has been silent for too long, suspects who has for a while.
    pub(crate) fn look_for_the_silent(&mut self) {
        let (now, limits) = (self.now.mono, self.config.limits.clone());
        let mut next: Option<Mono> = None;
        let mut lost: Vec<(Slot, String, Blame)> = Vec::new();
        let mut suspects = Vec::new();
        for (slot, entry) in &mut self.slots.entries {
            let deadline = match &mut entry.place {
                Place::Empty { .. } | Place::Asked => continue,
                Place::Starting { since, .. } => {
                    let deadline = *since + limits.registration_ms;
                    if deadline <= now {
                        lost.push((*slot, "did not register in time".to_owned(), Blame::Failure));
                    }
                    deadline
                }
                Place::Held(holder) => {
                    let dead = holder.heard + limits.dead_ms;
                    let drained = holder
                        .draining
                        .map_or(Mono(u64::MAX), |since| since + limits.grace_ms);
                    if dead <= now {
                        lost.push((
                            *slot,
                            format!("was not heard for {} s", limits.dead_ms / 1000),
                            Blame::None,
                        ));
                    } else if drained <= now {
                        lost.push((
                            *slot,
                            "did not hand back its work in time".to_owned(),
                            Blame::None,
                        ));
                    }
                    let suspect = holder.heard + limits.suspect_ms;
                    if suspect <= now && !holder.suspect {
                        holder.suspect = true;
                        suspects.push(holder.member);
                    }
                    let silent = if suspect > now { suspect } else { dead };
                    silent.min(drained)
                }
            };
            if deadline > now {
                next = Some(next.map_or(deadline, |next| next.min(deadline)));
            }
        }
        if let Some(next) = next {
            self.deadlines.at_latest(Purpose::Liveness, next);
        }
        for member in suspects {
            self.warn(format!(
                "{} was not heard for {} s",
                member.slot,
                limits.suspect_ms / 1000
            ));
            self.probe(member);
        }
        for (slot, cause, blame) in lost {
            self.lose(slot, &cause, blame, "");
        }
    }

    /// A slot's container is gone or given up: whatever it held is taken from it, and the slot asks again.
    pub(crate) fn lose(&mut self, slot: Slot, cause: &str, blame: Blame, node: &str) {
        let now = self.now.mono;
        let holder = self.slots.holder(slot).cloned();
        let container = self.slots.container(slot).cloned();
        self.ledger
            .note(now, slot, node, blame, self.progress, cause);
        let wait_ms = self.ledger.delay_ms(now, slot);
        if let Some(container) = self.slots.vacate(slot, now + wait_ms) {
            self.stop_container(&container, 0);
        }
        let incarnation = self
            .slots
            .entries
            .get(&slot)
            .map(|entry| entry.incarnation)
            .unwrap_or_default();
        if matches!(self.stage, Stage::Stopping(_)) {
            return;
        }
        if holder.is_some() || container.is_some() {
            self.notice(view::Event::Lost {
                slot,
                incarnation,
                cause: cause.to_owned(),
            });
        }
        let slots = self.slots.entries.len();
        if let Some(error) = self
            .ledger
            .crash_loop(now, self.progress, slots, &self.config.limits)
        {
            return self.fail(1, error);
        }
        let Some(holder) = holder else { return };
        if let Some(connection) = holder.connection {
            self.out.push(Action::Disconnect { connection });
        }
        self.rows_before = self.rows_before.saturating_add(match slot.role {
            Role::Trainer => holder.beat.rows,
            Role::Pserver => 0,
        });
        let drained = holder.draining.is_some() && !holder.joined;
        if !drained {
            let sign = holder.closed.unwrap_or(
                if holder.connection.is_some()
                    && now.since(holder.heard) < self.config.limits.suspect_ms
                {
                    now
                } else {
                    holder.heard
                },
            );
            self.open_incident(slot, format!("{slot} {cause}"), sign);
        }
        match slot.role {
            Role::Pserver => self.pserver_lost(slot, cause),
            Role::Trainer => self.trainer_gone(holder.member, holder.joined),
        }
    }

    /// A trainer is out of the job: pservers fence it, its work moves, the open cut goes on without it.
    fn trainer_gone(&mut self, member: Member, joined: bool) {
        self.leave_cut(member);
        self.phase.stepping.remove(&member);
        if let Work::Queue(queue) = &mut self.phase.work {
            queue.release(member);
        }
        if joined {
            self.send_members();
            self.share_lanes();
            self.feed();
        }
        self.exporter_gone(member);
        if let Stage::Takeover(takeover) = &mut self.stage {
            takeover.gone(member.slot);
        }
    }

    /// Stops a container that the cluster has not reported as ended.
    pub(crate) fn stop_container(&mut self, container: &ContainerId, grace_ms: u64) {
        if let Some(life) = self.slots.containers.get_mut(container) {
            life.ours = true;
            if let Some(member) = life.member {
                self.out.push(Action::Stop {
                    container: container.clone(),
                    member,
                    grace_ms,
                });
            } else {
                self.out.push(Action::Release {
                    container: container.clone(),
                });
            }
        }
    }

    /// Changes the number of trainers.
    pub(crate) fn scale(&mut self, trainers: u32) -> Result<String, String> {
        let (min, max) = (self.config.spec.trainers.min, self.config.spec.trainers.max);
        if !(min..=max).contains(&trainers) {
            return Err(format!(
                "the job takes {min} to {max} trainers, not {trainers}"
            ));
        }
        self.trainers_wanted = trainers;
        self.set_wanted();
        let unwanted: Vec<Slot> = self
            .slots
            .entries
            .iter()
            .filter(|(_, entry)| !entry.wanted)
            .map(|(slot, _)| *slot)
            .collect();
        for slot in unwanted {
            let entry = self
                .slots
                .entries
                .get_mut(&slot)
                .map(|entry| (entry.incarnation, &mut entry.place));
            match entry {
                Some((incarnation, place @ Place::Asked)) => {
                    *place = Place::Empty {
                        not_before: Mono(0),
                    };
                    self.out.push(Action::CancelAsk { slot, incarnation });
                }
                Some((_, Place::Starting { .. })) => {
                    if let Some(container) = self.slots.vacate(slot, Mono(0)) {
                        self.stop_container(&container, 0);
                    }
                }
                Some((_, Place::Held(holder))) if holder.draining.is_none() => {
                    holder.draining = Some(self.now.mono);
                    let joined = holder.joined;
                    self.deadlines.at_latest(
                        Purpose::Liveness,
                        self.now.mono + self.config.limits.grace_ms,
                    );
                    self.send(slot, Command::Drain);
                    if !joined
                        && let Some(member) = self.slots.holder(slot).map(|holder| holder.member)
                    {
                        self.drained(member);
                    }
                }
                Some((_, Place::Empty { .. } | Place::Held(_))) | None => {}
            }
        }
        Ok(format!("{trainers} trainers"))
    }

    /// A trainer has handed back what it held.
    fn drained(&mut self, member: Member) {
        let Some(holder) = self
            .slots
            .holder_mut(member.slot)
            .filter(|holder| holder.draining.is_some())
        else {
            return;
        };
        let joined = std::mem::replace(&mut holder.joined, false);
        let container = holder.container.clone();
        self.trainer_gone(member, joined);
        self.send(
            member.slot,
            Command::Stop {
                reason: "not needed any more".to_owned(),
            },
        );
        if let Some(container) = container {
            self.stop_container(&container, self.config.limits.grace_ms);
        }
    }

    fn task_failed(
        &mut self,
        member: Member,
        task: heddle_protocol::ids::TaskId,
        attempt: heddle_protocol::ids::TaskAttempt,
        retryable: bool,
        error: &str,
    ) {
        if !retryable {
            return self.fail(7, error.to_owned());
        }
        let errors = match &mut self.phase.work {
            Work::Queue(queue) => queue.failed(member, task, attempt),
            Work::Lanes(_) => {
                let errors = self.lane_task_errors.entry(task).or_default();
                *errors += 1;
                Some(*errors)
            }
        };
        let Some(errors) = errors else { return };
        if errors >= self.config.limits.task_errors {
            return self.fail(
                6,
                format!("task {task} failed {errors} times, last: {error}"),
            );
        }
        self.warn(format!("task {task} failed on {}: {error}", member.slot));
        self.feed();
    }
}
