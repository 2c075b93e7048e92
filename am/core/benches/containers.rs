//! What the core costs with thousands of containers and up to a million tasks: time of whole rounds, of the worst single
//! event, memory, and how each cost grows.
//!
//! `cargo bench -p heddle-am-core --bench containers [-- <containers>x<tasks> …]`; `HEDDLE_BENCH_QUICK=1` takes small sizes.
//! All containers are pretended and answer at once; only the time inside [`Core::on`] counts, and only the bytes that
//! its state holds. **Growth** is the ratio of two costs over the ratio of `n log n`, with n containers times as many
//! tasks each: above 1 a cost grows faster. Ratios are of one run, so a busy machine spoils figures and not growths.

#![expect(
    clippy::disallowed_types,
    reason = "what measures the core is not the core"
)]
#![expect(clippy::print_stdout, reason = "figures are what it is for")]
#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

#[path = "../tests/job/harness.rs"]
#[allow(dead_code, reason = "only the job's shape is used")]
mod harness;

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::{BTreeMap, VecDeque};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::time::{Duration, Instant};

use heddle_am_core::{
    Action, Checkpoint, Config, ConnectionId, ContainerId, Core, Event, Exit, Kept, Limits, Mono,
    Now, Record, Recovered, StoreCall, Stored,
};
use heddle_protocol::control::{
    Beat, Busy, Command, Held, ShardState, TaskGrant, TaskPosition, Up,
};
use heddle_protocol::ids::{
    Attempt, CutId, Epoch, Generation, Member, PhaseNo, Role, ShardId, Step, TaskId,
};
use heddle_protocol::manifest::{
    FORMAT_VERSION, Manifest, Md5, Progress, QueuedTask, Salt, ShardFile, TaskState, Work,
};
use heddle_protocol::metrics::TaskMetrics;
use heddle_protocol::plan_file::PlanFile;
use heddle_protocol::spec::Consistency;
use heddle_protocol::task_set::TaskSet;
use heddle_protocol::view::JobState;
use uuid::Uuid;

static LIVE: AtomicIsize = AtomicIsize::new(0);

/// Counts the bytes that are allocated now.
struct Counting;

#[expect(unsafe_code, reason = "an allocator is one by an unsafe trait")]
// SAFETY: every call goes to the system's allocator with the arguments that it came with.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const LANES_PER_TRAINER: u32 = 2;

struct Container {
    connection: ConnectionId,
    container: ContainerId,
    shards: Vec<ShardId>,
    tasks: Vec<TaskGrant>,
}

/// A driver whose containers do at once what they are told.
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
        while let Some(event) = self.events.pop_front() {
            let now = Now {
                mono: Mono(self.now),
                wall_ms: self.now,
            };
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
            Action::Ask {
                slot, incarnation, ..
            } => {
                self.next += 1;
                let number = self.next;
                self.events.push_back(Event::Allocated {
                    container: ContainerId(format!("container_1700000000000_0001_01_{number:06}")),
                    slot,
                    incarnation,
                    node: format!("node-{:04}.example", number % 1_000),
                });
            }
            Action::Launch { container, member } => self.register(container, member),
            Action::Send {
                member: Some(member),
                command,
                ..
            } => self.obey(member, Arc::unwrap_or_clone(command)),
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

    fn register(&mut self, container: ContainerId, member: Member) {
        self.register_with(container, member, None, None);
    }

    fn register_with(
        &mut self,
        container: ContainerId,
        member: Member,
        held: Option<Held>,
        busy: Option<Busy>,
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
            container: container_id,
            shards: Vec::new(),
            tasks: Vec::new(),
        });
        known.connection = connection;
        let endpoints = match member.slot.role {
            Role::Pserver => vec![([127, 0, 0, 1], 1).into()],
            Role::Trainer => Vec::new(),
        };
        self.events.push_back(Event::Registered {
            connection,
            member,
            container: Some(container),
            pid: 1,
            host: format!("node-{:04}.example", self.next % 1_000),
            endpoints,
            held,
            busy,
        });
        self.events.push_back(Event::ClusterHeard);
    }

    fn say(&mut self, member: Member, report: Up) {
        let connection = self.containers[&member].connection;
        self.events.push_back(Event::Report {
            connection,
            report: Box::new(report),
        });
    }

    fn obey(&mut self, member: Member, command: Command) {
        match command {
            Command::Hold {
                epoch,
                shards,
                phase,
                ..
            } => {
                (self.epoch, self.phase) = (epoch, phase.no);
                self.containers.get_mut(&member).unwrap().shards = shards;
                self.say(
                    member,
                    Up::Holding {
                        epoch,
                        from_memory: 0,
                        from_storage: 1,
                        load_ms: 1,
                    },
                );
            }
            Command::Begin { epoch, phase } => {
                self.phase = phase.no;
                let phase = phase.no;
                self.say(member, Up::Begun { epoch, phase });
            }
            Command::Cut { cut, epoch, .. } => {
                self.say(member, Up::CutArmed { cut, epoch });
                for shard in self.containers[&member].shards.clone() {
                    let step = Step(0);
                    self.say(
                        member,
                        Up::Snapped {
                            cut,
                            epoch,
                            shard,
                            step,
                        },
                    );
                    let file = file(shard);
                    self.say(member, Up::Saved { cut, epoch, file });
                }
            }
            Command::Barrier { cut, epoch } => {
                let tasks = Vec::new();
                self.say(member, Up::AtBarrier { cut, epoch, tasks });
            }
            Command::Work { epoch, .. } => {
                self.epoch = epoch;
                self.containers.get_mut(&member).unwrap().tasks.clear();
            }
            Command::Tasks { tasks, .. } => {
                self.containers
                    .get_mut(&member)
                    .unwrap()
                    .tasks
                    .extend(tasks);
            }
            _ => {}
        }
    }

    fn members(&self, role: Role) -> Vec<Member> {
        let members = self.containers.keys().copied();
        members.filter(|member| member.slot.role == role).collect()
    }

    fn beat_all(&mut self) {
        let members: Vec<Member> = self.containers.keys().copied().collect();
        for member in members {
            self.say(
                member,
                Up::Heartbeat(Beat {
                    rss_bytes: 1 << 30,
                    rows: self.now,
                    compute_ms: self.now,
                    phase: self.phase,
                    epoch: self.epoch,
                    ..Beat::default()
                }),
            );
        }
        self.on(Event::ClusterHeard);
    }

    /// Everything begins, and trainers that wait for the end of a window join.
    fn start(&mut self) {
        self.on(recovered());
        for _ in 0..10 {
            self.now += 2_000;
            self.on(Event::ClusterHeard);
        }
    }

    /// Each trainer finishes the task that it has held longest; how many had one.
    fn finish_one_each(&mut self) -> usize {
        let mut finished = 0;
        for member in self.members(Role::Trainer) {
            let tasks = &mut self.containers.get_mut(&member).unwrap().tasks;
            if tasks.is_empty() {
                continue;
            }
            finished += 1;
            let grant = tasks.remove(0);
            self.finished.push(grant.task);
            let (epoch, phase) = (self.epoch, self.phase);
            self.say(
                member,
                Up::TaskFinished {
                    epoch,
                    phase,
                    cut: CutId::default(),
                    task: grant.task,
                    attempt: grant.attempt,
                    metrics: Box::new(TaskMetrics::default()),
                },
            );
        }
        self.on(Event::Timer);
        finished
    }

    /// Rounds of finished tasks until so many are done.
    fn finish(&mut self, tasks: usize) {
        while self.finished.len() < tasks && self.finish_one_each() > 0 {}
    }

    /// Another attempt follows this one, and all containers register with it again.
    fn take_over(&mut self) {
        let kept = self
            .containers
            .values()
            .map(|container| Kept {
                container: container.container.clone(),
                node: "node".to_owned(),
            })
            .collect();
        self.core = Core::new(self.config.clone());
        let done: TaskSet = self.finished.iter().copied().collect();
        self.on(Event::Recovered(Box::new(Recovered {
            attempt: Attempt(2),
            generation: Generation(2),
            journal: self.records.clone(),
            base: None,
            checkpoints: Vec::new(),
            damaged: Vec::new(),
            kept,
        })));
        for member in self.containers.keys().copied().collect::<Vec<_>>() {
            let known = &self.containers[&member];
            let (container, tasks) = (known.container.clone(), known.tasks.clone());
            let shards = known.shards.iter().map(|shard| ShardState {
                shard: *shard,
                phase: self.phase,
                step: Step(0),
                ended: false,
                tasks: Vec::new(),
                done: TaskSet::default(),
            });
            let (epoch, cut) = (self.epoch, CutId::default());
            let held = (member.slot.role == Role::Pserver).then(|| Held {
                epoch,
                cut,
                done: done.clone(),
                shards: shards.collect(),
            });
            let busy = (member.slot.role == Role::Trainer).then(|| Busy {
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
        self.on(Event::Exited {
            container,
            exit: Exit::NodeLost,
            text: String::new(),
        });
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
    }
}

fn recovered() -> Event {
    Event::Recovered(Box::new(Recovered {
        attempt: Attempt(1),
        generation: Generation(1),
        journal: Vec::new(),
        base: None,
        damaged: Vec::new(),
        checkpoints: Vec::new(),
        kept: Vec::new(),
    }))
}

/// Containers, and tasks of the training data.
#[derive(Clone, Copy)]
struct Size {
    containers: u32,
    tasks: u32,
}

const SIZES: [Size; 4] = [
    Size {
        containers: 1_100,
        tasks: 100_000,
    },
    Size {
        containers: 2_500,
        tasks: 250_000,
    },
    Size {
        containers: 5_000,
        tasks: 500_000,
    },
    Size {
        containers: 10_000,
        tasks: 1_000_000,
    },
];

impl Size {
    /// `<containers>x<tasks>`.
    fn parse(text: &str) -> Option<Self> {
        let (containers, tasks) = text.split_once('x')?;
        Some(Self {
            containers: containers.parse().ok()?,
            tasks: tasks.parse().ok()?,
        })
    }

    fn all() -> Vec<Self> {
        let sizes: Vec<Self> = std::env::args()
            .filter_map(|arg| Self::parse(&arg))
            .collect();
        if !sizes.is_empty() {
            return sizes;
        }
        if std::env::var_os("HEDDLE_BENCH_QUICK").is_some() {
            return [(100, 2_000), (300, 6_000)]
                .map(|(containers, tasks)| Self { containers, tasks })
                .to_vec();
        }
        SIZES.to_vec()
    }
}

/// What a cost is measured against: `n log n` of this n.
#[derive(Clone, Copy)]
enum Of {
    Containers,
    Tasks,
    /// A cost for each of many: it may grow with the logarithm.
    One,
}

struct Figure {
    name: &'static str,
    unit: &'static str,
    of: Of,
    value: f64,
    /// Of a round: its worst single event, ms.
    worst_ms: Option<f64>,
}

impl Figure {
    fn round(name: &'static str, of: Of, (total, worst): (Duration, Duration)) -> Self {
        Self {
            name,
            unit: "ms",
            of,
            value: total.as_secs_f64() * 1e3,
            worst_ms: Some(worst.as_secs_f64() * 1e3),
        }
    }
}

fn n_log_n(of: Of, size: Size) -> f64 {
    let (containers, tasks) = (f64::from(size.containers), f64::from(size.tasks));
    match of {
        Of::Containers => containers * containers.ln(),
        Of::Tasks => tasks * tasks.ln(),
        Of::One => tasks.ln(),
    }
}

/// All rounds of one size.
fn measure(size: Size) -> Vec<Figure> {
    let mut rig = Rig::new(size, Consistency::Asp);
    let trainers = (size.containers - size.containers / 10) as usize;
    let mut figures = Vec::new();
    let mut add = |figure| figures.push(figure);
    let start = rig.measure(Rig::start);
    assert_eq!(rig.core.view().state, JobState::Running);
    add(Figure::round("start", Of::Containers, start));
    let mut rounds: Vec<_> = (0..9)
        .map(|_| {
            rig.now += 2_000;
            rig.measure(Rig::beat_all)
        })
        .collect();
    rounds.sort();
    let beats = rounds[rounds.len() / 2];
    add(Figure::round("heartbeat of all", Of::Containers, beats));
    let half = size.tasks as usize / 2;
    let per_task = |name, tasks: usize, (total, worst): (Duration, Duration)| Figure {
        name,
        unit: "us",
        of: Of::One,
        value: total.as_secs_f64() * 1e6 / tasks as f64,
        worst_ms: Some(worst.as_secs_f64() * 1e3),
    };
    let spent = rig.measure(|rig| rig.finish(half));
    add(per_task("a finished task", rig.finished.len(), spent));
    let trainer = rig.measure(|rig| rig.lose(rig.members(Role::Trainer)[7]));
    add(Figure::round("a trainer lost", Of::Containers, trainer));
    let take_over = rig.measure(Rig::take_over);
    assert_eq!(rig.core.view().state, JobState::Running);
    assert!(rig.core.view().tasks_done as usize >= half - trainers);
    add(Figure::round("takeover", Of::Tasks, take_over));
    let before = rig.finished.len();
    let last = size.tasks as usize - trainers;
    let spent = rig.measure(|rig| rig.finish(last));
    add(per_task(
        "likewise, after it",
        rig.finished.len() - before,
        spent,
    ));
    // Half of them idle, the other half at a task each that nothing can be shared of.
    let before = rig.finished.len();
    let spent = rig.measure(|rig| {
        for _ in 0..4 {
            rig.now += 2_000;
            rig.beat_all();
            rig.finish_one_each();
        }
    });
    let ends = (rig.finished.len() - before).max(1);
    add(per_task("a task at the end of a phase", ends, spent));
    let pserver = rig.measure(|rig| rig.lose(rig.members(Role::Pserver)[7]));
    add(Figure::round(
        "a pserver lost (rollback)",
        Of::Tasks,
        pserver,
    ));
    let began = Instant::now();
    black_box(rig.core.view());
    add(Figure {
        name: "people's view",
        unit: "ms",
        of: Of::Containers,
        value: began.elapsed().as_secs_f64() * 1e3,
        worst_ms: None,
    });
    let held = LIVE.load(Ordering::Relaxed);
    drop(rig.core);
    let bytes = held - LIVE.load(Ordering::Relaxed);
    add(Figure {
        name: "memory",
        unit: "MB",
        of: Of::Tasks,
        value: bytes as f64 / 1e6,
        worst_ms: None,
    });
    manifest(size, &rig.config, &mut add);
    lanes(size, &mut add);
    figures
}

/// BSP: lanes are shared out, and again for a trainer that is lost and for the one that replaces it.
fn lanes(size: Size, add: &mut impl FnMut(Figure)) {
    let mut rig = Rig::new(size, Consistency::Bsp);
    let start = rig.measure(Rig::start);
    assert_eq!(rig.core.view().state, JobState::Running);
    add(Figure::round("BSP: start", Of::Containers, start));
    let replaced = rig.measure(|rig| rig.lose(rig.members(Role::Trainer)[7]));
    assert_eq!(rig.containers.len(), size.containers as usize);
    add(Figure::round(
        "BSP: a trainer lost and replaced",
        Of::Containers,
        replaced,
    ));
}

/// A manifest of a job of this size, with every second task done.
fn manifest(size: Size, config: &Config, add: &mut impl FnMut(Figure)) {
    let done = |task: u32| QueuedTask {
        task: TaskId(task),
        state: TaskState::Done,
    };
    let manifest = Manifest {
        format_version: FORMAT_VERSION,
        run: config.run,
        job: "job".to_owned(),
        cut: CutId {
            generation: Generation(1),
            number: 1,
        },
        epoch: Epoch::first(Generation(1)),
        parent: None,
        salt: Salt(Uuid::nil()),
        at_ms: 0,
        spec_digest: String::new(),
        spec: serde_json::Value::Null,
        plan: (*config.plan).clone(),
        shards: (0..size.containers / 10)
            .map(|id| file(ShardId(id)))
            .collect(),
        phase: PhaseNo(0),
        work: Work::Queue {
            tasks: (0..size.tasks).step_by(2).map(done).collect(),
        },
        task_steps: (0..size.tasks).map(|id| (TaskId(id), 1_000)).collect(),
        evaluations: Vec::new(),
        progress: Progress::default(),
    };
    let began = Instant::now();
    let bytes = manifest.to_json().unwrap();
    let written = began.elapsed();
    let began = Instant::now();
    let read = Manifest::from_json(&bytes).unwrap();
    let parsed = began.elapsed();
    assert_eq!(read, manifest);
    let mut figure = |name, unit, value| {
        add(Figure {
            name,
            unit,
            of: Of::Tasks,
            value,
            worst_ms: None,
        });
    };
    figure("manifest, length", "MB", bytes.len() as f64 / 1e6);
    figure("manifest, written", "ms", written.as_secs_f64() * 1e3);
    figure("manifest, read", "ms", parsed.as_secs_f64() * 1e3);
    let began = Instant::now();
    let (file, bytes) = PlanFile::of(&config.plan, "").unwrap();
    file.parse(&bytes).unwrap();
    let took = began.elapsed();
    figure("plan file, length", "MB", bytes.len() as f64 / 1e6);
    figure(
        "plan file, written and read",
        "ms",
        took.as_secs_f64() * 1e3,
    );
}

fn main() {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!(
        "a tenth of the containers are pservers with a shard each; load {}",
        load.trim()
    );
    let mut before: Option<(Size, Vec<Figure>)> = None;
    for size in Size::all() {
        println!("{} containers, {} tasks", size.containers, size.tasks);
        let figures = measure(size);
        for figure in &figures {
            let smaller = before.as_ref().and_then(|(smaller, figures)| {
                let same = figures.iter().find(|other| other.name == figure.name)?;
                Some((smaller, same.value))
            });
            let growth = smaller.map_or(String::new(), |(smaller, value)| {
                let sizes = n_log_n(figure.of, size) / n_log_n(figure.of, *smaller);
                format!("growth {:.2}", figure.value / value / sizes)
            });
            let worst = figure
                .worst_ms
                .map_or(String::new(), |ms| format!("worst event {ms:.2} ms"));
            println!(
                "  {:<30} {:>12.2} {}  {worst:<24} {growth}",
                figure.name, figure.value, figure.unit
            );
        }
        before = Some((size, figures));
    }
}
