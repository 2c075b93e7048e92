//! A data thread: one event loop that owns some shards and all their sockets.
//!
//! Everything from the socket to the table and back happens on this thread, one frame at a time: no lock, no hand-off, no
//! copy of values besides the kernel's. Commands come over a bounded channel with a wake-up; answers and reports go to the
//! coordinator over another. The thread waits for neither.

mod connection;
mod handshake;
mod peer_dial;
mod peer_stream;
mod peer_streams;
mod pending_handshakes;
mod receive_buffer;
mod reply_buffer;
mod step_times;
mod thread;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use crossbeam::channel::Receiver;
use heddle_channel::PeerTimeout;
use heddle_fail_points::fail_point;
use heddle_protocol::job_spec::PortRange;
use heddle_telemetry::descriptors::Limit;
use socket2::{Domain, Socket, Type};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::LocalSet;

use crate::message::DataCommand;
use pending_handshakes::PendingHandshakes;
use thread::DataThread;
pub(crate) use thread::DataThreadSetup;

/// How often the deadline of a cut that holds frames is checked. A tenth of a second does not matter to a limit of ten
/// seconds.
const TICK: Duration = Duration::from_millis(100);

/// How often an idle thread takes a turn, which shows that it runs.
const TURN: Duration = Duration::from_secs(1);

/// Runs the thread until its commands end.
///
/// # Errors
/// The system cannot create an event loop.
pub(crate) fn run(setup: DataThreadSetup) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    setup.listener.set_nonblocking(true)?;
    let thread = Rc::new(DataThread::new(&setup));
    let DataThreadSetup { listener, commands, wake, timeout, .. } = setup;
    let handshakes = Rc::new(PendingHandshakes::within(Limit::now()));
    LocalSet::new().block_on(&runtime, async move {
        let listener = TcpListener::from_std(listener)?;
        tokio::task::spawn_local(accept(Rc::clone(&thread), handshakes, listener, timeout));
        follow_commands(&thread, &commands, &wake).await;
        Ok(())
    })
}

async fn accept(
    thread: Rc<DataThread>,
    handshakes: Rc<PendingHandshakes>,
    listener: TcpListener,
    timeout: PeerTimeout,
) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let Some(handshake) = handshakes.enter(peer.ip()).await else {
                    tracing::debug!(%peer, "data_connection_refused");
                    continue;
                };
                let thread = Rc::clone(&thread);
                tokio::task::spawn_local(async move {
                    let served = connection::serve(&thread, stream, handshake, timeout).await;
                    if let Err(error) = served {
                        tracing::debug!(%peer, %error, "data_connection_closed");
                    }
                });
            }
            Err(error) => {
                // Most likely out of descriptors. Open connections continue, and one may close soon.
                tracing::warn!(%error, "data_connection_not_accepted");
                tokio::time::sleep(TICK).await;
            }
        }
    }
}

async fn follow_commands(thread: &Rc<DataThread>, commands: &Receiver<DataCommand>, wake: &Notify) {
    use crossbeam::channel::TryRecvError;
    loop {
        fail_point!("data-turn");
        thread.turn();
        match commands.try_recv() {
            Ok(command) => {
                thread.command(command);
                peer_stream::follow_views(thread);
                thread.tick();
                // Frames are served between two pieces of a snapshot.
                tokio::task::yield_now().await;
            }
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {
                let has_deadline = thread.shards.borrow().deadline().is_some();
                let wait = if has_deadline { TICK } else { TURN };
                if tokio::time::timeout(wait, wake.notified()).await.is_err() && has_deadline {
                    thread.tick();
                }
            }
        }
    }
}

/// Binds one listener for each data thread, on `ports` if there are any.
///
/// # Errors
/// No port is free.
pub(crate) fn bind(
    host: IpAddr,
    ports: Option<PortRange>,
    threads: usize,
) -> io::Result<Vec<std::net::TcpListener>> {
    let mut candidates = ports.map(PortRange::ports);
    let mut listeners = Vec::new();
    while listeners.len() < threads {
        let port = match &mut candidates {
            None => 0,
            Some(ports) => ports.next().ok_or_else(|| {
                let text =
                    format!("fewer than {threads} ports of network.ports are free on {host}");
                io::Error::new(io::ErrorKind::AddrInUse, text)
            })?,
        };
        match listen(SocketAddr::new(host, port)) {
            Ok(listener) => listeners.push(listener),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && port != 0 => {}
            Err(error) => return Err(error),
        }
    }
    Ok(listeners)
}

fn listen(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    // A replacement must get the port of its predecessor, whose connections may linger.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    // The maximum number of trainers; the kernel may have a lower limit.
    socket.listen(4096)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use crossbeam::channel::{RecvTimeoutError, bounded, unbounded};
    use heddle_protocol::control::{
        CutAt, LoadShards, Phase, ShardCommand, ShardReport, Sharing, TakeCut,
    };
    use heddle_protocol::handshake::{Mechanism, Secret};
    use heddle_protocol::ids::{
        CutId, Epoch, Generation, Incarnation, Member, PhaseNo, RunId, ShardId, Slot, Step,
    };
    use heddle_shard::{Shard, ShardConfig, SparseLimits};

    use std::sync::Arc;
    use std::time::Instant;

    use super::*;
    use crate::message::{CoordinatorInput, DataReport};

    /// A saver that requests piece after piece keeps the queue of commands full. The cut is aborted ten seconds after it
    /// began, because a barrier is missing.
    #[test]
    fn cut_is_aborted_while_commands_never_stop() {
        let epoch = Epoch::first(Generation(1));
        let (commands, queue) = bounded(64);
        let (reports, received) = unbounded();
        let mut listeners = bind(IpAddr::from([127, 0, 0, 1]), None, 1).expect("a port");
        let wake = Arc::new(Notify::new());
        let setup = DataThreadSetup {
            index: 0,
            listener: listeners.remove(0),
            run: RunId(uuid::Uuid::from_u128(1)),
            member: Member { slot: Slot::pserver(0), incarnation: Incarnation(1) },
            secret: Secret::from_hex(&"01".repeat(32)).expect("64 digits"),
            mechanism: Mechanism::Hmac,
            timeout: PeerTimeout::default(),
            commands: queue,
            wake: Arc::clone(&wake),
            reports,
            counters: Arc::default(),
        };
        let thread = std::thread::spawn(move || run(setup));
        let give = |command| {
            let given = commands.send_timeout(command, Duration::from_secs(20));
            assert!(given.is_ok(), "the thread takes commands");
            wake.notify_one();
        };
        let phase = Phase { no: PhaseNo(0), sharing: Sharing::Queue };
        let shards = vec![ShardId(0)];
        let command = LoadShards {
            epoch,
            phase,
            step: Step(0),
            shards: shards.clone(),
            base: None,
            lost: None,
            views: Vec::new(),
        };
        give(DataCommand::LoadShards { command: Arc::new(command), shards });
        let config = ShardConfig {
            shard: ShardId(0),
            shards: 1,
            tables: Vec::new(),
            sparse: SparseLimits::default(),
            seed: 0,
            training_from: PhaseNo(0),
            copy_bytes_max: 0,
            early_bytes_max: 0,
            waiting_bytes_max: 0,
            fill_values: 1 << 16,
        };
        let shard = Box::new(Shard::new(&config));
        give(DataCommand::Install { epoch, shard });
        let silent = Member { slot: Slot::trainer(0), incarnation: Incarnation(1) };
        give(DataCommand::Shards(Arc::new(ShardCommand::Members { trainers: vec![silent] })));
        let command = TakeCut {
            cut: CutId { generation: Generation(1), number: 1 },
            epoch,
            phase: PhaseNo(0),
            at: CutAt::Barriers(vec![silent]),
            staging: String::new(),
            copies: Vec::new(),
            initial: false,
            last: false,
        };
        give(DataCommand::Cut { ask: 1, command: Arc::new(command) });
        let limit = Instant::now() + Duration::from_secs(40);
        let aborted = loop {
            for _ in 0..64 {
                let (reply, _) = bounded(1);
                give(DataCommand::State { reply });
            }
            match received.recv_timeout(Duration::ZERO) {
                Ok(CoordinatorInput::Data(DataReport::Report { report, .. })) => {
                    break Some(report);
                }
                Ok(_) | Err(RecvTimeoutError::Timeout) if Instant::now() < limit => {}
                _ => break None,
            }
        };
        assert!(matches!(aborted, Some(ShardReport::CutAborted { .. })), "{aborted:?}");
        drop(commands);
        wake.notify_one();
        let ended = thread.join().expect("no panic");
        assert!(ended.is_ok(), "{ended:?}");
    }
}
