//! Joining a cluster as an attempt's ApplicationMaster: register, first heartbeat, start of the session.

use std::time::Duration;

use heddle_am_core::{ContainerName, SurvivingContainer};
use heddle_hadoop::Token;
use heddle_yarn::am::Registered;
use heddle_yarn::resource::ResourceError;
use heddle_yarn::{
    AmEndpoint, AmError, AmEvent as RmEvent, ApplicationMaster, Cluster, NodeManagers,
};
use tokio::sync::{mpsc, oneshot};
use tracing::Instrument as _;

use super::YarnCluster;
use super::containers::{ContainerRegistry, Sizes};
use super::launch::YarnLaunch;
use super::node_calls::NodeCalls;
use super::order::{Gone, Places};
use super::retries::with_retries;
use super::rm_session::{RmSession, SessionParts};
use crate::cluster::Events;
use crate::event_log::EventLog;
use crate::lease::Lease;

/// Inputs to join a cluster as an attempt's ApplicationMaster.
pub struct Joining {
    /// The cluster.
    pub cluster: Cluster,
    /// The `AMRMToken`.
    pub token: Token,
    /// The address of this ApplicationMaster.
    pub place: AmEndpoint,
    /// Whether containers of an earlier attempt may be there.
    pub again: bool,
    /// The resources that the job requests.
    pub sizes: Sizes,
    /// The launch context of containers.
    pub launch: YarnLaunch,
    /// How long the ResourceManager may be silent before this attempt ends itself: its own expiry.
    pub silence_max: Duration,
    /// Renewed by each heartbeat that is answered.
    pub lease: Lease,
    /// Gets the warnings of the session.
    pub log: EventLog,
}

/// A registered attempt.
pub struct Joined {
    /// The driver's handle of the cluster.
    pub cluster: YarnCluster,
    /// The ResourceManager's answer; `None` if an earlier call registered and its answer was lost.
    pub registered: Option<Registered>,
    /// Containers of earlier attempts.
    pub kept: Vec<SurvivingContainer>,
    /// Resolves when the session ends before the job does.
    pub gone: oneshot::Receiver<Gone>,
}

/// Why an attempt could not join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The ResourceManager.
    #[error("cannot register with the ResourceManager")]
    Am(#[from] AmError),
    /// The cluster cannot grant what the job asks for.
    #[error("{role}")]
    Resources {
        /// `pservers` or `trainers`.
        role: &'static str,
        /// The resources that exceed the cluster's limits.
        source: ResourceError,
    },
}

/// Registers the attempt and starts the session; results arrive as `events`.
///
/// # Errors
/// See [`JoinError`]. After [`JoinError::Resources`] the attempt is registered: the cluster beside it can finish it.
pub async fn join(
    joining: Joining,
    events: Events,
) -> Result<(Joined, Option<JoinError>), JoinError> {
    let Joining { cluster, token, place, again, sizes, mut launch, silence_max, lease, log } =
        joining;
    let mut am = ApplicationMaster::new(&cluster, token);
    let registered =
        with_retries(silence_max, "registration", async || am.register(place.clone()).await)
            .await?;
    if let Some(registered) = &registered {
        launch.acls = registered.acls.clone();
    }
    let mut containers = ContainerRegistry::new(sizes.clone());
    let mut kept = Vec::new();
    let mut early = Vec::new();
    if again {
        let first = async || am.allocate(0.0).await;
        for event in with_retries(silence_max, "first heartbeat", first).await? {
            match event {
                RmEvent::Recovered(container) => {
                    kept.push(SurvivingContainer {
                        container: ContainerName(container.id.to_string()),
                        node: container.node.host.clone(),
                    });
                    containers.kept(container);
                }
                other => early.push(other),
            }
        }
    }
    let too_much = registered.as_ref().and_then(|registered| {
        sizes.all().into_iter().find_map(|(role, asked)| {
            let checked = registered.resource_types.check(asked, &registered.maximum);
            checked.err().map(|source| JoinError::Resources { role, source })
        })
    });
    let (orders, incoming) = mpsc::unbounded_channel();
    let (done, finished) = mpsc::unbounded_channel();
    let (lost, gone) = oneshot::channel();
    let places = Places::default();
    let session = RmSession::new(SessionParts {
        calls: NodeCalls::new(NodeManagers::new(&cluster, am.node_tokens()), launch, done),
        containers,
        events,
        places: places.clone(),
        has_predecessor: again,
        silence_max,
        lease,
        log,
    });
    let session = session.run(am, early, incoming, finished, lost);
    tokio::spawn(session.instrument(tracing::info_span!("rm_session")));
    let joined = Joined { cluster: YarnCluster { orders, places }, registered, kept, gone };
    Ok((joined, too_much))
}
