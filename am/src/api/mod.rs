//! The ApplicationMaster's HTTP server: what containers call, what operators call, what people read.
//!
//! ```text
//! POST /v1/hello /v1/session                containers, which prove the job's secret
//! POST /v1/hello /v1/operator               operators, who prove it too
//! GET  /v1/status                           the job as JSON, for operators, past YARN's proxy
//! GET  / /api/v1/job|slots|…                people; on YARN through its proxy only
//! GET  /metrics                             scrapers
//! ```
//!
//! Containers and operators prove the secret before a body of theirs is read; whoever does not can change nothing.
//! All of it is on one port. Decisions are the driver's: this module turns requests into [`Input`]s and streams of
//! lines back.

mod escape;
mod gate;
mod metrics;
mod page;
mod people;
mod session;
mod viewers;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use heddle_protocol::control::{Operation, UpLine};
use heddle_protocol::handshake::Secret;
use heddle_protocol::ids::{Member, RunId};
use heddle_protocol::view::JobView;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

pub use gate::{Gate, Proxy, Way, way};
pub use session::Lines;
pub use viewers::Viewers;

/// Connections at once at the most: containers of the largest job tried (10,000) and some readers.
const CONNECTIONS_MAX: usize = 12_000;
/// A head must have arrived in this time.
const HEAD_LIMIT: Duration = Duration::from_secs(10);
/// Bytes of a head at the most.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Names one connection of a container among all there ever were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// What the server hands to the driver.
#[derive(Debug)]
pub enum Input {
    /// A container has proved itself; lines to it go into `lines`.
    SessionOpened {
        /// The connection.
        connection: ConnectionId,
        /// Who.
        member: Member,
        /// The way to it.
        lines: Lines,
    },
    /// A container's line.
    SessionLine {
        /// The connection.
        connection: ConnectionId,
        /// Who.
        member: Member,
        /// The line.
        line: Box<UpLine>,
    },
    /// The connection is gone.
    SessionClosed {
        /// The connection.
        connection: ConnectionId,
        /// Who.
        member: Member,
    },
    /// An operator's command; the answer is shown to them.
    Operation {
        /// What.
        operation: Operation,
        /// Where the answer goes: accepted, or why not.
        answer: oneshot::Sender<Result<(), String>>,
    },
}

/// What every connection shares.
pub struct Shared {
    /// The run.
    pub run: RunId,
    /// Its secret.
    pub secret: Secret,
    /// To the driver.
    pub inputs: mpsc::Sender<Input>,
    /// The job as it stands.
    pub view: watch::Receiver<Arc<JobView>>,
}

/// Listens until the process ends. Pages are for everybody who reaches the port, or for YARN's proxy behind a [`Gate`].
pub async fn serve(listener: TcpListener, shared: Arc<Shared>, gate: Option<Arc<Gate>>) {
    if let Some(gate) = &gate {
        tokio::spawn(Arc::clone(gate).keep_looking());
    }
    accept(listener, shared, gate).await;
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, gate: Option<Arc<Gate>>) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut next = 0u64;
    loop {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else {
            return;
        };
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors or a peer that is gone already: neither is cured by trying at once.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        next += 1;
        let connection = ConnectionId(next);
        let shared = Arc::clone(&shared);
        let state = session::ConnectionState::new(connection, peer.ip(), gate.clone());
        tokio::spawn(async move {
            if let Err(error) = serve_one(stream, state, shared).await {
                tracing::debug!(%peer, %error, "connection ended");
            }
            drop(permit);
        });
    }
}

async fn serve_one(
    stream: tokio::net::TcpStream,
    state: session::ConnectionState,
    shared: Arc<Shared>,
) -> Result<(), hyper::Error> {
    // Without it a command could wait for the acknowledgement of the one before.
    let _best_effort = stream.set_nodelay(true);
    let state = Arc::new(state);
    let service = service_fn(move |request| {
        session::answer(request, Arc::clone(&shared), Arc::clone(&state))
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .max_buf_size(HEAD_BYTES_MAX.max(64 * 1024))
        .half_close(false)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

/// Binds the control port on `address`, one of `ports` (any when empty).
///
/// # Errors
/// When none of the ports is free.
pub async fn bind(address: std::net::IpAddr, ports: &[u16]) -> std::io::Result<TcpListener> {
    if ports.is_empty() {
        return TcpListener::bind(SocketAddr::new(address, 0)).await;
    }
    let mut last = None;
    for &port in ports {
        match TcpListener::bind(SocketAddr::new(address, port)).await {
            Ok(listener) => return Ok(listener),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| std::io::ErrorKind::AddrInUse.into()))
}
