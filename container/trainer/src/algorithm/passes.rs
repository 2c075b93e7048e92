//! Passes over the records of a step: scores, losses and the sums of gradients.
//!
//! score of class c = offset c + Σ weight [position · classes + c] · x, where the position of a feature is its place among
//! the step's rows or its index. Models of one score and of several have loops of their own: most jobs have one, and its
//! loop is the trainer's hottest.

use heddle_input::Batch;
use heddle_protocol::job_spec::LossFunction;
use heddle_protocol::metrics::TaskMetrics;

use super::loss::{Objective, count, count_classes};
use super::scorer::RecordScorer;

/// The values that a step computes with, or a model's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PassValues<'a, W> {
    /// `[positions × offsets.len()]`, row-major.
    pub(crate) weights: &'a [W],
    /// `[scores of a record]`
    pub(crate) offsets: &'a [f64],
}

impl<W: Copy + Into<f64>> RecordScorer for PassValues<'_, W> {
    #[inline]
    fn score(&self, positions: &[u32], x: &[f32], scores: &mut Vec<f64>) {
        if self.offsets.len() > 1 {
            return self.scores(positions, x, scores);
        }
        scores.clear();
        scores.push(self.one_score(positions, x));
    }
}

/// Sums of the loss's derivatives over the records of a step.
#[derive(Clone, Debug, Default)]
pub(super) struct PassSums {
    /// By each of [`PassValues::weights`].
    pub(super) weights: Vec<f64>,
    /// By each of [`PassValues::offsets`].
    pub(super) offsets: Vec<f64>,
}

impl PassSums {
    /// Zeros for that many values.
    pub(super) fn clear(&mut self, weights: usize, offsets: usize) {
        self.weights.clear();
        self.weights.resize(weights, 0.0);
        self.offsets.clear();
        self.offsets.resize(offsets, 0.0);
    }
}

impl<W: Copy + Into<f64>> PassValues<'_, W> {
    /// Adds the derivatives of all records to `sums` and their losses to `metrics`. `positions`: `[features of the batch]`.
    pub(super) fn train(
        &self,
        objective: Objective,
        batch: &Batch,
        positions: &[u32],
        sums: &mut PassSums,
        metrics: &mut TaskMetrics,
    ) {
        sums.clear(self.weights.len(), self.offsets.len());
        if objective.loss == LossFunction::Softmax {
            return self.train_classes(batch, positions, sums, metrics);
        }
        let mut offset_sum = 0.0;
        for (row, label) in batch.labels.iter().enumerate() {
            let (positions, values) = batch.entries(positions, row);
            let z = self.one_score(positions, values);
            let slope = count(objective, z, *label, batch.weight(row), false, metrics);
            offset_sum += slope;
            for (at, x) in positions.iter().zip(values) {
                sums.weights[*at as usize] += slope * f64::from(*x);
            }
        }
        sums.offsets[0] = offset_sum;
    }

    fn train_classes(
        &self,
        batch: &Batch,
        positions: &[u32],
        sums: &mut PassSums,
        metrics: &mut TaskMetrics,
    ) {
        let classes = self.offsets.len();
        let mut slopes = Vec::with_capacity(classes);
        for (row, label) in batch.labels.iter().enumerate() {
            let (positions, values) = batch.entries(positions, row);
            self.scores(positions, values, &mut slopes);
            count_classes(&mut slopes, *label, batch.weight(row), metrics);
            for (sum, slope) in sums.offsets.iter_mut().zip(&slopes) {
                *sum += slope;
            }
            for (at, x) in positions.iter().zip(values) {
                let x = f64::from(*x);
                let own = *at as usize * classes;
                for (sum, slope) in sums.weights[own..own + classes].iter_mut().zip(&slopes) {
                    *sum += slope * x;
                }
            }
        }
    }

    /// The score of a record, of a model that has one.
    #[inline]
    fn one_score(&self, positions: &[u32], values: &[f32]) -> f64 {
        let mut z = self.offsets[0];
        for (at, x) in positions.iter().zip(values) {
            z += self.weights[*at as usize].into() * f64::from(*x);
        }
        z
    }

    /// Replaces `scores` by the scores of all classes.
    fn scores(&self, positions: &[u32], values: &[f32], scores: &mut Vec<f64>) {
        scores.clear();
        scores.extend_from_slice(self.offsets);
        let classes = scores.len();
        for (at, x) in positions.iter().zip(values) {
            let x = f64::from(*x);
            let own = *at as usize * classes;
            for (score, weight) in scores.iter_mut().zip(&self.weights[own..own + classes]) {
                *score += (*weight).into() * x;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(rows: &[(f32, f32)]) -> Batch {
        let mut batch = Batch::default();
        for (row, (label, weight)) in rows.iter().enumerate() {
            batch.indices.extend([0, 1]);
            batch.values.extend([0.5 + *label, -1.25]);
            batch.end_row(*label);
            if *weight != 1.0 {
                batch.weigh(row, *weight);
            }
        }
        batch
    }

    /// The sums and metrics of a step over these labels and weights.
    fn step(loss: LossFunction, rows: &[(f32, f32)]) -> (PassSums, TaskMetrics) {
        let batch = batch(rows);
        let scores = if loss == LossFunction::Softmax { 2 } else { 1 };
        let (weights, offsets) = (vec![0.25f32; 2 * scores], vec![0.125; scores]);
        let values = PassValues { weights: &weights, offsets: &offsets };
        let (mut sums, mut metrics) = (PassSums::default(), TaskMetrics::default());
        values.train(loss.into(), &batch, &batch.indices, &mut sums, &mut metrics);
        (sums, metrics)
    }

    #[test]
    fn weight_two_is_the_record_twice_in_sums_of_gradients() {
        for loss in [
            LossFunction::Logistic,
            LossFunction::Squared,
            LossFunction::Hinge,
            LossFunction::SquaredHinge,
            LossFunction::Softmax,
        ] {
            let (weighted, once) = step(loss, &[(1.0, 2.0), (0.0, 1.0), (1.0, 0.0)]);
            let (repeated, twice) = step(loss, &[(1.0, 1.0), (1.0, 1.0), (0.0, 1.0)]);
            assert_eq!(once.loss_sum, twice.loss_sum, "{loss:?}");
            for (a, b) in weighted
                .weights
                .iter()
                .chain(&weighted.offsets)
                .zip(repeated.weights.iter().chain(&repeated.offsets))
            {
                assert!((a - b).abs() < 1e-12, "{loss:?}: {a} {b}");
            }
            assert!(repeated.offsets[0] != 0.0, "{loss:?}");
        }
    }
}
