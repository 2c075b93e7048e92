//! Injects faults: the process, connection or file that a fault hits, and how long it lasts.

mod network;
mod processes;
mod storage;

use heddle_am_core::{ContainerName, Event, Exit, OperationId};
use heddle_protocol::control::{Operation, ResizeOrder};
use heddle_protocol::ids::Role;

use super::super::chance::{Chance, mix};
use super::super::fault::Fault;
use super::super::standstill::Standstill;
use super::{Item, Wire, World};

/// The node that a container is on.
pub(super) fn node_of(container: u64) -> String {
    format!("node-{}", container % 3)
}

/// One of these, if there are any.
fn one<T: Copy>(from: &[T], chance: &mut Chance) -> Option<T> {
    from.get(chance.below(from.len())).copied()
}

impl World {
    /// Injects the fault of event `at`, and records whether it had a target.
    ///
    /// The target follows from the seed, the event and the fault. It stays the same if other faults leave the list.
    pub(super) fn inject(&mut self, at: u64, fault: Fault) -> Result<(), String> {
        self.tell(format_args!("FAULT {fault:?}"));
        let mut chance = Chance::new(mix(self.seed ^ mix(at << 8 | fault as u64)));
        // Changes that follow at once count as its effect.
        let state =
            self.leader.and_then(|leader| self.ams.get(&leader)).map(|am| am.core.view().state);
        self.coverage.inject(fault, state);
        if !self.happen(fault, &mut chance)? {
            self.coverage.was_nothing(fault);
        }
        Ok(())
    }

    /// False: there is nothing that it could happen to.
    fn happen(&mut self, fault: Fault, chance: &mut Chance) -> Result<bool, String> {
        match fault {
            Fault::KillTrainer => self.end_one(Role::Trainer, Exit::Signal(9), chance),
            Fault::KillPserver => self.end_one(Role::Pserver, Exit::Signal(9), chance),
            Fault::Crash => {
                let role = if chance.one_in(2) { Role::Trainer } else { Role::Pserver };
                self.end_one(role, Exit::Code(101), chance)
            }
            Fault::CrashLoop => Ok(self.curse_one(chance)),
            Fault::OutOfMemory => Ok(self.starve_one(chance)),
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
            Fault::TwoAms => Ok(self.replace_am(chance)),
            Fault::PauseAm => Ok(self.pause_am(chance)),
            Fault::WallJumps => Ok(self.wall_jumps(chance)),
            Fault::ClockLeaps => Ok(self.clock_leaps(chance)),
            Fault::BreakData => Ok(self.break_data(chance)),
            Fault::BreakControl => {
                let Some(control) = self.choose(&self.open_controls(), chance) else {
                    return Ok(false);
                };
                self.break_control(control);
                if chance.one_in(2) {
                    // What has arrived is read late, perhaps when the container is back.
                    self.linger(Wire::ControlUp(control), chance);
                }
                Ok(true)
            }
            Fault::LagControl => Ok(self.lag_control(chance)),
            Fault::LagData => Ok(self.lag_data(chance)),
            Fault::CutOffControl => Ok(self.cut_off_control(chance)),
            Fault::CutOffData => Ok(self.cut_off_data(chance)),
            Fault::SilentProbes => {
                self.trouble.probes_silent_until = self.events + 100 + chance.below(300) as u64;
                Ok(true)
            }
            Fault::Cut => self.operate(Operation::Checkpoint),
            Fault::Scale => {
                let trainers = 1 + chance.below(self.job.trainers as usize) as u32;
                let pservers = self
                    .job
                    .pservers_between
                    .map(|[least, most]| least + chance.below((most - least + 1) as usize) as u32);
                if self.job.elastic && !chance.one_in(4) {
                    // Now and then another controller leads, and the one before goes on for a while.
                    self.trouble.controller += u64::from(chance.one_in(4));
                    let generation = self.trouble.controller + 2 - chance.below(2) as u64;
                    let pservers = pservers.unwrap_or(self.job.pservers);
                    let order = ResizeOrder { generation, trainers, pservers };
                    let is_auto = chance.one_in(4);
                    let operation =
                        if is_auto { Operation::ScaleAuto } else { Operation::Resize(order) };
                    return self.operate(operation);
                }
                let trainers = Some(trainers).filter(|_| pservers.is_none() || chance.one_in(2));
                self.operate(Operation::Scale { trainers, pservers })
            }
            Fault::Preempt => {
                let preempting = |container| Event::Preempting { container, deadline_ms: None };
                Ok(self.cluster_says(chance, |n| preempting(ContainerName(n.to_string()))))
            }
            Fault::NodeLeaves => {
                let leaving = |n| Event::NodeLeaving { node: node_of(n) };
                Ok(self.cluster_says(chance, leaving))
            }
            Fault::Silence => {
                self.trouble.cluster_silent_until = self.events + chance.below(400) as u64;
                Ok(self.leader.is_some())
            }
            Fault::Pause => {
                let pause = Standstill::random(self.events, self.now_ms, chance);
                let chosen = self.choose(&self.all_containers(), chance);
                let container = chosen.and_then(|n| self.containers.get_mut(&n));
                Ok(container.map(|c| c.pause = pause).is_some())
            }
            Fault::Hang => Ok(self.hang_one(chance)),
            Fault::CallFails | Fault::CallUnknown | Fault::NoRoom => {
                Ok(self.calls_go_wrong(fault, chance))
            }
            Fault::CallHangs => Ok(self.calls_hang(chance)),
            Fault::StorageDown => Ok(self.storage_goes_down(chance)),
            Fault::JournalFails => Ok(self.journal_fails()),
            Fault::Corrupt => Ok(self.corrupt_one(chance)),
            Fault::FlipCopy => Ok(self.flip_one(chance)),
            Fault::GrantsTwice
            | Fault::LaunchesFail
            | Fault::StartsSlow
            | Fault::CompletionsTwice
            | Fault::CompletionsLost => Ok(self.cluster_errs(fault, chance)),
        }
    }

    /// The cluster does the next things of a kind otherwise than ordered.
    fn cluster_errs(&mut self, fault: Fault, chance: &mut Chance) -> bool {
        let errors = &mut self.trouble.cluster;
        let left = match fault {
            Fault::GrantsTwice => &mut errors.grants_twice,
            Fault::LaunchesFail => &mut errors.launches_fail,
            Fault::StartsSlow => &mut errors.starts_slow,
            Fault::CompletionsTwice => &mut errors.completions_twice,
            Fault::CompletionsLost => &mut errors.completions_lost,
            _ => return false,
        };
        *left = 1 + chance.below(3) as u32;
        true
    }

    /// One of these, each of which is a container's: half of the time one of the container that the last moment or fault was
    /// about, if there is one.
    fn choose(&mut self, from: &[(u64, u64)], chance: &mut Chance) -> Option<u64> {
        let focus = self.focus.filter(|_| chance.one_in(2));
        let near = from.iter().filter(|(_, of)| Some(*of) == focus).copied();
        let near: Vec<(u64, u64)> = near.collect();
        let (chosen, of) = one(if near.is_empty() { from } else { &near }, chance)?;
        self.focus = Some(of);
        Some(chosen)
    }

    fn all_containers(&self) -> Vec<(u64, u64)> {
        self.containers.keys().map(|&n| (n, n)).collect()
    }

    /// The containers of a role.
    fn of_role(&self, role: Role) -> Vec<(u64, u64)> {
        let of = self.containers.iter().filter(|(_, c)| c.member.slot.role == role);
        of.map(|(&number, _)| (number, number)).collect()
    }

    fn operate(&mut self, operation: Operation) -> Result<bool, String> {
        let id = OperationId(self.number());
        let Some(leader) = self.leader else {
            return Ok(false);
        };
        if let Operation::Resize(order) = &operation {
            self.trouble.orders.insert(id, order.generation);
        }
        self.am_event(leader, Event::Operation { id, operation })?;
        Ok(true)
    }

    fn cluster_says(&mut self, chance: &mut Chance, says: impl Fn(u64) -> Event) -> bool {
        let event = self.choose(&self.all_containers(), chance).map(says);
        let found = event.is_some();
        if let Some(event) = event {
            self.push(Wire::Cluster, Item::Event(Box::new(event)));
        }
        found
    }
}
