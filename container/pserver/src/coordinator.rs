//! Turns commands of the ApplicationMaster into commands for data threads and workers, and their answers into reports.
//!
//! It waits on one queue and handles every input at once: nothing here blocks for long. Commands for all data threads are
//! numbered, and reported when the last thread has answered ([`DataThreads`]).

mod loading;
mod refills;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, RecvTimeoutError};
use heddle_agent::{AgentExit, LogContext};
use heddle_protocol::control::{
    BeginPhase, Command, EndCut, OrderedFault, PserverCommand, PserverReport, Report, ShardCommand,
    ShardReport, TakeCut,
};
use heddle_protocol::exit_code::ContainerExitCode;
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::{CutId, Epoch, ShardId, Step};
use heddle_self_faults::Slowness;
use heddle_shard::LocalReport;
use heddle_telemetry::descriptors::Limit;

use crate::current_cut::{CopySnapshot, CopySnapshots, CurrentCut};
use crate::data_threads::{AnsweredCommand, DataThreads};
use crate::job::PserverJob;
use crate::layout::Moment;
use crate::message::{CoordinatorInput, DataAnswer, DataCommand, DataReport, DataThreadHandle};
use crate::save::SaveJob;
use crate::saved_shard::SavedShard;
use crate::status::PserverStatus;
use crate::workers::{WorkerJob, Workers};
use loading::ShardLoading;

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
    saver_slowness: Slowness,
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
            saver_slowness: Slowness::default(),
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
                        self.send(PserverReport::Saved { cut, epoch, file, tables })
                    }
                    Ok(None) => {
                        tracing::info!(%cut, %shard, "shard_save_abandoned");
                        let own = self.cut.as_ref();
                        if let Some(report) = own.and_then(|own| own.abandoned(cut, epoch, shard)) {
                            self.send(report);
                        }
                    }
                    Err(failure) => {
                        self.send(PserverReport::SaveFailed { cut, epoch, shard, failure });
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
                let limits = job.replication;
                self.threads.broadcast(|| DataCommand::Replication(limits));
                self.set_job(job);
            }
            Command::Pserver(command) => self.pserver_command(command),
            Command::Shards(command) => {
                if let ShardCommand::CutEnd(EndCut { cut, committed }) = command {
                    tracing::info!(%cut, committed, "cut_ended");
                    self.cut.take_if(|own| own.cut == cut);
                }
                // To all threads: a copy may be filled on another thread than its primary's. Each leaves what is not of its
                // shards.
                let command = Arc::new(command);
                self.threads.broadcast(|| DataCommand::Shards(Arc::clone(&command)));
            }
            Command::Fault(fault) => self.fault(fault),
            // The agent carries out its commands itself.
            other => tracing::debug!(?other, "command_ignored"),
        }
    }

    fn pserver_command(&mut self, command: PserverCommand) {
        match command {
            PserverCommand::LoadShards(command) => self.load_shards(command),
            PserverCommand::Begin(command) => {
                let BeginPhase { epoch, phase } = command;
                tracing::info!(%epoch, phase = %phase.no, "phase_begun");
                let report = PserverReport::Begun { epoch, phase: phase.no };
                self.threads.ask(report, None, |ask| DataCommand::Begin { ask, command });
            }
            PserverCommand::Cut(command) => self.begin_cut(command),
        }
    }

    /// Brings the fault that an operator ordered upon the data threads. The control thread has done what is left out here.
    fn fault(&self, fault: OrderedFault) {
        match fault {
            OrderedFault::Hang { ms } => self.threads.send(0, DataCommand::Hang { ms }),
            OrderedFault::Drop => self.threads.broadcast(|| DataCommand::Drop),
            OrderedFault::SlowDisk { factor, ms } => {
                tracing::warn!(factor, ms, "savers_slowed_by_order");
                self.saver_slowness.set(factor, ms);
            }
            OrderedFault::Kill
            | OrderedFault::Pause { .. }
            | OrderedFault::Slow { .. }
            | OrderedFault::Corrupt { .. }
            | OrderedFault::Cut { .. } => {}
        }
    }

    fn data_report(&mut self, report: DataReport) {
        match report {
            DataReport::Held { thread, epoch, missing } => self.held(thread, epoch, missing),
            DataReport::Installed { epoch, shard, result } => self.installed(epoch, shard, result),
            DataReport::Answered(answer) => self.answered(answer),
            DataReport::Report { epoch, report } => self.report(epoch, report),
            DataReport::Local { thread, epoch, report } => {
                self.local_report(thread, epoch, report);
            }
        }
    }

    fn answered(&mut self, answer: DataAnswer) {
        let Some(AnsweredCommand { report, cut }) = self.threads.answered(answer) else {
            return;
        };
        if let Some(report) = report {
            self.send(report);
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
        let report = PserverReport::CutArmed { cut, epoch };
        let command = Arc::new(command);
        self.threads
            .ask(report, Some(cut), |ask| DataCommand::Cut { ask, command: Arc::clone(&command) });
    }

    /// A shard reports: the ApplicationMaster gets it as it is. Reports of a cut follow the report that all threads have it.
    fn report(&mut self, epoch: Epoch, report: ShardReport) {
        if let Some(own) = self.cut.as_mut().filter(|own| report.cut() == Some(own.cut))
            && let Some(early) = &mut own.early
        {
            return early.push((epoch, report));
        }
        log(epoch, &report);
        if let ShardReport::SnapshotTaken { shard, cut, step } = report {
            self.save(cut, epoch, shard, step);
        }
        self.send(Report::Shard { epoch, report });
    }

    /// A shard of this thread reports what concerns the process alone.
    fn local_report(&mut self, thread: usize, epoch: Epoch, report: LocalReport) {
        match report {
            LocalReport::FillOrdered { shard, order } => {
                self.fill_ordered(thread, epoch, shard, order);
            }
            LocalReport::CopyLeft { shard } => self.copy_left(thread, epoch, shard),
            LocalReport::CopySnapped { shard, cut, step } => {
                self.copies.insert(shard, CopySnapshot { cut, epoch, step });
                self.save_copies();
            }
            LocalReport::TableFull { shard, table, rows } => {
                let text = self.job.as_ref().map(|job| job.table_full(shard, table, rows));
                let failure = Failure::new(ErrorClass::Training, text.unwrap_or_default());
                self.send(Report::Fatal { failure });
            }
        }
    }

    fn send(&self, report: impl Into<Report>) {
        (self.send_report)(report.into());
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
            initial: own.initial,
            thread: thread.clone(),
            digest: job.digest,
            bandwidth: job.bandwidth.clone(),
            slowness: self.saver_slowness.clone(),
        };
        self.busy += 1;
        self.workers.give(WorkerJob::Save(Box::new(job)));
    }
}

/// Logs what a shard reports about its copies, and aborted cuts.
fn log(epoch: Epoch, report: &ShardReport) {
    match report {
        ShardReport::ViewTaken { shard, term, version } => {
            tracing::info!(%epoch, %shard, %term, %version, "view_taken");
        }
        ShardReport::Lagging { shard, member, .. } => {
            tracing::info!(%epoch, %shard, %member, "backup_lags");
        }
        ShardReport::InSync { shard, member, .. } => {
            tracing::info!(%epoch, %shard, %member, "backup_filled");
        }
        ShardReport::Ahead { shard, member, .. } => {
            tracing::info!(%epoch, %shard, %member, "copy_is_ahead");
        }
        ShardReport::Drained { shard, number, .. } => {
            tracing::info!(%epoch, %shard, number, "shard_drained");
        }
        ShardReport::CutAborted { shard, cut, reason, .. } => {
            tracing::info!(%cut, %shard, reason, "cut_aborted");
        }
        _ => {}
    }
}
