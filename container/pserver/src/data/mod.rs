//! A data thread: one event loop that owns some shards and every socket that speaks to them.
//!
//! From the socket to the table and back to the socket everything happens on this thread, one frame
//! at a time: no lock, no hand-off, no copy of values beside the one that the kernel makes. Commands
//! come over a bounded channel with a wake-up; answers and reports go to the coordinator over another.
//! The thread never waits for either.

mod connection;
mod handshake;
mod receive_buffer;
mod reply_buffer;
mod unproven;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, Sender, TrySendError};
use heddle_protocol::handshake::Secret;
use heddle_protocol::ids::RunId;
use heddle_protocol::spec::PortRange;
use heddle_shard::{Conn, Effect, ShardSet};
use heddle_telemetry::descriptors::Limit;
use socket2::{Domain, Socket, Type};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::LocalSet;

use crate::command::{Answer, Counters, FromData, Input, ThreadState, ToData};
use crate::hook::Hook;
use connection::Link;
use unproven::{Place, Unproven};

/// How often a cut that holds frames back is looked at. A tenth of a second more or less does not
/// matter to a limit of ten seconds.
const TICK: Duration = Duration::from_millis(100);

/// What a data thread is given at its start.
pub(crate) struct Setup {
    /// From 0.
    pub(crate) index: usize,
    /// Bound, not yet listening on this thread's event loop.
    pub(crate) listener: std::net::TcpListener,
    pub(crate) run: RunId,
    pub(crate) secret: Secret,
    pub(crate) commands: Receiver<ToData>,
    pub(crate) wake: Arc<Notify>,
    pub(crate) answers: Sender<Input>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) hook: Hook,
}

/// The state that all tasks of the thread share. It is borrowed for one frame or command at a time
/// and never across an await.
pub(crate) struct Thread {
    index: usize,
    run: RunId,
    secret: Secret,
    host: RefCell<ShardSet>,
    links: RefCell<BTreeMap<Conn, Rc<Link>>>,
    effects: RefCell<Vec<Effect>>,
    answers: Sender<Input>,
    counters: Arc<Counters>,
    hook: Hook,
    /// Connections in their handshake.
    unproven: Unproven,
    /// Some connection has a frame that the host would not take.
    blocked: Cell<bool>,
    started: Instant,
}

/// Runs the thread until its commands end.
///
/// # Errors
/// When the system gives no event loop.
pub(crate) fn run(setup: Setup) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    setup.listener.set_nonblocking(true)?;
    let Setup { index, listener, run, secret, commands, wake, answers, counters, hook } = setup;
    let thread = Rc::new(Thread {
        index,
        run,
        secret,
        host: RefCell::new(ShardSet::new()),
        links: RefCell::default(),
        effects: RefCell::default(),
        answers,
        counters,
        hook,
        unproven: Unproven::within(Limit::now()),
        blocked: Cell::new(false),
        started: Instant::now(),
    });
    LocalSet::new().block_on(&runtime, async move {
        let listener = TcpListener::from_std(listener)?;
        tokio::task::spawn_local(accept(Rc::clone(&thread), listener));
        obey(&thread, &commands, &wake).await;
        Ok(())
    })
}

async fn accept(thread: Rc<Thread>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let place = Place::enter(&thread, peer.ip()).await;
                let thread = Rc::clone(&thread);
                tokio::task::spawn_local(async move {
                    if let Err(error) = connection::serve(&thread, stream, place).await {
                        tracing::debug!(%peer, %error, "data connection ended");
                    }
                });
            }
            Err(error) => {
                // Out of descriptors, most likely: those that are open go on, and one may end soon.
                tracing::warn!(%error, "cannot accept a data connection");
                tokio::time::sleep(TICK).await;
            }
        }
    }
}

async fn obey(thread: &Rc<Thread>, commands: &Receiver<ToData>, wake: &Notify) {
    use crossbeam::channel::TryRecvError;
    loop {
        match commands.try_recv() {
            Ok(command) => {
                thread.command(command);
                thread.tick();
                // Between two pieces of a snapshot frames have their turn.
                tokio::task::yield_now().await;
            }
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {
                let due = thread.host.borrow().deadline().is_some();
                if !due {
                    wake.notified().await;
                } else if tokio::time::timeout(TICK, wake.notified()).await.is_err() {
                    thread.tick();
                }
            }
        }
    }
}

impl Thread {
    /// Lets the host do something and carries out what comes of it. `own` is the connection that is
    /// being served, which looks after its replies itself.
    fn with_host<T>(
        &self,
        own: Option<Conn>,
        act: impl FnOnce(&mut ShardSet, Duration, &mut Vec<Effect>) -> T,
    ) -> T {
        let mut effects = self.effects.take();
        let result = act(&mut self.host.borrow_mut(), self.started.elapsed(), &mut effects);
        for effect in effects.drain(..) {
            self.perform(own, effect);
        }
        self.effects.replace(effects);
        result
    }

    fn perform(&self, own: Option<Conn>, effect: Effect) {
        let to = |conn: Conn, act: &dyn Fn(&Link)| {
            if let Some(link) = self.links.borrow().get(&conn) {
                act(link);
                if own != Some(conn) {
                    link.wake.notify_one();
                }
            }
        };
        match effect {
            Effect::Reply { conn, header } => {
                to(conn, &|link| link.replies.borrow_mut().push(&header))
            }
            Effect::Values { conn, header, rows } => {
                to(conn, &|link| link.replies.borrow_mut().push_values(header, rows.clone()));
            }
            Effect::Close { conn } => to(conn, &|link| link.closed.set(true)),
            Effect::Report(report) => {
                let epoch = self.host.borrow().epoch();
                self.tell(FromData::Report { epoch, report });
            }
        }
    }

    /// Lets go of a cut that holds frames back for too long. Called after every command too: a saver that asks for piece
    /// after piece keeps the queue full for minutes.
    fn tick(&self) {
        let due = self.host.borrow().deadline();
        if due.is_some_and(|due| due <= self.started.elapsed()) {
            self.with_host(None, |host, now, out| host.tick(now, out));
            self.unblock();
        }
    }

    fn tell(&self, answer: FromData) {
        match self.answers.try_send(Input::Data(answer)) {
            // The coordinator has ended, and the process is about to.
            Ok(()) | Err(TrySendError::Disconnected(_)) => {}
            // The job would wait for a report that is lost for ever. A container that is gone is replaced.
            Err(TrySendError::Full(_)) => {
                let thread = self.index;
                tracing::error!(thread, "the coordinator takes no answers: its queue is full");
                std::process::exit(10);
            }
        }
    }

    /// Connections that could not go on may try again.
    fn unblock(&self) {
        if self.blocked.replace(false) {
            for link in self.links.borrow().values() {
                link.wake.notify_one();
            }
        }
    }

    fn command(&self, command: ToData) {
        match command {
            ToData::Hold { epoch, phase, step, shards, base } => {
                let missing = self.with_host(None, |host, _, out| {
                    host.hold(epoch, phase, step, &shards, base, out)
                });
                self.tell(FromData::Held { thread: self.index, epoch, missing });
            }
            ToData::Install { epoch, shard } => {
                let id = shard.id();
                let result = self.with_host(None, |host, _, out| host.install(epoch, *shard, out));
                self.tell(FromData::Installed { epoch, shard: id, result });
            }
            ToData::Begin { ask, epoch, phase } => {
                let result = self.with_host(None, |host, _, out| host.begin(epoch, phase, out));
                self.tell(FromData::Answered(Answer { ask, result }));
            }
            ToData::Members { trainers } => {
                self.with_host(None, |host, _, out| host.members(&trainers, out));
            }
            ToData::Cut { ask, cut, epoch, phase, at } => {
                let result = self
                    .with_host(None, |host, now, out| host.cut(cut, epoch, phase, &at, now, out));
                self.tell(FromData::Answered(Answer { ask, result }));
            }
            ToData::CutEnd { cut, committed } => {
                self.with_host(None, |host, _, out| host.cut_end(cut, committed, out));
            }
            ToData::SaveMemory { shard, cut, reply } => {
                let _gone = reply.try_send(self.host.borrow().snapshot_dedup_state(shard, cut));
            }
            ToData::Save { shard, cut, section, at, mut buffer, reply } => {
                let result = self.with_host(None, |host, _, out| {
                    let result = host.save(shard, cut, section, at, &mut buffer);
                    host.pump(out);
                    result
                });
                // The saver has room for what it asked for; if it has given up, nobody wants it.
                let _gone = reply.try_send(result.map(|()| buffer));
            }
            ToData::State { reply } => {
                let host = self.host.borrow();
                let state = ThreadState {
                    epoch: host.epoch(),
                    cut: host.highest_cut(),
                    shards: host.states(),
                };
                let _late = reply.try_send(state);
            }
        }
        self.unblock();
        self.publish();
    }

    /// Shows the control thread how far this one is.
    fn publish(&self) {
        let host = self.host.borrow();
        let (pushes, refused) = host.counts();
        self.counters.publish(pushes, refused, host.position());
    }
}

/// Binds one listener a data thread, on `ports` if any are given.
///
/// # Errors
/// When no port is free.
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
    // A replacement must get the port of the container before it, whose connections may linger.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    // As many as there may be trainers; the kernel bounds it further.
    socket.listen(4096)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use crossbeam::channel::{RecvTimeoutError, bounded, unbounded};
    use heddle_protocol::control::{CutAt, Phase, Sharing};
    use heddle_protocol::ids::{
        CutId, Epoch, Generation, Incarnation, Member, PhaseNo, ShardId, Slot, Step,
    };
    use heddle_shard::{Shard, ShardConfig, ShardReport};

    use super::*;

    /// A saver that asks for piece after piece keeps the queue of commands full. The cut is let go all the same, ten seconds after
    /// the barrier that does not come.
    #[test]
    fn a_cut_is_let_go_while_commands_never_stop() {
        let epoch = Epoch::first(Generation(1));
        let (commands, queue) = bounded(64);
        let (answers, heard) = unbounded();
        let mut listeners = bind(IpAddr::from([127, 0, 0, 1]), None, 1).expect("a port");
        let wake = Arc::new(Notify::new());
        let setup = Setup {
            index: 0,
            listener: listeners.remove(0),
            run: RunId(uuid::Uuid::from_u128(1)),
            secret: Secret::from_hex(&"01".repeat(32)).expect("64 digits"),
            commands: queue,
            wake: Arc::clone(&wake),
            answers,
            counters: Arc::default(),
            hook: Hook::default(),
        };
        let thread = std::thread::spawn(move || run(setup));
        let give = |command| {
            let given = commands.send_timeout(command, Duration::from_secs(20));
            assert!(given.is_ok(), "the thread takes commands");
            wake.notify_one();
        };
        let phase = Phase { no: PhaseNo(0), sharing: Sharing::Queue };
        give(ToData::Hold { epoch, phase, step: Step(0), shards: vec![ShardId(0)], base: None });
        let config = ShardConfig {
            shard: ShardId(0),
            shards: 1,
            tables: Vec::new(),
            copy_bytes_max: 0,
            early_bytes_max: 0,
            waiting_bytes_max: 0,
        };
        let shard = Box::new(Shard::new(&config));
        give(ToData::Install { epoch, shard });
        let silent = Member { slot: Slot::trainer(0), incarnation: Incarnation(1) };
        give(ToData::Members { trainers: vec![silent] });
        give(ToData::Cut {
            ask: 1,
            cut: CutId { generation: Generation(1), number: 1 },
            epoch,
            phase: PhaseNo(0),
            at: CutAt::Barriers(vec![silent]),
        });
        let limit = Instant::now() + Duration::from_secs(40);
        let let_go = loop {
            for _ in 0..64 {
                let (reply, _) = bounded(1);
                give(ToData::State { reply });
            }
            match heard.recv_timeout(Duration::ZERO) {
                Ok(Input::Data(FromData::Report { report, .. })) => break Some(report),
                Ok(_) | Err(RecvTimeoutError::Timeout) if Instant::now() < limit => {}
                _ => break None,
            }
        };
        assert!(matches!(let_go, Some(ShardReport::CutAborted { .. })), "{let_go:?}");
        drop(commands);
        wake.notify_one();
        let ended = thread.join().expect("no panic");
        assert!(ended.is_ok(), "{ended:?}");
    }
}
