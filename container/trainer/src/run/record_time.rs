//! Computing time for a record, over the last steps. The ApplicationMaster compares it with that of other trainers; waiting
//! is not part of it, because a slow trainer makes the others wait.

use std::collections::VecDeque;
use std::time::Duration;

/// Steps that count.
const STEPS: usize = 20;

/// Records and computing times of the last [`STEPS`] steps.
#[derive(Debug, Default)]
pub(super) struct RecordTime {
    steps: VecDeque<(u64, Duration)>,
    records: u64,
    computing: Duration,
}

impl RecordTime {
    /// Adds a step. A step without records does not count.
    pub(super) fn add(&mut self, records: u64, took: Duration) {
        if records == 0 {
            return;
        }
        if self.steps.len() == STEPS
            && let Some((records, took)) = self.steps.pop_front()
        {
            self.records -= records;
            self.computing = self.computing.saturating_sub(took);
        }
        self.steps.push_back((records, took));
        self.records += records;
        self.computing += took;
    }

    /// Computing time for a record, ns; 0 before the first step. A step in progress counts with a mean number of
    /// records as soon as it raises the time: one step of a trainer that becomes a hundred times slower takes long.
    pub(super) fn record_ns(&self, in_progress: Option<Duration>) -> u64 {
        if self.records == 0 {
            return 0;
        }
        let ns = |computing: Duration, records: u64| {
            u64::try_from(computing.as_nanos() / u128::from(records)).unwrap_or(u64::MAX).max(1)
        };
        let finished = ns(self.computing, self.records);
        let records = (self.records / self.steps.len() as u64).max(1);
        let with = in_progress.map(|took| ns(self.computing + took, self.records + records));
        with.map_or(finished, |with| finished.max(with))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_last_twenty_steps_count() {
        let mut pace = RecordTime::default();
        assert_eq!(pace.record_ns(Some(MS)), 0, "nothing to compare with");
        pace.add(10, 100 * MS);
        assert_eq!(pace.record_ns(None), 10_000_000);
        pace.add(0, 50 * MS);
        assert_eq!(pace.record_ns(None), 10_000_000, "an empty step");
        for _ in 0..STEPS {
            pace.add(10, 20 * MS);
        }
        assert_eq!(pace.record_ns(None), 2_000_000, "the slow one has left the window");
    }

    #[test]
    fn a_step_in_progress_counts_once_it_is_slow() {
        let mut pace = RecordTime::default();
        for _ in 0..4 {
            pace.add(10, 10 * MS);
        }
        assert_eq!(pace.record_ns(Some(9 * MS)), 1_000_000);
        assert_eq!(pace.record_ns(Some(460 * MS)), 10_000_000);
    }
}
