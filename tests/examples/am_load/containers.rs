//! The containers: a control thread each, as real ones have, and one thread that answers for all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command as Process, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use heddle_agent::{
    Agent, AmPlace, ContainerEnvironment, Hooks, LogContext, Reporter, UserSecrets,
};
use heddle_protocol::control::{
    BeginPhase, Command, HeartbeatStats, LoadShards, PserverCommand, PserverReport, PserverState,
    Registration, ReplicaState, Report, ShardReport, ShardState, TakeCut, TaskGrant, TaskPosition,
    TrainerCommand, TrainerReport, TrainerState,
};
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::handshake::{Mechanism, Secret};
use heddle_protocol::ids::{CutId, Epoch, Member, PhaseNo, Role, ShardId, Slot, Step, TaskId};
use heddle_protocol::manifest::{Md5, ShardFile};
use heddle_protocol::metrics::TaskMetrics;
use heddle_protocol::task_set::TaskSet;
use heddle_storage::{StorageUrl, sidecar_line, sidecar_name};
use md5::Digest as _;

use super::master::{ADDRESS, SECRET};
use super::{RUN, Size};

/// Longest wait for anything: a thousand connections on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// Unit of processor times in `/proc` (proc(5), `USER_HZ`); the same on all of Linux's architectures.
const TICKS_PER_SECOND: u64 = 100;

/// What the containers have seen.
#[derive(Default)]
pub(super) struct Seen {
    /// Welcomes of this attempt.
    pub(super) welcomed: usize,
    /// Trainers that have received epoch and places from this attempt, in its latest epoch.
    pub(super) working: BTreeSet<Slot>,
    epoch: Epoch,
    phase: PhaseNo,
    /// Slots that were asked for, the latest last.
    asked: Vec<Slot>,
    ready: bool,
    /// Tasks are finished as they come.
    finishing: bool,
    /// How many are to be done.
    target: usize,
    done: BTreeSet<TaskId>,
    /// The same when the ApplicationMaster was killed, for all pservers to name.
    done_before: TaskSet,
    shards: BTreeMap<Slot, Vec<ShardId>>,
    tasks: BTreeMap<Slot, Vec<TaskGrant>>,
    members: BTreeMap<Slot, (String, Member)>,
}

type World = Arc<(Mutex<Seen>, Condvar)>;

fn look(world: &World) -> MutexGuard<'_, Seen> {
    world.0.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory and processor time of the ApplicationMaster.
pub(super) struct Usage {
    pub(super) peak_bytes: u64,
    pub(super) cpu: Duration,
}

/// What finishing took.
pub(super) struct Done {
    pub(super) tasks: usize,
    pub(super) took: Duration,
}

pub(super) struct Containers {
    size: Size,
    dir: PathBuf,
    world: World,
    commands: Sender<(Member, Command)>,
    agents: Arc<Mutex<BTreeMap<Member, (Agent, Reporter)>>>,
    child: Child,
    stdin: ChildStdin,
    attempt: u32,
    started: Instant,
}

impl Containers {
    /// Starts the first attempt.
    pub(super) fn start(size: Size, dir: &Path) -> anyhow::Result<Self> {
        std::fs::write(dir.join(SECRET), &*Secret::random()?.to_hex())?;
        let world = World::default();
        let (commands, ordered) = mpsc::channel();
        let agents = Arc::default();
        answer_for_all(ordered, Arc::clone(&world), Arc::clone(&agents));
        let (child, stdin) = master(size, dir, 1)?;
        let mut job = Self {
            size,
            dir: dir.to_owned(),
            world,
            commands,
            agents,
            child,
            stdin,
            attempt: 1,
            started: Instant::now(),
        };
        job.follow()?;
        Ok(job)
    }

    /// Time since the attempt was started.
    pub(super) fn since(&self) -> Duration {
        self.started.elapsed()
    }

    /// Waits until what was seen is enough.
    pub(super) fn wait(&self, what: &str, enough: impl Fn(&Seen) -> bool) -> anyhow::Result<()> {
        let seen = look(&self.world);
        let (_seen, timeout) = self
            .world
            .1
            .wait_timeout_while(seen, LIMIT, |seen| !enough(seen))
            .unwrap_or_else(PoisonError::into_inner);
        anyhow::ensure!(!timeout.timed_out(), "no {what} within {} s", LIMIT.as_secs());
        Ok(())
    }

    /// What the ApplicationMaster has used so far.
    pub(super) fn master(&self) -> anyhow::Result<Usage> {
        let of = |file: &str| std::fs::read_to_string(format!("/proc/{}/{file}", self.child.id()));
        let status = of("status")?;
        let peak = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok())
            .context("VmHWM")?;
        // proc(5): utime and stime are fields 14 and 15; the second, which may hold blanks, is in brackets.
        let stat = of("stat")?;
        let fields: Vec<&str> =
            stat.rsplit_once(')').context("stat")?.1.split_whitespace().collect();
        let ticks: u64 = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
        Ok(Usage {
            peak_bytes: peak << 10,
            cpu: Duration::from_millis(ticks * (1000 / TICKS_PER_SECOND)),
        })
    }

    /// Trainers finish tasks until this number is done.
    pub(super) fn finish_until(&self, tasks: usize) -> anyhow::Result<Done> {
        let begun = Instant::now();
        let (before, held) = {
            let mut seen = look(&self.world);
            seen.finishing = true;
            seen.target = tasks;
            (seen.done.len(), seen.tasks.clone())
        };
        // What came while nothing was finished.
        for (slot, tasks) in held {
            let member = look(&self.world).members.get(&slot).map(|(_, member)| *member);
            if let Some(member) = member.filter(|_| !tasks.is_empty()) {
                let (epoch, phase) = {
                    let seen = look(&self.world);
                    (seen.epoch, seen.phase)
                };
                let again =
                    Command::Trainer(TrainerCommand::Tasks { epoch, phase, tasks: Vec::new() });
                self.commands.send((member, again))?;
            }
        }
        self.wait("finished tasks", |seen| seen.done.len() >= tasks)?;
        let mut seen = look(&self.world);
        seen.finishing = false;
        Ok(Done { tasks: seen.done.len() - before, took: begun.elapsed() })
    }

    /// From the cluster's report that a container ended to the request for another one.
    pub(super) fn lose_trainer(&mut self, index: u32) -> anyhow::Result<Duration> {
        let slot = Slot::trainer(index);
        look(&self.world).asked.clear();
        let begun = self.exits(slot)?;
        self.wait("ask", |seen| seen.asked.contains(&slot))?;
        Ok(begun.elapsed())
    }

    /// The same, to the first shard's order of the new epoch.
    pub(super) fn lose_pserver(&mut self, index: u32) -> anyhow::Result<Duration> {
        let epoch = {
            let mut seen = look(&self.world);
            seen.working.clear();
            seen.epoch
        };
        let begun = self.exits(Slot::pserver(index))?;
        self.wait("rollback", |seen| seen.epoch > epoch)?;
        Ok(begun.elapsed())
    }

    fn exits(&mut self, slot: Slot) -> anyhow::Result<Instant> {
        let (container, member) =
            look(&self.world).members.get(&slot).cloned().context("a container")?;
        // Its connection goes with the process.
        let gone = self.agents.lock().unwrap_or_else(PoisonError::into_inner).remove(&member);
        drop(gone);
        let begun = Instant::now();
        writeln!(self.stdin, "exit {container}")?;
        self.stdin.flush()?;
        Ok(begun)
    }

    /// Kills the ApplicationMaster and starts the next attempt; time from its port to work for all trainers.
    pub(super) fn take_over(&mut self, _all: usize) -> anyhow::Result<Duration> {
        let kept: Vec<String> =
            look(&self.world).members.values().map(|(container, _)| container.clone()).collect();
        std::fs::write(self.dir.join("kept"), kept.join("\n"))?;
        self.child.kill()?;
        self.child.wait()?;
        {
            let mut seen = look(&self.world);
            seen.welcomed = 0;
            seen.done_before = seen.done.iter().copied().collect();
            seen.ready = false;
            seen.working.clear();
        }
        self.attempt += 1;
        self.started = Instant::now();
        (self.child, self.stdin) = master(self.size, &self.dir, self.attempt)?;
        self.follow()?;
        self.wait("listening port", |seen| seen.ready)?;
        let begun = Instant::now();
        let trainers = self.size.trainers as usize;
        self.wait("work after the takeover", |seen| seen.working.len() >= trainers)?;
        Ok(begun.elapsed())
    }

    pub(super) fn end(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }

    /// Does what the ApplicationMaster's cluster is ordered to.
    fn follow(&mut self) -> anyhow::Result<()> {
        let stdout = self.child.stdout.take().context("a pipe")?;
        let secret = Secret::from_hex(std::fs::read_to_string(self.dir.join(SECRET))?.trim())?;
        let (world, agents) = (Arc::clone(&self.world), Arc::clone(&self.agents));
        let (commands, address) = (self.commands.clone(), self.dir.join(ADDRESS));
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                match line.split_once(' ') {
                    Some(("launch", rest)) => {
                        let Some((container, member)) = rest.split_once(' ') else {
                            continue;
                        };
                        let Ok(member) = serde_json::from_str::<Member>(member) else {
                            continue;
                        };
                        look(&world).members.insert(member.slot, (container.to_owned(), member));
                        let environment = ContainerEnvironment {
                            run: RUN,
                            member,
                            am: AmPlace::File(address.clone()),
                            secret: secret.clone(),
                            mechanism: Mechanism::Hmac,
                            timeout: heddle_agent::PeerTimeout::default(),
                            user_secrets: UserSecrets::default(),
                            host: format!("node-{}", member.slot.index % 100),
                            container: Some(container.to_owned()),
                        };
                        let hooks = hooks(&environment, &world, &commands);
                        match Agent::start(environment, hooks) {
                            Ok(agent) => {
                                let reporter = agent.reporter();
                                agents
                                    .lock()
                                    .unwrap_or_else(PoisonError::into_inner)
                                    .insert(member, (agent, reporter));
                            }
                            Err(error) => eprintln!("{member} cannot be started: {error}"),
                        }
                    }
                    Some(("ask", slot)) => {
                        if let Ok(slot) = slot.parse() {
                            look(&world).asked.push(slot);
                        }
                    }
                    _ if line == "ready" => look(&world).ready = true,
                    _ => {}
                }
                world.1.notify_all();
            }
        });
        Ok(())
    }
}

impl Drop for Containers {
    fn drop(&mut self) {
        self.end();
    }
}

fn master(size: Size, dir: &Path, attempt: u32) -> anyhow::Result<(Child, ChildStdin)> {
    let mut child = Process::new(std::env::current_exe()?)
        .arg("master")
        .arg(dir)
        .args([attempt, size.trainers, size.pservers, size.tasks].map(|n| n.to_string()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let stdin = child.stdin.take().context("a pipe")?;
    Ok((child, stdin))
}

fn hooks(
    environment: &ContainerEnvironment,
    world: &World,
    commands: &Sender<(Member, Command)>,
) -> Hooks {
    let (member, host) = (environment.member, environment.host.clone());
    let container = environment.container.clone();
    let (registered, beaten, commands) = (Arc::clone(world), Arc::clone(world), commands.clone());
    Hooks {
        register: Box::new(move || {
            let seen = look(&registered);
            Some(Report::Register(Box::new(Registration {
                member,
                pid: 1,
                host: host.clone(),
                container: container.clone(),
                endpoints: match member.slot.role {
                    // A port that refuses connections: the probed process is dead.
                    Role::Pserver => vec![([127, 0, 0, 1], 1).into()],
                    Role::Trainer => Vec::new(),
                },
                pserver_state: held(&seen, member),
                trainer_state: busy(&seen, member),
            })))
        }),
        heartbeat: Box::new(move || {
            let seen = look(&beaten);
            HeartbeatStats { epoch: seen.epoch, phase: seen.phase, ..HeartbeatStats::default() }
        }),
        command: Box::new(move |command| {
            let _ending = commands.send((member, command));
        }),
        // The process that would end here is a thread.
        exit: Box::new(|_| {
            loop {
                std::thread::park();
            }
        }),
        read_highest: None,
        install_tokens: None,
        log: LogContext::new(member.slot),
    }
}

fn held(seen: &Seen, member: Member) -> Option<PserverState> {
    let shards = seen.shards.get(&member.slot)?;
    let state = |shard: &ShardId| ShardState {
        shard: *shard,
        phase: seen.phase,
        step: Step(0),
        ended: false,
        counted: None,
        tasks: Vec::new(),
        done: TaskSet::default(),
        replica: ReplicaState::ALONE,
    };
    Some(PserverState {
        epoch: seen.epoch,
        cut: CutId::default(),
        done: seen.done_before.clone(),
        shards: shards.iter().map(state).collect(),
    })
}

fn busy(seen: &Seen, member: Member) -> Option<TrainerState> {
    let tasks = seen.tasks.get(&member.slot)?;
    let position = |grant: &TaskGrant| TaskPosition {
        task: grant.task,
        attempt: grant.attempt,
        step: grant.start,
    };
    Some(TrainerState {
        epoch: seen.epoch,
        phase: seen.phase,
        cut: CutId::default(),
        tasks: tasks.iter().map(position).collect(),
        lanes: Vec::new(),
    })
}

/// Answers every command at once.
fn answer_for_all(
    ordered: Receiver<(Member, Command)>,
    world: World,
    agents: Arc<Mutex<BTreeMap<Member, (Agent, Reporter)>>>,
) {
    std::thread::spawn(move || {
        while let Ok((member, command)) = ordered.recv() {
            let reports = obey(&mut look(&world), member, command);
            world.1.notify_all();
            let agents = agents.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((_, reporter)) = agents.get(&member) {
                for report in reports {
                    reporter.send(report);
                }
            }
        }
    });
}

/// A file of one byte and its sidecar: a checkpoint is committed only if they are there.
fn save(staging: &str, shard: ShardId) -> anyhow::Result<ShardFile> {
    const CONTENT: &[u8] = b"0";
    let uuid = uuid::Uuid::new_v4();
    let file = ShardFile::name(shard, uuid);
    let md5 = Md5(md5::Md5::digest(CONTENT).into());
    let dir = StorageUrl::parse(staging)?;
    let dir = Path::new(dir.path().as_str());
    std::fs::write(dir.join(&file), CONTENT)?;
    std::fs::write(dir.join(sidecar_name(&file)), sidecar_line(md5, &file))?;
    let bytes = CONTENT.len() as u64;
    Ok(ShardFile { shard, uuid, file, md5, bytes, at_ms: 0, sha256: None, copies: Vec::new() })
}

fn obey(seen: &mut Seen, member: Member, command: Command) -> Vec<Report> {
    match command {
        Command::Welcome(_) => {
            seen.welcomed += 1;
            Vec::new()
        }
        Command::Pserver(PserverCommand::LoadShards(LoadShards {
            epoch, shards, phase, ..
        })) => {
            if epoch > seen.epoch {
                // Back to the checkpoint from before the first step.
                seen.done.clear();
                seen.tasks.clear();
            }
            (seen.epoch, seen.phase) = (epoch.max(seen.epoch), phase.no);
            seen.shards.insert(member.slot, shards);
            vec![Report::Pserver(PserverReport::ShardsReady {
                epoch,
                from_memory: 0,
                from_storage: 0,
                loaded: Vec::new(),
            })]
        }
        Command::Pserver(PserverCommand::Cut(TakeCut { cut, epoch, staging, .. })) => {
            let shards = seen.shards.get(&member.slot).cloned().unwrap_or_default();
            let mut reports = vec![Report::Pserver(PserverReport::CutArmed { cut, epoch })];
            for shard in shards {
                reports.push(Report::Shard {
                    epoch,
                    report: ShardReport::SnapshotTaken { cut, shard, step: Step(0) },
                });
                reports.push(match save(&staging, shard) {
                    Ok(file) => Report::Pserver(PserverReport::Saved {
                        cut,
                        epoch,
                        file,
                        tables: Vec::new(),
                    }),
                    Err(error) => Report::Pserver(PserverReport::SaveFailed {
                        cut,
                        epoch,
                        shard,
                        failure: Failure::new(ErrorClass::Unreachable, error.to_string()),
                    }),
                });
            }
            reports
        }
        Command::Pserver(PserverCommand::Begin(BeginPhase { epoch, phase })) => {
            vec![Report::Pserver(PserverReport::Begun { epoch, phase: phase.no })]
        }
        Command::Trainer(TrainerCommand::Work { epoch, phase, .. }) => {
            (seen.epoch, seen.phase) = (epoch, phase.no);
            seen.working.insert(member.slot);
            seen.tasks.entry(member.slot).or_default();
            Vec::new()
        }
        Command::Trainer(TrainerCommand::Tasks { epoch, phase, tasks }) if epoch == seen.epoch => {
            let held = seen.tasks.entry(member.slot).or_default();
            for grant in tasks {
                if !held.iter().any(|other| other.task == grant.task) {
                    held.push(grant);
                }
            }
            if !seen.finishing {
                return Vec::new();
            }
            let mut reports = Vec::new();
            for grant in std::mem::take(held) {
                if seen.done.len() >= seen.target {
                    held.push(grant);
                    continue;
                }
                seen.done.insert(grant.task);
                reports.push(Report::Trainer(TrainerReport::TaskFinished {
                    epoch,
                    phase,
                    cut: CutId::default(),
                    task: grant.task,
                    attempt: grant.attempt,
                    metrics: Box::new(TaskMetrics {
                        rows: 1_000,
                        loss_sum: 500.0,
                        ..TaskMetrics::default()
                    }),
                }));
            }
            reports
        }
        _ => Vec::new(),
    }
}
