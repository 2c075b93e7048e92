//! Data connections in their handshake: few at a time, and the oldest yields (see [`heddle_protocol::admission`]).

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use heddle_protocol::admission::{Admission, Limits, Room};
use heddle_telemetry::descriptors::Limit;
use tokio::sync::Notify;

use super::Thread;

/// A thread that applies a step over a large shard reads no proof meanwhile; this is longer.
const GRACE: Duration = Duration::from_secs(1);

/// The connections of one data thread that have not proved the secret.
pub(super) struct Unproven {
    book: RefCell<Admission<Rc<Notify>>>,
    /// One has left.
    left: Notify,
}

impl Unproven {
    /// As many as a process that may open so many files can bear.
    pub(super) fn within(limit: Limit) -> Self {
        let limits = Limits { grace: GRACE, ..Limits::within(limit.0) };
        Self { book: RefCell::new(Admission::new(limits)), left: Notify::new() }
    }
}

/// A connection's place among them; left with its proof, or when dropped.
pub(super) struct Place {
    thread: Rc<Thread>,
    number: u64,
    closed: Rc<Notify>,
}

impl Place {
    /// Waits until there is room, closes another connection if need be.
    pub(super) async fn enter(thread: &Rc<Thread>, peer: IpAddr) -> Self {
        let unproven = &thread.unproven;
        loop {
            let room = {
                let now = thread.started.elapsed();
                unproven.book.borrow_mut().room(peer, now)
            };
            match room {
                Room::After(wait) => {
                    tokio::select! {
                        () = tokio::time::sleep(wait) => {}
                        () = unproven.left.notified() => {}
                    }
                    continue;
                }
                Room::Close(oldest) => oldest.notify_one(),
                Room::Free => {}
            }
            let closed = Rc::new(Notify::new());
            let now = thread.started.elapsed();
            let number = unproven.book.borrow_mut().enter(peer, now, Rc::clone(&closed));
            return Self { thread: Rc::clone(thread), number, closed };
        }
    }

    /// Waits until the connection is to be closed in favour of a newer one.
    pub(super) async fn closed(&self) {
        self.closed.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let unproven = &self.thread.unproven;
        if unproven.book.borrow_mut().leave(self.number).is_some() {
            unproven.left.notify_one();
        }
    }
}
