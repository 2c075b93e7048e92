//! The number of applied steps, which schedules of the rate and the corrections of some rules go by.
//!
//! BSP counts job steps, ASP steps whose last part was applied. Every step sends at least one part to every shard, so the
//! count does not depend on the number of shards. Measuring phases do not count.

use heddle_protocol::ids::PhaseNo;

/// The steps that this shard has applied in training phases. Saved with the shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepCount {
    applied: u64,
    training_from: PhaseNo,
    counting: bool,
}

impl StepCount {
    /// No step.
    pub(crate) fn new(training_from: PhaseNo) -> Self {
        Self { applied: 0, training_from, counting: false }
    }

    /// The count of a saved shard.
    pub(crate) fn restore(&mut self, applied: u64) {
        self.applied = applied;
    }

    /// Whether steps of a phase count: it is not a measuring one.
    pub(crate) fn counts_in(&self, phase: PhaseNo) -> bool {
        phase >= self.training_from
    }

    /// A phase begins or continues.
    pub(crate) fn serve(&mut self, phase: PhaseNo) {
        self.counting = self.counts_in(phase);
    }

    /// Number of the step that is applied next, from 1.
    pub(crate) fn next(&self) -> u64 {
        self.applied + 1
    }

    /// A step was applied.
    pub(crate) fn applied(&mut self) {
        self.applied += u64::from(self.counting);
    }

    /// Steps so far.
    pub(crate) fn count(&self) -> u64 {
        self.applied
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_measuring_phases_do_not_count() {
        let mut steps = StepCount::new(PhaseNo(2));
        for phase in 0..4 {
            steps.serve(PhaseNo(phase));
            steps.applied();
        }
        assert_eq!((steps.count(), steps.next()), (2, 3));
    }
}
