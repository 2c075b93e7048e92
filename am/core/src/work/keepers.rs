//! Which trainer keeps the records of which tasks (`data.cache`): its last reader.
//!
//! It gets them first in later phases, before tasks whose input lies on its host. It is a wish: tasks of a trainer that is gone
//! are todo for all.

use std::collections::BTreeMap;

use heddle_protocol::ids::{Member, TaskId};

/// Tasks by the trainers that keep their records.
#[derive(Clone, Debug, Default)]
pub(crate) struct TaskKeepers {
    train: BTreeMap<TaskId, Member>,
    test: BTreeMap<TaskId, Member>,
    /// Tasks of the present phase, in the order in which it hands them out.
    of_phase: BTreeMap<Member, Vec<TaskId>>,
}

impl TaskKeepers {
    /// A trainer has read a task.
    pub(crate) fn read(&mut self, training: bool, task: TaskId, member: Member) {
        let tasks = if training { &mut self.train } else { &mut self.test };
        tasks.insert(task, member);
    }

    /// A phase begins that hands tasks out in this order.
    pub(crate) fn begin_phase(&mut self, training: bool, order: &[u32]) {
        let tasks = if training { &self.train } else { &self.test };
        self.of_phase.clear();
        for task in order.iter().copied().map(TaskId) {
            if let Some(member) = tasks.get(&task) {
                self.of_phase.entry(*member).or_default().push(task);
            }
        }
    }

    /// Tasks of the phase that a trainer keeps.
    pub(crate) fn tasks_of(&self, member: Member) -> &[TaskId] {
        self.of_phase.get(&member).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use heddle_protocol::ids::{Incarnation, Slot};

    use super::*;

    #[test]
    fn last_reader_of_a_task_keeps_it_in_the_order_of_the_phase() {
        let member = |index| Member { slot: Slot::trainer(index), incarnation: Incarnation(1) };
        let mut keepers = TaskKeepers::default();
        for (task, reader) in [(0, 0), (1, 1), (2, 0), (1, 0), (3, 1)] {
            keepers.read(true, TaskId(task), member(reader));
        }
        keepers.read(false, TaskId(0), member(1));
        assert!(keepers.tasks_of(member(0)).is_empty());
        keepers.begin_phase(true, &[3, 2, 1, 0]);
        assert_eq!(keepers.tasks_of(member(0)), [2, 1, 0].map(TaskId));
        assert_eq!(keepers.tasks_of(member(1)), [TaskId(3)]);
        keepers.begin_phase(false, &[0, 1]);
        assert_eq!(keepers.tasks_of(member(1)), [TaskId(0)]);
        assert!(keepers.tasks_of(member(0)).is_empty());
    }
}
