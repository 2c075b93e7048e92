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
}

impl QueueProgress {
    /// Every step of the task below this one is acknowledged by every shard.
    pub(crate) fn reached(&mut self, task: TaskId, step: Step) {
        if step > Step(0) && !self.done.contains(&task) {
            let at = self.at.entry(task).or_default();
            *at = step.max(*at);
        }
    }

    /// Every step of the task is.
    pub(crate) fn finished(&mut self, task: TaskId) {
        self.at.remove(&task);
        self.done.insert(task);
    }
}
