//! A whole job without sockets, threads or time: every message waits in a wire until chance delivers it.
//!
//! Wires keep their order, as connections do; which wire moves next is drawn from the seed. Connections break between any
//! two frames, processes die between any two events, and what they had sent may arrive, in part or whole, afterwards.

mod checks;
mod clocks;
mod control;
mod data;
mod extra_trainers;
mod inject;
mod log;
mod master;
mod moments;
mod moves;
mod peers;
mod processes;
mod saves;
mod trouble;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use heddle_agent::machine as agent;
use heddle_am_core::{CallId, Checkpoint, Event, Outcome, Record, RecordId, StoreCall};
use heddle_client::machine::{Closed, RequestFrame};
use heddle_protocol::control::{CommandEnvelope, ReportEnvelope};
use heddle_protocol::frame::Header;
use heddle_protocol::ids::{CutId, Epoch, Member, PhaseNo, SaveLease, SaveNo, ShardId, Step, Term};
use heddle_protocol::job_spec::Bytes;
use heddle_shard::{Conn, Peer, ShardEffect, StreamEntry};

use super::am::Am;
use super::bursts::Bursts;
use super::chance::{Chance, mix};
use super::coverage::Coverage;
use super::fault::{Fault, Schedule};
use super::job::{Job, SAVE_LEASE_MS};
use super::pserver::{self, Pserver};
use super::standstill::Standstill;
use super::store::Durable;
use super::trainer::{self, Trainer};

pub use checks::{Ended, Report};
use data::half_frame;
use extra_trainers::LateTasks;
use log::Log;
use moments::Orders;
use moves::Moves;
use peers::PeerLink;
use trouble::{AM, Trouble};

/// Values of all tables, by bits.
pub type Bits = Vec<u32>;
/// States of a BSP job that nothing disturbs, by phase and step.
pub type Reference = BTreeMap<(PhaseNo, Step), Bits>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wire {
    /// Events from the cluster to its present attempt.
    Cluster,
    /// Of an attempt: its journal, its store, its probes, each in its own order.
    Am(u32, u8),
    ControlUp(u64),
    ControlDown(u64),
    /// A container opens its control connection, or a data connection.
    Opening(u64, Option<SocketAddr>),
    /// A container looks up where the ApplicationMaster is.
    Looking(u64),
    DataUp(u64),
    DataDown(u64),
    /// A data thread of a primary opens a connection to a backup; entries to it, and its answers.
    PeerOpening(u64, usize, SocketAddr),
    PeerUp(u64),
    PeerDown(u64),
    /// Commands of a pserver to one of its data threads.
    Thread(u64, usize),
    /// What a container computes, writes, reads.
    Labour(u64),
}

/// More lines than these do not wait on a slow control connection: a container would report more than it carries.
const CONTROL_LINES_MAX: usize = 2;

const JOURNAL: u8 = 0;
const STORE: u8 = 1;
const PROBES: u8 = 2;

enum Item {
    Event(Box<Event>),
    Record(RecordId, Box<Record>),
    Call(CallId, Box<StoreCall>),
    Probe(Member, SocketAddr),
    Up(Box<ReportEnvelope>),
    Down(Box<CommandEnvelope>),
    Open,
    Frame(RequestFrame),
    Reply(ShardEffect),
    OpenPeer(Peer),
    EntryHead(Box<Header>),
    EntryChange(Box<StreamEntry>),
    Thread(pserver::ToThread),
    Save(pserver::Labour),
    Compute(trainer::Labour),
    /// The bytes of a frame whose connection broke before the rest came.
    Half(Vec<u8>),
    /// The other end is gone.
    End,
}

enum Body {
    Pserver(Box<Pserver>),
    Trainer(Box<Trainer>),
}

struct Container {
    member: Member,
    agent: agent::ControlMachine,
    /// The attempt that it connects to.
    address: u32,
    control: Option<u64>,
    body: Body,
    /// What it may use, if that is not what the spec gives.
    memory: Option<Bytes>,
    /// Nothing of it moves.
    pause: Standstill,
    /// Its agent alone moves.
    hang: Standstill,
    /// Since when, simulated time.
    hangs_since_ms: u64,
    /// It computes until then, simulated time.
    computes_until_ms: u64,
}

/// A control connection: the container, and the attempt at the other end.
struct Control {
    container: u64,
    attempt: u32,
}

struct Data {
    trainer: u64,
    member: Member,
    pserver: u64,
    thread: usize,
    endpoint: SocketAddr,
    conn: Conn,
    /// The pserver has closed its end: it reads nothing of what comes.
    is_closed: bool,
    /// SSP: the clock by which the pserver counts the trainer, with its epoch and phase.
    clock: Option<(Epoch, PhaseNo, u64)>,
}

/// A simulated cluster with one job.
pub struct World {
    job: Arc<Job>,
    seed: u64,
    chance: Chance,
    /// Half of the runs have connections of different speeds.
    slows_wires: bool,
    now_ms: u64,
    events: u64,
    durable: Durable,
    /// All that live, by attempt; those below [`World::leader`] may not know that they were replaced.
    ams: BTreeMap<u32, Am>,
    /// The one that the ResourceManager answers.
    leader: Option<u32>,
    am_returns_at: u64,
    trouble: Trouble,
    containers: BTreeMap<u64, Container>,
    /// Memory of containers that were asked for with another one than the spec's.
    asked: BTreeMap<Member, Bytes>,
    /// Containers that the cluster has given up whose process goes on.
    lost: BTreeSet<u64>,
    /// Containers whose process is gone.
    gone: BTreeSet<u64>,
    controls: BTreeMap<u64, Control>,
    data: BTreeMap<u64, Data>,
    peers: BTreeMap<u64, PeerLink>,
    /// By container and shard: epoch and term of the last change that its copy took, as backup or as primary.
    changed: BTreeMap<(u64, ShardId), (Epoch, Term)>,
    /// Pservers that did something since their copies were compared.
    active: Vec<u64>,
    /// Pairs that had a connection: another one is a reconnection.
    connected: BTreeSet<(u64, Option<SocketAddr>)>,
    wires: BTreeMap<Wire, VecDeque<Item>>,
    /// When the next item of a slow wire comes, simulated time.
    next_at_ms: BTreeMap<Wire, u64>,
    /// Room for the wires that can move.
    ready: Vec<Wire>,
    numbers: u64,
    computed: u64,
    /// Checkpoints as they were committed, for [`World::committed`].
    committed: Vec<Checkpoint>,
    /// Checkpoints of the earlier run, where there was one.
    earlier: Vec<Checkpoint>,
    /// The newest checkpoint when an attempt decided that the job is finished. Damage after that changes no result.
    ended_at: Option<Checkpoint>,
    cuts_seen: BTreeSet<CutId>,
    /// States of a run without faults by (phase, step), to hold every checkpoint against (BSP).
    reference: Option<Arc<Reference>>,
    log: Log,
    /// Of the faults so far.
    coverage: Coverage,
    /// Faults to come, by event.
    faults: VecDeque<(u64, Fault)>,
    /// Those that came.
    injected: Vec<(u64, Fault)>,
    moves: Moves,
    bursts: Option<Bursts>,
    /// The container that the last moment or the last fault was about.
    focus: Option<u64>,
    orders: Orders,
    /// Containers that have registered.
    registered: BTreeSet<u64>,
    outcome: Option<Outcome>,
    /// With replicas: shards are being loaded after a rollback.
    restoring: bool,
    failovers: u64,
    hand_overs: u64,
    spares: u64,
    divisions: u64,
    replaced_slow: u64,
    late_tasks: LateTasks,
    /// Extra trainers that were started.
    extra_trainers: u64,
    withdrawn: u64,
    /// The last lease of each save.
    leases: BTreeMap<SaveNo, SaveLease>,
    /// Saves published.
    saves: u64,
    /// Evaluations whose figures were reported.
    evaluations: u64,
    /// A promise that was broken.
    broken: Option<String>,
}

impl World {
    /// A cluster on which the job was just submitted.
    #[must_use]
    pub fn new(job: Arc<Job>, seed: u64) -> Self {
        Self::resumed(job, seed, Durable::default())
    }

    /// A cluster on which the job is submitted again with what is left of an earlier run.
    #[must_use]
    pub fn resumed(job: Arc<Job>, seed: u64, durable: Durable) -> Self {
        let mut world = Self {
            job,
            seed,
            chance: Chance::new(seed),
            slows_wires: mix(seed ^ 0x5109).is_multiple_of(2),
            now_ms: 0,
            events: 0,
            earlier: durable.checkpoints.clone(),
            ended_at: None,
            durable,
            ams: BTreeMap::new(),
            leader: None,
            am_returns_at: 0,
            trouble: Trouble::default(),
            containers: BTreeMap::new(),
            asked: BTreeMap::new(),
            lost: BTreeSet::new(),
            gone: BTreeSet::new(),
            controls: BTreeMap::new(),
            data: BTreeMap::new(),
            peers: BTreeMap::new(),
            changed: BTreeMap::new(),
            active: Vec::new(),
            connected: BTreeSet::new(),
            wires: BTreeMap::new(),
            next_at_ms: BTreeMap::new(),
            ready: Vec::new(),
            numbers: 0,
            computed: 0,
            committed: Vec::new(),
            cuts_seen: BTreeSet::new(),
            reference: None,
            log: Log::new(),
            coverage: Coverage::default(),
            faults: VecDeque::new(),
            injected: Vec::new(),
            moves: Moves::default(),
            bursts: None,
            focus: None,
            orders: Orders::default(),
            registered: BTreeSet::new(),
            outcome: None,
            restoring: false,
            failovers: 0,
            hand_overs: 0,
            spares: 0,
            divisions: 0,
            replaced_slow: 0,
            late_tasks: LateTasks::default(),
            extra_trainers: 0,
            withdrawn: 0,
            leases: BTreeMap::new(),
            saves: 0,
            evaluations: 0,
            broken: None,
        };
        world.start_am();
        world
    }

    /// Draws faults while the run goes on, besides those that it is given.
    pub fn burst(&mut self, bursts: Bursts) {
        self.bursts = Some(bursts);
    }

    /// The faults so far, those that were drawn included.
    #[must_use]
    pub fn injected(&self) -> Schedule {
        Schedule(self.injected.clone())
    }

    /// Remembers what happens in words, for [`World::take_trace`].
    pub fn keep_trace(&mut self) {
        self.log.keep_lines();
    }

    /// Writes no event log from now on.
    pub fn end_log(&mut self) {
        self.log.end();
    }

    /// What happened so far.
    pub fn take_trace(&mut self) -> Vec<String> {
        self.log.take_lines()
    }

    /// Whether it remembers what happens in words.
    #[must_use]
    pub fn keeps_trace(&self) -> bool {
        self.log.keeps_lines()
    }

    /// What happened in another run, after what happened in this one.
    pub fn append_trace(&mut self, lines: Vec<String>) {
        self.log.append(lines);
    }

    /// A hash of all that happened so far, in its order, or until the log ended.
    #[must_use]
    pub fn log_hash(&self) -> u64 {
        self.log.hash()
    }

    /// Holds every checkpoint against these states.
    pub fn expect(&mut self, reference: Arc<Reference>) {
        self.reference = Some(reference);
    }

    fn step(&mut self) -> Result<(), String> {
        self.events += 1;
        if self.leader.is_none() && self.events >= self.am_returns_at {
            self.start_am();
        }
        self.hear_the_cluster()?;
        self.reap()?;
        let mut ready = std::mem::take(&mut self.ready);
        ready.clear();
        let items = self.wires.iter().filter(|(_, items)| !items.is_empty());
        ready.extend(items.map(|(wire, _)| *wire).filter(|wire| self.moves(*wire)));
        let moved = if ready.is_empty() || self.chance.one_in(40) {
            self.let_time_pass(ready.is_empty());
            Ok(())
        } else {
            if self.chance.one_in(4) {
                self.now_ms += 1;
            }
            let mut wire = ready[self.chance.below(ready.len())];
            if self.slows_wires && !self.chance.one_in(self.slowness(wire)) {
                wire = ready[self.chance.below(ready.len())];
                if !self.chance.one_in(self.slowness(wire)) {
                    wire = ready[self.chance.below(ready.len())];
                }
            }
            self.deliver(wire)
        };
        self.ready = ready;
        moved?;
        self.fire()
    }

    /// How slow a connection is in this run: most are fast, some much slower than others, mostly all those of a container.
    fn slowness(&self, wire: Wire) -> usize {
        let control = |n| self.controls.get(&n).map_or(0, |link: &Control| link.container);
        let data = |n| self.data.get(&n).map_or(0, |link: &Data| link.trainer);
        let peer = |n| self.peers.get(&n).map_or(0, |link: &PeerLink| link.to);
        let (container, number) = match wire {
            Wire::ControlUp(n) => (control(n), n << 2),
            Wire::ControlDown(n) => (control(n), n << 2 | 1),
            Wire::DataUp(n) => (data(n), n << 2 | 2),
            Wire::DataDown(n) => (data(n), n << 2 | 3),
            Wire::PeerUp(n) => (peer(n), n << 2 | 2),
            Wire::PeerDown(n) => (peer(n), n << 2 | 3),
            _ => return 1,
        };
        let is_slow = mix(self.seed ^ mix(container << 8)).is_multiple_of(3);
        let speeds = match is_slow {
            true => [1, 3, 30, 30, 30],
            false => [1, 1, 1, 1, 3],
        };
        speeds[(mix(self.seed ^ mix(number)) % 5) as usize]
    }

    /// Whether the end that this wire leads to is not standing still, and the way to it is open.
    fn moves(&self, wire: Wire) -> bool {
        let waits = |at_ms: &u64| *at_ms > self.now_ms;
        if self.trouble.holds(wire, self.events) || self.next_at_ms.get(&wire).is_some_and(waits) {
            return false;
        }
        let (to, from) = match wire {
            Wire::Cluster => return self.leader.is_some_and(|leader| self.am_moves(leader)),
            Wire::Am(attempt, kind) => {
                let written = kind != JOURNAL || !self.trouble.storage_is_down(self.events);
                return written && self.am_moves(attempt);
            }
            Wire::ControlUp(control) => {
                let Some(control) = self.controls.get(&control) else {
                    return true;
                };
                let open = !self.trouble.cuts_off(control.container, AM, self.events);
                return open && self.am_moves(control.attempt);
            }
            Wire::ControlDown(control) => match self.controls.get(&control) {
                Some(control) => (control.container, AM),
                None => return true,
            },
            Wire::Labour(container) => {
                let of = self.containers.get(&container);
                if of.is_some_and(|c| c.computes_until_ms > self.now_ms) {
                    return false;
                }
                (container, container)
            }
            Wire::Opening(container, _)
            | Wire::Looking(container)
            | Wire::Thread(container, _)
            | Wire::PeerOpening(container, ..) => (container, container),
            Wire::PeerUp(link) => match self.peers.get(&link) {
                Some(link) => (link.to, link.from),
                None => return true,
            },
            Wire::PeerDown(link) => match self.peers.get(&link) {
                Some(link) => (link.from, link.to),
                None => return true,
            },
            Wire::DataUp(data) => match self.data.get(&data) {
                Some(data) => (data.pserver, data.trainer),
                None => return true,
            },
            Wire::DataDown(data) => match self.data.get(&data) {
                Some(data) => (data.trainer, data.pserver),
                None => return true,
            },
        };
        let is_control =
            matches!(wire, Wire::ControlDown(_) | Wire::Opening(..) | Wire::Looking(_));
        let stands = |c: &Container| {
            c.pause.holds(self.events, self.now_ms)
                || (c.hang.holds(self.events, self.now_ms) && !is_control)
        };
        !self.containers.get(&to).is_some_and(stands)
            && !self.trouble.cuts_off(from, to, self.events)
    }

    /// Whether an attempt does not stand still; one that is dead takes what comes without a word.
    fn am_moves(&self, attempt: u32) -> bool {
        let am = self.ams.get(&attempt);
        am.is_none_or(|am| !am.pause.holds(self.events, self.now_ms))
    }

    fn let_time_pass(&mut self, idle: bool) {
        let (events, now_ms) = (self.events, self.now_ms);
        let deadlines =
            self.containers.values().filter(|c| !c.pause.holds(events, now_ms)).flat_map(|c| {
                let body = match &c.body {
                    _ if c.hang.holds(events, now_ms) => None,
                    Body::Pserver(p) => p.deadline(),
                    Body::Trainer(t) => t.machine.next_deadline(),
                };
                let computes = Some(c.computes_until_ms).filter(|until| *until > self.now_ms);
                [Some(c.agent.deadline()), body, computes]
            });
        let pauses = self.containers.values().flat_map(|c| [c.pause, c.hang]);
        let pauses = pauses.chain(self.ams.values().map(|am| am.pause));
        let pauses = pauses.map(|pause| pause.ends_ms(now_ms));
        let awake = self.ams.values().filter(|am| !am.pause.holds(events, now_ms));
        let items = self.next_at_ms.values().map(|at_ms| Some(*at_ms));
        let items = items.filter(|at_ms| *at_ms > Some(self.now_ms));
        let own = awake.map(Am::deadline);
        let next = deadlines.chain(own).chain(items).chain(pauses).flatten().min();
        if let Some(next) = next.filter(|next| *next > self.now_ms) {
            // Only a quiet cluster lets time leap.
            self.now_ms = if idle { next } else { next.min(self.now_ms + 20) };
        } else {
            self.now_ms += 1;
        }
    }

    /// Fires every deadline that has come.
    fn fire(&mut self) -> Result<(), String> {
        let (now_ms, events) = (self.now_ms, self.events);
        let due =
            |am: &Am| !am.pause.holds(events, now_ms) && am.deadline().is_some_and(|d| d <= now_ms);
        let attempts: Vec<u32> =
            self.ams.iter().filter(|(_, am)| due(am)).map(|(&a, _)| a).collect();
        for attempt in attempts {
            self.am_event(attempt, Event::Timer)?;
        }
        let body_due = |c: &Container| match &c.body {
            _ if c.hang.holds(events, now_ms) => None,
            Body::Pserver(pserver) => pserver.deadline(),
            Body::Trainer(trainer) => trainer.machine.next_deadline(),
        };
        let due = |c: &Container| {
            let deadline = c.agent.deadline();
            !c.pause.holds(events, now_ms)
                && body_due(c).map_or(deadline, |body| body.min(deadline)) <= now_ms
        };
        let numbers: Vec<u64> =
            self.containers.iter().filter(|(_, c)| due(c)).map(|(&n, _)| n).collect();
        for number in numbers {
            let Some(container) = self.containers.get_mut(&number) else {
                continue;
            };
            if body_due(container).is_some_and(|d| d <= now_ms) {
                match &mut container.body {
                    Body::Pserver(pserver) => {
                        let mut out = Vec::new();
                        pserver.advance(now_ms);
                        pserver.tick(now_ms, &mut out);
                        self.pserver_wants(number, out)?;
                    }
                    Body::Trainer(trainer) => {
                        trainer.machine.timer(now_ms);
                        self.pump(number)?;
                    }
                }
            }
            if let Some(container) = self.containers.get_mut(&number)
                && container.agent.deadline() <= now_ms
            {
                let outputs = container.agent.on(agent::Input::Timer, now_ms);
                self.agent_wants(number, outputs)?;
            }
        }
        Ok(())
    }

    fn deliver(&mut self, wire: Wire) -> Result<(), String> {
        let Some(items) = self.wires.get_mut(&wire) else {
            return Ok(());
        };
        let Some(item) = items.pop_front() else {
            return Ok(());
        };
        let is_control = matches!(wire, Wire::ControlUp(_) | Wire::ControlDown(_));
        if items.is_empty() {
            self.wires.remove(&wire);
            self.next_at_ms.remove(&wire);
        } else if !is_control || items.len() <= CONTROL_LINES_MAX {
            self.delay(wire);
        }
        match (wire, item) {
            (Wire::Cluster, Item::Event(event)) => match self.leader {
                Some(leader) => self.am_event(leader, *event),
                None => Ok(()),
            },
            (Wire::Am(attempt, _), item) => self.deliver_to_am(attempt, item),
            (Wire::ControlUp(control), Item::Up(line)) => self.line_up(control, *line),
            (Wire::ControlUp(control), Item::End) => self.control_ended_at_am(control),
            (Wire::ControlDown(control), Item::Down(down)) => self.line_down(control, down),
            (Wire::ControlDown(control), Item::End) => self.control_ended_at_container(control),
            (Wire::Opening(number, None), _) => self.open_control(number),
            (Wire::Opening(number, Some(endpoint)), _) => self.open_data(number, endpoint),
            (Wire::Looking(number), _) => self.look_up(number),
            (Wire::DataUp(data), Item::Frame(frame)) => self.frame_up(data, frame),
            (Wire::DataUp(data), Item::End) => self.data_ended_at_pserver(data),
            (Wire::DataDown(data), Item::Reply(effect)) => self.reply_down(data, effect),
            (Wire::DataDown(data), Item::End) => self.data_ended_at_trainer(data, Closed::Broke),
            (Wire::DataUp(_) | Wire::DataDown(_), Item::Half(bytes)) => half_frame(&bytes),
            (Wire::Thread(number, thread), Item::Thread(command)) => {
                self.thread_obeys(number, thread, command)
            }
            (Wire::PeerOpening(number, thread, _), Item::OpenPeer(peer)) => {
                self.open_peer(number, thread, peer)
            }
            (Wire::PeerUp(link), Item::End) => self.peer_ended_at_backup(link),
            (Wire::PeerUp(link), item) => self.entry_up(link, item),
            (Wire::PeerDown(link), Item::Reply(ShardEffect::Reply { header, .. })) => {
                self.entry_answered(link, &header)
            }
            (Wire::PeerDown(link), Item::End) => self.peer_ended_at_primary(link),
            (Wire::Labour(number), Item::Save(labour)) => self.pserver_labours(number, labour),
            (Wire::Labour(number), Item::Compute(labour)) => self.trainer_labours(number, labour),
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
        let items = self.wires.entry(wire).or_default();
        items.push_back(item);
        if items.len() == 1 {
            self.delay(wire);
        }
    }

    /// Where computing takes time, so do some connections: each item up to a time of the connection's own.
    fn delay(&mut self, wire: Wire) {
        let compute_ms = self.job.compute_ms as usize;
        if compute_ms == 0 || !self.slows_wires {
            return;
        }
        let most_ms = match self.slowness(wire) {
            1 => return,
            3 => compute_ms / 4,
            _ => compute_ms * 3,
        };
        let is_control = matches!(wire, Wire::ControlUp(_) | Wire::ControlDown(_));
        let most_ms = match is_control && self.job.asks_every > 0 {
            // Orders to export and heartbeats that show progress come within the lease. Where they regularly take longer, each
            // lease lapses whatever the trainers do, and the job rightly ends without its model.
            true => most_ms.min(SAVE_LEASE_MS as usize / 5),
            false => most_ms,
        };
        let at_ms = self.now_ms + self.chance.below(most_ms) as u64;
        self.next_at_ms.insert(wire, at_ms);
    }

    pub(super) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub(super) fn tell(&mut self, what: fmt::Arguments<'_>) {
        self.log.note(self.events, self.now_ms, what);
    }
}
