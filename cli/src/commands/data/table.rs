//! The beginning of a table: its columns, the proposal, and its first records as features.

use std::fmt;

use heddle_am::input::Head;
use heddle_columns::{
    CellError, ColumnSummary, Encoder, FileColumn, Proposal, SampledColumn, is_label, propose,
    resolve,
};
use heddle_input::TextTable;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::DataFormat;
use heddle_protocol::job_spec::columns::{ColumnUsage, Schema};
use serde::Serialize;

use super::job_text;
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
    /// Whether its first line has the names of the columns.
    header: bool,
    /// The character between fields.
    delimiter: char,
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

/// Prints the beginning of a table.
pub fn show(args: &SampleArgs, format: DataFormat, head: &Head, json: bool) -> CommandResult {
    let delimiter = args.delimiter.unwrap_or(format.delimiter()) as u8;
    let is_stated = args.delimiter.is_some();
    let read = TextTable::read(&head.text, head.is_whole, args.header(), delimiter, is_stated);
    let table = read.map_err(|error| malformed(head, &error))?;
    if table.records() == 0 {
        return Err(without_record(head));
    }
    let columns = table.columns();
    let proposal = propose(&columns, args.label.as_deref());
    let files: Vec<FileColumn> = columns.iter().map(|column| column.column.clone()).collect();
    let schema = resolve(&files, &proposal.roles, &proposal.rules, &[])
        .or_fail(ExitCode::Input, format_args!("the columns of {}", head.file))?;
    let name = Some(&proposal.roles.label).filter(|name| !name.is_empty());
    let label = columns.iter().position(|column| Some(&column.column.name) == name);
    if let (Some(name), Some(place)) = (&args.label, label)
        && let Some(row) = columns[place].values.iter().position(|cell| !is_label(*cell))
    {
        let what = format!("column {name:?}: expected a label: a number, true or false");
        let error = table.error(row, place, what);
        return Err(malformed(head, &error));
    }
    let rows = rows(&table, &columns, &schema, label, args.rows)
        .or_fail(ExitCode::Input, format_args!("the first records of {}", head.file))?;
    let view = TableSampleView {
        file: head.file.clone(),
        format: format.name(),
        header: table.has_header,
        delimiter: char::from(table.delimiter),
        records: table.records(),
        columns: summaries(&proposal),
        proposal: job_text::sections(args, format, &table, &proposal),
        rows,
    };
    if json {
        output::json(&view)?;
    } else {
        print(&view)?;
    }
    Ok(ExitCode::Ok)
}

/// The first records as features.
fn rows(
    table: &TextTable,
    columns: &[SampledColumn<'_>],
    schema: &Schema,
    label: Option<usize>,
    most: usize,
) -> Result<Vec<SampledRowView>, CellError> {
    let place = |name: &String| columns.iter().find(|column| column.column.name == *name);
    let used: Vec<_> = schema.columns.iter().filter_map(|column| place(&column.name)).collect();
    let mut encoder = Encoder::unscaled(schema);
    let mut row = |row: usize| {
        let (mut features, mut found) = (Vec::new(), Vec::new());
        for (place, sampled) in used.iter().enumerate() {
            let (cell, feature) = (sampled.values[row], &schema.columns[place]);
            encoder.cell(place, cell, &mut found)?;
            let is_category = matches!(feature.usage, ColumnUsage::Category { .. });
            features.extend(found.drain(..).map(|(key, value)| SampledFeatureView {
                column: feature.name.clone(),
                text: is_category.then(|| cell.to_string()),
                value,
                key: format!("{key:016x}"),
            }));
        }
        let label = label.map_or_else(String::new, |label| columns[label].values[row].to_string());
        Ok(SampledRowView { label, features })
    };
    (0..table.records().min(most)).map(&mut row).collect()
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
            Some(text) => write!(f, "{}={text} ({})", self.column, self.key),
            None => write!(f, "{}:{}", self.column, self.value),
        }
    }
}
