//! What a task's records add up to, and how tasks are merged into the figures of a phase.
//!
//! Merging is exact and does not depend on who computed what when: counts are integers, and sums of
//! losses are kept per task and added in the order of task numbers. The area under the ROC curve
//! comes from counts over 2²⁰ bins of the score, so that no list of scores is ever sent or sorted;
//! what binning can have changed is known exactly and reported beside it.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::ids::TaskId;

/// Number of bins that scores are counted in.
pub const SCORE_BINS: u32 = 1 << 20;
/// Bad records of a task whose place is told in words; the others are only counted.
pub const BAD_EXAMPLES_MAX: usize = 5;

/// What the records of one task add up to in one phase.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TaskMetrics {
    /// Records computed, without bad ones.
    pub rows: u64,
    /// Sum over the records of the loss at the values of their step; may be infinite or no number.
    #[serde(with = "any_float")]
    pub loss_sum: f64,
    /// Records on the right side of probability ½.
    pub correct: u64,
    /// Records left out because they are malformed.
    #[serde(default)]
    pub bad_records: u64,
    /// The first [`BAD_EXAMPLES_MAX`] of them, as `file:line:column: what`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bad_examples: Vec<String>,
    /// Where the task first writes the negative class as `0` and as `-1`, for each of the two that it has: data with both
    /// beside `1` has three classes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub negatives: BTreeMap<String, String>,
    /// Counts of scores; empty except in evaluations.
    #[serde(default, skip_serializing_if = "ScoreCounts::is_empty")]
    pub scores: ScoreCounts,
}

/// The bin of a score `z` (a log-odds): bins rise with the score.
///
/// Scores are squeezed into (−1, 1) by `z / (1 + |z|)` and that is cut evenly, which takes nothing but
/// exactly rounded operations. A bin is 2·10⁻⁶ wide at 0, 3·10⁻⁵ at a log-odds of 3 and 10⁻³ at 20, so
/// confident scores do not pile up in the last bin as they would with probabilities. What is no number
/// is counted in bin 0.
#[must_use]
pub fn score_bin(score: f64) -> u32 {
    if score.is_nan() {
        return 0;
    }
    let squeezed = if score.is_infinite() { score.signum() } else { score / (1.0 + score.abs()) };
    let at = (squeezed + 1.0) * f64::from(SCORE_BINS / 2);
    // Casts saturate; +∞ and the largest scores round to exactly SCORE_BINS.
    (at as u32).min(SCORE_BINS - 1)
}

/// Exact counts of scores per bin, only bins with any. Entries are sorted by bin, without repeats.
///
/// On the wire a list of `[bin, negatives, positives]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<[u64; 3]>", into = "Vec<[u64; 3]>")]
pub struct ScoreCounts {
    bins: BTreeMap<u32, [u64; 2]>,
}

impl ScoreCounts {
    /// Counts one record's score.
    pub fn count(&mut self, score: f64, positive: bool) {
        self.bins.entry(score_bin(score)).or_default()[usize::from(positive)] += 1;
    }

    /// Whether nothing was counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bins.is_empty()
    }

    /// Adds the counts of another.
    pub fn merge(&mut self, other: &Self) {
        for (bin, [negatives, positives]) in &other.bins {
            let sum = self.bins.entry(*bin).or_default();
            sum[0] = sum[0].saturating_add(*negatives);
            sum[1] = sum[1].saturating_add(*positives);
        }
    }

    /// Area under the ROC curve: the chance that a positive record scores above a negative one, ties
    /// counting half, and the most that it can be away from the area over unbinned scores. Nothing
    /// when a class is missing.
    #[must_use]
    pub fn auc(&self) -> Option<Auc> {
        // Pairs of one bin could be in either order: they count half, and half of them is the error.
        let (mut below, mut positives) = (0u128, 0u128);
        let (mut doubled, mut tied) = (0u128, 0u128);
        for [n, p] in self.bins.values().map(|pair| pair.map(u128::from)) {
            doubled += p * (2 * below + n);
            tied += p * n;
            below += n;
            positives += p;
        }
        let pairs = positives * below;
        (pairs > 0).then(|| Auc {
            value: doubled as f64 / (2.0 * pairs as f64),
            error: tied as f64 / (2.0 * pairs as f64),
        })
    }
}

/// Counts that are not in the form that is agreed.
#[derive(Debug, thiserror::Error)]
#[error("score counts are not sorted by bin or name a bin beyond {SCORE_BINS}")]
pub struct ScoreCountsError;

impl TryFrom<Vec<[u64; 3]>> for ScoreCounts {
    type Error = ScoreCountsError;

    fn try_from(list: Vec<[u64; 3]>) -> Result<Self, ScoreCountsError> {
        let sorted = list.windows(2).all(|pair| pair[0][0] < pair[1][0]);
        if !sorted || list.last().is_some_and(|last| last[0] >= u64::from(SCORE_BINS)) {
            return Err(ScoreCountsError);
        }
        let bins = list.into_iter().map(|[bin, n, p]| (bin as u32, [n, p])).collect();
        Ok(Self { bins })
    }
}

impl From<ScoreCounts> for Vec<[u64; 3]> {
    fn from(counts: ScoreCounts) -> Self {
        counts.bins.into_iter().map(|(bin, [n, p])| [u64::from(bin), n, p]).collect()
    }
}

/// An area under the ROC curve with its error bound.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Auc {
    /// From 0 to 1.
    pub value: f64,
    /// The area over unbinned scores is within `value ± error`.
    pub error: f64,
}

/// The tasks of one phase, merged as they finish; the same figures in whatever order they come.
///
/// Taking in a task costs the logarithm of the number of tasks, whatever their number: only sums of losses depend on
/// the order of addition and are kept per task, 16 bytes each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PhaseMetrics {
    /// Per task: the sum of its losses.
    losses: BTreeMap<TaskId, f64>,
    rows: u64,
    correct: u64,
    bad_total: u64,
    /// Bad records of tasks that a checkpoint holds as done: they are not reported again.
    bad_before: u64,
    /// Per task that has any: its bad records.
    bad_records: BTreeMap<TaskId, u64>,
    /// Examples of bad records, of the [`EXAMPLE_TASKS_MAX`] lowest tasks that have any.
    bad_examples: BTreeMap<TaskId, Vec<String>>,
    scores: ScoreCounts,
}

/// Tasks whose examples of bad records are kept.
const EXAMPLE_TASKS_MAX: usize = 16;

impl PhaseMetrics {
    /// Takes in a task. The first report of a task counts; says whether this was it.
    pub fn add(&mut self, task: TaskId, mut metrics: TaskMetrics) -> bool {
        match self.losses.entry(task) {
            Entry::Occupied(_) => return false,
            Entry::Vacant(entry) => entry.insert(metrics.loss_sum),
        };
        self.rows = self.rows.saturating_add(metrics.rows);
        self.correct = self.correct.saturating_add(metrics.correct);
        if metrics.bad_records > 0 {
            self.bad_total = self.bad_total.saturating_add(metrics.bad_records);
            self.bad_records.insert(task, metrics.bad_records);
        }
        self.scores.merge(&metrics.scores);
        if !metrics.bad_examples.is_empty() {
            metrics.bad_examples.truncate(BAD_EXAMPLES_MAX);
            self.bad_examples.insert(task, metrics.bad_examples);
            if self.bad_examples.len() > EXAMPLE_TASKS_MAX {
                self.bad_examples.pop_last();
            }
        }
        true
    }

    /// A phase that goes on from a checkpoint, whose finished tasks had so many bad records.
    #[must_use]
    pub fn after(bad_before: u64) -> Self {
        Self { bad_total: bad_before, bad_before, ..Self::default() }
    }

    /// Bad records of all tasks taken in so far, and of those that a checkpoint holds as done.
    #[must_use]
    pub fn bad_records(&self) -> u64 {
        self.bad_total
    }

    /// Bad records of these tasks, and of those that the checkpoint before holds as done.
    #[must_use]
    pub fn bad_records_of(&self, tasks: &BTreeSet<TaskId>) -> u64 {
        self.bad_records
            .iter()
            .filter(|(task, _)| tasks.contains(task))
            .fold(self.bad_before, |sum, (_, bad)| sum.saturating_add(*bad))
    }

    /// The figures of all tasks taken in so far. Walks all tasks and score bins: once per phase, not per task.
    #[must_use]
    pub fn summary(&self) -> Summary {
        Summary {
            tasks: self.losses.len() as u64,
            rows: self.rows,
            loss_sum: self.losses.values().fold(0.0, |sum, loss| sum + loss),
            correct: self.correct,
            bad_records: self.bad_total,
            auc: self.scores.auc(),
        }
    }

    /// Places of bad records, at most `count`, in the order of task numbers.
    pub fn bad_examples(&self, count: usize) -> impl Iterator<Item = &str> {
        self.bad_examples.values().flatten().map(String::as_str).take(count)
    }
}

/// Figures of a phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Summary {
    /// Tasks taken in.
    pub tasks: u64,
    /// Records computed.
    pub rows: u64,
    /// Sum of losses, added in the order of task numbers.
    #[serde(with = "any_float")]
    pub loss_sum: f64,
    /// Records on the right side of probability ½.
    pub correct: u64,
    /// Records left out as bad.
    pub bad_records: u64,
    /// Evaluations in which both classes occur: the area under the ROC curve.
    pub auc: Option<Auc>,
}

impl Summary {
    /// Mean loss per record; nothing without records.
    #[must_use]
    pub fn mean_loss(&self) -> Option<f64> {
        (self.rows > 0).then(|| self.loss_sum / self.rows as f64)
    }

    /// Share of records on the right side of ½; nothing without records.
    #[must_use]
    pub fn accuracy(&self) -> Option<f64> {
        (self.rows > 0).then(|| self.correct as f64 / self.rows as f64)
    }
}

/// Floats as JSON numbers where JSON has them, else as text; JSON has no NaN and no infinity, and a
/// diverging model's loss is both in time.
mod any_float {
    use serde::{Deserialize, Deserializer, Serializer, de};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Number(f64),
        Text(String),
    }

    pub(super) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        if value.is_finite() {
            serializer.serialize_f64(*value)
        } else {
            serializer.collect_str(value)
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        match Either::deserialize(deserializer)? {
            Either::Number(value) => Ok(value),
            Either::Text(text) => text.parse().map_err(de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn counts(scores: &[(f64, bool)]) -> ScoreCounts {
        let mut counts = ScoreCounts::default();
        for (score, positive) in scores {
            counts.count(*score, *positive);
        }
        counts
    }

    #[test]
    fn area_of_a_perfect_a_reversed_and_a_tied_order() {
        let perfect = counts(&[(-1.0, false), (1.0, true)]).auc().expect("both classes");
        assert_eq!((perfect.value, perfect.error), (1.0, 0.0));
        let reversed = counts(&[(-1.0, true), (1.0, false)]).auc().expect("both classes");
        assert_eq!(reversed.value, 0.0);
        let tied = counts(&[(0.5, true), (0.5, false)]).auc().expect("both classes");
        assert_eq!((tied.value, tied.error), (0.5, 0.5));
        assert_eq!(counts(&[(0.5, true)]).auc(), None);
    }

    #[test]
    fn the_first_report_of_a_task_counts() {
        let mut phase = PhaseMetrics::default();
        let once = TaskMetrics { rows: 3, loss_sum: 1.5, ..TaskMetrics::default() };
        assert!(phase.add(TaskId(1), once.clone()));
        assert!(!phase.add(TaskId(1), once));
        assert_eq!(phase.summary().rows, 3);
        assert_eq!(phase.summary().mean_loss(), Some(0.5));
    }

    #[test]
    fn what_is_no_number_survives_json() {
        for loss_sum in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.1] {
            let metrics = TaskMetrics { loss_sum, ..TaskMetrics::default() };
            let text = serde_json::to_string(&metrics).expect("serialises");
            let back: TaskMetrics = serde_json::from_str(&text).expect("reads back");
            assert!(back.loss_sum == loss_sum || (back.loss_sum.is_nan() && loss_sum.is_nan()));
        }
    }

    #[test]
    fn counts_out_of_form_are_refused() {
        for wrong in ["[[3,1,1],[3,1,1]]", "[[4,1,1],[3,1,1]]", "[[1048576,1,1]]", "[[-1,1,1]]"] {
            assert!(serde_json::from_str::<ScoreCounts>(wrong).is_err(), "{wrong} was taken");
        }
    }

    proptest! {
        #[test]
        fn bins_rise_with_scores(a in any::<f64>(), b in any::<f64>()) {
            prop_assume!(!a.is_nan() && !b.is_nan());
            let (low, high) = if a < b { (a, b) } else { (b, a) };
            prop_assert!(score_bin(low) <= score_bin(high));
            prop_assert!(score_bin(high) < SCORE_BINS);
        }

        #[test]
        fn the_area_is_within_its_bound_of_the_exact_one(
            scores in proptest::collection::vec((-30.0f64..30.0, any::<bool>()), 2..60)
        ) {
            let positives: Vec<f64> = scores.iter().filter(|s| s.1).map(|s| s.0).collect();
            let negatives: Vec<f64> = scores.iter().filter(|s| !s.1).map(|s| s.0).collect();
            prop_assume!(!positives.is_empty() && !negatives.is_empty());
            let mut wins = 0.0;
            for p in &positives {
                for n in &negatives {
                    wins += if p > n { 1.0 } else if p == n { 0.5 } else { 0.0 };
                }
            }
            let exact = wins / (positives.len() * negatives.len()) as f64;
            let auc = counts(&scores).auc().expect("both classes");
            prop_assert!((auc.value - exact).abs() <= auc.error + 1e-12);
        }

        #[test]
        fn merging_does_not_depend_on_the_order(
            tasks in proptest::collection::vec((0u64..100, -1e3f64..1e3, -5.0f64..5.0, any::<bool>()), 1..20)
        ) {
            let of = |(n, task): (usize, &(u64, f64, f64, bool))| {
                let metrics = TaskMetrics {
                    rows: task.0,
                    loss_sum: task.1,
                    scores: counts(&[(task.2, task.3)]),
                    ..TaskMetrics::default()
                };
                (TaskId(n as u32), metrics)
            };
            let (mut forward, mut backward) = (PhaseMetrics::default(), PhaseMetrics::default());
            for (task, metrics) in tasks.iter().enumerate().map(of) {
                forward.add(task, metrics);
            }
            for (task, metrics) in tasks.iter().enumerate().rev().map(of) {
                backward.add(task, metrics);
            }
            prop_assert_eq!(forward.summary(), backward.summary());
        }
    }
}
