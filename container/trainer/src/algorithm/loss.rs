//! The losses of records and their derivatives by the score.
//!
//! All of it is f64, with `libm` for exp and ln: the same bits on every machine. The loss and its derivative share one
//! exponential. A score is z; the labels 0 and 1 of two classes mean y = −1 and y = +1 in margins.

use heddle_protocol::job_spec::{LabelScale, LossFunction};
use heddle_protocol::metrics::TaskMetrics;

/// What a job minimises.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Objective {
    /// Of a record.
    pub loss: LossFunction,
    /// The scale of scores and their derivatives with a squared loss. Losses and figures are in units of the labels.
    pub labels: LabelScale,
}

impl From<LossFunction> for Objective {
    fn from(loss: LossFunction) -> Self {
        Self { loss, labels: LabelScale::NONE }
    }
}

impl Objective {
    /// The loss of a record in units of its label, and its derivative by the score, on the scale of scores.
    #[inline]
    fn loss_and_slope(self, z: f64, label: f32) -> (f64, f64) {
        if self.loss != LossFunction::Squared {
            return loss_and_slope(self.loss, z, label);
        }
        // Without scaling each of these is exact.
        let residual = z - (f64::from(label) - self.labels.mean) / self.labels.deviation;
        let of_label = residual * self.labels.deviation;
        (0.5 * of_label * of_label, residual)
    }
}

/// 1 / (1 + e^−z) without overflow.
#[must_use]
pub fn sigmoid(z: f64) -> f64 {
    share(z, libm::exp(-z.abs()))
}

/// 1 / (1 + e^−z), given e^−|z|.
#[inline]
fn share(z: f64, small: f64) -> f64 {
    if z >= 0.0 { 1.0 / (1.0 + small) } else { small / (1.0 + small) }
}

/// The loss of a record with one score `z`, and its derivative by `z`.
///
/// # Panics
/// For softmax and distances, which have a score for each class or cluster.
#[inline]
#[must_use]
pub fn loss_and_slope(loss: LossFunction, z: f64, label: f32) -> (f64, f64) {
    let label = f64::from(label);
    match loss {
        LossFunction::Logistic => {
            let small = libm::exp(-z.abs());
            // ln(1 + e^z) − label·z without overflow.
            (z.max(0.0) + libm::log1p(small) - label * z, share(z, small) - label)
        }
        LossFunction::Squared => {
            let residual = z - label;
            (0.5 * residual * residual, residual)
        }
        // A score that is not a number must not count as a margin: its loss is not a number either.
        LossFunction::Hinge => match lacking(z, label) {
            (lack, _) if lack <= 0.0 => (0.0, 0.0),
            (lack, sign) => (lack, -sign),
        },
        LossFunction::SquaredHinge => match lacking(z, label) {
            (lack, _) if lack <= 0.0 => (0.0, 0.0),
            (lack, sign) => (lack * lack, -2.0 * sign * lack),
        },
        LossFunction::Softmax | LossFunction::Distance => {
            unreachable!("these have more than one score")
        }
    }
}

/// What the score lacks to a margin of 1, and y.
#[inline]
fn lacking(z: f64, label: f64) -> (f64, f64) {
    let sign = 2.0 * label - 1.0;
    (1.0 - sign * z, sign)
}

/// Counts a record with the score `z`, and returns the derivative of its loss, both times its weight, which is 1 if it is
/// `None`. `score`: also for the area under the ROC curve.
#[inline]
pub(crate) fn count(
    objective: Objective,
    z: f64,
    label: f32,
    weight: Option<f32>,
    score: bool,
    metrics: &mut TaskMetrics,
) -> f64 {
    metrics.rows += 1;
    if let Some(weight) = weight {
        return count_weighted(objective, z, label, f64::from(weight), score, metrics);
    }
    let (value, slope) = objective.loss_and_slope(z, label);
    metrics.loss_sum += value;
    if objective.loss == LossFunction::Squared {
        metrics.regression.count(slope * objective.labels.deviation, f64::from(label));
        return slope;
    }
    metrics.correct += u64::from((z >= 0.0) == (label > 0.5));
    if score {
        metrics.scores.count(z, label > 0.5);
    }
    slope
}

/// Counts the rest of a record with a weight.
fn count_weighted(
    objective: Objective,
    z: f64,
    label: f32,
    weight: f64,
    score: bool,
    metrics: &mut TaskMetrics,
) -> f64 {
    let one = label > 0.5;
    let correct = objective.loss != LossFunction::Squared && (z >= 0.0) == one;
    metrics.correct += u64::from(correct);
    metrics.weights.count(weight, correct);
    // A record of weight 0 is not there, even where its loss is not finite.
    if weight == 0.0 {
        return 0.0;
    }
    let (value, slope) = objective.loss_and_slope(z, label);
    metrics.loss_sum += weight * value;
    if objective.loss == LossFunction::Squared {
        let residual = slope * objective.labels.deviation;
        metrics.regression.count_weighted(weight, residual, f64::from(label));
    } else if score {
        metrics.weights.score(weight, z, one);
    }
    weight * slope
}

/// Replaces the scores of all classes by their probabilities: each class's share of Σ e^z, with the highest score taken
/// out first. Returns the class of the highest score (of equal ones the lowest class), and ln Σ e^z.
pub(crate) fn softmax(scores: &mut [f64]) -> (usize, f64) {
    let mut best = 0;
    for (class, score) in scores.iter().enumerate() {
        if *score > scores[best] {
            best = class;
        }
    }
    let highest = scores.get(best).copied().unwrap_or_default();
    let mut sum = 0.0;
    for score in scores.iter_mut() {
        *score = libm::exp(*score - highest);
        sum += *score;
    }
    scores.iter_mut().for_each(|score| *score /= sum);
    (best, highest + libm::log(sum))
}

/// Counts a record of `label` with the scores of all classes, which become the derivatives of its loss by them, both times
/// its weight, which is 1 if it is `None`.
///
/// # Panics
/// If the label is beyond the classes.
pub(crate) fn count_classes(
    scores: &mut [f64],
    label: f32,
    weight: Option<f32>,
    metrics: &mut TaskMetrics,
) {
    let class = label as usize;
    let own = scores[class];
    let (best, log_sum) = softmax(scores);
    metrics.rows += 1;
    metrics.correct += u64::from(best == class);
    scores[class] -= 1.0;
    let Some(weight) = weight.map(f64::from) else {
        metrics.loss_sum += log_sum - own;
        return;
    };
    metrics.weights.count(weight, best == class);
    if weight == 0.0 {
        return scores.fill(0.0);
    }
    metrics.loss_sum += weight * (log_sum - own);
    scores.iter_mut().for_each(|slope| *slope *= weight);
}

/// Counts a record at this squared distance from the nearest centre; returns its weight.
pub(crate) fn count_distance(distance: f64, weight: Option<f32>, metrics: &mut TaskMetrics) -> f64 {
    if let Some(weight) = weight {
        metrics.weights.count(f64::from(weight), false);
    }
    let weight = weight.map_or(1.0, f64::from);
    metrics.rows += 1;
    metrics.loss_sum += weight * distance;
    weight
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCALAR: [LossFunction; 4] = [
        LossFunction::Logistic,
        LossFunction::Squared,
        LossFunction::Hinge,
        LossFunction::SquaredHinge,
    ];

    #[test]
    fn slope_is_the_derivative_of_the_loss() {
        for loss in SCALAR {
            for label in [0.0, 1.0] {
                for z in [-30.0, -2.5, -0.75, 0.25, 0.5, 3.0, 40.0] {
                    let (_, slope) = loss_and_slope(loss, z, label);
                    let near = |z| loss_and_slope(loss, z, label).0;
                    let difference = (near(z + 1e-6) - near(z - 1e-6)) / 2e-6;
                    let tolerance = 1e-6 * (1.0 + slope.abs());
                    assert!((slope - difference).abs() < tolerance, "{loss:?} {z} {label}");
                }
            }
        }
    }

    #[test]
    fn losses_have_the_values_of_their_definition() {
        let (loss, slope) = loss_and_slope(LossFunction::Logistic, 0.0, 1.0);
        assert_eq!((loss, slope), (std::f64::consts::LN_2, -0.5));
        assert_eq!(loss_and_slope(LossFunction::Squared, 3.0, 5.0), (2.0, -2.0));
        assert_eq!(loss_and_slope(LossFunction::Hinge, 0.25, 1.0), (0.75, -1.0));
        assert_eq!(loss_and_slope(LossFunction::Hinge, 0.25, 0.0), (1.25, 1.0));
        assert_eq!(loss_and_slope(LossFunction::Hinge, 1.0, 1.0), (0.0, 0.0));
        assert_eq!(loss_and_slope(LossFunction::SquaredHinge, 0.5, 1.0), (0.25, -1.0));
        for loss in SCALAR {
            assert!(loss_and_slope(loss, f64::NAN, 1.0).0.is_nan(), "{loss:?}");
        }
        // Neither overflows.
        assert_eq!(loss_and_slope(LossFunction::Logistic, 800.0, 0.0), (800.0, 1.0));
        assert_eq!(loss_and_slope(LossFunction::Logistic, -800.0, 1.0), (800.0, -1.0));
    }

    #[test]
    fn figures_of_scaled_labels_are_in_units_of_the_labels() {
        let labels = LabelScale { mean: 100.0, deviation: 8.0 };
        let objective = Objective { loss: LossFunction::Squared, labels };
        for weight in [None, Some(2.0)] {
            let (mut scaled, mut plain) = (TaskMetrics::default(), TaskMetrics::default());
            // A score of 0.5 is 104.
            let slope = count(objective, 0.5, 98.0, weight, false, &mut scaled);
            let raw = count(LossFunction::Squared.into(), 104.0, 98.0, weight, false, &mut plain);
            assert_eq!((scaled, slope), (plain, raw / 8.0));
        }
    }

    #[test]
    fn softmax_takes_the_highest_score_out() {
        let mut scores = [1000.0, 1000.0, -1000.0];
        let (best, log_sum) = softmax(&mut scores);
        assert_eq!((best, scores), (0, [0.5, 0.5, 0.0]));
        assert_eq!(log_sum, 1000.0 + std::f64::consts::LN_2);
        let mut metrics = TaskMetrics::default();
        let mut scores = [0.0, 0.0, 0.0, 0.0];
        count_classes(&mut scores, 2.0, None, &mut metrics);
        assert_eq!(scores, [0.25, 0.25, -0.75, 0.25]);
        assert!((metrics.loss_sum - 4.0f64.ln()).abs() < 1e-15);
        assert_eq!((metrics.rows, metrics.correct), (1, 0));
    }

    #[test]
    fn weight_two_is_the_record_twice_and_weight_zero_is_none() {
        for loss in SCALAR {
            for (z, label) in [(0.25, 1.0), (-1.5, 1.0), (0.7, 0.0)] {
                let (mut once, mut twice) = (TaskMetrics::default(), TaskMetrics::default());
                let loss = Objective::from(loss);
                let weighted = count(loss, z, label, Some(2.0), true, &mut once);
                let slopes: f64 =
                    (0..2).map(|_| count(loss, z, label, None, true, &mut twice)).sum();
                assert_eq!((weighted, once.loss_sum), (slopes, twice.loss_sum), "{loss:?}");
                assert_eq!(once.regression, twice.regression);
                assert_eq!(
                    once.correct as f64 + once.weights.correct_beyond_one,
                    twice.correct as f64
                );
                assert_eq!(once.rows as f64 + once.weights.beyond_one, 2.0);
                let zero = count(loss, f64::INFINITY, label, Some(0.0), true, &mut once);
                assert_eq!((zero, once.loss_sum), (0.0, twice.loss_sum), "{loss:?}");
                assert_eq!(once.rows as f64 + once.weights.beyond_one, 2.0);
            }
        }
        let (mut once, mut twice) = (TaskMetrics::default(), TaskMetrics::default());
        let (mut scores, mut same) = ([0.5, -0.25, 1.0], [0.5, -0.25, 1.0]);
        count_classes(&mut scores, 1.0, Some(2.0), &mut once);
        count_classes(&mut same, 1.0, None, &mut twice);
        assert_eq!((scores, once.loss_sum), (same.map(|slope| 2.0 * slope), 2.0 * twice.loss_sum));
        count_classes(&mut scores, 1.0, Some(0.0), &mut once);
        assert_eq!((scores, once.loss_sum), ([0.0; 3], 2.0 * twice.loss_sum));
    }
}
