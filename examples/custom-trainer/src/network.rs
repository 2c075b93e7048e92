//! The arithmetic of the network: scores, losses and gradients of the records of a step.
//!
//! All sums are f64 in the order of the records, with `libm` for tanh and ln: the same bits on every machine.

use heddle_protocol::job_spec::LossFunction;
use heddle_protocol::metrics::TaskMetrics;
use heddle_trainer::Batch;
use heddle_trainer::algorithm::loss::loss_and_slope;

/// The values of a step.
pub struct Network<'a> {
    /// `[rows × units]`: rows of the step's features, then the biases.
    pub hidden: &'a [f32],
    /// `[units + 1]`: weights of the units, then the bias.
    pub output: &'a [f32],
}

/// Sums of the gradients over the records of a step, in the shapes of [`Network`].
#[derive(Debug, Default)]
pub struct NetworkSums {
    pub hidden: Vec<f64>,
    pub output: Vec<f64>,
}

impl Network<'_> {
    fn units(&self) -> usize {
        self.output.len() - 1
    }

    /// Adds the gradients of all records to `sums`, which are cleared before, and their losses to `metrics`. `rows` has the
    /// place of each feature of the batch among the rows of the step.
    pub fn train(
        &self,
        batch: &Batch,
        rows: &[u32],
        sums: &mut NetworkSums,
        metrics: &mut TaskMetrics,
    ) {
        let units = self.units();
        for (of, values) in [(&mut sums.hidden, self.hidden), (&mut sums.output, self.output)] {
            of.clear();
            of.resize(values.len(), 0.0);
        }
        let mut active = Vec::new();
        for record in 0..batch.labels.len() {
            let slope = self.record(batch, rows, record, &mut active, metrics).1;
            let (weights, bias) = sums.output.split_at_mut(units);
            bias[0] += slope;
            for (sum, active) in weights.iter_mut().zip(&active) {
                *sum += slope * active;
            }
            // What the loss changes by the input of each unit: tanh' = 1 − tanh².
            for (active, weight) in active.iter_mut().zip(self.output) {
                *active = slope * f64::from(*weight) * (1.0 - *active * *active);
            }
            for (row, x) in features(batch, rows, record) {
                add(&mut sums.hidden[row * units..][..units], &active, x);
            }
            let biases = sums.hidden.len() - units;
            add(&mut sums.hidden[biases..], &active, 1.0);
        }
    }

    /// Adds the losses and scores of all records to `metrics`.
    pub fn evaluate(&self, batch: &Batch, rows: &[u32], metrics: &mut TaskMetrics) {
        let mut active = Vec::new();
        for record in 0..batch.labels.len() {
            let (z, _) = self.record(batch, rows, record, &mut active, metrics);
            metrics.scores.count(z, batch.labels[record] > 0.5);
        }
    }

    /// The score of a record and the derivative of its loss. `active` becomes the values of the units.
    fn record(
        &self,
        batch: &Batch,
        rows: &[u32],
        record: usize,
        active: &mut Vec<f64>,
        metrics: &mut TaskMetrics,
    ) -> (f64, f64) {
        let units = self.units();
        let biases = self.hidden.len() - units;
        active.clear();
        active.extend(self.hidden[biases..].iter().map(|bias| f64::from(*bias)));
        for (row, x) in features(batch, rows, record) {
            for (sum, weight) in active.iter_mut().zip(&self.hidden[row * units..][..units]) {
                *sum += f64::from(*weight) * x;
            }
        }
        let mut z = f64::from(self.output[units]);
        for (active, weight) in active.iter_mut().zip(self.output) {
            *active = libm::tanh(*active);
            z += f64::from(*weight) * *active;
        }
        let label = batch.labels[record];
        let (loss, slope) = loss_and_slope(LossFunction::Logistic, z, label);
        metrics.rows += 1;
        metrics.loss_sum += loss;
        metrics.correct += u64::from((z >= 0.0) == (label > 0.5));
        (z, slope)
    }
}

/// Rows and inputs of a record. Word frequencies are compressed: some are a thousand times others.
fn features<'a>(
    batch: &'a Batch,
    rows: &'a [u32],
    record: usize,
) -> impl Iterator<Item = (usize, f64)> + 'a {
    let range = batch.offsets[record] as usize..batch.offsets[record + 1] as usize;
    let input = |x: &f32| f64::from(x.signum()) * libm::log1p(f64::from(x.abs()));
    rows[range.clone()]
        .iter()
        .zip(&batch.values[range])
        .map(move |(row, x)| (*row as usize, input(x)))
}

fn add(sums: &mut [f64], slopes: &[f64], x: f64) {
    for (sum, slope) in sums.iter_mut().zip(slopes) {
        *sum += slope * x;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three records with the features 0 and 1, and the biases in row 2.
    fn batch() -> Batch {
        let mut batch = Batch::default();
        for (label, values) in [(1.0, &[0.5, 2.0][..]), (0.0, &[1.5]), (1.0, &[])] {
            batch.labels.push(label);
            batch.indices.extend(0..values.len() as u32);
            batch.values.extend(values);
            batch.offsets.push(batch.indices.len() as u32);
        }
        batch
    }

    fn loss(hidden: &[f32], output: &[f32]) -> f64 {
        let batch = batch();
        let mut metrics = TaskMetrics::default();
        Network { hidden, output }.evaluate(&batch, &batch.indices, &mut metrics);
        assert_eq!(metrics.rows, 3);
        metrics.loss_sum
    }

    #[test]
    fn gradient_is_the_slope_of_the_loss() {
        let hidden = [0.3, -0.2, 0.1, 0.4, -0.5, 0.2];
        let output = [0.7, -0.6, 0.1];
        let (batch, mut sums) = (batch(), NetworkSums::default());
        let mut metrics = TaskMetrics::default();
        let network = Network { hidden: &hidden, output: &output };
        network.train(&batch, &batch.indices, &mut sums, &mut metrics);
        assert!((metrics.loss_sum - loss(&hidden, &output)).abs() < 1e-12);
        let step = 1.0 / 1024.0;
        for (at, slope) in sums.hidden.iter().enumerate() {
            let (mut above, mut below) = (hidden, hidden);
            (above[at], below[at]) = (above[at] + step, below[at] - step);
            let difference = loss(&above, &output) - loss(&below, &output);
            let measured = difference / f64::from(above[at] - below[at]);
            assert!((slope - measured).abs() < 1e-5, "hidden {at}: {slope} {measured}");
        }
        for (at, slope) in sums.output.iter().enumerate() {
            let (mut above, mut below) = (output, output);
            (above[at], below[at]) = (above[at] + step, below[at] - step);
            let difference = loss(&hidden, &above) - loss(&hidden, &below);
            let measured = difference / f64::from(above[at] - below[at]);
            assert!((slope - measured).abs() < 1e-5, "output {at}: {slope} {measured}");
        }
    }
}
