//! Going before being thrown out: notices of preemption and of nodes that will be gone.
//!
//! **Preemption** may come to nothing and says what goes, not when all is lost. A trainer hands back its work and
//! leaves, so that nothing has to be computed twice; its slot asks again. A pserver cannot hand back anything: a cut is
//! taken at once if there is time for one, and nothing else happens, since stopping it would cost what the notice only
//! threatens.
//!
//! **A node that leaves** (decommissioned, unhealthy) is certain. Its trainers are drained, what only starts
//! there starts elsewhere, and its pservers move right after the next checkpoint: then a rollback costs no work.
//! The node is not asked for again while that is news.
//!
//! None of this counts as anybody's failure.

use heddle_protocol::ids::{Role, Slot};

use crate::action::ContainerId;
use crate::checkpoint::cut::Reason;
use crate::core::Core;
use crate::fleet::restart_policy::FailureClass;
use crate::fleet::slots::SlotStatus;

/// A node that was said to leave and is still there after this is a node like others.
const NEWS_MS: u64 = 3_600_000;

impl Core {
    /// The cluster is about to take a container. Told again and again, it is one notice.
    pub(crate) fn preempting(&mut self, container: &ContainerId, deadline_ms: Option<u64>) {
        let Some(member) = self.slots.containers.get(container).and_then(|life| life.member) else {
            return;
        };
        let current = self.slots.container(member.slot) == Some(container);
        if !current || !self.preempting.insert(container.clone()) {
            return;
        }
        match member.slot.role {
            Role::Trainer => self.drain(member.slot),
            Role::Pserver => {
                let needs_ms = self.checkpoints.last().map_or(0, |last| last.took_ms);
                let there_is_time = deadline_ms.is_none_or(|deadline_ms| deadline_ms > needs_ms);
                if there_is_time {
                    self.save_now();
                }
                self.warn(format!(
                    "the cluster may take {} for another job{}",
                    member.slot,
                    if there_is_time { "" } else { "; there is no time for a checkpoint" }
                ));
            }
        }
    }

    /// A node will be gone soon.
    pub(crate) fn node_leaving(&mut self, node: &str) {
        let now = self.now.mono;
        let known = self.leaving.insert(node.to_owned(), now);
        if known.is_some_and(|at| now.since(at) < NEWS_MS) {
            return;
        }
        let here: Vec<Slot> = self
            .slots
            .entries
            .keys()
            .copied()
            .filter(|slot| self.slots.node(*slot) == Some(node))
            .collect();
        if here.is_empty() {
            return;
        }
        for life in self.slots.containers.values_mut() {
            life.leaving |= life.node == node;
        }
        self.warn(format!("node {node} will be gone soon: what runs there moves"));
        for slot in here {
            let starts = self
                .slots
                .entries
                .get(&slot)
                .is_some_and(|entry| matches!(entry.place, SlotStatus::Starting { .. }));
            match slot.role {
                _ if starts => self.move_off(slot),
                Role::Trainer => self.drain(slot),
                // Nothing has been computed, or nothing is held there.
                Role::Pserver if !self.started || self.map.of(slot).is_empty() => {
                    self.move_off(slot)
                }
                Role::Pserver => self.save_now(),
            }
        }
    }

    /// Nodes that no container is wanted on: those where too much failed, and those that will be gone.
    pub(crate) fn nodes_to_avoid(&mut self) -> Vec<String> {
        let now = self.now.mono;
        self.leaving.retain(|_, at| now.since(*at) < NEWS_MS);
        let mut nodes = self.failure_history.bad_nodes(self.slots.nodes());
        nodes.extend(self.leaving.keys().cloned());
        nodes.sort();
        nodes.dedup();
        nodes
    }

    /// A checkpoint exists: pservers on nodes that will be gone lose nothing by moving now.
    pub(crate) fn leave_nodes(&mut self) {
        for slot in self.leaving_pservers() {
            self.move_off(slot);
        }
    }

    /// The job goes on after a rollback: what was to be saved before it still is.
    pub(crate) fn save_what_leaves(&mut self) {
        if !self.leaving_pservers().is_empty() {
            self.save_now();
        }
    }

    fn leaving_pservers(&self) -> Vec<Slot> {
        // One that was given there since is not moved again and again.
        let leaves = |slot: &Slot| {
            let container = self.slots.container(*slot);
            let life = container.and_then(|container| self.slots.containers.get(container));
            life.is_some_and(|life| life.leaving)
        };
        let slots = self.slots.entries.keys().copied();
        slots.filter(|slot| slot.role == Role::Pserver).filter(leaves).collect()
    }

    /// A cut as soon as may be; an open one serves.
    pub(crate) fn save_now(&mut self) {
        if self.can_cut() && self.cuts.open.is_none() {
            self.cuts.want(Reason::Ordered);
        }
    }

    fn move_off(&mut self, slot: Slot) {
        self.lose(slot, "moves to another node", FailureClass::None, "");
    }
}
