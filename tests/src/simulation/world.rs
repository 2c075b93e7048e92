//! A whole job without sockets, threads or time: every message waits in a wire until chance delivers it.
//!
//! Wires keep their order, as connections do; which wire moves next is drawn from the seed. Connections break between any
//! two frames, processes die between any two events, and what they had sent may arrive, in part or whole, afterwards.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

use heddle_agent::machine as agent;
use heddle_am_core::{
    Action, ConnectionId, ContainerId, Event, Exit, OperationId, Outcome, Probe, Record, StoreCall,
};
use heddle_client::machine::{Closed, Frame};
use heddle_protocol::control::{Beat, Command, Down, Operation, Up, UpLine};
use heddle_protocol::frame::{Header, Kind, Status};
use heddle_protocol::ids::{CutId, Epoch, Member, PhaseNo, Role, Step, TableId};
use heddle_protocol::manifest::Work;
use heddle_protocol::view::JobState;
use heddle_shard::{Conn, Effect, Rows};
use uuid::Uuid;

use super::am::{Am, Durable};
use super::chance::Chance;
use super::job::{COUNTS, Job, WEIGHTS};
use super::pserver::{self, Pserver};
use super::trainer::{self, Trainer};

/// Values of all tables, by bits.
pub type Bits = Vec<u32>;

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
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 10] = [
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
    ];
}

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
    Record(heddle_am_core::RecordId, Box<Record>),
    Call(heddle_am_core::CallId, Box<StoreCall>),
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

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Report {
    /// Events that it took.
    pub events: u64,
    /// Simulated milliseconds.
    pub now_ms: u64,
    /// Values of the last checkpoint.
    pub bits: Bits,
    /// Steps that trainers computed.
    pub computed: u64,
    /// Checkpoints committed.
    pub commits: usize,
    /// Rollbacks ordered, the start of the job included.
    pub restores: usize,
}

/// A simulated cluster with one job.
pub struct World {
    job: Job,
    chance: Chance,
    now_ms: u64,
    events: u64,
    durable: Durable,
    am: Option<Am>,
    am_returns_at: u64,
    containers: BTreeMap<u64, Container>,
    /// Containers that the cluster has given up whose process goes on.
    lost: BTreeSet<u64>,
    /// Containers whose process is gone.
    gone: BTreeSet<u64>,
    controls: BTreeMap<u64, Control>,
    data: BTreeMap<u64, Data>,
    wires: BTreeMap<Wire, VecDeque<Item>>,
    numbers: u64,
    commits: usize,
    computed: u64,
    cuts_seen: BTreeSet<CutId>,
    /// States of a run without faults by (phase, step), to hold every checkpoint against (BSP).
    reference: Option<BTreeMap<(PhaseNo, Step), Bits>>,
    /// What happened, newest last, if it is to be told.
    trace: Option<Vec<String>>,
    outcome: Option<Outcome>,
}

impl World {
    /// A cluster on which the job was just submitted.
    #[must_use]
    pub fn new(job: Job, seed: u64) -> Self {
        let mut world = Self {
            job,
            chance: Chance::new(seed),
            now_ms: 0,
            events: 0,
            durable: Durable::default(),
            am: None,
            am_returns_at: 0,
            containers: BTreeMap::new(),
            lost: BTreeSet::new(),
            gone: BTreeSet::new(),
            controls: BTreeMap::new(),
            data: BTreeMap::new(),
            wires: BTreeMap::new(),
            numbers: 0,
            commits: 0,
            computed: 0,
            cuts_seen: BTreeSet::new(),
            reference: None,
            trace: None,
            outcome: None,
        };
        world.start_am();
        world
    }

    /// Remembers what happens, for [`World::take_trace`].
    pub fn keep_trace(&mut self) {
        self.trace = Some(Vec::new());
    }

    /// What happened so far.
    pub fn take_trace(&mut self) -> Vec<String> {
        self.trace.take().unwrap_or_default()
    }

    /// Holds every checkpoint against these states.
    pub fn expect(&mut self, reference: BTreeMap<(PhaseNo, Step), Bits>) {
        self.reference = Some(reference);
    }

    /// Runs the job to its end, with faults right before these events.
    ///
    /// # Errors
    /// A promise that was broken, in words.
    pub fn run(
        &mut self,
        faults: &[(u64, Fault)],
        mut watch: impl FnMut(&Self),
    ) -> Result<Report, String> {
        // Far above what any run takes: a job of a thousand events that is not over by now never will be.
        const EVENTS_MAX: u64 = 400_000;
        const TIME_MAX_MS: u64 = 4 * 3_600_000;
        let mut faults: VecDeque<_> = faults.to_vec().into();
        while self.outcome.is_none() {
            while faults.front().is_some_and(|(at, _)| *at <= self.events) {
                if let Some((_, fault)) = faults.pop_front() {
                    self.inject(fault)?;
                }
            }
            self.step()?;
            watch(self);
            if self.events > EVENTS_MAX || self.now_ms > TIME_MAX_MS {
                return Err(format!(
                    "no end after {} events and {} ms: {}",
                    self.events,
                    self.now_ms,
                    self.describe()
                ));
            }
        }
        let outcome = self.outcome.clone().ok_or("no outcome")?;
        if outcome.state != JobState::Finished || outcome.exit_code != 0 {
            return Err(format!("the job ended with {outcome:?}"));
        }
        let last = self
            .durable
            .checkpoints
            .last()
            .ok_or("no checkpoint at the end")?;
        let bits = self.bits_of(last)?;
        Ok(Report {
            events: self.events,
            now_ms: self.now_ms,
            bits,
            computed: self.computed,
            commits: self.commits,
            restores: self
                .durable
                .journal
                .iter()
                .filter(|record| matches!(record, Record::Restore { .. }))
                .count(),
        })
    }

    /// Values of a table in the last checkpoint.
    #[must_use]
    pub fn final_counts(&self) -> Vec<f32> {
        let bits = self
            .durable
            .checkpoints
            .last()
            .and_then(|last| self.bits_of(last).ok())
            .unwrap_or_default();
        let weights = self.job.tables()[usize::from(WEIGHTS.0)].values() as usize;
        bits[weights.min(bits.len())..]
            .iter()
            .map(|bits| f32::from_bits(*bits))
            .collect()
    }

    /// BSP: the state of all shards if they stand at one step of one phase.
    #[must_use]
    pub fn common_state(&self) -> Option<((PhaseNo, Step), Bits)> {
        let hosts: Vec<_> = self
            .containers
            .values()
            .filter_map(|c| match &c.body {
                Body::Pserver(pserver) => Some(&pserver.host),
                Body::Trainer(_) => None,
            })
            .collect();
        let mut shards = BTreeMap::new();
        for host in &hosts {
            for state in host.states() {
                shards.insert(
                    state.shard,
                    ((state.phase, state.step), host.shard(state.shard)?),
                );
            }
        }
        let (at, _) = *shards.values().next()?;
        if shards.len() != self.job.shards as usize
            || shards.values().any(|(other, _)| *other != at)
        {
            return None;
        }
        let mut bits = Vec::new();
        for table in [WEIGHTS, COUNTS] {
            for (_, shard) in shards.values() {
                bits.extend(
                    shard
                        .table_values(table)?
                        .iter()
                        .map(|value| value.to_bits()),
                );
            }
        }
        Some((at, bits))
    }

    fn bits_of(&self, checkpoint: &heddle_am_core::Checkpoint) -> Result<Bits, String> {
        let files = &checkpoint.manifest.shards;
        let mut bits = Vec::new();
        for table in [WEIGHTS, COUNTS] {
            for file in files {
                let saved = self
                    .durable
                    .files
                    .get(&file.uuid)
                    .ok_or_else(|| format!("no file {}", file.uuid))?;
                let sections = self.job.shard(file.shard).sections();
                let index = sections.iter().position(|section| {
                    section.table == TableId(table.0) && section.plane == "values"
                });
                let index = index.ok_or("no section of the table")?;
                bits.extend(saved.sections[index].iter().map(|value| value.to_bits()));
            }
        }
        Ok(bits)
    }

    // ---- the loop ----

    fn step(&mut self) -> Result<(), String> {
        self.events += 1;
        if self.am.is_none() && self.events >= self.am_returns_at {
            self.start_am();
        }
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
                    let text = format!("{} hears {}", container.member, short(command));
                    self.tell(text);
                }
                let Some(container) = self.containers.get_mut(&number) else {
                    return Ok(());
                };
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

    fn push(&mut self, wire: Wire, item: Item) {
        self.wires.entry(wire).or_default().push_back(item);
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn tell(&mut self, text: String) {
        let (events, now_ms) = (self.events, self.now_ms);
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{events:>6} {now_ms:>8} ms  {text}"));
        }
    }

    // ---- the ApplicationMaster ----

    fn start_am(&mut self) {
        let alive = self.containers.keys().filter(|n| !self.lost.contains(n));
        let kept = alive.map(|n| ContainerId(n.to_string())).collect();
        let (am, actions) = Am::start(self.job.config(), &mut self.durable, kept, self.now_ms);
        self.tell(format!("ApplicationMaster {} starts", am.generation));
        self.am = Some(am);
        // The first actions of an attempt cannot break a promise that is checked here.
        let acted = self.act(actions);
        debug_assert!(acted.is_ok(), "{acted:?}");
    }

    fn am_event(&mut self, event: Event) -> Result<(), String> {
        let Some(am) = &mut self.am else {
            return Ok(());
        };
        let actions = am.on(event, self.now_ms);
        self.act(actions)
    }

    fn deliver_to_am(&mut self, item: Item) -> Result<(), String> {
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

    fn perform(&mut self, call: &StoreCall) -> Result<heddle_am_core::Stored, String> {
        if let StoreCall::Commit { manifest, .. } = call {
            self.check_commit(manifest)?;
        }
        let generation = self.am.as_ref().map_or(0, |am| am.generation.0);
        Ok(self.durable.store(generation, call))
    }

    fn check_commit(
        &mut self,
        manifest: &heddle_protocol::manifest::Manifest,
    ) -> Result<(), String> {
        if !self.cuts_seen.insert(manifest.cut) {
            return Err(format!("cut {} is committed twice", manifest.cut));
        }
        self.commits += 1;
        for file in &manifest.shards {
            let saved = self
                .durable
                .files
                .get(&file.uuid)
                .ok_or_else(|| format!("{} names a file that is not there", manifest.cut))?;
            if saved.cut != manifest.cut || saved.shard != file.shard {
                return Err(format!(
                    "{} names a file of {} shard {}",
                    manifest.cut, saved.cut, saved.shard
                ));
            }
        }
        self.tell(format!(
            "checkpoint {} of phase {} is committed: {:?}",
            manifest.cut, manifest.phase, manifest.work
        ));
        let checkpoint = heddle_am_core::Checkpoint {
            dir: String::new(),
            manifest: std::sync::Arc::new(manifest.clone()),
        };
        let bits = self.bits_of(&checkpoint)?;
        if let (Work::Lanes { step }, Some(reference)) = (&manifest.work, &self.reference) {
            match reference.get(&(manifest.phase, *step)) {
                Some(expected) if *expected == bits => {}
                Some(_) => {
                    return Err(format!(
                        "{} is not the state of phase {} step {step}",
                        manifest.cut, manifest.phase
                    ));
                }
                None => {
                    return Err(format!(
                        "{} is of phase {} step {step}, which no undisturbed run has",
                        manifest.cut, manifest.phase
                    ));
                }
            }
        }
        Ok(())
    }

    fn act(&mut self, actions: Vec<Action>) -> Result<(), String> {
        for action in actions {
            match action {
                Action::Ask {
                    slot, incarnation, ..
                } => {
                    let container = ContainerId(self.number().to_string());
                    let event = Event::Allocated {
                        container,
                        slot,
                        incarnation,
                        node: "node".to_owned(),
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
                    self.tell(format!("{member} is stopped"));
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
                    if let Some(down) = self
                        .am
                        .as_ref()
                        .and_then(|am| am.down(connection, Some(*command)))
                    {
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
                Action::Store { id, call } => self.push(Wire::Am(STORE), Item::Call(id, call)),
                Action::ProbePort { member, endpoint } => {
                    self.push(Wire::Am(PROBES), Item::Probe(member, endpoint))
                }
                Action::Notice(event) => {
                    if self.trace.is_some() {
                        self.tell(format!("AM: {event:?}"));
                    }
                }
                Action::Finish(outcome) => self.outcome = Some(*outcome),
                Action::CancelAsk { .. } | Action::Release { .. } | Action::Answer { .. } => {}
            }
        }
        Ok(())
    }

    /// Nobody hears of an epoch before the journal has it: a successor would not know it.
    fn check_command(&self, command: &Command) -> Result<(), String> {
        let epoch = match command {
            Command::Hold { epoch, .. }
            | Command::Work { epoch, .. }
            | Command::Begin { epoch, .. } => *epoch,
            _ => return Ok(()),
        };
        let known = |record: &Record| matches!(record, Record::Restore { epoch: known, .. } if *known == epoch);
        if self.durable.journal.iter().any(known) {
            Ok(())
        } else {
            Err(format!("epoch {epoch} is told before it is durable"))
        }
    }

    // ---- containers ----

    fn launch(&mut self, container: &ContainerId, member: Member) {
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
    fn end_process(&mut self, number: u64, exit: Exit) -> Result<(), String> {
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
            };
            self.push(Wire::Am(CLUSTER), Item::Event(Box::new(event)));
        }
        Ok(())
    }

    /// Of what is in a wire some arrives, then its end.
    fn cut_short(&mut self, wire: Wire) {
        let items = self.wires.entry(wire).or_default();
        let keep = self.chance.below(items.len() + 1);
        items.truncate(keep);
        items.push_back(Item::End);
    }

    fn agent_wants(&mut self, number: u64, outputs: Vec<agent::Output>) -> Result<(), String> {
        for output in outputs {
            let Some(container) = self.containers.get_mut(&number) else {
                return Ok(());
            };
            match output {
                agent::Output::Connect => self.push(Wire::Opening(number, None), Item::Open),
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
                    let text = format!("{} exits: {exit:?}", container.member);
                    self.tell(text);
                    self.end_process(number, Exit::Code(i32::from(exit.code())))?;
                }
            }
        }
        Ok(())
    }

    fn send_up(&mut self, number: u64, line: UpLine) {
        if let Some(control) = self.containers.get(&number).and_then(|c| c.control) {
            self.push(Wire::ControlUp(control), Item::Up(Box::new(line)));
        }
    }

    fn command(&mut self, number: u64, command: Command) -> Result<(), String> {
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

    fn report(&mut self, number: u64, report: Up) -> Result<(), String> {
        let Some(container) = self.containers.get_mut(&number) else {
            return Ok(());
        };
        if self.trace.is_some() {
            let text = format!("{} says {}", container.member, brief(&report));
            self.tell(text);
        }
        let Some(container) = self.containers.get_mut(&number) else {
            return Ok(());
        };
        let outputs = container
            .agent
            .on(agent::Input::Report(Box::new(report)), self.now_ms);
        self.agent_wants(number, outputs)
    }

    fn pserver_wants(&mut self, number: u64, wants: Vec<pserver::Output>) -> Result<(), String> {
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

    fn trainer_wants(&mut self, number: u64, wants: Vec<trainer::Output>) -> Result<(), String> {
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
    fn pump(&mut self, number: u64) -> Result<(), String> {
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

    // ---- control connections ----

    fn open_control(&mut self, number: u64) -> Result<(), String> {
        let Some(container) = self.containers.get_mut(&number) else {
            return Ok(());
        };
        let Some(am) = &mut self.am else {
            let outputs = container.agent.on(agent::Input::Failed, self.now_ms);
            return self.agent_wants(number, outputs);
        };
        self.numbers += 1;
        let control = self.numbers;
        container.control = Some(control);
        am.opened(ConnectionId(control), container.member);
        self.controls.insert(
            control,
            Control {
                container: number,
                attempt: am.attempt.0,
            },
        );
        let outputs = container.agent.on(agent::Input::Opened, self.now_ms);
        self.agent_wants(number, outputs)
    }

    fn line_up(&mut self, control: u64, line: UpLine) -> Result<(), String> {
        let (Some(am), Some(link)) = (&mut self.am, self.controls.get(&control)) else {
            return Ok(());
        };
        if link.attempt != am.attempt.0 {
            return Ok(());
        }
        let container = ContainerId(link.container.to_string());
        let connection = ConnectionId(control);
        let (event, confirm) = am.line(connection, &container, line);
        if let Some(event) = event {
            self.am_event(event)?;
        }
        if confirm && let Some(down) = self.am.as_ref().and_then(|am| am.down(connection, None)) {
            self.push(Wire::ControlDown(control), Item::Down(Box::new(down)));
        }
        Ok(())
    }

    fn control_ended_at_am(&mut self, control: u64) -> Result<(), String> {
        let current = self.controls.get(&control).map(|link| link.attempt)
            == self.am.as_ref().map(|am| am.attempt.0);
        let event = self
            .am
            .as_mut()
            .filter(|_| current)
            .and_then(|am| am.closed(ConnectionId(control)));
        match event {
            Some(event) => self.am_event(event),
            None => Ok(()),
        }
    }

    fn control_ended_at_container(&mut self, control: u64) -> Result<(), String> {
        let Some(number) = self.controls.get(&control).map(|link| link.container) else {
            return Ok(());
        };
        self.wires.remove(&Wire::ControlDown(control));
        let Some(container) = self
            .containers
            .get_mut(&number)
            .filter(|c| c.control == Some(control))
        else {
            return Ok(());
        };
        container.control = None;
        let outputs = container.agent.on(agent::Input::Closed, self.now_ms);
        self.agent_wants(number, outputs)
    }

    /// Both ends see the end some time, with part of what was on the way.
    fn break_control(&mut self, control: u64) -> Result<(), String> {
        self.cut_short(Wire::ControlUp(control));
        self.cut_short(Wire::ControlDown(control));
        Ok(())
    }

    // ---- data connections ----

    fn data_of(&self, pserver: u64, conn: Conn) -> Option<u64> {
        self.data
            .iter()
            .find(|(_, d)| d.pserver == pserver && d.conn == conn)
            .map(|(&n, _)| n)
    }

    fn open_data(&mut self, number: u64, endpoint: SocketAddr) -> Result<(), String> {
        let Some(member) = self.containers.get(&number).map(|c| c.member) else {
            return Ok(());
        };
        let pserver = self
            .containers
            .iter_mut()
            .find_map(|(&n, c)| match &mut c.body {
                Body::Pserver(p) if p.endpoint == endpoint => Some((n, p)),
                _ => None,
            });
        let mut out = Vec::new();
        let opened = match pserver {
            None => Err((None, Closed::Refused)),
            Some((n, pserver)) => match pserver.connect(member, &mut out) {
                Ok(conn) => Ok((n, conn)),
                Err(()) => Err((Some(n), Closed::NotMember)),
            },
        };
        match opened {
            Ok((pserver, conn)) => {
                let data = self.number();
                self.data.insert(
                    data,
                    Data {
                        trainer: number,
                        pserver,
                        endpoint,
                        conn,
                    },
                );
                self.pserver_wants(pserver, out)?;
                if let Some(Container {
                    body: Body::Trainer(trainer),
                    ..
                }) = self.containers.get_mut(&number)
                {
                    trainer.machine.opened(endpoint);
                }
            }
            Err((pserver, how)) => {
                if let Some(pserver) = pserver {
                    self.pserver_wants(pserver, out)?;
                }
                let now_ms = self.now_ms;
                if let Some(Container {
                    body: Body::Trainer(trainer),
                    ..
                }) = self.containers.get_mut(&number)
                {
                    trainer.machine.closed(endpoint, how, now_ms);
                }
            }
        }
        self.pump(number)
    }

    fn frame_up(&mut self, data: u64, frame: Frame) -> Result<(), String> {
        let Some((number, conn)) = self.data.get(&data).map(|d| (d.pserver, d.conn)) else {
            return Ok(());
        };
        let Some(Container {
            body: Body::Pserver(pserver),
            ..
        }) = self.containers.get_mut(&number)
        else {
            return Ok(());
        };
        if let Some(trace) = &mut self.trace {
            let h = frame.header;
            trace.push(format!(
                "{:>6} frame {data} {:?} #{} unit {} step {} part {} shard {} flags {:#x}",
                self.events, h.kind, h.request, h.unit, h.step, h.part, h.shard, h.flags
            ));
        }
        let mut out = Vec::new();
        if !pserver.frame(conn, &frame, &mut out) {
            self.wires
                .entry(Wire::DataUp(data))
                .or_default()
                .push_front(Item::Frame(frame));
        }
        self.pserver_wants(number, out)
    }

    fn reply_down(&mut self, data: u64, effect: Effect) -> Result<(), String> {
        let Some((number, pserver, endpoint)) = self
            .data
            .get(&data)
            .map(|d| (d.trainer, d.pserver, d.endpoint))
        else {
            return Ok(());
        };
        let (header, values) = match effect {
            Effect::Reply { header, .. } => (header, Vec::new()),
            Effect::Values { header, rows, .. } => self.values(pserver, &header, &rows),
            Effect::Close { .. } | Effect::Report(_) => return Err("not a reply".to_owned()),
        };
        if let Some(trace) = &mut self.trace {
            let h = header;
            trace.push(format!(
                "{:>6} reply {data} {:?} {:?} #{} unit {} step {} part {} shard {} flags {:#x}",
                self.events, h.kind, h.status, h.request, h.unit, h.step, h.part, h.shard, h.flags
            ));
        }
        let now_ms = self.now_ms;
        if let Some(Container {
            body: Body::Trainer(trainer),
            ..
        }) = self.containers.get_mut(&number)
        {
            trainer
                .machine
                .frame_with(endpoint, &header, &values, now_ms);
        }
        self.pump(number)
    }

    /// The values of a reply when its turn comes; a shard that has moved on says so instead.
    fn values(&self, pserver: u64, header: &Header, rows: &Rows) -> (Header, Vec<f32>) {
        let mut values = Vec::new();
        if let Some(Container {
            body: Body::Pserver(pserver),
            ..
        }) = self.containers.get(&pserver)
        {
            let there = match rows {
                Rows::Range => pserver
                    .host
                    .range(header)
                    .map(|range| values.extend_from_slice(range)),
                Rows::Keys(keys) => pserver.host.gather(header, keys, &mut values),
            };
            if there.is_some() {
                return (*header, values);
            }
        }
        (header.reply(Kind::Refused, Status::Stale), Vec::new())
    }

    fn data_ended_at_pserver(&mut self, data: u64) -> Result<(), String> {
        self.wires.remove(&Wire::DataUp(data));
        let Some((number, conn)) = self.data.get(&data).map(|d| (d.pserver, d.conn)) else {
            return Ok(());
        };
        if let Some(Container {
            body: Body::Pserver(pserver),
            ..
        }) = self.containers.get_mut(&number)
        {
            pserver.host.disconnect(conn);
        }
        Ok(())
    }

    fn data_ended_at_trainer(&mut self, data: u64, how: Closed) -> Result<(), String> {
        self.wires.remove(&Wire::DataDown(data));
        let Some((number, endpoint)) = self.data.get(&data).map(|d| (d.trainer, d.endpoint)) else {
            return Ok(());
        };
        self.orphan_data(data);
        let now_ms = self.now_ms;
        if let Some(Container {
            body: Body::Trainer(trainer),
            ..
        }) = self.containers.get_mut(&number)
        {
            trainer.machine.closed(endpoint, how, now_ms);
        }
        self.pump(number)
    }

    /// The trainer's end is gone; the pserver's may still be reading.
    fn orphan_data(&mut self, data: u64) {
        if let Some(link) = self.data.get_mut(&data) {
            link.trainer = 0;
        }
    }

    // ---- faults ----

    fn inject(&mut self, fault: Fault) -> Result<(), String> {
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
    fn lose_am(&mut self) -> Result<(), String> {
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

    /// Where everybody stands, for a run that does not end.
    fn describe(&self) -> String {
        let mut text = String::new();
        for container in self.containers.values() {
            let body = match &container.body {
                Body::Pserver(p) => format!("{:?} {:?}", p.host.epoch(), p.host.states()),
                Body::Trainer(t) => format!("{:?}", t.busy()),
            };
            text += &format!("\n  {}: {body}", container.member);
        }
        for (wire, items) in self.wires.iter().filter(|(_, items)| !items.is_empty()) {
            text += &format!("\n  {wire:?}: {} items", items.len());
        }
        if let Some(am) = &self.am {
            text += &format!(
                "\n  AM {} next deadline {:?}",
                am.generation,
                am.core.next_deadline()
            );
        }
        text
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
    Beat {
        phase,
        step,
        epoch,
        compute_ms: now_ms,
        ..Beat::default()
    }
}

fn short(command: &Command) -> String {
    match command {
        Command::Welcome(_) => "Welcome".to_owned(),
        other => brief(other),
    }
}

fn brief(message: &impl std::fmt::Debug) -> String {
    format!("{message:?}").chars().take(220).collect()
}
