//! A simulated ApplicationMaster: the real [`Core`], and in place of its driver's IO what a run of this simulation
//! remembers: journal, checkpoints, files.

use std::collections::BTreeMap;
use std::sync::Arc;

use heddle_am_core::{
    Action, Checkpoint, Config, ConnectionId, ContainerId, Core, Event, Kept, Mono, Now, Record,
    Recovered, StoreCall, Stored,
};
use heddle_protocol::control::{Command, Down, Up, UpLine};
use heddle_protocol::ids::{Attempt, Generation, Member};
use uuid::Uuid;

use super::pserver::Saved;

/// What outlives every process.
#[derive(Default)]
pub struct Durable {
    /// All records, in order.
    pub journal: Vec<Record>,
    /// Complete checkpoints, oldest first, removed ones left out.
    pub checkpoints: Vec<Checkpoint>,
    /// Shard files by name.
    pub files: BTreeMap<Uuid, Saved>,
    /// The highest claim.
    pub generation: u32,
}

impl Durable {
    /// Does a store call.
    pub fn store(&mut self, generation: u32, call: &StoreCall) -> Stored {
        if generation != self.generation {
            return Stored::Fenced {
                error: format!("generation {}", self.generation),
            };
        }
        match call {
            StoreCall::Stage { cut } => Stored::Staged(format!("/staging/{cut}")),
            StoreCall::Commit {
                staging: _,
                manifest,
            } => {
                let checkpoint = Checkpoint {
                    dir: format!("/checkpoints/{}", manifest.cut),
                    manifest: Arc::new((**manifest).clone()),
                };
                self.checkpoints.push(checkpoint.clone());
                Stored::Committed(Box::new(checkpoint))
            }
            StoreCall::Discard { .. } => Stored::Done,
            StoreCall::Retain { keep, base, .. } => {
                let excess = self.checkpoints.len().saturating_sub(*keep as usize);
                let mut seen = 0;
                self.checkpoints.retain(|checkpoint| {
                    seen += 1;
                    seen > excess || checkpoint.manifest.cut == *base
                });
                Stored::Done
            }
            StoreCall::OlderBase { below, .. } => {
                let older = self
                    .checkpoints
                    .iter()
                    .rev()
                    .find(|checkpoint| checkpoint.manifest.cut < *below);
                Stored::Base {
                    base: older.cloned().map(Box::new),
                    damaged: Vec::new(),
                }
            }
            StoreCall::PublishModel { dir, .. } => Stored::Published(dir.clone()),
        }
    }
}

/// One attempt of the ApplicationMaster.
pub struct Am {
    /// Its decisions.
    pub core: Core,
    /// Which attempt it is.
    pub attempt: Attempt,
    /// Its claim.
    pub generation: Generation,
    /// Control connections: who is at the other end, as far as proven, and whether it has registered.
    sessions: BTreeMap<ConnectionId, (Member, bool)>,
    /// The highest report of each container that was taken in.
    heard: BTreeMap<Member, u64>,
}

impl Am {
    /// Claims the lineage and starts.
    pub fn start(
        config: Config,
        durable: &mut Durable,
        kept: Vec<Kept>,
        now_ms: u64,
    ) -> (Self, Vec<Action>) {
        durable.generation += 1;
        let generation = Generation(durable.generation);
        let attempt = Attempt(durable.generation);
        let mut am = Self {
            core: Core::new(config),
            attempt,
            generation,
            sessions: BTreeMap::new(),
            heard: BTreeMap::new(),
        };
        let recovered = Recovered {
            attempt,
            generation,
            journal: durable.journal.clone(),
            damaged: Vec::new(),
            base: durable.checkpoints.last().cloned(),
            checkpoints: durable.checkpoints.clone(),
            kept,
        };
        let actions = am.on(Event::Recovered(Box::new(recovered)), now_ms);
        (am, actions)
    }

    /// One event.
    pub fn on(&mut self, event: Event, now_ms: u64) -> Vec<Action> {
        self.core.on(
            event,
            Now {
                mono: Mono(now_ms),
                wall_ms: now_ms,
            },
        )
    }

    /// A container has proven who it is.
    pub fn opened(&mut self, connection: ConnectionId, member: Member) {
        self.sessions.insert(connection, (member, false));
    }

    /// A line of a container: what the core is told of it, and whether the sender waits for a confirmation.
    pub fn line(
        &mut self,
        connection: ConnectionId,
        container: &ContainerId,
        line: UpLine,
    ) -> (Option<Event>, bool) {
        let Some((member, registered)) = self.sessions.get_mut(&connection) else {
            return (None, false);
        };
        if let Up::Register {
            member,
            pid,
            host,
            container: _,
            endpoints,
            held,
            busy,
        } = line.report
        {
            *registered = true;
            let container = Some(container.clone());
            return (
                Some(Event::Registered {
                    connection,
                    member,
                    container,
                    pid,
                    host,
                    endpoints,
                    held,
                    busy,
                }),
                false,
            );
        }
        if !*registered {
            return (None, false);
        }
        if line.seq > 0 {
            let heard = self.heard.entry(*member).or_default();
            if line.seq <= *heard {
                return (None, false);
            }
            *heard = line.seq;
        }
        let confirm = matches!(line.report, Up::Heartbeat(_));
        (
            Some(Event::Report {
                connection,
                report: Box::new(line.report),
            }),
            confirm,
        )
    }

    /// A control connection ended.
    pub fn closed(&mut self, connection: ConnectionId) -> Option<Event> {
        let (_, registered) = self.sessions.remove(&connection)?;
        registered.then_some(Event::Closed { connection })
    }

    /// What goes down a connection, if it is still there.
    pub fn down(&self, connection: ConnectionId, command: Option<Command>) -> Option<Down> {
        let (member, _) = self.sessions.get(&connection)?;
        Some(Down {
            attempt: self.attempt,
            heard: self.heard.get(member).copied().unwrap_or(0),
            command,
        })
    }
}
