//! A checkpoint as the source of a model: its job and its tables.

use heddle_protocol::job_spec::table::{BIAS, COLUMN_STATS, FACTORS, LABEL, STATS, WEIGHTS};
use heddle_protocol::job_spec::{AlgorithmKind, JobSpec, LossFunction, TableSpec};
use heddle_storage::checkpoint::StoredCheckpoint;
use heddle_storage::{Mode, Storage};

use super::error::ExportError;
use super::exported_bytes::ExportedBytes;

/// The origin of a model, written into its files.
#[derive(Clone, Debug)]
pub(super) struct ModelOrigin {
    pub(super) job: String,
    pub(super) spec: JobSpec,
}

/// A checkpoint as the source of a model.
pub(super) struct Model<'a> {
    pub(super) from: &'a dyn Storage,
    pub(super) checkpoint: &'a StoredCheckpoint,
    pub(super) origin: &'a ModelOrigin,
    /// For the files to write.
    pub(super) mode: Mode,
    /// Counts what is read.
    pub(super) bytes: &'a ExportedBytes,
}

impl Model<'_> {
    /// Name of the loss, if the algorithm has several.
    pub(super) fn loss(&self) -> Option<&'static str> {
        let model = &self.origin.spec.model;
        (model.algorithm.losses().len() > 1).then(|| model.objective().name())
    }

    /// Name of the algorithm.
    pub(super) fn algorithm(&self) -> &'static str {
        self.origin.spec.model.algorithm.name()
    }

    /// How a score is meant, in words.
    pub(super) fn meaning(&self) -> &'static str {
        match self.origin.spec.model.objective() {
            LossFunction::Logistic => "; probability of label 1 = 1 / (1 + exp(-score))",
            LossFunction::Hinge | LossFunction::SquaredHinge => {
                "; label 1 if the score is at least 0"
            }
            LossFunction::Squared | LossFunction::Softmax | LossFunction::Distance => "",
        }
    }

    /// Whether an algorithm of Heddle has made the tables.
    pub(super) fn is_built_in(&self) -> bool {
        self.origin.spec.model.algorithm != AlgorithmKind::Custom
    }

    pub(super) fn tables(&self) -> Vec<TableSpec> {
        self.origin.spec.tables()
    }

    /// The tables that a model file holds: those of a standardised model are written for raw values, without means and
    /// scales.
    pub(super) fn exported(&self) -> Vec<TableSpec> {
        let all = self.tables().into_iter();
        let is_measured = |table: &TableSpec| matches!(&*table.name, STATS | LABEL | COLUMN_STATS);
        all.filter(|table| !self.is_built_in() || !is_measured(table)).collect()
    }

    /// The shape of a table in a model file: of the linear family vectors, otherwise rows and columns.
    pub(super) fn shape(&self, table: &TableSpec) -> Vec<u64> {
        let cols = u64::from(table.cols);
        match self.origin.spec.model.algorithm {
            AlgorithmKind::Custom => vec![table.rows, cols],
            _ if table.name == BIAS => vec![cols],
            _ if table.cols == 1 && table.name != FACTORS => vec![table.rows],
            _ => vec![table.rows, cols],
        }
    }

    pub(super) fn table(&self, name: &str) -> Option<TableSpec> {
        self.tables().into_iter().find(|table| table.name == name)
    }

    pub(super) fn weights(&self) -> Result<TableSpec, ExportError> {
        self.table(WEIGHTS).ok_or(ExportError::Text)
    }
}
