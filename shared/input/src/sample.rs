//! What the beginning of the training data shows: the figures by which automatic values are decided.

use heddle_protocol::job_spec::JobSpec;
use heddle_protocol::manifest::TaskRange;

use crate::batch::Batch;
use crate::decision::Sample;
use crate::error::ReadError;
use crate::formats::input_format;
use crate::head::{Head, TextHead};
use crate::reader::{BadPolicy, TaskReader};
use crate::record_format::RecordFormat;

/// Rows of a file with types that are looked at.
const ROWS_MAX: usize = 2_048;

/// Looks at the beginning of the training data. What is not a record is left out: it is reported where it is read.
///
/// # Errors
/// A file with types cannot be read.
pub async fn sample(spec: &JobSpec, head: &Head) -> Result<Sample, ReadError> {
    match head {
        Head::Text(TextHead { text, share, .. }) => Ok(sample_text(spec, text, *share)),
        Head::Table { file, records, .. } => {
            let whole = TaskRange { file: 0, start: 0, end: file.bytes };
            let (format, policy) = (RecordFormat::before_training(spec), BadPolicy::Skip(u64::MAX));
            let mut reader = TaskReader::open(file, whole, format, policy).await?;
            let mut batch = Batch::default();
            reader.next_batch(ROWS_MAX, &mut batch).await?;
            Ok(of_batch(&batch, *records))
        }
    }
}

/// Looks at text, of which there is `share` times as much.
fn sample_text(spec: &JobSpec, text: &[u8], share: f64) -> Sample {
    let format = RecordFormat::before_training(spec);
    let mut batch = Batch::default();
    let (records, bytes) = input_format(format.format).sample(format, text, &mut batch);
    // The last record may be cut.
    let share = if bytes > 0 { share * text.len() as f64 / bytes as f64 } else { share };
    // One at least: the text may be a part of one line.
    of_batch(&batch, (records.max(1) as f64 * share).round() as u64)
}

fn of_batch(batch: &Batch, all_records: u64) -> Sample {
    let (label_mean, label_deviation) = mean_and_deviation(batch);
    Sample {
        all_records,
        records: batch.rows() as u64,
        cells: batch.values.len() as u64,
        has_numbers: batch.values.iter().any(|value| *value != 0.0 && *value != 1.0),
        label_mean,
        label_deviation,
    }
}

/// Of the labels, by weight; zeros without records.
fn mean_and_deviation(batch: &Batch) -> (f64, f64) {
    let labels = || {
        let of = |(row, label): (usize, &f32)| {
            (batch.weight(row).map_or(1.0, f64::from), f64::from(*label))
        };
        batch.labels.iter().enumerate().map(of)
    };
    let weight: f64 = labels().map(|(weight, _)| weight).sum();
    if weight <= 0.0 {
        return (0.0, 0.0);
    }
    let mean = labels().map(|(weight, label)| weight * label).sum::<f64>() / weight;
    let squares = labels().map(|(weight, label)| weight * (label - mean) * (label - mean));
    (mean, (squares.sum::<f64>() / weight).sqrt())
}

#[cfg(test)]
mod tests {
    use heddle_protocol::job_spec::AlgorithmKind;
    use heddle_protocol::job_spec::job;

    use super::*;

    fn of(text: &str, share: f64) -> Sample {
        let mut spec = job::sample();
        spec.model.algorithm = AlgorithmKind::LinearRegression;
        sample_text(&spec, text.as_bytes(), share)
    }

    #[test]
    fn records_cells_and_labels_are_counted() {
        let found = of("# a comment\n1 1:0 2:1\n3:2 1:0.5\nx 1:1\n\n5 10:1\n7 1:", 10.0);
        assert_eq!((found.records, found.cells, found.has_numbers), (3, 4, true));
        // 50 bytes, 4 of them beyond the last line; the record that cannot be read counts.
        assert_eq!(found.all_records, 43);
        // Labels 1, 3, 3 and 5.
        assert_eq!((found.label_mean, found.label_deviation), (3.0, 2f64.sqrt()));
        assert!(!of("1 1:0 2:1\n", 1.0).has_numbers);
    }

    #[test]
    fn text_without_a_record_is_one_record_at_least() {
        for text in ["", "1 1:1", "\n", "x\n"] {
            let found = of(text, 1.0);
            assert_eq!((found.all_records, found.records, found.cells), (1, 0, 0), "{text:?}");
            assert_eq!((found.label_mean, found.label_deviation), (0.0, 0.0));
        }
    }
}
