//! Settings of a client.

use std::net::SocketAddr;
use std::sync::Arc;

use heddle_protocol::frame::Header;
use heddle_protocol::handshake::Secret;
use heddle_protocol::ids::{Member, RunId};

use crate::layout::Layout;

/// Settings of a client.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The tables and the number of shards.
    pub layout: Layout,
    /// The run that pservers must belong to.
    pub run: RunId,
    /// This trainer.
    pub member: Member,
    /// The job's secret.
    pub secret: Secret,
    /// Observes every sent frame; for tests of failures.
    pub watch: Option<FrameWatch>,
}

/// Called on the client's thread for each frame right before it is taken for a connection's next write. Frames of earlier
/// calls for other connections are in their sockets, as far as those had room.
#[derive(Clone)]
pub struct FrameWatch(pub Arc<Watch>);

/// Arguments: the connection's remote address, and the frame's header.
pub type Watch = dyn Fn(SocketAddr, &Header) + Send + Sync;

impl std::fmt::Debug for FrameWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FrameWatch")
    }
}
