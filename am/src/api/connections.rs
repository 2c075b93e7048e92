//! Connections of the HTTP port: which are kept, for how long, and what they may cost.
//!
//! Strangers reach this port by design (pages, `/metrics`), containers and operators prove the job's secret on it. So
//! a connection starts as unproven, in a small book of its own ([`heddle_protocol::admission`]), and moves to the
//! large one with its proof. What a stranger can hold is bounded: connections by the small book, bytes of a request by
//! [`HEAD_BYTES_MAX`], bytes of answers by `public::Pages`, time by [`HEAD_LIMIT`] and [`UNPROVEN_LIFE`].

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use heddle_am_core::ConnectionId;
use heddle_protocol::admission::{self, Admission, Room};
use heddle_telemetry::descriptors::{self, Limit};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::{ApiState, PageGate, session};

/// Connections with a proof at the most: containers of the largest job tried (10,000) and some operators.
const PROVEN_MAX: usize = 12_000;
/// A head must have arrived in this time.
const HEAD_LIMIT: Duration = Duration::from_secs(10);
/// Bytes of a request's head at the most, and of the buffer that holds it. hyper refuses less than 8 KiB.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// An unproven connection takes no further request after this time: a deadline for everything it reads and writes.
const UNPROVEN_LIFE: Duration = Duration::from_secs(30);
/// The answer that is under way then may take this much longer.
const LAST_ANSWER: Duration = Duration::from_secs(10);
/// A peer whose machine is gone is noticed after 30 + 3 × 10 s without traffic, and with unread or unacknowledged
/// bytes after a minute (`TCP_USER_TIMEOUT`, RFC 5482). The core gives a silent container up after a minute, too.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(30))
    .with_interval(Duration::from_secs(10))
    .with_retries(3);
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(60);

/// How many connections the port keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Without a proof of the secret.
    pub unproven: admission::Limits,
    /// With it.
    pub proven: usize,
}

impl Capacity {
    /// What a process that may open so many files can keep: a quarter of them, at most [`descriptors::RESERVED`], is
    /// left to files, HDFS and the ResourceManager.
    #[must_use]
    pub fn within(limit: Limit) -> Self {
        let unproven = admission::Limits::within(limit.0);
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

/// The two books of connections.
struct ConnectionTable {
    started: Instant,
    unproven: Mutex<Admission<Arc<Notify>>>,
    /// An unproven connection has left.
    left: Notify,
    proven: Arc<Semaphore>,
}

impl ConnectionTable {
    fn new(capacity: Capacity) -> Self {
        Self {
            started: Instant::now(),
            unproven: Mutex::new(Admission::new(capacity.unproven)),
            left: Notify::new(),
            proven: Arc::new(Semaphore::new(capacity.proven)),
        }
    }

    fn book(&self) -> MutexGuard<'_, Admission<Arc<Notify>>> {
        self.unproven.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is room for a connection of this peer, closes another one for it if need be.
    async fn enter(self: &Arc<Self>, peer: IpAddr) -> ConnectionPermit {
        loop {
            let wait = {
                let mut book = self.book();
                let now = self.started.elapsed();
                let room = book.room(peer, now);
                if let Room::Close(oldest) = &room {
                    oldest.notify_one();
                }
                match room {
                    Room::After(wait) => wait,
                    Room::Free | Room::Close(_) => {
                        let closed = Arc::new(Notify::new());
                        let number = book.enter(peer, now, Arc::clone(&closed));
                        return ConnectionPermit {
                            door: Arc::clone(self),
                            number,
                            closed,
                            permit: Mutex::new(None),
                        };
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

/// A connection's place in one of the books; dropped with it.
pub(super) struct ConnectionPermit {
    door: Arc<ConnectionTable>,
    number: u64,
    closed: Arc<Notify>,
    permit: Mutex<Option<OwnedSemaphorePermit>>,
}

impl ConnectionPermit {
    /// Moves the connection to those with a proof; false when there is no room.
    pub(super) fn prove(&self) -> bool {
        let mut permit = self.permit.lock().unwrap_or_else(PoisonError::into_inner);
        if permit.is_none() {
            let Ok(taken) = Arc::clone(&self.door.proven).try_acquire_owned() else {
                tracing::warn!("no room for one more connection of the job: too few open files");
                return false;
            };
            // It may have been closed for another one in this very moment; its task then ends, and the peer tries again.
            self.door.book().leave(self.number);
            self.door.left.notify_one();
            *permit = Some(taken);
        }
        true
    }

    fn is_proven(&self) -> bool {
        self.permit.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        if self.door.book().leave(self.number).is_some() {
            self.door.left.notify_one();
        }
    }
}

/// Accepts and serves connections until the process ends.
pub(super) async fn accept(
    listener: TcpListener,
    shared: Arc<ApiState>,
    gate: Option<Arc<PageGate>>,
    capacity: Capacity,
) {
    let door = Arc::new(ConnectionTable::new(capacity));
    let mut next = 0u64;
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors or a peer that is gone already: neither is cured by trying at once.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let place = door.enter(peer.ip()).await;
        next += 1;
        let state =
            session::ConnectionState::new(ConnectionId(next), peer.ip(), gate.clone(), place);
        tokio::spawn(serve(stream, peer, state, Arc::clone(&shared)));
    }
}

async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    state: session::ConnectionState,
    shared: Arc<ApiState>,
) {
    let state = Arc::new(state);
    let closed = Arc::clone(&state.place.closed);
    tokio::select! {
        ended = serve_requests(stream, &state, shared) => {
            if let Err(error) = ended {
                tracing::debug!(%peer, %error, "connection ended");
            }
        }
        () = closed.notified() => {
            tracing::debug!(%peer, "closed without a proof, in favour of a newer connection");
        }
    }
}

async fn serve_requests(
    stream: TcpStream,
    state: &Arc<session::ConnectionState>,
    shared: Arc<ApiState>,
) -> Result<(), hyper::Error> {
    tune(&stream);
    let of_requests = Arc::clone(state);
    let service = service_fn(move |request| {
        session::answer(request, Arc::clone(&shared), Arc::clone(&of_requests))
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .max_buf_size(HEAD_BYTES_MAX)
        .half_close(false)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return ended,
        () = tokio::time::sleep(UNPROVEN_LIFE) => {}
    }
    if state.place.is_proven() {
        return connection.await;
    }
    connection.as_mut().graceful_shutdown();
    // Whoever proves the secret in its last answer opens a new connection.
    tokio::time::timeout(LAST_ANSWER, connection).await.unwrap_or(Ok(()))
}

fn tune(stream: &TcpStream) {
    let socket = SockRef::from(stream);
    let tuned = stream
        // Without it a command could wait for the acknowledgement of the one before.
        .set_nodelay(true)
        .and_then(|()| socket.set_tcp_keepalive(&KEEPALIVE))
        .and_then(|()| socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX)));
    if let Err(error) = tuned {
        tracing::debug!(%error, "a socket option could not be set");
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
