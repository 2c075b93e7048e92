//! The data plane as the training loop uses it. [`Handle`] sends requests to pservers; tests have an implementation that
//! holds the tables itself.

use heddle_client::machine::DataRequest;
use heddle_client::shell::Handle;

/// Takes requests to the data plane. [`heddle_client::machine::ClientEvent`]s report the results.
pub trait DataPlane: Send {
    /// Sends a request. Never blocks.
    fn send(&mut self, request: DataRequest);
}

impl DataPlane for Handle {
    fn send(&mut self, request: DataRequest) {
        Handle::send(self, request);
    }
}
