//! Whether the owner of a claim lives, on a cluster: the ResourceManager reports the state of applications.

use heddle_storage::chain;
use heddle_storage::checkpoint::Owner;
use heddle_yarn::{ApplicationId, ClientError, Cluster, YarnClient};

use crate::claim::{self, Liveness, LivenessCheck};

/// Asks the ResourceManager.
pub(super) struct YarnOwners {
    client: YarnClient,
    own: ApplicationId,
}

impl YarnOwners {
    pub(super) fn new(cluster: &Cluster, own: ApplicationId) -> Self {
        Self { client: YarnClient::new(cluster), own }
    }
}

impl LivenessCheck for YarnOwners {
    /// An application lives until the ResourceManager reports a final state, whatever happened to its nodes. An unknown
    /// application with the ResourceManager's own start time in its id is gone: the ResourceManager keeps the last
    /// thousands only. Another start time may mean another cluster that shares the file system.
    async fn lives(&self, owner: &Owner) -> Liveness {
        let Owner::Application { application, .. } = owner else {
            return claim::liveness(owner);
        };
        let Ok(id) = application.parse::<ApplicationId>() else {
            return Liveness::Unknown;
        };
        match self.client.report(id).await {
            Ok(report) if report.state.is_some_and(|state| state.is_final()) => Liveness::Gone,
            Ok(report) => {
                tracing::info!(application, state = ?report.state, "owner_alive");
                Liveness::Alive
            }
            Err(ClientError::NotFound(_)) if id.cluster_timestamp == self.own.cluster_timestamp => {
                Liveness::Gone
            }
            Err(error) if error.is_retryable() => {
                tracing::warn!(application, error = chain(&error), "owner_state_unavailable");
                Liveness::NoAnswer
            }
            Err(error) => {
                tracing::warn!(application, error = chain(&error), "owner_state_unknown");
                Liveness::Unknown
            }
        }
    }
}
