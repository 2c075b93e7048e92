//! Computing times for a record of the trainers that finished tasks: what a late task is measured by.

use std::collections::VecDeque;

/// The latest of them, ns.
#[derive(Clone, Debug, Default)]
pub(super) struct FinishedPaces {
    /// The latest last.
    latest: VecDeque<u64>,
    /// The same values, ascending.
    sorted: Vec<u64>,
}

impl FinishedPaces {
    /// How many are kept.
    const MAX: usize = 128;

    /// Takes in one more.
    pub(super) fn add(&mut self, record_ns: u64) {
        if self.latest.len() == Self::MAX
            && let Some(oldest) = self.latest.pop_front()
            && let Ok(at) = self.sorted.binary_search(&oldest)
        {
            self.sorted.remove(at);
        }
        self.latest.push_back(record_ns);
        let at = self.sorted.partition_point(|other| *other < record_ns);
        self.sorted.insert(at, record_ns);
    }

    /// The median, of an even number the lower one; `None` while no task is finished.
    pub(super) fn median_ns(&self) -> Option<u64> {
        self.sorted.get(self.sorted.len().saturating_sub(1) / 2).copied()
    }
}
