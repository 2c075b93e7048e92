//! Random faults, delays and repeats: what must hold after every single event.

use std::collections::{BTreeMap, BTreeSet};

use heddle_am_core::{
    Action, CallId, Checkpoint, Config, ConnectionId, ContainerId, Core, Event, Exit, Mono, Now,
    OperationId, Probe, Record, RecordId, Recovered, StoreCall, Stored,
};
use heddle_protocol::control::{
    Beat, Command, CutAt, Operation, Phase, Sharing, TaskGrant, TaskPosition, Up,
};
use heddle_protocol::ids::{
    Attempt, CutId, Epoch, Generation, Incarnation, Lane, Member, PhaseNo, Role, ShardId, Slot,
    Step, TaskAttempt,
};
use heddle_protocol::manifest::{Manifest, Md5, ShardFile};
use heddle_protocol::spec::{Consistency, DurationMs, Every};
use heddle_protocol::view::JobState;
use proptest::prelude::*;
use uuid::Uuid;

use crate::harness::{Job, spec};

/// A pretended container: what it was told, and which lines it has still to say.
#[derive(Clone, Debug, Default)]
struct Process {
    container: Option<ContainerId>,
    connection: Option<ConnectionId>,
    epoch: Epoch,
    phase: Option<Phase>,
    /// BSP, pserver: job steps applied.
    step: u64,
    ended: bool,
    shards: BTreeSet<ShardId>,
    lanes: Vec<Lane>,
    tasks: Vec<TaskGrant>,
    cut: CutId,
    /// Cut, where, and whether it is snapped.
    armed: Option<(CutId, CutAt, bool)>,
    barriers: BTreeSet<Member>,
}

/// Everything under way, in any order that the connections allow.
struct World {
    core: Core,
    now: u64,
    processes: BTreeMap<Member, Process>,
    /// Reports not taken in yet, in order; a new connection repeats them.
    up: BTreeMap<Member, Vec<Up>>,
    /// Commands on the way; lost with their connection.
    down: BTreeMap<ConnectionId, Vec<Command>>,
    cluster: Vec<Event>,
    journal: Vec<RecordId>,
    durable: RecordId,
    records: Vec<Record>,
    store: Vec<(CallId, StoreCall)>,
    probes: Vec<Member>,
    asks: BTreeSet<(Slot, Incarnation)>,
    live: BTreeMap<ContainerId, Member>,
    restored: Vec<Epoch>,
    /// Which shards were saved of which cut, at which step.
    saved: BTreeMap<CutId, BTreeMap<ShardId, u64>>,
    committed: Vec<CutId>,
    next: u64,
    finished: bool,
    /// Steps after which the phase ends, BSP.
    length: u64,
    asked_slots: usize,
}

impl World {
    fn new(consistency: Consistency) -> Self {
        let mut spec = spec(consistency);
        spec.trainers.min = 1;
        spec.checkpoint.every = Every::Time(DurationMs::secs(5));
        let mut config: Config = Job::new(spec, 5, 0).config;
        // Faults here are far denser than any cluster's.
        config.limits.slot_failures = 1_000_000;
        config.limits.job_failures = 1_000_000;
        config.limits.allocation_ms = 0;
        config.limits.store_tries = 1_000;
        let core = Core::new(config);
        let mut world = Self {
            core,
            now: 1_000,
            processes: BTreeMap::new(),
            up: BTreeMap::new(),
            down: BTreeMap::new(),
            cluster: Vec::new(),
            journal: Vec::new(),
            durable: RecordId(0),
            records: Vec::new(),
            store: Vec::new(),
            probes: Vec::new(),
            asks: BTreeSet::new(),
            live: BTreeMap::new(),
            restored: Vec::new(),
            saved: BTreeMap::new(),
            committed: Vec::new(),
            next: 0,
            finished: false,
            length: 6,
            asked_slots: 4,
        };
        world.on(Event::Recovered(Box::new(Recovered {
            attempt: Attempt(1),
            generation: Generation(1),
            journal: Vec::new(),
            base: None,
            checkpoints: Vec::new(),
            kept: Vec::new(),
        })));
        world
    }

    fn on(&mut self, event: Event) {
        let now = Now {
            mono: Mono(self.now),
            wall_ms: self.now,
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

    fn perform(&mut self, action: Action) {
        assert!(!self.finished, "nothing follows the end: {action:?}");
        let settled = self.durable.0 == self.records.len() as u64;
        match action {
            Action::Ask {
                slot, incarnation, ..
            } => {
                assert!(
                    self.asks.insert((slot, incarnation)),
                    "asked twice for {slot}"
                );
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
            Action::Release { .. } | Action::Notice(_) | Action::Answer { .. } => {}
            Action::Launch { container, member } => {
                self.asks.remove(&(member.slot, member.incarnation));
                let before = self.live.insert(container.clone(), member);
                assert_eq!(before, None, "launched twice");
                self.processes.insert(
                    member,
                    Process {
                        container: Some(container),
                        ..Process::default()
                    },
                );
            }
            Action::Stop {
                container, member, ..
            } => {
                self.processes.remove(&member);
                self.cluster.push(Event::Exited {
                    container,
                    exit: Exit::Signal(9),
                });
            }
            Action::Send {
                connection,
                command,
                ..
            } => {
                let known = &self.records[..self.durable.0 as usize];
                let recorded = match &*command {
                    Command::Hold { epoch: told, .. } | Command::Work { epoch: told, .. } => known
                        .iter()
                        .any(|record| matches!(record, Record::Restore { epoch, .. } if epoch == told)),
                    Command::CutEnd { cut: told, committed: true } => {
                        known.iter().any(|record| matches!(record, Record::Commit { cut, .. } if cut == told))
                    }
                    Command::Stop { reason } if reason.contains("finished") => {
                        known.iter().any(|record| matches!(record, Record::Outcome(_)))
                    }
                    _ => true,
                };
                assert!(recorded, "sent before its record is durable: {command:?}");
                self.down.entry(connection).or_default().push(*command);
            }
            Action::Disconnect { connection } => {
                self.down.remove(&connection);
                for process in self.processes.values_mut() {
                    process.connection = process.connection.filter(|own| *own != connection);
                }
            }
            Action::Journal { id, record } => {
                assert_eq!(id.0, self.records.len() as u64 + 1);
                if let Record::Restore { epoch, base, .. } = &*record {
                    assert!(
                        self.restored.last().is_none_or(|last| last < epoch),
                        "epochs rise"
                    );
                    assert_eq!(
                        *base,
                        self.committed.last().copied(),
                        "a rollback goes to the last checkpoint"
                    );
                    self.restored.push(*epoch);
                }
                self.records.push(*record);
                self.journal.push(id);
            }
            Action::Store { id, call } => {
                if let StoreCall::Retain { base, .. } = &*call {
                    let known = &self.records[..self.durable.0 as usize];
                    let recorded = |record: &Record| matches!(record, Record::Commit { cut, .. } if cut == base);
                    assert!(
                        known.iter().any(recorded),
                        "older ones go before the newer one is recorded"
                    );
                }
                if let StoreCall::Commit { manifest, .. } = &*call {
                    self.check_manifest(manifest);
                }
                self.store.push((id, *call));
            }
            Action::ProbePort { member, .. } => self.probes.push(member),
            Action::Finish(outcome) => {
                assert!(settled);
                assert!(
                    matches!(outcome.state, JobState::Finished | JobState::Stopped),
                    "{outcome:?}"
                );
                self.finished = true;
            }
        }
    }

    /// No commit without all shards saved of one cut, at one step.
    fn check_manifest(&self, manifest: &Manifest) {
        let saved = self
            .saved
            .get(&manifest.cut)
            .expect("something was saved of it");
        assert_eq!(saved.len(), 4, "all shards");
        assert_eq!(manifest.shards.len(), 4);
        let steps: BTreeSet<u64> = saved.values().copied().collect();
        assert_eq!(steps.len(), 1, "of one step");
        assert!(manifest.to_json().is_ok());
    }

    fn check(&self) {
        let view = self.core.view();
        let filled = view
            .slots
            .iter()
            .filter(|slot| slot.incarnation.0 > 0)
            .count();
        assert!(filled <= self.asked_slots);
        assert!(self.asks.len() <= self.asked_slots);
        if !self.finished && !matches!(view.state, JobState::Failed) {
            assert!(
                self.core.next_deadline().is_some() || !self.is_idle(),
                "nothing would ever happen again"
            );
        }
    }

    fn is_idle(&self) -> bool {
        self.cluster.is_empty()
            && self.journal.is_empty()
            && self.store.is_empty()
            && self.up.values().all(Vec::is_empty)
    }

    fn connect(&mut self, member: Member) {
        let connection = ConnectionId(self.number());
        let Some(process) = self.processes.get_mut(&member) else {
            return;
        };
        let old = process.connection.replace(connection);
        let pserver = member.slot.role == Role::Pserver;
        let endpoints = if pserver {
            vec![([127, 0, 0, 1], 1).into()]
        } else {
            Vec::new()
        };
        let container = process.container.clone();
        if let Some(old) = old {
            self.down.remove(&old);
        }
        self.on(Event::Registered {
            connection,
            member,
            container,
            pid: 1,
            host: "h".to_owned(),
            endpoints,
            held: None,
            busy: None,
        });
    }

    fn say(&mut self, member: Member, up: Up) {
        self.up.entry(member).or_default().push(up);
    }

    /// The container reads its next command.
    fn obey(&mut self, member: Member) {
        let Some(process) = self.processes.get_mut(&member) else {
            return;
        };
        let Some(queue) = process
            .connection
            .and_then(|connection| self.down.get_mut(&connection))
        else {
            return;
        };
        if queue.is_empty() {
            return;
        }
        let mut ups = Vec::new();
        match queue.remove(0) {
            Command::Hold {
                epoch,
                shards,
                phase,
                step,
                ..
            } => {
                if epoch > process.epoch {
                    process.epoch = epoch;
                    process.shards = shards.into_iter().collect();
                    process.phase = Some(phase);
                    process.step = step.0;
                    process.ended = false;
                    process.armed = None;
                }
                ups.push(Up::Holding {
                    epoch,
                    from_memory: 0,
                    from_storage: 0,
                    load_ms: 0,
                });
            }
            Command::Begin { epoch, phase } => {
                if epoch == process.epoch && process.phase.is_none_or(|own| own.no < phase.no) {
                    process.phase = Some(phase);
                    process.step = 0;
                    process.ended = false;
                }
                ups.push(Up::Begun {
                    epoch,
                    phase: phase.no,
                });
            }
            Command::Members { trainers } => process.barriers.extend(trainers),
            Command::Cut { cut, epoch, at, .. } => {
                if epoch == process.epoch && process.cut < cut {
                    process.cut = cut;
                    process.armed = Some((cut, at, false));
                }
                ups.push(Up::CutArmed { cut, epoch });
            }
            Command::CutEnd { cut, .. } => {
                process.armed = process.armed.take().filter(|(own, ..)| *own != cut);
            }
            Command::Work { epoch, phase, .. } => {
                if epoch > process.epoch || process.phase.map(|own| own.no) != Some(phase.no) {
                    process.tasks.clear();
                    process.lanes.clear();
                }
                process.epoch = epoch;
                process.phase = Some(phase);
            }
            Command::Lanes { lanes, .. } => process.lanes = lanes,
            Command::Tasks {
                tasks,
                epoch,
                phase,
            } => {
                if epoch == process.epoch && process.phase.map(|own| own.no) == Some(phase) {
                    process.tasks.extend(tasks);
                }
            }
            Command::Barrier { cut, epoch } => {
                process.cut = cut;
                let position = |grant: &TaskGrant| TaskPosition {
                    task: grant.task,
                    attempt: grant.attempt,
                    step: grant.start,
                    done: false,
                };
                ups.push(Up::AtBarrier {
                    cut,
                    epoch,
                    tasks: process.tasks.iter().map(position).collect(),
                });
            }
            Command::Export { checkpoint, .. } => {
                ups.push(Up::Exported {
                    checkpoint,
                    dir: member.to_string(),
                    files: Vec::new(),
                });
            }
            Command::Drain => {
                let (epoch, phase) = (
                    process.epoch,
                    process.phase.map(|phase| phase.no).unwrap_or_default(),
                );
                ups.push(Up::Drained {
                    epoch,
                    phase,
                    tasks: Vec::new(),
                    lanes: Vec::new(),
                });
            }
            Command::Welcome(_) | Command::Refused { .. } | Command::Stop { .. } => {}
        }
        for up in ups {
            self.say(member, up);
        }
    }

    /// The container does a piece of work of its own.
    fn work(&mut self, member: Member) {
        let length = self.length;
        let Some(process) = self.processes.get_mut(&member) else {
            return;
        };
        let Some(phase) = process.phase else { return };
        let epoch = process.epoch;
        let mut ups = Vec::new();
        if member.slot.role == Role::Trainer {
            if !process.tasks.is_empty() {
                let grant = process.tasks.remove(0);
                ups.push(Up::Stepping { epoch });
                ups.push(Up::TaskFinished {
                    epoch,
                    phase: phase.no,
                    cut: process.cut,
                    task: grant.task,
                    attempt: grant.attempt,
                    metrics: Box::default(),
                });
            }
        } else {
            if let Sharing::Lanes { .. } = phase.sharing {
                if process.step < length {
                    process.step += 1;
                }
                if process.step == length && !process.ended {
                    process.ended = true;
                    for shard in &process.shards {
                        ups.push(Up::PhaseEnded {
                            epoch,
                            phase: phase.no,
                            shard: *shard,
                            step: Step(length),
                        });
                    }
                }
            }
            if let Some((cut, at, snapped @ false)) = &mut process.armed {
                let (cut, step, ended) = (*cut, process.step, process.ended);
                let taken = match at {
                    CutAt::Barriers(_) => true,
                    CutAt::Steps(at) => *at == Step(step) || (at.0 > step && ended),
                };
                let missed = matches!(at, CutAt::Steps(at) if at.0 < step);
                *snapped = taken;
                for shard in process.shards.clone() {
                    if taken {
                        ups.push(Up::Snapped {
                            cut,
                            epoch,
                            shard,
                            step: Step(step),
                        });
                        let uuid =
                            Uuid::from_u128(u128::from(shard.0) + (u128::from(cut.number) << 32));
                        let file = ShardFile {
                            shard,
                            uuid,
                            file: ShardFile::name(shard, uuid),
                            md5: Md5([0; 16]),
                            bytes: 1,
                            at_ms: 0,
                        };
                        self.saved.entry(cut).or_default().insert(shard, step);
                        ups.push(Up::Saved { cut, epoch, file });
                    } else if missed {
                        ups.push(Up::LetGo {
                            cut,
                            epoch,
                            shard,
                            reason: "beyond it".to_owned(),
                        });
                    }
                }
                if missed {
                    process.armed = None;
                }
            }
        }
        for up in ups {
            self.say(member, up);
        }
    }

    /// The next report of a container is heard.
    fn hear(&mut self, member: Member) {
        let Some(connection) = self
            .processes
            .get(&member)
            .and_then(|process| process.connection)
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
        let unknown = || Stored::Unknown {
            error: "lost reply".to_owned(),
        };
        let outcome = match (outcome, what) {
            (0, _) => Stored::NotDone {
                error: "no".to_owned(),
            },
            (1, StoreCall::Commit { .. }) => unknown(),
            (_, StoreCall::Stage { cut }) => Stored::Staged(format!("s{}", cut.number)),
            (_, StoreCall::Commit { manifest, .. }) => {
                assert!(
                    self.committed
                        .last()
                        .is_none_or(|last| *last < manifest.cut),
                    "cut names rise"
                );
                self.committed.push(manifest.cut);
                Stored::Committed(Box::new(Checkpoint {
                    dir: "d".to_owned(),
                    manifest: (*manifest).into(),
                }))
            }
            (_, StoreCall::PublishModel { dir, .. }) => Stored::Published(dir),
            (_, StoreCall::OlderBase { .. }) => Stored::Base(None),
            (_, StoreCall::Discard { .. } | StoreCall::Retain { .. }) => Stored::Done,
        };
        self.on(Event::Stored { call, outcome });
    }

    fn member(&self, index: usize) -> Option<Member> {
        let members: Vec<Member> = self.processes.keys().copied().collect();
        members.get(index % members.len().max(1)).copied()
    }

    fn step(&mut self, deed: &Deed) {
        if self.finished {
            return;
        }
        match *deed {
            Deed::Cluster(index) if !self.cluster.is_empty() => {
                let event = self.cluster.remove(index % self.cluster.len());
                if let Event::Exited { container, .. } = &event {
                    self.live.remove(container);
                }
                self.on(event);
            }
            Deed::Repeat(index) if !self.cluster.is_empty() => {
                let event = self.cluster[index % self.cluster.len()].clone();
                // A grant told twice is one container; an end told twice is one end.
                self.on(event.clone());
                self.on(event);
            }
            Deed::Connect(index) => {
                if let Some(member) = self.member(index) {
                    self.connect(member);
                }
            }
            Deed::Obey(index) => {
                if let Some(member) = self.member(index) {
                    self.obey(member);
                }
            }
            Deed::Work(index) => {
                if let Some(member) = self.member(index) {
                    self.work(member);
                }
            }
            Deed::Hear(index) => {
                if let Some(member) = self.member(index) {
                    self.hear(member);
                }
            }
            Deed::Durable => {
                if let Some(record) = self.journal.first().copied() {
                    self.journal.remove(0);
                    self.durable = record;
                    self.on(Event::RecordDurable { record });
                }
            }
            Deed::Store(index, outcome) => self.answer(index, outcome),
            Deed::Kill(index) => {
                if let Some(member) = self.member(index)
                    && let Some(process) = self.processes.remove(&member)
                    && let Some(container) = process.container
                {
                    self.cluster.push(Event::Exited {
                        container,
                        exit: Exit::Signal(9),
                    });
                    if let Some(connection) = process.connection {
                        self.on(Event::Closed { connection });
                    }
                }
            }
            Deed::Cut(index) => {
                if let Some(member) = self.member(index)
                    && let Some(connection) = self
                        .processes
                        .get_mut(&member)
                        .and_then(|process| process.connection.take())
                {
                    self.down.remove(&connection);
                    self.on(Event::Closed { connection });
                }
            }
            Deed::Probe(refused) => {
                if let Some(member) = self.probes.pop() {
                    let dead = !self.processes.contains_key(&member);
                    let outcome = if refused && dead {
                        Probe::Refused
                    } else {
                        Probe::Open
                    };
                    self.on(Event::Probed { member, outcome });
                }
            }
            Deed::Pass(ms) => {
                self.now += ms;
                for member in self.processes.keys().copied().collect::<Vec<_>>() {
                    let process = &self.processes[&member];
                    let beat = Beat {
                        epoch: process.epoch,
                        phase: process.phase.map(|phase| phase.no).unwrap_or_default(),
                        step: Step(process.step),
                        ..Beat::default()
                    };
                    if let Some(connection) = process.connection {
                        self.on(Event::Report {
                            connection,
                            report: Box::new(Up::Heartbeat(beat)),
                        });
                        if self.finished {
                            return;
                        }
                    }
                }
                self.on(Event::Timer);
            }
            Deed::Order => {
                let id = OperationId(self.number());
                self.on(Event::Operation {
                    id,
                    operation: Operation::Checkpoint,
                });
            }
            Deed::Forge(index, shard, number) => {
                // A report of another time: an old epoch, or a cut that is not.
                if let Some(member) = self.member(index) {
                    let cut = CutId {
                        generation: Generation(1),
                        number,
                    };
                    let epoch = self.restored.first().copied().unwrap_or_default();
                    let stale = self.restored.len() > 1;
                    let (phase, shard) = (PhaseNo(0), ShardId(shard % 5));
                    if stale {
                        self.say(
                            member,
                            Up::PhaseEnded {
                                epoch,
                                phase,
                                shard,
                                step: Step(6),
                            },
                        );
                        self.say(
                            member,
                            Up::Snapped {
                                cut,
                                epoch,
                                shard,
                                step: Step(1),
                            },
                        );
                        let (task, attempt) =
                            (heddle_protocol::ids::TaskId(shard.0), TaskAttempt(number));
                        let metrics = Box::default();
                        self.say(
                            member,
                            Up::TaskFinished {
                                epoch,
                                phase,
                                cut,
                                task,
                                attempt,
                                metrics,
                            },
                        );
                    }
                }
            }
            Deed::Cluster(_) | Deed::Repeat(_) => {}
        }
    }

    /// Everything works again: the job must come to its end.
    fn run_out(&mut self) {
        for round in 0..1_000 {
            if self.finished {
                return;
            }
            for index in 0..self.processes.len() {
                let Some(member) = self.member(index) else {
                    continue;
                };
                if self.processes[&member].connection.is_none() {
                    self.connect(member);
                }
                for _ in 0..4 {
                    self.obey(member);
                }
                self.work(member);
            }
            for member in self.processes.keys().copied().collect::<Vec<_>>() {
                while self.up.get(&member).is_some_and(|queue| !queue.is_empty())
                    && self
                        .processes
                        .get(&member)
                        .is_some_and(|process| process.connection.is_some())
                    && !self.finished
                {
                    self.hear(member);
                }
            }
            for deed in [
                Deed::Cluster(0),
                Deed::Durable,
                Deed::Store(0, 9),
                Deed::Probe(true),
            ] {
                self.step(&deed);
            }
            self.step(&Deed::Pass(if round < 50 { 100 } else { 1_000 }));
        }
        panic!("the end was not reached: {:?}", self.core.view());
    }
}

#[derive(Clone, Debug)]
enum Deed {
    Cluster(usize),
    Repeat(usize),
    Connect(usize),
    Obey(usize),
    Work(usize),
    Hear(usize),
    Durable,
    Store(usize, u8),
    Kill(usize),
    Cut(usize),
    Probe(bool),
    Pass(u64),
    Order,
    Forge(usize, u32, u32),
}

fn deed() -> impl Strategy<Value = Deed> {
    let index = 0usize..64;
    prop_oneof![
        6 => index.clone().prop_map(Deed::Cluster),
        1 => index.clone().prop_map(Deed::Repeat),
        6 => index.clone().prop_map(Deed::Connect),
        20 => index.clone().prop_map(Deed::Obey),
        12 => index.clone().prop_map(Deed::Work),
        20 => index.clone().prop_map(Deed::Hear),
        8 => Just(Deed::Durable),
        6 => (index.clone(), 0u8..8).prop_map(|(index, outcome)| Deed::Store(index, outcome)),
        2 => index.clone().prop_map(Deed::Kill),
        1 => index.clone().prop_map(Deed::Cut),
        2 => any::<bool>().prop_map(Deed::Probe),
        3 => (1u64..3_000).prop_map(Deed::Pass),
        1 => Just(Deed::Order),
        1 => (index, any::<u32>(), 0u32..6).prop_map(|(index, shard, number)| Deed::Forge(index, shard, number)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn invariants_hold_after_every_event_and_the_end_stays_reachable_in_bsp(deeds in prop::collection::vec(deed(), 0..400)) {
        let mut world = World::new(Consistency::Bsp);
        for deed in &deeds {
            world.step(deed);
        }
        world.run_out();
    }

    #[test]
    fn invariants_hold_after_every_event_and_the_end_stays_reachable_in_asp(deeds in prop::collection::vec(deed(), 0..400)) {
        let mut world = World::new(Consistency::Asp);
        for deed in &deeds {
            world.step(deed);
        }
        world.run_out();
    }
}
