//! Identity of work: the epoch and phase that it belongs to, and the lane or task.

use std::fmt;

use heddle_protocol::ids::{Epoch, Lane, PhaseNo, TaskId};

/// The epoch and phase of a request or an event. The machine drops requests of another era: their sender has not seen
/// [`crate::machine::ClientEvent::Begun`] yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Era {
    /// Raised by rollbacks.
    pub epoch: Epoch,
    /// The phase of the job.
    pub phase: PhaseNo,
}

impl fmt::Display for Era {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {} phase {}", self.epoch, self.phase)
    }
}

/// The sequence that a step belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unit {
    /// A lane (BSP). Its steps are job steps of the phase.
    Lane(Lane),
    /// A task (ASP). Its steps are its own.
    Task(TaskId),
}

impl Unit {
    /// The number in frames.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::Lane(lane) => lane.0,
            Self::Task(task) => task.0,
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lane(lane) => write!(f, "lane {lane}"),
            Self::Task(task) => write!(f, "task {task}"),
        }
    }
}
