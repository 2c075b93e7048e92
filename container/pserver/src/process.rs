//! The process: its threads, its registration and its heartbeats.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::channel::{Sender, bounded};
use heddle_agent::{Agent, AgentExit, ContainerEnvironment, Hooks, LogContext};
use heddle_channel::PeerTimeout;
use heddle_fail_points::fail_value;
use heddle_protocol::control::{
    HeartbeatStats, PserverState, Registration, ReplicationLag, Report, SparseTableSize,
};
use heddle_protocol::exit_code::ContainerExitCode;
use heddle_protocol::handshake::{Mechanism, Secret};
use heddle_protocol::ids::{Epoch, Member, RunId};
use heddle_protocol::job_spec::PortRange;
use heddle_protocol::process_figures::ProcessFigure;
use heddle_storage::chain;
use tokio::sync::Notify;

use crate::coordinator::Coordinator;
use crate::data;
use crate::exit_on_panic::ExitOnPanic;
use crate::message::{CoordinatorInput, DataCommand, DataThreadHandle, ThreadState};
use crate::status::PserverStatus;
use crate::workers::Workers;

/// Commands that may wait for a data thread: a few pieces for each saver, few commands of the coordinator.
const COMMANDS_MAX: usize = 256;
/// Inputs that may wait for the coordinator: a few per shard and cut; the coordinator never waits itself.
pub(crate) const INPUTS_MAX: usize = 65_536;
/// How long a registration waits for the state of a data thread. Applying a step over a large shard takes up to a second.
/// After the limit, the next connection asks again.
const STATE_LIMIT: Duration = Duration::from_secs(3);
/// The address of the ApplicationMaster has some hundred bytes.
const ADDRESS_BYTES_MAX: usize = 4096;

/// Threads and addresses of the server.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Data threads, at least 1: the container's vcores.
    pub threads: usize,
    /// Address to bind and to report.
    pub host: IpAddr,
    /// Ports to bind; none: any port.
    pub ports: Option<PortRange>,
    /// How data connections are secured, at least.
    pub mechanism: Mechanism,
    /// When data connections to trainers out of reach close.
    pub timeout: PeerTimeout,
}

impl Default for Options {
    /// One thread, loopback, any port, plain bytes.
    fn default() -> Self {
        Self {
            threads: 1,
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            ports: None,
            mechanism: Mechanism::Hmac,
            timeout: PeerTimeout::default(),
        }
    }
}

/// Runs a pserver until its job ends or it is orphaned. Call it once, from the main thread.
///
/// # Errors
/// No port is free, or the system cannot create a thread.
pub fn run(environment: ContainerEnvironment, options: Options) -> io::Result<AgentExit> {
    let (inputs, queue) = bounded(INPUTS_MAX);
    let log = LogContext::new(environment.member.slot);
    let _entered = log.span().entered();
    let member = environment.member;
    heddle_fail_points::setup(&[
        ("incarnation", member.incarnation.0),
        ("slot", member.slot.index),
    ]);
    let (threads, endpoints) =
        start_threads(environment.run, member, &environment.secret, options, &inputs)?;
    if fail_value!("log-pushes").is_some() {
        log_pushes(threads.clone());
    }
    let workers = Workers::start(&inputs)?;
    let status = Arc::new(PserverStatus::default());
    let hooks = hooks(&environment, &log, endpoints, threads.clone(), Arc::clone(&status), inputs);
    let reporter = Agent::start(environment, hooks)?.reporter();
    Ok(Coordinator::new(threads, workers, Box::new(move |report| reporter.send(report)), status)
        .run(&queue, &log))
}

/// Logs the number of applied pushes fifty times a second, for tests that watch a pserver without an ApplicationMaster.
fn log_pushes(threads: Vec<DataThreadHandle>) {
    std::thread::spawn(move || {
        loop {
            let counted = threads.iter().map(|thread| thread.counters.read().0);
            let pushes: u64 = counted.map(|figures| figures.get(ProcessFigure::Pushes)).sum();
            tracing::info!(pushes, "pushes_counted");
            std::thread::sleep(Duration::from_millis(20));
        }
    });
}

/// Binds and starts the data threads. Returns their handles and addresses.
pub(crate) fn start_threads(
    run: RunId,
    member: Member,
    secret: &Secret,
    options: Options,
    reports: &Sender<CoordinatorInput>,
) -> io::Result<(Vec<DataThreadHandle>, Vec<SocketAddr>)> {
    let mut threads = Vec::new();
    let mut endpoints = Vec::new();
    let listeners = data::bind(options.host, options.ports, options.threads.max(1))?;
    for (index, listener) in listeners.into_iter().enumerate() {
        endpoints.push(listener.local_addr()?);
        threads.push(start_thread(index, listener, run, member, secret, options, reports)?);
    }
    Ok((threads, endpoints))
}

fn start_thread(
    index: usize,
    listener: TcpListener,
    run: RunId,
    member: Member,
    secret: &Secret,
    options: Options,
    reports: &Sender<CoordinatorInput>,
) -> io::Result<DataThreadHandle> {
    let (commands, queue) = bounded(COMMANDS_MAX);
    let thread =
        DataThreadHandle { commands, wake: Arc::new(Notify::new()), counters: Arc::default() };
    let setup = data::DataThreadSetup {
        index,
        listener,
        run,
        member,
        secret: secret.clone(),
        mechanism: options.mechanism,
        timeout: options.timeout,
        commands: queue,
        wake: Arc::clone(&thread.wake),
        reports: reports.clone(),
        counters: Arc::clone(&thread.counters),
    };
    let span = tracing::Span::current();
    std::thread::Builder::new().name(format!("data-{index}")).spawn(move || {
        let _guard = ExitOnPanic;
        let _entered = span.entered();
        if let Err(error) = data::run(setup) {
            // Its shards cannot be served any more. A container that ended is replaced.
            tracing::error!(index, %error, "data_thread_ended");
            std::process::exit(ContainerExitCode::Failed.number());
        }
    })?;
    Ok(thread)
}

fn hooks(
    environment: &ContainerEnvironment,
    log: &LogContext,
    endpoints: Vec<SocketAddr>,
    threads: Vec<DataThreadHandle>,
    status: Arc<PserverStatus>,
    inputs: Sender<CoordinatorInput>,
) -> Hooks {
    let (of_register, exits) = (threads.clone(), inputs.clone());
    let (member, host) = (environment.member, environment.host.clone());
    let container = environment.container.clone();
    let send = |inputs: &Sender<CoordinatorInput>, input| {
        if inputs.try_send(input).is_err() {
            tracing::error!("coordinator_queue_full");
            std::process::exit(ContainerExitCode::Failed.number());
        }
    };
    Hooks {
        register: Box::new(move || {
            let pserver_state = held(&of_register, STATE_LIMIT).ok()?;
            Some(Report::Register(Box::new(Registration {
                member,
                pid: std::process::id(),
                host: host.clone(),
                container: container.clone(),
                endpoints: endpoints.clone(),
                pserver_state,
                trainer_state: None,
            })))
        }),
        heartbeat: Box::new(move || heartbeat(&threads, &status)),
        command: Box::new(move |command| {
            send(&inputs, CoordinatorInput::Command(Box::new(command)))
        }),
        exit: Box::new(move |exit| send(&exits, CoordinatorInput::Exit(exit))),
        read_highest: Some(read_highest()),
        install_tokens: Some(install_tokens()),
        log: log.clone(),
    }
}

/// Reads the address of the ApplicationMaster's highest attempt from the directory where each attempt writes its own.
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

/// A data thread did not answer in time.
#[derive(Debug, PartialEq, Eq)]
struct TimedOut;

/// The state of this pserver's shards; none before every data thread is in an epoch.
///
/// # Errors
/// [`TimedOut`]. A registration without its shards would cause a rollback, so it waits for another connection.
fn held(threads: &[DataThreadHandle], limit: Duration) -> Result<Option<PserverState>, TimedOut> {
    let limit = Instant::now() + limit;
    let mut states: Vec<ThreadState> = Vec::new();
    for thread in threads {
        let (reply, answer) = bounded(1);
        let asked = thread.commands.send_deadline(DataCommand::State { reply }, limit);
        asked.map_err(|_| TimedOut)?;
        thread.wake.notify_one();
        states.push(answer.recv_deadline(limit).map_err(|_| TimedOut)?);
    }
    // During a rollback the epochs differ; the lower one makes the ApplicationMaster send its command again.
    let epoch = states.iter().map(|state| state.epoch).min();
    let cut = states.iter().map(|state| state.cut).max();
    let (Some(epoch), Some(cut)) = (epoch.filter(|epoch| *epoch != Epoch::default()), cut) else {
        return Ok(None);
    };
    let mut shards: Vec<_> = states.into_iter().flat_map(|state| state.shards).collect();
    shards.sort_by_key(|state| state.shard);
    Ok(Some(PserverState::new(epoch, cut, shards)))
}

fn heartbeat(threads: &[DataThreadHandle], status: &PserverStatus) -> HeartbeatStats {
    let mut stats = HeartbeatStats { epoch: status.epoch(), ..HeartbeatStats::default() };
    let (mut lowest, mut lag) = (None, None);
    for thread in threads {
        let (figures, position) = thread.counters.read();
        stats.figures.merge(&figures);
        stats.fills.extend(thread.counters.fills());
        lag = [lag, thread.counters.lag()].into_iter().flatten().reduce(ReplicationLag::max);
        SparseTableSize::add(&mut stats.sparse_tables, &thread.counters.sparse());
        lowest = [lowest, position].into_iter().flatten().min();
    }
    stats.replication_lag = lag.map(Box::new);
    (stats.phase, stats.step) = lowest.unwrap_or_default();
    let turns = threads.iter().enumerate();
    let turns = turns.map(|(index, thread)| (format!("data-{index}"), thread.counters.turn_ms()));
    stats.slow_thread = heddle_agent::slowest(turns);
    let (limit, resident) = (status.memory_bytes(), heddle_agent::resident_bytes());
    stats.figures.set(ProcessFigure::ResidentBytes, resident);
    if limit > 0 && resident > limit {
        tracing::warn!(resident, limit, "memory_limit_exceeded");
    }
    stats
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that applies a step over a large shard still holds its shards.
    #[test]
    fn busy_data_thread_delays_the_registration() {
        let (commands, queue) = bounded(COMMANDS_MAX);
        let thread =
            DataThreadHandle { commands, wake: Arc::new(Notify::new()), counters: Arc::default() };
        let soon = Duration::from_millis(20);
        assert_eq!(held(std::slice::from_ref(&thread), soon), Err(TimedOut));
        let answering = std::thread::spawn(move || {
            while let Ok(command) = queue.recv() {
                if let DataCommand::State { reply } = command {
                    let state = ThreadState {
                        epoch: Epoch::default(),
                        cut: heddle_protocol::ids::CutId::default(),
                        shards: Vec::new(),
                    };
                    // The first request has timed out.
                    let _late = reply.send(state);
                }
            }
        });
        assert_eq!(held(&[thread], Duration::from_secs(20)), Ok(None));
        answering.join().expect("the thread ends with its commands");
    }
}
