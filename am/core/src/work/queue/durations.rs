//! How long tasks take as a rule: the quantile that a late task is measured by.

use std::collections::VecDeque;

/// The latest own computing times of finished tasks.
#[derive(Clone, Debug, Default)]
pub(super) struct Durations {
    /// The latest last.
    latest: VecDeque<u64>,
    /// The same values, ascending.
    sorted: Vec<u64>,
}

impl Durations {
    /// How many are kept.
    const MAX: usize = 128;

    /// Takes in one more.
    pub(super) fn add(&mut self, ms: u64) {
        if self.latest.len() == Self::MAX
            && let Some(oldest) = self.latest.pop_front()
            && let Ok(at) = self.sorted.binary_search(&oldest)
        {
            self.sorted.remove(at);
        }
        self.latest.push_back(ms);
        let at = self.sorted.partition_point(|other| *other < ms);
        self.sorted.insert(at, ms);
    }

    /// What nine of ten tasks took at the most; 0 while none is known.
    pub(super) fn nine_of_ten_ms(&self) -> u64 {
        let at = self.sorted.len() * 9 / 10;
        self.sorted.get(at).copied().unwrap_or(0)
    }
}
