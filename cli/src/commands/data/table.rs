//! The beginning of a table: its columns, the proposal, and its first records as features.

use std::fmt;

use heddle_columns::{
    Cell, CellError, ColumnSummary, Encoder, FileColumn, Proposal, SampledColumn, is_label,
    propose, resolve,
};
use heddle_input::TextHead;
use heddle_input::TextTable;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::DataFormat;
use heddle_protocol::job_spec::columns::{ColumnUsage, Schema};
use serde::Serialize;

use super::job_text::{self, TextForm};
use super::sample_args::SampleArgs;
use super::sample_text::{counted, few, malformed, without_record};
use crate::failure::{CommandFailure, CommandResult, OrFail};
use crate::output;

/// What the beginning of a table shows.
#[derive(Serialize)]
struct TableSampleView {
    /// URL of the file that was read.
    file: String,
    /// Its format.
    format: &'static str,
    /// How it is written, if it is text.
    #[serde(flatten)]
    text: Option<TextForm>,
    /// Records that were read.
    records: usize,
    /// The columns, in the order of the file.
    columns: Vec<SampledColumnView>,
    /// The proposed part of a job file.
    proposal: String,
    /// The first records.
    rows: Vec<SampledRowView>,
}

/// What the beginning of a table shows of a column.
#[derive(Serialize)]
struct SampledColumnView {
    /// Its name.
    name: String,
    /// `number`, `category` or `empty`.
    kind: &'static str,
    /// Share of records without a value, 0 to 1.
    missing: f64,
    /// A few of its values, cut.
    examples: Vec<String>,
}

/// A record of a table as features.
#[derive(Serialize)]
struct SampledRowView {
    /// The label as it is written; empty if the proposal lacks it.
    label: String,
    /// The features, before numbers are scaled.
    features: Vec<SampledFeatureView>,
}

/// A feature of a record.
#[derive(Serialize)]
struct SampledFeatureView {
    /// Its column.
    column: String,
    /// The text of a category.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// Its value.
    value: f32,
    /// Its 64-bit key, hexadecimal.
    key: String,
}

/// Prints the beginning of a table of text.
pub fn show(args: &SampleArgs, format: DataFormat, head: &TextHead, json: bool) -> CommandResult {
    let delimiter = args.delimiter.unwrap_or(format.delimiter()) as u8;
    let is_stated = args.delimiter.is_some();
    let read = TextTable::read(&head.text, head.is_whole, args.header(), delimiter, is_stated);
    let table = read.map_err(|error| malformed(head, &error))?;
    if table.records() == 0 {
        return Err(without_record(&head.file));
    }
    let columns = table.columns();
    let proposed = ProposedTable::new(args, &head.file, &columns)?;
    if let (Some(name), Some(place)) = (&args.label, proposed.label)
        && let Some(row) = columns[place].values.iter().position(|cell| !is_label(*cell))
    {
        let what = format!("column {name:?}: expected a label: a number, true or false");
        let error = table.error(row, place, what);
        return Err(malformed(head, &error));
    }
    let form = TextForm { header: table.has_header, delimiter: char::from(table.delimiter) };
    proposed.show(args, format, Some(form), json, |place, row, encoder, found| {
        let column = &proposed.schema.columns[place].name;
        let sampled = columns.iter().find(|sampled| sampled.column.name == *column);
        let cell = sampled.map_or(Cell::Missing, |sampled| sampled.values[row]);
        encoder.cell(place, cell, found)
    })
}

/// Between the items of a list of a file with types, as it is shown.
pub const LIST_SEPARATOR: &str = "|";

/// The beginning of a table with the rules that are proposed.
pub struct ProposedTable<'t> {
    file: &'t str,
    columns: &'t [SampledColumn<'t>],
    proposal: Proposal,
    /// By the proposal.
    pub schema: Schema,
    /// The place of the label in the file.
    label: Option<usize>,
}

impl<'t> ProposedTable<'t> {
    /// # Errors
    /// The columns do not fit each other, or the label that is stated.
    pub fn new(
        args: &SampleArgs,
        file: &'t str,
        columns: &'t [SampledColumn<'t>],
    ) -> Result<Self, CommandFailure> {
        let proposal = propose(columns, args.label.as_deref());
        let all: Vec<FileColumn> = columns.iter().map(|column| column.column.clone()).collect();
        let schema = resolve(&all, &proposal.roles, &proposal.rules, &[])
            .or_fail(ExitCode::Input, format_args!("the columns of {file}"))?;
        let name = Some(&proposal.roles.label).filter(|name| !name.is_empty());
        let label = columns.iter().position(|column| Some(&column.column.name) == name);
        Ok(Self { file, columns, proposal, schema, label })
    }

    /// Prints it. `encode`: adds the features of a row's column, which has this place in the schema.
    ///
    /// # Errors
    /// A record cannot be read by the rules.
    pub fn show(
        &self,
        args: &SampleArgs,
        format: DataFormat,
        text: Option<TextForm>,
        json: bool,
        encode: impl Fn(usize, usize, &mut Encoder, &mut Vec<(u64, f32)>) -> Result<(), CellError>,
    ) -> CommandResult {
        let records = self.columns.first().map_or(0, |column| column.values.len());
        let rows = (0..records.min(args.rows)).map(|row| self.row(row, &encode));
        let rows = rows
            .collect::<Result<_, _>>()
            .or_fail(ExitCode::Input, format_args!("the first records of {}", self.file))?;
        let view = TableSampleView {
            file: self.file.to_owned(),
            format: format.name(),
            text,
            records,
            columns: summaries(&self.proposal),
            proposal: job_text::sections(args, format, text, &self.proposal),
            rows,
        };
        if json {
            output::json(&view)?;
        } else {
            print(&view)?;
        }
        Ok(ExitCode::Ok)
    }

    /// A record as features.
    fn row(
        &self,
        row: usize,
        encode: &impl Fn(usize, usize, &mut Encoder, &mut Vec<(u64, f32)>) -> Result<(), CellError>,
    ) -> Result<SampledRowView, CellError> {
        let mut encoder = Encoder::unscaled(&self.schema);
        let (mut features, mut found) = (Vec::new(), Vec::new());
        for (place, feature) in self.schema.columns.iter().enumerate() {
            encode(place, row, &mut encoder, &mut found)?;
            let sampled = self.columns.iter().find(|own| own.column.name == feature.name);
            let text = sampled.map(|sampled| sampled.values[row].to_string());
            let texts = feature_texts(&feature.usage, &text.unwrap_or_default());
            let is_of_texts = texts.len() == found.len();
            let texts = texts.into_iter().map(|text| Some(text).filter(|_| is_of_texts));
            let texts = texts.chain(std::iter::repeat(None));
            features.extend(found.drain(..).zip(texts).map(|((key, value), text)| {
                let (column, key) = (feature.name.clone(), format!("{key:016x}"));
                SampledFeatureView { column, text, value, key }
            }));
        }
        let label = self.label.map(|label| self.columns[label].values[row].to_string());
        Ok(SampledRowView { label: label.unwrap_or_default(), features })
    }
}

/// The texts that are features of a cell, whose text this is.
fn feature_texts(usage: &ColumnUsage, text: &str) -> Vec<String> {
    match usage {
        ColumnUsage::Category { .. } => vec![text.to_owned()],
        ColumnUsage::List { separator } => {
            let items = text.split(separator.as_deref().unwrap_or(LIST_SEPARATOR));
            items.filter(|item| !item.is_empty()).map(str::to_owned).collect()
        }
        ColumnUsage::Number(_) | ColumnUsage::Vector { .. } | ColumnUsage::Ignore => Vec::new(),
    }
}

fn summaries(proposal: &Proposal) -> Vec<SampledColumnView> {
    let view = |column: &ColumnSummary| SampledColumnView {
        name: column.name.clone(),
        kind: column.kind.word(),
        missing: column.missing,
        examples: column.examples.clone(),
    };
    proposal.columns.iter().map(view).collect()
}

fn print(view: &TableSampleView) -> Result<(), CommandFailure> {
    let (columns, records) = (view.columns.len(), counted(view.records, view.records));
    output::line(&format!("{}: {}, {columns} columns, {records} read", view.file, view.format))?;
    let mut rows = vec![["column", "kind", "missing", "examples"].map(str::to_owned).to_vec()];
    rows.extend(view.columns.iter().map(|column| {
        let missing = format!("{:.1} %", 100.0 * column.missing);
        vec![column.name.clone(), column.kind.to_owned(), missing, column.examples.join(", ")]
    }));
    output::line(&format!("\n{}\n\n{}", output::columns(&rows), view.proposal))?;
    let shown = counted(view.rows.len(), view.records);
    output::line(&format!("\nlabel and features of {shown}, before scaling:"))?;
    let row = |row: &SampledRowView| {
        vec![row.label.clone(), few(row.features.iter().map(ToString::to_string), " ")]
    };
    output::line(&output::columns(&view.rows.iter().map(row).collect::<Vec<_>>()))
}

impl fmt::Display for SampledFeatureView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.text {
            Some(text) if self.value == 1.0 => write!(f, "{}={text} ({})", self.column, self.key),
            Some(text) => write!(f, "{}={text}:{} ({})", self.column, self.value, self.key),
            None => write!(f, "{}:{}", self.column, self.value),
        }
    }
}
