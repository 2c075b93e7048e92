//! BSP: how fast training goes, and where it is by now.
//!
//! A cut names a job step that no shard has reached yet, so the ApplicationMaster must know the frontier between two
//! heartbeats. **Rule:** the rate is taken over at least one heartbeat of work, since reports of several containers arrive
//! milliseconds apart with steps that are not; phases that are shorter count together. The frontier is extrapolated over
//! two heartbeats at most: a longer silence means that training stands still.

use heddle_protocol::ids::Step;

use crate::time::MonotonicMs;

/// Heartbeats over which the frontier is extrapolated.
const HEARTBEATS_AHEAD: u64 = 2;

/// The furthest step that a container reported, and the rate of steps.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StepRate {
    /// Of the current phase, and when it was reported.
    seen: (Step, MonotonicMs),
    /// Steps and milliseconds of work since the rate was last taken.
    since: (u64, u64),
    /// Steps per second; 0 while unknown.
    rate: f64,
}

impl StepRate {
    /// Work begins, or begins again, at this step. The rate stays: it is a property of the job.
    pub(crate) fn starts(&mut self, step: Step, now: MonotonicMs) {
        self.seen = (step, now);
    }

    /// A container is at this step.
    pub(crate) fn saw(&mut self, step: Step, now: MonotonicMs, heartbeat_ms: u64) {
        let (before, at) = self.seen;
        if step <= before {
            return;
        }
        self.seen = (step, now);
        let (steps, ms) = &mut self.since;
        // Whatever a container reports: a step that no job reaches must not end the ApplicationMaster.
        *steps = steps.saturating_add(step.0 - before.0);
        *ms = ms.saturating_add(now.since(at));
        if *ms >= heartbeat_ms.max(1) {
            self.rate = *steps as f64 * 1000.0 / *ms as f64;
            self.since = (0, 0);
        }
    }

    /// The furthest step that a container reported.
    pub(crate) fn frontier(&self) -> Step {
        self.seen.0
    }

    /// Steps per second, if one heartbeat of work has been seen.
    pub(crate) fn rate(&self) -> Option<f64> {
        (self.rate > 0.0).then_some(self.rate)
    }

    /// Where the frontier probably is by now.
    pub(crate) fn guess(&self, now: MonotonicMs, heartbeat_ms: u64) -> Step {
        let silent_ms = now.since(self.seen.1).min(HEARTBEATS_AHEAD * heartbeat_ms);
        let ahead = self.rate * silent_ms as f64 / 1000.0;
        Step(self.seen.0.0.saturating_add(ahead as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEAT: u64 = 2_000;

    #[test]
    fn two_reports_milliseconds_apart_are_not_a_rate() {
        let mut step_rate = StepRate::default();
        step_rate.starts(Step(0), MonotonicMs(1_000));
        step_rate.saw(Step(20), MonotonicMs(3_000), BEAT);
        assert_eq!(step_rate.rate(), Some(10.0));
        // Another container's heartbeat, 2 ms later and a step further: not 500 steps a second.
        step_rate.saw(Step(21), MonotonicMs(3_002), BEAT);
        assert_eq!(step_rate.guess(MonotonicMs(3_102), BEAT), Step(22));
        // Nor is a report of the step after a long time half a step a second.
        step_rate.saw(Step(40), MonotonicMs(5_001), BEAT);
        step_rate.saw(Step(41), MonotonicMs(5_002), BEAT);
        assert!(step_rate.rate().is_some_and(|rate| (9.9..10.1).contains(&rate)));
    }

    #[test]
    fn short_phases_count_together() {
        let mut step_rate = StepRate::default();
        for phase in 0..5u64 {
            step_rate.starts(Step(0), MonotonicMs(phase * 10_000));
            step_rate.saw(Step(100), MonotonicMs(phase * 10_000 + 500), BEAT);
        }
        assert_eq!(step_rate.rate(), Some(200.0), "the time between phases is no work");
    }

    #[test]
    fn a_step_that_no_job_reaches_ends_nothing() {
        let mut step_rate = StepRate::default();
        for phase in 0..3u64 {
            step_rate.starts(Step(0), MonotonicMs(phase * 100));
            step_rate.saw(Step(u64::MAX), MonotonicMs(phase * 100 + 1), BEAT);
        }
        assert_eq!(step_rate.guess(MonotonicMs(5_000), BEAT), Step(u64::MAX));
    }

    #[test]
    fn training_that_stands_still_is_not_extrapolated() {
        let mut step_rate = StepRate::default();
        step_rate.starts(Step(0), MonotonicMs(0));
        step_rate.saw(Step(200), MonotonicMs(2_000), BEAT);
        assert_eq!(step_rate.guess(MonotonicMs(3_000), BEAT), Step(300));
        assert_eq!(step_rate.guess(MonotonicMs(600_000), BEAT), Step(600));
    }
}
