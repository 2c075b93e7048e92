//! Containers: their agents, what they are told and what they want.

use std::net::SocketAddr;

use heddle_agent::machine as agent;
use heddle_am_core::{ContainerId, Event, Exit};
use heddle_protocol::control::{Beat, Command, Up, UpLine};
use heddle_protocol::ids::{Epoch, Member, PhaseNo, Role};

use super::super::pserver::{self, Pserver};
use super::super::trainer::{self, Trainer};
use super::log::Brief;
use super::{Body, CLUSTER, Container, Item, Wire, World};

impl World {
    pub(super) fn launch(&mut self, container: &ContainerId, member: Member) {
        let Ok(number) = container.0.parse::<u64>() else {
            return;
        };
        let body = match member.slot.role {
            Role::Pserver => {
                let endpoint = SocketAddr::from(([127, 0, 0, 1], 1024 + (number % 60_000) as u16));
                Body::Pserver(Box::new(Pserver::new(self.job.clone(), endpoint)))
            }
            Role::Trainer => Body::Trainer(Box::new(Trainer::new(self.job.clone()))),
        };
        let agent = agent::Machine::new(self.now_ms);
        self.containers.insert(
            number,
            Container {
                member,
                agent,
                control: None,
                body,
                paused_until: 0,
            },
        );
    }

    /// The process ends: what it had sent arrives in part, and the cluster tells some time.
    pub(super) fn end_process(&mut self, number: u64, exit: Exit) -> Result<(), String> {
        let Some(container) = self.containers.remove(&number) else {
            return Ok(());
        };
        self.gone.insert(number);
        self.wires.remove(&Wire::Labour(number));
        self.wires
            .retain(|wire, _| !matches!(wire, Wire::Opening(of, _) if *of == number));
        if let Some(control) = container.control {
            self.cut_short(Wire::ControlUp(control));
            self.wires.remove(&Wire::ControlDown(control));
        }
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
            let event = Event::Exited {
                container: ContainerId(number.to_string()),
                exit,
                text: String::new(),
            };
            self.push(Wire::Am(CLUSTER), Item::Event(Box::new(event)));
        }
        Ok(())
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
                // Where the ApplicationMaster is, a connection knows by itself here.
                agent::Output::Look => {}
                agent::Output::Register => {
                    let report = register(number, container);
                    self.send_up(number, UpLine { seq: 0, report });
                }
                agent::Output::Heartbeat => {
                    let report = Up::Heartbeat(beat(container, self.now_ms));
                    self.send_up(number, UpLine { seq: 0, report });
                }
                agent::Output::Send(line) => self.send_up(number, *line),
                agent::Output::Deliver(command) => self.command(number, *command)?,
                agent::Output::Close => {
                    if let Some(control) = container.control {
                        self.break_control(control)?;
                    }
                }
                agent::Output::Exit(exit) => {
                    let member = container.member;
                    self.tell(format_args!("{member} exits: {exit:?}"));
                    self.end_process(number, Exit::Code(i32::from(exit.code())))?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn send_up(&mut self, number: u64, line: UpLine) {
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

    pub(super) fn report(&mut self, number: u64, report: Up) -> Result<(), String> {
        let Some(container) = self.containers.get_mut(&number) else {
            return Ok(());
        };
        let what = format_args!("{} says {}", container.member, Brief(&report));
        self.log.note(self.events, self.now_ms, what);
        let outputs = container
            .agent
            .on(agent::Input::Report(Box::new(report)), self.now_ms);
        self.agent_wants(number, outputs)
    }

    pub(super) fn pserver_wants(
        &mut self,
        number: u64,
        wants: Vec<pserver::Output>,
    ) -> Result<(), String> {
        for want in wants {
            match want {
                pserver::Output::Report(report) => self.report(number, report)?,
                pserver::Output::Reply(conn, effect) => {
                    if let Some(data) = self.data_of(number, conn) {
                        self.push(Wire::DataDown(data), Item::Reply(effect));
                    }
                }
                pserver::Output::Close(conn) => {
                    if let Some(data) = self.data_of(number, conn) {
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

    pub(super) fn trainer_wants(
        &mut self,
        number: u64,
        wants: Vec<trainer::Output>,
    ) -> Result<(), String> {
        for want in wants {
            match want {
                trainer::Output::Report(report) => self.report(number, report)?,
                trainer::Output::Labour(labour) => {
                    self.push(Wire::Labour(number), Item::Compute(labour))
                }
                // Reports before it must be confirmed first in a real container; here the process simply lingers.
                trainer::Output::Exit => {}
            }
        }
        Ok(())
    }

    /// Moves what a trainer's client wants moved.
    pub(super) fn pump(&mut self, number: u64) -> Result<(), String> {
        loop {
            let Some(Container {
                body: Body::Trainer(trainer),
                ..
            }) = self.containers.get_mut(&number)
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

fn register(number: u64, container: &Container) -> Up {
    let (endpoints, held, busy) = match &container.body {
        Body::Pserver(pserver) => (vec![pserver.endpoint], pserver.held(), None),
        Body::Trainer(trainer) => (Vec::new(), None, trainer.busy()),
    };
    Up::Register {
        member: container.member,
        pid: number as u32,
        host: "node".to_owned(),
        container: None,
        endpoints,
        held,
        busy,
    }
}

fn beat(container: &Container, now_ms: u64) -> Beat {
    let (phase, step, epoch) = match &container.body {
        Body::Pserver(pserver) => {
            let (phase, step) = pserver.host.position().unwrap_or_default();
            (phase, step, pserver.host.epoch())
        }
        Body::Trainer(trainer) => {
            let era = trainer.machine.era();
            let epoch = era.map_or(Epoch::default(), |era| era.epoch);
            (
                era.map_or(PhaseNo(0), |era| era.phase),
                trainer.step(),
                epoch,
            )
        }
    };
    let unreachable = match &container.body {
        Body::Pserver(_) => Vec::new(),
        Body::Trainer(trainer) => trainer.outages.clone(),
    };
    Beat {
        phase,
        step,
        epoch,
        unreachable,
        compute_ms: now_ms,
        ..Beat::default()
    }
}
