//! What the core costs with thousands of containers and up to a million tasks: time of whole rounds and of the worst
//! single event in them, memory, and how each cost grows.
//!
//! `cargo bench -p heddle-am-core --bench containers [-- <containers>x<tasks> …]`; `HEDDLE_BENCH_QUICK=1` takes small sizes.
//! All containers are pretended and answer at once; only the time inside [`Core::on`] counts, and only the bytes that
//! its state holds. Each table goes along one size and leaves the other as it is; a figure is the median of some runs, in which
//! the sizes take turns. The **exponent** is the slope of a straight line through the logarithms of size and cost: 0 if
//! a cost does not grow, 1 if it grows as the size does, 1.1 for n log n at these sizes. Busy neighbours spoil a figure of the
//! cheap rounds, and single exponents with it.

#![expect(clippy::disallowed_types, reason = "what measures the core is not the core")]
#![expect(clippy::print_stdout, reason = "figures are what it is for")]
#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

#[path = "../tests/job/harness.rs"]
#[allow(dead_code, reason = "only the job's shape is used")]
mod harness;

use std::collections::{BTreeMap, VecDeque};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use heddle_am_core::{
    Action, Checkpoint, Config, ConnectionId, ContainerName, ContainerOrder, Core, Event, Exit,
    Limits, MonotonicMs, Now, Record, RecordedSpec, StartupState, StoreCall, Stored,
    SurvivingContainer,
};
use heddle_protocol::control::{
    BeginPhase, Command, HeartbeatStats, LoadShards, PserverCommand, PserverReport, PserverState,
    Registration, ReplicaState, Report, ShardReport, ShardState, TakeCut, TaskGrant, TaskPosition,
    TrainerCommand, TrainerReport, TrainerState,
};
use heddle_protocol::ids::{
    Attempt, CutId, Epoch, Generation, Member, PhaseNo, Role, ShardId, Step, TaskId,
};
use heddle_protocol::job_spec::Consistency;
use heddle_protocol::manifest::{
    FORMAT_VERSION_WITH_FILES, Manifest, Md5, Progress, QueuedTask, Salt, ShardFile, TaskState,
    Work,
};
use heddle_protocol::metrics::TaskMetrics;
use heddle_protocol::plan_file::PlanFile;
use heddle_protocol::process_figures::ProcessFigure;
use heddle_protocol::task_set::TaskSet;
use heddle_protocol::view::JobState;
use uuid::Uuid;

const LANES_PER_TRAINER: u32 = 2;

struct Container {
    connection: ConnectionId,
    /// Of its work.
    epoch: Epoch,
    container: ContainerName,
    shards: Vec<ShardId>,
    tasks: Vec<TaskGrant>,
}

/// A driver whose containers follow each command at once.
struct Rig {
    core: Core,
    config: Config,
    records: Vec<Record>,
    /// Tasks done, in the order of their ends.
    finished: Vec<TaskId>,
    now: u64,
    events: VecDeque<Event>,
    containers: BTreeMap<Member, Container>,
    epoch: Epoch,
    phase: PhaseNo,
    next: u64,
    spent: Duration,
    worst: Duration,
}

impl Rig {
    fn new(size: Size, consistency: Consistency) -> Self {
        let Size { containers, tasks } = size;
        let mut spec = harness::spec(consistency);
        spec.training.lanes = LANES_PER_TRAINER * (containers - containers / 10);
        spec.pservers.count = containers / 10;
        spec.pservers.shards = containers / 10;
        spec.trainers.min = containers - containers / 10;
        spec.trainers.max = containers - containers / 10;
        let config = Config {
            run: heddle_protocol::ids::RunId(Uuid::nil()),
            spec: Arc::new(spec),
            recorded: RecordedSpec::default(),
            plan: Arc::new(harness::plan(tasks, 0)),
            plan_file: PlanFile::default(),
            address: String::new(),
            started_ms: 0,
            limits: Limits::default(),
            cluster_lease_ms: Some(10_000),
            locality: Arc::default(),
            output: None,
        };
        Self {
            core: Core::new(config.clone()),
            config,
            records: Vec::new(),
            finished: Vec::new(),
            now: 1_000,
            events: VecDeque::new(),
            containers: BTreeMap::new(),
            epoch: Epoch::default(),
            phase: PhaseNo(0),
            next: 0,
            spent: Duration::ZERO,
            worst: Duration::ZERO,
        }
    }

    fn on(&mut self, event: Event) {
        self.events.push_back(event);
        self.settle();
    }

    /// Until no answer is under way.
    fn settle(&mut self) {
        while let Some(event) = self.events.pop_front() {
            let now = Now { mono: MonotonicMs(self.now), wall_ms: self.now };
            let began = Instant::now();
            let actions = self.core.on(event, now);
            let took = began.elapsed();
            self.spent += took;
            self.worst = self.worst.max(took);
            for action in actions {
                self.perform(action);
            }
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Container(ContainerOrder::Ask(request)) => {
                let Member { slot, incarnation } = request.member;
                self.next += 1;
                let number = self.next;
                self.events.push_back(Event::Allocated {
                    container: ContainerName(format!(
                        "container_1700000000000_0001_01_{number:06}"
                    )),
                    slot,
                    incarnation,
                    node: format!("node-{:04}.example", number % 1_000),
                });
            }
            Action::Container(ContainerOrder::Launch { container, member }) => {
                self.register(container, member)
            }
            Action::Send { member: Some(member), command, .. } => {
                self.obey(member, Arc::unwrap_or_clone(command))
            }
            Action::Journal { id, record } => {
                self.records.push(*record);
                self.events.push_back(Event::RecordDurable { record: id });
            }
            Action::Store { id, call } => {
                let outcome = match *call {
                    StoreCall::Stage { .. } => Stored::Staged("file:///staging".to_owned()),
                    StoreCall::Commit { manifest, .. } => Stored::Committed(Box::new(Checkpoint {
                        dir: "file:///ck".to_owned(),
                        manifest: Arc::new(*manifest),
                    })),
                    _ => Stored::Done,
                };
                self.events.push_back(Event::Stored { call: id, outcome });
            }
            _ => {}
        }
    }

    fn register(&mut self, container: ContainerName, member: Member) {
        self.register_with(container, member, None, None);
    }

    fn register_with(
        &mut self,
        container: ContainerName,
        member: Member,
        pserver_state: Option<PserverState>,
        trainer_state: Option<TrainerState>,
    ) {
        self.next += 1;
        let connection = ConnectionId(self.next);
        // They come over ten seconds, as fast as launches are let through.
        if self.next.is_multiple_of(8) {
            self.now += 4;
        }
        let container_id = container.clone();
        let known = self.containers.entry(member).or_insert(Container {
            connection,
            epoch: Epoch::default(),
            container: container_id,
            shards: Vec::new(),
            tasks: Vec::new(),
        });
        known.connection = connection;
        let endpoints = match member.slot.role {
            Role::Pserver => vec![([127, 0, 0, 1], 1).into()],
            Role::Trainer => Vec::new(),
        };
        let registration = Box::new(Registration {
            member,
            container: Some(container.0),
            pid: 1,
            host: format!("node-{:04}.example", self.next % 1_000),
            endpoints,
            pserver_state,
            trainer_state,
        });
        self.events.push_back(Event::Registered { connection, registration });
        self.events.push_back(Event::ClusterHeard);
    }

    fn say(&mut self, member: Member, report: Report) {
        let connection = self.containers[&member].connection;
        self.events.push_back(Event::Report { connection, report: Box::new(report) });
    }

    fn obey(&mut self, member: Member, command: Command) {
        match command {
            Command::Pserver(PserverCommand::LoadShards(LoadShards {
                epoch,
                shards,
                phase,
                ..
            })) => {
                (self.epoch, self.phase) = (epoch, phase.no);
                self.containers.get_mut(&member).unwrap().shards = shards;
                self.say(
                    member,
                    Report::Pserver(PserverReport::ShardsReady {
                        epoch,
                        from_memory: 0,
                        from_storage: 1,
                        loaded: Vec::new(),
                    }),
                );
            }
            Command::Pserver(PserverCommand::Begin(BeginPhase { epoch, phase })) => {
                self.phase = phase.no;
                let phase = phase.no;
                self.say(member, Report::Pserver(PserverReport::Begun { epoch, phase }));
            }
            Command::Pserver(PserverCommand::Cut(TakeCut { cut, epoch, .. })) => {
                self.say(member, Report::Pserver(PserverReport::CutArmed { cut, epoch }));
                for shard in self.containers[&member].shards.clone() {
                    let step = Step(0);
                    self.say(
                        member,
                        Report::Shard {
                            epoch,
                            report: ShardReport::SnapshotTaken { cut, shard, step },
                        },
                    );
                    let file = file(shard);
                    self.say(
                        member,
                        Report::Pserver(PserverReport::Saved {
                            cut,
                            epoch,
                            file,
                            tables: Vec::new(),
                        }),
                    );
                }
            }
            Command::Trainer(TrainerCommand::Barrier { cut, epoch }) => {
                let tasks = Vec::new();
                self.say(member, Report::Trainer(TrainerReport::AtBarrier { cut, epoch, tasks }));
            }
            Command::Trainer(TrainerCommand::Work { epoch, .. }) => {
                self.epoch = epoch;
                let known = self.containers.get_mut(&member).unwrap();
                // After a takeover the command repeats the work that it does.
                if std::mem::replace(&mut known.epoch, epoch) != epoch {
                    known.tasks.clear();
                }
            }
            Command::Trainer(TrainerCommand::Tasks { tasks, .. }) => {
                self.containers.get_mut(&member).unwrap().tasks.extend(tasks);
            }
            _ => {}
        }
    }

    fn members(&self, role: Role) -> Vec<Member> {
        let members = self.containers.keys().copied();
        members.filter(|member| member.slot.role == role).collect()
    }

    /// Heartbeats of all containers, and a response of the cluster.
    fn beat_all(&mut self) {
        self.heartbeats();
        self.on(Event::ClusterHeard);
    }

    fn heartbeats(&mut self) {
        let members: Vec<Member> = self.containers.keys().copied().collect();
        for member in members {
            self.say(
                member,
                Report::Heartbeat(HeartbeatStats {
                    figures: Box::new(
                        [(ProcessFigure::ResidentBytes, 1 << 30), (ProcessFigure::Rows, self.now)]
                            .into_iter()
                            .collect(),
                    ),
                    phase: self.phase,
                    epoch: self.epoch,
                    ..HeartbeatStats::default()
                }),
            );
        }
        self.settle();
    }

    /// Those that keep containers from being given up for their silence.
    fn heartbeats_uncounted(&mut self) {
        let counted = (self.spent, self.worst);
        self.heartbeats();
        (self.spent, self.worst) = counted;
    }

    /// Everything begins, and trainers that wait for the end of a window join. The heartbeats that keep containers from
    /// being given up for their silence meanwhile are a figure of their own and do not count here.
    fn start(&mut self) {
        self.on(recovered());
        for _ in 0..10 {
            self.now += 2_000;
            self.heartbeats_uncounted();
            self.on(Event::ClusterHeard);
        }
    }

    /// Trainers finish the task that they have held longest, one after the other and again, until this number of tasks is done.
    fn finish(&mut self, tasks: usize) {
        let trainers = self.members(Role::Trainer);
        let mut idle = 0;
        for member in trainers.iter().cycle() {
            if self.finished.len() >= tasks || idle == trainers.len() {
                return;
            }
            idle += 1;
            let held = &mut self.containers.get_mut(member).unwrap().tasks;
            if held.is_empty() {
                continue;
            }
            idle = 0;
            let grant = held.remove(0);
            self.finished.push(grant.task);
            let (epoch, phase) = (self.epoch, self.phase);
            self.say(
                *member,
                Report::Trainer(TrainerReport::TaskFinished {
                    epoch,
                    phase,
                    cut: CutId::default(),
                    task: grant.task,
                    attempt: grant.attempt,
                    metrics: Box::new(TaskMetrics::default()),
                }),
            );
            self.settle();
        }
    }

    /// Another attempt follows this one, and all containers register with it again. Heartbeats do not count, as at the start.
    fn take_over(&mut self) {
        let kept = self
            .containers
            .values()
            .map(|container| SurvivingContainer {
                container: container.container.clone(),
                node: "node".to_owned(),
            })
            .collect();
        self.core = Core::new(self.config.clone());
        let done: TaskSet = self.finished.iter().copied().collect();
        self.on(Event::Startup(Box::new(StartupState {
            attempt: Attempt(2),
            generation: Generation(2),
            journal: self.records.clone(),
            base: None,
            checkpoints: Vec::new(),
            damaged: Vec::new(),
            kept,
            unfinished: Vec::new(),
        })));
        let mut beaten = self.now;
        for member in self.containers.keys().copied().collect::<Vec<_>>() {
            if self.now >= beaten + 1_000 {
                beaten = self.now;
                self.heartbeats_uncounted();
            }
            let known = &self.containers[&member];
            let (container, tasks) = (known.container.clone(), known.tasks.clone());
            let shards = known.shards.iter().map(|shard| ShardState {
                shard: *shard,
                phase: self.phase,
                step: Step(0),
                ended: false,
                counted: None,
                tasks: Vec::new(),
                done: TaskSet::default(),
                replica: ReplicaState::ALONE,
            });
            let (epoch, cut) = (self.epoch, CutId::default());
            let held = (member.slot.role == Role::Pserver).then(|| PserverState {
                epoch,
                cut,
                done: done.clone(),
                shards: shards.collect(),
            });
            let busy = (member.slot.role == Role::Trainer).then(|| TrainerState {
                epoch,
                phase: self.phase,
                cut,
                tasks: tasks
                    .iter()
                    .map(|grant| TaskPosition {
                        task: grant.task,
                        attempt: grant.attempt,
                        step: grant.start,
                    })
                    .collect(),
                lanes: Vec::new(),
            });
            self.register_with(container, member, held, busy);
            self.on(Event::Timer);
        }
    }

    fn lose(&mut self, member: Member) {
        let container = self.containers.remove(&member).unwrap().container;
        self.on(Event::Exited { container, exit: Exit::NodeLost, text: String::new() });
        self.now += 2_000;
        self.on(Event::Timer);
    }

    /// Total and worst time inside the core of what `act` does.
    fn measure(&mut self, act: impl FnOnce(&mut Self)) -> (Duration, Duration) {
        (self.spent, self.worst) = (Duration::ZERO, Duration::ZERO);
        act(self);
        (self.spent, self.worst)
    }
}

fn file(shard: ShardId) -> ShardFile {
    let uuid = Uuid::from_u128(u128::from(shard.0));
    ShardFile {
        shard,
        uuid,
        file: ShardFile::name(shard, uuid),
        md5: Md5([0; 16]),
        bytes: 1,
        at_ms: 0,
        sha256: None,
        copies: Vec::new(),
    }
}

fn recovered() -> Event {
    Event::Startup(Box::new(StartupState {
        attempt: Attempt(1),
        generation: Generation(1),
        journal: Vec::new(),
        base: None,
        damaged: Vec::new(),
        checkpoints: Vec::new(),
        kept: Vec::new(),
        unfinished: Vec::new(),
    }))
}

/// Containers, and tasks of the training data.
#[derive(Clone, Copy)]
struct Size {
    containers: u32,
    tasks: u32,
}

/// Sizes along which costs are looked at.
struct Sweep {
    of: Of,
    sizes: Vec<Size>,
}

/// What differs in a sweep.
#[derive(Clone, Copy)]
enum Of {
    Containers,
    Tasks,
}

impl Size {
    /// `<containers>x<tasks>`.
    fn parse(text: &str) -> Option<Self> {
        let (containers, tasks) = text.split_once('x')?;
        Some(Self { containers: containers.parse().ok()?, tasks: tasks.parse().ok()? })
    }

    fn along(self, of: Of) -> f64 {
        f64::from(match of {
            Of::Containers => self.containers,
            Of::Tasks => self.tasks,
        })
    }
}

impl Sweep {
    fn new(of: Of, sizes: &[(u32, u32)]) -> Self {
        let size = |&(containers, tasks): &(u32, u32)| Size { containers, tasks };
        let sizes = sizes.iter().map(size).collect();
        Self { of, sizes }
    }

    fn all() -> Vec<Self> {
        let sizes: Vec<Size> = std::env::args().filter_map(|arg| Size::parse(&arg)).collect();
        if !sizes.is_empty() {
            let of = Of::Containers;
            return vec![Self { of, sizes }];
        }
        let (containers, tasks): ([_; 4], [_; 3]) = if is_quick() {
            (
                [(100, 4_000), (200, 4_000), (400, 4_000), (800, 4_000)],
                [(100, 1_000), (100, 10_000), (100, 100_000)],
            )
        } else {
            let each = 100_000;
            (
                [(1_250, each), (2_500, each), (5_000, each), (10_000, each)],
                [(10_000, 10_000), (10_000, 100_000), (10_000, 1_000_000)],
            )
        };
        vec![Self::new(Of::Containers, &containers), Self::new(Of::Tasks, &tasks)]
    }

    /// Measures and prints a table, with a column for each size.
    fn run(&self) {
        let runs = if is_quick() { 1 } else { 3 };
        let mut measured: Vec<Vec<Vec<Figure>>> = self.sizes.iter().map(|_| Vec::new()).collect();
        for _ in 0..runs {
            for (size, figures) in self.sizes.iter().zip(&mut measured) {
                figures.push(measure(*size));
            }
        }
        let names = self.sizes.iter().map(|size| format!("{}x{}", size.containers, size.tasks));
        let names: Vec<String> = names.collect();
        println!("| total (worst event) | {} | exponent |", names.join(" | "));
        println!("| --- |{} --- |", " --- |".repeat(names.len()));
        for (row, figure) in measured[0][0].iter().enumerate() {
            let costs = measured.iter().map(|runs| {
                let cost = |of: fn(&Figure) -> f64| median(runs.iter().map(|run| of(&run[row])));
                (cost(|figure| figure.value), cost(|figure| figure.worst_ms.unwrap_or(0.0)))
            });
            let costs: Vec<(f64, f64)> = costs.collect();
            let cells: Vec<String> = costs
                .iter()
                .map(|(value, worst)| match figure.worst_ms {
                    Some(_) => format!("{} ({})", short(*value), short(*worst)),
                    None => short(*value),
                })
                .collect();
            let points = self.sizes.iter().zip(&costs);
            let points = points.map(|(size, cost)| (size.along(self.of), cost.0));
            println!(
                "| {}, {} | {} | {:.2} |",
                figure.name,
                figure.unit,
                cells.join(" | "),
                exponent(&points.collect::<Vec<_>>())
            );
        }
    }
}

fn is_quick() -> bool {
    std::env::var_os("HEDDLE_BENCH_QUICK").is_some()
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Three digits.
fn short(value: f64) -> String {
    let decimals = match value {
        0.0..10.0 => 2,
        10.0..100.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

/// Slope of the line through the logarithms that fits best (least squares).
fn exponent(points: &[(f64, f64)]) -> f64 {
    let logs: Vec<(f64, f64)> = points.iter().map(|(x, y)| (x.ln(), y.ln())).collect();
    let mean = |of: fn(&(f64, f64)) -> f64| logs.iter().map(of).sum::<f64>() / logs.len() as f64;
    let (x, y) = (mean(|log| log.0), mean(|log| log.1));
    let both: f64 = logs.iter().map(|log| (log.0 - x) * (log.1 - y)).sum();
    both / logs.iter().map(|log| (log.0 - x).powi(2)).sum::<f64>()
}

struct Figure {
    name: &'static str,
    unit: &'static str,
    value: f64,
    /// Of a round: its worst single event, ms.
    worst_ms: Option<f64>,
}

impl Figure {
    fn new(name: &'static str, unit: &'static str, value: f64) -> Self {
        Self { name, unit, value, worst_ms: None }
    }

    fn round(name: &'static str, (total, worst): (Duration, Duration)) -> Self {
        Self { worst_ms: Some(ms(worst)), ..Self::new(name, "ms", ms(total)) }
    }

    /// The time of each of this number of tasks.
    fn each(name: &'static str, tasks: usize, (total, worst): (Duration, Duration)) -> Self {
        Self {
            worst_ms: Some(ms(worst)),
            ..Self::new(name, "us", ms(total) * 1e3 / tasks.max(1) as f64)
        }
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// All rounds of one size.
fn measure(size: Size) -> Vec<Figure> {
    let mut rig = Rig::new(size, Consistency::Asp);
    let trainers = (size.containers - size.containers / 10) as usize;
    let mut figures = Vec::new();
    let start = rig.measure(Rig::start);
    assert_eq!(rig.core.view().state, JobState::Running);
    figures.push(Figure::round("start", start));
    let mut rounds: Vec<_> = (0..9)
        .map(|_| {
            rig.now += 2_000;
            rig.measure(Rig::beat_all)
        })
        .collect();
    rounds.sort();
    figures.push(Figure::round("heartbeats of all", rounds[rounds.len() / 2]));
    let half = size.tasks as usize / 2;
    let spent = rig.measure(|rig| rig.finish(half));
    figures.push(Figure::each("a finished task", rig.finished.len(), spent));
    let trainer = rig.measure(|rig| rig.lose(rig.members(Role::Trainer)[7]));
    figures.push(Figure::round("a trainer lost and replaced", trainer));
    let take_over = rig.measure(Rig::take_over);
    assert_eq!(rig.core.view().state, JobState::Running);
    assert!(rig.core.view().tasks_done as usize + trainers >= half);
    figures.push(Figure::round("takeover", take_over));
    let before = rig.finished.len();
    let spent = rig.measure(|rig| rig.finish(before + half / 2));
    let ends = rig.finished.len() - before;
    figures.push(Figure::each("a finished task after it", ends, spent));
    // Until nothing is left to hand out and half of the trainers have no other's task to share.
    rig.finish(size.tasks as usize - trainers / 2);
    // Those that hold nothing are looked at for a late task to share.
    let rounds = (0..9).map(|_| {
        rig.now += 2_000;
        rig.measure(Rig::beat_all)
    });
    let mut rounds: Vec<_> = rounds.collect();
    rounds.sort();
    figures.push(Figure::round("heartbeats of idle trainers", rounds[rounds.len() / 2]));
    let pserver = rig.measure(|rig| rig.lose(rig.members(Role::Pserver)[7]));
    figures.push(Figure::round("a pserver lost, replaced, all at work", pserver));
    let began = Instant::now();
    black_box(rig.core.view());
    figures.push(Figure::new("people's view", "ms", ms(began.elapsed())));
    let bytes = -allocation_counter::measure(|| drop(rig.core)).bytes_current;
    figures.push(Figure::new("memory", "MB", bytes as f64 / 1e6));
    figures.extend(manifest(size, &rig.config));
    figures.extend(lanes(size));
    figures
}

/// BSP: lanes are shared out, and again for a trainer that is lost and for the one that replaces it.
fn lanes(size: Size) -> Vec<Figure> {
    let mut rig = Rig::new(size, Consistency::Bsp);
    let start = rig.measure(Rig::start);
    assert_eq!(rig.core.view().state, JobState::Running);
    let replaced = rig.measure(|rig| rig.lose(rig.members(Role::Trainer)[7]));
    assert_eq!(rig.containers.len(), size.containers as usize);
    vec![
        Figure::round("BSP: start", start),
        Figure::round("BSP: a trainer lost and replaced", replaced),
    ]
}

/// A manifest of a job of this size, with every second task done.
fn manifest(size: Size, config: &Config) -> Vec<Figure> {
    let done = |task: u32| QueuedTask { task: TaskId(task), state: TaskState::Done };
    let manifest = Manifest {
        format_version: FORMAT_VERSION_WITH_FILES,
        run: config.run,
        job: "job".to_owned(),
        cut: CutId { generation: Generation(1), number: 1 },
        epoch: Epoch::first(Generation(1)),
        parent: None,
        salt: Salt(Uuid::nil()),
        at_ms: 0,
        spec_digest: String::new(),
        spec: serde_json::Value::Null,
        plan: (*config.plan).clone(),
        initial: false,
        shards: (0..size.containers / 10).map(|id| file(ShardId(id))).collect(),
        phase: PhaseNo(0),
        work: Work::Queue { tasks: (0..size.tasks).step_by(2).map(done).collect() },
        task_steps: (0..size.tasks).map(|id| (TaskId(id), 1_000)).collect(),
        evaluations: Vec::new(),
        best_pass: None,
        progress: Progress::default(),
        tables: Vec::new(),
    };
    let began = Instant::now();
    let bytes = manifest.to_json().unwrap();
    let written = began.elapsed();
    let began = Instant::now();
    let read = Manifest::from_json(&bytes).unwrap();
    let parsed = began.elapsed();
    assert_eq!(read, manifest);
    let began = Instant::now();
    let (file, plan) = PlanFile::of(&config.plan, "").unwrap();
    file.parse(&plan).unwrap();
    let planned = began.elapsed();
    vec![
        Figure::new("manifest, length", "MB", bytes.len() as f64 / 1e6),
        Figure::new("manifest, written", "ms", ms(written)),
        Figure::new("manifest, read", "ms", ms(parsed)),
        Figure::new("plan file, length", "MB", plan.len() as f64 / 1e6),
        Figure::new("plan file, written and read", "ms", ms(planned)),
    ]
}

fn main() {
    for sweep in Sweep::all() {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        println!("a tenth of the containers are pservers with a shard each; load {}", load.trim());
        sweep.run();
        println!();
    }
}
