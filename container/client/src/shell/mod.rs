//! The machine's sockets: one thread with one connection to each data thread of the pservers.
//!
//! The thread runs a single-threaded runtime. It waits for calls of the training program, for sockets and for the
//! machine's next deadline, hands each to the machine and carries out what follows; it decides nothing.
//! Training loops stay plain synchronous code: they call a [`Handle`] and receive [`Event`]s from a channel.
//!
//! Queues. Calls: a training loop has at most a pull and a step under way for each lane, or
//! [`crate::machine::UNREACHED_STEPS_MAX`] steps for each task, so the channel of calls needs no bound of its own and a
//! call never blocks; a loop that must take a new epoch's orders is never stuck in an old push. Events: one or two for
//! each call, a few for each outage. Sockets: `connection.rs` states its buffers.

#![expect(
    clippy::disallowed_types,
    reason = "this is the shell: sockets, time and the thread live here"
)]

mod connection;
mod incoming;
mod outgoing;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, Sender};
use heddle_protocol::control::{LaneGrant, Phase, ShardPlace, TaskGrant};
use heddle_protocol::frame::Header;
use heddle_protocol::handshake::Secret;
use heddle_protocol::ids::{CutId, Epoch, Lane, Member, RunId, TaskId};
use tokio::sync::{Notify, mpsc};

use crate::layout::Layout;
use crate::machine::{Era, Event, Machine, PullAt, PullId, PullItem, StepPush, Unit};

/// What a client needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The tables and the number of shards.
    pub layout: Layout,
    /// The run, which pservers must belong to.
    pub run: RunId,
    /// Who this trainer is.
    pub member: Member,
    /// The job's secret.
    pub secret: Secret,
    /// Sees every frame on its way out; none but tests of failures want that.
    pub watch: Option<FrameWatch>,
}

/// Is told of each frame right before it is taken for a connection's next write: what it was told of before for
/// other connections has been handed to their sockets as far as those had room. Called on the client's thread.
#[derive(Clone)]
pub struct FrameWatch(pub Arc<Watch>);

/// The connection's other end, and the frame's header.
pub type Watch = dyn Fn(SocketAddr, &Header) + Send + Sync;

impl std::fmt::Debug for FrameWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FrameWatch")
    }
}

/// A running client: a thread with its connections. Dropping it closes them and ends the thread.
#[derive(Debug)]
pub struct Client {
    handle: Handle,
    events: Receiver<Event>,
    thread: Option<JoinHandle<()>>,
}

/// Calls into a client, from any thread. Calls never block and are carried out in order; what comes of them is
/// told by [`Event`]s. After the client was dropped they do nothing.
#[derive(Clone, Debug)]
pub struct Handle {
    calls: mpsc::UnboundedSender<Call>,
    pulls: Arc<AtomicU64>,
}

#[derive(Debug)]
enum Call {
    Work { epoch: Epoch, phase: Phase, places: Vec<ShardPlace> },
    Barrier { cut: CutId, epoch: Epoch },
    TakeOver { era: Era, grant: LaneGrant },
    GiveUp { era: Era, lane: Lane },
    HoldTask { era: Era, grant: TaskGrant },
    DropTask { era: Era, task: TaskId },
    TaskDone { era: Era, task: TaskId },
    Pull { era: Era, pull: PullId, at: PullAt, items: Vec<PullItem> },
    PushStep { era: Era, unit: Unit, push: StepPush },
    Stop,
}

impl Client {
    /// Starts the thread. No connection is made before [`Handle::work`].
    ///
    /// # Errors
    /// When the thread or its runtime cannot be made.
    pub fn start(settings: Settings) -> std::io::Result<Self> {
        let (calls, heard) = mpsc::unbounded_channel();
        let (tell, events) = crossbeam::channel::unbounded();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let body = move || {
            let shell = Rc::new(Shell::new(settings, tell));
            tokio::task::LocalSet::new().block_on(&runtime, shell.run(heard));
        };
        let thread = std::thread::Builder::new().name("client".into()).spawn(body)?;
        let handle = Handle { calls, pulls: Arc::new(AtomicU64::new(0)) };
        Ok(Self { handle, events, thread: Some(thread) })
    }

    /// Calls into this client.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// What happens, in order. Ends (disconnects) only when the client is gone.
    #[must_use]
    pub fn events(&self) -> &Receiver<Event> {
        &self.events
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.handle.call(Call::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic over there has been printed already, and there is nobody left to serve.
            let _ = thread.join();
        }
    }
}

impl Handle {
    /// See [`Machine::work`].
    pub fn work(&self, epoch: Epoch, phase: Phase, places: Vec<ShardPlace>) {
        self.call(Call::Work { epoch, phase, places });
    }

    /// See [`Machine::barrier`].
    pub fn barrier(&self, cut: CutId, epoch: Epoch) {
        self.call(Call::Barrier { cut, epoch });
    }

    /// See [`Machine::take_over`].
    pub fn take_over(&self, era: Era, grant: LaneGrant) {
        self.call(Call::TakeOver { era, grant });
    }

    /// See [`Machine::give_up`].
    pub fn give_up(&self, era: Era, lane: Lane) {
        self.call(Call::GiveUp { era, lane });
    }

    /// See [`Machine::hold_task`].
    pub fn hold_task(&self, era: Era, grant: TaskGrant) {
        self.call(Call::HoldTask { era, grant });
    }

    /// See [`Machine::drop_task`].
    pub fn drop_task(&self, era: Era, task: TaskId) {
        self.call(Call::DropTask { era, task });
    }

    /// See [`Machine::task_done`].
    pub fn task_done(&self, era: Era, task: TaskId) {
        self.call(Call::TaskDone { era, task });
    }

    /// See [`Machine::pull`]. Returns the name that [`Event::Pulled`] will carry.
    pub fn pull(&self, era: Era, at: PullAt, items: Vec<PullItem>) -> PullId {
        let pull = PullId(self.pulls.fetch_add(1, Ordering::Relaxed));
        self.call(Call::Pull { era, pull, at, items });
        pull
    }

    /// See [`Machine::push_step`].
    pub fn push_step(&self, era: Era, unit: Unit, push: StepPush) {
        self.call(Call::PushStep { era, unit, push });
    }

    fn call(&self, call: Call) {
        // The other end is gone only when the client is; then nobody waits for the answer either.
        let _ = self.calls.send(call);
    }
}

/// What the tasks of the thread share.
struct Shell {
    settings: Settings,
    machine: RefCell<Machine>,
    events: Sender<Event>,
    started: Instant,
    connections: RefCell<BTreeMap<SocketAddr, Link>>,
    serial: Cell<u64>,
    /// Wakes the main loop when a deadline came nearer than the one it sleeps for.
    hurry: Notify,
    sleeps_until: Cell<Option<u64>>,
}

/// The task of one connection.
struct Link {
    serial: u64,
    /// There is something to write, or the connection is not wanted any more.
    wake: Rc<Notify>,
}

impl Shell {
    fn new(settings: Settings, events: Sender<Event>) -> Self {
        Self {
            machine: RefCell::new(Machine::new(settings.layout.clone())),
            settings,
            events,
            started: Instant::now(),
            connections: RefCell::default(),
            serial: Cell::new(0),
            hurry: Notify::new(),
            sleeps_until: Cell::new(None),
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    async fn run(self: Rc<Self>, mut calls: mpsc::UnboundedReceiver<Call>) {
        loop {
            let deadline = self.machine.borrow().next_deadline();
            self.sleeps_until.set(deadline);
            let sleep = async {
                match deadline {
                    Some(at) => {
                        tokio::time::sleep(Duration::from_millis(at.saturating_sub(self.now_ms())))
                            .await
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                call = calls.recv() => {
                    let Some(mut call) = call else { return };
                    // All that is there, before the first frame is written: they leave in one system call.
                    loop {
                        if matches!(call, Call::Stop) {
                            return;
                        }
                        self.apply(call);
                        match calls.try_recv() {
                            Ok(next) => call = next,
                            Err(_) => break,
                        }
                    }
                }
                () = sleep => self.machine.borrow_mut().timer(self.now_ms()),
                () = self.hurry.notified() => {}
            }
            self.carry_out();
        }
    }

    fn apply(&self, call: Call) {
        let now_ms = self.now_ms();
        let mut machine = self.machine.borrow_mut();
        match call {
            Call::Work { epoch, phase, places } => machine.work(epoch, phase, &places, now_ms),
            Call::Barrier { cut, epoch } => machine.barrier(cut, epoch),
            Call::TakeOver { era, grant } => machine.take_over(era, grant),
            Call::GiveUp { era, lane } => machine.give_up(era, lane),
            Call::HoldTask { era, grant } => machine.hold_task(era, grant),
            Call::DropTask { era, task } => machine.drop_task(era, task),
            Call::TaskDone { era, task } => machine.task_done(era, task),
            Call::Pull { era, pull, at, items } => machine.pull(era, pull, at, items),
            Call::PushStep { era, unit, push } => machine.push_step(era, unit, push),
            Call::Stop => {}
        }
    }

    /// Does what the machine wants done: events to the program, connections to open and close, frames to write.
    fn carry_out(self: &Rc<Self>) {
        let now_ms = self.now_ms();
        let mut machine = self.machine.borrow_mut();
        while let Some(event) = machine.next_event() {
            // Nobody listens any more only while the client is being dropped.
            let _ = self.events.send(event);
        }
        let mut connections = self.connections.borrow_mut();
        connections.retain(|&endpoint, link| {
            let wanted = machine.wants(endpoint);
            if !wanted || machine.has_frames(endpoint) {
                link.wake.notify_one();
            }
            wanted
        });
        while let Some(endpoint) = machine.next_connect(now_ms) {
            let serial = self.serial.get() + 1;
            self.serial.set(serial);
            let wake = Rc::new(Notify::new());
            connections.insert(endpoint, Link { serial, wake: Rc::clone(&wake) });
            tokio::task::spawn_local(connection::run(Rc::clone(self), endpoint, serial, wake));
        }
        let nearer = match (machine.next_deadline(), self.sleeps_until.get()) {
            (Some(next), Some(sleeping)) => next < sleeping,
            (next, None) => next.is_some(),
            (None, Some(_)) => false,
        };
        if nearer {
            self.hurry.notify_one();
        }
    }

    /// Whether this is still the connection to the endpoint.
    fn is_current(&self, endpoint: SocketAddr, serial: u64) -> bool {
        self.connections.borrow().get(&endpoint).is_some_and(|link| link.serial == serial)
    }
}
