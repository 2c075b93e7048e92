//! Nodes whose trainers were slow, or could not compute tasks, or whose containers could not reach each other.
//!
//! A container that is replaced for its speed, or for a broken path to another one, asks for another node. A node whose
//! trainers were slow twice within the window in which failures are counted is avoided by all asks, and so is one whose
//! trainers reported errors of four tasks: its disk or its network is to blame, not the tasks. At most a third of the nodes
//! are avoided, the worst first.

use std::collections::BTreeMap;

use heddle_protocol::ids::{Member, Slot, TaskId};

use super::Fleet;
use crate::context::Context;
use crate::time::MonotonicMs;

/// Slow trainers of one node after which it is avoided.
const SLOW_TRAINERS: usize = 2;
/// Tasks with errors on one node after which it is avoided.
const FAILED_TASKS: usize = 4;

/// Where trainers were slow, and when.
#[derive(Clone, Debug, Default)]
pub(crate) struct SlowNodes {
    trainers: BTreeMap<String, Vec<MonotonicMs>>,
    /// Tasks that had errors, and when they had the last one.
    failed_tasks: BTreeMap<String, BTreeMap<TaskId, MonotonicMs>>,
    /// The node that the next container of a slot is not wanted on.
    left: BTreeMap<Slot, String>,
}

impl SlowNodes {
    fn note(&mut self, slot: Slot, node: &str, now: MonotonicMs) {
        self.trainers.entry(node.to_owned()).or_default().push(now);
        self.leave(slot, node);
    }

    /// The next container of the slot is not wanted on this node.
    pub(super) fn leave(&mut self, slot: Slot, node: &str) {
        self.left.insert(slot, node.to_owned());
    }

    /// Nodes that no container is wanted on, of `nodes`.
    pub(super) fn avoided(
        &mut self,
        now: MonotonicMs,
        window_ms: u64,
        nodes: usize,
    ) -> Vec<String> {
        self.trainers.retain(|_, times| {
            times.retain(|at| now.since(*at) <= window_ms);
            !times.is_empty()
        });
        self.failed_tasks.retain(|_, tasks| {
            tasks.retain(|_, at| now.since(*at) <= window_ms);
            !tasks.is_empty()
        });
        let slow = self.trainers.iter().filter(|(_, times)| times.len() >= SLOW_TRAINERS);
        let slow = slow.map(|(node, times)| (node, times.len()));
        let failed = self.failed_tasks.iter().filter(|(_, tasks)| tasks.len() >= FAILED_TASKS);
        let failed = failed.map(|(node, tasks)| (node, tasks.len()));
        let mut bad: Vec<_> = slow.chain(failed).collect();
        bad.sort_by_key(|(node, count)| (std::cmp::Reverse(*count), *node));
        let mut names: Vec<String> = Vec::new();
        for (node, _) in bad {
            if !names.contains(node) {
                names.push(node.clone());
            }
        }
        names.truncate(nodes / 3);
        names
    }

    /// The node that the next container of this slot is not wanted on; asked once.
    pub(super) fn take_left(&mut self, slot: Slot) -> Option<String> {
        self.left.remove(&slot)
    }
}

impl Fleet {
    /// A trainer could not compute a task.
    pub(crate) fn task_failed_on(&mut self, trainer: Member, task: TaskId, ctx: &Context) {
        let node = self.slots.node(trainer.slot).map(str::to_owned);
        if let Some(node) = node {
            let failed = self.slow_nodes.failed_tasks.entry(node).or_default();
            failed.insert(task, ctx.now());
        }
    }

    /// A trainer is replaced for its speed.
    pub(crate) fn is_slow(&mut self, trainer: Member, ctx: &Context) {
        let node = self.slots.node(trainer.slot).map(str::to_owned);
        if let Some(node) = node {
            self.slow_nodes.note(trainer.slot, &node, ctx.now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    #[test]
    fn a_node_with_two_slow_trainers_in_an_hour_is_avoided() {
        let mut slow = SlowNodes::default();
        slow.note(Slot::trainer(0), "a", MonotonicMs(0));
        assert_eq!(slow.avoided(MonotonicMs(0), HOUR_MS, 9), Vec::<String>::new());
        slow.note(Slot::trainer(1), "a", MonotonicMs(HOUR_MS + 1));
        assert_eq!(slow.avoided(MonotonicMs(HOUR_MS + 1), HOUR_MS, 9), Vec::<String>::new());
        for (slot, node) in [(2, "a"), (3, "b"), (4, "b"), (5, "b")] {
            slow.note(Slot::trainer(slot), node, MonotonicMs(HOUR_MS + 2));
        }
        assert_eq!(slow.avoided(MonotonicMs(HOUR_MS + 2), HOUR_MS, 9), ["b", "a"]);
        assert_eq!(slow.avoided(MonotonicMs(HOUR_MS + 2), HOUR_MS, 3), ["b"], "a third");
        assert_eq!(slow.avoided(MonotonicMs(HOUR_MS + 2), HOUR_MS, 2), Vec::<String>::new());
    }

    #[test]
    fn the_next_container_of_the_slot_is_wanted_elsewhere() {
        let mut slow = SlowNodes::default();
        slow.note(Slot::trainer(3), "a", MonotonicMs(0));
        assert_eq!(slow.take_left(Slot::trainer(2)), None);
        assert_eq!(slow.take_left(Slot::trainer(3)).as_deref(), Some("a"));
        assert_eq!(slow.take_left(Slot::trainer(3)), None);
    }
}
