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
//! All of it is on one port. Decisions are the driver's: this module turns requests into [`ApiInput`]s and streams of
//! lines back.

mod connections;
mod escape;
mod gate;
mod metrics;
mod page;
mod public;
mod session;
mod viewers;

use std::net::SocketAddr;
use std::sync::Arc;

use heddle_am_core::ConnectionId;
use heddle_protocol::control::{Operation, ReportEnvelope};
use heddle_protocol::handshake::Secret;
use heddle_protocol::ids::{Member, RunId};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{mpsc, oneshot};

pub use connections::Capacity;
pub use gate::{PageGate, Way, WebProxy, way};
pub use public::Pages;
pub use session::CommandStream;
pub use viewers::Viewers;

/// What the server hands to the driver.
#[derive(Debug)]
pub enum ApiInput {
    /// A container has proved itself; lines to it go into `lines`.
    SessionOpened {
        /// The connection.
        connection: ConnectionId,
        /// Who.
        member: Member,
        /// The way to it.
        lines: CommandStream,
    },
    /// A container's line.
    SessionLine {
        /// The connection.
        connection: ConnectionId,
        /// Who.
        member: Member,
        /// The line.
        line: Box<ReportEnvelope>,
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
pub struct ApiState {
    /// The run.
    pub run: RunId,
    /// Its secret.
    pub secret: Secret,
    /// To the driver.
    pub inputs: mpsc::Sender<ApiInput>,
    /// The job as it stands, for readers.
    pub pages: Pages,
}

/// Listens until the process ends. Pages are for everybody who reaches the port, or for YARN's proxy behind a [`PageGate`].
/// `capacity`: how many connections are kept.
pub async fn serve(
    listener: TcpListener,
    shared: Arc<ApiState>,
    gate: Option<Arc<PageGate>>,
    capacity: Capacity,
) {
    if let Some(gate) = &gate {
        tokio::spawn(Arc::clone(gate).keep_looking());
    }
    connections::accept(listener, shared, gate, capacity).await;
}

/// Binds the control port on `address`, one of `ports` (any when empty).
///
/// # Errors
/// When none of the ports is free.
pub async fn bind(address: std::net::IpAddr, ports: &[u16]) -> std::io::Result<TcpListener> {
    if ports.is_empty() {
        return listen(SocketAddr::new(address, 0));
    }
    let mut last = None;
    for &port in ports {
        match listen(SocketAddr::new(address, port)) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| std::io::ErrorKind::AddrInUse.into()))
}

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // As tokio's own bind: a successor takes the port of the process before it.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    // All containers of a large job connect at once after a restart; the kernel bounds it further.
    socket.listen(4096)
}
