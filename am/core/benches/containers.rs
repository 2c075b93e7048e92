//! What the core costs with thousands of containers: time of whole rounds, of the worst single event, and memory.
//!
//! `cargo bench -p heddle-am-core --bench containers [-- <containers> …]`. All containers are pretended and
//! answer at once; only the time inside [`Core::on`] counts, and only the bytes that its state holds.

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
    Action, Checkpoint, Config, ConnectionId, ContainerId, Core, Event, Exit, Limits, Mono, Now,
    Recovered, StoreCall, Stored,
};
use heddle_protocol::control::{Beat, Command, TaskGrant, Up};
use heddle_protocol::ids::{
    Attempt, CutId, Epoch, Generation, Member, PhaseNo, Role, ShardId, Slot, Step,
};
use heddle_protocol::manifest::{Md5, ShardFile};
use heddle_protocol::metrics::TaskMetrics;
use heddle_protocol::spec::Consistency;
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

struct Container {
    connection: ConnectionId,
    container: ContainerId,
    shards: Vec<ShardId>,
    tasks: Vec<TaskGrant>,
}

/// A driver whose containers do at once what they are told.
struct Rig {
    core: Core,
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
    fn new(containers: u32) -> Self {
        let mut spec = harness::spec(Consistency::Asp);
        spec.pservers.count = containers / 10;
        spec.pservers.shards = containers / 10;
        spec.trainers.min = containers - containers / 10;
        spec.trainers.max = containers - containers / 10;
        let tasks = spec.trainers.max * 20;
        let config = Config {
            run: heddle_protocol::ids::RunId(Uuid::nil()),
            spec: Arc::new(spec),
            plan: Arc::new(harness::plan(tasks, 0)),
            address: String::new(),
            started_ms: 0,
            limits: Limits::default(),
            cluster_lease_ms: Some(10_000),
            locality: Arc::default(),
            output: None,
        };
        Self {
            core: Core::new(config),
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
            } => self.obey(member, *command),
            Action::Journal { id, .. } => {
                self.events.push_back(Event::RecordDurable { record: id })
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
        self.next += 1;
        let connection = ConnectionId(self.next);
        // They come over ten seconds, as fast as launches are let through.
        if self.next.is_multiple_of(8) {
            self.now += 4;
        }
        self.containers.insert(
            member,
            Container {
                connection,
                container: container.clone(),
                shards: Vec::new(),
                tasks: Vec::new(),
            },
        );
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
            held: None,
            busy: None,
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

    fn finish_one_each(&mut self) {
        for member in self.members(Role::Trainer) {
            let tasks = &mut self.containers.get_mut(&member).unwrap().tasks;
            if tasks.is_empty() {
                continue;
            }
            let grant = tasks.remove(0);
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
        checkpoints: Vec::new(),
        kept: Vec::new(),
    }))
}

fn ms((total, worst): (Duration, Duration)) -> String {
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    format!("{:>10.1} {:>9.2}", ms(total), ms(worst))
}

fn main() {
    let sizes: Vec<u32> = std::env::args()
        .filter_map(|arg| arg.parse().ok())
        .collect();
    let sizes = if sizes.is_empty() {
        vec![1_000, 2_000, 5_000, 10_000]
    } else {
        sizes
    };
    println!(
        "containers: a tenth of them pservers with a shard each, 20 tasks a trainer; ms, all and the worst event"
    );
    for containers in sizes {
        let before = LIVE.load(Ordering::Relaxed);
        let mut rig = Rig::new(containers);
        let start = rig.measure(|rig| {
            rig.on(recovered());
            // Whoever waits for the end of a window joins then.
            for _ in 0..10 {
                rig.now += 2_000;
                rig.on(Event::ClusterHeard);
            }
        });
        assert_eq!(rig.core.view().state, JobState::Running);
        let mut rounds: Vec<_> = (0..9)
            .map(|_| {
                rig.now += 2_000;
                rig.measure(Rig::beat_all)
            })
            .collect();
        rounds.sort();
        let beats = rounds[rounds.len() / 2];
        let tasks = rig.measure(Rig::finish_one_each);
        let trainer = rig.measure(|rig| rig.lose(rig.members(Role::Trainer)[7]));
        let pserver = rig.measure(|rig| rig.lose(rig.members(Role::Pserver)[7]));
        assert_eq!(rig.core.view().state, JobState::Running);
        assert_eq!(rig.core.view().slots[0].slot, Slot::pserver(0));
        let view = {
            let began = Instant::now();
            black_box(rig.core.view());
            (began.elapsed(), Duration::ZERO)
        };
        let held = LIVE.load(Ordering::Relaxed);
        drop(std::mem::replace(&mut rig.core, Rig::new(10).core));
        let core = held - LIVE.load(Ordering::Relaxed);
        println!("{containers:>7}  start            {}", ms(start));
        println!(
            "         heartbeats       {}  (median of 9 rounds)",
            ms(beats)
        );
        println!("         a task each      {}", ms(tasks));
        println!("         a trainer lost   {}", ms(trainer));
        println!("         a pserver lost   {}", ms(pserver));
        println!("         people's view    {}", ms(view));
        println!(
            "         memory           {:>10.1} MB, {} bytes a container",
            core as f64 / 1e6,
            core / containers as isize
        );
        black_box(before);
    }
}
