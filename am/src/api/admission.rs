//! Admission of connections: how many the HTTP port keeps, with and without a proof of the job's secret.
//!
//! Unauthenticated clients reach this port by design (pages, `/metrics`). A connection starts as unproven, with the
//! limits of [`heddle_protocol::admission`], and moves to the proven ones when its peer proves the job's secret.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use heddle_protocol::admission::{self, Room, UnprovenConnections};
use heddle_telemetry::descriptors::{self, Limit};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Most connections with a proof: containers of the largest job tested (10,000) and some operators.
const PROVEN_MAX: usize = 12_000;

/// How many connections the port keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Without a proof of the secret.
    pub unproven: admission::AdmissionLimits,
    /// With it.
    pub proven: usize,
}

impl Capacity {
    /// What a process with this limit of open files can keep. A quarter of them, at most [`descriptors::RESERVED`], is
    /// left to files, HDFS and the ResourceManager.
    #[must_use]
    pub fn within(limit: Limit) -> Self {
        let unproven = admission::AdmissionLimits::within(limit.0);
        let kept = descriptors::RESERVED.min(limit.0 / 4);
        let left = usize::try_from(limit.0.saturating_sub(kept)).unwrap_or(usize::MAX);
        Self { unproven, proven: left.saturating_sub(unproven.total).clamp(1, PROVEN_MAX) }
    }
}

impl Default for Capacity {
    /// Of a process without a limit.
    fn default() -> Self {
        Self::within(Limit(u64::MAX))
    }
}

/// The connections of the port.
pub(super) struct ConnectionTable {
    started: Instant,
    unproven: Mutex<UnprovenConnections<Arc<Notify>>>,
    /// An unproven connection has left.
    left: Notify,
    proven: Arc<Semaphore>,
}

impl ConnectionTable {
    pub(super) fn new(capacity: Capacity) -> Self {
        Self {
            started: Instant::now(),
            unproven: Mutex::new(UnprovenConnections::new(capacity.unproven)),
            left: Notify::new(),
            proven: Arc::new(Semaphore::new(capacity.proven)),
        }
    }

    fn unproven(&self) -> MutexGuard<'_, UnprovenConnections<Arc<Notify>>> {
        self.unproven.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is room for a connection of this peer. Closes another one for it where needed. None: this one is to
    /// be closed.
    pub(super) async fn enter(self: &Arc<Self>, peer: IpAddr) -> Option<ConnectionPermit> {
        loop {
            let wait = {
                let mut unproven = self.unproven();
                let now = self.started.elapsed();
                let room = unproven.room(peer, now);
                if let Room::Close(oldest) = &room {
                    oldest.notify_one();
                }
                match room {
                    Room::After(wait) => wait,
                    Room::Refused => return None,
                    Room::Free | Room::Close(_) => {
                        let closed = Arc::new(Notify::new());
                        let number = unproven.enter(peer, now, Arc::clone(&closed));
                        let (table, permit) = (Arc::clone(self), Mutex::new(None));
                        return Some(ConnectionPermit { table, number, closed, permit });
                    }
                }
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.left.notified() => {}
            }
        }
    }
}

/// A connection's admission; dropped with it.
pub(super) struct ConnectionPermit {
    table: Arc<ConnectionTable>,
    number: u64,
    /// Notified when the connection is closed to make room for another.
    pub(super) closed: Arc<Notify>,
    permit: Mutex<Option<OwnedSemaphorePermit>>,
}

impl ConnectionPermit {
    /// Counts the connection among those with a proof; false when there is no room.
    pub(super) fn prove(&self) -> bool {
        let mut permit = self.permit.lock().unwrap_or_else(PoisonError::into_inner);
        if permit.is_none() {
            let Ok(taken) = Arc::clone(&self.table.proven).try_acquire_owned() else {
                tracing::warn!(limit = "open files", "connection_rejected");
                return false;
            };
            // It may have been closed for another one at this moment: its task then ends, and the peer retries.
            self.table.unproven().leave(self.number);
            self.table.left.notify_one();
            *permit = Some(taken);
        }
        true
    }

    pub(super) fn is_proven(&self) -> bool {
        self.permit.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        if self.table.unproven().leave(self.number).is_some() {
            self.table.left.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_follows_the_limit_of_open_files() {
        let usual = Capacity::within(Limit(1024));
        assert_eq!((usual.unproven.total, usual.proven), (128, 640));
        let raised = Capacity::within(Limit(1_048_576));
        assert_eq!((raised.unproven.total, raised.proven), (512, PROVEN_MAX));
        let tiny = Capacity::within(Limit(64));
        assert_eq!((tiny.unproven.total, tiny.proven), (16, 32));
    }
}
