//! Where the tasks of a queue stand, independent of which trainer holds them.

use std::collections::{BTreeMap, BTreeSet};

use heddle_protocol::ids::{Step, TaskId};

/// The progress of every task, as a manifest contains it and a restored queue starts with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueProgress {
    /// Tasks that are done.
    pub done: BTreeSet<TaskId>,
    /// First unacknowledged steps above 0 of those that are not.
    pub at: BTreeMap<TaskId, Step>,
    /// Tasks that the phase goes on without, after errors.
    pub set_aside: BTreeSet<TaskId>,
}

impl QueueProgress {
    /// Every step of the task below this one is acknowledged by every shard.
    pub(crate) fn reached(&mut self, task: TaskId, step: Step) {
        if step > Step(0) && !self.done.contains(&task) {
            let at = self.at.entry(task).or_default();
            *at = step.max(*at);
        }
    }

    /// Tasks that nothing is left to do for.
    pub(crate) fn over(&self) -> usize {
        self.done.len() + self.set_aside.len()
    }

    /// Every step of the task is.
    pub(crate) fn finished(&mut self, task: TaskId) {
        self.at.remove(&task);
        self.done.insert(task);
    }
}
