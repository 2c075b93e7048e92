//! A trainer of the user's own: a neural network with one hidden layer, on two tables of the job file.
//!
//! z = bias + Σ outₖ·tanh(biasₖ + Σ hiddenⱼₖ·ln(1 + xⱼ)), trained with the logistic loss. The library reads data, moves
//! values and gradients, and repeats steps after failures; this program names rows and computes. Its steps are functions of
//! batch and values alone, so a run with a seed is repeatable to the byte.

mod network;

use heddle_client::gradient::TableGradient;
use heddle_client::layout::Rows;
use heddle_client::machine::PullItem;
use heddle_protocol::failure::Failure;
use heddle_protocol::ids::TableId;
use heddle_protocol::job_spec::{JobPhase, JobSpec};
use heddle_protocol::metrics::TaskMetrics;
use heddle_trainer::{Algorithm, StepWork};

use network::{Network, NetworkSums};

/// The network of a job, with its tables.
struct HiddenLayer {
    hidden: TableId,
    output: TableId,
    /// Rows of `hidden` without that of the biases.
    features: u32,
    units: usize,
    /// Whether the phase changes nothing.
    evaluates: bool,
    sums: NetworkSums,
}

impl HiddenLayer {
    /// # Errors
    /// The job file lacks a table, or one has another shape.
    fn new(spec: &JobSpec) -> Result<Self, Failure> {
        let tables = spec.tables();
        let table = |name: &str| {
            let found = tables.iter().find(|table| table.name == name);
            found.ok_or_else(|| {
                Failure::training(format!("the job file needs a [[model.table]] named {name:?}"))
            })
        };
        let (hidden, output) = (table("hidden")?, table("output")?);
        if output.cols != hidden.cols + 1 {
            let message = format!(
                "cols of \"output\" must be cols of \"hidden\" + 1 (got {} and {})",
                output.cols, hidden.cols
            );
            return Err(Failure::training(message));
        }
        Ok(Self {
            hidden: hidden.id,
            output: output.id,
            features: u32::try_from(hidden.rows - 1).unwrap_or(u32::MAX),
            units: hidden.cols as usize,
            evaluates: false,
            sums: NetworkSums::default(),
        })
    }
}

impl Algorithm for HiddenLayer {
    fn features(&self, _spec: &JobSpec) -> u64 {
        u64::from(self.features)
    }

    fn begin(&mut self, phase: JobPhase, _constants: Vec<PullItem>) -> Result<(), Failure> {
        self.evaluates = !phase.pushes();
        Ok(())
    }

    fn indexes_features(&self, _phase: JobPhase) -> bool {
        // The reading threads find the distinct features of a batch.
        true
    }

    fn prepare(&mut self, work: &mut StepWork) {
        let mut keys = std::mem::take(&mut work.keys);
        // The row of the biases is the last one, so the keys stay sorted.
        keys.push(self.features);
        let values = vec![0.0; keys.len() * self.units];
        work.pulls.push(PullItem { table: self.hidden, rows: Rows::Keys(keys), values });
        let values = vec![0.0; self.units + 1];
        work.pulls.push(PullItem { table: self.output, rows: Rows::Range(0..1), values });
    }

    fn compute(&mut self, work: &mut StepWork, metrics: &mut TaskMetrics) {
        let [hidden, output] = work.pulls.as_mut_slice() else {
            unreachable!("`prepare` pulls from both tables")
        };
        let network = Network { hidden: &hidden.values, output: &output.values };
        if self.evaluates {
            return network.evaluate(&work.batch, &work.local, metrics);
        }
        network.train(&work.batch, &work.local, &mut self.sums, metrics);
        let rounded = |sums: &[f64]| sums.iter().map(|sum| *sum as f32).collect();
        let rows = std::mem::replace(&mut hidden.rows, Rows::Range(0..0));
        let values = rounded(&self.sums.hidden);
        work.gradient.tables.push(TableGradient { table: self.hidden, rows, values });
        let (rows, values) = (Rows::Range(0..1), rounded(&self.sums.output));
        work.gradient.tables.push(TableGradient { table: self.output, rows, values });
    }
}

fn main() -> std::process::ExitCode {
    heddle_trainer::main_with(HiddenLayer::new)
}
