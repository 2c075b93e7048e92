//! ASP: how far each task is applied on this shard. Detects repeated and missing parts.

use std::collections::BTreeMap;

use heddle_protocol::ids::{Part, Step, TaskId};
use heddle_protocol::mutation::Mutation;

/// The next part of an unfinished task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NextPart {
    pub(crate) step: Step,
    pub(crate) part: Part,
}

impl NextPart {
    /// The part after `part` of `step`.
    pub(crate) fn after(step: Step, part: Part, last: bool) -> Self {
        if last {
            Self { step: step.next(), part: Part(0) }
        } else {
            Self { step, part: part.next() }
        }
    }
}

/// A part compared with the next part of its task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// The next one.
    Next,
    /// Applied before.
    Already,
    /// An earlier part is missing.
    Ahead,
}

/// All tasks of a phase. Finished tasks are kept until the phase is over, as runs of consecutive numbers: nearly all tasks
/// of a long phase are finished, and the state is part of every snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TaskProgress {
    pub(crate) unfinished: BTreeMap<TaskId, NextPart>,
    /// First to last number of each run.
    pub(crate) done: BTreeMap<u32, u32>,
}

impl TaskProgress {
    pub(crate) fn is_done(&self, task: TaskId) -> bool {
        self.done.range(..=task.0).next_back().is_some_and(|(_, &last)| task.0 <= last)
    }

    /// The next part of an unfinished task.
    pub(crate) fn next_part(&self, task: TaskId) -> NextPart {
        self.unfinished.get(&task).copied().unwrap_or_default()
    }

    pub(crate) fn check_part(&self, task: TaskId, step: Step, part: Part) -> Judgement {
        if Mutation::NoOnceOnlyMemory.is_on() {
            return Judgement::Next;
        }
        if self.is_done(task) {
            return Judgement::Already;
        }
        match (NextPart { step, part }).cmp(&self.next_part(task)) {
            std::cmp::Ordering::Less => Judgement::Already,
            std::cmp::Ordering::Equal => Judgement::Next,
            std::cmp::Ordering::Greater => Judgement::Ahead,
        }
    }

    pub(crate) fn advance(&mut self, task: TaskId, step: Step, part: Part, last: bool) {
        self.unfinished.insert(task, NextPart::after(step, part, last));
    }

    /// Takes nothing of a task before this step.
    pub(crate) fn skip_to(&mut self, task: TaskId, step: Step) {
        let next = NextPart { step, part: Part(0) };
        if !self.is_done(task) && self.next_part(task) < next {
            self.unfinished.insert(task, next);
        }
    }

    /// Marks a task as done. False if it was done before.
    pub(crate) fn finish(&mut self, task: TaskId) -> bool {
        if self.is_done(task) {
            return false;
        }
        self.unfinished.remove(&task);
        let mut run = (task.0, task.0);
        if let Some((&first, &last)) = self.done.range(..task.0).next_back()
            && last.checked_add(1) == Some(task.0)
        {
            run.0 = first;
        }
        if let Some(last) = task.0.checked_add(1).and_then(|next| self.done.remove(&next)) {
            run.1 = last;
        }
        self.done.insert(run.0, run.1);
        true
    }

    /// Every finished task, ascending.
    #[cfg(test)]
    fn done_tasks(&self) -> impl Iterator<Item = TaskId> {
        self.done.iter().flat_map(|(&first, &last)| (first..=last).map(TaskId))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parts_are_accepted_in_order_and_once() {
        let task = TaskId(3);
        let mut tasks = TaskProgress::default();
        let check =
            |tasks: &TaskProgress, step, part| tasks.check_part(task, Step(step), Part(part));
        assert_eq!(check(&tasks, 0, 0), Judgement::Next);
        assert_eq!(check(&tasks, 0, 1), Judgement::Ahead);
        tasks.advance(task, Step(0), Part(0), false);
        assert_eq!(check(&tasks, 0, 0), Judgement::Already);
        assert_eq!(check(&tasks, 0, 1), Judgement::Next);
        assert_eq!(check(&tasks, 1, 0), Judgement::Ahead);
        tasks.advance(task, Step(0), Part(1), true);
        assert_eq!(check(&tasks, 1, 0), Judgement::Next);
        tasks.finish(task);
        assert_eq!(check(&tasks, 1, 0), Judgement::Already);
    }

    proptest! {
        #[test]
        fn runs_of_finished_tasks_are_a_set(tasks in prop::collection::vec(0u32..60, 0..80)) {
            let (mut progress, mut model) = (TaskProgress::default(), BTreeSet::new());
            for task in tasks {
                prop_assert_eq!(progress.finish(TaskId(task)), model.insert(TaskId(task)));
            }
            prop_assert!(progress.done_tasks().eq(model.iter().copied()));
            for task in 0..61 {
                prop_assert_eq!(progress.is_done(TaskId(task)), model.contains(&TaskId(task)));
            }
            let next = progress.done.iter().skip(1);
            let apart = progress.done.iter().zip(next).all(|(a, b)| a.1 + 1 < *b.0);
            prop_assert!(apart, "neighbours are one run");
        }
    }
}
