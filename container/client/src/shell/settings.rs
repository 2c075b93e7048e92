//! Settings of a client.

use heddle_channel::PeerTimeout;
use heddle_protocol::handshake::{Mechanism, Secret};
use heddle_protocol::ids::{Member, RunId};

use crate::layout::Layout;

/// Settings of a client.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The tables and the number of shards.
    pub layout: Layout,
    /// Whether shards can get other primaries during an epoch.
    pub shards_move: bool,
    /// The run that pservers must belong to.
    pub run: RunId,
    /// This trainer.
    pub member: Member,
    /// The job's secret.
    pub secret: Secret,
    /// How connections are secured.
    pub mechanism: Mechanism,
    /// When connections to pservers out of reach close.
    pub timeout: PeerTimeout,
}
