//! State machine of the heartbeats of one attempt, without a socket: the next request, and the meaning of a response.
//!
//! Rules of the protocol (`ApplicationMasterService`, `DefaultAMSProcessor`):
//!
//! - One request at a time. It has the id of the last response. If its response is lost, **the same request with the same
//!   id** is sent again, and the ResourceManager answers from a cache without reading it. So a request is frozen when it
//!   is first made, and later changes go into the next one.
//! - A ResourceManager that has lost the attempt needs a registration, then id 0 and all outstanding state.
//! - Exclusions are increments too, and a ResourceManager hands an attempt's exclusions to the next one
//!   (`SchedulerApplicationAttempt.transferStateFromPreviousAttempt`), which does not list them. A removal of a host that is
//!   not excluded has no effect, so each host that may be excluded is removed once.
//! - A refusal of one row or one release refuses the whole request. The ask or release at fault is found by sending those
//!   of the refused request one at a time.

use std::collections::{BTreeMap, BTreeSet};

use heddle_hadoop::Token;

use super::ask::{Ask, to_proto};
use super::event::{AmEvent, Preemption, UpdateKind};
use super::table::{AskTable, Suspects, TableChanges};
use crate::container::{AskId, Container, ContainerStatus, ExecutionType, token_from_proto};
use crate::ids::{ContainerId, Missing, NodeId};
use crate::node::NodeReport;
use crate::proto;
use crate::resource::Resources;

/// A requested change of a container (`UpdateContainerRequest`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// The kind of the change.
    pub kind: UpdateKind,
    /// The present version of the container.
    pub version: i32,
    /// The new resources, for [`UpdateKind::Increase`] and [`UpdateKind::Decrease`].
    pub resources: Option<Resources>,
}

/// A request without a response.
#[derive(Clone, Debug)]
struct Frozen {
    request: proto::AllocateRequestProto,
    changes: TableChanges,
    excluded: BTreeSet<String>,
    updates: BTreeSet<ContainerId>,
}

/// The content of a response besides events.
#[derive(Debug, Default)]
pub(super) struct Delivery {
    pub(super) nm_tokens: Vec<(NodeId, Token)>,
    pub(super) amrm_token: Option<Token>,
    pub(super) command: Option<proto::AmCommandProto>,
}

/// The state of the cluster in the last response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClusterView {
    /// Free resources for this application, a hint (`limit`).
    pub headroom: Resources,
    /// Number of nodes (`num_cluster_nodes`).
    pub nodes: i32,
}

/// The refused part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RefusedPart {
    Asks,
    Releases,
    Exclusions,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct AmSession {
    pub(super) table: AskTable,
    pub(super) view: ClusterView,
    response_id: i32,
    frozen: Option<Frozen>,
    suspects: Suspects,
    /// Nodes to exclude, and the nodes that the ResourceManager has excluded.
    excluded: BTreeSet<String>,
    excluded_there: BTreeSet<String>,
    /// Nodes that it may have excluded as well.
    may_be_excluded: BTreeSet<String>,
    /// Changes without a result; `true` if a processed request had the change.
    updates: BTreeMap<ContainerId, (Update, bool)>,
    events: Vec<AmEvent>,
}

impl AmSession {
    pub(super) fn want(&mut self, id: AskId, ask: Ask, target: u32) {
        self.suspects.asks.remove(&id);
        self.table.want(id, ask, target);
    }

    /// Replaces the set of excluded nodes (`ResourceBlacklistRequest`; the wire has increments).
    pub(super) fn exclude(&mut self, nodes: BTreeSet<String>) {
        self.excluded = nodes;
    }

    /// Notes nodes that an earlier attempt may have excluded.
    pub(super) fn may_be_excluded(&mut self, nodes: impl IntoIterator<Item = String>) {
        self.may_be_excluded.extend(nodes);
    }

    pub(super) fn update(&mut self, id: ContainerId, update: Update) {
        self.updates.insert(id, (update, false));
    }

    /// Whether the next heartbeat has changes.
    pub(super) fn has_news(&self) -> bool {
        self.frozen.is_some()
            || !self.table.is_settled()
            || self.exclusions() != Default::default()
            || self.updates.values().any(|(_, sent)| !sent)
    }

    /// The request to send: the frozen one, else a new one. `progress` is 0 … 1.
    pub(super) fn request(&mut self, progress: f32) -> proto::AllocateRequestProto {
        if let Some(frozen) = &self.frozen {
            return frozen.request.clone();
        }
        let changes = self.table.changes(&self.suspects);
        let (ask, scheduling_requests) = to_proto(&changes.rows);
        let exclusions = self.exclusions();
        let unsent: Vec<_> = self.updates.iter().filter(|(_, (_, sent))| !sent).collect();
        let request = proto::AllocateRequestProto {
            ask,
            release: changes.releases.iter().map(|id| (*id).into()).collect(),
            blacklist_request: (exclusions != Default::default()).then_some(exclusions),
            response_id: Some(self.response_id),
            progress: Some(progress),
            update_requests: unsent
                .iter()
                .map(|(id, (update, _))| update_request(**id, update))
                .collect(),
            scheduling_requests,
            tracking_url: None,
        };
        let updates = unsent.into_iter().map(|(id, _)| *id).collect();
        let excluded = self.excluded.clone();
        self.frozen = Some(Frozen { request: request.clone(), changes, excluded, updates });
        request
    }

    fn exclusions(&self) -> proto::ResourceBlacklistRequestProto {
        let there = self.excluded_there.union(&self.may_be_excluded);
        proto::ResourceBlacklistRequestProto {
            blacklist_additions: self.excluded.difference(&self.excluded_there).cloned().collect(),
            blacklist_removals: there
                .filter(|host| !self.excluded.contains(*host))
                .cloned()
                .collect(),
        }
    }

    /// Handles the response to the frozen request.
    pub(super) fn answered(&mut self, response: &proto::AllocateResponseProto) -> Delivery {
        let just_sent = match self.frozen.take() {
            Some(frozen) => self.settle(frozen),
            None => BTreeSet::new(),
        };
        self.response_id = response.response_id();
        self.view = ClusterView {
            headroom: response.limit.as_ref().map(Resources::from).unwrap_or_default(),
            nodes: response.num_cluster_nodes(),
        };
        // A container that was granted and lost between two heartbeats is in both lists, so grants are handled first.
        for container in &response.containers_from_previous_attempts {
            self.recovered(container);
        }
        for container in &response.allocated_containers {
            match Container::try_from(container) {
                Ok(container) => {
                    let event = self.table.granted(container, &just_sent);
                    self.events.push(event);
                }
                Err(missing) => self.events.push(AmEvent::Malformed(missing)),
            }
        }
        for status in &response.completed_container_statuses {
            match ContainerStatus::try_from(status) {
                Ok(status) => {
                    self.updates.remove(&status.id);
                    let event = self.table.completed(status);
                    self.events.push(event);
                }
                Err(missing) => self.events.push(AmEvent::Malformed(missing)),
            }
        }
        self.take_updates(response);
        for node in &response.updated_nodes {
            self.events
                .push(NodeReport::try_from(node).map_or_else(AmEvent::Malformed, AmEvent::Node));
        }
        for rejected in &response.rejected_scheduling_requests {
            let ask = AskId(rejected.request.allocation_request_id());
            self.table.refused(ask, &TableChanges::default());
            self.events.push(AmEvent::Rejected(ask));
        }
        if let Some(preempt) = &response.preempt {
            self.events.push(AmEvent::Preemption(preemption(preempt)));
        }
        let amrm_token = response.am_rm_token.as_ref().map(token_from_proto);
        Delivery {
            nm_tokens: response.nm_tokens.iter().filter_map(|token| self.nm_token(token)).collect(),
            amrm_token,
            command: response
                .a_m_command
                .and_then(|command| proto::AmCommandProto::try_from(command).ok()),
        }
    }

    /// Handles an accepted registration.
    pub(super) fn registered(
        &mut self,
        response: &proto::RegisterApplicationMasterResponseProto,
    ) -> Delivery {
        for container in &response.containers_from_previous_attempts {
            self.recovered(container);
        }
        let tokens = &response.nm_tokens_from_previous_attempts;
        Delivery {
            nm_tokens: tokens.iter().filter_map(|token| self.nm_token(token)).collect(),
            ..Delivery::default()
        }
    }

    /// The ResourceManager has lost the attempt. After a new registration all state is sent again, from response id 0.
    pub(super) fn forgotten(&mut self) {
        self.response_id = 0;
        self.frozen = None;
        self.table.forgotten();
        self.excluded_there.clear();
        for (_, sent) in self.updates.values_mut() {
            *sent = false;
        }
        self.events.push(AmEvent::Resynchronised);
    }

    /// The ResourceManager expects another response id. It is unknown whether it processed the frozen request.
    pub(super) fn response_id_is(&mut self, expected: i32) {
        self.response_id = expected;
        if let Some(frozen) = self.frozen.take() {
            self.table.in_doubt(&frozen.changes);
            // The increments may have been applied. Repeating them is harmless.
            self.may_be_excluded.append(&mut self.excluded_there);
            self.may_be_excluded.extend(frozen.excluded);
        }
    }

    /// The frozen request was refused as a whole. Returns true if the next one differs.
    pub(super) fn refused(&mut self, refusal: RefusedPart, message: &str) -> bool {
        let Some(frozen) = self.frozen.take() else {
            return false;
        };
        match refusal {
            RefusedPart::Asks => {
                let asks = frozen.changes.asks();
                match asks.iter().next() {
                    Some(&bad) if asks.len() == 1 => {
                        self.suspects.asks.remove(&bad);
                        self.table.refused(bad, &frozen.changes);
                        self.events
                            .push(AmEvent::Refused { ask: bad, message: message.to_owned() });
                    }
                    // Earlier suspects remain. Otherwise requests with one of them and new asks would be refused forever.
                    Some(_) => self.suspects.asks.extend(asks),
                    None => return self.drop_updates(&frozen.updates, message),
                }
            }
            RefusedPart::Releases => {
                let releases = &frozen.changes.releases;
                match releases.first() {
                    Some(&bad) if releases.len() == 1 => {
                        self.suspects.releases.remove(&bad);
                        self.table.release_refused(bad);
                    }
                    Some(_) => self.suspects.releases.extend(releases),
                    None => return false,
                }
            }
            RefusedPart::Exclusions => self.excluded = self.excluded_there.clone(),
        }
        true
    }

    /// Whether recovered containers are among the events.
    pub(super) fn has_recovered(&self) -> bool {
        self.events.iter().any(|event| matches!(event, AmEvent::Recovered(_)))
    }

    /// The events since the last call, in order.
    pub(super) fn take_events(&mut self) -> Vec<AmEvent> {
        std::mem::take(&mut self.events)
    }

    pub(super) fn push(&mut self, event: AmEvent) {
        self.events.push(event);
    }

    /// The request was processed. Returns the asks of its rows.
    fn settle(&mut self, frozen: Frozen) -> BTreeSet<AskId> {
        self.table.processed(&frozen.changes);
        self.excluded_there = frozen.excluded;
        for host in frozen.request.blacklist_request.unwrap_or_default().blacklist_removals {
            self.may_be_excluded.remove(&host);
        }
        for id in frozen.updates {
            if let Some((_, sent)) = self.updates.get_mut(&id) {
                *sent = true;
            }
        }
        let asks = frozen.changes.asks();
        let releases = &frozen.changes.releases;
        self.suspects.asks.retain(|suspect| !asks.contains(suspect));
        self.suspects.releases.retain(|suspect| !releases.contains(suspect));
        asks
    }

    fn recovered(&mut self, container: &proto::ContainerProto) {
        // A ResourceManager that restarted after the grant no longer has the container token. Only the start needs it.
        let mut container = container.clone();
        container.container_token.get_or_insert_default();
        match Container::try_from(&container) {
            Ok(container) => {
                self.may_be_excluded([container.node.host.clone()]);
                self.events.extend(self.table.recovered(container));
            }
            Err(missing) => self.events.push(AmEvent::Malformed(missing)),
        }
    }

    fn nm_token(&mut self, token: &proto::NmTokenProto) -> Option<(NodeId, Token)> {
        let (Some(node), Some(token)) = (token.node_id.as_ref(), token.token.as_ref()) else {
            self.events.push(AmEvent::Malformed(Missing("node or token of an NMToken")));
            return None;
        };
        match NodeId::try_from(node) {
            Ok(node) => Some((node, token_from_proto(token))),
            Err(missing) => {
                self.events.push(AmEvent::Malformed(missing));
                None
            }
        }
    }

    fn take_updates(&mut self, response: &proto::AllocateResponseProto) {
        for updated in &response.updated_containers {
            let kind = updated.update_type().into();
            match Container::try_from(&updated.container) {
                Ok(container) => {
                    self.updates.remove(&container.id);
                    self.events.push(AmEvent::Updated { kind, container });
                }
                Err(missing) => self.events.push(AmEvent::Malformed(missing)),
            }
        }
        for error in &response.update_errors {
            let request = error.update_request.as_ref();
            let container =
                request.and_then(|request| ContainerId::try_from(&request.container_id).ok());
            if let Some(id) = container {
                self.updates.remove(&id);
            }
            self.events
                .push(AmEvent::UpdateFailed { container, reason: error.reason().to_owned() });
        }
    }

    /// A request without asks is refused because of its updates.
    fn drop_updates(&mut self, updates: &BTreeSet<ContainerId>, message: &str) -> bool {
        for id in updates {
            self.updates.remove(id);
            self.events
                .push(AmEvent::UpdateFailed { container: Some(*id), reason: message.to_owned() });
        }
        !updates.is_empty()
    }
}

fn update_request(id: ContainerId, update: &Update) -> proto::UpdateContainerRequestProto {
    let execution_type = match update.kind {
        UpdateKind::Promote => Some(ExecutionType::Guaranteed),
        UpdateKind::Demote => Some(ExecutionType::Opportunistic),
        UpdateKind::Increase | UpdateKind::Decrease => None,
    };
    proto::UpdateContainerRequestProto {
        container_version: update.version,
        container_id: id.into(),
        update_type: proto::ContainerUpdateTypeProto::from(update.kind).into(),
        capability: update.resources.as_ref().map(Into::into),
        execution_type: execution_type.map(|kind| proto::ExecutionTypeProto::from(kind).into()),
    }
}

fn preemption(message: &proto::PreemptionMessageProto) -> Preemption {
    let ids = |containers: &[proto::PreemptionContainerProto]| {
        containers
            .iter()
            .filter_map(|c| c.id.as_ref())
            .filter_map(|id| id.try_into().ok())
            .collect()
    };
    let contract = message.contract.as_ref();
    let amount = |wanted: &proto::PreemptionResourceRequestProto| {
        let request = wanted.resource.as_ref()?;
        Some((
            request.capability.as_ref()?.into(),
            u32::try_from(request.num_containers()).unwrap_or(0),
        ))
    };
    Preemption {
        strict: message
            .strict_contract
            .as_ref()
            .map(|strict| ids(&strict.container))
            .unwrap_or_default(),
        negotiable: contract.map(|contract| ids(&contract.container)).unwrap_or_default(),
        resources: contract
            .map(|c| c.resource.iter().filter_map(amount).collect())
            .unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests;
