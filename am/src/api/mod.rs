//! The ApplicationMaster's HTTP server: for containers, operators, users and scrapers.
//!
//! ```text
//! POST /v1/hello /v1/session                containers, which prove the job's secret
//! POST /v1/hello /v1/operator               operators, which prove it too
//! POST /v1/hello /v1/size                   the controller, which proves the secret of the job's grant
//! GET  /v1/status /v1/events?from=N         the job and its events as JSON, for both, past YARN's proxy
//! GET  / /api/v1/job|events|slots|…              users; on YARN through its proxy only
//! GET  /metrics                             scrapers
//! ```
//!
//! Containers and operators prove the secret before the server reads a body of theirs; other clients can change nothing.
//! All of it is on one port. The driver decides: this module turns requests into [`ApiInput`]s and sends lines back.
//!
//! # Why there is no routing framework
//!
//! `axum` 0.8 was considered. It would replace the `match` over paths, the answer 405 and the limit of an operator's
//! body: about 35 of the 312 lines of `session`. It would add as many:
//!
//! - a table of routes, with a layer for the headers of every answer and for the texts of 404 and 405;
//! - an extractor for the proof, which must reject a client without the secret before another one reads the body;
//! - an extension that carries the connection's challenge and permit to each handler.
//!
//! The rest would stay. `axum::serve` has no limit of the time and bytes of a head, no deadline of a connection and no
//! limit per peer, and cannot close the oldest unproven connection for a new one. So `connections` (125 lines) and
//! `admission` (138 without tests) would remain on hyper, with an adapter from tower's service to hyper's. `gate`,
//! `viewers`, the handshake, the two streams of a session and the cache of answers are rules of this server. axum also
//! brings nine crates that the program does not have.

mod admission;
mod command_stream;
mod connections;
mod curve;
mod gate;
mod metrics;
mod page;
mod public;
mod session;
mod state;
mod viewers;

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpSocket};
use tracing::Instrument as _;

pub use admission::Capacity;
pub use command_stream::CommandStream;
pub use gate::{PageGate, Way, WebProxy, way};
pub use metrics::metrics_reference;
pub use public::Pages;
pub use state::{ApiInput, ApiState};
pub use viewers::Viewers;

/// Serves until the process ends. With a [`PageGate`] pages are for YARN's proxy only, otherwise for all clients.
/// `capacity`: how many connections are kept.
pub async fn serve(
    listener: TcpListener,
    shared: Arc<ApiState>,
    gate: Option<Arc<PageGate>>,
    capacity: Capacity,
) {
    if let Some(gate) = &gate {
        tokio::spawn(Arc::clone(gate).keep_looking().in_current_span());
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
