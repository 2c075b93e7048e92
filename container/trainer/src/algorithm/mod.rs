//! The computation of a trainer: an [`Algorithm`] names the parameters that a minibatch needs and turns them into gradients.
//! It handles batches and values, never sockets, files, lanes or steps.
//!
//! An algorithm must be a function of its inputs: the same batch and values give the same gradient to the last bit, on every
//! machine and after any other computation. Otherwise a run with a seed is not repeatable, and a step that is repeated after
//! a failure differs from the first one. Therefore it uses no randomness, no clock, no threads that add in the order in which
//! they finish, and `libm` for exp and ln.

mod built_in;
mod factorization;
mod keys;
mod kmeans;
mod linear;
pub mod loss;
mod measured_columns;
mod passes;
mod scorer;
mod standard;

use heddle_client::gradient::Gradient;
use heddle_client::layout::Rows;
use heddle_client::machine::PullItem;
use heddle_columns::ColumnScales;
use heddle_input::Batch;
use heddle_protocol::failure::Failure;
use heddle_protocol::ids::TaskId;
use heddle_protocol::job_spec::{JobPhase, JobSpec};
use heddle_protocol::metrics::TaskMetrics;

pub use built_in::built_in;
pub use factorization::FactorizationMachine;
pub(crate) use factorization::MachineValues;
pub use keys::KeyIndex;
pub use kmeans::Kmeans;
pub(crate) use kmeans::{ClusterScorer, PassCentres, previous_rows};
pub use linear::LinearAlgorithm;
pub(crate) use measured_columns::{MeasuredColumns, scales};
pub(crate) use passes::PassValues;
pub(crate) use scorer::{RecordScorer, count_scores};
pub use standard::Standard;
pub(crate) use standard::label_scale;

/// Computes the steps of a job. One instance serves all lanes or tasks of a trainer, one call at a time.
///
/// Calls of different steps interleave: between a step's [`prepare`](Self::prepare) and
/// [`compute`](Self::compute) others may be prepared and computed. [`StepWork`] holds the state of a step.
///
/// The mean of the labels, in the one value of the job's first table, with the loss ½·(value − label)²:
///
/// ```
/// use heddle_client::{gradient::TableGradient, layout::Rows, machine::PullItem};
/// use heddle_protocol::{ids::TableId, metrics::TaskMetrics};
/// use heddle_trainer::{Algorithm, StepWork};
///
/// struct MeanLabel;
///
/// impl Algorithm for MeanLabel {
///     fn prepare(&mut self, work: &mut StepWork) {
///         let rows = Rows::Range(0..1);
///         work.pulls.push(PullItem { table: TableId(0), rows, values: vec![0.0] });
///     }
///
///     fn compute(&mut self, work: &mut StepWork, metrics: &mut TaskMetrics) {
///         let value = work.pulls[0].values[0];
///         let residuals: Vec<f32> = work.batch.labels.iter().map(|label| value - label).collect();
///         metrics.loss_sum += residuals.iter().map(|r| f64::from(r * r / 2.0)).sum::<f64>();
///         let values = vec![residuals.iter().sum()];
///         let rows = Rows::Range(0..1);
///         work.gradient.tables.push(TableGradient { table: TableId(0), rows, values });
///         metrics.rows += work.batch.rows() as u64;
///     }
/// }
///
/// let mut work = StepWork::default();
/// work.batch.labels = vec![1.0, 3.0];
/// MeanLabel.prepare(&mut work);
/// MeanLabel.compute(&mut work, &mut TaskMetrics::default());
/// assert_eq!(work.gradient.tables[0].values, [-4.0]);
/// ```
pub trait Algorithm: Send {
    /// Upper bound of feature indices. By default the job file's; for a custom algorithm the highest possible.
    fn features(&self, spec: &JobSpec) -> u64 {
        if spec.model.features == 0 { u64::from(u32::MAX) } else { spec.model.features }
    }

    /// The rows to pull once at the start of a phase: values that do not change in it. Empty by default.
    fn constants(&self, _phase: JobPhase) -> Vec<PullItem> {
        Vec::new()
    }

    /// Starts a phase, with the requested constants, in that order. State of an earlier phase is invalid. The same phase
    /// may start again after a rollback.
    ///
    /// # Errors
    /// The constants are invalid; the job ends with this failure.
    fn begin(&mut self, _phase: JobPhase, _constants: Vec<PullItem>) -> Result<(), Failure> {
        Ok(())
    }

    /// By what numbers of columns are scaled in the phase that has begun, in the order of the schema's measured columns.
    fn scales(&self) -> &[ColumnScales] {
        &[]
    }

    /// Whether steps of this phase need the distinct features of their batch: [`StepWork::keys`] and [`StepWork::local`].
    /// The parser threads fill them, ahead of the training loop.
    fn indexes_features(&self, _phase: JobPhase) -> bool {
        false
    }

    /// Fills `work.pulls` with the rows that the step of `work.batch` needs. Without pulls
    /// [`compute`](Self::compute) follows at once.
    fn prepare(&mut self, work: &mut StepWork);

    /// Turns `work.pulls`, now with values, into `work.gradient` (sums over the batch's records), and adds the
    /// records' losses to `metrics`. In evaluations the gradient stays empty. The pushed rows depend on the batch
    /// alone, never on values.
    fn compute(&mut self, work: &mut StepWork, metrics: &mut TaskMetrics);
}

/// One step in progress in a trainer. Buffers are reused for later steps.
#[derive(Clone, Debug, Default)]
pub struct StepWork {
    /// The records.
    pub batch: Batch,
    /// The task that the records are of.
    pub task: TaskId,
    /// The number of the first record in the task, from 0: bad records do not count.
    pub first_record: u64,
    /// The distinct features of the batch, ascending, if the algorithm [uses them](Algorithm::indexes_features).
    pub keys: Vec<u32>,
    /// The same if features are any u64: their positions, ascending.
    pub positions: Option<Vec<u64>>,
    /// With `keys` or `positions`: the place of each feature of the batch among them.
    pub local: Vec<u32>,
    /// Rows to pull.
    pub pulls: Vec<PullItem>,
    /// Rows to push.
    pub gradient: Gradient,
}

impl StepWork {
    /// Takes the distinct features out, as rows of a table with a row for each feature.
    pub fn take_rows(&mut self) -> Rows {
        match self.positions.take() {
            Some(positions) => Rows::Positions(positions),
            None => Rows::Keys(std::mem::take(&mut self.keys)),
        }
    }

    /// Fills `keys` or `positions`, and `local`, from the batch.
    pub fn index_features(&mut self, index: &mut KeyIndex) {
        if index.is_of_positions() {
            let positions = index.index_positions(&self.batch.positions, &mut self.local);
            self.positions = Some(positions);
            return;
        }
        index.index(&self.batch.indices, &mut self.keys, &mut self.local);
    }

    /// Bytes of the batch's features and their places.
    pub(crate) fn feature_bytes(&self) -> usize {
        let Batch { indices, positions, values, .. } = &self.batch;
        4 * (indices.len() + values.len() + self.local.len()) + 8 * positions.len()
    }

    /// Clears it for another batch; keeps the buffers.
    pub fn clear(&mut self) {
        self.batch.clear();
        self.keys.clear();
        self.positions = None;
        self.local.clear();
        self.pulls.clear();
        self.gradient.tables.clear();
    }
}
