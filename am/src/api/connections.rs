//! Connections of the HTTP port: accepting and serving them, within limits of time and memory.
//!
//! What an unauthenticated client can hold is bounded: connections by [`admission`](super::admission), bytes of a
//! request by [`HEAD_BYTES_MAX`], bytes of answers by [`Pages`](super::Pages), time by [`HEAD_LIMIT`] and
//! [`UNPROVEN_LIFE`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use heddle_am_core::ConnectionId;
use heddle_channel::{ChannelStream, DialError, accept_stream};
use heddle_protocol::handshake::{Channel, MECHANISM_NOISE, Verdict};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::AsyncReadExt;
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
        let Some(place) = table.enter(peer.ip()).await else {
            tracing::debug!(%peer, "connection_refused");
            continue;
        };
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
) -> Result<(), ServeError> {
    if let Err(error) = shared.timeout.apply(&stream) {
        tracing::debug!(%error, "socket_option_not_set");
    }
    let opened = tokio::time::timeout(HEAD_LIMIT, opened(stream, &shared));
    let (stream, channel) = opened.await.map_err(|_| ServeError::Slow)??;
    if let Some(channel) = channel {
        state.set_encrypted(channel);
    }
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
        ended = connection.as_mut() => return Ok(ended?),
        () = tokio::time::sleep(UNPROVEN_LIFE) => {}
    }
    if state.place.is_proven() {
        return Ok(connection.await?);
    }
    connection.as_mut().graceful_shutdown();
    // A peer that proves the secret in its last request opens a new connection.
    Ok(tokio::time::timeout(LAST_ANSWER, connection).await.unwrap_or(Ok(()))?)
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error("no first byte, or no encrypted handshake, within {} s", HEAD_LIMIT.as_secs())]
    Slow,
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Encrypted(#[from] DialError),
    #[error(transparent)]
    Http(#[from] hyper::Error),
}

/// The connection as HTTP finds it, and the channel of an encrypted connection. Its first byte decides: [`MECHANISM_NOISE`]
/// begins no method of HTTP.
async fn opened(
    mut stream: TcpStream,
    shared: &ApiState,
) -> Result<(ChannelStream, Option<Channel>), ServeError> {
    let mut first = [0];
    stream.peek(&mut first).await?;
    if first != [MECHANISM_NOISE] {
        return Ok((ChannelStream::Plain(stream), None));
    }
    stream.read_u8().await?;
    let channels = [Channel::Control, Channel::Operator, Channel::Controller];
    let mut incoming = accept_stream(stream, &shared.secret, shared.run, &channels).await?;
    incoming.answer(Verdict::Welcome).await?;
    Ok((incoming.stream, Some(incoming.channel)))
}
