//! Short forms of long lists in JSON: tasks of the input plan and of the queue.
//!
//! A job may have a million tasks, and its manifest is written with each checkpoint. Tasks of a file are adjacent,
//! so a run of them is the file and where each ends: 12 bytes a task instead of 50. Tasks of a queue that are done
//! are ranges of numbers. The forms of version 1, one object a task, are read too.

use serde::{Deserialize, Serialize};

use super::{QueuedTask, TaskRange, TaskState, Work};
use crate::ids::{Step, TaskAttempt, TaskId};

/// (De)serialises `Vec<TaskRange>` as a list of runs.
pub(super) mod task_ranges {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::TaskRange;

    #[derive(Serialize)]
    struct Run {
        file: u32,
        #[serde(skip_serializing_if = "is_zero")]
        start: u64,
        ends: Vec<u64>,
    }

    /// A run, or a single task as version 1 writes it.
    #[derive(Deserialize)]
    struct RunOrTask {
        file: u32,
        #[serde(default)]
        start: u64,
        #[serde(default)]
        ends: Vec<u64>,
        end: Option<u64>,
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
    fn is_zero(n: &u64) -> bool {
        *n == 0
    }

    pub(crate) fn serialize<S: Serializer>(
        tasks: &[TaskRange],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let next_to = |a: &TaskRange, b: &TaskRange| a.file == b.file && a.end == b.start;
        serializer.collect_seq(tasks.chunk_by(next_to).map(|run| Run {
            file: run[0].file,
            start: run[0].start,
            ends: run.iter().map(|task| task.end).collect(),
        }))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<TaskRange>, D::Error> {
        let mut tasks = Vec::new();
        for run in Vec::<RunOrTask>::deserialize(deserializer)? {
            let (file, mut start) = (run.file, run.start);
            for end in run.ends.into_iter().chain(run.end) {
                tasks.push(TaskRange { file, start, end });
                start = end;
            }
        }
        Ok(tasks)
    }
}

/// [`Work`] as it is written.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", tag = "work")]
pub(super) enum WorkJson {
    Lanes {
        step: Step,
    },
    Queue {
        /// First and last of each range of tasks that are done, ascending.
        #[serde(default)]
        done: Vec<[u32; 2]>,
        /// Likewise of those set aside.
        #[serde(default, rename = "set-aside", skip_serializing_if = "Vec::is_empty")]
        set_aside: Vec<[u32; 2]>,
        /// Those begun, ascending.
        #[serde(default)]
        open: Vec<OpenTask>,
        /// Version 1: all of them.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tasks: Vec<QueuedTask>,
    },
}

/// A task that is begun.
#[derive(Deserialize, Serialize)]
pub(super) struct OpenTask {
    task: TaskId,
    step: Step,
    attempt: TaskAttempt,
}

impl From<Work> for WorkJson {
    fn from(work: Work) -> Self {
        let tasks = match work {
            Work::Lanes { step } => return Self::Lanes { step },
            Work::Queue { tasks } => tasks,
        };
        let open = tasks.iter().filter_map(|queued| match queued.state {
            TaskState::Open { step, attempt } => {
                Some(OpenTask { task: queued.task, step, attempt })
            }
            TaskState::Done | TaskState::SetAside => None,
        });
        Self::Queue {
            done: ranges(&tasks, TaskState::Done),
            set_aside: ranges(&tasks, TaskState::SetAside),
            open: open.collect(),
            tasks: Vec::new(),
        }
    }
}

impl TryFrom<WorkJson> for Work {
    type Error = QueueError;

    fn try_from(json: WorkJson) -> Result<Self, QueueError> {
        let (done, set_aside, open, mut tasks) = match json {
            WorkJson::Lanes { step } => return Ok(Self::Lanes { step }),
            WorkJson::Queue { done, set_aside, open, tasks } => (done, set_aside, open, tasks),
        };
        if done.is_empty() && set_aside.is_empty() && open.is_empty() {
            return Ok(Self::Queue { tasks });
        }
        for (list, state) in [(done, TaskState::Done), (set_aside, TaskState::SetAside)] {
            for [first, last] in list {
                // A range is expanded, so its length must be that of a list that could have been sent.
                if last < first || tasks.len() + (last - first) as usize >= QUEUE_TASKS_MAX {
                    return Err(QueueError { first, last });
                }
                tasks.extend((first..=last).map(|task| QueuedTask { task: TaskId(task), state }));
            }
        }
        tasks.extend(open.into_iter().map(|open| QueuedTask {
            task: open.task,
            state: TaskState::Open { step: open.step, attempt: open.attempt },
        }));
        tasks.sort_by_key(|queued| queued.task);
        Ok(Self::Queue { tasks })
    }
}

/// Tasks of a queue at the most: well above those of any plan.
const QUEUE_TASKS_MAX: usize = 1 << 24;

/// A range of tasks that ends before it begins, or more tasks than a plan has.
#[derive(Debug, thiserror::Error)]
#[error("queue: {first}..={last} is not a range of tasks, or one too many")]
pub(super) struct QueueError {
    first: u32,
    last: u32,
}

fn ranges(tasks: &[QueuedTask], state: TaskState) -> Vec<[u32; 2]> {
    let mut ranges: Vec<[u32; 2]> = Vec::new();
    for queued in tasks.iter().filter(|queued| queued.state == state) {
        let task = queued.task.0;
        match ranges.last_mut() {
            Some([_, last]) if last.checked_add(1) == Some(task) => *last = task,
            _ => ranges.push([task, task]),
        }
    }
    ranges
}
