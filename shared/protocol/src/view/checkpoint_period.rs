//! The period that `checkpoint.every = "auto"` comes to, for users.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How often checkpoints are taken, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointPeriodView {
    /// From one checkpoint to the next, ms.
    pub period_ms: u64,
    /// Training that a checkpoint costs, ms.
    pub cost_ms: u64,
    /// Rollbacks of the last day; older ones are forgotten little by little.
    pub rollbacks: f64,
    /// Running time in which they happened, ms, forgotten in the same way.
    pub running_ms: u64,
    /// The mean time between rollbacks, ms: with a tenth of a rollback in 2.4 hours that is assumed besides.
    pub between_ms: u64,
}

impl fmt::Display for CheckpointPeriodView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "checkpoint period {:.0} s: a checkpoint costs {:.1} s, {:.0} rollbacks in {:.1} h (one in {:.0} min)",
            self.period_ms as f64 / 1e3,
            self.cost_ms as f64 / 1e3,
            self.rollbacks,
            self.running_ms as f64 / 3.6e6,
            self.between_ms as f64 / 6e4
        )
    }
}
