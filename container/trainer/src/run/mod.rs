//! The trainer process: control thread, data-plane thread, parser threads, and the training loop between them.

mod command;
mod computing;
mod exports;
mod feeds;
mod pipeline;
mod plane;
mod record_time;
mod reports;
mod status;
mod step_times;
#[cfg(test)]
pub(crate) mod tests;
mod trainer;
mod work;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use crossbeam::channel::{Receiver, bounded, select, unbounded};
use heddle_agent::{
    Agent, AgentExit, AmPlace, ContainerEnvironment, Hooks, LogContext, Reporter, TurnCounter,
};
use heddle_client::layout::Layout;
use heddle_client::machine::ClientEvent;
use heddle_client::shell::{Client, Settings};
use heddle_fail_points::fail_point;
use heddle_protocol::control::{
    Command, ExportOrder, HeartbeatStats, OrderedFault, Registration, Report, Welcome,
};
use heddle_protocol::exit_code::ContainerExitCode;
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::Member;
use heddle_protocol::job_spec::JobSpec;
use heddle_self_faults::Slowness;
use heddle_storage::chain;
use tracing::Span;
use tracing::span::EnteredSpan;

use exports::Exports;
use feeds::Feeds;
pub use plane::DataPlane;

use crate::algorithm::{Algorithm, built_in};
use crate::cache::TaskCache;
use crate::export::{self, ExportError};
use crate::feed::{FeedId, FeedItem};
use crate::input_plan::{self, InputPlanError};
use crate::model_saver::ModelSaver;
use reports::LoopReports;
use status::SharedStatus;
use trainer::Trainer;

/// Capacity of the channel from the feeds to the loop. Each feed has at most four steps, so it is full only with
/// hundreds of lanes; then their threads wait, which is harmless.
const ITEMS_MAX: usize = 1024;
/// Directory, below the logs' directory, for files of malformed records.
const QUARANTINE: &str = "bad-records";
/// Limit of an address file. An address takes some hundred bytes.
const ADDRESS_BYTES_MAX: usize = 4096;

/// Why a trainer could not run. A trainer that runs ends by [`AgentExit`].
#[derive(Debug, thiserror::Error)]
pub enum TrainerError {
    /// Not started by a job.
    #[error(transparent)]
    Environment(#[from] heddle_agent::EnvironmentError),
    /// The system provides no thread or no event queue.
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
    /// The system provided no thread for reading, after retries.
    #[error(
        "cannot start a thread for reading: raise the limit of threads of this node (ulimit -u, pids.max of the cgroup)"
    )]
    NoReader(#[source] std::io::Error),
    /// The tables have no layout, which a checked spec excludes.
    #[error("the job's tables are unsound")]
    Layout(#[from] heddle_client::error::RequestError),
    /// The program of `trainers.command` cannot be started.
    #[error(
        "trainers.command: cannot start {program}: put it among yarn.files and name it ./{program}, or give a path that every node has"
    )]
    Command {
        /// The program.
        program: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The input plan is missing.
    #[error(transparent)]
    Plan(#[from] InputPlanError),
    /// The job needs an algorithm that this program does not have.
    #[error("the job's algorithm is custom: its program must be named in trainers.command")]
    NoAlgorithm,
    /// The program cannot train the job.
    #[error("{0}")]
    Refused(Failure),
}

impl TrainerError {
    /// The failure of the job.
    fn failure(&self) -> Failure {
        match self {
            Self::Refused(failure) => failure.clone(),
            other => Failure::new(ErrorClass::Input, chain(other)),
        }
    }
}

/// Runs a trainer with the built-in algorithms until the job ends it. In a YARN container whose job has
/// `trainers.command`, it runs that program instead. The caller sets up logging.
///
/// The function ends the process (`std::process::exit`) when the ApplicationMaster orders it, or does not respond for the
/// orphan time.
///
/// # Errors
/// See [`TrainerError`].
pub fn run(environment: ContainerEnvironment) -> Result<(), TrainerError> {
    let place = environment.clone();
    run_with(environment, move |spec, _| {
        if let Some((program, arguments)) = command::in_place_of(&place, &spec.trainers.command) {
            let source = command::become_program(&place, program, arguments);
            let program = program.clone();
            return Err(TrainerError::Command { program, source });
        }
        built_in(spec).ok_or(TrainerError::NoAlgorithm)
    })
}

/// The `main` of a custom trainer, as `trainers.command` names it: runs the algorithm that `algorithm` creates
/// for the job. Its failure ends the job.
///
/// ```no_run
/// # use heddle_protocol::{failure::Failure, job_spec::JobSpec};
/// # use heddle_trainer::algorithm::Kmeans as Mine;
/// # fn mine(spec: &JobSpec) -> Result<Mine, Failure> { unimplemented!() }
/// fn main() -> std::process::ExitCode {
///     heddle_trainer::main_with(mine)
/// }
/// ```
pub fn main_with<A: Algorithm + 'static>(
    algorithm: impl FnOnce(&JobSpec) -> Result<A, Failure>,
) -> ExitCode {
    main_with_saver(|spec, _| algorithm(spec))
}

/// [`main_with`] for a program that asks for saves of the model while training goes on.
///
/// ```no_run
/// # use std::time::Duration;
/// # use heddle_trainer::{ModelSaver, algorithm::Kmeans as Mine};
/// # fn mine(saver: ModelSaver) -> Result<Mine, heddle_protocol::failure::Failure> { unimplemented!() }
/// fn main() -> std::process::ExitCode {
///     // The algorithm calls `saver.ask(Duration::from_secs(5))` when it wants the model saved.
///     heddle_trainer::main_with_saver(|_spec, saver| mine(saver))
/// }
/// ```
pub fn main_with_saver<A: Algorithm + 'static>(
    algorithm: impl FnOnce(&JobSpec, ModelSaver) -> Result<A, Failure>,
) -> ExitCode {
    let ran = ContainerEnvironment::from_process()
        .inspect(adopt_tokens)
        .map_err(TrainerError::from)
        .and_then(|environment| {
            run_with(environment, |spec, saver| {
                Ok(Box::new(algorithm(spec, saver).map_err(TrainerError::Refused)?))
            })
        });
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", chain(&error));
            ContainerExitCode::Failed.into()
        }
    }
}

/// In a container of YARN the token file is this program's own.
fn adopt_tokens(environment: &ContainerEnvironment) {
    if let AmPlace::Directory { .. } = environment.am
        && let Err(error) = heddle_storage::adopt_token_file()
    {
        eprintln!("warning: {}", chain(&error));
    }
}

fn run_with(
    environment: ContainerEnvironment,
    algorithm: impl FnOnce(&JobSpec, ModelSaver) -> Result<Box<dyn Algorithm>, TrainerError>,
) -> Result<(), TrainerError> {
    let Member { slot, incarnation } = environment.member;
    heddle_fail_points::setup(&[("incarnation", incarnation.0), ("slot", slot.index)]);
    let status = SharedStatus::default();
    let (orders, ordered) = unbounded();
    let log = LogContext::new(environment.member.slot);
    let (exports, saver) = (Exports::default(), ModelSaver::default());
    let hooks = control_hooks(&environment, &log, &status, &exports, &saver, orders);
    let agent = Agent::start(environment.clone(), hooks).map_err(TrainerError::Thread)?;
    let reporter = agent.reporter();
    saver.start(reporter.clone());

    let Some(welcome) = wait_for_welcome(&ordered) else {
        return Ok(());
    };
    let entered = log.span().entered();
    let algorithm = match algorithm(&welcome.spec, saver) {
        Ok(algorithm) => algorithm,
        Err(error) => {
            reporter.send(Report::Fatal { failure: error.failure() });
            // The ApplicationMaster ends the process when it has received the report.
            while ordered.recv().is_ok() {}
            return Err(error);
        }
    };
    let client = Client::start(Settings {
        layout: Layout::of(&welcome.spec)?,
        shards_move: welcome.spec.pservers.moves_shards(),
        run: welcome.run,
        member: environment.member,
        secret: environment.secret.clone(),
        mechanism: environment.mechanism,
        timeout: environment.timeout,
    })
    .map_err(TrainerError::Thread)?;
    let (items, read) = bounded(ITEMS_MAX);
    let quarantine = heddle_agent::log_dir().unwrap_or_default().join(QUARANTINE);
    let reports = reporter.clone();
    // After the algorithm: another program may replace this process there, and it reads the plan itself.
    let plan = input_plan::read(&welcome.plan)?;
    // In the container's folder of work files.
    let cache = TaskCache::for_job(&welcome.spec, Path::new("."));
    let feeds = Feeds::new(plan, quarantine, status.waits(), cache, items);
    let (turn, slowness) = (status.turn(), status.slowness.clone());
    let reports = LoopReports::new(Box::new(move |report| reports.send(report)));
    let (plane, spec) = (client.handle(), welcome.spec.clone());
    let mut trainer = Trainer::new(spec, algorithm, plane, reports, status, feeds);
    let orders = Orders { environment, log, welcome, reporter, exports, turn, slowness };
    orders.run(&mut trainer, &ordered, client.events(), &read, entered)
}

/// Carries out orders of the ApplicationMaster.
struct Orders {
    environment: ContainerEnvironment,
    log: LogContext,
    welcome: Box<Welcome>,
    reporter: Reporter,
    exports: Exports,
    /// Turns of the training loop.
    turn: Arc<TurnCounter>,
    /// Of the training loop's computations.
    slowness: Slowness,
}

impl Orders {
    /// Waits on all sources and passes their items to the training loop, until the control thread ends. `entered` is the
    /// span of log lines; each command renews it, so steps cost nothing.
    fn run<P: DataPlane>(
        &self,
        trainer: &mut Trainer<P>,
        ordered: &Receiver<Command>,
        events: &Receiver<ClientEvent>,
        read: &Receiver<(FeedId, FeedItem)>,
        mut entered: EnteredSpan,
    ) -> Result<(), TrainerError> {
        loop {
            self.turn.turn();
            if let Some(error) = trainer.no_thread() {
                // A fault of this node: the container ends and is replaced, the job continues.
                return Err(TrainerError::NoReader(error));
            }
            fail_point!("training-loop-turn");
            // Orders first: a new epoch makes the waiting items obsolete.
            while let Ok(command) = ordered.try_recv() {
                entered = self.renewed(entered);
                self.command(trainer, command);
            }
            self.turn.wait();
            select! {
                recv(ordered) -> command => match command {
                    Ok(command) => {
                        entered = self.renewed(entered);
                        self.command(trainer, command)
                    }
                    // The control thread lives as long as the process.
                    Err(_) => return Ok(()),
                },
                recv(events) -> event => match event {
                    Ok(event) => trainer.event(event),
                    Err(_) => return Ok(()),
                },
                recv(read) -> item => if let Ok((feed, item)) = item {
                    trainer.item(feed, item);
                },
            }
        }
    }

    fn renewed(&self, before: EnteredSpan) -> EnteredSpan {
        drop(before);
        self.log.span().entered()
    }

    fn command<P: DataPlane>(&self, trainer: &mut Trainer<P>, command: Command) {
        match command {
            // Once per connection, and always the same value.
            Command::Welcome(_) => {}
            Command::Export(order) => self.export(order),
            Command::Fault(OrderedFault::Cut { pserver, ms }) => trainer.cut(pserver, ms),
            Command::Fault(fault) => self.fault(fault),
            Command::Trainer(command) => trainer.command(command),
            other => tracing::debug!(?other, "command_ignored"),
        }
    }

    /// Brings the fault that an operator ordered upon the training loop. The control thread has done what is left out here.
    fn fault(&self, fault: OrderedFault) {
        match fault {
            OrderedFault::Hang { ms } => {
                // It does not wait for anything: heartbeats show a loop that stands still.
                self.turn.turn();
                tracing::warn!(ms, "hung_by_order");
                std::thread::sleep(Duration::from_millis(ms));
            }
            OrderedFault::Slow { factor, ms } => {
                tracing::warn!(factor, ms, "slowed_by_order");
                self.slowness.set(factor, ms);
            }
            OrderedFault::Kill
            | OrderedFault::Pause { .. }
            | OrderedFault::SlowDisk { .. }
            | OrderedFault::Corrupt { .. }
            | OrderedFault::Cut { .. }
            | OrderedFault::Drop => {}
        }
    }

    /// Starts an export on a thread of its own, unless the order is a repetition.
    fn export(&self, order: ExportOrder) {
        let (spec, member) = (self.welcome.spec.clone(), self.environment.member);
        let reports = self.reporter.clone();
        let Some(run) = self.exports.begin(&order, |report| reports.send(report)) else {
            return;
        };
        let exports = self.exports.clone();
        let span = Span::current();
        let body = move || {
            let _entered = span.entered();
            fail_point!("export-begun", save = order.save.0, lease = order.lease.count);
            let exported = export::export_for(&spec, member, &order, &run.bytes);
            let failure = |error: ExportError| Failure::new(error.class(), chain(&error));
            fail_point!("export-written", save = order.save.0);
            let report = exports.end(&run, exported.map_err(failure));
            report.into_iter().for_each(|report| reports.send(report));
        };
        if let Err(error) = std::thread::Builder::new().name("export".to_owned()).spawn(body) {
            tracing::error!(%error, "export_not_started");
        }
    }
}

fn control_hooks(
    environment: &ContainerEnvironment,
    log: &LogContext,
    status: &SharedStatus,
    exports: &Exports,
    saver: &ModelSaver,
    orders: crossbeam::channel::Sender<Command>,
) -> Hooks {
    let (exports, saver) = (exports.clone(), saver.clone());
    let (member, status_of, figures) = (environment.member, status.clone(), status.clone());
    let (host, container) = (environment.host.clone(), environment.container.clone());
    Hooks {
        register: Box::new(move || {
            Some(Report::Register(Box::new(Registration {
                member,
                pid: std::process::id(),
                host: host.clone(),
                container: container.clone(),
                endpoints: Vec::new(),
                pserver_state: None,
                trainer_state: status_of.lock().trainer_state.clone(),
            })))
        }),
        heartbeat: Box::new(move || HeartbeatStats {
            export: exports.progress().map(Box::new),
            ..figures.heartbeat()
        }),
        command: Box::new(move |command| {
            if let Some(command) = saver.take(command) {
                // The loop has ended only while the process ends.
                let _ = orders.send(command);
            }
        }),
        exit: Box::new(|exit| {
            match &exit {
                AgentExit::Stopped(reason) => tracing::info!(reason, "container_stopped"),
                other => tracing::warn!(reason = %other, "container_ended"),
            }
            heddle_agent::leave(&exit)
        }),
        read_highest: Some(read_highest()),
        install_tokens: Some(install_tokens()),
        log: log.clone(),
    }
}

/// Reads the address of the highest attempt of the ApplicationMaster; each attempt writes its own.
fn read_highest() -> heddle_agent::ReadHighest {
    Arc::new(|dir| {
        Box::pin(async move {
            let found = heddle_storage::read_highest(&dir, "json", ADDRESS_BYTES_MAX).await;
            let text = found.map_err(|error| chain(&error))?;
            Ok(text.map(|text| text.to_vec()))
        })
    })
}

/// Puts new tokens where the next connection to a file system finds them.
fn install_tokens() -> heddle_agent::InstallTokensHook {
    Arc::new(|bytes| heddle_storage::install_tokens(bytes).map_err(|error| chain(&error)))
}

fn wait_for_welcome(ordered: &Receiver<Command>) -> Option<Box<Welcome>> {
    loop {
        match ordered.recv().ok()? {
            Command::Welcome(welcome) => return Some(welcome),
            other => tracing::debug!(?other, "command_ignored"),
        }
    }
}
