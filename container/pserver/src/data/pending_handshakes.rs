//! Data connections in their handshake: few at a time, and the oldest is closed for a new one (see
//! [`heddle_protocol::admission`]).

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use heddle_protocol::admission::{AdmissionLimits, Room, UnprovenConnections};
use heddle_telemetry::descriptors::Limit;
use tokio::sync::Notify;

/// A thread that applies a step over a large shard reads no proof meanwhile; this is longer.
const GRACE: Duration = Duration::from_secs(1);

/// The connections of one data thread that are not authenticated.
pub(super) struct PendingHandshakes {
    admission: RefCell<UnprovenConnections<Rc<Notify>>>,
    /// One has left.
    left: Notify,
    started: Instant,
}

impl PendingHandshakes {
    /// As many as a process with this limit of open files can have.
    pub(super) fn within(limit: Limit) -> Self {
        let limits = AdmissionLimits { grace: GRACE, ..AdmissionLimits::within(limit.0) };
        Self {
            admission: RefCell::new(UnprovenConnections::new(limits)),
            left: Notify::new(),
            started: Instant::now(),
        }
    }

    /// Waits until there is room; closes another connection if necessary. None: this one is to be closed.
    pub(super) async fn enter(self: &Rc<Self>, peer: IpAddr) -> Option<PendingHandshake> {
        loop {
            let room = self.admission.borrow_mut().room(peer, self.started.elapsed());
            match room {
                Room::After(wait) => {
                    tokio::select! {
                        () = tokio::time::sleep(wait) => {}
                        () = self.left.notified() => {}
                    }
                    continue;
                }
                Room::Close(oldest) => oldest.notify_one(),
                Room::Free => {}
                Room::Refused => return None,
            }
            let closed = Rc::new(Notify::new());
            let now = self.started.elapsed();
            let number = self.admission.borrow_mut().enter(peer, now, Rc::clone(&closed));
            return Some(PendingHandshake { all: Rc::clone(self), number, closed });
        }
    }
}

/// A connection. Dropped after its authentication, or when it closes.
pub(super) struct PendingHandshake {
    all: Rc<PendingHandshakes>,
    number: u64,
    closed: Rc<Notify>,
}

impl PendingHandshake {
    /// Waits until the connection has to be closed for a newer one.
    pub(super) async fn closed(&self) {
        self.closed.notified().await;
    }
}

impl Drop for PendingHandshake {
    fn drop(&mut self) {
        if self.all.admission.borrow_mut().leave(self.number).is_some() {
            self.all.left.notify_one();
        }
    }
}
