//! Preemption and decommissioning: containers move before the cluster takes them.
//!
//! **Preemption** may not happen after all, and its notice does not tell when. A trainer hands back its work and leaves, so
//! that nothing has to be computed twice; its slot asks again. A pserver cannot hand back anything. A cut is taken at once
//! if there is time for one. Nothing else is done: stopping the pserver would cost what the notice only threatens.
//!
//! **A node that leaves** (decommissioned, unhealthy) is certain. Its trainers are drained, what only starts there starts
//! elsewhere, and its pservers move right after the next checkpoint, when a rollback costs no work. No container is asked
//! for on the node while the notice is recent.
//!
//! With replicas the shards of a pserver are handed over in both cases, and one on a node that leaves moves when its shards
//! have their copies elsewhere (`core::hand_over`).
//!
//! None of this counts as a failure.

use heddle_protocol::ids::{Role, Slot};
use heddle_protocol::view::WarningCode;

use super::restart_policy::FailureClass;
use super::slots::SlotStatus;
use super::{Fleet, Loss};
use crate::action::ContainerName;
use crate::context::Context;

/// A node that still exists this long after the notice is a node like others.
const NOTICE_MS: u64 = 3_600_000;

impl Fleet {
    /// The cluster may preempt a container. Returns its slot; a repeated notice is one notice.
    pub(crate) fn preemption_announced(&mut self, container: &ContainerName) -> Option<Slot> {
        let member = self.slots.containers.get(container)?.member?;
        let current = self.slots.container(member.slot) == Some(container);
        (current && self.preempted.insert(container.clone())).then_some(member.slot)
    }

    /// A node will be gone soon. Returns the slots that it runs and whether the container of each only starts.
    pub(crate) fn node_leaves(&mut self, node: &str, ctx: &mut Context) -> Vec<(Slot, bool)> {
        let now = ctx.now();
        let known = self.departing_nodes.insert(node.to_owned(), now);
        if known.is_some_and(|at| now.since(at) < NOTICE_MS) {
            return Vec::new();
        }
        let runs_here = |slot: &Slot| self.slots.node(*slot) == Some(node);
        let starts =
            |entry: &super::slots::SlotEntry| matches!(entry.status, SlotStatus::Starting { .. });
        let entries = self.slots.entries.iter().filter(|(slot, _)| runs_here(slot));
        let here: Vec<(Slot, bool)> = entries.map(|(slot, entry)| (*slot, starts(entry))).collect();
        if here.is_empty() {
            return here;
        }
        self.any_departing = true;
        for info in self.slots.containers.values_mut() {
            info.is_departing |= info.node == node;
        }
        ctx.warn(
            WarningCode::NodeLeaves,
            format!("node {node} leaves the cluster soon: its containers are replaced"),
        );
        here
    }

    /// Nodes that no container is wanted on: those with too many failures, errors of tasks or slow trainers, and those that
    /// will be gone.
    pub(super) fn nodes_to_avoid(&mut self, ctx: &Context) -> Vec<String> {
        let now = ctx.now();
        self.departing_nodes.retain(|_, at| now.since(*at) < NOTICE_MS);
        let (of, window_ms) = (self.slots.nodes(), ctx.limits().failure_window_ms);
        let mut nodes = self.failures.bad_nodes(of);
        nodes.extend(self.slow_nodes.avoided(now, window_ms, of));
        nodes.extend(self.departing_nodes.keys().cloned());
        nodes.sort();
        nodes.dedup();
        nodes
    }

    /// Pservers on nodes that will be gone. One that was allocated there after the notice is not moved again.
    pub(crate) fn departing_pservers(&self) -> Vec<Slot> {
        // Asked with nearly every event.
        if !self.any_departing {
            return Vec::new();
        }
        let leaves = |slot: &Slot| {
            let container = self.slots.container(*slot);
            let info = container.and_then(|container| self.slots.containers.get(container));
            info.is_some_and(|info| info.is_departing)
        };
        let pservers = self.slots.range_from(Role::Pserver, 0);
        pservers.map(|(slot, _)| *slot).filter(leaves).collect()
    }

    /// Whether there is a notice that the cluster may take a container.
    pub(crate) fn is_preempted(&self) -> bool {
        !self.preempted.is_empty()
    }

    /// Whether shards may be served there: it is wanted, and there is no notice that its container ends soon.
    pub(crate) fn may_serve(&self, slot: Slot) -> bool {
        let container = self.slots.container(slot);
        let info = container.and_then(|container| self.slots.containers.get(container));
        let preempted = container.is_some_and(|container| self.preempted.contains(container));
        self.is_wanted(slot) && !preempted && info.is_none_or(|info| !info.is_departing)
    }

    /// The loss that moves a container to another node.
    pub(crate) fn moves_off(slot: Slot) -> Loss {
        Loss::new(slot, "moves to another node", FailureClass::None, "")
    }
}
