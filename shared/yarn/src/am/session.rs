//! The conversation of one attempt with the ResourceManager, without a socket: what to send next, what an answer means.
//!
//! Rules of the protocol that this file keeps (`ApplicationMasterService`, `DefaultAMSProcessor`):
//!
//! - One request at a time. It carries the id of the last response; when its answer is lost, **the same request with the
//!   same id** goes out again and is answered from a cache without being read. So a request is frozen when it is first
//!   made, and what was wanted since goes with the next one.
//! - A ResourceManager that has forgotten us wants a registration, then id 0 and everything outstanding.
//! - An answer that refuses one row or one release refuses the whole request, and nothing of it was applied. The culprit
//!   is found by sending the asks, or the releases, of the refused request one at a time.

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

/// A wanted change to a container (`UpdateContainerRequest`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// What to do.
    pub kind: UpdateKind,
    /// The version of the container as it is now.
    pub version: i32,
    /// The resources it shall have, for [`UpdateKind::Increase`] and [`UpdateKind::Decrease`].
    pub resources: Option<Resources>,
}

/// A request that was made and not answered.
#[derive(Clone, Debug)]
struct Frozen {
    request: proto::AllocateRequestProto,
    changes: TableChanges,
    excluded: BTreeSet<String>,
    updates: BTreeSet<ContainerId>,
}

/// What an answer brought besides events.
#[derive(Debug, Default)]
pub(super) struct Delivery {
    pub(super) nm_tokens: Vec<(NodeId, Token)>,
    pub(super) amrm_token: Option<Token>,
    pub(super) command: Option<proto::AmCommandProto>,
}

/// What the ResourceManager last said about the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterView {
    /// What is left for this application, a hint (`limit`).
    pub headroom: Resources,
    /// How many nodes there are (`num_cluster_nodes`).
    pub nodes: i32,
}

/// What a refusal is about.
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
    /// Nodes that shall get no container of ours; those that the ResourceManager knows of.
    excluded: BTreeSet<String>,
    excluded_there: BTreeSet<String>,
    /// Changes without an outcome; `true`: an answered request has carried it.
    updates: BTreeMap<ContainerId, (Update, bool)>,
    tracking_url: Option<String>,
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

    pub(super) fn update(&mut self, id: ContainerId, update: Update) {
        self.updates.insert(id, (update, false));
    }

    pub(super) fn set_tracking_url(&mut self, url: String) {
        self.tracking_url = Some(url);
    }

    /// Whether a heartbeat now would say more than that we live.
    pub(super) fn has_news(&self) -> bool {
        self.frozen.is_some()
            || !self.table.is_settled()
            || self.excluded != self.excluded_there
            || self.updates.values().any(|(_, sent)| !sent)
    }

    /// The request to send: the unanswered one, unchanged, else a new one. `progress` is 0 … 1.
    pub(super) fn request(&mut self, progress: f32) -> proto::AllocateRequestProto {
        if let Some(frozen) = &self.frozen {
            return frozen.request.clone();
        }
        let changes = self.table.changes(&self.suspects);
        let (ask, scheduling_requests) = to_proto(&changes.rows);
        let additions: Vec<String> =
            self.excluded.difference(&self.excluded_there).cloned().collect();
        let removals: Vec<String> =
            self.excluded_there.difference(&self.excluded).cloned().collect();
        let blacklist = proto::ResourceBlacklistRequestProto {
            blacklist_additions: additions,
            blacklist_removals: removals,
        };
        let unsent: Vec<_> = self.updates.iter().filter(|(_, (_, sent))| !sent).collect();
        let request = proto::AllocateRequestProto {
            ask,
            release: changes.releases.iter().map(|id| (*id).into()).collect(),
            blacklist_request: (blacklist != Default::default()).then_some(blacklist),
            response_id: Some(self.response_id),
            progress: Some(progress),
            update_requests: unsent
                .iter()
                .map(|(id, (update, _))| update_request(**id, update))
                .collect(),
            scheduling_requests,
            tracking_url: self.tracking_url.clone(),
        };
        let updates = unsent.into_iter().map(|(id, _)| *id).collect();
        let excluded = self.excluded.clone();
        self.frozen = Some(Frozen { request: request.clone(), changes, excluded, updates });
        request
    }

    /// The answer to the frozen request.
    pub(super) fn answered(&mut self, response: &proto::AllocateResponseProto) -> Delivery {
        let just_said = match self.frozen.take() {
            Some(frozen) => self.settle(frozen),
            None => BTreeSet::new(),
        };
        self.response_id = response.response_id();
        self.view = ClusterView {
            headroom: response.limit.as_ref().map(Resources::from).unwrap_or_default(),
            nodes: response.num_cluster_nodes(),
        };
        // A container granted and lost between two heartbeats is in both lists: grants come first.
        for container in &response.containers_from_previous_attempts {
            self.recovered(container);
        }
        for container in &response.allocated_containers {
            match Container::try_from(container) {
                Ok(container) => {
                    let event = self.table.granted(container, &just_said);
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

    /// A registration was accepted.
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

    /// The ResourceManager has forgotten us: after a new registration everything is said again, from response id 0.
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

    /// The ResourceManager expects another response id. Whether it processed the frozen request is not known.
    pub(super) fn response_id_is(&mut self, expected: i32) {
        self.response_id = expected;
        if let Some(frozen) = self.frozen.take() {
            self.table.in_doubt(&frozen.changes);
            // Increments that may have been applied: saying them again is harmless.
            self.excluded_there.clear();
        }
    }

    /// The frozen request was refused as a whole. True when the next one will differ.
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
                    // Earlier suspects stay: with one of them and new asks in a request it would never end.
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

    /// Whether containers of earlier attempts were told of and not yet taken.
    pub(super) fn has_recovered(&self) -> bool {
        self.events.iter().any(|event| matches!(event, AmEvent::Recovered(_)))
    }

    /// Everything that happened since the last call, in order.
    pub(super) fn take_events(&mut self) -> Vec<AmEvent> {
        std::mem::take(&mut self.events)
    }

    pub(super) fn push(&mut self, event: AmEvent) {
        self.events.push(event);
    }

    /// The request was processed; returns the asks that it said something about.
    fn settle(&mut self, frozen: Frozen) -> BTreeSet<AskId> {
        self.table.processed(&frozen.changes);
        self.excluded_there = frozen.excluded;
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
        // A ResourceManager that was restarted since the grant has no container token any more. Nobody needs one: it
        // is for the start alone.
        let mut container = container.clone();
        container.container_token.get_or_insert_default();
        match Container::try_from(&container) {
            Ok(container) => self.events.extend(self.table.recovered(container)),
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

    /// A refusal of a request without asks can only be about its updates.
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
