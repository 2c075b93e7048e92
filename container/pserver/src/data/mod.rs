//! A data thread: one event loop that owns some shards and every socket that speaks to them.
//!
//! From the socket to the table and back to the socket everything happens on this thread, one frame
//! at a time: no lock, no hand-off, no copy of values beside the one that the kernel makes. Commands
//! come over a bounded channel with a wake-up; answers and reports go to the coordinator over another.
//! The thread never waits for either.

mod connection;
mod handshake;
mod inbox;
mod outbox;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, Sender};
use heddle_protocol::handshake::Secret;
use heddle_protocol::ids::RunId;
use heddle_protocol::spec::PortRange;
use heddle_shard::{Conn, Effect, Host};
use socket2::{Domain, Socket, Type};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::LocalSet;

use crate::command::{Answer, Counters, FromData, Input, ThreadState, ToData};
use crate::hook::Hook;
use connection::Link;

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
    host: RefCell<Host>,
    links: RefCell<BTreeMap<Conn, Rc<Link>>>,
    effects: RefCell<Vec<Effect>>,
    answers: Sender<Input>,
    counters: Arc<Counters>,
    hook: Hook,
    /// Some connection has a frame that the host would not take.
    blocked: Cell<bool>,
    started: Instant,
}

/// Runs the thread until its commands end.
///
/// # Errors
/// When the system gives no event loop.
pub(crate) fn run(setup: Setup) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    setup.listener.set_nonblocking(true)?;
    let Setup {
        index,
        listener,
        run,
        secret,
        commands,
        wake,
        answers,
        counters,
        hook,
    } = setup;
    let thread = Rc::new(Thread {
        index,
        run,
        secret,
        host: RefCell::new(Host::new()),
        links: RefCell::default(),
        effects: RefCell::default(),
        answers,
        counters,
        hook,
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
                let thread = Rc::clone(&thread);
                tokio::task::spawn_local(async move {
                    if let Err(error) = connection::serve(&thread, stream).await {
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
                // Between two pieces of a snapshot frames have their turn.
                tokio::task::yield_now().await;
            }
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {
                let due = thread.host.borrow().deadline().is_some();
                if !due {
                    wake.notified().await;
                } else if tokio::time::timeout(TICK, wake.notified()).await.is_err() {
                    thread.with_host(None, |host, now, out| host.tick(now, out));
                    thread.unblock();
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
        act: impl FnOnce(&mut Host, Duration, &mut Vec<Effect>) -> T,
    ) -> T {
        let mut effects = self.effects.take();
        let result = act(
            &mut self.host.borrow_mut(),
            self.started.elapsed(),
            &mut effects,
        );
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
                to(conn, &|link| link.outbox.borrow_mut().push(&header))
            }
            Effect::Values { conn, header, rows } => {
                to(conn, &|link| {
                    link.outbox.borrow_mut().push_values(header, rows.clone())
                });
            }
            Effect::Close { conn } => to(conn, &|link| link.closed.set(true)),
            Effect::Report(report) => {
                let epoch = self.host.borrow().epoch();
                self.tell(FromData::Report { epoch, report });
            }
        }
    }

    fn tell(&self, answer: FromData) {
        // The coordinator never waits for this thread with its inbox full; if it has ended, so does the process.
        if self.answers.try_send(Input::Data(answer)).is_err() {
            tracing::error!(
                thread = self.index,
                "the coordinator takes no answers any more"
            );
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
            ToData::Hold {
                epoch,
                phase,
                step,
                shards,
                base,
            } => {
                let missing = self.with_host(None, |host, _, out| {
                    host.hold(epoch, phase, step, &shards, base, out)
                });
                self.tell(FromData::Held {
                    thread: self.index,
                    epoch,
                    missing,
                });
            }
            ToData::Install { epoch, shard } => {
                let id = shard.id();
                let result = self.with_host(None, |host, _, out| host.install(epoch, *shard, out));
                self.tell(FromData::Installed {
                    epoch,
                    shard: id,
                    result,
                });
            }
            ToData::Begin { ask, epoch, phase } => {
                let result = self.with_host(None, |host, _, out| host.begin(epoch, phase, out));
                self.tell(FromData::Answered(Answer { ask, result }));
            }
            ToData::Members { trainers } => {
                self.with_host(None, |host, _, out| host.members(&trainers, out));
            }
            ToData::Cut {
                ask,
                cut,
                epoch,
                phase,
                at,
            } => {
                let result = self.with_host(None, |host, now, out| {
                    host.cut(cut, epoch, phase, &at, now, out)
                });
                self.tell(FromData::Answered(Answer { ask, result }));
            }
            ToData::CutEnd { cut, committed } => {
                self.with_host(None, |host, _, out| host.cut_end(cut, committed, out));
            }
            ToData::SaveMemory { shard, cut, reply } => {
                let _gone = reply.try_send(self.host.borrow().snapshot_memory(shard, cut));
            }
            ToData::Save {
                shard,
                cut,
                section,
                at,
                mut buffer,
                reply,
            } => {
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
                    cut: host.heard(),
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
