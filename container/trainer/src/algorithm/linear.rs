//! The linear family: logistic regression, linear regression, SVM and softmax regression, one algorithm with different
//! losses. The score of a record is z = Σ wⱼ·xⱼ + bias; softmax regression has a column of weights and a bias for each
//! class.
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
use heddle_protocol::failure::Failure;
use heddle_protocol::ids::TableId;
use heddle_protocol::job_spec::table::{BIAS, WEIGHTS};
use heddle_protocol::job_spec::{JobPhase, JobSpec, Stage};
use heddle_protocol::metrics::TaskMetrics;

use super::loss::Objective;
use super::passes::{PassSums, PassValues};
use super::scorer::RecordScorer;
use super::standard::{Columns, Standard, means};
use super::{Algorithm, StepWork};

/// The built-in algorithms whose scores are linear in the features.
#[derive(Debug)]
pub struct LinearAlgorithm {
    objective: Objective,
    features: u64,
    /// Scores of a record.
    cols: usize,
    weights: TableId,
    bias: TableId,
    columns: Columns,
    mode: ComputeMode,
    sums: PassSums,
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
    /// `[features × cols]`
    slopes: Vec<f64>,
    /// `[cols]`
    offsets: Vec<f64>,
}

impl Shifted {
    fn of(weights: &[f32], bias: &[f32], standard: &Standard) -> Self {
        let cols = bias.len();
        let mut offsets: Vec<f64> = bias.iter().map(|bias| f64::from(*bias)).collect();
        let mut slopes = Vec::with_capacity(weights.len());
        let columns = standard.mean.iter().zip(&standard.inverse);
        for (weights, (mean, inverse)) in weights.chunks_exact(cols).zip(columns) {
            for (weight, offset) in weights.iter().zip(&mut offsets) {
                let slope = f64::from(*weight) * inverse;
                *offset -= slope * mean;
                slopes.push(slope);
            }
        }
        Self { slopes, offsets }
    }

    fn values(&self) -> PassValues<'_, f64> {
        PassValues { weights: &self.slopes, offsets: &self.offsets }
    }
}

impl LinearAlgorithm {
    /// The algorithm for a job.
    ///
    /// # Panics
    /// If the job lacks the tables of a linear model.
    #[must_use]
    pub fn new(spec: &JobSpec) -> Self {
        let tables = spec.tables();
        let table = |name: &str| tables.iter().find(|table| table.name == name);
        let bias = table(BIAS).expect("the linear family has a table for the bias");
        Self {
            objective: spec.model.objective().into(),
            features: spec.model.features,
            cols: bias.cols as usize,
            weights: table(WEIGHTS).expect("the linear family has a table of weights").id,
            bias: bias.id,
            columns: Columns::of(spec),
            mode: ComputeMode::Sparse { score: false },
            sums: PassSums::default(),
        }
    }

    fn range(&self, table: TableId, rows: Range<u64>, cols: usize) -> PullItem {
        let values = vec![0.0; (rows.end - rows.start) as usize * cols];
        PullItem { table, rows: Rows::Range(rows), values }
    }

    fn all_weights(&self) -> [PullItem; 2] {
        let weights = self.range(self.weights, 0..self.features, self.cols);
        [weights, self.range(self.bias, 0..1, self.cols)]
    }

    /// A step over the weights of its features.
    fn sparse(&mut self, work: &mut StepWork, score: bool, metrics: &mut TaskMetrics) {
        let [weights, bias] = work.pulls.as_mut_slice() else {
            return;
        };
        let offsets: Vec<f64> = bias.values.iter().map(|bias| f64::from(*bias)).collect();
        let values = PassValues { weights: &weights.values, offsets: &offsets };
        let (objective, batch) = (self.objective, &work.batch);
        if score {
            return values.evaluate(objective, batch, &work.local, metrics);
        }
        values.train(objective, batch, &work.local, &mut self.sums, metrics);
        // The pulled rows are the pushed ones: keys and buffers are moved.
        let rows = std::mem::replace(&mut weights.rows, Rows::Range(0..0));
        let mut values = std::mem::take(&mut weights.values);
        values.iter_mut().zip(&self.sums.weights).for_each(|(value, sum)| *value = *sum as f32);
        self.push(work, rows, values);
    }

    /// A step over all weights of a standardised model.
    fn dense(&mut self, work: &mut StepWork, standard: &Standard, metrics: &mut TaskMetrics) {
        let [weights, bias] = work.pulls.as_mut_slice() else {
            return;
        };
        let model = Shifted::of(&weights.values, &bias.values, standard);
        let (batch, sums) = (&work.batch, &mut self.sums);
        model.values().train(self.objective, batch, &batch.indices, sums, metrics);
        let mut values = std::mem::take(&mut weights.values);
        let sums = self.sums.weights.chunks_exact(self.cols);
        let columns = standard.mean.iter().zip(&standard.inverse);
        for ((values, sums), (mean, inverse)) in
            values.chunks_exact_mut(self.cols).zip(sums).zip(columns)
        {
            for ((value, sum), offset) in values.iter_mut().zip(sums).zip(&self.sums.offsets) {
                *value = ((sum - offset * mean) * inverse) as f32;
            }
        }
        self.push(work, Rows::Range(0..self.features), values);
    }

    /// Pushes these gradients of weights, and the gradients of the bias.
    fn push(&self, work: &mut StepWork, rows: Rows, values: Vec<f32>) {
        work.gradient.tables.push(TableGradient { table: self.weights, rows, values });
        let values = self.sums.offsets.iter().map(|sum| *sum as f32).collect();
        let (table, rows) = (self.bias, Rows::Range(0..1));
        work.gradient.tables.push(TableGradient { table, rows, values });
    }
}

impl Algorithm for LinearAlgorithm {
    fn constants(&self, phase: JobPhase) -> Vec<PullItem> {
        self.columns.constants(phase, || self.all_weights().into())
    }

    fn indexes_features(&self, phase: JobPhase) -> bool {
        self.columns.indexes_features(phase)
    }

    fn begin(&mut self, phase: JobPhase, constants: Vec<PullItem>) -> Result<(), Failure> {
        let (labels, constants) = self.columns.labels(&constants)?;
        self.objective.labels = labels;
        let pushes = phase.pushes();
        self.mode = match (phase.stage, constants) {
            (Some(Stage::Centre), []) => ComputeMode::Centre,
            (Some(Stage::Spread), [stats]) => ComputeMode::Spread { mean: means(&stats.values)? },
            (None, []) => ComputeMode::Sparse { score: !pushes },
            (None, [stats]) if pushes => {
                ComputeMode::Dense { standard: Standard::of(&stats.values)? }
            }
            (None, [stats, weights, bias]) if !pushes => {
                let standard = Standard::of(&stats.values)?;
                ComputeMode::Fixed { model: Shifted::of(&weights.values, &bias.values, &standard) }
            }
            _ => {
                return Err(Failure::training(format!(
                    "{} constants for {phase:?}",
                    constants.len()
                )));
            }
        };
        Ok(())
    }

    fn prepare(&mut self, work: &mut StepWork) {
        match &self.mode {
            ComputeMode::Centre | ComputeMode::Spread { .. } | ComputeMode::Fixed { .. } => {}
            ComputeMode::Dense { .. } => work.pulls.extend(self.all_weights()),
            ComputeMode::Sparse { .. } => {
                let rows = work.take_rows();
                let values = vec![0.0; rows.len() * self.cols];
                work.pulls.push(PullItem { table: self.weights, rows, values });
                work.pulls.push(self.range(self.bias, 0..1, self.cols));
            }
        }
    }

    fn compute(&mut self, work: &mut StepWork, metrics: &mut TaskMetrics) {
        // The mode is taken out while the sums beside it are changed.
        let mode = std::mem::replace(&mut self.mode, ComputeMode::Centre);
        match &mode {
            ComputeMode::Centre => self.columns.centre(work, metrics),
            ComputeMode::Spread { mean } => {
                self.columns.spread(mean, self.objective.labels, work, metrics);
            }
            ComputeMode::Sparse { score } => self.sparse(work, *score, metrics),
            ComputeMode::Dense { standard } => self.dense(work, standard, metrics),
            ComputeMode::Fixed { model } => {
                let batch = &work.batch;
                model.values().evaluate(self.objective, batch, &batch.indices, metrics);
            }
        }
        self.mode = mode;
    }
}
