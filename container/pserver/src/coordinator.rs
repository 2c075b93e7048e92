//! The one place where commands of the ApplicationMaster become commands to data threads and workers,
//! and their answers become reports.
//!
//! It waits on one queue, and every input is dealt with at once: nothing here blocks for long. What
//! concerns all data threads is numbered, and reported when the last of them has answered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, RecvTimeoutError};
use heddle_agent::Exit;
use heddle_protocol::control::{Base, Command, CutAt, Phase, Up};
use heddle_protocol::ids::{CutId, Epoch, Generation, PhaseNo, ShardId, Step};
use heddle_shard::{HostError, Report, Shard};

use crate::command::{Answer, DataThread, FromData, Input, ToData};
use crate::job::Job;
use crate::layout::Moment;
use crate::load::{LoadError, LoadJob};
use crate::save::SaveJob;
use crate::workers::{self, Workers, chain};

/// After being told to stop, how long savers may take to end.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// Sends a report to the ApplicationMaster.
pub(crate) type Tell = Box<dyn Fn(Up)>;

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
        Epoch {
            generation: Generation((packed >> 32) as u32),
            count: packed as u32,
        }
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
    outcome: Option<Up>,
}

struct Asked {
    threads: usize,
    report: Option<Up>,
    /// The cut, if it was one.
    cut: Option<CutId>,
}

struct Cut {
    cut: CutId,
    phase: PhaseNo,
    staging: String,
    /// Reports that came before all threads had answered.
    early: Option<Vec<(Epoch, Report)>>,
}

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
    pub(crate) fn run(mut self, inputs: &Receiver<Input>) -> Exit {
        let exit = self.obey(inputs);
        // A data thread ends when it looks for commands and nobody can send any.
        for DataThread { commands, wake, .. } in self.threads {
            drop(commands);
            wake.notify_one();
        }
        exit
    }

    fn obey(&mut self, inputs: &Receiver<Input>) -> Exit {
        let exit = loop {
            match inputs.recv() {
                Ok(Input::Exit(exit)) => break exit,
                Ok(input) => self.on(input),
                Err(_) => return Exit::Stopped("all senders are gone".to_owned()),
            }
        };
        if let Exit::Stopped(_) = exit {
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
            Input::Saved {
                cut,
                epoch,
                shard,
                result,
            } => {
                self.busy -= 1;
                match result {
                    Ok(Some(file)) => (self.tell)(Up::Saved { cut, epoch, file }),
                    Ok(None) => tracing::info!(%cut, %shard, "saving ended with its cut"),
                    Err(error) => {
                        tracing::warn!(%cut, %shard, error, "shard not saved");
                        (self.tell)(Up::SaveFailed {
                            cut,
                            epoch,
                            shard,
                            error,
                        });
                    }
                }
            }
            Input::Loaded {
                epoch,
                shard,
                result,
            } => {
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
                let job = Job::new(&welcome);
                self.shown
                    .memory_bytes
                    .store(job.memory_bytes, Ordering::Relaxed);
                self.set_job(job);
            }
            Command::Hold {
                epoch,
                shards,
                base,
                phase,
                step,
            } => self.hold(epoch, shards, base, phase, step),
            Command::Begin { epoch, phase } => {
                let report = Up::Begun {
                    epoch,
                    phase: phase.no,
                };
                self.ask(report, None, |ask| ToData::Begin { ask, epoch, phase });
            }
            Command::Members { trainers } => {
                self.broadcast(|| ToData::Members {
                    trainers: trainers.clone(),
                });
            }
            Command::Cut {
                cut,
                epoch,
                phase,
                at,
                staging,
            } => self.begin_cut(cut, epoch, phase, &at, staging),
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
            FromData::Held {
                thread,
                epoch,
                missing,
            } => self.held(thread, epoch, missing),
            FromData::Installed {
                epoch,
                shard,
                result,
            } => self.installed(epoch, shard, result),
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
    fn ask(&mut self, report: Up, cut: Option<CutId>, command: impl Fn(u64) -> ToData) {
        self.asks += 1;
        let ask = self.asks;
        self.asked.insert(
            ask,
            Asked {
                threads: self.threads.len(),
                report: Some(report),
                cut,
            },
        );
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

/// Holding.
impl Coordinator {
    fn hold(
        &mut self,
        epoch: Epoch,
        mut shards: Vec<ShardId>,
        base: Option<Base>,
        phase: Phase,
        step: Step,
    ) {
        if epoch < self.epoch {
            return;
        }
        if epoch == self.epoch {
            // Being in it already is all that is asked for; an answer that is not ready comes by itself.
            if let Some(outcome) = self.hold.as_ref().and_then(|hold| hold.outcome.clone()) {
                (self.tell)(outcome);
            }
            return;
        }
        tracing::info!(%epoch, shards = shards.len(), base = ?base.as_ref().map(|base| base.cut), "holding");
        self.epoch = epoch;
        self.shown.set_epoch(epoch);
        self.cut = None;
        shards.sort_unstable();
        shards.dedup();
        // In turn, in the order of their numbers: the ApplicationMaster places them by the same rule.
        let threads = self.threads.len();
        self.owners = shards.iter().copied().zip((0..threads).cycle()).collect();
        for thread in 0..threads {
            let shards = self
                .owners
                .iter()
                .filter(|(_, owner)| **owner == thread)
                .map(|(shard, _)| *shard)
                .collect();
            let base = base.as_ref().map(|base| base.cut);
            self.send(
                thread,
                ToData::Hold {
                    epoch,
                    phase,
                    step,
                    shards,
                    base,
                },
            );
        }
        self.hold = Some(Hold {
            started: Instant::now(),
            missing: shards.iter().copied().collect(),
            shards,
            base,
            threads: (0..threads).collect(),
            from_storage: 0,
            outcome: None,
        });
    }

    fn held(&mut self, thread: usize, epoch: Epoch, missing: Result<Vec<ShardId>, HostError>) {
        let Some(hold) = self.hold.as_mut().filter(|_| epoch == self.epoch) else {
            return;
        };
        hold.threads.remove(&thread);
        let missing = match missing {
            Ok(missing) => missing,
            Err(error) => return self.hold_failed(true, &chain(&error)),
        };
        let owners = &self.owners;
        hold.missing
            .retain(|shard| owners.get(shard) != Some(&thread) || missing.contains(shard));
        let (here, base) = (hold.shards.len(), hold.base.clone());
        let Some(job) = &self.job else {
            return self.hold_failed(false, "told to hold shards before the job was known");
        };
        for shard in missing {
            let config = job.shard(shard, here);
            let from = match &base {
                None => None,
                Some(base) => match base.files.get(&shard) {
                    Some(file) => Some((base.dir.clone(), file.clone())),
                    None => {
                        let error = LoadError::NoFile {
                            dir: base.dir.clone(),
                            shard,
                        };
                        return self.hold_failed(false, &error.to_string());
                    }
                },
            };
            self.busy += 1;
            self.workers.give(workers::Job::Load(Box::new(LoadJob {
                epoch,
                config,
                from,
            })));
        }
        self.holding();
    }

    fn loaded(&mut self, epoch: Epoch, shard: ShardId, result: Result<Box<Shard>, LoadError>) {
        let (Some(hold), true) = (&mut self.hold, epoch == self.epoch) else {
            return;
        };
        match result {
            Ok(loaded) => {
                hold.from_storage += u32::from(hold.base.is_some());
                if let Some(&thread) = self.owners.get(&shard) {
                    self.send(
                        thread,
                        ToData::Install {
                            epoch,
                            shard: loaded,
                        },
                    );
                }
            }
            Err(error) => self.hold_failed(error.is_corrupt(), &chain(&error)),
        }
    }

    fn installed(&mut self, epoch: Epoch, shard: ShardId, result: Result<(), HostError>) {
        let Some(hold) = self.hold.as_mut().filter(|_| epoch == self.epoch) else {
            return;
        };
        match result {
            Ok(()) => {
                hold.missing.remove(&shard);
                self.holding();
            }
            Err(error) => self.hold_failed(true, &chain(&error)),
        }
    }

    /// Reports once everything is here.
    fn holding(&mut self) {
        let Some(hold) = &mut self.hold else { return };
        if hold.outcome.is_some() || !hold.missing.is_empty() || !hold.threads.is_empty() {
            return;
        }
        let total = u32::try_from(hold.shards.len()).unwrap_or(u32::MAX);
        let from_memory = if hold.base.is_some() {
            total - hold.from_storage
        } else {
            0
        };
        let load_ms = u64::try_from(hold.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let report = Up::Holding {
            epoch: self.epoch,
            from_memory,
            from_storage: hold.from_storage,
            load_ms,
        };
        hold.outcome = Some(report.clone());
        tracing::info!(epoch = %self.epoch, from_memory, hold.from_storage, load_ms, "held");
        (self.tell)(report);
    }

    fn hold_failed(&mut self, corrupt: bool, error: &str) {
        let Some(hold) = self.hold.as_mut().filter(|hold| hold.outcome.is_none()) else {
            return;
        };
        let report = Up::HoldFailed {
            epoch: self.epoch,
            corrupt,
            error: error.to_owned(),
        };
        hold.outcome = Some(report.clone());
        tracing::error!(epoch = %self.epoch, corrupt, error, "not held");
        (self.tell)(report);
    }
}

/// Cuts.
impl Coordinator {
    fn begin_cut(&mut self, cut: CutId, epoch: Epoch, phase: PhaseNo, at: &CutAt, staging: String) {
        let known = self.cut.as_ref().is_some_and(|own| own.cut >= cut);
        if !known {
            self.cut = Some(Cut {
                cut,
                phase,
                staging,
                early: Some(Vec::new()),
            });
        }
        // Told again, data threads only answer.
        let report = Up::CutArmed { cut, epoch };
        self.ask(report, Some(cut), |ask| ToData::Cut {
            ask,
            cut,
            epoch,
            phase,
            at: at.clone(),
        });
    }

    fn report(&mut self, epoch: Epoch, report: Report) {
        let of = match &report {
            Report::PhaseEnded { shard, phase, step } => {
                let (shard, phase, step) = (*shard, *phase, *step);
                return (self.tell)(Up::PhaseEnded {
                    epoch,
                    phase,
                    shard,
                    step,
                });
            }
            Report::Snapped { cut, .. } | Report::LetGo { cut, .. } => *cut,
        };
        // All must know of a cut before any says how far it is.
        if let Some(own) = self.cut.as_mut().filter(|own| own.cut == of)
            && let Some(early) = &mut own.early
        {
            early.push((epoch, report));
            return;
        }
        match report {
            Report::Snapped { shard, cut, step } => {
                (self.tell)(Up::Snapped {
                    cut,
                    epoch,
                    shard,
                    step,
                });
                self.save(cut, epoch, shard, step);
            }
            Report::LetGo { shard, cut, reason } => {
                tracing::info!(%cut, %shard, reason, "let go of a cut");
                (self.tell)(Up::LetGo {
                    cut,
                    epoch,
                    shard,
                    reason,
                });
            }
            Report::PhaseEnded { .. } => {}
        }
    }

    fn save(&mut self, cut: CutId, epoch: Epoch, shard: ShardId, step: Step) {
        let (Some(own), Some(job)) = (self.cut.as_ref().filter(|own| own.cut == cut), &self.job)
        else {
            return;
        };
        let Some(thread) = self
            .owners
            .get(&shard)
            .and_then(|&owner| self.threads.get(owner))
        else {
            return;
        };
        let moment = Moment {
            run: job.run,
            cut,
            epoch,
            phase: own.phase,
            step,
        };
        let config = job.shard(shard, self.owners.len());
        let staging = own.staging.clone();
        let job = SaveJob {
            moment,
            config,
            staging,
            thread: thread.clone(),
        };
        self.busy += 1;
        self.workers.give(workers::Job::Save(Box::new(job)));
    }
}
