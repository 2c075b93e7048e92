//! What goes wrong, and what is left of a process or a connection then.

use std::collections::BTreeMap;

use heddle_am_core::{ContainerId, Event, Exit, OperationId, StoreCall};
use heddle_protocol::control::Operation;
use heddle_protocol::ids::Role;

use super::super::chance::Chance;
use super::{CLUSTER, Container, Item, JOURNAL, PROBES, STORE, Wire, World};

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A trainer's process dies.
    KillTrainer,
    /// A pserver's process dies.
    KillPserver,
    /// The ApplicationMaster dies; containers live on.
    KillAm,
    /// The ApplicationMaster dies and all containers with it.
    KillAll,
    /// The cluster gives a trainer up whose process goes on.
    LoseTrainer,
    /// The cluster gives a pserver up whose process goes on.
    LosePserver,
    /// A data connection breaks.
    BreakData,
    /// A control connection breaks.
    BreakControl,
    /// An operator asks for a checkpoint.
    Cut,
    /// A process stands still for a while.
    Pause,
    /// The cluster says that it may take a container.
    Preempt,
    /// The cluster says that a node will be gone.
    NodeLeaves,
    /// An operator asks for another number of trainers.
    Scale,
    /// The ResourceManager does not answer for a while.
    Silence,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::KillTrainer,
        Self::KillPserver,
        Self::KillAm,
        Self::KillAll,
        Self::LoseTrainer,
        Self::LosePserver,
        Self::BreakData,
        Self::BreakControl,
        Self::Cut,
        Self::Pause,
        Self::Preempt,
        Self::NodeLeaves,
        Self::Scale,
        Self::Silence,
    ];
}

/// The node that a container is on.
pub(super) fn node_of(container: u64) -> String {
    format!("node-{}", container % 3)
}

impl World {
    pub(super) fn inject(&mut self, fault: Fault) -> Result<(), String> {
        let of = |role: Role, containers: &BTreeMap<u64, Container>| {
            containers
                .iter()
                .filter(|(_, c)| c.member.slot.role == role)
                .map(|(&n, _)| n)
                .collect::<Vec<_>>()
        };
        let (trainers, pservers) = (
            of(Role::Trainer, &self.containers),
            of(Role::Pserver, &self.containers),
        );
        let one = |from: &[u64], chance: &mut Chance| from.get(chance.below(from.len())).copied();
        self.tell(format!("FAULT {fault:?}"));
        match fault {
            Fault::KillTrainer | Fault::KillPserver => {
                let from = if fault == Fault::KillTrainer {
                    &trainers
                } else {
                    &pservers
                };
                if let Some(number) = one(from, &mut self.chance) {
                    self.end_process(number, Exit::Signal(9))?;
                }
            }
            Fault::LoseTrainer | Fault::LosePserver => {
                let from = if fault == Fault::LoseTrainer {
                    &trainers
                } else {
                    &pservers
                };
                let number = one(from, &mut self.chance).filter(|number| self.lost.insert(*number));
                if let Some(number) = number {
                    let event = Event::Exited {
                        container: ContainerId(number.to_string()),
                        exit: Exit::NodeLost,
                        text: String::new(),
                    };
                    self.push(Wire::Am(CLUSTER), Item::Event(Box::new(event)));
                }
            }
            Fault::KillAm | Fault::KillAll => {
                if self.am.take().is_some() {
                    self.lose_am()?;
                    if fault == Fault::KillAll {
                        for number in trainers.into_iter().chain(pservers) {
                            self.lost.insert(number);
                            self.end_process(number, Exit::Signal(9))?;
                        }
                    }
                    self.am_returns_at = self.events + self.chance.below(200) as u64;
                }
            }
            Fault::BreakData => {
                let links: Vec<u64> = self
                    .data
                    .iter()
                    .filter(|(_, d)| d.trainer != 0)
                    .map(|(&n, _)| n)
                    .collect();
                if let Some(data) = one(&links, &mut self.chance) {
                    self.cut_short(Wire::DataUp(data));
                    self.cut_short(Wire::DataDown(data));
                }
            }
            Fault::BreakControl => {
                let links: Vec<u64> = self.containers.values().filter_map(|c| c.control).collect();
                if let Some(control) = one(&links, &mut self.chance) {
                    self.break_control(control)?;
                }
            }
            Fault::Cut => {
                let id = OperationId(self.number());
                self.am_event(Event::Operation {
                    id,
                    operation: Operation::Checkpoint,
                })?;
            }
            Fault::Preempt => {
                let all: Vec<u64> = self.containers.keys().copied().collect();
                if let Some(number) = one(&all, &mut self.chance) {
                    let event = Event::Preempting {
                        container: ContainerId(number.to_string()),
                        deadline_ms: None,
                    };
                    self.push(Wire::Am(CLUSTER), Item::Event(Box::new(event)));
                }
            }
            Fault::NodeLeaves => {
                let all: Vec<u64> = self.containers.keys().copied().collect();
                if let Some(number) = one(&all, &mut self.chance) {
                    let node = node_of(number);
                    self.push(
                        Wire::Am(CLUSTER),
                        Item::Event(Box::new(Event::NodeLeaving { node })),
                    );
                }
            }
            Fault::Scale => {
                let id = OperationId(self.number());
                let most = self.job.trainers as usize;
                let trainers = 1 + self.chance.below(most) as u32;
                self.am_event(Event::Operation {
                    id,
                    operation: Operation::Scale { trainers },
                })?;
            }
            Fault::Silence => {
                self.silent_until = self.events + self.chance.below(400) as u64;
            }
            Fault::Pause => {
                let all: Vec<u64> = self.containers.keys().copied().collect();
                if let Some(number) = one(&all, &mut self.chance) {
                    let until = self.events + self.chance.below(300) as u64;
                    if let Some(container) = self.containers.get_mut(&number) {
                        container.paused_until = until;
                    }
                }
            }
        }
        Ok(())
    }

    /// What was on its way to the journal and the store when the ApplicationMaster died arrives in part.
    pub(super) fn lose_am(&mut self) -> Result<(), String> {
        for wire in [Wire::Am(JOURNAL), Wire::Am(STORE)] {
            let items = self.wires.remove(&wire).unwrap_or_default();
            let arrives = self.chance.below(items.len() + 1);
            for item in items.into_iter().take(arrives) {
                match item {
                    Item::Record(_, record) => self.durable.journal.push(*record),
                    Item::Call(_, call) => {
                        if let StoreCall::Commit { manifest, .. } = &*call {
                            self.check_commit(manifest)?;
                        }
                        let generation = self.durable.generation;
                        self.durable.store(generation, &call);
                    }
                    _ => {}
                }
            }
        }
        self.wires.remove(&Wire::Am(CLUSTER));
        self.wires.remove(&Wire::Am(PROBES));
        let controls: Vec<u64> = self.containers.values().filter_map(|c| c.control).collect();
        for control in controls {
            self.wires.remove(&Wire::ControlUp(control));
            self.cut_short(Wire::ControlDown(control));
        }
        Ok(())
    }

    /// Of what is in a wire some arrives, then its end.
    pub(super) fn cut_short(&mut self, wire: Wire) {
        let items = self.wires.entry(wire).or_default();
        let keep = self.chance.below(items.len() + 1);
        items.truncate(keep);
        items.push_back(Item::End);
    }
}
