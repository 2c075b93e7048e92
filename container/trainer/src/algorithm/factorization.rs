//! Factorization machine (Rendle 2010, equations 1 and 5): z = bias + Σ wⱼ·xⱼ + ½ Σ_f [(Σ vⱼ_f·xⱼ)² − Σ vⱼ_f²·xⱼ²].
//!
//! A record with one user and one item of value 1 is a biased matrix factorisation. The derivatives are
//! ∂z/∂wⱼ = xⱼ and ∂z/∂vⱼ_f = xⱼ·(S_f − vⱼ_f·xⱼ) with S_f = Σ vⱼ_f·xⱼ.
//!
//! With standardisation x is (x − m)/s, and no entry is zero. With slopes a = v/s, S_f and Σ v²·x² are sums over the entries
//! of the text plus a constant of the step: S_f = −Σ a·m + Σ a·x, and Σ a²·m² + Σ a²·x·(x − 2m).
//!
//! All sums are f64, in the order of the records and of the features in them.

use heddle_client::gradient::TableGradient;
use heddle_client::layout::Rows;
use heddle_client::machine::PullItem;
use heddle_input::Batch;
use heddle_protocol::failure::Failure;
use heddle_protocol::ids::TableId;
use heddle_protocol::job_spec::table::{BIAS, FACTORS, WEIGHTS};
use heddle_protocol::job_spec::{JobPhase, JobSpec, Stage};
use heddle_protocol::metrics::TaskMetrics;

use super::loss::{Objective, count};
use super::scorer::RecordScorer;
use super::standard::{Columns, Standard, means};
use super::{Algorithm, StepWork};

/// The built-in algorithm `factorization-machine`.
#[derive(Debug)]
pub struct FactorizationMachine {
    objective: Objective,
    features: u64,
    rank: usize,
    weights: TableId,
    factors: TableId,
    bias: TableId,
    columns: Columns,
    mode: MachineMode,
    sums: MachineSums,
}

/// The work of a step in the present phase, with the constants of the phase.
#[derive(Debug)]
enum MachineMode {
    /// Sums and counts of the columns.
    Centre,
    /// Squared distances from these means.
    Spread { mean: Vec<f64> },
    /// Rows of the step's features, or all rows of a standardised model.
    Pulled { score: bool, standard: Option<Standard> },
    /// Evaluation of a standardised model, which does not change during it.
    Fixed { values: MachineValues },
}

/// The values that a step computes with, or a model's, in terms of raw features.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct MachineValues<W = f64> {
    /// `[positions]`: w/s.
    slopes: Vec<W>,
    /// `[positions × rank]`: v/s.
    factors: Vec<W>,
    /// `[positions]`, or empty where all means are 0.
    mean: Vec<f64>,
    /// The score of a record without entries, beside its products.
    offset: f64,
    /// `[rank]`: S of a record without entries.
    products: Vec<f64>,
    /// Σ v²·x² of a record without entries.
    squares: f64,
}

/// Sums of a step over its records, g being the derivative of a record's loss by its score.
#[derive(Clone, Debug, Default)]
struct MachineSums {
    /// `[positions]`: Σ g·x.
    slopes: Vec<f64>,
    /// `[positions × rank]`: Σ g·x·S.
    products: Vec<f64>,
    /// `[positions]`: Σ g·x·(x − 2m).
    squares: Vec<f64>,
    /// Σ g.
    offset: f64,
    /// `[rank]`: Σ g·S.
    all_products: Vec<f64>,
}

impl MachineValues {
    fn of(pulls: &[PullItem; 3], standard: Option<&Standard>) -> Self {
        let [weights, factors, bias] = pulls.each_ref().map(|pull| &pull.values);
        let wide = |values: &[f32]| values.iter().map(|value| f64::from(*value)).collect();
        let bias = bias.first().map_or(0.0, |bias| f64::from(*bias));
        let mut values = Self::raw(wide(weights), wide(factors), bias);
        let Some(standard) = standard else {
            return values;
        };
        let rank = values.products.len();
        values.mean.clone_from(&standard.mean);
        let columns = standard.mean.iter().zip(&standard.inverse);
        for (place, (mean, inverse)) in columns.enumerate() {
            values.slopes[place] *= inverse;
            values.offset -= values.slopes[place] * mean;
            let own = &mut values.factors[place * rank..(place + 1) * rank];
            for (factor, product) in own.iter_mut().zip(&mut values.products) {
                *factor *= inverse;
                let shift = *factor * mean;
                *product -= shift;
                values.squares += shift * shift;
            }
        }
        values
    }
}

impl<W: Copy + Into<f64>> MachineValues<W> {
    /// Of raw features. `factors`: `[slopes × rank]`, row-major.
    pub(crate) fn raw(slopes: Vec<W>, factors: Vec<W>, bias: f64) -> Self {
        let products = vec![0.0; factors.len() / slopes.len().max(1)];
        Self { slopes, factors, mean: Vec::new(), offset: bias, products, squares: 0.0 }
    }

    fn mean(&self, place: usize) -> f64 {
        self.mean.get(place).copied().unwrap_or_default()
    }

    /// The score of a record; `products` becomes its S.
    fn score_with(&self, positions: &[u32], x: &[f32], products: &mut Vec<f64>) -> f64 {
        products.clone_from(&self.products);
        let rank = products.len();
        let (mut z, mut squares) = (self.offset, self.squares);
        for (at, x) in positions.iter().zip(x) {
            let (place, x) = (*at as usize, f64::from(*x));
            z += self.slopes[place].into() * x;
            let square = x * (x - 2.0 * self.mean(place));
            let own = &self.factors[place * rank..(place + 1) * rank];
            for (factor, product) in own.iter().zip(products.iter_mut()) {
                let factor: f64 = (*factor).into();
                *product += factor * x;
                squares += factor * factor * square;
            }
        }
        let products: f64 = products.iter().map(|product| product * product).sum();
        z + 0.5 * (products - squares)
    }
}

impl<W: Copy + Into<f64>> RecordScorer for MachineValues<W> {
    fn score(&self, positions: &[u32], x: &[f32], scores: &mut Vec<f64>) {
        let z = self.score_with(positions, x, scores);
        scores.clear();
        scores.push(z);
    }
}

impl MachineValues {
    fn train(
        &self,
        objective: Objective,
        batch: &Batch,
        positions: &[u32],
        sums: &mut MachineSums,
        metrics: &mut TaskMetrics,
    ) {
        sums.clear(self.slopes.len(), self.products.len());
        let mut products = Vec::new();
        let rank = self.products.len();
        for (row, label) in batch.labels.iter().enumerate() {
            let (positions, x) = batch.entries(positions, row);
            let z = self.score_with(positions, x, &mut products);
            let slope = count(objective, z, *label, batch.weight(row), false, metrics);
            sums.offset += slope;
            for (sum, product) in sums.all_products.iter_mut().zip(&products) {
                *sum += slope * product;
            }
            for (at, x) in positions.iter().zip(x) {
                let (place, x) = (*at as usize, f64::from(*x));
                let by_x = slope * x;
                sums.slopes[place] += by_x;
                sums.squares[place] += by_x * (x - 2.0 * self.mean(place));
                let own = &mut sums.products[place * rank..(place + 1) * rank];
                for (sum, product) in own.iter_mut().zip(&products) {
                    *sum += by_x * product;
                }
            }
        }
    }

    /// The gradients of weights and of factors.
    fn gradients(&self, sums: &MachineSums, inverse: &[f64]) -> (Vec<f32>, Vec<f32>) {
        let rank = self.products.len();
        let mut weights = Vec::with_capacity(self.slopes.len());
        let mut factors = Vec::with_capacity(self.factors.len());
        for (place, slope) in sums.slopes.iter().enumerate() {
            let (mean, inverse) = (self.mean(place), inverse.get(place).copied().unwrap_or(1.0));
            weights.push(((slope - mean * sums.offset) * inverse) as f32);
            let squares = sums.squares[place] + mean * mean * sums.offset;
            for col in 0..rank {
                let products = sums.products[place * rank + col] - mean * sums.all_products[col];
                let own = self.factors[place * rank + col] * squares;
                factors.push(((products - own) * inverse) as f32);
            }
        }
        (weights, factors)
    }
}

impl MachineSums {
    fn clear(&mut self, positions: usize, rank: usize) {
        for (sums, length) in [
            (&mut self.slopes, positions),
            (&mut self.products, positions * rank),
            (&mut self.squares, positions),
            (&mut self.all_products, rank),
        ] {
            sums.clear();
            sums.resize(length, 0.0);
        }
        self.offset = 0.0;
    }
}

impl FactorizationMachine {
    /// The algorithm for a job.
    ///
    /// # Panics
    /// If the job lacks the tables of a factorization machine.
    #[must_use]
    pub fn new(spec: &JobSpec) -> Self {
        let tables = spec.tables();
        let id = |name: &str| tables.iter().find(|table| table.name == name).map(|table| table.id);
        Self {
            objective: spec.model.objective().into(),
            features: spec.model.features,
            rank: spec.model.rank as usize,
            weights: id(WEIGHTS).expect("a factorization machine has a table of weights"),
            factors: id(FACTORS).expect("a factorization machine has a table of factors"),
            bias: id(BIAS).expect("a factorization machine has a table for the bias"),
            columns: Columns::of(spec),
            mode: MachineMode::Centre,
            sums: MachineSums::default(),
        }
    }

    /// Pulls of these rows of weights and factors, and of the bias.
    fn pulls(&self, rows: &Rows, count: usize) -> [PullItem; 3] {
        let pull = |table, rows: Rows, values| PullItem { table, rows, values: vec![0.0; values] };
        [
            pull(self.weights, rows.clone(), count),
            pull(self.factors, rows.clone(), count * self.rank),
            pull(self.bias, Rows::Range(0..1), 1),
        ]
    }

    fn all_rows(&self) -> [PullItem; 3] {
        self.pulls(&Rows::Range(0..self.features), self.features as usize)
    }

    /// A step over pulled rows.
    fn step(
        &mut self,
        work: &mut StepWork,
        score: bool,
        standard: Option<&Standard>,
        metrics: &mut TaskMetrics,
    ) {
        let Ok(pulls) = <&mut [PullItem; 3]>::try_from(work.pulls.as_mut_slice()) else {
            return;
        };
        let values = MachineValues::of(pulls, standard);
        // Of a standardised model all rows are pulled, and a feature's position is its index.
        let positions = if standard.is_some() { &work.batch.indices } else { &work.local };
        if score {
            return values.evaluate(self.objective, &work.batch, positions, metrics);
        }
        values.train(self.objective, &work.batch, positions, &mut self.sums, metrics);
        let inverse = standard.map_or(&[][..], |standard| &standard.inverse);
        let (weights, factors) = values.gradients(&self.sums, inverse);
        let rows = std::mem::replace(&mut pulls[0].rows, Rows::Range(0..0));
        let bias = vec![self.sums.offset as f32];
        for (table, rows, values) in [
            (self.weights, rows.clone(), weights),
            (self.factors, rows, factors),
            (self.bias, Rows::Range(0..1), bias),
        ] {
            work.gradient.tables.push(TableGradient { table, rows, values });
        }
    }
}

impl Algorithm for FactorizationMachine {
    fn constants(&self, phase: JobPhase) -> Vec<PullItem> {
        self.columns.constants(phase, || self.all_rows().into())
    }

    fn indexes_features(&self, phase: JobPhase) -> bool {
        self.columns.indexes_features(phase)
    }

    fn begin(&mut self, phase: JobPhase, constants: Vec<PullItem>) -> Result<(), Failure> {
        let score = !phase.pushes();
        let (labels, constants) = self.columns.labels(&constants)?;
        self.objective.labels = labels;
        self.mode = match (phase.stage, constants) {
            (Some(Stage::Centre), []) => MachineMode::Centre,
            (Some(Stage::Spread), [stats]) => MachineMode::Spread { mean: means(&stats.values)? },
            (None, []) => MachineMode::Pulled { score, standard: None },
            (None, [stats]) if !score => {
                let standard = Some(Standard::of(&stats.values)?);
                MachineMode::Pulled { score, standard }
            }
            (None, [stats, rows @ ..]) => {
                let standard = Standard::of(&stats.values)?;
                let rows = rows
                    .try_into()
                    .map_err(|_| Failure::training("rows of a table are missing"))?;
                MachineMode::Fixed { values: MachineValues::of(rows, Some(&standard)) }
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
            MachineMode::Centre | MachineMode::Spread { .. } | MachineMode::Fixed { .. } => {}
            MachineMode::Pulled { standard: Some(_), .. } => work.pulls.extend(self.all_rows()),
            MachineMode::Pulled { standard: None, .. } => {
                let rows = work.take_rows();
                work.pulls.extend(self.pulls(&rows, rows.len()));
            }
        }
    }

    fn compute(&mut self, work: &mut StepWork, metrics: &mut TaskMetrics) {
        // The mode is taken out while the sums beside it are changed.
        let mode = std::mem::replace(&mut self.mode, MachineMode::Centre);
        match &mode {
            MachineMode::Centre => self.columns.centre(work, metrics),
            MachineMode::Spread { mean } => {
                self.columns.spread(mean, self.objective.labels, work, metrics);
            }
            MachineMode::Pulled { score, standard } => {
                self.step(work, *score, standard.as_ref(), metrics);
            }
            MachineMode::Fixed { values } => {
                let batch = &work.batch;
                values.evaluate(self.objective, batch, &batch.indices, metrics);
            }
        }
        self.mode = mode;
    }
}

#[cfg(test)]
mod tests {
    use heddle_protocol::job_spec::{AlgorithmKind, LossFunction};

    use super::*;
    use crate::algorithm::KeyIndex;
    use crate::run::tests::sample;

    const FEATURES: usize = 7;
    const RANK: usize = 4;

    /// Values of the tables, and means and inverses of the columns.
    struct Model {
        weights: Vec<f32>,
        factors: Vec<f32>,
        bias: f32,
        mean: [f64; FEATURES],
        inverse: [f64; FEATURES],
    }

    fn number(n: usize) -> f32 {
        ((n * 2_654_435_761) % 1000) as f32 / 500.0 - 1.0
    }

    fn model(stats: &[f32]) -> Model {
        let (mut mean, mut inverse) = ([0.0; FEATURES], [1.0; FEATURES]);
        if !stats.is_empty() {
            let standard = Standard::of(stats).expect("records");
            mean.copy_from_slice(&standard.mean);
            inverse.copy_from_slice(&standard.inverse);
        }
        Model {
            weights: (0..FEATURES).map(|n| number(n + 1)).collect(),
            factors: (0..FEATURES * RANK).map(|n| 0.5 * number(n + 20)).collect(),
            bias: 0.25,
            mean,
            inverse,
        }
    }

    fn batch() -> Batch {
        let mut batch = Batch::default();
        for (row, label) in [1.0, 0.0, 1.0, 1.0, 0.0].into_iter().enumerate() {
            for feature in (0..FEATURES).filter(|feature| (feature + row) % 3 != 0) {
                batch.indices.push(feature as u32);
                batch.values.push(1.5 * number(feature * 5 + row + 90));
            }
            batch.end_row(label);
        }
        batch
    }

    /// Sums of all columns, as two phases measure them.
    fn stats() -> Vec<f32> {
        let mut stats = vec![0.0; (FEATURES + 1) * 3];
        for feature in 0..FEATURES {
            let of = &mut stats[feature * 3..feature * 3 + 3];
            of.copy_from_slice(&[feature as f32 - 1.5, 4.0, 3.0 + feature as f32]);
        }
        stats[FEATURES * 3 + 1] = 5.0;
        stats
    }

    fn dense(batch: &Batch, row: usize, model: &Model) -> [f64; FEATURES] {
        let mut x = [0.0; FEATURES];
        let (indices, values) = batch.row(row);
        for (index, value) in indices.iter().zip(values) {
            x[*index as usize] = f64::from(*value);
        }
        std::array::from_fn(|j| (x[j] - model.mean[j]) * model.inverse[j])
    }

    /// The gradients by the definition, pair by pair: z = b + Σ wx + Σ_{i<j} <v_i, v_j> x_i x_j.
    fn by_hand(model: &Model, batch: &Batch, loss: LossFunction) -> (Vec<f64>, Vec<f64>, f64, f64) {
        let v = |j: usize, f: usize| f64::from(model.factors[j * RANK + f]);
        let (mut weights, mut factors) = (vec![0.0; FEATURES], vec![0.0; FEATURES * RANK]);
        let (mut bias, mut total) = (0.0, 0.0);
        for row in 0..batch.rows() {
            let x = dense(batch, row, model);
            let mut z = f64::from(model.bias);
            for i in 0..FEATURES {
                z += f64::from(model.weights[i]) * x[i];
                for j in i + 1..FEATURES {
                    z += (0..RANK).map(|f| v(i, f) * v(j, f)).sum::<f64>() * x[i] * x[j];
                }
            }
            let y = f64::from(batch.labels[row]);
            let slope = match loss {
                LossFunction::Squared => {
                    total += 0.5 * (z - y) * (z - y);
                    z - y
                }
                _ => {
                    total += (1.0 + (-z).exp()).ln() + (1.0 - y) * z;
                    1.0 / (1.0 + (-z).exp()) - y
                }
            };
            bias += slope;
            for i in 0..FEATURES {
                weights[i] += slope * x[i];
                for f in 0..RANK {
                    let others = (0..FEATURES).filter(|j| *j != i).map(|j| v(j, f) * x[j]);
                    factors[i * RANK + f] += slope * x[i] * others.sum::<f64>();
                }
            }
        }
        (weights, factors, bias, total)
    }

    fn spec(loss: LossFunction, standardise: bool) -> JobSpec {
        let mut spec = sample();
        spec.model.algorithm = AlgorithmKind::FactorizationMachine;
        spec.model.loss = Some(loss);
        spec.model.rank = RANK as u32;
        spec.model.features = FEATURES as u64;
        spec.model.standardise = standardise;
        spec
    }

    /// The rows of a table that an item pulls.
    fn fill(item: &mut PullItem, table: &[f32], cols: usize) {
        let rows: Vec<usize> = match &item.rows {
            Rows::Positions(_) => unreachable!("the tables are dense"),
            Rows::Range(range) => (range.start as usize..range.end as usize).collect(),
            Rows::Keys(keys) => keys.iter().map(|key| *key as usize).collect(),
        };
        item.values =
            rows.into_iter().flat_map(|row| table[row * cols..][..cols].to_vec()).collect();
    }

    #[test]
    fn gradients_are_those_of_the_definition() {
        for (loss, standardise) in [
            (LossFunction::Squared, false),
            (LossFunction::Logistic, false),
            (LossFunction::Squared, true),
            (LossFunction::Logistic, true),
        ] {
            let spec = spec(loss, standardise);
            let stats = if standardise { stats() } else { Vec::new() };
            let model = model(&stats);
            let mut machine = FactorizationMachine::new(&spec);
            let phase = JobPhase::training(0);
            let mut constants = machine.constants(phase);
            constants.iter_mut().for_each(|item| fill(item, &stats, 3));
            machine.begin(phase, constants).expect("sound constants");
            let mut work = StepWork { batch: batch(), ..StepWork::default() };
            work.index_features(&mut KeyIndex::new(FEATURES as u64));
            machine.prepare(&mut work);
            fill(&mut work.pulls[0], &model.weights, 1);
            fill(&mut work.pulls[1], &model.factors, RANK);
            fill(&mut work.pulls[2], &[model.bias], 1);
            let mut metrics = TaskMetrics::default();
            machine.compute(&mut work, &mut metrics);
            let (weights, factors, bias, total) = by_hand(&model, &work.batch, loss);
            assert!((metrics.loss_sum - total).abs() < 1e-5, "{loss:?} {standardise}");
            let [got_weights, got_factors, got_bias] = &work.gradient.tables[..] else {
                panic!("three tables");
            };
            assert_eq!(got_weights.rows, got_factors.rows);
            // Every feature occurs in the batch.
            for (got, expected) in [
                (&got_weights.values, &weights),
                (&got_factors.values, &factors),
                (&got_bias.values, &vec![bias]),
            ] {
                assert_eq!(got.len(), expected.len());
                for (got, expected) in got.iter().zip(expected) {
                    let tolerance = 1e-5 * (1.0 + expected.abs());
                    let distance = (f64::from(*got) - expected).abs();
                    assert!(distance < tolerance, "{loss:?} {standardise}: {got} {expected}");
                }
            }
        }
    }

    #[test]
    fn evaluation_of_a_standardised_model_scores_as_training() {
        let spec = spec(LossFunction::Squared, true);
        let (stats, mut machine) = (stats(), FactorizationMachine::new(&spec));
        let model = model(&stats);
        let phase = JobPhase::evaluation(0);
        let mut constants = machine.constants(phase);
        for (item, (table, cols)) in constants.iter_mut().zip([
            (&stats[..], 3),
            (&model.weights[..], 1),
            (&model.factors[..], RANK),
            (&[model.bias][..], 1),
        ]) {
            fill(item, table, cols);
        }
        machine.begin(phase, constants).expect("sound constants");
        let mut work = StepWork { batch: batch(), ..StepWork::default() };
        machine.prepare(&mut work);
        assert!(work.pulls.is_empty());
        let mut metrics = TaskMetrics::default();
        machine.compute(&mut work, &mut metrics);
        let (_, _, _, total) = by_hand(&model, &work.batch, LossFunction::Squared);
        assert!((metrics.loss_sum - total).abs() < 1e-5);
        assert!(work.gradient.tables.is_empty());
    }
}
