//! The one place where commands of the ApplicationMaster become commands to data threads and workers,
//! and their answers become reports.
//!
//! It waits on one queue, and every input is dealt with at once: nothing here blocks for long. What
//! concerns all data threads is numbered, and reported when the last of them has answered.

mod cuts;
mod hold;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, RecvTimeoutError};
use heddle_agent::AgentExit;
use heddle_protocol::control::{Base, Command, Report};
use heddle_protocol::ids::{CutId, Epoch, Generation, PhaseNo, ShardId};
use heddle_shard::ShardReport;
use heddle_telemetry::descriptors::Limit;

use crate::command::{Answer, DataThread, FromData, Input, ToData};
use crate::job::Job;
use crate::workers::Workers;

/// After being told to stop, how long savers may take to end.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// Sends a report to the ApplicationMaster.
pub(crate) type Tell = Box<dyn Fn(Report)>;

/// The state behind the queue.
pub(crate) struct Coordinator {
    threads: Vec<DataThread>,
    workers: Workers,
    tell: Tell,
    shown: Arc<Shown>,
    job: Option<Job>,
    epoch: Epoch,
    hold: Option<Hold>,
    /// Which data thread has a shard.
    owners: BTreeMap<ShardId, usize>,
    /// What all threads were asked: who is still to answer, and what to report then.
    asked: BTreeMap<u64, Asked>,
    asks: u64,
    cut: Option<Cut>,
    /// Shards being saved or loaded.
    busy: usize,
}

/// What the control thread shows in heartbeats.
#[derive(Default)]
pub(crate) struct Shown {
    epoch: AtomicU64,
    /// Memory of the spec, bytes; 0 before it is known.
    memory_bytes: AtomicU64,
}

impl Shown {
    fn set_epoch(&self, epoch: Epoch) {
        let packed = (u64::from(epoch.generation.0) << 32) | u64::from(epoch.count);
        self.epoch.store(packed, Ordering::Relaxed);
    }

    pub(crate) fn epoch(&self) -> Epoch {
        let packed = self.epoch.load(Ordering::Relaxed);
        Epoch { generation: Generation((packed >> 32) as u32), count: packed as u32 }
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory_bytes.load(Ordering::Relaxed)
    }
}

/// A return to a checkpoint, or the first start.
struct Hold {
    started: Instant,
    shards: Vec<ShardId>,
    base: Option<Base>,
    /// Data threads that have not answered.
    threads: BTreeSet<usize>,
    /// Shards that are not there yet.
    missing: BTreeSet<ShardId>,
    from_storage: u32,
    /// What was reported when it was over, or nothing yet.
    outcome: Option<Report>,
}

struct Asked {
    threads: usize,
    report: Option<Report>,
    /// The cut, if it was one.
    cut: Option<CutId>,
}

struct Cut {
    cut: CutId,
    phase: PhaseNo,
    staging: String,
    /// Reports that came before all threads had answered.
    early: Option<Vec<(Epoch, ShardReport)>>,
}

/// Exit code of a container whose node allows too few open files: a fault of its own place, as one of the program.
const TOO_FEW_FILES: i32 = 10;

impl Coordinator {
    pub(crate) fn new(
        threads: Vec<DataThread>,
        workers: Workers,
        tell: Tell,
        shown: Arc<Shown>,
    ) -> Self {
        Self {
            threads,
            workers,
            tell,
            shown,
            job: None,
            epoch: Epoch::default(),
            hold: None,
            owners: BTreeMap::new(),
            asked: BTreeMap::new(),
            asks: 0,
            cut: None,
            busy: 0,
        }
    }

    /// What a welcome would say.
    pub(crate) fn set_job(&mut self, job: Job) {
        self.job = Some(job);
    }

    /// Runs until the agent says that the process is to end.
    pub(crate) fn run(mut self, inputs: &Receiver<Input>) -> AgentExit {
        let exit = self.obey(inputs);
        // A data thread ends when it looks for commands and nobody can send any.
        for DataThread { commands, wake, .. } in self.threads {
            drop(commands);
            wake.notify_one();
        }
        exit
    }

    fn obey(&mut self, inputs: &Receiver<Input>) -> AgentExit {
        let exit = loop {
            match inputs.recv() {
                Ok(Input::Exit(exit)) => break exit,
                Ok(input) => self.on(input),
                Err(_) => return AgentExit::Stopped("all senders are gone".to_owned()),
            }
        };
        if let AgentExit::Stopped(_) = exit {
            // Savers end what they have begun; a checkpoint may still want it.
            let limit = Instant::now() + STOP_LIMIT;
            while self.busy > 0 {
                match inputs.recv_deadline(limit) {
                    Ok(input) => self.on(input),
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
                }
            }
        }
        exit
    }

    fn on(&mut self, input: Input) {
        match input {
            Input::Command(command) => self.command(*command),
            Input::Data(answer) => self.answer(answer),
            Input::Saved { cut, epoch, shard, result } => {
                self.busy -= 1;
                match result {
                    Ok(Some(file)) => (self.tell)(Report::Saved { cut, epoch, file }),
                    Ok(None) => tracing::info!(%cut, %shard, "saving ended with its cut"),
                    Err(failure) => {
                        tracing::warn!(%cut, %shard, error = failure.text, "shard not saved");
                        (self.tell)(Report::SaveFailed { cut, epoch, shard, failure });
                    }
                }
            }
            Input::Loaded { epoch, shard, result } => {
                self.busy -= 1;
                self.loaded(epoch, shard, result);
            }
            // Told once already.
            Input::Exit(_) => {}
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Welcome(welcome) => {
                let checked = Job::check_files(&welcome, self.threads.len(), Limit::now());
                if let Err(error) = checked {
                    tracing::error!(%error, "this container cannot serve the job");
                    // Another node may allow more. The last line of stderr is what people are shown.
                    eprintln!("{error}");
                    std::process::exit(TOO_FEW_FILES);
                }
                let job = Job::new(&welcome);
                self.shown.memory_bytes.store(job.memory_bytes, Ordering::Relaxed);
                self.set_job(job);
            }
            Command::LoadShards { epoch, shards, base, phase, step } => {
                self.hold(epoch, shards, base, phase, step)
            }
            Command::Begin { epoch, phase } => {
                let report = Report::Begun { epoch, phase: phase.no };
                self.ask(report, None, |ask| ToData::Begin { ask, epoch, phase });
            }
            Command::Members { trainers } => {
                self.broadcast(|| ToData::Members { trainers: trainers.clone() });
            }
            Command::Cut { cut, epoch, phase, at, staging } => {
                self.begin_cut(cut, epoch, phase, &at, staging)
            }
            Command::CutEnd { cut, committed } => {
                self.broadcast(|| ToData::CutEnd { cut, committed });
                if self.cut.as_ref().is_some_and(|own| own.cut == cut) {
                    self.cut = None;
                }
            }
            // The agent's, and those that trainers get.
            Command::Refused { .. }
            | Command::Stop { .. }
            | Command::Work { .. }
            | Command::Lanes { .. }
            | Command::Tasks { .. }
            | Command::Barrier { .. }
            | Command::Drain
            | Command::Export { .. } => tracing::debug!("a command that is not for pservers"),
        }
    }

    fn answer(&mut self, answer: FromData) {
        match answer {
            FromData::Held { thread, epoch, missing } => self.held(thread, epoch, missing),
            FromData::Installed { epoch, shard, result } => self.installed(epoch, shard, result),
            FromData::Answered(answer) => self.answered(answer),
            FromData::Report { epoch, report } => self.report(epoch, report),
        }
    }

    fn send(&self, thread: usize, command: ToData) {
        let sent = self.threads.get(thread).map(|thread| thread.send(command));
        if !matches!(sent, Some(Ok(()))) {
            tracing::error!(thread, "a data thread has ended");
        }
    }

    fn broadcast(&self, command: impl Fn() -> ToData) {
        for thread in 0..self.threads.len() {
            self.send(thread, command());
        }
    }

    /// Asks all data threads for something, to report when all have done it.
    fn ask(&mut self, report: Report, cut: Option<CutId>, command: impl Fn(u64) -> ToData) {
        self.asks += 1;
        let ask = self.asks;
        self.asked.insert(ask, Asked { threads: self.threads.len(), report: Some(report), cut });
        self.broadcast(|| command(ask));
    }

    fn answered(&mut self, Answer { ask, result }: Answer) {
        let Some(asked) = self.asked.get_mut(&ask) else {
            return;
        };
        asked.threads -= 1;
        if let Err(error) = result {
            tracing::info!(%error, "a command came too late");
            asked.report = None;
        }
        if asked.threads > 0 {
            return;
        }
        let Some(Asked { report, cut, .. }) = self.asked.remove(&ask) else {
            return;
        };
        if let Some(report) = report {
            (self.tell)(report);
        }
        if let Some(own) = self.cut.as_mut().filter(|own| Some(own.cut) == cut) {
            for (epoch, report) in own.early.take().unwrap_or_default() {
                self.report(epoch, report);
            }
        }
    }
}
