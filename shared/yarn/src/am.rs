//! The ApplicationMaster's side: register, heartbeat, unregister (`ApplicationMasterProtocol`).
//!
//! `session` and `table` decide without sockets what a request contains and what a response means. This module makes the
//! calls.

mod am_loop;
mod ask;
mod constraint;
mod environment;
mod error;
mod event;
mod session;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use heddle_hadoop::Token;
use heddle_hadoop::rpc::{CallOptions, CallOutcome, RpcError, RpcProxy};
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

pub use am_loop::{AmHandle, AmLoop, HeartbeatInterval};
pub use ask::{Ask, DEFAULT_RACK, NodeName, RequestedPlacement};
pub use constraint::{Constraint, Scope};
pub use environment::{AmEnvironment, AmEnvironmentError};
pub use error::AmError;
pub use event::{AmEvent, Excess, Preemption, UpdateKind};
pub use session::{ClusterView, Update};

use crate::cluster::Cluster;
use crate::container::AskId;
use crate::ids::ContainerId;
use crate::launch::Access;
use crate::node_managers::NodeTokens;
use crate::proto;
use crate::resource::{ResourceTypes, Resources};
use error::{HeartbeatFault, Meaning};
use session::{AmSession, Delivery, RefusedPart};

/// Pause between calls of `finishApplicationMaster` until the ResourceManager confirms the end, as in Java.
const FINISH_PAUSE: Duration = Duration::from_millis(100);

/// The ResourceManager's response to a registration (`RegisterApplicationMasterResponse`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Registered {
    /// Largest container.
    pub maximum: Resources,
    /// The resource types of the cluster. The ResourceManager ignores others in asks without an error.
    pub resource_types: ResourceTypes,
    /// The queue of the application.
    pub queue: String,
    /// The users that may view and change the application. The ApplicationMaster's pages must enforce them.
    pub acls: BTreeMap<Access, String>,
}

/// The final status that the application reports (`FinalApplicationStatus`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FinalStatus {
    /// The application succeeded.
    Succeeded,
    /// The application failed.
    Failed,
    /// The application was killed.
    Killed,
}

impl From<FinalStatus> for proto::FinalApplicationStatusProto {
    fn from(status: FinalStatus) -> Self {
        match status {
            FinalStatus::Succeeded => Self::AppSucceeded,
            FinalStatus::Failed => Self::AppFailed,
            FinalStatus::Killed => Self::AppKilled,
        }
    }
}

/// The addresses that the ApplicationMaster registers (`RegisterApplicationMasterRequest`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AmEndpoint {
    /// Its host, shown in reports.
    pub host: String,
    /// A port of its own choice, shown in reports; 0 for none.
    pub port: u16,
    /// Its tracking URL, `http://host:port`; empty for none. YARN's proxy forwards browsers there.
    pub tracking_url: String,
}

/// The connection of one attempt to the ResourceManager.
///
/// Call [`register`](Self::register) once, then start an [`AmLoop`], or call [`allocate`](Self::allocate) at an interval well
/// below the expiry (15 minutes by default; Java's interval is one second), then [`finish`](Self::finish). After a restart or
/// failover of the ResourceManager it registers again and reports [`AmEvent::Resynchronised`].
///
/// # Cancel safety
/// All calls are cancel safe: the next `allocate` repeats an unanswered request.
pub struct ApplicationMaster {
    cluster: Cluster,
    proxy: RpcProxy,
    token: Token,
    session: AmSession,
    node_tokens: NodeTokens,
    place: Option<AmEndpoint>,
    must_register: bool,
    fault: HeartbeatFault,
}

impl ApplicationMaster {
    /// The attempt for which `token`, an `AMRMToken` (`YARN_AM_RM_TOKEN`), was issued.
    pub fn new(cluster: &Cluster, token: Token) -> Self {
        Self {
            cluster: cluster.clone(),
            proxy: cluster.scheduler_proxy(token.clone()),
            token,
            session: AmSession::default(),
            node_tokens: NodeTokens::default(),
            place: None,
            must_register: true,
            fault: HeartbeatFault::default(),
        }
    }

    /// The tokens for NodeManagers that arrive with grants. All clones share one set.
    pub fn node_tokens(&self) -> NodeTokens {
        self.node_tokens.clone()
    }

    /// Registers the attempt. `None` if it is already registered by a call whose answer was lost. The next
    /// [`allocate`](Self::allocate) returns containers of earlier attempts as [`AmEvent::Recovered`].
    ///
    /// # Errors
    /// [`AmError::Fenced`] when the attempt has ended, else the error of the call.
    pub async fn register(&mut self, place: AmEndpoint) -> Result<Option<Registered>, AmError> {
        self.place = Some(place);
        self.register_again().await
    }

    /// Sets the target of an ask: the number of containers **in all**, held ones included. The next heartbeat requests the
    /// difference. A target below the held number requests nothing; [`release`](Self::release) releases containers.
    ///
    /// `id` is at least 1. With one id for each slot, a grant names its slot. Another `ask` under the same id replaces the
    /// first.
    pub fn want(&mut self, id: AskId, ask: Ask, target: u32) {
        self.session.want(id, ask, target);
    }

    /// Removes an ask whose id will not be used again. Its containers stay held, and later grants are
    /// [`AmEvent::Excess`]. This keeps the table small when each container has its own ask.
    pub fn forget(&mut self, id: AskId) {
        self.session.table.forget(id);
    }

    /// Target and number of held containers of an ask.
    pub fn counts(&self, id: AskId) -> Option<(u32, u32)> {
        self.session.table.counts(id)
    }

    /// The held containers with their asks.
    pub fn held(&self) -> impl Iterator<Item = (ContainerId, Option<AskId>)> {
        self.session.table.held()
    }

    /// Releases a container, running or not. Its ask requests another one unless its target is lowered. Returns false if
    /// the container is not held.
    pub fn release(&mut self, id: ContainerId) -> bool {
        self.session.table.release(id)
    }

    /// Assigns a recovered container to `ask`. Returns false if the container is not held or has an ask, or if the ask
    /// does not exist.
    pub fn adopt(&mut self, id: ContainerId, ask: AskId) -> bool {
        self.session.table.adopt(id, ask)
    }

    /// Sets the hosts on which the scheduler places no further containers (`ResourceBlacklistRequest`). Replaces the last
    /// set. Exclude few hosts: a set of all hosts prevents every grant.
    pub fn exclude(&mut self, hosts: BTreeSet<String>) {
        self.session.exclude(hosts);
    }

    /// Names hosts that an earlier attempt may have excluded: the ResourceManager hands its exclusions to the next one. A host
    /// that this attempt does not exclude itself is admitted again. Hosts of recovered containers need not be named.
    pub fn may_be_excluded(&mut self, hosts: impl IntoIterator<Item = String>) {
        self.session.may_be_excluded(hosts);
    }

    /// Requests a change of a container. Its result is [`AmEvent::Updated`] or [`AmEvent::UpdateFailed`].
    pub fn update(&mut self, id: ContainerId, update: Update) {
        self.session.update(id, update);
    }

    /// Whether the next heartbeat has changes, so that the caller may send it before the interval ends.
    pub fn has_news(&self) -> bool {
        self.session.has_news()
    }

    /// Whether a target is above the number of held containers.
    pub fn is_waiting(&self) -> bool {
        self.session.table.is_waiting()
    }

    /// The state of the cluster in the last response.
    pub fn view(&self) -> &ClusterView {
        &self.session.view
    }

    /// Sends one heartbeat with the asks and returns the events of its response. `progress` is 0 … 1. Recovered containers
    /// are returned before the heartbeat, so that the caller can adopt them instead of requesting others.
    ///
    /// # Errors
    /// [`AmError::Fenced`]: the ResourceManager has ended this attempt. Stop without [`finish`](Self::finish).
    /// [`AmError::Unreachable`]: no ResourceManager answered within [`CallTimeouts::call`](crate::CallTimeouts::call); call
    /// again. [`AmError::Failed`]: it answered with an exception without a known class; call again after a pause.
    pub async fn allocate(&mut self, progress: f32) -> Result<Vec<AmEvent>, AmError> {
        loop {
            if self.must_register {
                self.register_again().await?;
            }
            if self.session.has_recovered() {
                // An adopted container needs no replacement, so recovered ones are returned before a request.
                return Ok(self.session.take_events());
            }
            let request = self.session.request(progress);
            let answer = self.proxy.call("allocate", &request, self.cluster.rm_call()).await;
            match answer {
                Ok(response) => {
                    self.fault.clear();
                    let delivery = self.session.answered(&response);
                    match delivery.command {
                        None => {
                            self.take(delivery);
                            return Ok(self.session.take_events());
                        }
                        Some(proto::AmCommandProto::AmResync) => self.forgotten(),
                        Some(proto::AmCommandProto::AmShutdown) => return Err(AmError::Shutdown),
                    }
                }
                Err(error) => self.handle_error(error, Instant::now())?,
            }
        }
    }

    /// Ends the application. The first accepted status and diagnostics are final. Exit the process soon afterwards.
    ///
    /// The ResourceManager closes the attempt and rejects its token once it has recorded the end. So if an answer was lost
    /// and the attempt is closed, this call has succeeded.
    ///
    /// # Errors
    /// See [`allocate`](Self::allocate).
    pub async fn finish(
        &mut self,
        status: FinalStatus,
        diagnostics: &str,
        tracking_url: &str,
    ) -> Result<(), AmError> {
        let request = proto::FinishApplicationMasterRequestProto {
            diagnostics: Some(diagnostics.to_owned()),
            tracking_url: Some(tracking_url.to_owned()),
            final_application_status: Some(proto::FinalApplicationStatusProto::from(status).into()),
        };
        let timeouts = self.cluster.timeouts();
        let end = Instant::now() + timeouts.call;
        let mut may_be_recorded = false;
        loop {
            if self.must_register {
                self.register_again().await?;
            }
            // The loop is here and not in the RPC layer, which does not report that an earlier try was sent.
            let left = end.saturating_duration_since(Instant::now());
            let options = CallOptions::unless_executed(left).with_attempt_timeout(timeouts.attempt);
            let answer: Result<proto::FinishApplicationMasterResponseProto, RpcError> =
                self.proxy.call("finishApplicationMaster", &request, options).await;
            match answer {
                Ok(answer) if answer.is_unregistered() => return Ok(()),
                Ok(_) => may_be_recorded = true,
                Err(error) => match Meaning::of(&error) {
                    Meaning::NotRegistered => self.forgotten(),
                    Meaning::Fenced if may_be_recorded => return Ok(()),
                    _ if error.outcome() == CallOutcome::Unknown && Instant::now() < end => {
                        may_be_recorded = true;
                    }
                    _ => return Err(AmError::from(error)),
                },
            }
            sleep(FINISH_PAUSE).await;
        }
    }

    async fn register_again(&mut self) -> Result<Option<Registered>, AmError> {
        let place = self.place.clone().unwrap_or_default();
        let request = proto::RegisterApplicationMasterRequestProto {
            host: Some(place.host),
            rpc_port: Some(place.port.into()),
            tracking_url: Some(place.tracking_url),
            placement_constraints: Vec::new(),
        };
        let answer: Result<proto::RegisterApplicationMasterResponseProto, RpcError> =
            self.proxy.call("registerApplicationMaster", &request, self.cluster.rm_call()).await;
        match answer {
            Ok(answer) => {
                self.must_register = false;
                let delivery = self.session.registered(&answer);
                self.take(delivery);
                Ok(Some(registered(&answer)))
            }
            Err(error) if matches!(Meaning::of(&error), Meaning::AlreadyRegistered) => {
                self.must_register = false;
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn forgotten(&mut self) {
        info!("am_registration_lost");
        self.session.forgotten();
        self.must_register = true;
    }

    /// Handles an exception with a known meaning, or returns the error.
    fn handle_error(&mut self, error: RpcError, now: Instant) -> Result<(), AmError> {
        let message =
            error.remote().map(|exception| exception.message().to_owned()).unwrap_or_default();
        let continues = match Meaning::of(&error) {
            Meaning::NotRegistered => {
                self.forgotten();
                true
            }
            Meaning::ResponseId(expected) => {
                warn!(expected, "response_id_corrected");
                self.session.response_id_is(expected);
                true
            }
            Meaning::BadAsk => self.session.refused(RefusedPart::Asks, &message),
            Meaning::BadRelease => self.session.refused(RefusedPart::Releases, &message),
            Meaning::BadExclusion => self.session.refused(RefusedPart::Exclusions, &message),
            // An exception without a known class is mostly transient. If it persists, the request causes it, and the same
            // request would fail until the attempt expires.
            Meaning::Other
                if error.outcome() == CallOutcome::Answered && error.remote().is_some() =>
            {
                if !self.fault.persists(now) {
                    return Err(AmError::Failed(error));
                }
                self.fault.clear();
                self.session.refused(RefusedPart::Asks, &message)
            }
            Meaning::AlreadyRegistered | Meaning::Fenced | Meaning::Other => false,
        };
        if continues { Ok(()) } else { Err(error.into()) }
    }

    /// Stores the tokens of a response.
    fn take(&mut self, delivery: Delivery) {
        for (node, token) in delivery.nm_tokens {
            debug!(%node, "node_token_received");
            self.node_tokens.put(node, token);
        }
        if let Some(token) = delivery.amrm_token
            && (token.identifier(), token.password())
                != (self.token.identifier(), self.token.password())
        {
            // The ResourceManager repeats the token until a connection uses it, and later rejects the old one.
            info!("amrm_token_rolled");
            self.proxy.set_login(self.cluster.login(Some(token.clone())));
            self.token = token;
            self.session.push(AmEvent::TokenRolled);
        }
    }
}

fn registered(answer: &proto::RegisterApplicationMasterResponseProto) -> Registered {
    let acls = answer.application_ac_ls.iter().map(|entry| {
        let access = match entry.access_type() {
            proto::ApplicationAccessTypeProto::AppaccessViewApp => Access::View,
            proto::ApplicationAccessTypeProto::AppaccessModifyApp => Access::Modify,
        };
        (access, entry.acl().to_owned())
    });
    Registered {
        maximum: answer.maximum_capability.as_ref().map(Resources::from).unwrap_or_default(),
        resource_types: ResourceTypes::from_proto(&answer.resource_types),
        queue: answer.queue().to_owned(),
        acls: acls.collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use heddle_hadoop::configuration::{Configuration, Environment};
    use heddle_hadoop::rpc::RemoteException;
    use heddle_hadoop::{HostPort, User};

    use super::*;
    use crate::resource::{Memory, VCores};

    const A: AskId = AskId(1);

    /// An attempt with one ask and a pending heartbeat. It makes no call.
    fn am() -> ApplicationMaster {
        let configuration = Configuration::with_defaults(Environment::empty());
        let cluster = Cluster::new(&configuration, User::new("alice")).unwrap();
        let token = Token::new("", "", "YARN_AM_RM_TOKEN", "");
        let mut am = ApplicationMaster::new(&cluster, token);
        let ask = Ask { resources: Resources::new(Memory::mib(64), VCores(1)), ..Ask::default() };
        am.want(A, ask, 1);
        am.session.request(0.0);
        am
    }

    fn thrown(class: &str, message: &str) -> RpcError {
        RpcError::Remote {
            address: HostPort::new("rm", 8030),
            method: "allocate".into(),
            source: RemoteException::new(class, message),
        }
    }

    #[tokio::test]
    async fn an_unknown_exception_refuses_an_ask_after_ten_seconds() {
        let mut am = am();
        let start = Instant::now();
        for seconds in [0, 5, 9] {
            let npe = thrown("java.lang.NullPointerException", "");
            let error = am
                .handle_error(npe, start + Duration::from_secs(seconds))
                .expect_err("the ResourceManager is the cause");
            assert!(error.is_retryable() && !error.is_fenced(), "after {seconds} s: {error:?}");
            assert!(am.session.has_news(), "the same heartbeat goes out again");
            assert_eq!(am.counts(A), Some((1, 0)));
        }
        let npe = thrown("java.lang.NullPointerException", "no rack");
        am.handle_error(npe, start + Duration::from_secs(10)).expect("the ask is the cause");
        assert!(matches!(
            &*am.session.take_events(),
            [AmEvent::Refused { ask: A, message }] if message == "no rack"
        ));
    }

    #[tokio::test]
    async fn a_known_exception_refuses_an_ask_at_once() {
        let class = "org.apache.hadoop.yarn.exceptions.InvalidResourceRequestException";
        let mut am = am();
        am.handle_error(thrown(class, "too much"), Instant::now()).expect("the ask is the cause");
        assert_eq!(am.counts(A), Some((0, 0)));
    }
}
