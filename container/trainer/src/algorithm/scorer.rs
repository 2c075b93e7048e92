//! Scores of records, one scorer for each algorithm: an evaluation and `predict` count the same figures of the same scores.

use heddle_input::Batch;
use heddle_protocol::job_spec::LossFunction;
use heddle_protocol::metrics::TaskMetrics;

use super::loss::{Objective, count, count_classes, count_distance};

/// The values of a model, which score records.
pub(crate) trait RecordScorer {
    /// Replaces `scores` by a record's: the log-odds of label 1, the value or the margin; a score for each class; of
    /// k-means the cluster and the squared distance from its centre. `positions`: the places of its features among the
    /// model's rows.
    fn score(&self, positions: &[u32], x: &[f32], scores: &mut Vec<f64>);

    /// Adds the losses and scores of all records to `metrics`. `positions`: `[features of the batch]`.
    fn evaluate(
        &self,
        objective: Objective,
        batch: &Batch,
        positions: &[u32],
        metrics: &mut TaskMetrics,
    ) {
        let mut scores = Vec::new();
        for (row, label) in batch.labels.iter().enumerate() {
            let (positions, x) = batch.entries(positions, row);
            self.score(positions, x, &mut scores);
            count_scores(objective, &mut scores, *label, batch.weight(row), metrics);
        }
    }
}

/// Counts a record with these scores, which become other values.
pub(crate) fn count_scores(
    objective: Objective,
    scores: &mut [f64],
    label: f32,
    weight: Option<f32>,
    metrics: &mut TaskMetrics,
) {
    match objective.loss {
        LossFunction::Softmax => count_classes(scores, label, weight, metrics),
        LossFunction::Distance => {
            count_distance(scores[1], weight, metrics);
        }
        LossFunction::Logistic
        | LossFunction::Squared
        | LossFunction::Hinge
        | LossFunction::SquaredHinge => {
            count(objective, scores[0], label, weight, true, metrics);
        }
    }
}
