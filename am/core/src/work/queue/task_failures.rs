//! Which task is to blame when trainers fail, and tasks that are set aside.
//!
//! A task is to blame after a number of errors that trainers report on it, on at least two trainers where the job has
//! two: one of them may have a bad disk. Deaths of trainers count only if they come in a row at the same step and on two
//! nodes: random kills hit other steps.

use std::collections::BTreeSet;

use heddle_protocol::ids::{Member, Slot, Step, TaskAttempt, TaskId};

use super::{Queue, Task};

/// Deaths in a row at the same step that blame a task.
const DEATHS: usize = 4;

/// The errors of a task, and the deaths at it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TaskFailures {
    errors: u32,
    /// Slots of the trainers that reported them.
    slots: BTreeSet<Slot>,
    /// The step at which the last trainers died, which ones in a row, and on which nodes.
    died_at: Step,
    died: Vec<Member>,
    nodes: BTreeSet<String>,
}

impl TaskFailures {
    /// Whether this trainer reported an error, and fewer than all `trainers` did.
    pub(super) fn failed_on(&self, slot: Slot, trainers: usize) -> bool {
        self.slots.contains(&slot) && self.slots.len() < trainers
    }
}

/// The errors of a task so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaskErrors {
    /// Errors that trainers reported.
    pub errors: u32,
    /// How many trainers did.
    pub trainers: usize,
}

impl Task {
    /// Whether it is still to be computed.
    pub(super) fn is_left(&self) -> bool {
        !self.done && !self.set_aside
    }
}

impl Queue {
    /// A trainer could not work on a task: back to todo. Returns its errors; none if the hand-out is over.
    pub(crate) fn failed(
        &mut self,
        member: Member,
        id: TaskId,
        attempt: TaskAttempt,
    ) -> Option<TaskErrors> {
        if !self.take_back(member, id, attempt) {
            return None;
        }
        let failures = self.tasks.get_mut(id.0 as usize)?.failures.get_or_insert_default();
        failures.errors += 1;
        failures.slots.insert(member.slot);
        Some(TaskErrors { errors: failures.errors, trainers: failures.slots.len() })
    }

    /// A trainer's process has failed on this node. Returns the task that it worked on and the trainers that died, if they
    /// show that the task is to blame.
    pub(crate) fn died(&mut self, member: Member, node: &str) -> Option<(TaskId, Vec<Member>)> {
        let id = *self.held(member).first()?;
        let task = self.tasks.get_mut(id.0 as usize)?;
        let step = task.step;
        let failures = task.failures.get_or_insert_default();
        if failures.died_at != step {
            failures.died_at = step;
            failures.died.clear();
            failures.nodes.clear();
        }
        failures.died.push(member);
        failures.nodes.insert(node.to_owned());
        let is_at_fault = failures.died.len() >= DEATHS && failures.nodes.len() > 1;
        is_at_fault.then(|| (id, failures.died.clone()))
    }

    /// Sets a task aside that no trainer holds. Returns whether it was still to be computed.
    pub(crate) fn set_aside(&mut self, id: TaskId) -> bool {
        let place = self.places.get(id.0 as usize).copied();
        let (Some(place), Some(task)) = (place, self.tasks.get_mut(id.0 as usize)) else {
            return false;
        };
        if !task.is_left() || !task.grants.is_empty() {
            return false;
        }
        task.set_aside = true;
        self.set_aside += 1;
        self.todo.remove(&place);
        true
    }

    /// Whether a trainer holds the task.
    pub(crate) fn is_held(&self, id: TaskId) -> bool {
        self.task(id).is_some_and(|task| !task.grants.is_empty())
    }

    /// Tasks that are set aside, and all.
    pub(crate) fn left_out(&self) -> (usize, usize) {
        (self.set_aside as usize, self.tasks.len())
    }
}

#[cfg(test)]
mod tests {
    use heddle_protocol::ids::{Generation, Incarnation};

    use super::super::{QueueProgress, TaskLocality};
    use super::*;
    use crate::config::Limits;
    use crate::time::MonotonicMs;

    fn trainer(index: u32) -> Member {
        Member { slot: Slot::trainer(index), incarnation: Incarnation(1) }
    }

    fn take(queue: &mut Queue, member: Member) -> TaskAttempt {
        let granted =
            queue.grant(member, 1, TaskLocality::default(), MonotonicMs(0), &Limits::default());
        granted.iter().find(|grant| grant.task == TaskId(0)).expect("the first task").attempt
    }

    #[test]
    fn errors_are_counted_with_their_trainers() {
        let mut queue = Queue::new(1, Vec::new(), Generation(1));
        for (index, expected) in [(0, (1, 1)), (0, (2, 1)), (1, (3, 2))] {
            let attempt = take(&mut queue, trainer(index));
            let errors = queue.failed(trainer(index), TaskId(0), attempt).expect("is held");
            assert_eq!((errors.errors, errors.trainers), expected);
            assert_eq!(queue.failed(trainer(index), TaskId(0), attempt), None, "is over");
        }
    }

    #[test]
    fn s43_a_task_is_left_to_trainers_that_have_not_failed_it() {
        let mut queue = Queue::new(2, Vec::new(), Generation(1));
        let attempt = take(&mut queue, trainer(0));
        queue.failed(trainer(0), TaskId(0), attempt);
        queue.release(trainer(0));
        let mut grant = |index, trainers, near: &[TaskId]| -> Vec<TaskId> {
            let member = trainer(index);
            let near = TaskLocality { host: near, rack: &[] };
            let granted = queue.grant(member, trainers, near, MonotonicMs(0), &Limits::default());
            queue.release(member);
            granted.iter().map(|grant| grant.task).collect()
        };
        assert_eq!(grant(0, 3, &[TaskId(0)]), [TaskId(1)], "not even where its input is");
        assert_eq!(grant(0, 1, &[])[0], TaskId(0), "no other trainer is there");
        assert_eq!(grant(1, 3, &[])[0], TaskId(0));
    }

    #[test]
    fn task_that_is_set_aside_is_over_until_the_queue_is_restored() {
        let mut queue = Queue::new(2, Vec::new(), Generation(1));
        let attempt = take(&mut queue, trainer(0));
        assert!(!queue.set_aside(TaskId(0)), "a trainer holds it");
        queue.failed(trainer(0), TaskId(0), attempt);
        assert!(queue.set_aside(TaskId(0)) && !queue.set_aside(TaskId(0)));
        queue.release(trainer(0));
        let next =
            queue.grant(trainer(1), 2, TaskLocality::default(), MonotonicMs(0), &Limits::default());
        assert_eq!(next.iter().map(|grant| grant.task).collect::<Vec<_>>(), [TaskId(1)]);
        queue.finished(trainer(1), TaskId(1), next[0].attempt);
        assert!(queue.is_done());
        let positions = queue.positions();
        assert_eq!((positions.over(), positions.done.len()), (2, 1));
        queue.restore(&positions);
        assert!(queue.is_done());
        queue.begin_again(Generation(2), &QueueProgress::default());
        assert!(!queue.is_done());
    }

    #[test]
    fn s29_deaths_at_one_step_on_two_nodes_blame_a_task() {
        let mut queue = Queue::new(1, Vec::new(), Generation(1));
        let mut die = |node: &str| {
            take(&mut queue, trainer(0));
            let blamed = queue.died(trainer(0), node);
            queue.release(trainer(0));
            blamed
        };
        assert_eq!([die("a"), die("a"), die("a"), die("a")], [const { None }; 4], "a bad node");
        assert_eq!(die("b"), Some((TaskId(0), vec![trainer(0); 5])));
        let mut positions = queue.positions();
        positions.reached(TaskId(0), Step(3));
        queue.restore(&positions);
        take(&mut queue, trainer(0));
        assert_eq!(queue.died(trainer(0), "c"), None, "it came further");
    }
}
