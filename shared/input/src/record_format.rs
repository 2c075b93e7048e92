//! How the records of a job or a model are written.

use heddle_protocol::job_spec::limits::ANY_FEATURES;
use heddle_protocol::job_spec::{DataFormat, JobSpec, LabelRange};

/// The format of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordFormat {
    /// Their files' format.
    pub format: DataFormat,
    /// The lowest index in the text, 0 or 1.
    pub index_base: u32,
    /// Indices are below `features` after subtraction of the base; at most 2³² − 1. [`ANY_FEATURES`]: indices are u64 keys
    /// as they are written, in any order, and a batch has their positions.
    pub features: u64,
    /// Whether records begin with a label.
    pub labels: Labels,
}

/// Whether records begin with a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Labels {
    /// Every record does, within this range: training and evaluation.
    Within(LabelRange),
    /// Every record does, and any number is accepted.
    Required,
    /// A record may lack it: its first word is a feature (libsvm: with a colon, so that a label has no weight) or `?`. Any
    /// number is accepted. A missing label is NaN in the batch.
    Optional,
    /// No record has one: every word is a feature. All labels are NaN in the batch.
    Absent,
}

impl RecordFormat {
    /// Of the data of a job whose feature indices have this bound.
    #[must_use]
    pub fn of(spec: &JobSpec, features: u64) -> Self {
        let labels = Labels::Within(spec.model.labels());
        Self { format: spec.data.format, index_base: spec.data.index_base, features, labels }
    }

    /// Of the data of a job before an algorithm bounds its indices: those of a custom one are any.
    #[must_use]
    pub fn before_training(spec: &JobSpec) -> Self {
        let features = if spec.model.features == 0 { ANY_FEATURES } else { spec.model.features };
        Self::of(spec, features)
    }
}
