//! State that the tasks of the client's thread share.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crossbeam::channel::Sender;
use heddle_protocol::ids::Slot;
use tokio::sync::Notify;

use super::settings::Settings;
use crate::machine::{ClientEvent, ClientMachine};

/// The machine, its events, and the tasks of its connections.
pub(super) struct ClientState {
    pub(super) settings: Settings,
    pub(super) machine: RefCell<ClientMachine>,
    events: Sender<ClientEvent>,
    started: Instant,
    pub(super) connections: RefCell<BTreeMap<SocketAddr, EndpointTask>>,
    serial: Cell<u64>,
    /// Wakes the main loop when a deadline is earlier than the one that it sleeps for.
    pub(super) earlier_deadline: Notify,
    sleeps_until: Cell<Option<u64>>,
    /// A pserver to which the path is cut by order, and until when, ms of the client's clock.
    cut: Cell<Option<(Slot, u64)>>,
}

/// The task of one connection.
pub(super) struct EndpointTask {
    serial: u64,
    /// There are frames to write, or the connection is not wanted any more.
    wake: Rc<Notify>,
}

/// A connection that a task has to open.
pub(super) struct NewConnection {
    pub(super) endpoint: SocketAddr,
    /// Distinguishes this connection from earlier ones to the same endpoint.
    pub(super) serial: u64,
    pub(super) wake: Rc<Notify>,
}

impl ClientState {
    pub(super) fn new(settings: Settings, events: Sender<ClientEvent>) -> Self {
        Self {
            machine: RefCell::new(ClientMachine::of(settings.layout.clone(), settings.shards_move)),
            settings,
            events,
            started: Instant::now(),
            connections: RefCell::default(),
            serial: Cell::new(0),
            earlier_deadline: Notify::new(),
            sleeps_until: Cell::new(None),
            cut: Cell::new(None),
        }
    }

    /// Cuts the path to a pserver.
    pub(super) fn cut(&self, pserver: Slot, ms: u64) {
        self.cut.set(Some((pserver, self.now_ms().saturating_add(ms))));
        // Tasks notice it before they read or write the next time.
        self.connections.borrow().values().for_each(|task| task.wake.notify_one());
    }

    /// How long the path to this address stays cut by order.
    pub(super) fn cut_left(&self, endpoint: SocketAddr) -> Option<Duration> {
        let (pserver, until_ms) = self.cut.get()?;
        let left_ms = until_ms.checked_sub(self.now_ms()).filter(|left| *left > 0);
        if left_ms.is_none() {
            self.cut.set(None);
        }
        let is_there = self.machine.borrow().holder(endpoint).is_some_and(|it| it.slot == pserver);
        left_ms.filter(|_| is_there).map(Duration::from_millis)
    }

    pub(super) fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The machine's next deadline, for which the main loop sleeps from now on.
    pub(super) fn sleep_until(&self) -> Option<u64> {
        let deadline = self.machine.borrow().next_deadline();
        self.sleeps_until.set(deadline);
        deadline
    }

    /// Sends events to the training program, and wakes the connections that have frames or are not wanted, and the main
    /// loop if it sleeps too long.
    pub(super) fn deliver(&self) {
        let mut machine = self.machine.borrow_mut();
        while let Some(event) = machine.next_event() {
            // The receiver is gone only while the client is being dropped.
            let _ = self.events.send(event);
        }
        self.connections.borrow_mut().retain(|&endpoint, task| {
            let wanted = machine.wants(endpoint);
            if !wanted || machine.has_frames(endpoint) {
                task.wake.notify_one();
            }
            wanted
        });
        let is_earlier = match (machine.next_deadline(), self.sleeps_until.get()) {
            (Some(next), Some(sleeping)) => next < sleeping,
            (next, None) => next.is_some(),
            (None, Some(_)) => false,
        };
        if is_earlier {
            self.earlier_deadline.notify_one();
        }
    }

    /// The next connection to open now, if any. The main loop alone opens connections.
    pub(super) fn next_connection(&self) -> Option<NewConnection> {
        let endpoint = self.machine.borrow_mut().next_connect(self.now_ms())?;
        let serial = self.serial.get() + 1;
        self.serial.set(serial);
        let wake = Rc::new(Notify::new());
        let task = EndpointTask { serial, wake: Rc::clone(&wake) };
        self.connections.borrow_mut().insert(endpoint, task);
        Some(NewConnection { endpoint, serial, wake })
    }

    /// Whether this is still the connection to the endpoint.
    pub(super) fn is_current(&self, endpoint: SocketAddr, serial: u64) -> bool {
        self.connections.borrow().get(&endpoint).is_some_and(|task| task.serial == serial)
    }
}
