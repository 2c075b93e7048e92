//! Logistic regression: P(label = 1) = 1 / (1 + e^−z) with the score z = Σ wⱼ·xⱼ + bias.
//!
//! Without standardisation a step pulls and pushes the weights of the features that occur in it. With standardisation a
//! record has no zeros, and a step pulls and pushes all weights: with the means m and scales s of the columns,
//! z = Σ wⱼ·(xⱼ − mⱼ)/sⱼ + bias. Both are computed from the entries of the text, since the rest of the sum is the same for
//! all records of a step.
//!
//! All sums are f64, in the order of the records and of the features in them. Only the final sum is rounded to f32: the
//! same bits on every machine. The shards add the l2 of the objective.

use std::ops::Range;

use heddle_client::gradient::TableGradient;
use heddle_client::layout::Rows;
use heddle_client::machine::PullItem;
use heddle_protocol::ids::TableId;
use heddle_protocol::metrics::TaskMetrics;
use heddle_protocol::spec::table::{BIAS, STATS, WEIGHTS};
use heddle_protocol::spec::{JobSpec, PhaseKind, Stage};

use super::standard::{STATS_COLS, Standard, means};
use super::{Algorithm, StepWork};
use crate::batch::Batch;

/// The built-in algorithm `logistic-regression`.
#[derive(Debug)]
pub struct LogisticRegression {
    features: u64,
    standardise: bool,
    weights: TableId,
    bias: TableId,
    stats: TableId,
    mode: ComputeMode,
    /// Sums of a step, by feature or by position among its keys.
    sums: Vec<f64>,
}

/// The work of a step in the present phase, with the constants of the phase.
#[derive(Debug)]
enum ComputeMode {
    /// Sums and counts of the columns.
    Centre,
    /// Squared distances from these means.
    Spread { mean: Vec<f64> },
    /// Weights of the step's features.
    Sparse { score: bool },
    /// All weights.
    Dense { standard: Standard },
    /// Evaluation of a standardised model, which does not change during it.
    Fixed { model: Shifted },
}

/// A standardised model in terms of raw values: z = Σ slopeⱼ·xⱼ + offset.
#[derive(Clone, Debug, Default)]
struct Shifted {
    slope: Vec<f64>,
    offset: f64,
}

impl Shifted {
    fn of(weights: &[f32], bias: f32, standard: &Standard) -> Self {
        let slope: Vec<f64> = weights
            .iter()
            .zip(&standard.inverse)
            .map(|(weight, inverse)| f64::from(*weight) * inverse)
            .collect();
        let mut offset = f64::from(bias);
        for (slope, mean) in slope.iter().zip(&standard.mean) {
            offset -= slope * mean;
        }
        Self { slope, offset }
    }
}

/// 1 / (1 + e^−z) without overflow.
#[must_use]
pub fn sigmoid(z: f64) -> f64 {
    let small = libm::exp(-z.abs());
    if z >= 0.0 { 1.0 / (1.0 + small) } else { small / (1.0 + small) }
}

/// Log-loss of a record: ln(1 + e^z) − label·z, without overflow.
#[must_use]
pub fn log_loss(z: f64, label: f32) -> f64 {
    z.max(0.0) + libm::log1p(libm::exp(-z.abs())) - f64::from(label) * z
}

impl LogisticRegression {
    /// The algorithm for a job.
    ///
    /// # Panics
    /// If the job is not one of logistic regression, whose tables it needs.
    #[must_use]
    pub fn new(spec: &JobSpec) -> Self {
        let tables = spec.tables();
        let id = |name: &str| tables.iter().find(|table| table.name == name).map(|table| table.id);
        Self {
            features: spec.model.features,
            standardise: spec.model.standardise,
            weights: id(WEIGHTS).expect("logistic regression has a table of weights"),
            bias: id(BIAS).expect("logistic regression has a table for the bias"),
            // Not used without standardisation.
            stats: id(STATS).unwrap_or_default(),
            mode: ComputeMode::Sparse { score: false },
            sums: Vec::new(),
        }
    }

    fn range(&self, table: TableId, rows: Range<u64>, cols: usize) -> PullItem {
        let values = vec![0.0; (rows.end - rows.start) as usize * cols];
        PullItem { table, rows: Rows::Range(rows), values }
    }

    fn all_weights(&self) -> [PullItem; 2] {
        [self.range(self.weights, 0..self.features, 1), self.range(self.bias, 0..1, 1)]
    }

    /// Adds one row of `stats` per feature of the batch, and counts its records.
    fn measure(&mut self, work: &mut StepWork, value: impl Fn(u32, f32) -> [f64; 3], records: f64) {
        let batch = &work.batch;
        let mut keys = std::mem::take(&mut work.keys);
        self.sums.clear();
        self.sums.resize((keys.len() + 1) * STATS_COLS, 0.0);
        for ((index, x), local) in batch.indices.iter().zip(&batch.values).zip(&work.local) {
            let row = *local as usize * STATS_COLS;
            for (sum, add) in self.sums[row..row + STATS_COLS].iter_mut().zip(value(*index, *x)) {
                *sum += add;
            }
        }
        let last = keys.len() * STATS_COLS;
        self.sums[last + 1] = records;
        // Row `features` is after all features, so the keys stay sorted. `features` is below 2³² − 1.
        keys.push(self.features as u32);
        work.gradient.tables.push(TableGradient {
            table: self.stats,
            rows: Rows::Keys(keys),
            values: self.sums.iter().map(|sum| *sum as f32).collect(),
        });
    }

    /// A step over the weights of its features.
    fn sparse(&mut self, work: &mut StepWork, score: bool, metrics: &mut TaskMetrics) {
        let [weights, bias] = work.pulls.as_mut_slice() else {
            return;
        };
        let offset = f64::from(bias.values[0]);
        self.sums.clear();
        self.sums.resize(weights.values.len(), 0.0);
        let mut bias_sum = 0.0;
        let batch = &work.batch;
        for (row, label) in batch.labels.iter().enumerate() {
            let range = batch.offsets[row] as usize..batch.offsets[row + 1] as usize;
            let (local, values) = (&work.local[range.clone()], &batch.values[range]);
            let mut z = offset;
            for (at, x) in local.iter().zip(values) {
                z += f64::from(weights.values[*at as usize]) * f64::from(*x);
            }
            count(z, *label, score, metrics);
            if score {
                continue;
            }
            let residual = sigmoid(z) - f64::from(*label);
            bias_sum += residual;
            for (at, x) in local.iter().zip(values) {
                self.sums[*at as usize] += residual * f64::from(*x);
            }
        }
        if !score {
            // The pulled rows are the pushed ones: keys and buffers are moved.
            let rows = std::mem::replace(&mut weights.rows, Rows::Range(0..0));
            let mut values = std::mem::take(&mut weights.values);
            values.iter_mut().zip(&self.sums).for_each(|(value, sum)| *value = *sum as f32);
            self.push(work, rows, values, bias_sum);
        }
    }

    /// A step over all weights of a standardised model.
    fn dense(&mut self, work: &mut StepWork, standard: &Standard, metrics: &mut TaskMetrics) {
        let [weights, bias] = work.pulls.as_mut_slice() else {
            return;
        };
        let model = Shifted::of(&weights.values, bias.values[0], standard);
        self.sums.clear();
        self.sums.resize(weights.values.len(), 0.0);
        let mut bias_sum = 0.0;
        for (row, label) in work.batch.labels.iter().enumerate() {
            let (indices, values) = work.batch.row(row);
            let z = model.score(indices, values);
            count(z, *label, false, metrics);
            let residual = sigmoid(z) - f64::from(*label);
            bias_sum += residual;
            for (index, x) in indices.iter().zip(values) {
                self.sums[*index as usize] += residual * f64::from(*x);
            }
        }
        let mut values = std::mem::take(&mut weights.values);
        for (j, value) in values.iter_mut().enumerate() {
            *value = ((self.sums[j] - bias_sum * standard.mean[j]) * standard.inverse[j]) as f32;
        }
        self.push(work, Rows::Range(0..self.features), values, bias_sum);
    }

    fn push(&self, work: &mut StepWork, rows: Rows, values: Vec<f32>, bias_sum: f64) {
        work.gradient.tables.push(TableGradient { table: self.weights, rows, values });
        let rows = Rows::Range(0..1);
        work.gradient.tables.push(TableGradient {
            table: self.bias,
            rows,
            values: vec![bias_sum as f32],
        });
    }
}

impl Shifted {
    fn score(&self, indices: &[u32], values: &[f32]) -> f64 {
        let mut z = self.offset;
        for (index, x) in indices.iter().zip(values) {
            z += self.slope[*index as usize] * f64::from(*x);
        }
        z
    }

    fn evaluate(&self, batch: &Batch, metrics: &mut TaskMetrics) {
        for (row, label) in batch.labels.iter().enumerate() {
            let (indices, values) = batch.row(row);
            count(self.score(indices, values), *label, true, metrics);
        }
    }
}

/// Counts a record with the log-odds `z` of label 1; `score`: also for the area under the ROC curve.
pub(crate) fn count(z: f64, label: f32, score: bool, metrics: &mut TaskMetrics) {
    metrics.rows += 1;
    metrics.loss_sum += log_loss(z, label);
    metrics.correct += u64::from((z >= 0.0) == (label > 0.5));
    if score {
        metrics.scores.count(z, label > 0.5);
    }
}

impl Algorithm for LogisticRegression {
    fn constants(&self, phase: PhaseKind) -> Vec<PullItem> {
        let stats = || self.range(self.stats, 0..self.features + 1, STATS_COLS);
        match phase {
            PhaseKind::Measure(Stage::Centre) => Vec::new(),
            PhaseKind::Measure(Stage::Spread) => vec![stats()],
            PhaseKind::Train { .. } | PhaseKind::Evaluate { .. } if !self.standardise => Vec::new(),
            PhaseKind::Train { .. } => vec![stats()],
            PhaseKind::Evaluate { .. } => {
                let [weights, bias] = self.all_weights();
                vec![stats(), weights, bias]
            }
        }
    }

    fn indexes_features(&self, phase: PhaseKind) -> bool {
        match phase {
            PhaseKind::Measure(_) => true,
            PhaseKind::Train { .. } | PhaseKind::Evaluate { .. } => !self.standardise,
        }
    }

    fn begin(&mut self, phase: PhaseKind, constants: Vec<PullItem>) -> Result<(), String> {
        self.mode = match (phase, constants.as_slice()) {
            (PhaseKind::Measure(Stage::Centre), []) => ComputeMode::Centre,
            (PhaseKind::Measure(Stage::Spread), [stats]) => {
                ComputeMode::Spread { mean: means(&stats.values)? }
            }
            (PhaseKind::Train { .. }, []) => ComputeMode::Sparse { score: false },
            (PhaseKind::Evaluate { .. }, []) => ComputeMode::Sparse { score: true },
            (PhaseKind::Train { .. }, [stats]) => {
                ComputeMode::Dense { standard: Standard::of(&stats.values)? }
            }
            (PhaseKind::Evaluate { .. }, [stats, weights, bias]) => {
                let standard = Standard::of(&stats.values)?;
                ComputeMode::Fixed {
                    model: Shifted::of(&weights.values, bias.values[0], &standard),
                }
            }
            _ => return Err(format!("{} constants for {phase:?}", constants.len())),
        };
        Ok(())
    }

    fn prepare(&mut self, work: &mut StepWork) {
        match &self.mode {
            ComputeMode::Centre | ComputeMode::Spread { .. } | ComputeMode::Fixed { .. } => {}
            ComputeMode::Dense { .. } => work.pulls.extend(self.all_weights()),
            ComputeMode::Sparse { .. } => {
                let keys = std::mem::take(&mut work.keys);
                let values = vec![0.0; keys.len()];
                work.pulls.push(PullItem { table: self.weights, rows: Rows::Keys(keys), values });
                work.pulls.push(self.range(self.bias, 0..1, 1));
            }
        }
    }

    fn compute(&mut self, work: &mut StepWork, metrics: &mut TaskMetrics) {
        // The mode is taken out while the sums beside it are changed.
        let mode = std::mem::replace(&mut self.mode, ComputeMode::Centre);
        match &mode {
            ComputeMode::Centre => {
                let records = work.batch.rows() as f64;
                self.measure(work, |_, x| [f64::from(x), 1.0, 0.0], records);
                metrics.rows += work.batch.rows() as u64;
            }
            ComputeMode::Spread { mean } => {
                let square = |index: u32, x: f32| {
                    let distance = f64::from(x) - mean[index as usize];
                    [0.0, 0.0, distance * distance]
                };
                self.measure(work, square, 0.0);
                metrics.rows += work.batch.rows() as u64;
            }
            ComputeMode::Sparse { score } => self.sparse(work, *score, metrics),
            ComputeMode::Dense { standard } => self.dense(work, standard, metrics),
            ComputeMode::Fixed { model } => model.evaluate(&work.batch, metrics),
        }
        self.mode = mode;
    }
}
