//! Containers from YARN.
//!
//! One task holds the conversation with the ResourceManager (`rm_session`) and gives the core's orders to it in
//! turn; calls to NodeManagers are tasks of their own (`node_calls`). What is decided about grants and ends is in
//! `containers` and `exit`, without sockets.

mod containers;
mod exit;
mod heartbeat_interval;
mod launch;
mod node_calls;
mod rm_session;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use heddle_am_core::ContainerId;
use heddle_protocol::ids::{Incarnation, Member, Slot};
use heddle_protocol::view::Placement;
use heddle_yarn::{AmError, FinalStatus};
use tokio::sync::{mpsc, oneshot};

pub use containers::Sizes;
pub use launch::{LaunchError, YarnLaunch};
pub use rm_session::{Gone, JoinError, Joined, Joining, join};

use super::{ContainerRequest, ContainerSource};

/// Containers whose place is remembered after their end, for people: 200 bytes each.
const PLACES_MAX: usize = 20_000;

/// An order of the driver.
#[derive(Debug)]
enum ClusterOrder {
    Ask(ContainerRequest),
    Cancel(Slot, Incarnation),
    Release(heddle_yarn::ContainerId),
    Launch(heddle_yarn::ContainerId, Member),
    Stop(heddle_yarn::ContainerId, u64),
    Known(heddle_yarn::ContainerId, Member),
    Look(Member),
    Progress(f32),
    Finish(Finish),
}

/// The goodbye.
#[derive(Debug)]
struct Finish {
    status: FinalStatus,
    diagnostics: String,
    tracking_url: String,
    reply: oneshot::Sender<Result<(), AmError>>,
}

/// Where containers are and were, by who runs in them.
#[derive(Clone, Debug, Default)]
pub struct Places(Arc<Mutex<BTreeMap<Member, Placement>>>);

impl Places {
    fn put(&self, member: Member, placement: Placement) {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        places.insert(member, placement);
        if places.len() > PLACES_MAX {
            places.pop_first();
        }
    }

    /// The container of a member, also after its end.
    #[must_use]
    pub fn get(&self, member: Member) -> Option<Placement> {
        let places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        places.get(&member).cloned()
    }
}

/// The driver's side. Clones give orders to the same task.
#[derive(Clone, Debug)]
pub struct YarnCluster {
    orders: mpsc::UnboundedSender<ClusterOrder>,
    places: Places,
}

impl YarnCluster {
    fn order(&self, order: ClusterOrder) {
        // The task ends only when the ResourceManager has let go of this attempt, which is told elsewhere.
        let _ended = self.orders.send(order);
    }

    /// An order about a container. Ids that a container named itself may be anything; those of YARN parse.
    fn about(
        &self,
        container: &ContainerId,
        order: impl FnOnce(heddle_yarn::ContainerId) -> ClusterOrder,
    ) {
        if let Ok(id) = container.0.parse() {
            self.order(order(id));
        }
    }

    /// Ends the application.
    ///
    /// # Errors
    /// [`AmError`]; none of the ResourceManager's when the conversation was over before.
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

    fn release(&mut self, container: &ContainerId) {
        self.about(container, ClusterOrder::Release);
    }

    fn launch(&mut self, container: &ContainerId, member: Member) {
        self.about(container, |id| ClusterOrder::Launch(id, member));
    }

    fn stop(&mut self, container: &ContainerId, grace_ms: u64) {
        self.about(container, |id| ClusterOrder::Stop(id, grace_ms));
    }

    fn known(&mut self, container: &ContainerId, member: Member) {
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
