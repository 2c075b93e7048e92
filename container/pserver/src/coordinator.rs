//! Turns commands of the ApplicationMaster into commands for data threads and workers, and their answers into reports.
//!
//! It waits on one queue and handles every input at once: nothing here blocks for long. Commands for all data threads are
//! numbered, and reported when the last thread has answered ([`DataThreads`]).

mod refills;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, RecvTimeoutError};
use heddle_agent::{AgentExit, LogContext};
use heddle_protocol::control::{
    Base, BeginPhase, Command, EndCut, LoadShards, OrderedFault, Report, TakeCut,
};
use heddle_protocol::exit_code::ContainerExitCode;
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::{CutId, Epoch, ShardId, Step};
use heddle_shard::{ShardReport, ShardSetError};
use heddle_storage::chain;
use heddle_telemetry::descriptors::Limit;

use crate::current_cut::{CopySnapshot, CopySnapshots, CurrentCut};
use crate::data_threads::{AnsweredCommand, DataThreads};
use crate::job::PserverJob;
use crate::layout::Moment;
use crate::load::{LoadJob, LoadedShard};
use crate::load_error::{LoadError, class_of};
use crate::message::{CoordinatorInput, DataAnswer, DataCommand, DataReport, DataThreadHandle};
use crate::save::SaveJob;
use crate::saved_shard::SavedShard;
use crate::status::PserverStatus;
use crate::workers::{WorkerJob, Workers};

/// How long savers may take to finish after a stop.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// Sends a report to the ApplicationMaster.
pub(crate) type ReportSender = Box<dyn Fn(Report)>;

/// The state behind the queue.
pub(crate) struct Coordinator {
    threads: DataThreads,
    workers: Workers,
    send_report: ReportSender,
    status: Arc<PserverStatus>,
    job: Option<PserverJob>,
    epoch: Epoch,
    loading: Option<ShardLoading>,
    /// The data thread of each shard.
    owners: BTreeMap<ShardId, usize>,
    cut: Option<CurrentCut>,
    copies: CopySnapshots,
    /// Number of shards that are being saved or loaded.
    busy: usize,
}

/// The loading of the shards for an epoch: a return to a checkpoint, or the first start.
struct ShardLoading {
    started: Instant,
    shards: Vec<ShardId>,
    base: Option<Base>,
    /// Data threads without an answer.
    threads: BTreeSet<usize>,
    /// Shards that are not installed yet.
    missing: BTreeSet<ShardId>,
    from_storage: u32,
    /// The final report, if it was sent.
    outcome: Option<Report>,
}

impl Coordinator {
    pub(crate) fn new(
        threads: Vec<DataThreadHandle>,
        workers: Workers,
        send_report: ReportSender,
        status: Arc<PserverStatus>,
    ) -> Self {
        Self {
            threads: DataThreads::new(threads),
            workers,
            send_report,
            status,
            job: None,
            epoch: Epoch::default(),
            loading: None,
            owners: BTreeMap::new(),
            cut: None,
            copies: CopySnapshots::new(),
            busy: 0,
        }
    }

    /// Sets the job without a welcome.
    pub(crate) fn set_job(&mut self, job: PserverJob) {
        self.job = Some(job);
    }

    /// Runs until the agent ends the process.
    pub(crate) fn run(
        mut self,
        inputs: &Receiver<CoordinatorInput>,
        log: &LogContext,
    ) -> AgentExit {
        let exit = self.handle_inputs(inputs, log);
        self.threads.end();
        exit
    }

    fn handle_inputs(
        &mut self,
        inputs: &Receiver<CoordinatorInput>,
        log: &LogContext,
    ) -> AgentExit {
        let exit = loop {
            match inputs.recv() {
                Ok(CoordinatorInput::Exit(exit)) => break exit,
                Ok(input) => {
                    let _entered = log.span().entered();
                    self.on(input);
                }
                Err(_) => return AgentExit::Stopped("all senders are gone".to_owned()),
            }
        };
        if let AgentExit::Stopped(_) = exit {
            // Savers finish: a checkpoint may still need their files.
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

    fn on(&mut self, input: CoordinatorInput) {
        match input {
            CoordinatorInput::Command(command) => self.command(*command),
            CoordinatorInput::Data(report) => self.data_report(report),
            CoordinatorInput::Saved { cut, epoch, shard, result } => {
                self.busy -= 1;
                match result {
                    Ok(Some(SavedShard { file, tables })) => {
                        tracing::info!(%cut, %shard, bytes = file.bytes, "shard_saved");
                        (self.send_report)(Report::Saved { cut, epoch, file, tables })
                    }
                    Ok(None) => {
                        tracing::info!(%cut, %shard, "shard_save_abandoned");
                        let own = self.cut.as_ref();
                        if let Some(report) = own.and_then(|own| own.abandoned(cut, epoch, shard)) {
                            (self.send_report)(report);
                        }
                    }
                    Err(failure) => {
                        (self.send_report)(Report::SaveFailed { cut, epoch, shard, failure });
                    }
                }
            }
            CoordinatorInput::Loaded { epoch, shard, result } => {
                self.busy -= 1;
                self.loaded(epoch, shard, result);
            }
            CoordinatorInput::MadeEmpty { epoch, order, shard } => {
                self.made_empty(epoch, order, shard);
            }
            // The exit is known.
            CoordinatorInput::Exit(_) => {}
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Welcome(welcome) => {
                let checked = PserverJob::check_files(&welcome, self.threads.len(), Limit::now());
                if let Err(error) = checked {
                    tracing::error!(%error, "open_files_limit_too_low");
                    // Another node may allow more. The job shows the last line of stderr to its user.
                    eprintln!("{error}");
                    std::process::exit(ContainerExitCode::Failed.number());
                }
                let job = PserverJob::new(&welcome);
                self.status.set_memory_bytes(job.memory_bytes);
                self.set_job(job);
            }
            Command::LoadShards(command) => self.load_shards(command),
            Command::Begin(command) => {
                let BeginPhase { epoch, phase } = command;
                tracing::info!(%epoch, phase = %phase.no, "phase_begun");
                let report = Report::Begun { epoch, phase: phase.no };
                self.threads.ask(report, None, |ask| DataCommand::Begin { ask, command });
            }
            Command::Members { trainers } => {
                self.threads.broadcast(|| DataCommand::Members { trainers: trainers.clone() });
            }
            Command::Cut(command) => self.begin_cut(command),
            Command::CutEnd(end) => {
                let EndCut { cut, committed } = end;
                tracing::info!(%cut, committed, "cut_ended");
                self.threads.broadcast(|| DataCommand::CutEnd(end));
                if self.cut.as_ref().is_some_and(|own| own.cut == cut) {
                    self.cut = None;
                }
            }
            Command::Views(command) => {
                let command = Arc::new(command);
                self.threads.broadcast(|| DataCommand::Views(Arc::clone(&command)));
            }
            Command::Fault(fault) => self.fault(fault),
            // Commands for the agent and for trainers.
            Command::Refused { .. }
            | Command::Stop { .. }
            | Command::Work { .. }
            | Command::Lanes { .. }
            | Command::Tasks { .. }
            | Command::Withdraw { .. }
            | Command::Barrier { .. }
            | Command::Drain
            | Command::Tokens(_)
            | Command::Export { .. } => {
                tracing::debug!("command_ignored")
            }
        }
    }

    /// Brings the fault that an operator ordered upon the data threads. The control thread has done what is left out here.
    fn fault(&self, fault: OrderedFault) {
        match fault {
            OrderedFault::Hang { ms } => self.threads.send(0, DataCommand::Hang { ms }),
            OrderedFault::Drop => self.threads.broadcast(|| DataCommand::Drop),
            OrderedFault::Kill | OrderedFault::Pause { .. } | OrderedFault::Slow { .. } => {}
        }
    }

    fn data_report(&mut self, report: DataReport) {
        match report {
            DataReport::Held { thread, epoch, missing } => self.held(thread, epoch, missing),
            DataReport::Installed { epoch, shard, result } => self.installed(epoch, shard, result),
            DataReport::Answered(answer) => self.answered(answer),
            DataReport::FillOrdered { thread, epoch, shard, order } => {
                self.fill_ordered(thread, (epoch, shard, order));
            }
            DataReport::Report { epoch, report } => self.report(epoch, report),
        }
    }

    fn answered(&mut self, answer: DataAnswer) {
        let Some(AnsweredCommand { report, cut }) = self.threads.answered(answer) else {
            return;
        };
        if let Some(report) = report {
            (self.send_report)(report);
        }
        if let Some(own) = self.cut.as_mut().filter(|own| Some(own.cut) == cut) {
            for (epoch, report) in own.early.take().unwrap_or_default() {
                self.report(epoch, report);
            }
        }
    }

    fn begin_cut(&mut self, command: TakeCut) {
        let (cut, epoch, phase) = (command.cut, command.epoch, command.phase);
        let known = self.cut.as_ref().is_some_and(|own| own.cut >= cut);
        if !known {
            tracing::info!(%cut, %epoch, %phase, "cut_begun");
            self.cut = Some(CurrentCut::new(&command));
        }
        if let Some(own) = self.cut.as_mut().filter(|own| own.cut == cut) {
            own.add_copies(&command);
            self.save_copies();
        }
        // A repeated cut changes nothing in the data threads; they only answer.
        let report = Report::CutArmed { cut, epoch };
        let command = Arc::new(command);
        self.threads
            .ask(report, Some(cut), |ask| DataCommand::Cut { ask, command: Arc::clone(&command) });
    }

    fn report(&mut self, epoch: Epoch, report: ShardReport) {
        let of = match &report {
            ShardReport::PhaseEnded { shard, phase, step } => {
                let (shard, phase, step) = (*shard, *phase, *step);
                return (self.send_report)(Report::PhaseEnded { epoch, phase, shard, step });
            }
            ShardReport::TableFull { shard, table, rows } => {
                let text = self.job.as_ref().map(|job| job.table_full(*shard, *table, *rows));
                let failure = Failure::new(ErrorClass::Training, text.unwrap_or_default());
                return (self.send_report)(Report::Fatal { failure });
            }
            ShardReport::ViewTaken { shard, term, version } => {
                let (shard, term, version) = (*shard, *term, *version);
                tracing::info!(%epoch, %shard, %term, %version, "view_taken");
                return (self.send_report)(Report::ViewTaken { epoch, shard, term, version });
            }
            ShardReport::Lagging { shard, term, member } => {
                let (shard, term, member) = (*shard, *term, *member);
                tracing::info!(%epoch, %shard, %member, "backup_lags");
                return (self.send_report)(Report::Lagging { epoch, shard, term, member });
            }
            ShardReport::CopySnapped { shard, cut, step } => {
                let (shard, cut, step) = (*shard, *cut, *step);
                self.copies.insert(shard, CopySnapshot { cut, epoch, step });
                return self.save_copies();
            }
            ShardReport::InSync { shard, term, member, order } => {
                let (shard, term, member, order) = (*shard, *term, *member, *order);
                tracing::info!(%epoch, %shard, %member, "backup_filled");
                return (self.send_report)(Report::InSync { epoch, shard, term, member, order });
            }
            // Reported by the data thread with its number.
            ShardReport::FillOrdered { .. } => return,
            ShardReport::SnapshotTaken { cut, .. } | ShardReport::CutAborted { cut, .. } => *cut,
        };
        // Reports of a cut follow the report that all threads have it.
        if let Some(own) = self.cut.as_mut().filter(|own| own.cut == of)
            && let Some(early) = &mut own.early
        {
            early.push((epoch, report));
            return;
        }
        match report {
            ShardReport::SnapshotTaken { shard, cut, step } => {
                (self.send_report)(Report::SnapshotTaken { cut, epoch, shard, step });
                self.save(cut, epoch, shard, step);
            }
            ShardReport::CutAborted { shard, cut, step, reason } => {
                tracing::info!(%cut, %shard, reason, "cut_aborted");
                (self.send_report)(Report::CutAborted { cut, epoch, shard, step, reason });
            }
            ShardReport::PhaseEnded { .. }
            | ShardReport::TableFull { .. }
            | ShardReport::ViewTaken { .. }
            | ShardReport::Lagging { .. }
            | ShardReport::CopySnapped { .. }
            | ShardReport::InSync { .. }
            | ShardReport::FillOrdered { .. } => {}
        }
    }

    /// Saves the copies that this pserver was ordered to save and that are snapped.
    fn save_copies(&mut self) {
        let due = self.cut.as_ref().map(|own| own.take_due(&mut self.copies));
        for (shard, CopySnapshot { cut, epoch, step }) in due.unwrap_or_default() {
            self.save(cut, epoch, shard, step);
        }
    }

    fn save(&mut self, cut: CutId, epoch: Epoch, shard: ShardId, step: Step) {
        let (Some(own), Some(job)) = (self.cut.as_ref().filter(|own| own.cut == cut), &self.job)
        else {
            return;
        };
        let Some(thread) = self.owners.get(&shard).and_then(|&owner| self.threads.get(owner))
        else {
            return;
        };
        let moment = Moment { run: job.run, cut, epoch, phase: own.phase, step };
        let config = job.shard(shard, self.owners.len());
        let staging = own.staging.clone();
        let job = SaveJob {
            moment,
            config,
            staging,
            thread: thread.clone(),
            digest: job.digest,
            bandwidth: job.bandwidth.clone(),
            status: Arc::clone(&self.status),
        };
        self.busy += 1;
        self.workers.give(WorkerJob::Save(Box::new(job)));
    }

    fn load_shards(&mut self, command: LoadShards) {
        let epoch = command.epoch;
        if epoch < self.epoch {
            return;
        }
        if epoch == self.epoch {
            // A repeated command. A result that is not known yet is reported later.
            if let Some(outcome) = self.loading.as_ref().and_then(|loading| loading.outcome.clone())
            {
                (self.send_report)(outcome);
            }
            return;
        }
        tracing::info!(%epoch, shards = command.shards.len(), base = ?command.base.as_ref().map(|base| base.cut), "shard_load_started");
        self.epoch = epoch;
        self.status.set_epoch(epoch);
        self.cut = None;
        self.copies.clear();
        let mut shards = command.shards.clone();
        shards.sort_unstable();
        shards.dedup();
        let command = Arc::new(command);
        // Round-robin in the order of their numbers: the ApplicationMaster computes their addresses by the same rule.
        let threads = self.threads.len();
        self.owners = shards.iter().copied().zip((0..threads).cycle()).collect();
        for thread in 0..threads {
            let shards = self
                .owners
                .iter()
                .filter(|(_, owner)| **owner == thread)
                .map(|(shard, _)| *shard)
                .collect();
            let command = Arc::clone(&command);
            self.threads.send(thread, DataCommand::LoadShards { command, shards });
        }
        self.loading = Some(ShardLoading {
            started: Instant::now(),
            missing: shards.iter().copied().collect(),
            shards,
            base: command.base.clone(),
            threads: (0..threads).collect(),
            from_storage: 0,
            outcome: None,
        });
    }

    fn held(&mut self, thread: usize, epoch: Epoch, missing: Result<Vec<ShardId>, ShardSetError>) {
        let Some(loading) = self.loading.as_mut().filter(|_| epoch == self.epoch) else {
            return;
        };
        loading.threads.remove(&thread);
        let missing = match missing {
            Ok(missing) => missing,
            Err(error) => return self.load_failed(class_of(&error), &chain(&error)),
        };
        let owners = &self.owners;
        loading
            .missing
            .retain(|shard| owners.get(shard) != Some(&thread) || missing.contains(shard));
        let (here, base) = (loading.shards.len(), loading.base.clone());
        let Some(job) = &self.job else {
            return self.load_failed(
                ErrorClass::Internal,
                "the command to load shards came before the job",
            );
        };
        for shard in missing {
            let config = job.shard(shard, here);
            let from = match &base {
                None => job.initial_values(),
                Some(base) => match base.files.get(&shard) {
                    Some(file) => job.shard_sources(base, file),
                    None => {
                        let error = LoadError::NoFile { dir: base.dir.clone(), shard };
                        return self.load_failed(ErrorClass::Internal, &error.to_string());
                    }
                },
            };
            self.busy += 1;
            self.workers.give(WorkerJob::Load(Box::new(LoadJob { epoch, config, from })));
        }
        self.report_ready();
    }

    fn loaded(&mut self, epoch: Epoch, shard: ShardId, result: Result<LoadedShard, LoadError>) {
        let (Some(loading), true) = (&mut self.loading, epoch == self.epoch) else {
            return;
        };
        match result {
            Ok(LoadedShard { shard: loaded, passed_over: passed }) => {
                loading.from_storage += u32::from(loading.base.is_some());
                if !passed.is_empty() {
                    (self.send_report)(Report::CopiesPassedOver { epoch, shard, passed });
                }
                if let Some(&thread) = self.owners.get(&shard) {
                    self.threads.send(thread, DataCommand::Install { epoch, shard: loaded });
                }
            }
            Err(error) => self.load_failed(error.class(), &chain(&error)),
        }
    }

    fn installed(&mut self, epoch: Epoch, shard: ShardId, result: Result<(), ShardSetError>) {
        let Some(loading) = self.loading.as_mut().filter(|_| epoch == self.epoch) else {
            return;
        };
        match result {
            Ok(()) => {
                loading.missing.remove(&shard);
                self.report_ready();
            }
            Err(error) => self.load_failed(class_of(&error), &chain(&error)),
        }
    }

    /// Reports once all shards are installed.
    fn report_ready(&mut self) {
        let Some(loading) = &mut self.loading else { return };
        if loading.outcome.is_some() || !loading.missing.is_empty() || !loading.threads.is_empty() {
            return;
        }
        let total = u32::try_from(loading.shards.len()).unwrap_or(u32::MAX);
        let from_memory = if loading.base.is_some() { total - loading.from_storage } else { 0 };
        let load_ms = u64::try_from(loading.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let report = Report::ShardsReady {
            epoch: self.epoch,
            from_memory,
            from_storage: loading.from_storage,
        };
        loading.outcome = Some(report.clone());
        tracing::info!(epoch = %self.epoch, shards = total, from_memory, from_storage = loading.from_storage, duration_ms = load_ms, "shards_loaded");
        (self.send_report)(report);
    }

    fn load_failed(&mut self, class: ErrorClass, error: &str) {
        let Some(loading) = self.loading.as_mut().filter(|loading| loading.outcome.is_none())
        else {
            return;
        };
        let report = Report::LoadFailed { epoch: self.epoch, failure: Failure::new(class, error) };
        loading.outcome = Some(report.clone());
        tracing::error!(epoch = %self.epoch, ?class, error, "shards_not_loaded");
        (self.send_report)(report);
    }
}
