//! A whole job without sockets, threads or time: every message waits in a wire until chance delivers it.
//!
//! Wires keep their order, as connections do; which wire moves next is drawn from the seed. Connections break between any
//! two frames, processes die between any two events, and what they had sent may arrive, in part or whole, afterwards.

mod checks;
mod control;
mod data;
mod inject;
mod log;
mod master;
mod processes;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::net::SocketAddr;

use heddle_agent::machine as agent;
use heddle_am_core::{CallId, Event, Outcome, Record, RecordId, StoreCall};
use heddle_client::machine::{Closed, Frame};
use heddle_protocol::control::{Down, UpLine};
use heddle_protocol::ids::{CutId, Member, PhaseNo, Step};
use heddle_shard::{Conn, Effect};
use uuid::Uuid;

use super::am::{Am, Durable};
use super::chance::Chance;
use super::coverage::Coverage;
use super::job::Job;
use super::pserver::{self, Pserver};
use super::trainer::{self, Trainer};

pub use checks::Report;
use log::{Brief, Log};

/// Values of all tables, by bits.
pub type Bits = Vec<u32>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wire {
    /// Journal, store, cluster, probes: each in its own order.
    Am(u8),
    ControlUp(u64),
    ControlDown(u64),
    /// A container opens its control connection, or a data connection.
    Opening(u64, Option<SocketAddr>),
    DataUp(u64),
    DataDown(u64),
    /// What a container computes, writes, reads.
    Labour(u64),
}

const JOURNAL: u8 = 0;
const STORE: u8 = 1;
const CLUSTER: u8 = 2;
const PROBES: u8 = 3;

enum Item {
    Event(Box<Event>),
    Record(RecordId, Box<Record>),
    Call(CallId, Box<StoreCall>),
    Probe(Member, SocketAddr),
    Up(Box<UpLine>),
    Down(Box<Down>),
    Open,
    Frame(Frame),
    Reply(Effect),
    Save(pserver::Labour),
    Compute(trainer::Labour),
    /// The other end is gone.
    End,
}

enum Body {
    Pserver(Box<Pserver>),
    Trainer(Box<Trainer>),
}

struct Container {
    member: Member,
    agent: agent::Machine,
    control: Option<u64>,
    body: Body,
    /// Nothing of it moves before this event.
    paused_until: u64,
}

/// A control connection: the container, and the attempt at the other end.
struct Control {
    container: u64,
    attempt: u32,
}

struct Data {
    trainer: u64,
    pserver: u64,
    endpoint: SocketAddr,
    conn: Conn,
}

/// A simulated cluster with one job.
pub struct World {
    job: Job,
    seed: u64,
    chance: Chance,
    now_ms: u64,
    events: u64,
    durable: Durable,
    am: Option<Am>,
    am_returns_at: u64,
    /// When the ResourceManager last answered this attempt, and before which event it does not again.
    cluster_heard_ms: u64,
    silent_until: u64,
    containers: BTreeMap<u64, Container>,
    /// Containers that the cluster has given up whose process goes on.
    lost: BTreeSet<u64>,
    /// Containers whose process is gone.
    gone: BTreeSet<u64>,
    controls: BTreeMap<u64, Control>,
    data: BTreeMap<u64, Data>,
    /// Who has had a connection to where: one more is one again.
    connected: BTreeSet<(u64, Option<SocketAddr>)>,
    wires: BTreeMap<Wire, VecDeque<Item>>,
    numbers: u64,
    commits: usize,
    computed: u64,
    cuts_seen: BTreeSet<CutId>,
    /// States of a run without faults by (phase, step), to hold every checkpoint against (BSP).
    reference: Option<BTreeMap<(PhaseNo, Step), Bits>>,
    log: Log,
    /// Of the faults so far.
    coverage: Coverage,
    outcome: Option<Outcome>,
}

impl World {
    /// A cluster on which the job was just submitted.
    #[must_use]
    pub fn new(job: Job, seed: u64) -> Self {
        let mut world = Self {
            job,
            seed,
            chance: Chance::new(seed),
            now_ms: 0,
            events: 0,
            durable: Durable::default(),
            am: None,
            am_returns_at: 0,
            cluster_heard_ms: 0,
            silent_until: 0,
            containers: BTreeMap::new(),
            lost: BTreeSet::new(),
            gone: BTreeSet::new(),
            controls: BTreeMap::new(),
            data: BTreeMap::new(),
            connected: BTreeSet::new(),
            wires: BTreeMap::new(),
            numbers: 0,
            commits: 0,
            computed: 0,
            cuts_seen: BTreeSet::new(),
            reference: None,
            log: Log::new(),
            coverage: Coverage::default(),
            outcome: None,
        };
        world.start_am();
        world
    }

    /// Remembers what happens in words, for [`World::take_trace`].
    pub fn keep_trace(&mut self) {
        self.log.keep_lines();
    }

    /// What happened so far.
    pub fn take_trace(&mut self) -> Vec<String> {
        self.log.take_lines()
    }

    /// A hash of all that happened so far, in its order.
    #[must_use]
    pub fn log_hash(&self) -> u64 {
        self.log.hash()
    }

    /// Holds every checkpoint against these states.
    pub fn expect(&mut self, reference: BTreeMap<(PhaseNo, Step), Bits>) {
        self.reference = Some(reference);
    }

    fn step(&mut self) -> Result<(), String> {
        self.events += 1;
        if self.am.is_none() && self.events >= self.am_returns_at {
            self.start_am();
        }
        self.hear_the_cluster()?;
        let ready: Vec<Wire> = self
            .wires
            .iter()
            .filter(|(wire, items)| !items.is_empty() && self.moves(**wire))
            .map(|(wire, _)| *wire)
            .collect();
        if ready.is_empty() || self.chance.one_in(40) {
            self.let_time_pass(ready.is_empty());
        } else {
            if self.chance.one_in(4) {
                self.now_ms += 1;
            }
            let wire = ready[self.chance.below(ready.len())];
            self.deliver(wire)?;
        }
        self.fire()
    }

    /// Whether the end that this wire leads to is not standing still.
    fn moves(&self, wire: Wire) -> bool {
        let container = match wire {
            Wire::Am(_) => return true,
            Wire::ControlUp(_) => return self.am.is_some(),
            Wire::ControlDown(control) => self.controls.get(&control).map(|c| c.container),
            Wire::Opening(container, _) | Wire::Labour(container) => Some(container),
            Wire::DataUp(data) => self.data.get(&data).map(|d| d.pserver),
            Wire::DataDown(data) => self.data.get(&data).map(|d| d.trainer),
        };
        container
            .and_then(|n| self.containers.get(&n))
            .is_none_or(|c| c.paused_until <= self.events)
    }

    fn let_time_pass(&mut self, idle: bool) {
        let deadlines = self
            .containers
            .values()
            .filter(|c| c.paused_until <= self.events)
            .flat_map(|c| {
                let body = match &c.body {
                    Body::Pserver(p) => p.host.deadline().map(|d| d.as_millis() as u64),
                    Body::Trainer(t) => t.machine.next_deadline(),
                };
                [Some(c.agent.deadline()), body]
            });
        let am = self
            .am
            .as_ref()
            .and_then(|am| am.core.next_deadline())
            .map(|mono| mono.0);
        let next = deadlines.chain([am]).flatten().min();
        if let Some(next) = next.filter(|next| *next > self.now_ms) {
            // Only a quiet cluster lets time leap.
            self.now_ms = if idle {
                next
            } else {
                next.min(self.now_ms + 20)
            };
        } else {
            self.now_ms += 1;
        }
    }

    /// Fires every deadline that has come.
    fn fire(&mut self) -> Result<(), String> {
        if let Some(am) = &mut self.am
            && am
                .core
                .next_deadline()
                .is_some_and(|mono| mono.0 <= self.now_ms)
        {
            let actions = am.on(Event::Timer, self.now_ms);
            self.act(actions)?;
        }
        let due = |c: &Container, now_ms| c.agent.deadline() <= now_ms;
        let numbers: Vec<u64> = self.containers.keys().copied().collect();
        for number in numbers {
            let Some(container) = self
                .containers
                .get_mut(&number)
                .filter(|c| c.paused_until <= self.events)
            else {
                continue;
            };
            match &mut container.body {
                Body::Pserver(pserver) => {
                    if pserver
                        .host
                        .deadline()
                        .is_some_and(|d| d.as_millis() as u64 <= self.now_ms)
                    {
                        let mut out = Vec::new();
                        pserver.tick(self.now_ms, &mut out);
                        self.pserver_wants(number, out)?;
                    }
                }
                Body::Trainer(trainer) => {
                    if trainer
                        .machine
                        .next_deadline()
                        .is_some_and(|d| d <= self.now_ms)
                    {
                        trainer.machine.timer(self.now_ms);
                        self.pump(number)?;
                    }
                }
            }
            if let Some(container) = self.containers.get_mut(&number)
                && due(container, self.now_ms)
            {
                let outputs = container.agent.on(agent::Input::Timer, self.now_ms);
                self.agent_wants(number, outputs)?;
            }
        }
        Ok(())
    }

    fn deliver(&mut self, wire: Wire) -> Result<(), String> {
        let Some(item) = self.wires.get_mut(&wire).and_then(VecDeque::pop_front) else {
            return Ok(());
        };
        match (wire, item) {
            (Wire::Am(_), item) => self.deliver_to_am(item),
            (Wire::ControlUp(control), Item::Up(line)) => self.line_up(control, *line),
            (Wire::ControlUp(control), Item::End) => self.control_ended_at_am(control),
            (Wire::ControlDown(control), Item::Down(down)) => {
                let Some(number) = self.controls.get(&control).map(|c| c.container) else {
                    return Ok(());
                };
                let Some(container) = self
                    .containers
                    .get_mut(&number)
                    .filter(|c| c.control == Some(control))
                else {
                    return Ok(());
                };
                if let Some(command) = &down.command {
                    let name = Brief(command);
                    let what = format_args!("{} hears {name}", container.member);
                    self.log.note(self.events, self.now_ms, what);
                }
                let outputs = container.agent.on(agent::Input::Line(down), self.now_ms);
                self.agent_wants(number, outputs)
            }
            (Wire::ControlDown(control), Item::End) => self.control_ended_at_container(control),
            (Wire::Opening(number, None), _) => self.open_control(number),
            (Wire::Opening(number, Some(endpoint)), _) => self.open_data(number, endpoint),
            (Wire::DataUp(data), Item::Frame(frame)) => self.frame_up(data, frame),
            (Wire::DataUp(data), Item::End) => self.data_ended_at_pserver(data),
            (Wire::DataDown(data), Item::Reply(effect)) => self.reply_down(data, effect),
            (Wire::DataDown(data), Item::End) => self.data_ended_at_trainer(data, Closed::Broke),
            (Wire::Labour(number), Item::Save(labour)) => {
                let uuid = Uuid::from_u128(u128::from(self.number()) << 64 | 1);
                let Some(Container {
                    body: Body::Pserver(pserver),
                    ..
                }) = self.containers.get_mut(&number)
                else {
                    return Ok(());
                };
                let mut out = Vec::new();
                pserver.labour(labour, uuid, &mut self.durable.files, &mut out)?;
                self.pserver_wants(number, out)
            }
            (Wire::Labour(number), Item::Compute(labour)) => {
                let Some(Container {
                    body: Body::Trainer(trainer),
                    ..
                }) = self.containers.get_mut(&number)
                else {
                    return Ok(());
                };
                let mut out = Vec::new();
                trainer.labour(labour, &mut out)?;
                self.computed += 1;
                self.trainer_wants(number, out)?;
                self.pump(number)
            }
            _ => Err("an item in a wire where it does not belong".to_owned()),
        }
    }

    /// A connection of a container opens, to a pserver or to the ApplicationMaster.
    fn connects(&mut self, number: u64, endpoint: Option<SocketAddr>) {
        if !self.connected.insert((number, endpoint)) {
            self.coverage.changed();
        }
    }

    fn push(&mut self, wire: Wire, item: Item) {
        self.wires.entry(wire).or_default().push_back(item);
    }

    pub(super) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub(super) fn tell(&mut self, what: fmt::Arguments<'_>) {
        self.log.note(self.events, self.now_ms, what);
    }
}
