//! The tasks of one phase, merged.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use heddle_protocol::figure::{EvaluationFigures, Figure};
use heddle_protocol::ids::TaskId;
use heddle_protocol::job_spec::LossFunction;
use heddle_protocol::metrics::{
    BAD_EXAMPLES_MAX, ClusterFigures, RegressionSums, ScoreCounts, TaskMetrics, WEIGHT_UNITS,
    WeightSums,
};

use crate::auc::Auc;

/// The tasks of one phase, merged as they finish; the same figures in whatever order they come.
///
/// Adding a task costs the logarithm of the number of tasks: only sums of losses depend on the order of addition and are
/// kept per task, 48 bytes each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PhaseMetrics {
    losses: BTreeMap<TaskId, TaskSums>,
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
    /// Scores of records with a weight.
    weighted_scores: ScoreCounts,
    /// Per task with weights: what they add to its records, and to those of the right class.
    weights: BTreeMap<TaskId, [f64; 2]>,
    clusters: Option<ClusterFigures>,
}

/// What is kept of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct TaskSums {
    rows: u64,
    loss: f64,
    /// Of residuals and labels.
    regression: RegressionSums,
}

/// Sums of the tasks that a checkpoint holds as done in its phase: they are not reported again.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ResumedSums {
    /// Records left out as bad.
    pub bad_records: u64,
    /// Records computed.
    pub rows: u64,
    /// Sum of their losses.
    pub loss: f64,
}

/// Tasks whose examples of bad records are kept.
const EXAMPLE_TASKS_MAX: usize = 16;

impl PhaseMetrics {
    /// Adds a task. The first report of a task counts; returns whether this was the first.
    pub fn add(&mut self, task: TaskId, mut metrics: TaskMetrics) -> bool {
        match self.losses.entry(task) {
            Entry::Occupied(_) => return false,
            Entry::Vacant(entry) => entry.insert(TaskSums {
                rows: metrics.rows,
                loss: metrics.loss_sum,
                regression: metrics.regression,
            }),
        };
        self.rows = self.rows.saturating_add(metrics.rows);
        self.correct = self.correct.saturating_add(metrics.correct);
        if metrics.bad_records > 0 {
            self.bad_total = self.bad_total.saturating_add(metrics.bad_records);
            self.bad_records.insert(task, metrics.bad_records);
        }
        self.scores.merge(&metrics.scores);
        self.clusters = self.clusters.or(metrics.clusters);
        if !metrics.weights.is_empty() {
            let WeightSums { beyond_one, correct_beyond_one, scores } = metrics.weights;
            self.weights.insert(task, [beyond_one, correct_beyond_one]);
            self.weighted_scores.merge(&scores);
        }
        if !metrics.bad_examples.is_empty() {
            metrics.bad_examples.truncate(BAD_EXAMPLES_MAX);
            self.bad_examples.insert(task, metrics.bad_examples);
            if self.bad_examples.len() > EXAMPLE_TASKS_MAX {
                self.bad_examples.pop_last();
            }
        }
        true
    }

    /// A phase that continues from a checkpoint that holds `done` as finished, with these sums. Another report of one of
    /// those tasks counts nothing.
    #[must_use]
    pub fn after(earlier: ResumedSums, done: impl IntoIterator<Item = TaskId>) -> Self {
        let ResumedSums { bad_records, rows, loss } = earlier;
        // The sums belong to all of them together; each needs an entry.
        let mut losses: BTreeMap<TaskId, TaskSums> =
            done.into_iter().map(|task| (task, TaskSums::default())).collect();
        let mut counted = 0;
        if let Some(mut first) = losses.first_entry() {
            *first.get_mut() = TaskSums { rows, loss, ..TaskSums::default() };
            counted = rows;
        }
        let (bad_total, bad_before) = (bad_records, bad_records);
        Self { losses, rows: counted, bad_total, bad_before, ..Self::default() }
    }

    /// Number of tasks added, and of those that a checkpoint holds as done.
    #[must_use]
    pub fn tasks(&self) -> usize {
        self.losses.len()
    }

    /// Whether no task is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.losses.is_empty()
    }

    /// Records of a task on average; `None` before the first.
    #[must_use]
    pub fn rows_per_task(&self) -> Option<f64> {
        (!self.losses.is_empty()).then(|| self.rows as f64 / self.losses.len() as f64)
    }

    /// Records of these tasks and the sum of their losses, added in the order of task numbers.
    #[must_use]
    pub fn trained(&self, tasks: &BTreeSet<TaskId>) -> (u64, f64) {
        let of = self.losses.iter().filter(|(task, _)| tasks.contains(task));
        of.fold((0, 0.0), |(rows, loss), (_, sums)| {
            (u64::saturating_add(rows, sums.rows), loss + sums.loss)
        })
    }

    /// Bad records of all tasks added so far, and of those that a checkpoint holds as done.
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

    /// The figures of all tasks added so far. Walks all tasks and score bins: once per phase, not per task.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let mut regression = RegressionSums::default();
        self.losses.values().for_each(|sums| regression.add(&sums.regression));
        let beyond = |n: usize| self.weights.values().fold(0.0, |sum, weights| sum + weights[n]);
        Summary {
            tasks: self.losses.len() as u64,
            rows: self.rows,
            loss_sum: self.losses.values().fold(0.0, |sum, task| sum + task.loss),
            regression,
            weight: self.rows as f64 + beyond(0),
            positives: self.positives(),
            correct: self.correct as f64 + beyond(1),
            bad_records: self.bad_total,
            clusters: self.clusters,
            auc: Auc::of_weighted(&self.scores, &self.weighted_scores),
        }
    }

    /// The weight of the records of label 1 among those whose scores were counted.
    fn positives(&self) -> Option<f64> {
        let sum = |scores: &ScoreCounts| {
            scores.bins().map(|(_, [_, positives])| positives as f64).sum::<f64>()
        };
        let is_counted = !self.scores.is_empty() || !self.weighted_scores.is_empty();
        is_counted.then(|| sum(&self.scores) + sum(&self.weighted_scores) / WEIGHT_UNITS)
    }

    /// The place of the first bad record of the tasks added so far, in the order of task numbers; empty without one.
    #[must_use]
    pub fn first_bad(&self) -> &str {
        self.bad_examples.values().flatten().next().map_or("", String::as_str)
    }
}

/// Figures of a phase.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// Tasks added.
    pub tasks: u64,
    /// Records computed.
    pub rows: u64,
    /// Sum of losses, added in the order of task numbers.
    pub loss_sum: f64,
    /// Regression: sums of labels and residuals, added in the order of task numbers.
    pub regression: RegressionSums,
    /// The records' weights, which are 1 unless the data has others.
    pub weight: f64,
    /// Weights of the records of label 1, in evaluations of two classes.
    pub positives: Option<f64>,
    /// Weights of the records whose class has the highest score.
    pub correct: f64,
    /// Records skipped as bad.
    pub bad_records: u64,
    /// K-means: figures of the centres.
    pub clusters: Option<ClusterFigures>,
    /// Evaluations in which both classes occur: the area under the ROC curve.
    pub auc: Option<Auc>,
}

impl Summary {
    /// Mean loss per record, by weight; `None` without records.
    #[must_use]
    pub fn mean_loss(&self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.loss_sum / self.weight)
    }

    /// Share of records whose class has the highest score, by weight; `None` without records.
    #[must_use]
    pub fn accuracy(&self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.correct / self.weight)
    }
}

impl Summary {
    /// The figures of a job that minimises `loss`; `None` without records. A figure that the records do not define is
    /// left out: the area with one class only, and the share of explained variance of equal labels.
    #[must_use]
    pub fn figures(&self, loss: LossFunction) -> Option<EvaluationFigures> {
        let (mean, accuracy) = (self.mean_loss()?, self.accuracy()?);
        let value = |figure: &Figure| {
            let value = match figure {
                Figure::LogLoss | Figure::Hinge | Figure::SquaredHinge => mean,
                // The squared loss is half of the square.
                Figure::Rmse => (2.0 * mean).sqrt(),
                Figure::Mae => self.regression.absolute / self.weight,
                Figure::R2 => self.explained()?,
                Figure::Auc => self.auc?.value,
                Figure::AucError => self.auc?.error,
                Figure::Accuracy => accuracy,
                Figure::Inertia => self.loss_sum,
                Figure::Moved => self.clusters?.moved,
                Figure::Empty => f64::from(self.clusters?.empty),
            };
            Some((*figure, value))
        };
        Some(loss.figures().iter().filter_map(value).collect())
    }

    /// The first figure of the best model without features on the same records: the mean of the labels, the share of label
    /// 1 (a half where it was not counted), or the same score for all classes. `None` without records, and for losses
    /// without such a model.
    #[must_use]
    pub fn constant(&self, loss: LossFunction, classes: u32) -> Option<f64> {
        let share = self.positives.map_or(0.5, |positives| positives / self.weight);
        let entropy = |share: f64| if share > 0.0 { -share * share.ln() } else { 0.0 };
        (self.weight > 0.0).then_some(())?;
        match loss {
            LossFunction::Logistic => Some(entropy(share) + entropy(1.0 - share)),
            // A score of 1 or −1 for the larger class.
            LossFunction::Hinge => Some(2.0 * share.min(1.0 - share)),
            // The score 2p − 1.
            LossFunction::SquaredHinge => Some(4.0 * share * (1.0 - share)),
            LossFunction::Squared => Some((self.around_mean().max(0.0) / self.weight).sqrt()),
            LossFunction::Softmax => Some(f64::from(classes.max(1)).ln()),
            LossFunction::Distance => None,
        }
    }

    /// Σ(y − mean)².
    fn around_mean(&self) -> f64 {
        let RegressionSums { labels, label_squares, .. } = self.regression;
        label_squares - labels * labels / self.weight
    }

    /// R²: 1 − Σ(z − y)² / Σ(y − mean)².
    fn explained(&self) -> Option<f64> {
        let around_mean = self.around_mean();
        (around_mean > 0.0).then(|| 1.0 - 2.0 * self.loss_sum / around_mean)
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
    fn the_first_report_of_a_task_counts() {
        let mut phase = PhaseMetrics::default();
        let once = TaskMetrics { rows: 3, loss_sum: 1.5, ..TaskMetrics::default() };
        assert!(phase.add(TaskId(1), once.clone()));
        assert!(!phase.add(TaskId(1), once));
        assert_eq!(phase.summary().rows, 3);
        assert_eq!(phase.summary().mean_loss(), Some(0.5));
    }

    #[test]
    fn sums_of_a_checkpoint_count_once() {
        let task = |rows, loss_sum| TaskMetrics { rows, loss_sum, ..TaskMetrics::default() };
        let mut phase = PhaseMetrics::default();
        for n in 0..4 {
            phase.add(TaskId(n), task(10, f64::from(n)));
        }
        let done: BTreeSet<TaskId> = [TaskId(1), TaskId(2)].into();
        assert_eq!(phase.trained(&done), (20, 3.0));
        let earlier = ResumedSums { bad_records: 3, rows: 20, loss: 3.0 };
        let mut continued = PhaseMetrics::after(earlier, done.clone());
        assert!(!continued.add(TaskId(2), task(10, 2.0)), "the checkpoint holds it");
        continued.add(TaskId(0), task(10, 0.0));
        continued.add(TaskId(3), task(10, 3.0));
        let (all, whole) = (continued.summary(), phase.summary());
        assert_eq!((all.rows, all.loss_sum, all.tasks), (whole.rows, whole.loss_sum, whole.tasks));
        assert_eq!((continued.trained(&done), continued.bad_records()), ((20, 3.0), 3));
        assert_eq!(continued.rows_per_task(), Some(10.0));
        assert!(PhaseMetrics::default().is_empty());
    }

    #[test]
    fn figures_of_a_regression_are_those_of_its_definition() {
        let (labels, scores) = ([1.0f64, 2.0, 4.0, 7.0], [1.5f64, 2.0, 3.0, 9.0]);
        let mut phase = PhaseMetrics::default();
        for (task, (label, score)) in labels.iter().zip(&scores).enumerate() {
            let residual = score - label;
            let mut metrics =
                TaskMetrics { rows: 1, loss_sum: 0.5 * residual * residual, ..Default::default() };
            metrics.regression.count(residual, *label);
            phase.add(TaskId(task as u32), metrics);
        }
        let figures = phase.summary().figures(LossFunction::Squared).expect("records");
        let squares: f64 = labels.iter().zip(&scores).map(|(y, z)| (z - y) * (z - y)).sum();
        let around: f64 = labels.iter().map(|y| (y - 3.5) * (y - 3.5)).sum();
        let near = |figure, value: f64| {
            let got = figures.get(figure).expect("a figure");
            assert!((got - value).abs() < 1e-12, "{figure:?}: {got} {value}");
        };
        near(Figure::Rmse, (squares / 4.0).sqrt());
        near(Figure::Mae, 3.5 / 4.0);
        near(Figure::R2, 1.0 - squares / around);
        assert_eq!(figures.get(Figure::Accuracy), None);
        assert_eq!(PhaseMetrics::default().summary().figures(LossFunction::Squared), None);
    }

    #[test]
    fn figures_of_clusters_are_a_sum_and_those_of_the_centres() {
        let mut phase = PhaseMetrics::default();
        let clusters = Some(ClusterFigures { moved: 0.25, empty: 2 });
        let metrics = TaskMetrics { rows: 2, loss_sum: 5.0, ..TaskMetrics::default() };
        phase.add(TaskId(1), metrics.clone());
        let first = phase.summary().figures(LossFunction::Distance).expect("records");
        assert_eq!(first.to_string(), "inertia 5.0000", "nothing moved before the first pass");
        phase.add(TaskId(0), TaskMetrics { clusters, ..metrics });
        let figures = phase.summary().figures(LossFunction::Distance).expect("records");
        assert_eq!(figures.to_string(), "inertia 10.0000  moved 0.250000  empty 2");
    }

    #[test]
    fn weights_count_in_means_and_shares() {
        let mut weighted = TaskMetrics { rows: 3, loss_sum: 2.0, correct: 2, ..Default::default() };
        // Weights 0.5 and 3 of right records, 0 of a wrong one.
        for (weight, correct) in [(0.5, true), (3.0, true), (0.0, false)] {
            weighted.weights.count(weight, correct);
        }
        let mut phase = PhaseMetrics::default();
        phase.add(TaskId(0), weighted);
        phase.add(TaskId(1), TaskMetrics { rows: 1, loss_sum: 1.5, ..Default::default() });
        let summary = phase.summary();
        assert_eq!((summary.rows, summary.weight), (4, 4.5));
        assert_eq!(summary.mean_loss(), Some(3.5 / 4.5));
        assert_eq!(summary.accuracy(), Some(3.5 / 4.5));
        let mut nothing = TaskMetrics { rows: 1, ..Default::default() };
        nothing.weights.count(0.0, true);
        let mut phase = PhaseMetrics::default();
        phase.add(TaskId(0), nothing);
        assert_eq!(phase.summary().figures(LossFunction::Logistic), None);
    }

    proptest! {
        #[test]
        fn merging_does_not_depend_on_the_order(
            tasks in proptest::collection::vec(
                (0u64..100, -1e3f64..1e3, -5.0f64..5.0, any::<bool>()),
                1..20,
            )
        ) {
            let of = |(n, task): (usize, &(u64, f64, f64, bool))| {
                let mut regression = RegressionSums::default();
                regression.count(task.1, task.2);
                let metrics = TaskMetrics {
                    rows: task.0,
                    loss_sum: task.1,
                    regression,
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
