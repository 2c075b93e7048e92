//! Orders of the driver to the session, and the placements of containers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use heddle_am_core::{ContainerName, ContainerOrder};
use heddle_protocol::ids::Member;
use heddle_protocol::view::Placement;
use heddle_yarn::{AmError, FinalStatus};
use tokio::sync::oneshot;

/// Containers whose placement is kept after their end, for display: 200 bytes each.
const PLACES_MAX: usize = 20_000;

/// What the driver sends to the session.
#[derive(Debug)]
pub(super) enum ClusterOrder {
    /// An order of the core.
    Container(ContainerOrder),
    /// A container has registered.
    Registered(ContainerName, Member),
    /// The connection of a member closed.
    ConnectionClosed(Member),
    /// The finished share of the job.
    Progress(f32),
    /// Earlier attempts may have excluded these hosts.
    UsedBefore(BTreeSet<String>),
    /// Unregister.
    Finish(Finish),
}

/// Unregisters the application.
#[derive(Debug)]
pub(super) struct Finish {
    pub(super) status: FinalStatus,
    pub(super) diagnostics: String,
    pub(super) tracking_url: String,
    pub(super) reply: oneshot::Sender<Result<(), AmError>>,
}

/// Placements of containers, also of those that have ended, by the member that runs in them. A table besides the session's
/// own, because the driver reads it from another task, and names a container in reports after its end.
#[derive(Clone, Debug, Default)]
pub struct Places(Arc<Mutex<BTreeMap<Member, Placement>>>);

impl Places {
    pub(super) fn put(&self, member: Member, placement: Placement) {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        places.insert(member, placement);
        if places.len() > PLACES_MAX {
            places.pop_first();
        }
    }

    /// The placement of a member, also after its end.
    #[must_use]
    pub fn get(&self, member: Member) -> Option<Placement> {
        let places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        places.get(&member).cloned()
    }
}

/// Why the session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gone {
    /// The ResourceManager has ended this attempt. The core has not learned it yet.
    Fenced(String),
    /// The ResourceManager did not answer for longer than its expiry, so it has replaced this attempt.
    Silent(String),
}
