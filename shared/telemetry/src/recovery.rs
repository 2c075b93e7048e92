//! A recovery in five rows: how old the state was that the job went back to, and how long each
//! stretch took from the failure to training again.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The stretches of one recovery in milliseconds. Nothing where a stretch did not occur: a lost
/// trainer needs no checkpoint and loads nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryPhases {
    /// Age of the checkpoint at the failure: work done again.
    pub checkpoint_ms: Option<u64>,
    /// From the failure to its notice.
    pub notice_ms: Option<u64>,
    /// From the notice to the replacement's registration.
    pub restart_ms: Option<u64>,
    /// From there to all shards being held.
    pub load_ms: Option<u64>,
    /// From there to every trainer's first step.
    pub resume_ms: Option<u64>,
}

impl RecoveryPhases {
    /// The five rows: name, time, and what it is.
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

    /// From the failure to training again; the checkpoint's age is no part of it.
    #[must_use]
    pub fn total_ms(&self) -> u64 {
        let stretches = [self.notice_ms, self.restart_ms, self.load_ms, self.resume_ms];
        stretches.into_iter().flatten().fold(0, u64::saturating_add)
    }
}

impl fmt::Display for RecoveryPhases {
    /// A line for each row, indented by two.
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
    fn the_table_has_five_rows_and_a_dash_for_what_did_not_occur() {
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
