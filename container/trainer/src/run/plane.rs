//! The data plane as the training loop uses it. [`Handle`] sends requests to pservers; tests have an implementation that
//! holds the tables itself.

use heddle_client::machine::DataRequest;
use heddle_client::shell::Handle;
use heddle_fail_points::fail_value;
use heddle_protocol::control::ShardPlace;
use heddle_protocol::ids::Slot;

/// Takes requests to the data plane. [`heddle_client::machine::ClientEvent`]s report the results.
pub trait DataPlane: Send {
    /// Sends a request. Never blocks.
    fn send(&mut self, request: DataRequest);

    /// Neither reads nor writes on connections to this pserver, for `ms`, and opens none.
    fn cut(&mut self, pserver: Slot, ms: u64);
}

impl DataPlane for Handle {
    fn send(&mut self, request: DataRequest) {
        Handle::send(self, request);
    }

    fn cut(&mut self, pserver: Slot, ms: u64) {
        Handle::cut(self, pserver, ms);
    }
}

/// Where shards are served. A fail point replaces the endpoint of a pserver, for tests of a network that drops packets.
pub(super) fn detoured(mut places: Vec<ShardPlace>) -> Vec<ShardPlace> {
    for place in &mut places {
        if let Some(endpoint) = fail_value!("shard-place", holder = place.holder) {
            place.endpoint = endpoint.parse().unwrap_or(place.endpoint);
        }
    }
    places
}
