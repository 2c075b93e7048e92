//! Settings of a client.

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
}
