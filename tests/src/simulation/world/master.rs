//! The ApplicationMaster's end: its events, and its actions on journal, store and cluster.

use heddle_am_core::{Action, ContainerId, Event, Exit, Kept, Probe, StoreCall, Stored};
use heddle_protocol::control::Command;

use super::super::am::Am;
use super::super::job::LEASE_MS;
use super::inject::node_of;
use super::{Body, CLUSTER, Item, JOURNAL, PROBES, STORE, Wire, World};

impl World {
    pub(super) fn start_am(&mut self) {
        let alive = self.containers.keys().filter(|n| !self.lost.contains(n));
        let kept = alive
            .map(|n| Kept {
                container: ContainerId(n.to_string()),
                node: node_of(*n),
            })
            .collect();
        let (am, actions) = Am::start(self.job.config(), &mut self.durable, kept, self.now_ms);
        self.tell(format_args!("ApplicationMaster {} starts", am.generation));
        if am.generation.0 > 1 {
            self.coverage.changed();
        }
        self.am = Some(am);
        self.cluster_heard_ms = self.now_ms;
        // The first actions of an attempt cannot break a promise that is checked here.
        let acted = self.act(actions);
        debug_assert!(acted.is_ok(), "{acted:?}");
    }

    /// The ResourceManager answers about every second, unless it is silent.
    pub(super) fn hear_the_cluster(&mut self) -> Result<(), String> {
        if self.am.is_none()
            || self.events < self.silent_until
            || self.now_ms < self.cluster_heard_ms + 1_000
        {
            return Ok(());
        }
        self.cluster_heard_ms = self.now_ms;
        self.am_event(Event::ClusterHeard)
    }

    /// What is published or removed is so while the ResourceManager answers.
    fn check_leads(&self, call: &StoreCall) -> Result<(), String> {
        let silent_ms = self.now_ms - self.cluster_heard_ms;
        match call {
            StoreCall::Stage { .. } => Ok(()),
            _ if silent_ms <= LEASE_MS => Ok(()),
            call => Err(format!(
                "{call:?} although the ResourceManager was silent for {silent_ms} ms"
            )),
        }
    }

    pub(super) fn am_event(&mut self, event: Event) -> Result<(), String> {
        let Some(am) = &mut self.am else {
            return Ok(());
        };
        let actions = am.on(event, self.now_ms);
        self.act(actions)
    }

    pub(super) fn deliver_to_am(&mut self, item: Item) -> Result<(), String> {
        let event = match item {
            Item::Event(event) => *event,
            Item::Record(record, content) => {
                self.durable.journal.push(*content);
                Event::RecordDurable { record }
            }
            Item::Call(call, content) => {
                let outcome = self.perform(&content)?;
                Event::Stored { call, outcome }
            }
            Item::Probe(member, endpoint) => {
                let open = self
                    .containers
                    .values()
                    .any(|c| matches!(&c.body, Body::Pserver(p) if p.endpoint == endpoint));
                let outcome = if open { Probe::Open } else { Probe::Refused };
                Event::Probed { member, outcome }
            }
            _ => return Err("the ApplicationMaster got what is not its".to_owned()),
        };
        self.am_event(event)
    }

    pub(super) fn perform(&mut self, call: &StoreCall) -> Result<Stored, String> {
        if let StoreCall::Commit { manifest, .. } = call {
            self.check_commit(manifest)?;
        }
        let generation = self.am.as_ref().map_or(0, |am| am.generation.0);
        Ok(self.durable.store(generation, call))
    }

    pub(super) fn act(&mut self, actions: Vec<Action>) -> Result<(), String> {
        for action in actions {
            match action {
                Action::Ask {
                    slot, incarnation, ..
                } => {
                    let number = self.number();
                    let event = Event::Allocated {
                        container: ContainerId(number.to_string()),
                        slot,
                        incarnation,
                        node: node_of(number),
                    };
                    self.push(Wire::Am(CLUSTER), Item::Event(Box::new(event)));
                }
                Action::Launch { container, member } => {
                    self.launch(&container, member);
                    self.push(
                        Wire::Am(CLUSTER),
                        Item::Event(Box::new(Event::Started { container })),
                    );
                }
                Action::Stop {
                    container, member, ..
                } => {
                    self.tell(format_args!("{member} is stopped"));
                    if let Ok(number) = container.0.parse() {
                        self.end_process(number, Exit::Code(0))?;
                    }
                }
                Action::Send {
                    connection,
                    command,
                    ..
                } => {
                    self.check_command(&command)?;
                    if matches!(*command, Command::Drain) {
                        self.coverage.changed();
                    }
                    if let Some(down) = self.am.as_ref().and_then(|am| {
                        am.down(connection, Some(std::sync::Arc::unwrap_or_clone(command)))
                    }) {
                        self.push(Wire::ControlDown(connection.0), Item::Down(Box::new(down)));
                    }
                }
                Action::Disconnect { connection } => {
                    if let Some(am) = &mut self.am {
                        am.closed(connection);
                    }
                    self.push(Wire::ControlDown(connection.0), Item::End);
                }
                Action::Journal { id, record } => {
                    self.push(Wire::Am(JOURNAL), Item::Record(id, record))
                }
                Action::Store { id, call } => {
                    self.check_leads(&call)?;
                    self.push(Wire::Am(STORE), Item::Call(id, call));
                }
                Action::ProbePort { member, endpoint } => {
                    self.push(Wire::Am(PROBES), Item::Probe(member, endpoint))
                }
                Action::Notice(event) => {
                    self.note(&event);
                }
                Action::Finish(outcome) => self.outcome = Some(*outcome),
                // An operator's order was carried out.
                Action::Answer { .. } => self.coverage.changed(),
                Action::CancelAsk { .. } | Action::Release { .. } => {}
            }
        }
        Ok(())
    }
}
