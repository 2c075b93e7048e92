//! Connections of the HTTP port: accepting and serving them, within limits of time and memory.
//!
//! What an unauthenticated client can hold is bounded: connections by [`admission`](super::admission), bytes of a
//! request by [`HEAD_BYTES_MAX`], bytes of answers by [`Pages`](super::Pages), time by [`HEAD_LIMIT`] and
//! [`UNPROVEN_LIFE`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use heddle_am_core::ConnectionId;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tracing::Instrument as _;

use super::admission::{Capacity, ConnectionTable};
use super::gate::PageGate;
use super::session;
use super::state::ApiState;

/// Timeout of a request's head.
const HEAD_LIMIT: Duration = Duration::from_secs(10);
/// Longest head of a request, and the size of its buffer. hyper requires at least 8 KiB.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// An unproven connection takes no further request after this time: a deadline for everything it reads and writes.
const UNPROVEN_LIFE: Duration = Duration::from_secs(30);
/// Extra time for the answer that is being sent then.
const LAST_ANSWER: Duration = Duration::from_secs(10);
/// A peer whose machine is lost is detected after 30 + 3 × 10 s without traffic, and with unread or unacknowledged
/// bytes after a minute (`TCP_USER_TIMEOUT`, RFC 5482). The core's timeout of a silent container is a minute too.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(30))
    .with_interval(Duration::from_secs(10))
    .with_retries(3);
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(60);

/// Accepts and serves connections until the process ends.
pub(super) async fn accept(
    listener: TcpListener,
    shared: Arc<ApiState>,
    gate: Option<Arc<PageGate>>,
    capacity: Capacity,
) {
    let table = Arc::new(ConnectionTable::new(capacity));
    let mut next = 0u64;
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, or the peer has closed already. An immediate retry helps in neither case.
                tracing::warn!(%error, "connection_not_accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let place = table.enter(peer.ip()).await;
        next += 1;
        let state =
            session::ConnectionState::new(ConnectionId(next), peer.ip(), gate.clone(), place);
        tokio::spawn(serve(stream, peer, state, Arc::clone(&shared)).in_current_span());
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
                tracing::debug!(%peer, %error, "connection_ended");
            }
        }
        () = closed.notified() => {
            tracing::debug!(%peer, "unproven_connection_closed_for_a_newer_one");
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
    // A peer that proves the secret in its last request opens a new connection.
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
        tracing::debug!(%error, "socket_option_not_set");
    }
}
