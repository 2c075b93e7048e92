//! Where a cluster is, and as whom we speak to it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use heddle_hadoop::configuration::{Configuration, PropertyError, RmService, ServersError};
use heddle_hadoop::rpc::{CallOptions, Login, RpcClient, RpcOptions, RpcProxy};
use heddle_hadoop::sasl::SecurityPolicy;
use heddle_hadoop::{HostPort, Token, User};
use tokio::time::timeout;

use crate::ids::NodeId;
use crate::timeouts::{CallTimeouts, rpc_options};

/// Interfaces by their Java names, which servers compare.
const APPLICATION_CLIENT: &str = "org.apache.hadoop.yarn.api.ApplicationClientProtocolPB";
const APPLICATION_MASTER: &str = "org.apache.hadoop.yarn.api.ApplicationMasterProtocolPB";
const CONTAINER_MANAGEMENT: &str = "org.apache.hadoop.yarn.api.ContainerManagementProtocolPB";

/// After how long a call to a ResourceManager counts as slow.
const SLOW: Duration = Duration::from_secs(2);

/// Told once for each call to a ResourceManager that takes long: the servers, and how long the call may take in all.
pub type SlowCall = Arc<dyn Fn(&[HostPort], Duration) + Send + Sync>;

/// A cluster as a user sees it. Cheap to clone; connections are shared.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use heddle_hadoop::configuration::{Configuration, Environment};
/// use heddle_yarn::{YarnClient, Cluster};
///
/// let configuration = Configuration::load(Environment::of_process())?;
/// let client = YarnClient::new(&Cluster::new(&configuration, "alice".into_user())?);
/// # Ok(()) }
/// # trait U { fn into_user(self) -> heddle_hadoop::User; }
/// # impl U for &str { fn into_user(self) -> heddle_hadoop::User { heddle_hadoop::User::new(self) } }
/// ```
#[derive(Clone)]
pub struct Cluster {
    shared: Arc<ClusterInner>,
}

struct ClusterInner {
    rpc: RpcClient,
    client_addresses: Vec<HostPort>,
    scheduler_addresses: Vec<HostPort>,
    user: User,
    policy: SecurityPolicy,
    limits: CallTimeouts,
    slow_call: Option<SlowCall>,
}

/// Configuration that does not say where the cluster is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// The addresses of the ResourceManagers are wrong.
    #[error("the configuration does not name the ResourceManager")]
    Addresses(#[from] ServersError),
    /// A value that is none.
    #[error("a setting of security or of the RPC cannot be used")]
    Value(#[from] PropertyError),
}

impl Cluster {
    /// The cluster of a configuration (`yarn.resourcemanager.address`, `.scheduler.address`, `.ha.*`), with the times
    /// that it states: see [`rpc_options`] and [`CallTimeouts::of`].
    ///
    /// # Errors
    /// Addresses, security settings or times that cannot be read.
    pub fn new(configuration: &Configuration, user: User) -> Result<Self, ClusterError> {
        Self::with(
            configuration,
            user,
            rpc_options(configuration)?,
            CallTimeouts::of(configuration)?,
        )
    }

    /// The same with other times.
    ///
    /// # Errors
    /// As [`Cluster::new`].
    pub fn with(
        configuration: &Configuration,
        user: User,
        options: RpcOptions,
        limits: CallTimeouts,
    ) -> Result<Self, ClusterError> {
        let shared = ClusterInner {
            rpc: RpcClient::new(options),
            client_addresses: RmService::Client.addresses(configuration)?,
            scheduler_addresses: RmService::Scheduler.addresses(configuration)?,
            user,
            policy: SecurityPolicy::of(configuration)?,
            limits,
            slow_call: None,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Has `tell` called for each call of a [`YarnClient`](crate::YarnClient) that no ResourceManager has answered for 2 s.
    #[must_use]
    pub fn telling_slow_calls(self, tell: SlowCall) -> Self {
        let shared = &*self.shared;
        Self {
            shared: Arc::new(ClusterInner {
                rpc: shared.rpc.clone(),
                client_addresses: shared.client_addresses.clone(),
                scheduler_addresses: shared.scheduler_addresses.clone(),
                user: shared.user.clone(),
                policy: shared.policy.clone(),
                limits: shared.timeouts,
                slow_call: Some(tell),
            }),
        }
    }

    /// Waits for a call to a ResourceManager, telling of it when it takes long.
    pub(crate) async fn watched<T>(&self, call: impl Future<Output = T>) -> T {
        let Some(tell) = &self.shared.slow_call else {
            return call.await;
        };
        let mut call = pin!(call);
        match timeout(SLOW, &mut call).await {
            Ok(answer) => answer,
            Err(_) => {
                tell(&self.shared.client_addresses, self.shared.timeouts.call);
                call.await
            }
        }
    }

    /// As whom we speak where no token says otherwise.
    pub fn user(&self) -> &User {
        &self.shared.user
    }

    /// Where clients call the ResourceManagers.
    pub fn resource_managers(&self) -> &[HostPort] {
        &self.shared.client_addresses
    }

    /// How long calls may take.
    pub fn timeouts(&self) -> CallTimeouts {
        self.shared.timeouts
    }

    /// For a call to a ResourceManager that may be made twice.
    pub(crate) fn rm_call(&self) -> CallOptions {
        CallOptions::idempotent(self.shared.timeouts.call)
            .with_attempt_timeout(self.shared.timeouts.attempt)
    }

    pub(crate) fn login(&self, token: Option<Token>) -> Login {
        Login { user: self.shared.user.clone(), token, policy: self.shared.policy.clone() }
    }

    pub(crate) fn client_proxy(&self, token: Option<Token>) -> RpcProxy {
        self.shared.rpc.proxy(
            APPLICATION_CLIENT,
            self.shared.client_addresses.clone(),
            self.login(token),
        )
    }

    pub(crate) fn scheduler_proxy(&self, token: Token) -> RpcProxy {
        self.shared.rpc.proxy(
            APPLICATION_MASTER,
            self.shared.scheduler_addresses.clone(),
            self.login(Some(token)),
        )
    }

    pub(crate) fn node_proxy(&self, node: &NodeId, token: Token) -> RpcProxy {
        let address = HostPort::new(&node.host, node.port);
        self.shared.rpc.proxy(CONTAINER_MANAGEMENT, [address], self.login(Some(token)))
    }
}
