//! The session with the ResourceManager: one task, one heartbeat at a time.
//!
//! The task accepts orders between and during heartbeats. Starts and stops go to the nodes at once, also while the
//! ResourceManager does not answer. Its answers become the core's events.

use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;

use heddle_am_core::{ContainerName, ContainerOrder, Event, Exit};
use heddle_protocol::ids::Member;
use heddle_protocol::view::WarningCode;
use heddle_storage::chain;
use heddle_yarn::am::Preemption;
use heddle_yarn::{
    AmError, AmEvent as RmEvent, ApplicationMaster, Container, ContainerStatus, NodeReport,
    NodeState,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::ask_id::asked_for;
use super::containers::{ContainerRegistry, GrantVerdict, HeldContainer};
use super::exit::exit_of;
use super::heartbeat_interval;
use super::node_calls::{Done, NodeCalls};
use super::order::{ClusterOrder, Gone, Places};
use super::retries::{FAILED_PAUSE, unregister};
use crate::cluster::Events;
use crate::event_log::EventLog;
use crate::lease::Lease;

/// Time for a running container to find the new ApplicationMaster: it looks every four seconds.
const KEPT_TIME: Duration = Duration::from_secs(5);

/// Inputs of a session.
pub(super) struct SessionParts {
    pub(super) calls: NodeCalls,
    pub(super) containers: ContainerRegistry,
    pub(super) events: Events,
    pub(super) places: Places,
    /// Whether containers of an earlier attempt may be there.
    pub(super) has_predecessor: bool,
    /// How long the ResourceManager may be silent before this attempt ends itself.
    pub(super) silence_max: Duration,
    pub(super) lease: Lease,
    /// Gets warnings.
    pub(super) log: EventLog,
}

pub(super) struct RmSession {
    calls: NodeCalls,
    containers: ContainerRegistry,
    events: Events,
    places: Places,
    started: Instant,
    /// When the ResourceManager last answered.
    replied_at: Instant,
    /// When the current wait for a grant or an end began.
    awaited: Option<Instant>,
    /// Containers within their grace period.
    stops: BTreeSet<(Instant, heddle_yarn::ContainerId)>,
    progress: f32,
    /// All containers from earlier attempts have been checked.
    kept_are_seen: bool,
    silence_max: Duration,
    lease: Lease,
    log: EventLog,
}

impl RmSession {
    pub(super) fn new(parts: SessionParts) -> Self {
        let SessionParts { calls, containers, events, places, .. } = parts;
        Self {
            calls,
            containers,
            events,
            places,
            started: Instant::now(),
            replied_at: Instant::now(),
            awaited: None,
            stops: BTreeSet::new(),
            progress: 0.0,
            kept_are_seen: !parts.has_predecessor,
            silence_max: parts.silence_max,
            lease: parts.lease,
            log: parts.log,
        }
    }

    pub(super) async fn run(
        mut self,
        mut am: ApplicationMaster,
        early: Vec<RmEvent>,
        mut orders: mpsc::UnboundedReceiver<ClusterOrder>,
        mut finished: mpsc::UnboundedReceiver<Done>,
        lost: oneshot::Sender<Gone>,
    ) {
        for event in early {
            self.on_rm_event(&mut am, event);
        }
        let mut last = Instant::now();
        let mut failed = false;
        let mut waiting = Vec::new();
        loop {
            for order in std::mem::take(&mut waiting) {
                match order {
                    ClusterOrder::Finish(finish) => {
                        return unregister(am, finish, self.silence_max).await;
                    }
                    order => self.order(&mut am, order),
                }
            }
            let next = self.next_heartbeat(&am, last, failed);
            let stop = self.stops.first().map_or(next, |(at, _)| next.min(*at));
            tokio::select! {
                biased;
                order = orders.recv() => match order {
                    Some(order) => waiting.push(order),
                    None => return,
                },
                Some(done) = finished.recv() => self.done(&mut am, done),
                () = tokio::time::sleep_until(stop) => {
                    self.stop_overdue();
                    if Instant::now() < next {
                        continue;
                    }
                    let asked = Instant::now();
                    let answer = self.heartbeat(&mut am, &mut orders, &mut waiting).await;
                    last = Instant::now();
                    failed = answer.is_err();
                    self.check_survivors();
                    self.release_overdue(&mut am);
                    if !failed {
                        self.lease.renew(asked.into_std());
                    }
                    if let Err(gone) = self.answered(&mut am, answer) {
                        let _driver_is_gone = lost.send(gone);
                        return;
                    }
                }
            }
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn next_heartbeat(&mut self, am: &ApplicationMaster, last: Instant, failed: bool) -> Instant {
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

    /// One heartbeat. Orders that need no ResourceManager are performed during it, the others wait.
    async fn heartbeat(
        &mut self,
        am: &mut ApplicationMaster,
        orders: &mut mpsc::UnboundedReceiver<ClusterOrder>,
        waiting: &mut Vec<ClusterOrder>,
    ) -> Result<Vec<RmEvent>, AmError> {
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

    /// Checks once the containers that an earlier attempt left, after their time to register.
    fn check_survivors(&mut self) {
        if self.kept_are_seen || self.now() < KEPT_TIME {
            return;
        }
        self.kept_are_seen = true;
        for (id, node) in self.containers.unregistered() {
            self.calls.check_survivors(node, id);
        }
    }

    /// Releases containers that the ResourceManager reported late and that have not registered.
    fn release_overdue(&mut self, am: &mut ApplicationMaster) {
        for id in self.containers.overdue(self.now()) {
            tracing::warn!(container = %id, "surviving_container_released");
            self.release(am, id);
        }
    }

    fn nodes(&self, am: &ApplicationMaster) -> usize {
        usize::try_from(am.view().nodes).unwrap_or(0)
    }

    fn answered(
        &mut self,
        am: &mut ApplicationMaster,
        answer: Result<Vec<RmEvent>, AmError>,
    ) -> Result<(), Gone> {
        match answer {
            Ok(events) => {
                self.replied_at = Instant::now();
                self.send(Event::ClusterHeard);
                for event in events {
                    self.on_rm_event(am, event);
                }
                Ok(())
            }
            Err(error) if error.is_fenced() => Err(Gone::Fenced(chain(&error))),
            Err(error) => {
                let silent = self.replied_at.elapsed();
                let error = chain(&error);
                tracing::warn!(silent_s = silent.as_secs(), error, "heartbeat_failed");
                if silent <= self.silence_max {
                    return Ok(());
                }
                Err(Gone::Silent(format!(
                    "the ResourceManager has not answered for {} s: {error}",
                    silent.as_secs()
                )))
            }
        }
    }

    fn send(&self, event: Event) {
        // The driver outlives this task except while the process ends.
        let _ending = self.events.send(event);
    }

    /// Performs an order that needs no ResourceManager; returns any other.
    fn order_to_a_node(&mut self, order: ClusterOrder) -> Option<ClusterOrder> {
        match order {
            ClusterOrder::Container(ContainerOrder::Launch { container, member }) => {
                match id_of(&container).and_then(|id| self.containers.start(id)) {
                    Some(grant) => self.calls.start(grant, member),
                    None => tracing::debug!(%member, "launch_skipped_container_ended"),
                }
            }
            ClusterOrder::Container(ContainerOrder::Stop { container, grace_ms, .. }) => {
                let id = id_of(&container).filter(|id| self.containers.held(*id).is_some());
                if let Some(id) = id {
                    self.containers.mark_stopping(id);
                    let at = Instant::now() + Duration::from_millis(grace_ms);
                    self.stops.insert((at, id));
                    self.stop_overdue();
                }
            }
            ClusterOrder::ConnectionClosed(member) => {
                if let Some((id, held)) = self.containers.of_member(member) {
                    self.calls.look(held.node().clone(), id);
                }
            }
            ClusterOrder::Registered(container, member) => {
                if let Some(id) = id_of(&container) {
                    self.containers.registered(id);
                    self.place(id, member);
                }
            }
            ClusterOrder::Progress(progress) => self.progress = progress,
            other => return Some(other),
        }
        None
    }

    fn order(&mut self, am: &mut ApplicationMaster, order: ClusterOrder) {
        let order = match self.order_to_a_node(order) {
            Some(ClusterOrder::Container(order)) => order,
            Some(ClusterOrder::UsedBefore(hosts)) => return am.may_be_excluded(hosts),
            _ => return,
        };
        match order {
            ContainerOrder::Ask(request) => {
                let (id, ask) = self.containers.ask(request);
                am.want(id, ask, 1);
            }
            ContainerOrder::CancelAsk(member) => {
                if let Some(id) = self.containers.cancel(member) {
                    am.forget(id);
                }
            }
            ContainerOrder::Release(container) => {
                if let Some(id) = id_of(&container) {
                    self.release(am, id);
                }
            }
            // Performed above.
            ContainerOrder::Launch { .. } | ContainerOrder::Stop { .. } => {}
        }
    }

    fn release(&mut self, am: &mut ApplicationMaster, id: heddle_yarn::ContainerId) {
        self.containers.mark_stopping(id);
        if !am.release(id) {
            tracing::debug!(container = %id, "container_released_before");
        }
    }

    /// Ends containers whose grace period is over.
    fn stop_overdue(&mut self) {
        let now = Instant::now();
        while let Some((at, id)) = self.stops.first().copied() {
            if at > now {
                return;
            }
            self.stops.pop_first();
            if let Some(held) = self.containers.held(id) {
                self.calls.stop(held.node().clone(), id);
            }
        }
    }

    fn done(&mut self, am: &mut ApplicationMaster, done: Done) {
        match done {
            Done::Started(id) => {
                if let Some(held) = self.containers.held(id) {
                    let host = held.node().host.clone();
                    self.containers.is_back(&host);
                }
            }
            Done::NotStarted { id, exit, unreachable } => {
                let Some(held) = self.containers.ended(id) else {
                    return;
                };
                let node = held.node();
                tracing::warn!(container = %id, %node, ?exit, "container_not_started");
                if unreachable {
                    self.containers.is_unreachable(&node.host, self.now());
                }
                am.release(id);
                let exit = self.noting_failed_start(&held, exit);
                self.exited(id, exit, String::new());
            }
            Done::NotStopped(id) => self.release(am, id),
            Done::Ended(status) => self.ended(&status),
            Done::Vanished { id, cause, unreachable } => self.vanished(id, cause, unreachable),
        }
    }

    fn on_rm_event(&mut self, am: &mut ApplicationMaster, event: RmEvent) {
        match event {
            RmEvent::Allocated { ask, container } => self.granted(am, ask, container),
            RmEvent::Completed { status, .. } | RmEvent::Released(status) => self.ended(&status),
            RmEvent::Recovered(container) => {
                // Reported late by a ResourceManager that was restarted. Its process registers by itself.
                let (id, node) = (container.id, &container.node);
                tracing::info!(container = %id, %node, "surviving_container_reported");
                self.containers.reported_after_restart(container, self.now());
            }
            RmEvent::Node(report) => self.node(&report),
            RmEvent::Preemption(preemption) => self.preempting(&preemption),
            RmEvent::Refused { ask, message } => {
                self.send(Event::Rejected { reason: format!("{}: {message}", asked_for(ask)) });
            }
            RmEvent::Rejected(ask) => self
                .send(Event::Rejected { reason: format!("{} cannot be placed", asked_for(ask)) }),
            RmEvent::Excess { container, reason } => {
                tracing::info!(%container, ?reason, "excess_container_released");
            }
            RmEvent::Resynchronised => tracing::info!("resource_manager_resynchronised"),
            RmEvent::TokenRolled => tracing::info!("token_renewed"),
            RmEvent::Malformed(missing) => {
                tracing::warn!(%missing, "malformed_message_skipped");
            }
            other => tracing::debug!(event = ?other, "resource_manager_event_ignored"),
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
                // Its end must not cause another request: the core decides that, with another incarnation.
                am.forget(ask);
                self.place(id, member);
                if crowded {
                    self.log.warn(WarningCode::NodeShared, format!(
                        "{} shares the node {} with another pserver: the cluster granted no other node",
                        member.slot, node.host
                    ));
                }
                tracing::info!(%member, container = %id, %node, "container_allocated");
                self.send(Event::Allocated {
                    container: ContainerName(id.to_string()),
                    slot: member.slot,
                    incarnation: member.incarnation,
                    node: node.host,
                });
            }
            GrantVerdict::Return => {
                tracing::info!(container = %id, %node, "container_returned_for_another_node");
                am.release(id);
            }
            GrantVerdict::Unwanted => {
                am.release(id);
            }
        }
    }

    fn place(&self, id: heddle_yarn::ContainerId, member: Member) {
        if let Some(placement) = self.containers.placement(id) {
            self.places.put(member, placement);
        }
    }

    fn ended(&mut self, status: &ContainerStatus) {
        let Some(held) = self.containers.ended(status.id) else {
            return;
        };
        let (exit, text) = exit_of(status);
        let member = held.member().map(|member| member.to_string());
        let (id, node) = (status.id, held.node());
        tracing::info!(container = %id, %node, member, status = %status.exit, "container_ended");
        let exit = self.noting_failed_start(&held, exit);
        self.exited(status.id, exit, text);
    }

    /// Notes the node of a container that could not be started, and names it in the error.
    fn noting_failed_start(&mut self, held: &HeldContainer, exit: Exit) -> Exit {
        let (Exit::NotStarted { error }, Some(member)) = (&exit, held.member()) else {
            return exit;
        };
        let host = &held.node().host;
        let error = format!("{error} (node {host})");
        if self.containers.start_failed(host, member.slot, self.now()) {
            let text = format!("node {host} is avoided, since starts fail there: {error}");
            self.log.warn(WarningCode::NodeAvoided, text);
        }
        Exit::NotStarted { error }
    }

    fn vanished(&mut self, id: heddle_yarn::ContainerId, cause: &str, unreachable: bool) {
        let Some(held) = self.containers.held(id) else {
            return;
        };
        let member = held.member().map(|member| member.to_string());
        let node = held.node();
        tracing::warn!(container = %id, %node, member, cause, "container_unreachable");
        if unreachable {
            let host = held.node().host.clone();
            self.containers.is_unreachable(&host, self.now());
        }
        self.send(Event::NodeUnreachable {
            container: ContainerName(id.to_string()),
            cause: cause.to_owned(),
        });
    }

    fn exited(&self, id: heddle_yarn::ContainerId, exit: Exit, text: String) {
        self.send(Event::Exited { container: ContainerName(id.to_string()), exit, text });
    }

    fn node(&mut self, report: &NodeReport) {
        let (state, host) = (report.state, &report.id.host);
        tracing::info!(node = %report.id, ?state, report.health_report, "node_changed");
        match state {
            // Its containers still run; the containers of a lost or stopped node are reported one by one.
            Some(NodeState::Unhealthy | NodeState::Decommissioning) => {
                self.send(Event::NodeLeaving { node: host.clone() });
            }
            Some(NodeState::Running | NodeState::Rebooted) => self.containers.is_back(host),
            _ => {}
        }
    }

    /// The CapacityScheduler announces preemption as negotiable, 15 s ahead unless configured otherwise; strict ones are
    /// certain.
    fn preempting(&self, preemption: &Preemption) {
        let named = preemption.strict.iter().chain(&preemption.negotiable);
        for id in named.collect::<BTreeSet<_>>() {
            if self.containers.held(*id).is_some() {
                self.send(Event::Preempting {
                    container: ContainerName(id.to_string()),
                    deadline_ms: None,
                });
            }
        }
    }
}

/// The id of a container. A container may register with any text as its name: a text that is not an id names none.
fn id_of(container: &ContainerName) -> Option<heddle_yarn::ContainerId> {
    container.0.parse().ok()
}
