//! How the records of a job or a model are written.

use std::sync::Arc;

use heddle_columns::{ColumnScales, Encoder};
use heddle_protocol::job_spec::columns::Schema;
use heddle_protocol::job_spec::limits::ANY_FEATURES;
use heddle_protocol::job_spec::{DataFormat, JobSpec, LabelRange};
use heddle_protocol::manifest::InputPlan;

use crate::table_format::TableFormat;

/// The format of records.
#[derive(Clone, Debug)]
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
    /// Of formats with columns.
    pub table: Option<Arc<TableFormat>>,
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

impl Labels {
    /// The column of the label that a table must have. `has`: whether it has a column of a name.
    pub(crate) fn column(self, schema: &Schema, has: impl Fn(&str) -> bool) -> Option<&str> {
        let label = Some(schema.label.as_str());
        match self {
            Self::Absent => None,
            Self::Optional => label.filter(|label| has(label)),
            Self::Within(_) | Self::Required => label.filter(|label| !label.is_empty()),
        }
    }

    /// The column of the weight that a table must have.
    pub(crate) fn weight_column(self, schema: &Schema) -> Option<&str> {
        match self {
            Self::Absent | Self::Optional => None,
            Self::Within(_) | Self::Required => schema.weight.as_deref(),
        }
    }
}

impl RecordFormat {
    /// Of the data of a job whose feature indices have this bound.
    #[must_use]
    pub fn of(spec: &JobSpec, features: u64) -> Self {
        Self::with_columns(spec, features, Encoder::unscaled)
    }

    /// The same, with numbers of columns scaled by what was measured of them; see [`Schema::measured`].
    #[must_use]
    pub fn scaled(spec: &JobSpec, features: u64, measured: &[ColumnScales]) -> Self {
        Self::with_columns(spec, features, |schema| Encoder::new(schema, measured))
    }

    /// Of the data of a job whose columns are measured: its features are the measured columns.
    #[must_use]
    pub fn measuring(spec: &JobSpec) -> Self {
        Self::with_columns(spec, spec.measured_columns(), Encoder::measuring)
    }

    fn with_columns(spec: &JobSpec, features: u64, encoder: impl Fn(&Schema) -> Encoder) -> Self {
        let labels = Labels::Within(spec.model.labels());
        let table = spec.schema.as_ref().map(|schema| {
            let (has_header, delimiter) = (spec.data.has_header(), spec.data.delimiter_byte());
            let encoder = encoder(schema).bounded(features);
            Arc::new(TableFormat::new(schema.clone(), encoder, has_header, delimiter))
        });
        let (format, index_base) = (spec.data.format, spec.data.index_base);
        Self { format, index_base, features, labels, table }
    }

    /// The same, with messages about files that do not fit which name the first training file of `plan` too.
    #[must_use]
    pub fn of_plan(self, plan: &InputPlan) -> Self {
        let first = plan.train.first().and_then(|task| plan.files.get(task.file as usize));
        if let (Some(table), Some(first)) = (&self.table, first) {
            // It stays what it was.
            let _ = table.first_file.set(first.clone());
        }
        self
    }

    /// The columns.
    pub(crate) fn table(&self) -> Arc<TableFormat> {
        self.table.clone().unwrap_or_else(|| {
            debug_assert!(false, "the columns of a table are known before it is read");
            let schema = Schema::default();
            let encoder = Encoder::unscaled(&schema);
            Arc::new(TableFormat::new(schema, encoder, true, b','))
        })
    }

    /// Of the data of a job before an algorithm bounds its indices: those of a custom one are any.
    #[must_use]
    pub fn before_training(spec: &JobSpec) -> Self {
        let features = if spec.model.features == 0 { ANY_FEATURES } else { spec.model.features };
        Self::of(spec, features)
    }
}
