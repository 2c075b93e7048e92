//! Metrics of a task, as trainers report them.
//!
//! Counts are integers and sums of losses belong to one task, so that merging is exact and independent of the order.
//! Scores are counted in 2²⁰ bins: no list of scores is sent or sorted. `heddle-metrics` merges the tasks of a phase and
//! computes the area under the ROC curve.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::PhaseNo;

/// Number of bins that scores are counted in.
pub const SCORE_BINS: u32 = 1 << 20;
/// Bad records of a task that are reported with their place; the others are only counted.
pub const BAD_EXAMPLES_MAX: usize = 5;

/// The message where more records than `data.bad-records` = `skip:N` allows are bad. It has no number of those met so far: that
/// depends on which tasks are read first, and the message is one for all runs.
#[must_use]
pub fn too_many_bad(most: u64, first: &str) -> String {
    format!(
        "more bad records in a pass than data.bad-records allows ({most}), the first: {first}; raise it, or set them apart with \
         \"quarantine\"; if many are like it, see data.format"
    )
}

/// Sums over the records of one task in one phase.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TaskMetrics {
    /// Records computed, without bad ones.
    pub rows: u64,
    /// ASP: all steps of the task, those that other trainers pushed included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// Sum over the records of the loss at the values of their step; may be infinite or no number.
    #[serde(with = "any_float")]
    pub loss_sum: f64,
    /// Records whose class has the highest score: of two classes, on the right side of probability ½ or of margin 0.
    pub correct: u64,
    /// Regression: sums of labels and residuals.
    #[serde(default, skip_serializing_if = "RegressionSums::is_empty")]
    pub regression: RegressionSums,
    /// Records skipped because they are malformed.
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
    /// What weights of records change; empty where all are 1.
    #[serde(default, skip_serializing_if = "WeightSums::is_empty")]
    pub weights: WeightSums,
    /// K-means: what all tasks of the phase report alike.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clusters: Option<ClusterFigures>,
}

/// A sum of losses, equal to another one of the same bits, NaN too.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct LossSum(u64);

impl LossSum {
    /// The sum.
    #[must_use]
    pub fn new(sum: f64) -> Self {
        Self(sum.to_bits())
    }

    /// The sum.
    #[must_use]
    pub fn get(self) -> f64 {
        f64::from_bits(self.0)
    }
}

impl std::fmt::Debug for LossSum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.get().fmt(f)
    }
}

impl Serialize for LossSum {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        any_float::serialize(&self.get(), serializer)
    }
}

impl<'de> Deserialize<'de> for LossSum {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        any_float::deserialize(deserializer).map(Self::new)
    }
}

/// BSP: what the records of a phase add up to, or those of one of its lanes: step by step, and lane by lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordSums {
    /// Records computed.
    pub rows: u64,
    /// Their losses, each at the values of its step.
    pub loss: LossSum,
}

impl RecordSums {
    /// Adds the lane's next step.
    pub fn add(&mut self, rows: u32, loss: LossSum) {
        self.rows = self.rows.saturating_add(u64::from(rows));
        self.loss = LossSum::new(self.loss.get() + loss.get());
    }

    /// The sum over the lanes of a phase, in their order.
    #[must_use]
    pub fn over(lanes: &[Self]) -> Self {
        let rows = lanes.iter().fold(0_u64, |rows, lane| rows.saturating_add(lane.rows));
        let loss = lanes.iter().map(|lane| lane.loss.get()).sum();
        Self { rows, loss: LossSum::new(loss) }
    }
}

/// BSP: a phase that has ended, and what its records add up to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountedPhase {
    /// The phase.
    pub phase: PhaseNo,
    /// Its records.
    pub sums: RecordSums,
}

/// Figures of k-means that come from its centres, not from records.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ClusterFigures {
    /// Squared movement of the centres in the last pass, as a share of the data's variance.
    #[serde(with = "any_float")]
    pub moved: f64,
    /// Clusters without a record in the last pass.
    pub empty: u32,
}

/// What weights of records add to counts in which each record is 1. Losses and sums of regressions are weighted where they
/// are added up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct WeightSums {
    /// Σ (w − 1) over the records that have a weight.
    #[serde(with = "any_float")]
    pub beyond_one: f64,
    /// The same over those of [`TaskMetrics::correct`].
    #[serde(with = "any_float")]
    pub correct_beyond_one: f64,
    /// Scores of records with a weight in units of 1 / [`WEIGHT_UNITS`]; they are not in [`TaskMetrics::scores`].
    #[serde(default, skip_serializing_if = "ScoreCounts::is_empty")]
    pub scores: ScoreCounts,
}

/// Units of a score of weight 1 in [`WeightSums::scores`]. Whole numbers, so that merging is exact; a bin holds weights up to
/// 1.7·10¹⁰.
pub const WEIGHT_UNITS: f64 = (1u64 << 30) as f64;

impl WeightSums {
    /// Whether no record has a weight other than 1.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds a record of this weight.
    pub fn count(&mut self, weight: f64, correct: bool) {
        self.beyond_one += weight - 1.0;
        if correct {
            self.correct_beyond_one += weight - 1.0;
        }
    }

    /// Adds the score of a record of this weight.
    pub fn score(&mut self, weight: f64, score: f64, positive: bool) {
        // The cast saturates.
        self.scores.add(score, positive, (weight * WEIGHT_UNITS).round() as u64);
    }
}

/// Sums over the labels of records and over their residuals; all zero where labels are classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RegressionSums {
    /// Σ |z − y|.
    #[serde(with = "any_float")]
    pub absolute: f64,
    /// Σ y.
    #[serde(with = "any_float")]
    pub labels: f64,
    /// Σ y².
    #[serde(with = "any_float")]
    pub label_squares: f64,
}

impl RegressionSums {
    /// Whether nothing was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds a record.
    pub fn count(&mut self, residual: f64, label: f64) {
        self.absolute += residual.abs();
        self.labels += label;
        self.label_squares += label * label;
    }

    /// Adds a record of this weight.
    pub fn count_weighted(&mut self, weight: f64, residual: f64, label: f64) {
        self.absolute += weight * residual.abs();
        self.labels += weight * label;
        self.label_squares += weight * label * label;
    }

    /// Adds the sums of another task.
    pub fn add(&mut self, other: &Self) {
        self.absolute += other.absolute;
        self.labels += other.labels;
        self.label_squares += other.label_squares;
    }
}

/// The bin of a score `z` (a log-odds): bins rise with the score.
///
/// Scores are squeezed into (−1, 1) by `z / (1 + |z|)` and that is cut evenly, which takes nothing but
/// exactly rounded operations. A bin is 2·10⁻⁶ wide at 0, 3·10⁻⁵ at a log-odds of 3 and 10⁻³ at 20, so
/// confident scores do not collect in the last bin as they would with probabilities. NaN is counted in bin 0.
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
        self.add(score, positive, 1);
    }

    /// Counts a score this number of times.
    pub fn add(&mut self, score: f64, positive: bool, times: u64) {
        let count = &mut self.bins.entry(score_bin(score)).or_default()[usize::from(positive)];
        *count = count.saturating_add(times);
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

    /// The bins with any record, ascending, with their counts of negatives and positives.
    pub fn bins(&self) -> impl Iterator<Item = (u32, [u64; 2])> + '_ {
        self.bins.iter().map(|(bin, counts)| (*bin, *counts))
    }
}

/// Score counts are not in the documented form.
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

/// Floats as JSON numbers where JSON has them, else as text; JSON has no NaN and no infinity, and a
/// diverging model's loss is both in time.
pub(crate) mod any_float {
    use serde::{Deserialize, Deserializer, Serializer, de};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Number(f64),
        Text(String),
    }

    pub(crate) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        if value.is_finite() {
            serializer.serialize_f64(*value)
        } else {
            serializer.collect_str(value)
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
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

    #[test]
    fn nan_and_infinity_survive_json() {
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
    }
}
