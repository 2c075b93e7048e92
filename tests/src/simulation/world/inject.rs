//! Makes things go wrong, and decides what is left of a process or a connection then.

use heddle_am_core::{ContainerId, Event, Exit, OperationId, StoreCall};
use heddle_protocol::control::Operation;
use heddle_protocol::ids::Role;

use super::super::chance::{Chance, mix};
use super::super::fault::Fault;
use super::{CLUSTER, Item, JOURNAL, PROBES, STORE, Wire, World};

/// The node that a container is on.
pub(super) fn node_of(container: u64) -> String {
    format!("node-{}", container % 3)
}

/// One of these, if there are any.
fn one(from: &[u64], chance: &mut Chance) -> Option<u64> {
    from.get(chance.below(from.len())).copied()
}

impl World {
    /// Numbers of the containers of a role.
    fn of_role(&self, role: Role) -> Vec<u64> {
        let of = self
            .containers
            .iter()
            .filter(|(_, c)| c.member.slot.role == role);
        of.map(|(&number, _)| number).collect()
    }

    /// Injects a fault that is due at event `at`, and notes whether there was something to happen to.
    ///
    /// What it happens to is drawn from the seed, the event and the fault: a list of faults that lacks another one
    /// hits the same.
    pub(super) fn inject(&mut self, at: u64, fault: Fault) -> Result<(), String> {
        self.tell(format_args!("FAULT {fault:?}"));
        let mut chance = Chance::new(mix(self.seed ^ mix(at << 8 | fault as u64)));
        // What it changes at once counts for it.
        self.coverage.inject(fault);
        if !self.happen(fault, &mut chance)? {
            self.coverage.was_nothing(fault);
        }
        Ok(())
    }

    fn happen(&mut self, fault: Fault, chance: &mut Chance) -> Result<bool, String> {
        match fault {
            Fault::KillTrainer => self.kill_one(Role::Trainer, chance),
            Fault::KillPserver => self.kill_one(Role::Pserver, chance),
            Fault::LoseTrainer => Ok(self.lose_one(Role::Trainer, chance)),
            Fault::LosePserver => Ok(self.lose_one(Role::Pserver, chance)),
            Fault::KillAm => self.kill_am(chance),
            Fault::KillAll => {
                if !self.kill_am(chance)? {
                    return Ok(false);
                }
                for number in self.containers.keys().copied().collect::<Vec<_>>() {
                    self.lost.insert(number);
                    self.end_process(number, Exit::Signal(9))?;
                }
                Ok(true)
            }
            Fault::BreakData => {
                let open = self.data.iter().filter(|(_, d)| d.trainer != 0);
                let open: Vec<u64> = open.map(|(&n, _)| n).collect();
                let Some(data) = one(&open, chance) else {
                    return Ok(false);
                };
                self.cut_short(Wire::DataUp(data));
                self.cut_short(Wire::DataDown(data));
                Ok(true)
            }
            Fault::BreakControl => {
                let open: Vec<u64> = self.containers.values().filter_map(|c| c.control).collect();
                let Some(control) = one(&open, chance) else {
                    return Ok(false);
                };
                self.break_control(control)?;
                Ok(true)
            }
            Fault::Cut => self.operate(Operation::Checkpoint),
            Fault::Scale => {
                let trainers = 1 + chance.below(self.job.trainers as usize) as u32;
                self.operate(Operation::Scale { trainers })
            }
            Fault::Preempt => {
                let preempting = |container| Event::Preempting {
                    container,
                    deadline_ms: None,
                };
                Ok(self.cluster_says(chance, |n| preempting(ContainerId(n.to_string()))))
            }
            Fault::NodeLeaves => {
                let leaving = |n| Event::NodeLeaving { node: node_of(n) };
                Ok(self.cluster_says(chance, leaving))
            }
            Fault::Silence => {
                self.silent_until = self.events + chance.below(400) as u64;
                Ok(self.am.is_some())
            }
            Fault::Pause => {
                let all: Vec<u64> = self.containers.keys().copied().collect();
                let until = self.events + chance.below(300) as u64;
                let number = one(&all, chance).and_then(|n| self.containers.get_mut(&n));
                Ok(number.map(|c| c.paused_until = until).is_some())
            }
        }
    }

    fn kill_one(&mut self, role: Role, chance: &mut Chance) -> Result<bool, String> {
        let Some(number) = one(&self.of_role(role), chance) else {
            return Ok(false);
        };
        self.end_process(number, Exit::Signal(9))?;
        Ok(true)
    }

    fn lose_one(&mut self, role: Role, chance: &mut Chance) -> bool {
        let number = one(&self.of_role(role), chance).filter(|number| self.lost.insert(*number));
        let Some(number) = number else { return false };
        let event = Event::Exited {
            container: ContainerId(number.to_string()),
            exit: Exit::NodeLost,
            text: String::new(),
        };
        self.push(Wire::Am(CLUSTER), Item::Event(Box::new(event)));
        true
    }

    fn kill_am(&mut self, chance: &mut Chance) -> Result<bool, String> {
        if self.am.take().is_none() {
            return Ok(false);
        }
        self.lose_am()?;
        self.am_returns_at = self.events + chance.below(200) as u64;
        Ok(true)
    }

    fn operate(&mut self, operation: Operation) -> Result<bool, String> {
        let id = OperationId(self.number());
        self.am_event(Event::Operation { id, operation })?;
        Ok(self.am.is_some())
    }

    fn cluster_says(&mut self, chance: &mut Chance, says: impl Fn(u64) -> Event) -> bool {
        let all: Vec<u64> = self.containers.keys().copied().collect();
        let event = one(&all, chance).map(says);
        let found = event.is_some();
        if let Some(event) = event {
            self.push(Wire::Am(CLUSTER), Item::Event(Box::new(event)));
        }
        found
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
