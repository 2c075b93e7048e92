//! Tasks that a pass left out.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::{PhaseNo, TaskId};

/// Listed tasks at the most; the newest are kept.
pub const SET_ASIDE_MAX: usize = 1_000;

/// A task that was set aside: a phase was completed without it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAsideTask {
    /// The phase.
    pub phase: PhaseNo,
    /// The task.
    pub task: TaskId,
    /// URL of its file.
    pub file: String,
    /// First byte.
    pub start: u64,
    /// One beyond the last byte.
    pub end: u64,
    /// Its last error.
    pub error: String,
}

impl fmt::Display for SetAsideTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { phase, task, file, start, end, error } = self;
        write!(f, "task {task} of phase {phase}, bytes {start}..{end} of {file}: {error}")
    }
}
