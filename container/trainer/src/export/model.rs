//! A checkpoint as the source of a model: its job and its tables.

use heddle_protocol::spec::table::WEIGHTS;
use heddle_protocol::spec::{AlgorithmKind, DataFormat, JobSpec, TableSpec};
use heddle_storage::checkpoint::StoredCheckpoint;
use heddle_storage::{Mode, Storage};

use super::error::ExportError;

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
}

impl Model<'_> {
    pub(super) fn is_linear(&self) -> bool {
        self.origin.spec.model.algorithm == AlgorithmKind::LogisticRegression
    }

    pub(super) fn tables(&self) -> Vec<TableSpec> {
        self.origin.spec.tables()
    }

    pub(super) fn table(&self, name: &str) -> Option<TableSpec> {
        self.tables().into_iter().find(|table| table.name == name)
    }

    pub(super) fn weights(&self) -> Result<TableSpec, ExportError> {
        self.table(WEIGHTS).ok_or(ExportError::Text)
    }
}

/// The name of a record format, as in job files.
pub(super) fn data_format_name(format: DataFormat) -> &'static str {
    match format {
        DataFormat::Libsvm => "libsvm",
        DataFormat::Dummy => "dummy",
    }
}
