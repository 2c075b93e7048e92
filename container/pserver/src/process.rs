//! The process: its threads, and what it shows of itself to the ApplicationMaster.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::channel::{Sender, bounded};
use heddle_agent::{Agent, AgentExit, Environment, Hooks};
use heddle_protocol::control::{HeartbeatStats, PserverState, Report};
use heddle_protocol::handshake::Secret;
use heddle_protocol::ids::{Epoch, RunId};
use heddle_protocol::spec::PortRange;
use heddle_storage::chain;
use tokio::sync::Notify;

use crate::command::{DataThread, Input, ThreadState, ToData};
use crate::coordinator::{Coordinator, Shown};
use crate::data;
use crate::hook::Hook;
use crate::workers::Workers;

/// Commands that may wait for a data thread: savers ask for a few pieces each, the coordinator for little.
const COMMANDS_MAX: usize = 256;
/// Inputs that may wait for the coordinator: a handful per shard and cut, and it never waits itself.
pub(crate) const INPUTS_MAX: usize = 65_536;
/// How long a registration waits for a data thread to say where it stands. One that is applying a
/// step over a large shard takes a good part of a second; one that takes longer is asked again on the next connection.
const STATE_LIMIT: Duration = Duration::from_secs(3);
/// An address of the ApplicationMaster is some hundred bytes.
const ADDRESS_BYTES_MAX: usize = 4096;

/// Where and how wide to serve.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Data threads, at least 1: the vcores of the container.
    pub threads: usize,
    /// Address to bind and to advertise.
    pub host: IpAddr,
    /// Ports to take; none: any.
    pub ports: Option<PortRange>,
}

impl Default for Options {
    /// One thread, loopback, any port.
    fn default() -> Self {
        Self { threads: 1, host: IpAddr::V4(Ipv4Addr::LOCALHOST), ports: None }
    }
}

/// Runs a pserver until it is told to end or left alone. Call it once, from the main thread.
///
/// # Errors
/// No port is free, or the system gives no threads.
pub fn run(environment: Environment, options: Options) -> io::Result<AgentExit> {
    let (inputs, queue) = bounded(INPUTS_MAX);
    let hook = Hook::from_process(environment.member);
    let (threads, endpoints) =
        start_threads(environment.run, &environment.secret, options, hook, &inputs)?;
    hook.tell(&threads);
    let workers = Workers::start(&inputs)?;
    let shown = Arc::new(Shown::default());
    let hooks = hooks(&environment, endpoints, threads.clone(), Arc::clone(&shown), inputs);
    let reporter = Agent::start(environment, hooks)?.reporter();
    Ok(Coordinator::new(threads, workers, Box::new(move |report| reporter.send(report)), shown)
        .run(&queue))
}

/// Binds and starts the data threads; tells how to reach each, by command and by socket.
pub(crate) fn start_threads(
    run: RunId,
    secret: &Secret,
    options: Options,
    hook: Hook,
    answers: &Sender<Input>,
) -> io::Result<(Vec<DataThread>, Vec<SocketAddr>)> {
    let mut threads = Vec::new();
    let mut endpoints = Vec::new();
    let listeners = data::bind(options.host, options.ports, options.threads.max(1))?;
    for (index, listener) in listeners.into_iter().enumerate() {
        endpoints.push(listener.local_addr()?);
        threads.push(start_thread((index, listener), run, secret, hook, answers)?);
    }
    Ok((threads, endpoints))
}

fn start_thread(
    (index, listener): (usize, TcpListener),
    run: RunId,
    secret: &Secret,
    hook: Hook,
    answers: &Sender<Input>,
) -> io::Result<DataThread> {
    let (commands, queue) = bounded(COMMANDS_MAX);
    let thread = DataThread { commands, wake: Arc::new(Notify::new()), counters: Arc::default() };
    let setup = data::Setup {
        index,
        listener,
        run,
        secret: secret.clone(),
        commands: queue,
        wake: Arc::clone(&thread.wake),
        answers: answers.clone(),
        counters: Arc::clone(&thread.counters),
        hook,
    };
    std::thread::Builder::new().name(format!("data-{index}")).spawn(move || {
        let _whole = Whole;
        if let Err(error) = data::run(setup) {
            // Without it the shards cannot be served: better gone and replaced than half alive.
            tracing::error!(index, %error, "a data thread ended");
            std::process::exit(10);
        }
    })?;
    Ok(thread)
}

/// Ends the process if its thread panics: without that thread the rest would wait for ever, and a container
/// that is gone is replaced.
pub(crate) struct Whole;

impl Drop for Whole {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("a thread of the pserver panicked");
            std::process::exit(10);
        }
    }
}

fn hooks(
    environment: &Environment,
    endpoints: Vec<SocketAddr>,
    threads: Vec<DataThread>,
    shown: Arc<Shown>,
    inputs: Sender<Input>,
) -> Hooks {
    let (of_register, exits) = (threads.clone(), inputs.clone());
    let (member, host) = (environment.member, environment.host.clone());
    let container = environment.container.clone();
    let give = |inputs: &Sender<Input>, input| {
        if inputs.try_send(input).is_err() {
            tracing::error!("the coordinator takes no inputs any more");
            std::process::exit(10);
        }
    };
    Hooks {
        register: Box::new(move || {
            let held = held(&of_register, STATE_LIMIT).ok()?;
            Some(Report::Register {
                member,
                pid: std::process::id(),
                host: host.clone(),
                container: container.clone(),
                endpoints: endpoints.clone(),
                held,
                busy: None,
            })
        }),
        beat: Box::new(move || beat(&threads, &shown)),
        command: Box::new(move |command| give(&inputs, Input::Command(Box::new(command)))),
        exit: Box::new(move |exit| give(&exits, Input::Exit(exit))),
        read_highest: Some(read_highest()),
    }
}

/// Reads the address of the highest attempt of the ApplicationMaster from where each writes its own.
fn read_highest() -> heddle_agent::ReadHighest {
    Arc::new(|dir| {
        Box::pin(async move {
            let found = heddle_storage::read_highest(&dir, "json", ADDRESS_BYTES_MAX).await;
            let text = found.map_err(|error| chain(&error))?;
            Ok(text.map(|text| text.to_vec()))
        })
    })
}

/// A data thread did not answer in time.
#[derive(Debug, PartialEq, Eq)]
struct NotInTime;

/// What this pserver holds: nothing before every data thread is in an epoch.
///
/// # Errors
/// [`NotInTime`]. A registration without what is held would cost a rollback, so it waits for another connection.
fn held(threads: &[DataThread], limit: Duration) -> Result<Option<PserverState>, NotInTime> {
    let limit = Instant::now() + limit;
    let mut states: Vec<ThreadState> = Vec::new();
    for thread in threads {
        let (reply, answer) = bounded(1);
        let asked = thread.commands.send_deadline(ToData::State { reply }, limit);
        asked.map_err(|_| NotInTime)?;
        thread.wake.notify_one();
        states.push(answer.recv_deadline(limit).map_err(|_| NotInTime)?);
    }
    // In the middle of a rollback they differ; the lower one asks for another.
    let epoch = states.iter().map(|state| state.epoch).min();
    let cut = states.iter().map(|state| state.cut).max();
    let (Some(epoch), Some(cut)) = (epoch.filter(|epoch| *epoch != Epoch::default()), cut) else {
        return Ok(None);
    };
    let mut shards: Vec<_> = states.into_iter().flat_map(|state| state.shards).collect();
    shards.sort_by_key(|state| state.shard);
    Ok(Some(PserverState::new(epoch, cut, shards)))
}

fn beat(threads: &[DataThread], shown: &Shown) -> HeartbeatStats {
    let mut beat = HeartbeatStats {
        rss_bytes: resident_bytes().unwrap_or(0),
        epoch: shown.epoch(),
        ..HeartbeatStats::default()
    };
    let mut lowest = None;
    for thread in threads {
        let (pushes, refused, position) = thread.counters.read();
        beat.pushes += pushes;
        beat.refused += refused;
        lowest = [lowest, position].into_iter().flatten().min();
    }
    (beat.phase, beat.step) = lowest.unwrap_or_default();
    let limit = shown.memory_bytes();
    if limit > 0 && beat.rss_bytes > limit {
        tracing::warn!(resident = beat.rss_bytes, limit, "more memory in use than pservers.memory");
    }
    beat
}

/// Memory of this process that is resident, from `VmRSS` in /proc/self/status (proc(5)).
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that applies a step over a large shard holds its shards all the same.
    #[test]
    fn a_data_thread_that_is_busy_is_not_one_that_holds_nothing() {
        let (commands, queue) = bounded(COMMANDS_MAX);
        let thread =
            DataThread { commands, wake: Arc::new(Notify::new()), counters: Arc::default() };
        let soon = Duration::from_millis(20);
        assert_eq!(held(std::slice::from_ref(&thread), soon), Err(NotInTime));
        let answering = std::thread::spawn(move || {
            while let Ok(command) = queue.recv() {
                if let ToData::State { reply } = command {
                    let state = ThreadState {
                        epoch: Epoch::default(),
                        cut: heddle_protocol::ids::CutId::default(),
                        shards: Vec::new(),
                    };
                    // The first question was given up.
                    let _late = reply.send(state);
                }
            }
        });
        assert_eq!(held(&[thread], Duration::from_secs(20)), Ok(None));
        answering.join().expect("it ends with its commands");
    }

    #[test]
    fn this_process_uses_memory() {
        assert!(resident_bytes().is_some_and(|bytes| bytes > 100_000));
    }
}
