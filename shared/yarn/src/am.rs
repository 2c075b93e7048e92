//! The ApplicationMaster's side: register, heartbeat, finish (`ApplicationMasterProtocol`).
//!
//! What to say and what an answer means is decided without sockets in `session` and `table`; this file makes the calls.

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

/// Pause between calls of `finishApplicationMaster` until the ResourceManager has noted the end (Java's is the same).
const FINISH_PAUSE: Duration = Duration::from_millis(100);

/// What the ResourceManager said to a registration (`RegisterApplicationMasterResponse`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registered {
    /// The most that one container may have.
    pub maximum: Resources,
    /// The resource types that the cluster knows; others would be dropped from asks in silence.
    pub resource_types: ResourceTypes,
    /// The queue that the application runs in.
    pub queue: String,
    /// Who may see and change the application: the ApplicationMaster's own pages must keep to it.
    pub acls: BTreeMap<Access, String>,
}

/// How the application says that it ended (`FinalApplicationStatus`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FinalStatus {
    /// It did what it should.
    Succeeded,
    /// It did not.
    Failed,
    /// Somebody ended it.
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

/// Where the ApplicationMaster says it is found (`RegisterApplicationMasterRequest`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AmEndpoint {
    /// Its host, shown in reports.
    pub host: String,
    /// A port of its own choice, shown in reports; 0 for none.
    pub port: u16,
    /// Its pages, `http://host:port`; empty for none. YARN's proxy forwards people there.
    pub tracking_url: String,
}

/// One attempt's conversation with the ResourceManager.
///
/// Call [`register`](Self::register) once, then [`allocate`](Self::allocate) at an interval well below the expiry (15
/// minutes by default; Java beats each second), then [`finish`](Self::finish). A restarted or failed-over ResourceManager
/// is dealt with inside: [`AmEvent::Resynchronised`] tells of it.
///
/// # Cancel safety
/// All calls: dropping a future loses nothing, the next `allocate` takes up the unanswered request.
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
    /// The attempt that `token`, an `AMRMToken` (`YARN_AM_RM_TOKEN`), was made for.
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

    /// The tokens for NodeManagers that came with grants; the same set, growing.
    pub fn node_tokens(&self) -> NodeTokens {
        self.node_tokens.clone()
    }

    /// Registers the attempt. `None`: it is registered already, by a call whose answer was lost. Containers of earlier
    /// attempts come as [`AmEvent::Recovered`] from the next [`allocate`](Self::allocate).
    ///
    /// # Errors
    /// [`AmError::Fenced`] when the attempt is over, else a failed call.
    pub async fn register(&mut self, place: AmEndpoint) -> Result<Option<Registered>, AmError> {
        self.place = Some(place);
        self.register_again().await
    }

    /// Sets how many containers of a kind are wanted **in all**, held ones included. Said with the next heartbeat. Fewer
    /// than are held: nothing more is asked for; [`release`](Self::release) gives back.
    ///
    /// `id` is at least 1. One id for each place that a container fills makes grants tell their place; the same id with
    /// another `ask` replaces it.
    pub fn want(&mut self, id: AskId, ask: Ask, target: u32) {
        self.session.want(id, ask, target);
    }

    /// Nothing more is wanted of this ask, and its number will not be used again. A container that fills it stays ours;
    /// what is still granted comes as [`AmEvent::Excess`]. Keeps the table small where each container has an ask of its own.
    pub fn forget(&mut self, id: AskId) {
        self.session.table.forget(id);
    }

    /// (target, held) of an ask.
    pub fn counts(&self, id: AskId) -> Option<(u32, u32)> {
        self.session.table.counts(id)
    }

    /// The containers that are ours, with the asks they fill.
    pub fn held(&self) -> impl Iterator<Item = (ContainerId, Option<AskId>)> {
        self.session.table.held()
    }

    /// Gives a container back, running or not. Its ask will want another unless its target is lowered. False: it is not
    /// ours.
    pub fn release(&mut self, id: ContainerId) -> bool {
        self.session.table.release(id)
    }

    /// Counts a recovered container as one of `ask`. False: it is not ours, or fills an ask already, or there is no such
    /// ask.
    pub fn adopt(&mut self, id: ContainerId, ask: AskId) -> bool {
        self.session.table.adopt(id, ask)
    }

    /// Sets the nodes, by host, on which no further container is wanted (`ResourceBlacklistRequest`). Replaces the last
    /// set. It is no help to exclude all: keep it to a few.
    pub fn exclude(&mut self, hosts: BTreeSet<String>) {
        self.session.exclude(hosts);
    }

    /// Asks for a change to a container; it ends in [`AmEvent::Updated`] or [`AmEvent::UpdateFailed`].
    pub fn update(&mut self, id: ContainerId, update: Update) {
        self.session.update(id, update);
    }

    /// Says another address of the pages from the next heartbeat on.
    pub fn set_tracking_url(&mut self, url: String) {
        if let Some(place) = &mut self.place {
            place.tracking_url.clone_from(&url);
        }
        self.session.set_tracking_url(url);
    }

    /// Whether a heartbeat now would say more than that we live. Then it need not wait for the interval.
    pub fn has_news(&self) -> bool {
        self.session.has_news()
    }

    /// What the last answer said about the cluster.
    pub fn view(&self) -> &ClusterView {
        &self.session.view
    }

    /// One heartbeat: says what is wanted and returns what happened. `progress` is 0 … 1. Recovered containers are
    /// returned at once, before the heartbeat, so that they can be adopted instead of asked for again.
    ///
    /// # Errors
    /// [`AmError::Fenced`]: this attempt is over for the ResourceManager; stop, and do not [`finish`](Self::finish).
    /// [`AmError::Unreachable`]: no ResourceManager answered within [`CallTimeouts::call`](crate::CallTimeouts::call); call again.
    /// [`AmError::Failed`]: it answered with an exception that it does not explain; call again after a pause.
    pub async fn allocate(&mut self, progress: f32) -> Result<Vec<AmEvent>, AmError> {
        loop {
            if self.must_register {
                self.register_again().await?;
            }
            if self.session.has_recovered() {
                // Who adopts them needs no others in their place, so they come before anything is asked for.
                return Ok(self.session.take_events());
            }
            let request = self.session.request(progress);
            let answer = self.proxy.call("allocate", &request, self.cluster.rm_call()).await;
            match answer {
                Ok(response) => {
                    self.fault.is_over();
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
                Err(error) => self.explain(error, Instant::now())?,
            }
        }
    }

    /// Ends the application. The first accepted status and diagnostics stand. Exit the process soon afterwards.
    ///
    /// A ResourceManager that has noted the end closes the attempt and takes its token no more. So when an answer was
    /// lost and the attempt turns out to be closed, that is taken for the end that was asked for.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
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
        let limits = self.cluster.timeouts();
        let end = Instant::now() + limits.call;
        let mut may_be_noted = false;
        loop {
            if self.must_register {
                self.register_again().await?;
            }
            // Tried again here and not by the layer below, which would not tell that an earlier try was sent.
            let left = end.saturating_duration_since(Instant::now());
            let options = CallOptions::unless_executed(left).with_attempt_timeout(limits.attempt);
            let answer: Result<proto::FinishApplicationMasterResponseProto, RpcError> =
                self.proxy.call("finishApplicationMaster", &request, options).await;
            match answer {
                Ok(answer) if answer.is_unregistered() => return Ok(()),
                Ok(_) => may_be_noted = true,
                Err(error) => match Meaning::of(&error) {
                    Meaning::NotRegistered => self.forgotten(),
                    Meaning::Fenced if may_be_noted => return Ok(()),
                    _ if error.outcome() == CallOutcome::Unknown && Instant::now() < end => {
                        may_be_noted = true;
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
        info!("the ResourceManager does not know this attempt, registering again");
        self.session.forgotten();
        self.must_register = true;
    }

    /// Goes on after an exception that tells what to do, or hands it to the caller.
    fn explain(&mut self, error: RpcError, now: Instant) -> Result<(), AmError> {
        let message =
            error.remote().map(|exception| exception.message().to_owned()).unwrap_or_default();
        let goes_on = match Meaning::of(&error) {
            Meaning::NotRegistered => {
                self.forgotten();
                true
            }
            Meaning::ResponseId(expected) => {
                warn!(expected, "the ResourceManager expects another response id");
                self.session.response_id_is(expected);
                true
            }
            Meaning::BadAsk => self.session.refused(RefusedPart::Asks, &message),
            Meaning::BadRelease => self.session.refused(RefusedPart::Releases, &message),
            Meaning::BadExclusion => self.session.refused(RefusedPart::Exclusions, &message),
            // Exceptions without a class of their own: mostly a passing fault. One that stays must be the request's: it
            // must not go out again as it is, or the attempt expires.
            Meaning::Other
                if error.outcome() == CallOutcome::Answered && error.remote().is_some() =>
            {
                if !self.fault.lasts(now) {
                    return Err(AmError::Failed(error));
                }
                self.fault.is_over();
                self.session.refused(RefusedPart::Asks, &message)
            }
            Meaning::AlreadyRegistered | Meaning::Fenced | Meaning::Other => false,
        };
        if goes_on { Ok(()) } else { Err(error.into()) }
    }

    /// Keeps the tokens of an answer.
    fn take(&mut self, delivery: Delivery) {
        for (node, token) in delivery.nm_tokens {
            debug!(%node, "token for a NodeManager");
            self.node_tokens.put(node, token);
        }
        if let Some(token) = delivery.amrm_token
            && (token.identifier(), token.password())
                != (self.token.identifier(), self.token.password())
        {
            // The ResourceManager repeats it until a connection uses it, and after a while takes no other.
            info!("the token of this attempt was replaced");
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

    /// An attempt that wants one container and has a heartbeat under way. Nothing is called.
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
    async fn unexplained_exception_blames_an_ask_after_ten_seconds() {
        let mut am = am();
        let start = Instant::now();
        for seconds in [0, 5, 9] {
            let npe = thrown("java.lang.NullPointerException", "");
            let error = am
                .explain(npe, start + Duration::from_secs(seconds))
                .expect_err("the ResourceManager is to blame");
            assert!(error.is_retryable() && !error.is_fenced(), "after {seconds} s: {error:?}");
            assert!(am.session.has_news(), "the same heartbeat goes out again");
            assert_eq!(am.counts(A), Some((1, 0)));
        }
        let npe = thrown("java.lang.NullPointerException", "no rack");
        am.explain(npe, start + Duration::from_secs(10)).expect("the ask is to blame");
        assert!(matches!(
            &*am.session.take_events(),
            [AmEvent::Refused { ask: A, message }] if message == "no rack"
        ));
    }

    #[tokio::test]
    async fn named_exception_blames_an_ask_at_once() {
        let class = "org.apache.hadoop.yarn.exceptions.InvalidResourceRequestException";
        let mut am = am();
        am.explain(thrown(class, "too much"), Instant::now()).expect("the ask is to blame");
        assert_eq!(am.counts(A), Some((0, 0)));
    }
}
