//! Sets of tasks as runs of neighbours.
//!
//! Nearly all tasks of a long phase are done, so a list of them would grow with the phase. Runs stay few where tasks are
//! handed out in order. Where they are shuffled a run still costs two small numbers: the JSON of a set of a million
//! tasks is at most 2 MB.

use std::collections::BTreeSet;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::ids::TaskId;

/// A set of tasks. In JSON a flat list of numbers, two for each run of neighbours in ascending order: how many tasks
/// are left out since the run before (from task 0 for the first), and how many tasks the run has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskSet {
    /// First and last task of each run, ascending and not touching.
    runs: Vec<(u32, u32)>,
}

impl TaskSet {
    /// First and last task of each run of neighbours, ascending.
    pub fn runs(&self) -> impl Iterator<Item = (TaskId, TaskId)> + '_ {
        let ids = |&(first, last): &(u32, u32)| (TaskId(first), TaskId(last));
        self.runs.iter().map(ids)
    }

    /// Every task, ascending.
    pub fn iter(&self) -> impl Iterator<Item = TaskId> + '_ {
        let run = |&(first, last): &(u32, u32)| (first..=last).map(TaskId);
        self.runs.iter().flat_map(run)
    }

    /// Whether no task is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Number of tasks.
    #[must_use]
    pub fn len(&self) -> u64 {
        let length = |(first, last): &(u32, u32)| u64::from(last - first) + 1;
        self.runs.iter().map(length).sum()
    }

    /// Whether the task is in it.
    #[must_use]
    pub fn contains(&self, task: TaskId) -> bool {
        let at = self.runs.partition_point(|&(_, last)| last < task.0);
        self.runs.get(at).is_some_and(|&(first, _)| first <= task.0)
    }

    /// Tasks that are in either set.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        self.runs().chain(other.runs()).collect()
    }

    /// Tasks that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let (mut runs, mut ours, mut theirs) = (Vec::new(), 0, 0);
        while let (Some(a), Some(b)) = (self.runs.get(ours), other.runs.get(theirs)) {
            let (first, last) = (a.0.max(b.0), a.1.min(b.1));
            if first <= last {
                runs.push((first, last));
            }
            if a.1 < b.1 {
                ours += 1;
            } else {
                theirs += 1;
            }
        }
        Self { runs }
    }

    /// Tasks of this set that are not in the other.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let (mut runs, mut at) = (Vec::new(), 0);
        for &(first, last) in &self.runs {
            let mut next = Some(first);
            while other.runs.get(at).is_some_and(|hole| hole.1 < first) {
                at += 1;
            }
            let mut hole_at = at;
            while let (Some(from), Some(&hole)) = (next, other.runs.get(hole_at))
                && hole.0 <= last
            {
                if from < hole.0 {
                    runs.push((from, hole.0 - 1));
                }
                next = hole.1.checked_add(1).filter(|next| *next <= last);
                hole_at += 1;
            }
            if let Some(from) = next {
                runs.push((from, last));
            }
        }
        Self { runs }
    }

    /// Adds a run behind all that are there; one that touches the last run is joined to it.
    fn push(&mut self, first: u32, last: u32) {
        match self.runs.last_mut() {
            Some(before) if before.1.checked_add(1).is_some_and(|next| first <= next) => {
                before.1 = before.1.max(last);
            }
            _ => self.runs.push((first, last)),
        }
    }
}

/// Runs of first and last task, in any order, also overlapping. A run whose last task is below its first is empty.
impl FromIterator<(TaskId, TaskId)> for TaskSet {
    fn from_iter<I: IntoIterator<Item = (TaskId, TaskId)>>(runs: I) -> Self {
        let runs = runs.into_iter().map(|(first, last)| (first.0, last.0));
        let mut runs: Vec<(u32, u32)> = runs.filter(|(first, last)| first <= last).collect();
        runs.sort_unstable();
        let mut set = Self::default();
        runs.into_iter().for_each(|(first, last)| set.push(first, last));
        set
    }
}

impl FromIterator<TaskId> for TaskSet {
    fn from_iter<I: IntoIterator<Item = TaskId>>(tasks: I) -> Self {
        let tasks: BTreeSet<TaskId> = tasks.into_iter().collect();
        tasks.into_iter().map(|task| (task, task)).collect()
    }
}

impl Serialize for TaskSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut next = 0;
        serializer.collect_seq(self.runs.iter().flat_map(|&(first, last)| {
            let gap = u64::from(first) - next;
            next = u64::from(last) + 1;
            [gap, next - u64::from(first)]
        }))
    }
}

impl<'de> Deserialize<'de> for TaskSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error as _;

        let numbers = Vec::<u64>::deserialize(deserializer)?;
        let wrong = |at: usize| D::Error::custom(format!("no run of tasks at number {at}"));
        let (mut set, mut next) = (Self::default(), 0u64);
        for (at, pair) in numbers.chunks(2).enumerate() {
            let &[gap, length] = pair else {
                return Err(wrong(2 * at));
            };
            let first = next.checked_add(gap);
            let end = first.and_then(|first| first.checked_add(length));
            let (Some(first), Some(end)) = (first, end) else {
                return Err(wrong(2 * at));
            };
            // Runs do not touch, are not empty, and end within the numbers that tasks have.
            let last = u32::try_from(end.saturating_sub(1)).ok();
            let (Some(last), Ok(start), true) =
                (last, u32::try_from(first), length > 0 && (at == 0 || gap > 0))
            else {
                return Err(wrong(2 * at));
            };
            set.runs.push((start, last));
            next = end;
        }
        Ok(set)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(tasks: impl IntoIterator<Item = u32>) -> TaskSet {
        tasks.into_iter().map(TaskId).collect()
    }

    #[test]
    fn the_json_is_gaps_and_lengths() {
        let tasks = set([0, 1, 2, 5, 9, 10]);
        let json = serde_json::to_string(&tasks).expect("numbers");
        assert_eq!(json, "[0,3,2,1,3,2]");
        assert_eq!(serde_json::from_str::<TaskSet>(&json).ok(), Some(tasks));
        let all = set([u32::MAX - 1, u32::MAX]);
        let json = serde_json::to_string(&all).expect("numbers");
        assert_eq!(serde_json::from_str::<TaskSet>(&json).ok(), Some(all));
    }

    #[test]
    fn hostile_json_is_refused() {
        for json in [
            "[0]",
            "[0,0]",
            "[0,1,0,1]",
            "[4294967296,1]",
            "[0,4294967297]",
            "[18446744073709551615,18446744073709551615]",
            "[1,18446744073709551615]",
            "[-1,1]",
            "[0,1.5]",
        ] {
            assert!(serde_json::from_str::<TaskSet>(json).is_err(), "{json}");
        }
    }

    #[test]
    fn a_million_tasks_are_short_however_they_are_mixed() {
        let every_second = set((0..1_000_000).step_by(2));
        let json = serde_json::to_string(&every_second).expect("numbers");
        assert!(json.len() <= 2_000_001, "{}", json.len());
        let all = set(0..1_000_000);
        assert_eq!(serde_json::to_string(&all).expect("numbers"), "[0,1000000]");
    }

    proptest! {
        #[test]
        fn it_is_a_set(
            a in prop::collection::btree_set(0u32..60, 0..50),
            b in prop::collection::btree_set(0u32..60, 0..50),
        ) {
            let (one, other) = (set(a.iter().copied()), set(b.iter().copied()));
            prop_assert_eq!(one.len(), a.len() as u64);
            prop_assert_eq!(one.is_empty(), a.is_empty());
            prop_assert!(one.iter().map(|task| task.0).eq(a.iter().copied()));
            for task in 0..61 {
                prop_assert_eq!(one.contains(TaskId(task)), a.contains(&task));
            }
            prop_assert_eq!(one.intersection(&other), set(a.intersection(&b).copied()));
            prop_assert_eq!(one.union(&other), set(a.union(&b).copied()));
            prop_assert_eq!(one.difference(&other), set(a.difference(&b).copied()));
            let apart = one.runs.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0);
            prop_assert!(apart, "neighbours are one run");
            prop_assert_eq!(one.runs().collect::<TaskSet>(), one.clone());
            let json = serde_json::to_string(&one).expect("numbers");
            prop_assert_eq!(serde_json::from_str::<TaskSet>(&json).ok(), Some(one));
        }
    }
}
