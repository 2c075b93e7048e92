//! Recovery timing in five rows: the age of the restored state, and the duration of each phase from the failure until
//! training continues.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Phases of one recovery, in milliseconds. `None` for a phase that did not occur: the loss of a trainer restores no
/// checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryPhases {
    /// Age of the checkpoint at the failure: work that is repeated.
    pub checkpoint_ms: Option<u64>,
    /// From the failure to its detection.
    pub notice_ms: Option<u64>,
    /// From the detection to the registration of the replacement.
    pub restart_ms: Option<u64>,
    /// From there until all shards are loaded.
    pub load_ms: Option<u64>,
    /// From there until the first step of every trainer.
    pub resume_ms: Option<u64>,
}

impl RecoveryPhases {
    /// The five rows: name, time in milliseconds, meaning.
    #[must_use]
    pub fn rows(&self) -> [(&'static str, Option<u64>, &'static str); 5] {
        [
            ("checkpoint", self.checkpoint_ms, "age of the state returned to"),
            ("notice", self.notice_ms, "from the failure to its notice"),
            ("restart", self.restart_ms, "to the replacement's registration"),
            ("load", self.load_ms, "to all shards being held"),
            ("resume", self.resume_ms, "to training again"),
        ]
    }

    /// From the failure until training continues, without the age of the checkpoint.
    #[must_use]
    pub fn total_ms(&self) -> u64 {
        let stretches = [self.notice_ms, self.restart_ms, self.load_ms, self.resume_ms];
        stretches.into_iter().flatten().fold(0, u64::saturating_add)
    }
}

impl fmt::Display for RecoveryPhases {
    /// One line per row, indented by two.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (name, ms, meaning)) in self.rows().into_iter().enumerate() {
            let end = if n == 4 { "" } else { "\n" };
            let time = ms.map_or_else(|| "-".to_owned(), seconds);
            write!(f, "  {name:<10}  {time:>10}  {meaning}{end}")?;
        }
        Ok(())
    }
}

/// Milliseconds as seconds with three digits: `0.184 s`.
#[must_use]
pub fn seconds(ms: u64) -> String {
    format!("{}.{:03} s", ms / 1000, ms % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_five_rows_and_a_dash_for_an_absent_phase() {
        let phases = RecoveryPhases {
            checkpoint_ms: Some(12_040),
            notice_ms: Some(9),
            restart_ms: Some(120),
            load_ms: None,
            resume_ms: Some(1_055),
        };
        assert_eq!(
            phases.to_string(),
            "  checkpoint    12.040 s  age of the state returned to\n  \
             notice         0.009 s  from the failure to its notice\n  \
             restart        0.120 s  to the replacement's registration\n  \
             load                 -  to all shards being held\n  \
             resume         1.055 s  to training again"
        );
        assert_eq!(phases.total_ms(), 1_184);
    }
}
