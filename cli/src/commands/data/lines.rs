//! The beginning of data that has indices in place of columns.

use heddle_input::TextHead;
use heddle_input::{Batch, sample_words};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::DataFormat;
use serde::Serialize;

use super::sample_args::SampleArgs;
use super::sample_text::{counted, few, malformed, without_record};
use crate::failure::{CommandFailure, CommandResult};
use crate::output;

/// What the beginning of data with indices shows.
#[derive(Serialize)]
struct LineSampleView {
    /// URL of the file that was read.
    file: String,
    /// Its format.
    format: &'static str,
    /// Records that were read.
    records: usize,
    /// The labels, ascending.
    labels: Vec<LabelCountView>,
    /// The number of features up to the highest index: the least `model.features`.
    features: u32,
    /// The first records.
    rows: Vec<LineRowView>,
}

/// A label with the number of its records.
#[derive(Serialize)]
struct LabelCountView {
    /// The label.
    label: f32,
    /// The records.
    records: usize,
}

/// A record with indices.
#[derive(Serialize)]
struct LineRowView {
    /// Its label.
    label: f32,
    /// The indices as they are written.
    indices: Vec<u32>,
    /// Their values.
    values: Vec<f32>,
}

/// Prints the beginning of data.
pub fn show(args: &SampleArgs, format: DataFormat, head: &TextHead, json: bool) -> CommandResult {
    let batch =
        sample_words(format, &head.text, head.is_whole).map_err(|error| malformed(head, &error))?;
    if batch.rows() == 0 {
        return Err(without_record(&head.file));
    }
    let mut labels = batch.labels.clone();
    labels.sort_by(f32::total_cmp);
    let runs = labels.chunk_by(|a, b| a == b);
    let view = LineSampleView {
        file: head.file.clone(),
        format: format.name(),
        records: batch.rows(),
        labels: runs.map(|run| LabelCountView { label: run[0], records: run.len() }).collect(),
        features: batch.indices.iter().max().map_or(0, |highest| highest + 1),
        rows: (0..batch.rows().min(args.rows)).map(|row| row_view(&batch, row, format)).collect(),
    };
    if json {
        output::json(&view)?;
    } else {
        print(&view)?;
    }
    Ok(ExitCode::Ok)
}

fn row_view(batch: &Batch, row: usize, format: DataFormat) -> LineRowView {
    let range = batch.offsets[row] as usize..batch.offsets[row + 1] as usize;
    let index = |index: &u32| index + format.index_base();
    LineRowView {
        label: batch.labels[row],
        indices: batch.indices[range.clone()].iter().map(index).collect(),
        values: batch.values[range].to_vec(),
    }
}

fn print(view: &LineSampleView) -> Result<(), CommandFailure> {
    let labels = view.labels.iter().map(|count| format!("{} ({})", count.label, count.records));
    let records = counted(view.records, view.records);
    output::line(&format!("{}: {}, {records} read", view.file, view.format))?;
    output::line(&output::columns(&[
        vec!["labels".to_owned(), few(labels, ", ")],
        vec!["features".to_owned(), format!("{} up to the highest index", view.features)],
    ]))?;
    let shown = counted(view.rows.len(), view.records);
    output::line(&format!("\nlabel and features of {shown}:"))?;
    let row = |row: &LineRowView| {
        let features = row.indices.iter().zip(&row.values);
        let texts = features.map(|(index, value)| format!("{index}:{value}"));
        vec![row.label.to_string(), few(texts, " ")]
    };
    output::line(&output::columns(&view.rows.iter().map(row).collect::<Vec<_>>()))
}
