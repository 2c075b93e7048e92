//! The columns of a job's tables, found in the first file.

use heddle_columns::{
    ColumnScales, Encoder, FileColumn, Roles, SchemaError, ValueKind, check_folded, resolve,
};
use heddle_protocol::job_spec::columns::{Header, Schema};
use heddle_protocol::job_spec::{DataSpec, JobSpec};
use serde::{Deserialize, Serialize};

use crate::formats::field_names;
use crate::head::{Head, TextHead};
use crate::lines::{BYTE_ORDER_MARK, LineError};
use crate::table_format::TableFormat;

/// The columns of a model: metadata `heddle.columns` of its files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ModelColumns {
    /// The columns.
    #[serde(flatten)]
    pub schema: Schema,
    /// By what numbers are scaled, in the order of the schema's [measured](Schema::measured) columns.
    pub scales: Vec<ColumnScales>,
    /// Text: whether files begin with the names of columns.
    pub has_header: bool,
    /// Text: the character between fields.
    pub delimiter: char,
}

impl ModelColumns {
    /// Of a job, if its data has columns.
    #[must_use]
    pub fn new(spec: &JobSpec, scales: Vec<ColumnScales>) -> Option<Self> {
        let schema = spec.schema.clone()?;
        let (has_header, delimiter) = (spec.data.has_header(), spec.data.delimiter_byte().into());
        Some(Self { schema, scales, has_header, delimiter })
    }

    /// How records of the model, which has `features`, are read, unless scales are missing.
    #[must_use]
    pub fn format(&self, features: u64) -> Option<TableFormat> {
        let is_whole = self.scales.len() == self.schema.measured().count();
        let encoder = is_whole.then(|| Encoder::new(&self.schema, &self.scales))?;
        let encoder = encoder.bounded(features);
        let delimiter = u8::try_from(self.delimiter).ok()?;
        Some(TableFormat::new(self.schema.clone(), encoder, self.has_header, delimiter))
    }
}

/// Why the columns of a job are not found.
#[derive(Debug, thiserror::Error)]
pub enum ColumnsError {
    /// The first line cannot be read.
    #[error("the first line of the data: column {}: {}", .0.column, .0.what)]
    Line(LineError),
    /// Columns and rules do not fit.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// Columns of a file with types and rules do not fit.
    #[error("{file}: {error}")]
    Table {
        /// URL of the file.
        file: String,
        /// Why.
        error: SchemaError,
    },
}

/// Decides whether a file that begins with this text begins with the names of its columns.
pub(crate) fn header_of(text: &[u8], delimiter: u8, stated: Header) -> Result<Header, LineError> {
    if stated != Header::Auto {
        return Ok(stated);
    }
    let fields = field_names(text, delimiter, true)?;
    let has_numbers = fields.iter().any(|field| field.parse::<f64>().is_ok());
    Ok(if has_numbers { Header::None } else { Header::First })
}

/// Finds the columns of a job by the beginning of its training data. Decides `data.header`.
///
/// # Errors
/// See [`ColumnsError`].
pub fn find_columns(spec: &mut JobSpec, head: &Head) -> Result<(), ColumnsError> {
    if !spec.data.format.has_columns() {
        return Ok(());
    }
    let columns = match head {
        Head::Text(TextHead { text, .. }) => columns_of_text(&mut spec.data, text)?,
        Head::Table { columns, .. } => columns.clone(),
    };
    let data = &spec.data;
    let roles = Roles {
        label: data.label.clone(),
        weight: (!data.weight.is_empty()).then(|| data.weight.clone()),
        id: data.id.clone(),
        null: data.null.clone(),
    };
    let schema = resolve(&columns, &roles, &data.columns, &data.cross);
    let schema = schema.map_err(|error| match head {
        Head::Text(_) => error.into(),
        Head::Table { file, .. } => ColumnsError::Table { file: file.url.clone(), error },
    })?;
    if !spec.model.any_features() && spec.model.features > 0 {
        check_folded(&schema, spec.model.features)?;
    }
    spec.schema = Some(schema);
    Ok(())
}

/// The columns of files of text that begin like this.
fn columns_of_text(data: &mut DataSpec, text: &[u8]) -> Result<Vec<FileColumn>, ColumnsError> {
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    let delimiter = data.delimiter_byte();
    data.header = header_of(text, delimiter, data.header).map_err(ColumnsError::Line)?;
    let names = field_names(text, delimiter, data.has_header()).map_err(ColumnsError::Line)?;
    let column = |name| FileColumn { name, kind: ValueKind::AnyText };
    Ok(names.into_iter().map(column).collect())
}
