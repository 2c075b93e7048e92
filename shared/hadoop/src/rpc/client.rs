//! The RPC client: a pool of connections, and proxies whose calls follow the active server.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use prost::Message;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout_at};
use tracing::debug;

use super::connection::{PendingCall, RpcConnection};
use super::error::{LostCause, RpcError};
use super::failover::{Decision, decide};
use super::frame::{Delimited, take_message};
use super::options::{CallOptions, Retry, RpcOptions, later};
use super::outstanding::CallResult;
use super::session::{CallFrame, SessionConfig};
use crate::address::HostPort;
use crate::kerberos::{GssapiEngine, KerberosEngine, KerberosLogin};
use crate::sasl::SecurityPolicy;
use crate::token::Token;
use crate::user::User;

/// The identity with which a proxy connects.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Login {
    /// The user, as servers without security accept it.
    pub user: User,
    /// The token for this service, used if the server accepts tokens.
    pub token: Option<Token>,
    /// The Kerberos login for this service, used without a token if the policy requires security.
    pub kerberos: Option<KerberosLogin>,
    /// The security that the connection must have.
    pub policy: SecurityPolicy,
}

impl Login {
    /// The login of a user on a cluster without security.
    pub fn simple(user: User) -> Self {
        Self { user, token: None, kerberos: None, policy: SecurityPolicy::default() }
    }

    /// The login with a token; `policy` states whether the cluster is secured.
    pub fn token(user: User, token: Token, policy: SecurityPolicy) -> Self {
        Self { user, token: Some(token), kerberos: None, policy }
    }

    /// Whether connections log in by Kerberos.
    fn uses_ticket(&self) -> bool {
        self.policy.required && self.token.is_none() && self.kerberos.is_some()
    }
}

/// An RPC client: one client id for retry caches, and a pool of connections. Cheap to clone.
///
/// The first call opens a connection. All proxies with the same address, protocol and login share it. It closes when
/// idle. The client needs a tokio runtime.
#[derive(Clone)]
pub struct RpcClient {
    shared: Arc<RpcClientInner>,
}

struct RpcClientInner {
    options: RpcOptions,
    engine: Arc<dyn KerberosEngine>,
    client_id: [u8; 16],
    next_call: AtomicI32,
    connections: Mutex<HashMap<ConnectionKey, RpcConnection>>,
}

#[derive(PartialEq, Eq, Hash)]
struct ConnectionKey {
    address: HostPort,
    protocol: Arc<str>,
    login: Arc<Login>,
}

impl RpcClient {
    /// A client with a random id and the built-in engine of Kerberos.
    ///
    /// # Panics
    /// The system has no random numbers, which on Linux happens only before it has booted.
    pub fn new(options: RpcOptions) -> Self {
        Self::with_engine(options, Arc::new(GssapiEngine))
    }

    /// A client with another engine of Kerberos.
    ///
    /// # Panics
    /// As [`RpcClient::new`].
    pub fn with_engine(options: RpcOptions, engine: Arc<dyn KerberosEngine>) -> Self {
        let mut client_id = [0; 16];
        fill_random(&mut client_id);
        // The form of a version 4 UUID, as in Java. Servers accept any 16 bytes.
        client_id[6] = client_id[6] & 0x0f | 0x40;
        client_id[8] = client_id[8] & 0x3f | 0x80;
        let shared = RpcClientInner {
            options,
            engine,
            client_id,
            next_call: AtomicI32::new(0),
            connections: Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// A proxy for `protocol` (name of the Java interface) at the active one of `servers`.
    pub fn proxy(
        &self,
        protocol: &str,
        servers: impl IntoIterator<Item = HostPort>,
        login: Login,
    ) -> RpcProxy {
        RpcProxy {
            client: self.clone(),
            protocol: protocol.into(),
            servers: servers.into_iter().collect(),
            active: AtomicUsize::new(0),
            login: Mutex::new(Arc::new(login)),
        }
    }

    /// The usable connection, or a new one. Removes ended connections from the pool.
    fn connection(&self, key: ConnectionKey) -> RpcConnection {
        let mut connections =
            self.shared.connections.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connection) = connections.get(&key).filter(|connection| connection.is_usable())
        {
            return connection.clone();
        }
        connections.retain(|_, connection| connection.is_usable());
        let kerberos = key
            .login
            .kerberos
            .clone()
            .filter(|_| key.login.uses_ticket())
            .map(|login| (login, self.shared.engine.clone()));
        let mut cnonce = [0; 30];
        fill_random(&mut cnonce);
        let config = SessionConfig {
            protocol: key.protocol.to_string(),
            user: key.login.user.clone(),
            token: key.login.token.clone(),
            policy: key.login.policy.clone(),
            cnonce: BASE64_STANDARD.encode(cnonce),
            client_id: self.shared.client_id,
            response_max: self.shared.options.response_max,
            request_max: self.shared.options.request_max,
            caller_context: self.shared.options.caller_context.clone(),
        };
        let connection =
            RpcConnection::open(key.address.clone(), config, kerberos, self.shared.options.clone());
        connections.insert(key, connection.clone());
        connection
    }

    fn next_call_id(&self) -> i32 {
        self.shared.next_call.fetch_add(1, Ordering::Relaxed) & i32::MAX
    }
}

/// One protocol at one service. Calls go to the server that answered last, and to the others when it fails.
pub struct RpcProxy {
    client: RpcClient,
    protocol: Arc<str>,
    servers: Vec<HostPort>,
    active: AtomicUsize,
    login: Mutex<Arc<Login>>,
}

impl RpcProxy {
    /// Makes one call: encodes `request`, follows the active server, decodes the reply.
    ///
    /// # Errors
    /// See [`RpcError`]; [`RpcError::outcome`] states whether the call was executed. After the timeout the error is that
    /// of the last try.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the outcome of a sent call unknown; the connection stays usable.
    pub async fn call<Request, Reply>(
        &self,
        method: &str,
        request: &Request,
        options: CallOptions,
    ) -> Result<Reply, RpcError>
    where
        Request: Message,
        Reply: Message + Default,
    {
        let deadline = later(Instant::now(), options.timeout);
        let body = Delimited::of(request);
        let id = self.client.next_call_id();
        let mut failures = 0;
        let mut attempt_limit =
            options.attempt_timeout.unwrap_or(self.client.shared.options.attempt_timeout);
        loop {
            let login = self.login();
            let by_ticket = login.uses_ticket();
            let index = self.active.load(Ordering::Acquire);
            let Some(address) = self.servers.get(index) else {
                return Err(RpcError::NoServer { protocol: self.protocol.to_string() });
            };
            let retry = i32::try_from(failures).unwrap_or(i32::MAX);
            let frame = CallFrame { id, retry, method: method.to_owned(), body: body.clone() };
            let attempt_by = deadline.min(later(Instant::now(), attempt_limit));
            let error = match self.attempt(address, login, frame, attempt_by).await {
                Ok(mut reply) => {
                    return take_message(&mut reply, "the reply").map_err(|source| {
                        RpcError::Reply {
                            address: address.clone(),
                            method: method.to_owned(),
                            source,
                        }
                    });
                }
                Err(error) => error,
            };
            failures += 1;
            if matches!(error, RpcError::Deadline { .. }) {
                // An overloaded server would never answer if each try ended after the same time.
                attempt_limit = attempt_limit.saturating_mul(2);
            }
            let Some(pause) = self.pause_after(&error, by_ticket, options.retry, index, failures)
            else {
                return Err(error);
            };
            if later(Instant::now(), pause) >= deadline {
                return Err(error);
            }
            debug!(
                method,
                failures,
                ?pause,
                error = &error as &dyn std::error::Error,
                "rpc_call_retried"
            );
            sleep(pause).await;
        }
    }

    /// The pause before the next try, or `None` when there is none. Moves on to the next server where that may help.
    fn pause_after(
        &self,
        error: &RpcError,
        by_ticket: bool,
        retry: Retry,
        index: usize,
        failures: u32,
    ) -> Option<Duration> {
        let (backoff, servers) = (self.client.shared.options.backoff, self.servers.len());
        match decide(error, by_ticket, retry, servers, failures, backoff, random_number()) {
            Decision::GiveUp => None,
            Decision::Again(pause) => Some(pause),
            Decision::Next(pause) => {
                // A concurrent call may have moved on already. Its choice stands.
                let next = (index + 1) % self.servers.len();
                let _ =
                    self.active.compare_exchange(index, next, Ordering::AcqRel, Ordering::Acquire);
                Some(pause)
            }
        }
    }

    /// Uses another login for all later calls, such as a token that the server has rolled. They use a new connection.
    /// Calls in flight end on the old connection, which then closes.
    pub fn set_login(&self, login: Login) {
        *self.login.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(login);
    }

    /// The server that the next call tries first.
    pub fn server(&self) -> Option<&HostPort> {
        self.servers.get(self.active.load(Ordering::Acquire))
    }

    /// All servers, in the order of the configuration.
    pub fn servers(&self) -> &[HostPort] {
        &self.servers
    }

    /// The login that the next connection uses.
    pub fn login(&self) -> Arc<Login> {
        self.login.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// One try at one server.
    ///
    /// A pooled connection may end as it receives the call, because it was idle or the server closed it. Nothing was sent
    /// then, so the try opens another connection. The number is bounded, because a server may close each one at once.
    async fn attempt(
        &self,
        address: &HostPort,
        login: Arc<Login>,
        frame: CallFrame,
        deadline: Instant,
    ) -> CallResult {
        const STALE_CONNECTIONS_MAX: u32 = 3;
        let started = Instant::now();
        let mut stale = 0;
        loop {
            let connection = self.client.connection(ConnectionKey {
                address: address.clone(),
                protocol: self.protocol.clone(),
                login: login.clone(),
            });
            let frame = frame.clone();
            let result = submit_and_wait(address, &connection, frame, started, deadline).await;
            match &result {
                Err(RpcError::Lost { sent: false, source, .. })
                    if source.is_retryable() && stale < STALE_CONNECTIONS_MAX =>
                {
                    stale += 1;
                }
                _ => return result,
            }
        }
    }
}

/// Submits a call to a connection and waits for its result.
async fn submit_and_wait(
    address: &HostPort,
    connection: &RpcConnection,
    frame: CallFrame,
    started: Instant,
    deadline: Instant,
) -> CallResult {
    let sent = Arc::new(OnceLock::new());
    let (reply, answer) = oneshot::channel();
    let call = PendingCall { frame, deadline, started, reply, sent: sent.clone() };
    let done = timeout_at(deadline, async {
        if connection.submit(call).await.is_err() {
            let (address, source) = (address.clone(), LostCause::Local);
            return Some(Err(RpcError::Lost { address, sent: false, source }));
        }
        answer.await.ok()
    });
    match done.await {
        Ok(Some(result)) => result,
        // The task always answers. If it panicked, the outcome of the call is unknown.
        Ok(None) | Err(_) => {
            if let Some(sent) = sent.get() {
                connection.suspect(*sent);
            }
            Err(RpcError::Deadline {
                address: address.clone(),
                sent: sent.get().is_some(),
                waited: started.elapsed(),
            })
        }
    }
}

impl std::fmt::Debug for RpcProxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RpcProxy")
            .field("protocol", &self.protocol)
            .field("servers", &self.servers)
            .field("login", &self.login())
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for RpcClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RpcClient").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

fn fill_random(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("Linux has random numbers once it has booted");
}

fn random_number() -> u64 {
    let mut bytes = [0; 8];
    fill_random(&mut bytes);
    u64::from_le_bytes(bytes)
}
