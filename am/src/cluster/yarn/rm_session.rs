//! The conversation with the ResourceManager: one task, one heartbeat at a time.
//!
//! Orders are taken in between and during heartbeats; starts and stops go to the nodes at once, whatever the
//! ResourceManager is doing. What it answers becomes the core's events.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::time::Duration;

use heddle_am_core::{ContainerId, Event, Exit, SurvivingContainer};
use heddle_hadoop::Token;
use heddle_storage::chain;
use heddle_yarn::am::{Preemption, Registered};
use heddle_yarn::resource::ResourceError;
use heddle_yarn::{
    AmEndpoint, AmError, AmEvent as Heard, ApplicationMaster, Cluster, Container, ContainerStatus,
    NodeManagers, NodeReport, NodeState, YarnClient,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::containers::{ContainerRegistry, GrantVerdict, Sizes};
use super::exit::exit_of;
use super::launch::YarnLaunch;
use super::node_calls::{Done, NodeCalls};
use super::{ClusterOrder, Finish, Places, YarnCluster, heartbeat_interval};
use crate::cluster::Events;
use crate::lease::Lease;

/// Pause after a heartbeat that failed, so that a ResourceManager that comes back is not met by a storm.
const FAILED_PAUSE: Duration = Duration::from_millis(500);
/// A container that lives has found the new ApplicationMaster by then: it looks every four seconds at the least.
const KEPT_TIME: Duration = Duration::from_secs(5);

/// What is needed to join a cluster as an attempt's ApplicationMaster.
pub struct Joining {
    /// The cluster.
    pub cluster: Cluster,
    /// The `AMRMToken`.
    pub token: Token,
    /// Where this ApplicationMaster is.
    pub place: AmEndpoint,
    /// Whether containers of an earlier attempt may be there.
    pub again: bool,
    /// What the job asks for.
    pub sizes: Sizes,
    /// What containers are started with.
    pub launch: YarnLaunch,
    /// How long the ResourceManager may be silent before this attempt gives itself up: its own expiry.
    pub silence_max: Duration,
    /// Renewed by each heartbeat that is answered.
    pub lease: Lease,
}

/// A registered attempt.
pub struct Joined {
    /// The cluster as the driver sees it.
    pub cluster: YarnCluster,
    /// What the ResourceManager said; none if an earlier call registered and its answer was lost.
    pub registered: Option<Registered>,
    /// Containers of earlier attempts.
    pub kept: Vec<SurvivingContainer>,
    /// Resolves when the conversation is over before the job is.
    pub gone: oneshot::Receiver<Gone>,
}

/// Why the conversation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gone {
    /// This attempt is over for the ResourceManager.
    Fenced(String),
    /// The ResourceManager was silent for so long that it must have given this attempt up.
    Silent(String),
}

/// Why an attempt could not join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The ResourceManager.
    #[error("registering with the ResourceManager")]
    Am(#[from] AmError),
    /// The cluster cannot grant what the job asks for.
    #[error("{role}")]
    Resources {
        /// `pservers` or `trainers`.
        role: &'static str,
        /// What is too much.
        source: ResourceError,
    },
}

/// Registers the attempt and starts the conversation; what happens comes as `events`.
///
/// # Errors
/// See [`JoinError`]. After [`JoinError::Resources`] the attempt is registered: the cluster beside it can finish it.
pub async fn join(
    joining: Joining,
    events: Events,
) -> Result<(Joined, Option<JoinError>), JoinError> {
    let Joining { cluster, token, place, again, sizes, launch, silence_max, lease } = joining;
    let mut am = ApplicationMaster::new(&cluster, token);
    let registered =
        persistently(silence_max, "registration", async || am.register(place.clone()).await)
            .await?;
    let mut containers = ContainerRegistry::new(sizes.clone());
    let mut kept = Vec::new();
    let mut early = Vec::new();
    if again {
        let first = async || am.allocate(0.0).await;
        for event in persistently(silence_max, "first heartbeat", first).await? {
            match event {
                Heard::Recovered(container) => {
                    containers.kept(&container);
                    kept.push(SurvivingContainer {
                        container: ContainerId(container.id.to_string()),
                        node: container.node.host.clone(),
                    });
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
    let session = RmSession {
        calls: NodeCalls::new(NodeManagers::new(&cluster, am.node_tokens()), launch, done.clone()),
        yarn: cluster.clone(),
        containers,
        events,
        places: places.clone(),
        started: Instant::now(),
        heard: Instant::now(),
        awaited: None,
        stops: BTreeSet::new(),
        progress: 0.0,
        kept_are_seen: !again,
        racks_asked: false,
        racks: done,
        silence_max,
        lease,
    };
    tokio::spawn(session.run(am, early, incoming, finished, lost));
    let joined = Joined { cluster: YarnCluster { orders, places }, registered, kept, gone };
    Ok((joined, too_much))
}

/// Makes one of the calls with which an attempt begins. A ResourceManager that is away, or restarts just then, is waited
/// for as long as it would wait for us: an attempt is not to be lost to it.
async fn persistently<T>(
    silence_max: Duration,
    what: &'static str,
    mut call: impl AsyncFnMut() -> Result<T, AmError>,
) -> Result<T, AmError> {
    let since = Instant::now();
    loop {
        match call().await {
            Err(error) if error.is_retryable() && since.elapsed() < silence_max => {
                tracing::warn!(error = chain(&error), what, "the ResourceManager does not answer");
                tokio::time::sleep(FAILED_PAUSE).await;
            }
            answer => return answer,
        }
    }
}

struct RmSession {
    calls: NodeCalls,
    yarn: Cluster,
    containers: ContainerRegistry,
    events: Events,
    places: Places,
    started: Instant,
    /// When the ResourceManager last answered.
    heard: Instant,
    /// Since when something is awaited.
    awaited: Option<Instant>,
    /// Containers that are given time to end by themselves.
    stops: BTreeSet<(Instant, heddle_yarn::ContainerId)>,
    progress: f32,
    /// Nobody is left to be looked at whom an earlier attempt left.
    kept_are_seen: bool,
    racks_asked: bool,
    racks: mpsc::UnboundedSender<Done>,
    silence_max: Duration,
    lease: Lease,
}

impl RmSession {
    async fn run(
        mut self,
        mut am: ApplicationMaster,
        early: Vec<Heard>,
        mut orders: mpsc::UnboundedReceiver<ClusterOrder>,
        mut finished: mpsc::UnboundedReceiver<Done>,
        lost: oneshot::Sender<Gone>,
    ) {
        for event in early {
            self.hear(&mut am, event);
        }
        let mut last = Instant::now();
        let mut failed = false;
        let mut waiting = Vec::new();
        loop {
            for order in std::mem::take(&mut waiting) {
                match order {
                    ClusterOrder::Finish(finish) => return self.finish(am, finish).await,
                    order => self.order(&mut am, order),
                }
            }
            let next = self.next_beat(&am, last, failed);
            let stop = self.stops.first().map_or(next, |(at, _)| next.min(*at));
            tokio::select! {
                biased;
                order = orders.recv() => match order {
                    Some(order) => waiting.push(order),
                    None => return,
                },
                Some(done) = finished.recv() => self.done(&mut am, done),
                () = tokio::time::sleep_until(stop) => {
                    self.stop_due();
                    if Instant::now() < next {
                        continue;
                    }
                    let asked = Instant::now();
                    let answer = self.beat(&mut am, &mut orders, &mut waiting).await;
                    last = Instant::now();
                    failed = answer.is_err();
                    self.look_at_kept();
                    self.give_late_back(&mut am);
                    if !failed {
                        self.lease.renew(asked.into_std());
                    }
                    if let Err(gone) = self.answered(&mut am, answer) {
                        let _nobody_listens = lost.send(gone);
                        return;
                    }
                }
            }
        }
    }

    /// Says goodbye. A ResourceManager that is away now may be back before it would give this attempt up.
    async fn finish(self, mut am: ApplicationMaster, finish: Finish) {
        let Finish { status, diagnostics, tracking_url, reply } = finish;
        let since = Instant::now();
        let ended = loop {
            match am.finish(status, &diagnostics, &tracking_url).await {
                Err(error) if error.is_retryable() && since.elapsed() < self.silence_max => {
                    tracing::warn!(error = chain(&error), "not yet unregistered");
                    tokio::time::sleep(FAILED_PAUSE).await;
                }
                ended => break ended,
            }
        };
        let _gone = reply.send(ended);
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn next_beat(&mut self, am: &ApplicationMaster, last: Instant, failed: bool) -> Instant {
        if failed {
            return last + FAILED_PAUSE;
        }
        if am.has_news() {
            return last + heartbeat_interval::LEAST;
        }
        if !self.containers.awaits() {
            self.awaited = None;
        } else if self.awaited.is_none() {
            self.awaited = Some(Instant::now());
        }
        last + heartbeat_interval::interval(self.awaited.map(|since| since.elapsed()))
    }

    /// One heartbeat. Orders that do not need the ResourceManager are carried out meanwhile, the others wait.
    async fn beat(
        &mut self,
        am: &mut ApplicationMaster,
        orders: &mut mpsc::UnboundedReceiver<ClusterOrder>,
        waiting: &mut Vec<ClusterOrder>,
    ) -> Result<Vec<Heard>, AmError> {
        let nodes = self.nodes(am);
        am.exclude(self.containers.exclusions(nodes, self.now()));
        let mut call = pin!(am.allocate(self.progress));
        loop {
            tokio::select! {
                answer = &mut call => return answer,
                Some(order) = orders.recv() => waiting.extend(self.order_to_a_node(order)),
            }
        }
    }

    /// Looks once at those that an earlier attempt left and that have had the time to find this one.
    fn look_at_kept(&mut self) {
        if self.kept_are_seen || self.now() < KEPT_TIME {
            return;
        }
        self.kept_are_seen = true;
        for (id, node) in self.containers.unnamed() {
            self.calls.look_at_kept(node, id);
        }
    }

    /// Gives back what the ResourceManager reported late and what nobody came from.
    fn give_late_back(&mut self, am: &mut ApplicationMaster) {
        for id in self.containers.late_and_unnamed(self.now()) {
            tracing::warn!(container = %id, "kept by an earlier attempt, and has not registered: given back");
            self.release(am, id);
        }
    }

    fn nodes(&self, am: &ApplicationMaster) -> usize {
        usize::try_from(am.view().nodes).unwrap_or(0)
    }

    fn answered(
        &mut self,
        am: &mut ApplicationMaster,
        answer: Result<Vec<Heard>, AmError>,
    ) -> Result<(), Gone> {
        match answer {
            Ok(events) => {
                self.heard = Instant::now();
                self.tell(Event::ClusterHeard);
                for event in events {
                    self.hear(am, event);
                }
                Ok(())
            }
            Err(error) if error.is_fenced() => {
                let reason = chain(&error);
                self.tell(Event::Fenced { reason: reason.clone() });
                Err(Gone::Fenced(reason))
            }
            Err(error) => {
                let silent = self.heard.elapsed();
                let error = chain(&error);
                tracing::warn!(
                    silent_s = silent.as_secs(),
                    error,
                    "no heartbeat with the ResourceManager"
                );
                if silent <= self.silence_max {
                    return Ok(());
                }
                Err(Gone::Silent(format!(
                    "no ResourceManager has answered for {} s: {error}",
                    silent.as_secs()
                )))
            }
        }
    }

    fn tell(&self, event: Event) {
        // The driver outlives this task except while the process ends.
        let _ending = self.events.send(event);
    }

    /// Carries out an order that is a node's business; gives others back.
    fn order_to_a_node(&mut self, order: ClusterOrder) -> Option<ClusterOrder> {
        match order {
            ClusterOrder::Launch(id, member) => match self.containers.take_grant(id) {
                Some(grant) => self.calls.start(grant, member),
                None => tracing::debug!(container = %id, "ended before it was started"),
            },
            ClusterOrder::Stop(id, grace_ms) => {
                if self.containers.held(id).is_some() {
                    self.containers.ending(id);
                    let at = Instant::now() + Duration::from_millis(grace_ms);
                    self.stops.insert((at, id));
                    self.stop_due();
                }
            }
            ClusterOrder::Look(member) => {
                if let Some((id, held)) = self.containers.of_member(member) {
                    self.calls.look(held.node.clone(), id);
                }
            }
            ClusterOrder::Known(id, member) => {
                self.containers.known(id, member);
                self.place(id);
            }
            ClusterOrder::Progress(progress) => self.progress = progress,
            other => return Some(other),
        }
        None
    }

    fn order(&mut self, am: &mut ApplicationMaster, order: ClusterOrder) {
        match self.order_to_a_node(order) {
            None => {}
            Some(ClusterOrder::Ask(ask)) => {
                self.ask_for_racks(&ask.prefer);
                let (id, ask) = self.containers.ask(ask);
                am.want(id, ask, 1);
            }
            Some(ClusterOrder::Cancel(slot, incarnation)) => {
                if let Some(id) = self.containers.cancel(slot, incarnation) {
                    am.forget(id);
                }
            }
            Some(ClusterOrder::Release(id)) => self.release(am, id),
            // `run` takes it itself; the others are done above.
            Some(_) => {}
        }
    }

    fn release(&mut self, am: &mut ApplicationMaster, id: heddle_yarn::ContainerId) {
        self.containers.ending(id);
        if !am.release(id) {
            tracing::debug!(container = %id, "released before");
        }
    }

    /// Ends containers whose time is over.
    fn stop_due(&mut self) {
        let now = Instant::now();
        while let Some((at, id)) = self.stops.first().copied() {
            if at > now {
                return;
            }
            self.stops.pop_first();
            if let Some(held) = self.containers.held(id) {
                self.calls.stop(held.node.clone(), id);
            }
        }
    }

    /// Racks are needed only to ask for hosts, so a job without locality asks nobody.
    fn ask_for_racks(&mut self, prefer: &[String]) {
        if prefer.is_empty() || std::mem::replace(&mut self.racks_asked, true) {
            return;
        }
        let client = YarnClient::new(&self.yarn);
        let racks = self.racks.clone();
        tokio::spawn(async move {
            match client.nodes(&[NodeState::Running]).await {
                Ok(nodes) => {
                    let by_host = |node: NodeReport| (node.id.host, node.rack);
                    let found: BTreeMap<String, String> = nodes.into_iter().map(by_host).collect();
                    let _ending = racks.send(Done::Racks(found));
                }
                Err(error) => {
                    tracing::info!(
                        error = chain(&error),
                        "racks are not known, the default is taken"
                    );
                }
            }
        });
    }

    fn done(&mut self, am: &mut ApplicationMaster, done: Done) {
        match done {
            Done::Started(id) => {
                if let Some(held) = self.containers.held(id) {
                    let host = held.node.host.clone();
                    self.containers.is_back(&host);
                    self.tell(Event::Started { container: ContainerId(id.to_string()) });
                }
            }
            Done::NotStarted { id, exit, unreachable } => {
                let Some(held) = self.containers.ended(id) else {
                    return;
                };
                tracing::warn!(container = %id, node = %held.node, ?exit, "not started");
                if unreachable {
                    self.containers.is_unreachable(&held.node.host, self.now());
                }
                am.release(id);
                self.exited(id, exit, String::new());
            }
            Done::NotStopped(id) => self.release(am, id),
            Done::Ended(status) => self.ended(&status),
            Done::Vanished { id, cause, unreachable } => self.vanished(id, cause, unreachable),
            Done::Racks(racks) => self.containers.set_racks(racks),
        }
    }

    fn hear(&mut self, am: &mut ApplicationMaster, event: Heard) {
        match event {
            Heard::Allocated { ask, container } => self.granted(am, ask, container),
            Heard::Completed { status, .. } | Heard::Released(status) => self.ended(&status),
            Heard::Recovered(container) => {
                // Told late by a ResourceManager that was restarted meanwhile. Whoever runs there registers by itself.
                tracing::info!(container = %container.id, node = %container.node, "kept by an earlier attempt");
                self.containers.kept_late(&container, self.now());
            }
            Heard::Node(report) => self.node(&report),
            Heard::Preemption(preemption) => self.preempting(&preemption),
            Heard::Refused { ask, message } => {
                self.tell(Event::Rejected { reason: format!("ask {}: {message}", ask.0) });
            }
            Heard::Rejected(ask) => {
                self.tell(Event::Rejected { reason: format!("ask {} cannot be placed", ask.0) })
            }
            Heard::Excess { container, reason } => {
                tracing::info!(%container, ?reason, "a grant too many was given back");
            }
            Heard::Resynchronised => tracing::info!("registered again with the ResourceManager"),
            Heard::TokenRolled => tracing::info!("the attempt's token was renewed"),
            Heard::Malformed(missing) => {
                tracing::warn!(%missing, "a message of the ResourceManager was skipped");
            }
            other => tracing::debug!(event = ?other, "heard"),
        }
    }

    fn granted(
        &mut self,
        am: &mut ApplicationMaster,
        ask: heddle_yarn::AskId,
        container: Container,
    ) {
        let (id, node) = (container.id, container.node.clone());
        let nodes = self.nodes(am);
        match self.containers.granted(ask, container, nodes, self.now()) {
            GrantVerdict::Take { member, crowded } => {
                // Its end must not ask for another one: that is the core's to say, with another incarnation.
                am.forget(ask);
                self.place(id);
                if crowded {
                    crate::driver::log(&heddle_protocol::view::Event::Warning {
                        text: format!(
                            "{} shares the node {} with another pserver: no other node had room",
                            member.slot, node.host
                        ),
                    });
                }
                tracing::info!(%member, container = %id, %node, "granted");
                self.tell(Event::Allocated {
                    container: ContainerId(id.to_string()),
                    slot: member.slot,
                    incarnation: member.incarnation,
                    node: node.host,
                });
            }
            GrantVerdict::Return => {
                tracing::info!(container = %id, %node, "given back for another node");
                am.release(id);
            }
            GrantVerdict::Unwanted => {
                am.release(id);
            }
        }
    }

    fn place(&self, id: heddle_yarn::ContainerId) {
        if let Some((member, placement)) = self.containers.placement(id) {
            self.places.put(member, placement);
        }
    }

    fn ended(&mut self, status: &ContainerStatus) {
        let Some(held) = self.containers.ended(status.id) else {
            return;
        };
        let (exit, text) = exit_of(status);
        let member = held.member.map(|member| member.to_string());
        tracing::info!(container = %status.id, node = %held.node, member, status = %status.exit, "container ended");
        self.exited(status.id, exit, text);
    }

    fn vanished(&mut self, id: heddle_yarn::ContainerId, cause: &str, unreachable: bool) {
        let Some(held) = self.containers.held(id) else {
            return;
        };
        let member = held.member.map(|member| member.to_string());
        tracing::warn!(container = %id, node = %held.node, member, cause, "container not vouched for");
        if unreachable {
            let host = held.node.host.clone();
            self.containers.is_unreachable(&host, self.now());
        }
        self.tell(Event::NodeUnreachable {
            container: ContainerId(id.to_string()),
            cause: cause.to_owned(),
        });
    }

    fn exited(&self, id: heddle_yarn::ContainerId, exit: Exit, text: String) {
        self.tell(Event::Exited { container: ContainerId(id.to_string()), exit, text });
    }

    fn node(&mut self, report: &NodeReport) {
        let state = report.state;
        tracing::info!(node = %report.id, ?state, report.health_report, "node changed");
        match state {
            // Its containers still run; those of a lost or stopped node are reported one by one.
            Some(NodeState::Unhealthy | NodeState::Decommissioning) => {
                self.tell(Event::NodeLeaving { node: report.id.host.clone() });
            }
            Some(NodeState::Running | NodeState::Rebooted) => {
                self.containers.is_back(&report.id.host)
            }
            _ => {}
        }
    }

    /// The CapacityScheduler names all that it is going to take as negotiable, 15 s ahead unless configured otherwise; the
    /// strict ones are certain.
    fn preempting(&self, preemption: &Preemption) {
        let named = preemption.strict.iter().chain(&preemption.negotiable);
        for id in named.collect::<BTreeSet<_>>() {
            if self.containers.held(*id).is_some() {
                self.tell(Event::Preempting {
                    container: ContainerId(id.to_string()),
                    deadline_ms: None,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use heddle_hadoop::rpc::RpcError;

    use super::*;

    fn no_server() -> RpcError {
        RpcError::NoServer { protocol: "the test's".into() }
    }

    #[tokio::test]
    async fn first_calls_outlast_a_restart_of_the_resourcemanager() {
        let mut calls = 0;
        let answer = persistently(Duration::from_secs(60), "a call", async || {
            calls += 1;
            match calls {
                1 => Err(AmError::Unreachable(no_server())),
                2 => Err(AmError::Failed(no_server())),
                _ => Ok(calls),
            }
        });
        assert_eq!(answer.await.expect("it is back"), 3);
    }

    #[tokio::test]
    async fn first_calls_end_with_the_attempt() {
        let refused = |error: fn() -> AmError, limit| {
            persistently(limit, "a call", async move || Err::<(), _>(error()))
        };
        let long = Duration::from_secs(60);
        let fenced = refused(|| AmError::Shutdown, long).await;
        assert!(fenced.is_err_and(|error| error.is_fenced()));
        let silent = refused(|| AmError::Unreachable(no_server()), Duration::ZERO);
        assert!(silent.await.is_err());
    }
}
