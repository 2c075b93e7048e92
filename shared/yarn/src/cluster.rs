//! A cluster: its addresses, the user, and connections to its servers.

use std::net::ToSocketAddrs as _;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use heddle_hadoop::configuration::{Configuration, PropertyError, RmService, ServersError};
use heddle_hadoop::identity::Identity;
use heddle_hadoop::kerberos::ServerPrincipal;
use heddle_hadoop::rpc::{CallOptions, Login, RpcClient, RpcOptions, RpcProxy};
use heddle_hadoop::sasl::SecurityPolicy;
use heddle_hadoop::token::{ServiceNames, token_kind};
use heddle_hadoop::{HostPort, Token, User};
use tokio::time::timeout;

use crate::ids::NodeId;
use crate::timeouts::{CallTimeouts, rpc_options};

/// Interfaces by their Java names, which servers compare.
const APPLICATION_CLIENT: &str = "org.apache.hadoop.yarn.api.ApplicationClientProtocolPB";
const APPLICATION_MASTER: &str = "org.apache.hadoop.yarn.api.ApplicationMasterProtocolPB";
const CONTAINER_MANAGEMENT: &str = "org.apache.hadoop.yarn.api.ContainerManagementProtocolPB";

/// Time after which a call to a ResourceManager counts as slow.
const SLOW: Duration = Duration::from_secs(2);

/// Called once for each slow call to a ResourceManager, with the servers and the timeout of the call.
pub type SlowCall = Arc<dyn Fn(&[HostPort], Duration) + Send + Sync>;

/// A cluster for one user. Cheap to clone; clones share connections.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use heddle_hadoop::configuration::{Configuration, Environment};
/// use heddle_hadoop::User;
/// use heddle_yarn::{Cluster, YarnClient};
///
/// let configuration = Configuration::load(Environment::of_process())?;
/// let client = YarnClient::new(&Cluster::new(&configuration, User::new("alice"))?);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Cluster {
    shared: Arc<ClusterInner>,
}

#[derive(Clone)]
struct ClusterInner {
    rpc: RpcClient,
    client_addresses: Vec<HostPort>,
    scheduler_addresses: Vec<HostPort>,
    user: User,
    policy: SecurityPolicy,
    /// The login of clients at ResourceManagers.
    client_login: Login,
    timeouts: CallTimeouts,
    slow_call: Option<SlowCall>,
}

/// Why a configuration does not describe a cluster.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// The addresses of the ResourceManagers are wrong.
    #[error("cannot find the ResourceManager in the configuration")]
    Addresses(#[from] ServersError),
    /// A value does not parse.
    #[error("cannot use a setting of security or RPC")]
    Value(#[from] PropertyError),
}

impl Cluster {
    /// The cluster of a configuration (`yarn.resourcemanager.address`, `.scheduler.address`, `.ha.*`), with its timeouts:
    /// see [`rpc_options`] and [`CallTimeouts::of`].
    ///
    /// # Errors
    /// Addresses, security settings or timeouts do not parse.
    pub fn new(configuration: &Configuration, user: User) -> Result<Self, ClusterError> {
        Self::with(
            configuration,
            user,
            rpc_options(configuration)?,
            CallTimeouts::of(configuration)?,
        )
    }

    /// [`Cluster::new`] with other timeouts.
    ///
    /// # Errors
    /// See [`Cluster::new`].
    pub fn with(
        configuration: &Configuration,
        user: User,
        options: RpcOptions,
        timeouts: CallTimeouts,
    ) -> Result<Self, ClusterError> {
        let policy = SecurityPolicy::of(configuration)?;
        let shared = ClusterInner {
            client_login: Login {
                user: user.clone(),
                token: None,
                kerberos: None,
                policy: policy.clone(),
            },
            rpc: RpcClient::new(options),
            client_addresses: RmService::Client.addresses(configuration)?,
            scheduler_addresses: RmService::Scheduler.addresses(configuration)?,
            user,
            policy,
            timeouts,
            slow_call: None,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Calls `observer` for each call of a [`YarnClient`](crate::YarnClient) that no ResourceManager answers within 2 s.
    #[must_use]
    pub fn with_slow_call_observer(self, observer: SlowCall) -> Self {
        let inner = ClusterInner { slow_call: Some(observer), ..(*self.shared).clone() };
        Self { shared: Arc::new(inner) }
    }

    /// Calls ResourceManagers with this identity: by its delegation token for them, else by Kerberos.
    ///
    /// # Errors
    /// The value of `yarn.resourcemanager.principal` does not resolve.
    pub fn with_identity(
        self,
        configuration: &Configuration,
        identity: &Identity,
    ) -> Result<Self, ClusterError> {
        let server = ServerPrincipal::of_resource_manager(configuration)?;
        let token = rm_token(identity, &self.shared.client_addresses);
        let inner = ClusterInner {
            user: identity.user.clone(),
            client_login: identity.login(token, server),
            ..(*self.shared).clone()
        };
        Ok(Self { shared: Arc::new(inner) })
    }

    /// Whether clients have a delegation token of the ResourceManagers.
    pub fn has_client_token(&self) -> bool {
        self.shared.client_login.token.is_some()
    }

    /// Waits for a call to a ResourceManager and reports it when it is slow.
    pub(crate) async fn watched<T>(&self, call: impl Future<Output = T>) -> T {
        let Some(observer) = &self.shared.slow_call else {
            return call.await;
        };
        let mut call = pin!(call);
        match timeout(SLOW, &mut call).await {
            Ok(answer) => answer,
            Err(_) => {
                observer(&self.shared.client_addresses, self.shared.timeouts.call);
                call.await
            }
        }
    }

    /// The user of connections without a token.
    pub fn user(&self) -> &User {
        &self.shared.user
    }

    /// Addresses of the ResourceManagers for clients.
    pub fn resource_managers(&self) -> &[HostPort] {
        &self.shared.client_addresses
    }

    /// Timeouts of calls.
    pub fn timeouts(&self) -> CallTimeouts {
        self.shared.timeouts
    }

    /// Options of an idempotent call to a ResourceManager.
    pub(crate) fn rm_call(&self) -> CallOptions {
        CallOptions::idempotent(self.shared.timeouts.call)
            .with_attempt_timeout(self.shared.timeouts.attempt)
    }

    pub(crate) fn login(&self, token: Option<Token>) -> Login {
        Login {
            user: self.shared.user.clone(),
            token,
            kerberos: None,
            policy: self.shared.policy.clone(),
        }
    }

    pub(crate) fn client_proxy(&self, token: Option<Token>) -> RpcProxy {
        let login = match token {
            Some(_) => self.login(token),
            None => self.shared.client_login.clone(),
        };
        self.shared.rpc.proxy(APPLICATION_CLIENT, self.shared.client_addresses.clone(), login)
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

/// The delegation token of these ResourceManagers. Names are looked up only if there is a choice.
fn rm_token(identity: &Identity, servers: &[HostPort]) -> Option<Token> {
    let kind = token_kind::RM_DELEGATION;
    let mut all = identity.credentials.of_kind(kind);
    let first = all.next()?;
    if all.next().is_none() {
        return Some(first.clone());
    }
    let mut names = ServiceNames::new();
    for server in servers {
        names = names.with_host(server);
        let resolved = (server.host(), server.port()).to_socket_addrs();
        for address in resolved.into_iter().flatten() {
            names = names.with_ip(address);
        }
    }
    identity.credentials.for_service(kind, &names).cloned()
}
