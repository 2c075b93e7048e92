//! Containers: their agents, their orders and their reports.

use std::net::SocketAddr;
use std::sync::Arc;

use heddle_agent::machine as agent;
use heddle_am_core::{ContainerName, Event, Exit};
use heddle_protocol::control::{
    Command, HeartbeatStats, Registration, Report, ReportEnvelope, TrainerReport,
};
use heddle_protocol::ids::{Epoch, Incarnation, Member, PhaseNo, Role, Slot};

use uuid::Uuid;

use super::super::chance::mix;
use super::super::job::Job;
use super::super::pserver::{self, Pserver};
use super::super::standstill::Standstill;
use super::super::trainer::{self, Trainer};
use super::log::Brief;
use super::trouble::take_one;
use super::{Body, Container, Item, Wire, World};

impl World {
    pub(super) fn launch(&mut self, attempt: u32, container: &ContainerName, member: Member) {
        let Ok(number) = container.0.parse::<u64>() else {
            return;
        };
        let body = match member.slot.role {
            Role::Pserver => Body::Pserver(Box::new(Pserver::new(
                Arc::clone(&self.job),
                member,
                endpoints(&self.job, number),
            ))),
            Role::Trainer => Body::Trainer(Box::new(Trainer::new(Arc::clone(&self.job)))),
        };
        let agent = agent::ControlMachine::new(self.now_ms);
        let memory = self.asked.remove(&member);
        if take_one(&mut self.trouble.cluster.launches_fail) {
            return self.launch_fails(number, member);
        }
        let is_slow = take_one(&mut self.trouble.cluster.starts_slow);
        let pause = match is_slow {
            true => Standstill::random(self.events, self.now_ms, &mut self.chance),
            false => Standstill::default(),
        };
        self.containers.insert(
            number,
            Container {
                member,
                agent,
                address: attempt,
                control: None,
                body,
                memory,
                pause,
                hang: Standstill::default(),
                hangs_since_ms: 0,
                computes_until_ms: 0,
            },
        );
        self.doom(number);
    }

    /// The NodeManager could not start a container.
    fn launch_fails(&mut self, number: u64, member: Member) {
        self.tell(format_args!("{member} cannot be started"));
        *self.trouble.ends.entry(member.slot).or_default() += 2;
        self.gone.insert(number);
        self.cluster_reports_end(number, Exit::NotStarted { error: "a bad disk".to_owned() });
    }

    /// The process ends: what it had sent arrives in part, and the cluster reports it some time, often late.
    pub(super) fn end_process(&mut self, number: u64, exit: Exit) -> Result<(), String> {
        let Some(container) = self.containers.remove(&number) else {
            return Ok(());
        };
        self.gone.insert(number);
        self.trouble.doomed.remove(&number);
        let of_it = |wire: &Wire| match wire {
            Wire::Opening(of, _)
            | Wire::Looking(of)
            | Wire::Labour(of)
            | Wire::Thread(of, _)
            | Wire::PeerOpening(of, ..) => *of == number,
            _ => false,
        };
        self.wires.retain(|wire, _| !of_it(wire));
        if let Some(control) = container.control {
            self.cut_short(Wire::ControlUp(control));
            self.wires.remove(&Wire::ControlDown(control));
        }
        self.end_peers_of(number);
        let ends: Vec<(u64, bool)> = self
            .data
            .iter()
            .filter(|(_, d)| d.trainer == number || d.pserver == number)
            .map(|(&n, d)| (n, d.trainer == number))
            .collect();
        for (data, was_trainer) in ends {
            if was_trainer {
                self.wires.remove(&Wire::DataDown(data));
                self.cut_short(Wire::DataUp(data));
            } else {
                self.wires.remove(&Wire::DataUp(data));
                self.cut_short(Wire::DataDown(data));
            }
        }
        if !self.lost.remove(&number) {
            self.cluster_reports_end(number, exit);
        }
        Ok(())
    }

    /// The cluster reports the end of a container: once, twice or, with an error of its own, never.
    fn cluster_reports_end(&mut self, number: u64, exit: Exit) {
        let errors = &mut self.trouble.cluster;
        if take_one(&mut errors.completions_lost) {
            return;
        }
        let twice = take_one(&mut errors.completions_twice);
        let container = ContainerName(number.to_string());
        let event = Event::Exited { container, exit, text: String::new() };
        for _ in 0..1 + u32::from(twice) {
            // A NodeManager reports with its next heartbeat: the port refuses long before.
            if self.chance.one_in(2) {
                let at = self.events + self.chance.below(80) as u64;
                self.trouble.say_late(at, event.clone());
            } else {
                self.push(Wire::Cluster, Item::Event(Box::new(event.clone())));
            }
        }
    }

    /// Whether this process will not live long: its slot is short of memory, or its program fails.
    pub(super) fn doom(&mut self, number: u64) {
        let Some(container) = self.containers.get(&number) else {
            return;
        };
        let (slot, enlarged) = (container.member.slot, container.memory.is_some());
        let at = self.events + 20 + self.chance.below(150) as u64;
        if let Some(curse) = self.trouble.cursed.get_mut(&slot)
            && curse.left > 0
        {
            curse.left -= 1;
            let exit = curse.exit.clone();
            self.trouble.doomed.insert(number, (at, exit));
        } else if self.trouble.hungry.contains(&slot) && !enlarged {
            let error = "beyond the physical memory limit".to_owned();
            let exit = Exit::OutOfMemory { error };
            self.trouble.doomed.insert(number, (at, exit));
        }
    }

    /// Ends processes whose time has come, and delivers the cluster's delayed events.
    pub(super) fn reap(&mut self) -> Result<(), String> {
        for event in self.trouble.said(self.events) {
            self.push(Wire::Cluster, Item::Event(Box::new(event)));
        }
        if self.trouble.doomed.is_empty() {
            return Ok(());
        }
        let events = self.events;
        let due = |(&number, (at, exit)): (&u64, &(u64, Exit))| {
            (*at <= events).then(|| (number, exit.clone()))
        };
        let due: Vec<(u64, Exit)> = self.trouble.doomed.iter().filter_map(due).collect();
        for (number, exit) in due {
            self.end_badly(number, exit)?;
        }
        Ok(())
    }

    /// A process ends in a way that counts against the job.
    pub(super) fn end_badly(&mut self, number: u64, exit: Exit) -> Result<(), String> {
        if let Some(container) = self.containers.get(&number) {
            let member = container.member;
            // What does not count when the cluster reports it counts as a kill while only the port refuses; and where no report comes
            // either, as a failure of one that did not register in time.
            let is_reported = self.trouble.cluster.completions_lost == 0;
            let weight = match exit {
                Exit::Signal(9) | Exit::OutOfMemory { .. } | Exit::ByCluster { .. }
                    if is_reported =>
                {
                    1
                }
                _ => 2,
            };
            *self.trouble.ends.entry(member.slot).or_default() += weight;
            self.tell(format_args!("{member} ends: {exit:?}"));
        }
        self.end_process(number, exit)
    }

    pub(super) fn agent_wants(
        &mut self,
        number: u64,
        outputs: Vec<agent::Output>,
    ) -> Result<(), String> {
        for output in outputs {
            let Some(container) = self.containers.get_mut(&number) else {
                return Ok(());
            };
            match output {
                agent::Output::Connect => self.push(Wire::Opening(number, None), Item::Open),
                agent::Output::Look => self.push(Wire::Looking(number), Item::Open),
                agent::Output::Register => {
                    let report = register(number, container);
                    self.send_up(number, ReportEnvelope { seq: 0, report });
                }
                agent::Output::Heartbeat { .. } => {
                    let report = beat(container, self.events, self.now_ms);
                    let record_ns = 1_000 * slowness(&self.job, container.member);
                    let report = Report::Heartbeat(HeartbeatStats { record_ns, ..report });
                    self.send_up(number, ReportEnvelope { seq: 0, report });
                }
                agent::Output::Send(line) => self.send_up(number, *line),
                agent::Output::Deliver(command) => self.command(number, *command)?,
                agent::Output::Close => {
                    if let Some(control) = container.control {
                        self.break_control(control);
                    }
                }
                agent::Output::Exit(exit) => {
                    let member = container.member;
                    self.tell(format_args!("{member} exits: {exit:?}"));
                    self.end_process(number, Exit::Code(exit.code().number()))?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn send_up(&mut self, number: u64, line: ReportEnvelope) {
        if let Some(control) = self.containers.get(&number).and_then(|c| c.control) {
            self.push(Wire::ControlUp(control), Item::Up(Box::new(line)));
        }
    }

    pub(super) fn command(&mut self, number: u64, command: Command) -> Result<(), String> {
        let now_ms = self.now_ms;
        let Some(container) = self.containers.get_mut(&number) else {
            return Ok(());
        };
        match &mut container.body {
            Body::Pserver(pserver) => {
                let mut out = Vec::new();
                pserver.advance(now_ms);
                pserver.command(command, now_ms, &mut out)?;
                self.pserver_wants(number, out)
            }
            Body::Trainer(trainer) => {
                let mut out = Vec::new();
                trainer.command(command, now_ms, &mut out)?;
                self.trainer_wants(number, out)?;
                self.pump(number)
            }
        }
    }

    pub(super) fn report(&mut self, number: u64, report: Report) -> Result<(), String> {
        let Some(container) = self.containers.get_mut(&number) else {
            return Ok(());
        };
        let what = format_args!("{} reports {}", container.member, Brief(&report));
        self.log.note(self.events, self.now_ms, what);
        let outputs = container.agent.on(agent::Input::Report(Box::new(report)), self.now_ms);
        self.agent_wants(number, outputs)
    }

    pub(super) fn pserver_wants(
        &mut self,
        number: u64,
        wants: Vec<pserver::Output>,
    ) -> Result<(), String> {
        self.active.push(number);
        for want in wants {
            match want {
                pserver::Output::Report(report) => self.report(number, *report)?,
                pserver::Output::Reply(thread, conn, effect) => {
                    self.check_gap(number, thread, &effect)?;
                    if let Some(link) = self.peer_link_of(number, thread, conn) {
                        self.push(Wire::PeerDown(link), Item::Reply(effect));
                        continue;
                    }
                    if let Some(data) = self.data_of(number, thread, conn) {
                        self.push(Wire::DataDown(data), Item::Reply(effect));
                    }
                }
                pserver::Output::Thread(thread, command) => {
                    self.push(Wire::Thread(number, thread), Item::Thread(command));
                }
                pserver::Output::Replicate => self.pump_peers(number)?,
                pserver::Output::Close(thread, conn) => {
                    if let Some(link) = self.peer_link_of(number, thread, conn) {
                        self.wires.remove(&Wire::PeerUp(link));
                        self.cut_short(Wire::PeerDown(link));
                    }
                    if let Some(data) = self.data_of(number, thread, conn) {
                        self.stop_counting(data);
                        self.wires.remove(&Wire::DataUp(data));
                        self.cut_short(Wire::DataDown(data));
                    }
                }
                pserver::Output::Labour(labour) => {
                    self.push(Wire::Labour(number), Item::Save(labour))
                }
                pserver::Output::Exit => self.end_process(number, Exit::Code(0))?,
            }
        }
        Ok(())
    }

    /// A trainer has one thing more to compute.
    fn compute(&mut self, number: u64) {
        if self.job.compute_ms == 0 {
            return;
        }
        let takes_ms = self.chance.below(self.job.compute_ms as usize) as u64;
        if let Some(container) = self.containers.get_mut(&number) {
            let takes_ms = takes_ms * slowness(&self.job, container.member);
            container.computes_until_ms = container.computes_until_ms.max(self.now_ms) + takes_ms;
        }
    }

    pub(super) fn trainer_wants(
        &mut self,
        number: u64,
        wants: Vec<trainer::Output>,
    ) -> Result<(), String> {
        for want in wants {
            match want {
                trainer::Output::Report(report) => {
                    self.exports_again(number);
                    self.withdrawn += u64::from(matches!(
                        report,
                        Report::Trainer(TrainerReport::Withdrawn { .. })
                    ));
                    self.report(number, report)?;
                }
                trainer::Output::Labour(labour) => {
                    self.compute(number);
                    self.push(Wire::Labour(number), Item::Compute(labour))
                }
                // Reports before it must be confirmed first in a real container; here the process simply lingers.
                trainer::Output::Exit => {}
            }
        }
        Ok(())
    }

    pub(super) fn thread_obeys(
        &mut self,
        number: u64,
        thread: usize,
        command: pserver::ToThread,
    ) -> Result<(), String> {
        let now_ms = self.now_ms;
        let Some(pserver) = self.pserver(number) else {
            return Ok(());
        };
        let mut out = Vec::new();
        pserver.thread_obeys(thread, command, now_ms, &mut out);
        self.pserver_wants(number, out)
    }

    pub(super) fn pserver_labours(
        &mut self,
        number: u64,
        labour: pserver::Labour,
    ) -> Result<(), String> {
        let uuid = Uuid::from_u128(u128::from(self.number()) << 64 | 1);
        // Files of an earlier run may be there.
        let uuid = Uuid::from_u128(uuid.as_u128() ^ u128::from(mix(self.seed)));
        let is_down = self.trouble.storage_is_down(self.events);
        let Some(Container { body: Body::Pserver(pserver), .. }) = self.containers.get_mut(&number)
        else {
            return Ok(());
        };
        let mut out = Vec::new();
        let now_ms = self.now_ms;
        pserver.labour(labour, uuid, &mut self.durable, is_down, now_ms, &mut out)?;
        self.pserver_wants(number, out)
    }

    pub(super) fn trainer_labours(
        &mut self,
        number: u64,
        labour: trainer::Labour,
    ) -> Result<(), String> {
        let is_down = self.trouble.storage_is_down(self.events);
        let dir = format!("export-{number}-{}", self.number());
        let Some(Container { body: Body::Trainer(trainer), .. }) = self.containers.get_mut(&number)
        else {
            return Ok(());
        };
        let mut out = Vec::new();
        trainer.labour(labour, dir, &mut self.durable, is_down, &mut out)?;
        self.computed += 1;
        self.trainer_wants(number, out)?;
        self.pump(number)
    }

    pub(super) fn pserver(&mut self, number: u64) -> Option<&mut Pserver> {
        match self.containers.get_mut(&number) {
            Some(Container { body: Body::Pserver(pserver), .. }) => {
                pserver.advance(self.now_ms);
                Some(pserver)
            }
            _ => None,
        }
    }

    /// Moves what a trainer's client wants moved.
    pub(super) fn pump(&mut self, number: u64) -> Result<(), String> {
        loop {
            let Some(Container { body: Body::Trainer(trainer), .. }) =
                self.containers.get_mut(&number)
            else {
                return Ok(());
            };
            let mut out = Vec::new();
            trainer.listen(&mut out)?;
            let mut frames = Vec::new();
            for (&data, link) in self.data.iter().filter(|(_, d)| d.trainer == number) {
                while let Some(frame) = trainer.machine.next_frame(link.endpoint) {
                    frames.push((data, frame));
                }
            }
            let mut opening = Vec::new();
            while let Some(endpoint) = trainer.machine.next_connect(self.now_ms) {
                opening.push(endpoint);
            }
            let unwanted: Vec<u64> = self
                .data
                .iter()
                .filter(|(_, d)| d.trainer == number && !trainer.machine.wants(d.endpoint))
                .map(|(&n, _)| n)
                .collect();
            let quiet = out.is_empty();
            for (data, frame) in frames {
                self.push(Wire::DataUp(data), Item::Frame(frame));
            }
            for endpoint in opening {
                self.push(Wire::Opening(number, Some(endpoint)), Item::Open);
            }
            for data in unwanted {
                self.wires.remove(&Wire::DataDown(data));
                self.cut_short(Wire::DataUp(data));
                self.orphan_data(data);
            }
            self.trainer_wants(number, out)?;
            if quiet {
                return Ok(());
            }
        }
    }
}

/// The data ports of a pserver, one for each data thread.
fn endpoints(job: &Job, number: u64) -> Vec<SocketAddr> {
    let [.., a, b, c] = number.to_be_bytes();
    let ports = 7000..7000 + job.data_threads as u16;
    ports.map(|port| SocketAddr::from(([127, a, b, c], port))).collect()
}

fn register(number: u64, container: &Container) -> Report {
    let (endpoints, pserver_state, trainer_state) = match &container.body {
        Body::Pserver(pserver) => (pserver.endpoints.clone(), pserver.held(), None),
        Body::Trainer(trainer) => (Vec::new(), None, trainer.busy()),
    };
    Report::Register(Box::new(Registration {
        member: container.member,
        pid: number as u32,
        host: "node".to_owned(),
        container: None,
        endpoints,
        pserver_state,
        trainer_state,
    }))
}

/// How many times as long as others it computes.
pub(super) fn slowness(job: &Job, member: Member) -> u64 {
    match (member.slot == Slot::trainer(0), member.incarnation) {
        (true, Incarnation(1)) => job.slow[0],
        (true, _) => job.slow[1],
        (false, _) => 1,
    }
}

fn beat(container: &Container, events: u64, now_ms: u64) -> HeartbeatStats {
    let (phase, step, epoch) = match &container.body {
        Body::Pserver(pserver) => {
            let (phase, step) = pserver.position().unwrap_or_default();
            (phase, step, pserver.epoch())
        }
        Body::Trainer(trainer) => {
            let era = trainer.machine.era();
            let epoch = era.map_or(Epoch::default(), |era| era.epoch);
            (era.map_or(PhaseNo(0), |era| era.phase), trainer.step(), epoch)
        }
    };
    let unreachable = match &container.body {
        Body::Pserver(_) => Vec::new(),
        Body::Trainer(trainer) => trainer.outages.clone(),
    };
    let export = match &container.body {
        Body::Pserver(_) => None,
        Body::Trainer(trainer) => trainer.exporter.progress(now_ms).map(Box::new),
    };
    let hangs_ms = match container.hang.holds(events, now_ms) {
        true => now_ms - container.hangs_since_ms,
        false => 0,
    };
    HeartbeatStats {
        slow_thread: heddle_agent::slowest([("data-0".to_owned(), hangs_ms)]),
        unheard_ms: container.agent.unheard_ms(now_ms),
        phase,
        step,
        epoch,
        unreachable,
        export,
        ..HeartbeatStats::default()
    }
}
