//! A world around the core: cluster, store, journal and connections, all of them slow and in any order, and the claims
//! that must hold after every single event. What containers do is in `process`.
//!
//! Shards are modelled by what the core's decisions rest on: which tasks they have all of, how many job steps they
//! applied, what a snapshot holds. So a manifest that names a task done that is not in the snapshots, a snapshot that is
//! torn between shards, a lane or a task without owner, and an end with a task missing are all found here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use heddle_am_core::{
    Action, CallId, Checkpoint, Config, ConnectionId, ContainerId, Core, Event, Exit, MonotonicMs,
    Now, OperationId, Probe, Record, RecordId, StartupState, StoreCall, Stored, SurvivingContainer,
};
use heddle_protocol::control::{Command, HeartbeatStats, Operation, Report};
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::{
    Attempt, CutId, Epoch, Generation, Incarnation, Member, PhaseNo, Role, ShardId, Slot, Step,
    TaskAttempt, TaskId,
};
use heddle_protocol::manifest::{Manifest, TaskState, Work};
use heddle_protocol::spec::{Consistency, DurationMs, Every};
use heddle_protocol::view::JobState;

use crate::harness::{Job, spec};
use crate::process::Process;

/// Tasks of the job.
pub const TASKS: u32 = 12;
/// Shards of the job.
pub const SHARDS: u32 = 4;
/// BSP: job steps of the only phase.
pub const LENGTH: u64 = 12;

/// The wall's time when a world begins: a clock that is set back stays far above 0.
const WALL_START_MS: u64 = 1_700_000_000_000;

/// What one shard's snapshot holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    pub step: u64,
    pub done: BTreeSet<TaskId>,
}

/// Everything under way.
pub struct World {
    config: Config,
    core: Core,
    now: u64,
    wall_offset_ms: i64,
    generation: u32,
    pub processes: BTreeMap<Member, Process>,
    /// Reports not taken in yet, in order; a new connection repeats them.
    pub up: BTreeMap<Member, Vec<Report>>,
    /// Commands on the way; lost with their connection.
    pub down: BTreeMap<ConnectionId, Vec<Command>>,
    /// Barriers that are in every stream.
    pub barriers: BTreeSet<(CutId, Member)>,
    /// Snapshots, by cut and shard.
    pub snapshots: BTreeMap<CutId, BTreeMap<ShardId, Content>>,
    pub committed: Vec<Checkpoint>,
    cluster: Vec<Event>,
    journal: Vec<RecordId>,
    /// All attempts' records; those of this attempt that are not durable yet at the end.
    records: Vec<Record>,
    records_before: usize,
    durable: usize,
    store: Vec<(CallId, StoreCall)>,
    probes: Vec<Member>,
    asks: BTreeSet<(Slot, Incarnation)>,
    /// Containers that the cluster has not told the end of.
    live: BTreeMap<ContainerId, Member>,
    ever: BTreeSet<Member>,
    next: u64,
    pub finished: bool,
}

impl World {
    pub fn new(consistency: Consistency) -> Self {
        let mut spec = spec(consistency);
        spec.trainers.min = 1;
        spec.checkpoint.every = Every::Time(DurationMs::secs(5));
        let mut config: Config = Job::new(spec, TASKS, 0).config;
        // Faults here are far denser than any cluster's.
        config.limits.slot_failures = 1_000_000;
        config.limits.job_failures = 1_000_000;
        config.limits.allocation_ms = 0;
        config.limits.store_tries = 1_000;
        let mut world = Self {
            core: Core::new(config.clone()),
            config,
            now: 1_000,
            wall_offset_ms: 0,
            generation: 1,
            processes: BTreeMap::new(),
            up: BTreeMap::new(),
            down: BTreeMap::new(),
            barriers: BTreeSet::new(),
            snapshots: BTreeMap::new(),
            committed: Vec::new(),
            cluster: Vec::new(),
            journal: Vec::new(),
            records: Vec::new(),
            records_before: 0,
            durable: 0,
            store: Vec::new(),
            probes: Vec::new(),
            asks: BTreeSet::new(),
            live: BTreeMap::new(),
            ever: BTreeSet::new(),
            next: 0,
            finished: false,
        };
        world.recover();
        world
    }

    fn recover(&mut self) {
        let recovered = StartupState {
            attempt: Attempt(self.generation),
            generation: Generation(self.generation),
            journal: self.records.clone(),
            base: self.committed.last().cloned(),
            damaged: Vec::new(),
            checkpoints: self.committed.clone(),
            kept: self
                .live
                .keys()
                .map(|container| SurvivingContainer {
                    container: container.clone(),
                    node: "node".to_owned(),
                })
                .collect(),
        };
        self.on(Event::Startup(Box::new(recovered)));
    }

    pub fn on(&mut self, event: Event) {
        let now = Now {
            mono: MonotonicMs(self.now),
            wall_ms: (WALL_START_MS + self.now).saturating_add_signed(self.wall_offset_ms),
        };
        for action in self.core.on(event, now) {
            self.perform(action);
        }
        self.check();
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn known(&self) -> &[Record] {
        &self.records[..self.durable]
    }

    fn epochs(&self) -> impl Iterator<Item = Epoch> {
        self.records.iter().filter_map(|record| match record {
            Record::Restore { epoch, .. } => Some(*epoch),
            _ => None,
        })
    }

    fn perform(&mut self, action: Action) {
        assert!(!self.finished, "nothing follows the end: {action:?}");
        match action {
            Action::Ask { slot, incarnation, .. } => {
                assert!(self.asks.insert((slot, incarnation)), "asked twice for {slot}");
                let slots: BTreeSet<Slot> = self.asks.iter().map(|(slot, _)| *slot).collect();
                assert_eq!(slots.len(), self.asks.len(), "two asks for one slot");
                let container = ContainerId(format!("c{}", self.number()));
                self.cluster.push(Event::Allocated {
                    container,
                    slot,
                    incarnation,
                    node: "n".to_owned(),
                });
            }
            Action::CancelAsk { slot, incarnation } => {
                self.asks.remove(&(slot, incarnation));
            }
            Action::Release { container } => {
                if self.live.contains_key(&container) {
                    self.processes
                        .retain(|_, process| process.container != Some(container.clone()));
                    self.cluster.push(Event::Exited {
                        container,
                        exit: Exit::Signal(9),
                        text: String::new(),
                    });
                }
            }
            Action::Notice(_) | Action::Answer { .. } => {}
            Action::Launch { container, member } => {
                self.asks.remove(&(member.slot, member.incarnation));
                assert!(self.ever.insert(member), "{member} a second time");
                self.live.insert(container.clone(), member);
                self.processes
                    .insert(member, Process { container: Some(container), ..Process::default() });
            }
            Action::Stop { container, member, .. } => {
                self.processes.remove(&member);
                self.cluster.push(Event::Exited {
                    container,
                    exit: Exit::Signal(9),
                    text: String::new(),
                });
            }
            Action::Send { connection, command, .. } => {
                self.check_recorded(&command);
                self.down.entry(connection).or_default().push(Arc::unwrap_or_clone(command));
            }
            Action::Disconnect { connection } => {
                self.down.remove(&connection);
                for process in self.processes.values_mut() {
                    process.connection = process.connection.filter(|own| *own != connection);
                }
            }
            Action::Journal { id, record } => {
                assert_eq!(id.0 as usize, self.records.len() - self.records_before + 1);
                if let Record::Restore { epoch, base, .. } = &*record {
                    assert!(self.epochs().last().is_none_or(|last| last < *epoch), "epochs rise");
                    let last = self.committed.last().map(|checkpoint| checkpoint.manifest.cut);
                    assert_eq!(*base, last, "a rollback goes to the last checkpoint");
                }
                self.records.push(*record);
                self.journal.push(id);
            }
            Action::Store { id, call } => {
                match &*call {
                    StoreCall::Commit { manifest, .. } => self.check_manifest(manifest),
                    StoreCall::Retain { base, .. } => {
                        let recorded = |record: &Record| matches!(record, Record::Commit { cut, .. } if cut == base);
                        assert!(
                            self.known().iter().any(recorded),
                            "older ones go before the newer one is recorded"
                        );
                    }
                    _ => {}
                }
                self.store.push((id, *call));
            }
            Action::ProbePort { member, .. } => self.probes.push(member),
            Action::Finish(outcome) => {
                assert_eq!(outcome.state, JobState::Finished, "{outcome:?}");
                assert!(
                    matches!(self.known().last(), Some(Record::Outcome(_))),
                    "told before it is recorded"
                );
                self.check_whole();
                self.finished = true;
            }
        }
    }

    fn check_recorded(&self, command: &Command) {
        let is_epoch = |told: &Epoch| {
            self.known()
                .iter()
                .any(|record| matches!(record, Record::Restore { epoch, .. } if epoch == told))
        };
        let recorded = match command {
            Command::LoadShards { epoch, .. } | Command::Work { epoch, .. } => is_epoch(epoch),
            Command::CutEnd { cut: told, committed: true } => {
                self.committed.iter().any(|checkpoint| checkpoint.manifest.cut == *told)
            }
            Command::Stop { reason } if reason.contains("finished") => {
                self.known().iter().any(|record| matches!(record, Record::Outcome(_)))
            }
            _ => true,
        };
        assert!(recorded, "sent before its record is durable: {command:?}");
    }

    /// No commit without the snapshots of all shards, of one state, and nothing in the manifest that they lack.
    fn check_manifest(&self, manifest: &Manifest) {
        manifest.to_json().expect("a manifest that may be written");
        let contents = &self.snapshots[&manifest.cut];
        assert_eq!(
            (contents.len(), manifest.shards.len()),
            (SHARDS as usize, SHARDS as usize),
            "all shards"
        );
        let first = contents.values().next().expect("there are some");
        assert!(contents.values().all(|content| content == first), "torn: {contents:?}");
        match &manifest.work {
            Work::Lanes { step } => assert_eq!(step.0, first.step, "the step of the snapshots"),
            Work::Queue { tasks } => {
                for queued in tasks {
                    let had = first.done.contains(&queued.task);
                    assert!(
                        queued.state != TaskState::Done || had,
                        "{queued:?} is not in {first:?}"
                    );
                }
            }
        }
        if manifest.phase > PhaseNo(0) {
            let whole = first.step == LENGTH || first.done.len() == TASKS as usize;
            assert!(whole, "not all of the phase is in {first:?}");
        }
    }

    /// The last checkpoint holds everything.
    fn check_whole(&self) {
        let last = &self.committed.last().expect("a job ends with a checkpoint").manifest;
        assert_eq!(last.phase, PhaseNo(1));
    }

    fn check(&self) {
        let view = self.core.view();
        assert_eq!(view.slots.len(), 4);
        assert!(self.asks.len() <= view.slots.len(), "more asks than places");
        let quiet = self.cluster.is_empty() && self.journal.is_empty() && self.store.is_empty();
        let heard = self.up.values().all(Vec::is_empty);
        if !self.finished && quiet && heard {
            assert!(
                self.core.next_deadline().is_some(),
                "nothing would ever happen again: {view:?}"
            );
        }
    }

    pub fn connect(&mut self, member: Member) {
        let connection = ConnectionId(self.number());
        let Some(process) = self.processes.get_mut(&member) else {
            return;
        };
        if let Some(old) = process.connection.replace(connection) {
            self.down.remove(&old);
        }
        let pserver = member.slot.role == Role::Pserver;
        let event = Event::Registered {
            connection,
            member,
            container: process.container.clone(),
            pid: 1,
            host: "h".to_owned(),
            endpoints: if pserver { vec![([127, 0, 0, 1], 1).into()] } else { Vec::new() },
            held: process.held().filter(|_| pserver),
            busy: process.busy().filter(|_| !pserver),
        };
        self.on(event);
    }

    /// The next report of a container is heard.
    fn hear(&mut self, member: Member) {
        let Some(connection) = self.processes.get(&member).and_then(|process| process.connection)
        else {
            return;
        };
        let Some(queue) = self.up.get_mut(&member).filter(|queue| !queue.is_empty()) else {
            return;
        };
        let report = Box::new(queue.remove(0));
        self.on(Event::Report { connection, report });
    }

    fn answer(&mut self, index: usize, outcome: u8) {
        if self.store.is_empty() {
            return;
        }
        let (call, what) = self.store.remove(index % self.store.len());
        let outcome = match (outcome, what) {
            (0, _) => Stored::NotDone { failure: Failure::new(ErrorClass::Unreachable, "no") },
            (1, StoreCall::Commit { .. }) => {
                Stored::Unknown { failure: Failure::new(ErrorClass::Unreachable, "lost request") }
            }
            (2, StoreCall::Commit { manifest, .. }) => {
                self.commit(*manifest);
                Stored::Unknown { failure: Failure::new(ErrorClass::Unreachable, "lost reply") }
            }
            (_, StoreCall::Commit { manifest, .. }) => {
                Stored::Committed(Box::new(self.commit(*manifest)))
            }
            (_, StoreCall::Stage { cut }) => Stored::Staged(format!("s{}", cut.number)),
            (_, StoreCall::PublishModel { dir, .. }) => Stored::Published(dir),
            (_, StoreCall::OlderBase { .. }) => Stored::Base { base: None, damaged: Vec::new() },
            (_, StoreCall::Discard { .. } | StoreCall::Retain { .. }) => Stored::Done,
        };
        self.on(Event::Stored { call, outcome });
    }

    /// The store recognises what it has by its name.
    fn commit(&mut self, manifest: Manifest) -> Checkpoint {
        let last = self.committed.last().filter(|last| last.manifest.cut >= manifest.cut);
        if let Some(last) = last {
            assert_eq!(last.manifest.cut, manifest.cut, "cut names rise");
            return last.clone();
        }
        let checkpoint = Checkpoint { dir: manifest.cut.to_string(), manifest: Arc::new(manifest) };
        self.committed.push(checkpoint.clone());
        checkpoint
    }

    fn member(&self, index: usize) -> Option<Member> {
        self.processes.keys().nth(index % self.processes.len().max(1)).copied()
    }

    pub fn step(&mut self, deed: &Deed) {
        if self.finished {
            return;
        }
        let member = match deed {
            Deed::Connect(index)
            | Deed::Obey(index)
            | Deed::Work(index)
            | Deed::Hear(index)
            | Deed::Kill(index)
            | Deed::Cut(index)
            | Deed::Vanish(index)
            | Deed::Forge(index, ..) => self.member(*index),
            _ => None,
        };
        match (deed, member) {
            (Deed::Cluster(index), _) if !self.cluster.is_empty() => {
                let event = self.cluster.remove(index % self.cluster.len());
                if let Event::Exited { container, .. } = &event {
                    self.live.remove(container);
                }
                self.on(event);
            }
            (Deed::Repeat(index), _) if !self.cluster.is_empty() => {
                let event = self.cluster[index % self.cluster.len()].clone();
                // A grant told twice is one container; an end told twice is one end.
                if let Event::Exited { container, .. } = &event {
                    self.live.remove(container);
                }
                self.on(event.clone());
                self.on(event);
            }
            (Deed::Connect(_), Some(member)) => self.connect(member),
            (Deed::Obey(_), Some(member)) => self.obey(member),
            (Deed::Work(_), Some(member)) => self.work(member),
            (Deed::Hear(_), Some(member)) => self.hear(member),
            (Deed::Durable, _) if !self.journal.is_empty() => {
                let record = self.journal.remove(0);
                self.durable = self.records_before + record.0 as usize;
                self.on(Event::RecordDurable { record });
            }
            (Deed::Store(index, outcome), _) => self.answer(*index, *outcome),
            (Deed::Kill(_), Some(member)) => self.kill(member),
            (Deed::Cut(_), Some(member)) => {
                let connection =
                    self.processes.get_mut(&member).and_then(|process| process.connection.take());
                if let Some(connection) = connection {
                    self.down.remove(&connection);
                    self.on(Event::Closed { connection });
                }
            }
            (Deed::Vanish(_), Some(member)) => {
                let container = self.processes.get(&member);
                if let Some(container) = container.and_then(|process| process.container.clone()) {
                    let cause = String::from("its node is silent");
                    self.on(Event::NodeUnreachable { container, cause });
                }
            }
            (Deed::Probe(answer), _) => {
                if let Some(member) = self.probes.pop() {
                    let gone = !self.processes.contains_key(&member);
                    let outcome = match answer {
                        0 => Probe::Silent,
                        1 if gone => Probe::Refused,
                        _ => Probe::Open,
                    };
                    self.on(Event::Probed { member, outcome });
                }
            }
            (Deed::Wall(jump_ms), _) => self.wall_offset_ms = *jump_ms,
            (Deed::Leap(ms), _) => {
                self.now += ms;
                self.on(Event::Timer);
            }
            (Deed::Pass(ms), _) => self.pass(*ms),
            (Deed::Order, _) => {
                let id = OperationId(self.number());
                self.on(Event::Operation { id, operation: Operation::Checkpoint });
            }
            (Deed::Forge(_, shard, number), Some(member)) => self.forge(member, *shard, *number),
            (Deed::Restart(committed), _) => self.restart(*committed),
            (Deed::Round, _) => self.round(50, true),
            _ => {}
        }
    }

    fn kill(&mut self, member: Member) {
        let Some(process) = self.processes.remove(&member) else {
            return;
        };
        self.up.remove(&member);
        if let Some(container) = process.container {
            self.cluster.push(Event::Exited {
                container,
                exit: Exit::Signal(9),
                text: String::new(),
            });
        }
        if let Some(connection) = process.connection {
            self.on(Event::Closed { connection });
        }
    }

    fn pass(&mut self, ms: u64) {
        self.now += ms;
        for member in self.processes.keys().copied().collect::<Vec<_>>() {
            let Some(process) = self.processes.get(&member) else {
                continue;
            };
            let beat = HeartbeatStats {
                epoch: process.epoch,
                phase: process.phase.map(|phase| phase.no).unwrap_or_default(),
                step: Step(process.step),
                ..HeartbeatStats::default()
            };
            // Reports come before the heartbeat that follows them.
            let quiet = self.up.get(&member).is_none_or(Vec::is_empty);
            if let (Some(connection), true, false) = (process.connection, quiet, self.finished) {
                self.on(Event::Report { connection, report: Box::new(Report::Heartbeat(beat)) });
            }
        }
        if !self.finished {
            self.on(Event::Timer);
        }
    }

    /// Reports of another time: an epoch that is over, a cut that is not.
    fn forge(&mut self, member: Member, shard: u32, number: u32) {
        let (first, last) = (self.epochs().next(), self.epochs().last());
        let Some(epoch) = first.filter(|first| Some(*first) < last) else {
            return;
        };
        let cut = CutId { generation: Generation(1), number };
        let (phase, shard, task) = (PhaseNo(0), ShardId(shard % 5), TaskId(shard % TASKS));
        let attempt = TaskAttempt(number);
        self.say(member, Report::PhaseEnded { epoch, phase, shard, step: Step(LENGTH) });
        self.say(member, Report::SnapshotTaken { cut, epoch, shard, step: Step(1) });
        self.say(
            member,
            Report::TaskFinished { epoch, phase, cut, task, attempt, metrics: Box::default() },
        );
    }

    /// The ApplicationMaster dies; another one takes over what lives.
    fn restart(&mut self, commit_was_done: bool) {
        for (_, call) in std::mem::take(&mut self.store) {
            if let (StoreCall::Commit { manifest, .. }, true) = (call, commit_was_done) {
                self.commit(*manifest);
            }
        }
        self.records.truncate(self.durable);
        self.records_before = self.records.len();
        self.journal.clear();
        self.down.clear();
        self.probes.clear();
        self.asks.clear();
        // Grants on their way are given back by the cluster; ends are told to the new one.
        self.cluster.retain(|event| matches!(event, Event::Exited { .. }));
        for process in self.processes.values_mut() {
            process.connection = None;
        }
        self.generation += 1;
        self.core = Core::new(self.config.clone());
        self.recover();
    }

    /// A job whose work has begun: faults that hit nothing show nothing.
    pub fn started(consistency: Consistency) -> Self {
        let mut world = Self::new(consistency);
        while world.core.view().state != JobState::Running {
            world.round(100, false);
        }
        world
    }

    /// Everybody does a bit of everything.
    fn round(&mut self, ms: u64, work: bool) {
        for member in self.processes.keys().copied().collect::<Vec<_>>() {
            let lone = |process: &Process| process.connection.is_none();
            if self.processes.get(&member).is_some_and(lone) && !self.finished {
                self.connect(member);
            }
            for _ in 0..4 {
                self.obey(member);
            }
            if work {
                self.work(member);
            }
            while !self.finished
                && self.processes.get(&member).is_some_and(|process| !lone(process))
                && self.up.get(&member).is_some_and(|queue| !queue.is_empty())
            {
                self.hear(member);
            }
        }
        for deed in [Deed::Cluster(0), Deed::Durable, Deed::Store(0, 9), Deed::Probe(1)] {
            self.step(&deed);
        }
        self.step(&Deed::Pass(ms));
    }

    /// Everything works again: the job must come to its end.
    pub fn run_out(&mut self) {
        for round in 0..1_000 {
            self.round(if round < 50 { 100 } else { 1_000 }, true);
            if self.finished {
                return;
            }
        }
        panic!("the end was not reached: {:?}\n{:?}", self.core.view(), self.processes);
    }
}

/// Something that happens in the world. Numbers choose among what there is.
#[derive(Clone, Debug)]
pub enum Deed {
    /// The cluster's next word is heard.
    Cluster(usize),
    /// It is heard twice.
    Repeat(usize),
    /// A container connects, in place of its older connection if it has one.
    Connect(usize),
    /// A container reads a command.
    Obey(usize),
    /// A container works a bit.
    Work(usize),
    /// A report is heard.
    Hear(usize),
    /// The journal has written a record.
    Durable,
    /// A store call ends: 0 not done; of commits 1 not done and 2 done, both unknown; else done.
    Store(usize, u8),
    /// A container dies.
    Kill(usize),
    /// A control connection breaks.
    Cut(usize),
    /// A container's node says nothing of it.
    Vanish(usize),
    /// A probe of a port ends: 0 without an answer, 1 refused if the process is gone, else open.
    Probe(u8),
    /// The clock on the wall is set: ms ahead of where it began.
    Wall(i64),
    /// The machine stood still: nothing is heard, and the clock is this much later, ms.
    Leap(u64),
    /// Time goes by and everybody beats.
    Pass(u64),
    /// An operator orders a checkpoint.
    Order,
    /// Reports of another epoch or cut come.
    Forge(usize, u32, u32),
    /// The ApplicationMaster dies and another one takes over; a commit under way was done or not.
    Restart(bool),
    /// Everybody does a bit of everything: what takes many small deeds happens too.
    Round,
}
