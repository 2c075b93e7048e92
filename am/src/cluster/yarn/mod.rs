//! Containers from YARN.
//!
//! One task holds the session with the ResourceManager (`rm_session`) and performs the core's orders. Calls to
//! NodeManagers are separate tasks (`node_calls`). Decisions about grants and exits are in `containers` and `exit`, which
//! use no sockets.

mod ask_id;
mod container_credentials;
mod containers;
mod exit;
mod failed_starts;
mod heartbeat_interval;
mod join;
mod launch;
mod node_calls;
mod order;
mod retries;
mod rm_session;

use std::collections::BTreeSet;

use heddle_am_core::{ContainerName, ContainerOrder};
use heddle_protocol::ids::Member;
use heddle_protocol::view::Placement;
use heddle_yarn::{AmError, FinalStatus};
use tokio::sync::{mpsc, oneshot};

pub use container_credentials::ContainerCredentials;
pub use containers::Sizes;
pub use join::{JoinError, Joined, Joining, join};
pub use launch::{LaunchError, YarnLaunch};
pub use order::{Gone, Places};

use super::ContainerSource;
use order::{ClusterOrder, Finish};

/// The driver's handle. Clones send orders to the same task.
#[derive(Clone, Debug)]
pub struct YarnCluster {
    orders: mpsc::UnboundedSender<ClusterOrder>,
    places: Places,
}

impl YarnCluster {
    fn send(&self, order: ClusterOrder) {
        // The task ends only with the attempt, which `Gone` reports.
        let _ended = self.orders.send(order);
    }

    /// Ends the application.
    ///
    /// # Errors
    /// [`AmError`]; `Shutdown` when the session has ended before.
    pub async fn finish(
        &self,
        status: FinalStatus,
        diagnostics: String,
        tracking_url: String,
    ) -> Result<(), AmError> {
        let (reply, answer) = oneshot::channel();
        self.send(ClusterOrder::Finish(Finish { status, diagnostics, tracking_url, reply }));
        answer.await.unwrap_or(Err(AmError::Shutdown))
    }
}

impl ContainerSource for YarnCluster {
    fn order(&mut self, order: ContainerOrder) {
        self.send(ClusterOrder::Container(order));
    }

    fn registered(&mut self, container: &ContainerName, member: Member) {
        self.send(ClusterOrder::Registered(container.clone(), member));
    }

    fn connection_closed(&mut self, member: Member) {
        self.send(ClusterOrder::ConnectionClosed(member));
    }

    fn progress(&mut self, done: f32) {
        self.send(ClusterOrder::Progress(done));
    }

    fn used_before(&mut self, hosts: BTreeSet<String>) {
        self.send(ClusterOrder::UsedBefore(hosts));
    }

    fn placement(&self, member: Member) -> Option<Placement> {
        self.places.get(member)
    }
}
