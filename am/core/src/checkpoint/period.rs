//! `checkpoint.every = "auto"`: the period that loses least work, from what checkpoints cost and how often pservers are lost.
//!
//! With a cost C of a checkpoint and a mean time M between rollbacks, Young's period √(2·C·M) balances the time for
//! checkpoints with the work that rollbacks repeat (J. W. Young, "A first order approximation to the optimum checkpoint
//! interval", 1974). A new attempt of the ApplicationMaster begins to count again.

use std::collections::VecDeque;

use heddle_protocol::view::CheckpointPeriodView;

use crate::time::MonotonicMs;

const SECOND: f64 = 1_000.0;
const HOUR: f64 = 3_600.0 * SECOND;
/// Running time and rollbacks are forgotten with this time constant.
const MEMORY_MS: f64 = 24.0 * HOUR;
/// What a job is assumed to have seen before it began: a tenth of a rollback in 2.4 hours, one in 24.
const ASSUMED_MS: f64 = 2.4 * HOUR;
const ASSUMED_ROLLBACKS: f64 = 0.1;
/// A checkpoint costs at least this.
const COST_MIN_MS: f64 = 50.0;
/// Checkpoints whose cost counts.
const COSTS: usize = 3;
/// Bounds of the period. It is also at least twice as long as a checkpoint takes.
const PERIOD_MIN_MS: f64 = 30.0 * SECOND;
const PERIOD_MAX_MS: f64 = 1_800.0 * SECOND;
/// A period that differs by less than this part is kept.
const SAME: f64 = 0.02;

/// Observed costs and rollbacks, and the period that follows from them.
#[derive(Clone, Debug, Default)]
pub(crate) struct AutoPeriod {
    /// Cost and duration of the last checkpoints.
    saves: VecDeque<(f64, f64)>,
    /// Up to `counted`, with older time and rollbacks forgotten.
    running_ms: f64,
    rollbacks: f64,
    counted: Option<MonotonicMs>,
    /// As it was reported last.
    reported: Option<CheckpointPeriodView>,
}

impl AutoPeriod {
    /// A checkpoint took `took_ms` and cost `cost_ms` of training.
    pub(crate) fn saved(&mut self, cost_ms: f64, took_ms: u64) {
        if self.saves.len() == COSTS {
            self.saves.pop_front();
        }
        self.saves.push_back((cost_ms.max(COST_MIN_MS), took_ms as f64));
    }

    /// Shards went back to a checkpoint.
    pub(crate) fn rolled_back(&mut self, now: MonotonicMs) {
        self.count_until(now);
        self.rollbacks += 1.0;
    }

    /// The period from now on, and whether it differs from the last one that was reported.
    pub(crate) fn at(&mut self, now: MonotonicMs) -> (CheckpointPeriodView, bool) {
        self.count_until(now);
        let view = self.view();
        let before = self.reported.as_ref().map(|before| before.period_ms as f64);
        let is_same =
            before.is_some_and(|before| (view.period_ms as f64 - before).abs() <= before * SAME);
        match (&self.reported, is_same) {
            (Some(reported), true) => (reported.clone(), false),
            _ => {
                self.reported = Some(view.clone());
                (view, true)
            }
        }
    }

    fn count_until(&mut self, now: MonotonicMs) {
        let passed = now.since(self.counted.unwrap_or(now)) as f64;
        self.counted = Some(now);
        let kept = (-passed / MEMORY_MS).exp();
        self.rollbacks *= kept;
        self.running_ms = self.running_ms * kept + MEMORY_MS * (1.0 - kept);
    }

    fn view(&self) -> CheckpointPeriodView {
        let costs = self.saves.iter().map(|(cost, _)| cost);
        let cost_ms = (costs.sum::<f64>() / self.saves.len().max(1) as f64).max(COST_MIN_MS);
        let took_ms = self.saves.iter().map(|(_, took)| *took).fold(0.0, f64::max);
        let between_ms = (self.running_ms + ASSUMED_MS) / (self.rollbacks + ASSUMED_ROLLBACKS);
        let young = (2.0 * cost_ms * between_ms).sqrt();
        // The lower bound wins: two checkpoints never overlap.
        let period = young.min(PERIOD_MAX_MS).max(PERIOD_MIN_MS.max(2.0 * took_ms));
        CheckpointPeriodView {
            period_ms: period.round() as u64,
            cost_ms: cost_ms.round() as u64,
            rollbacks: self.rollbacks,
            running_ms: self.running_ms.round() as u64,
            between_ms: between_ms.round() as u64,
        }
    }
}

/// What training loses while a checkpoint is saved: its rate beside the rate before.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SaveLoss {
    /// The end of the last checkpoint, or where the phase began to be watched.
    since: Option<StepsAt>,
    /// Where the checkpoint that is being saved began.
    begun: Option<StepsAt>,
    /// Steps a millisecond before it.
    before: Option<f64>,
}

impl SaveLoss {
    /// A checkpoint begins. A rate counts that was taken over `least_ms`.
    pub(crate) fn save_begins(&mut self, now: MonotonicMs, steps: u64, least_ms: u64) {
        let begun = StepsAt { at: now, steps };
        let before = self.since.and_then(|since| since.rate_until(begun, least_ms));
        self.before = before.filter(|rate| *rate > 0.0);
        self.begun = Some(begun);
    }

    /// The checkpoint is committed. Returns the share of the rate that training lost meanwhile, if both rates are known.
    pub(crate) fn save_ended(
        &mut self,
        now: MonotonicMs,
        steps: u64,
        least_ms: u64,
    ) -> Option<f64> {
        let ended = StepsAt { at: now, steps };
        self.since = Some(ended);
        let during = self.begun.take()?.rate_until(ended, least_ms)?;
        Some((1.0 - during / self.before?).clamp(0.0, 1.0))
    }

    /// A phase has ended, or shards went back: steps before and after cannot be compared.
    pub(crate) fn interrupted(&mut self) {
        *self = Self::default();
    }
}

/// A moment, and the steps that the phase had made by then.
#[derive(Clone, Copy, Debug)]
struct StepsAt {
    at: MonotonicMs,
    steps: u64,
}

impl StepsAt {
    /// Steps a millisecond up to a later moment, if there is enough time between the two.
    fn rate_until(self, later: Self, least_ms: u64) -> Option<f64> {
        let passed = later.at.since(self.at);
        let made = later.steps.saturating_sub(self.steps);
        (passed >= least_ms.max(1)).then(|| made as f64 / passed as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hours(hours: u64) -> MonotonicMs {
        MonotonicMs(hours * 3_600_000)
    }

    /// The period in seconds after saves of this cost, this time in hours and these rollbacks, without forgetting.
    fn seconds(cost_s: f64, running_h: f64, rollbacks: f64) -> f64 {
        let mut auto =
            AutoPeriod { running_ms: running_h * HOUR, rollbacks, ..AutoPeriod::default() };
        auto.saved(cost_s * SECOND, 0);
        auto.view().period_ms as f64 / SECOND
    }

    #[test]
    fn the_period_follows_youngs_formula_within_bounds() {
        // One rollback an hour: (t + 2.4) / (n + 0.1) = 1.
        assert!((seconds(18.8, 7.7, 10.0) - 368.0).abs() < 1.0);
        assert_eq!(seconds(18.8, 0.0, 0.0), 1_800.0, "one rollback in 24 h is assumed: 1,802 s");
        assert!((seconds(2.0, 1.0, 6.0) - 90.0).abs() < 1.0);
        assert_eq!(seconds(0.0, 1.0, 1_000.0), 30.0);
    }

    #[test]
    fn a_period_is_at_least_twice_the_duration_of_a_checkpoint() {
        let mut auto = AutoPeriod::default();
        auto.saved(100.0, 40_000);
        for _ in 0..500 {
            auto.rolled_back(MonotonicMs(1));
        }
        assert_eq!(auto.view().period_ms, 80_000);
        auto.saved(100.0, 1_200_000);
        assert_eq!(auto.view().period_ms, 2_400_000, "also above the upper bound");
    }

    #[test]
    fn the_last_three_costs_count() {
        let mut auto = AutoPeriod::default();
        for cost in [90_000.0, 1_000.0, 2_000.0, 6_000.0] {
            auto.saved(cost, 0);
        }
        assert_eq!(auto.view().cost_ms, 3_000);
    }

    /// Schedule 50: six rollbacks in an hour, then a quiet day.
    #[test]
    fn s50_period_falls_with_rollbacks_and_rises_after_a_quiet_day() {
        let mut auto = AutoPeriod::default();
        auto.saved(2_000.0, 2_000);
        assert!(auto.at(hours(0)).1, "the first one is reported");
        let quiet = auto.at(hours(1)).0.period_ms;
        for minute in 1..=6 {
            auto.rolled_back(hours(1) + minute * 600_000);
        }
        let (busy, is_new) = auto.at(hours(2));
        assert!(is_new);
        assert!((busy.period_ms as f64 - 101_800.0).abs() < 3_000.0, "{busy:?}");
        assert_eq!(
            busy.to_string(),
            "checkpoint period 102 s: a checkpoint costs 2.0 s, 6 rollbacks in 1.9 h (one in 43 min)"
        );
        assert!(!auto.at(hours(2) + 1_000).1, "nothing has changed");
        let later = auto.at(hours(26)).0.period_ms;
        assert!(later > 2 * busy.period_ms && later < quiet, "{later} {quiet}");
    }

    #[test]
    fn loss_is_the_rate_during_a_save_beside_that_before() {
        let mut save_loss = SaveLoss::default();
        save_loss.save_begins(MonotonicMs(0), 0, 2_000);
        assert_eq!(save_loss.save_ended(MonotonicMs(5_000), 50, 2_000), None, "no rate before it");
        save_loss.save_begins(MonotonicMs(15_000), 1_050, 2_000);
        let lost = save_loss.save_ended(MonotonicMs(20_000), 1_425, 2_000).expect("both are known");
        assert!((lost - 0.25).abs() < 1e-9, "{lost}");
        save_loss.save_begins(MonotonicMs(30_000), 2_425, 2_000);
        assert_eq!(save_loss.save_ended(MonotonicMs(31_000), 2_425, 2_000), None, "too short");
        save_loss.save_begins(MonotonicMs(41_000), 3_425, 2_000);
        save_loss.interrupted();
        assert_eq!(save_loss.save_ended(MonotonicMs(50_000), 3_425, 2_000), None, "another phase");
    }
}
