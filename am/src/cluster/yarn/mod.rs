//! Containers from YARN.
//!
//! One task holds the session with the ResourceManager (`rm_session`) and performs the core's orders. Calls to
//! NodeManagers are separate tasks (`node_calls`). Decisions about grants and exits are in `containers` and `exit`, which
//! use no sockets.

mod ask_id;
mod containers;
mod exit;
mod heartbeat_interval;
mod join;
mod launch;
mod node_calls;
mod order;
mod rm_session;

use heddle_am_core::ContainerName;
use heddle_protocol::ids::{Incarnation, Member, Slot};
use heddle_protocol::view::Placement;
use heddle_yarn::{AmError, FinalStatus};
use tokio::sync::{mpsc, oneshot};

pub use containers::Sizes;
pub use join::{JoinError, Joined, Joining, join};
pub use launch::{LaunchError, YarnLaunch};
pub use order::{Gone, Places};

use super::{ContainerRequest, ContainerSource};
use order::{ClusterOrder, Finish};

/// The driver's handle. Clones send orders to the same task.
#[derive(Clone, Debug)]
pub struct YarnCluster {
    orders: mpsc::UnboundedSender<ClusterOrder>,
    places: Places,
}

impl YarnCluster {
    fn order(&self, order: ClusterOrder) {
        // The task ends only with the attempt, which `Gone` reports.
        let _ended = self.orders.send(order);
    }

    /// Sends an order about a container. A container may report any text as its id; texts that are not ids are ignored.
    fn about(
        &self,
        container: &ContainerName,
        order: impl FnOnce(heddle_yarn::ContainerId) -> ClusterOrder,
    ) {
        if let Ok(id) = container.0.parse() {
            self.order(order(id));
        }
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
        self.order(ClusterOrder::Finish(Finish { status, diagnostics, tracking_url, reply }));
        answer.await.unwrap_or(Err(AmError::Shutdown))
    }
}

impl ContainerSource for YarnCluster {
    fn ask(&mut self, ask: ContainerRequest) {
        self.order(ClusterOrder::Ask(ask));
    }

    fn cancel(&mut self, slot: Slot, incarnation: Incarnation) {
        self.order(ClusterOrder::Cancel(slot, incarnation));
    }

    fn release(&mut self, container: &ContainerName) {
        self.about(container, ClusterOrder::Release);
    }

    fn launch(&mut self, container: &ContainerName, member: Member) {
        self.about(container, |id| ClusterOrder::Launch(id, member));
    }

    fn stop(&mut self, container: &ContainerName, grace_ms: u64) {
        self.about(container, |id| ClusterOrder::Stop(id, grace_ms));
    }

    fn known(&mut self, container: &ContainerName, member: Member) {
        self.about(container, |id| ClusterOrder::Known(id, member));
    }

    fn look(&mut self, member: Member) {
        self.order(ClusterOrder::Look(member));
    }

    fn progress(&mut self, done: f32) {
        self.order(ClusterOrder::Progress(done));
    }

    fn placement(&self, member: Member) -> Option<Placement> {
        self.places.get(member)
    }
}
