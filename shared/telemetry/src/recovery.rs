//! Recovery timing in five rows: the duration of the checkpoint that is returned to, and of each phase from the failure until
//! training continues.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Phases of one recovery, in milliseconds. `None` for a phase that did not occur: the loss of a trainer restores no
/// checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryPhases {
    /// From the order of the checkpoint that is returned to until its commit.
    pub save_ms: Option<u64>,
    /// From the failure to its detection.
    pub notice_ms: Option<u64>,
    /// From the detection until the replacement is started.
    pub restart_ms: Option<u64>,
    /// From there until it has registered and all shards are loaded.
    pub load_ms: Option<u64>,
    /// From there until the first step of every trainer.
    pub resume_ms: Option<u64>,
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RecoveryRow {
    /// The name of the phase.
    pub name: &'static str,
    /// Its duration in milliseconds.
    pub ms: Option<u64>,
    /// Its part of the sum of all rows, in per cent.
    pub percent: Option<u64>,
    /// What it is, in words; not in JSON, whose readers have the name.
    #[serde(skip)]
    pub meaning: &'static str,
}

impl RecoveryPhases {
    /// The five rows. Shares are whole and add up to 100, unless all durations are zero.
    #[must_use]
    pub fn rows(&self) -> [RecoveryRow; 5] {
        let all = [
            ("checkpoint", self.save_ms, "to save the checkpoint returned to"),
            ("notice", self.notice_ms, "from the failure to its notice"),
            ("restart", self.restart_ms, "until the replacement is started"),
            ("load", self.load_ms, "until it is registered and all shards are loaded"),
            ("resume", self.resume_ms, "until all train again"),
        ];
        let percents = shares(all.map(|(_, ms, _)| ms.unwrap_or(0)));
        let mut percents = percents.into_iter();
        all.map(|(name, ms, meaning)| {
            let percent = percents.next().filter(|_| ms.is_some());
            RecoveryRow { name, ms, percent, meaning }
        })
    }

    /// The outage: from the failure until training continues.
    #[must_use]
    pub fn total_ms(&self) -> u64 {
        let stretches = [self.notice_ms, self.restart_ms, self.load_ms, self.resume_ms];
        stretches.into_iter().flatten().fold(0, u64::saturating_add)
    }
}

/// Whole per cents of the sum by the largest remainder; zeros if the sum is zero.
fn shares(parts: [u64; 5]) -> [u64; 5] {
    let sum: u128 = parts.iter().map(|part| u128::from(*part)).sum();
    if sum == 0 {
        return [0; 5];
    }
    let exact = parts.map(|part| u128::from(part) * 100);
    let mut percents = exact.map(|part| (part / sum) as u64);
    let mut by_remainder = [0, 1, 2, 3, 4];
    by_remainder.sort_by_key(|&at| std::cmp::Reverse(exact[at] % sum));
    let missing = 100 - percents.iter().sum::<u64>();
    for at in by_remainder.into_iter().take(missing as usize) {
        percents[at] += 1;
    }
    percents
}

impl fmt::Display for RecoveryPhases {
    /// One line per row, indented by two.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, row) in self.rows().into_iter().enumerate() {
            let end = if n == 4 { "" } else { "\n" };
            let time = row.ms.map_or_else(|| "-".to_owned(), seconds);
            let percent = row.percent.map_or_else(String::new, |percent| format!("{percent} %"));
            write!(f, "  {:<10}  {time:>10}  {percent:>5}  {}{end}", row.name, row.meaning)?;
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
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn table_has_five_rows_and_a_dash_for_an_absent_phase() {
        let phases = RecoveryPhases {
            save_ms: Some(40),
            notice_ms: Some(9),
            restart_ms: Some(120),
            load_ms: None,
            resume_ms: Some(1_055),
        };
        assert_eq!(
            phases.to_string(),
            "  checkpoint     0.040 s    3 %  to save the checkpoint returned to\n  \
             notice         0.009 s    1 %  from the failure to its notice\n  \
             restart        0.120 s   10 %  until the replacement is started\n  \
             load                 -         until it is registered and all shards are loaded\n  \
             resume         1.055 s   86 %  until all train again"
        );
        assert_eq!(phases.total_ms(), 1_184);
    }

    proptest! {
        #[test]
        fn shares_add_up_to_100(parts in any::<[u32; 5]>()) {
            let parts = parts.map(u64::from);
            let sum: u64 = parts.iter().sum();
            let percents = shares(parts);
            prop_assert_eq!(percents.iter().sum::<u64>(), if sum == 0 { 0 } else { 100 });
            for (percent, part) in percents.into_iter().zip(parts) {
                prop_assert!(
                    (percent as f64 - part as f64 * 100.0 / sum.max(1) as f64).abs() < 1.0
                );
            }
        }
    }
}
