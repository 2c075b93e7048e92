//! The ApplicationMaster's end: its events, and its actions on journal, store and cluster.

use std::sync::Arc;

use heddle_am_core::{
    Action, ContainerName, ContainerOrder, ContainerRequest, Event, Exit, Outcome, Probe, Record,
    StoreCall, Stored, SurvivingContainer,
};
use heddle_protocol::control::{Command, TrainerCommand};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::Member;

use super::super::am::Am;
use super::super::bursts::Moment;
use super::super::job::LEASE_MS;
use super::inject::node_of;
use super::trouble::take_one;
use super::{Body, Item, JOURNAL, PROBES, STORE, Wire, World};

impl World {
    /// The cluster starts the next attempt. A living one receives no message.
    pub(super) fn start_am(&mut self) {
        let alive = self.containers.keys().filter(|n| !self.lost.contains(n));
        let kept = alive
            .map(|n| SurvivingContainer {
                container: ContainerName(n.to_string()),
                node: node_of(*n),
            })
            .collect();
        let looks_deep = self.chance.one_in(2);
        let config = Arc::clone(self.job.config());
        let (mut am, actions) = Am::start(config, &mut self.durable, kept, self.now_ms, looks_deep);
        // Another machine, another clock.
        am.wall_offset_ms = self.chance.below(600_000) as i64 - 300_000;
        let attempt = am.attempt.0;
        self.tell(format_args!("ApplicationMaster {} starts", am.generation));
        if attempt > 1 {
            self.coverage.changed();
        }
        self.ams.insert(attempt, am);
        self.leader = Some(attempt);
        // An outcome that was on its way has arrived or never will.
        let is_outcome = |record: &Record| matches!(record, Record::Outcome(_));
        self.trouble.is_decided = self.durable.journal.iter().any(is_outcome);
        if self.events > 0 {
            self.moment(Moment::AmStarts, None);
        }
        // The first actions of an attempt cannot break a promise that is checked here.
        let acted = self.act(attempt, actions);
        debug_assert!(acted.is_ok(), "{acted:?}");
    }

    /// The ResourceManager answers about every second, unless it is silent.
    pub(super) fn hear_the_cluster(&mut self) -> Result<(), String> {
        let now_ms = self.now_ms;
        let Some(leader) = self.leader.filter(|leader| self.am_moves(*leader)) else {
            return Ok(());
        };
        if self.events < self.trouble.cluster_silent_until {
            return Ok(());
        }
        match self.ams.get_mut(&leader) {
            Some(am) if now_ms >= am.cluster_heard_ms + 1_000 => am.cluster_heard_ms = now_ms,
            _ => return Ok(()),
        }
        self.am_event(leader, Event::ClusterHeard)
    }

    /// What is published or removed is so while the ResourceManager answers.
    fn check_leads(&self, attempt: u32, call: &StoreCall) -> Result<(), String> {
        let heard_ms = self.ams.get(&attempt).map_or(0, |am| am.cluster_heard_ms);
        let silent_ms = self.now_ms - heard_ms;
        match call {
            StoreCall::Stage { .. } => Ok(()),
            _ if silent_ms <= LEASE_MS => Ok(()),
            call => {
                Err(format!("{call:?} although the ResourceManager was silent for {silent_ms} ms"))
            }
        }
    }

    pub(super) fn am_event(&mut self, attempt: u32, event: Event) -> Result<(), String> {
        let Some(am) = self.ams.get_mut(&attempt) else {
            return Ok(());
        };
        let actions = am.on(event, self.now_ms);
        self.act(attempt, actions)
    }

    pub(super) fn deliver_to_am(&mut self, attempt: u32, item: Item) -> Result<(), String> {
        let event = match item {
            Item::Record(record, content) => {
                if attempt < self.durable.generation {
                    self.tell(format_args!("attempt {attempt} finds its journal taken over"));
                    Event::JournalFailed {
                        error: "another generation".to_owned(),
                        fenced: true,
                        exit_code: ExitCode::Fenced,
                    }
                } else if std::mem::take(&mut self.trouble.journal_fails) {
                    Event::JournalFailed {
                        error: "the storage is gone".to_owned(),
                        fenced: false,
                        exit_code: ExitCode::Unreachable,
                    }
                } else {
                    self.durable.journal.push(*content);
                    Event::RecordDurable { record }
                }
            }
            Item::Call(call, content) => {
                let outcome = self.perform(attempt, &content)?;
                if let Stored::NotDone { .. } | Stored::Unknown { .. } = outcome {
                    self.tell(format_args!("{outcome:?}"));
                    self.coverage.changed();
                }
                Event::Stored { call, outcome }
            }
            Item::Probe(member, endpoint) => {
                let open = |body: &Body| match body {
                    Body::Pserver(p) => p.thread_at(endpoint).is_some(),
                    Body::Trainer(_) => false,
                };
                let there = self.containers.iter().find(|(_, c)| open(&c.body));
                let (events, now_ms) = (self.events, self.now_ms);
                let outcome = match there {
                    _ if self.trouble.probes_silent_until > events => Probe::Silent,
                    Some((n, _)) if self.trouble.cuts_off(super::AM, *n, events) => Probe::Silent,
                    Some((_, c))
                        if c.pause.holds(events, now_ms) || c.hang.holds(events, now_ms) =>
                    {
                        Probe::NoAnswer
                    }
                    Some(_) => Probe::Answered,
                    None => Probe::Refused,
                };
                if outcome == Probe::Silent {
                    self.coverage.changed();
                }
                self.tell(format_args!("probe of {member}: {outcome:?}"));
                Event::Probed { member, outcome }
            }
            _ => return Err("the ApplicationMaster got what is not its".to_owned()),
        };
        self.am_event(attempt, event)
    }

    /// A store call reaches the storage.
    pub(super) fn perform(&mut self, attempt: u32, call: &StoreCall) -> Result<Stored, String> {
        let is_down = self.trouble.storage_is_down(self.events);
        let before = self.durable.checkpoints.len();
        let published = self.published_of(call);
        let outcome = self.durable.call(attempt, call, is_down, &mut self.chance);
        self.check_publication(call, published)?;
        self.check_commit(before)?;
        Ok(outcome)
    }

    pub(super) fn act(&mut self, attempt: u32, actions: Vec<Action>) -> Result<(), String> {
        self.check_spares(attempt, &actions)?;
        self.check_extra_trainers(attempt, &actions)?;
        for action in actions {
            match action {
                Action::Container(order) => self.order(attempt, order)?,
                Action::Send { connection, command, .. } => {
                    self.check_command(&command)?;
                    self.elects(&command);
                    if matches!(*command, Command::Trainer(TrainerCommand::Drain)) {
                        self.coverage.changed();
                    }
                    let command = Arc::unwrap_or_clone(command);
                    if let Some(link) = self.controls.get(&connection.0) {
                        self.ordered(link.container, &command);
                    }
                    let am = self.ams.get(&attempt);
                    if let Some(down) = am.and_then(|am| am.down(connection, Some(command))) {
                        self.push(Wire::ControlDown(connection.0), Item::Down(Box::new(down)));
                    }
                }
                Action::Disconnect { connection } => {
                    if let Some(am) = self.ams.get_mut(&attempt) {
                        am.disconnects(connection);
                    }
                    self.push(Wire::ControlDown(connection.0), Item::End);
                }
                Action::Journal { id, record } => {
                    self.check_fills(&record)?;
                    match &*record {
                        Record::Outcome(outcome) => self.decides(attempt, outcome),
                        Record::Scaled { generation, .. } => self.check_scaled(*generation)?,
                        _ => {}
                    }
                    self.push(Wire::Am(attempt, JOURNAL), Item::Record(id, record))
                }
                Action::Store { id, call } => {
                    self.check_leads(attempt, &call)?;
                    self.push(Wire::Am(attempt, STORE), Item::Call(id, call));
                }
                Action::ProbePort { member, endpoint } => {
                    self.push(Wire::Am(attempt, PROBES), Item::Probe(member, endpoint))
                }
                Action::Notice(event) => self.note(&event),
                Action::Finish(outcome) => self.finishes(attempt, *outcome),
                Action::Answer { id, result } => self.answered(id, &result)?,
                // Faults of the simulation are drawn by its explorer: no operator orders them.
                Action::Fault(_) => {}
            }
        }
        Ok(())
    }

    /// The cluster performs an order of an attempt.
    fn order(&mut self, attempt: u32, order: ContainerOrder) -> Result<(), String> {
        let leads = self.leader == Some(attempt);
        match order {
            // An attempt that the ResourceManager has given up gets no containers, but may still end some.
            ContainerOrder::Ask(_) | ContainerOrder::Launch { .. } if !leads => {}
            ContainerOrder::Ask(ContainerRequest { member, memory, .. }) => {
                if let Some(memory) = memory {
                    self.asked.insert(member, memory);
                }
                let twice = take_one(&mut self.trouble.cluster.grants_twice);
                for _ in 0..1 + u32::from(twice) {
                    self.allocate(member);
                }
            }
            ContainerOrder::Launch { container, member } => {
                self.launch(attempt, &container, member);
            }
            ContainerOrder::Stop { container, member, .. } => {
                self.tell(format_args!("{member} is stopped"));
                if let Ok(number) = container.0.parse() {
                    if self.containers.contains_key(&number) {
                        // A living process that the ApplicationMaster gives up counts as a kill.
                        *self.trouble.ends.entry(member.slot).or_default() += 1;
                    }
                    // As YARN reports it, to whichever attempt leads by then. With an exit code, the failure would count in
                    // a successor that has not given the order.
                    let exit = Exit::ByCluster { error: "KILLED_BY_APPMASTER".to_owned() };
                    self.end_process(number, exit)?;
                }
            }
            ContainerOrder::Release(container) => self.release(attempt, container),
            // Its container is on its way: it comes after the ask was withdrawn.
            ContainerOrder::CancelAsk(_) => {}
        }
        Ok(())
    }

    /// The cluster gives a container for an ask.
    fn allocate(&mut self, member: Member) {
        let number = self.number();
        let event = Event::Allocated {
            container: ContainerName(number.to_string()),
            slot: member.slot,
            incarnation: member.incarnation,
            node: node_of(number),
        };
        self.push(Wire::Cluster, Item::Event(Box::new(event)));
    }

    /// The cluster takes a container back: its process, if it has one, ends some time.
    fn release(&mut self, attempt: u32, container: ContainerName) {
        let number = container.0.parse().unwrap_or_default();
        let exit = Exit::ByCluster { error: "released".to_owned() };
        if self.containers.contains_key(&number) {
            let at = self.events + self.chance.below(100) as u64;
            self.trouble.doomed.insert(number, (at, exit));
        } else if self.leader == Some(attempt) {
            let event = Event::Exited { container, exit, text: String::new() };
            self.push(Wire::Cluster, Item::Event(Box::new(event)));
        }
    }

    /// An attempt ends by itself.
    fn finishes(&mut self, attempt: u32, outcome: Outcome) {
        self.tell(format_args!("attempt {attempt} ends: {outcome:?}"));
        if self.leader == Some(attempt) {
            self.outcome = Some(outcome);
            return;
        }
        // Responses of a replaced attempt are not awaited.
        self.ams.remove(&attempt);
        self.close_lines_of(attempt);
    }

    /// The control connections of an attempt that is gone end at the containers.
    pub(super) fn close_lines_of(&mut self, attempt: u32) {
        let of_it = self.controls.iter().filter(|(_, c)| c.attempt == attempt);
        let controls: Vec<u64> = of_it.map(|(&control, _)| control).collect();
        for control in controls {
            self.wires.remove(&Wire::ControlUp(control));
            self.cut_short(Wire::ControlDown(control));
        }
    }
}
