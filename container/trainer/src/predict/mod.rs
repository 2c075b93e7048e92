//! Scoring files with a model: one probability of label 1 a line, in the order of the input.
//!
//! Labels of the records are read and not used. A malformed record ends it, with its place; what was
//! written before stays right.

mod model;

use std::io::{self, Read, Write};
use std::sync::Arc;

use heddle_protocol::manifest::InputFile;
use heddle_protocol::plan::{TaskLength, compression_of, plan_tasks};
use heddle_storage::{Location, Storage, StorageError, connect, find_files};

pub use model::{LinearModel, ModelError};

use crate::batch::Batch;
use crate::reader::bytes::LINE_BYTES_MAX;
use crate::reader::{BadPolicy, ReadError, TaskReader};

/// Records scored at once.
const ROWS: usize = 1024;

/// Why records could not be scored.
#[derive(Debug, thiserror::Error)]
pub enum PredictError {
    /// The model cannot be used.
    #[error("cannot use the model")]
    Model(#[from] ModelError),
    /// The input cannot be found.
    #[error("cannot find the input")]
    Storage(#[from] StorageError),
    /// The input cannot be read.
    #[error("cannot read the input")]
    Read(#[from] ReadError),
    /// Standard input cannot be read, or scores cannot be written.
    #[error("input or output failed")]
    Io(#[from] io::Error),
    /// A record of standard input is malformed.
    #[error("standard input:{line}:{what}")]
    Record {
        /// From 1.
        line: u64,
        /// `column: what`.
        what: String,
    },
}

/// Scores what lies at `inputs` (files or globs, in this order; files of a glob by name) and returns the number of
/// records.
///
/// # Errors
/// See [`PredictError`].
pub fn predict_files(
    model: &LinearModel,
    inputs: &[Location],
    out: &mut dyn Write,
) -> Result<u64, PredictError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut records = 0;
        for input in inputs {
            let storage = connect(input)?;
            for entry in find_files(&*storage, input.path()).await? {
                let file = InputFile {
                    url: input.with_path(entry.path.clone()).to_string(),
                    bytes: entry.bytes,
                    modified_ms: entry.modified_ms,
                    compression: compression_of(entry.name()),
                };
                records += predict_file(model, &storage, &file, out).await?;
            }
        }
        out.flush()?;
        Ok(records)
    })
}

async fn predict_file(
    model: &LinearModel,
    storage: &Arc<dyn Storage>,
    file: &InputFile,
    out: &mut dyn Write,
) -> Result<u64, PredictError> {
    let mut records = 0;
    let mut batch = Batch::default();
    for range in plan_tasks(std::slice::from_ref(file), 0, TaskLength::Bytes(u64::MAX)) {
        let storage = Arc::clone(storage);
        let mut reader =
            TaskReader::open(storage, file, range, model.format(), BadPolicy::Fail).await?;
        loop {
            reader.next_batch(ROWS, &mut batch).await?;
            if batch.is_empty() {
                break;
            }
            records += batch.rows() as u64;
            write_scores(model, &batch, out)?;
        }
    }
    Ok(records)
}

/// Scores what comes from a stream such as standard input, as text that is not packed.
///
/// # Errors
/// See [`PredictError`].
pub fn predict_stream(
    model: &LinearModel,
    input: &mut dyn Read,
    out: &mut dyn Write,
) -> Result<u64, PredictError> {
    let mut input = io::BufReader::with_capacity(1 << 20, input);
    let (mut lines, mut records) = (0, 0);
    let (mut text, mut batch) = (Vec::new(), Batch::default());
    loop {
        text.clear();
        let mut limited = Read::take(&mut input, LINE_BYTES_MAX as u64 + 2);
        if io::BufRead::read_until(&mut limited, b'\n', &mut text)? == 0 {
            break;
        }
        lines += 1;
        let record = |what: String| PredictError::Record { line: lines, what };
        if text.last() != Some(&b'\n') {
            text.push(b'\n');
        }
        if text.len() > LINE_BYTES_MAX + 1 {
            let what = format!("{LINE_BYTES_MAX}: the line is longer than {LINE_BYTES_MAX} bytes");
            return Err(record(what));
        }
        if lines == 1 && text.starts_with(&[0xef, 0xbb, 0xbf]) {
            text[..3].fill(b' ');
        }
        let read = model.format().read_line(&text, &mut batch);
        read.map_err(|error| record(error.to_string()))?;
        // A pipe wants an answer when its line is in, not when a thousand are.
        if batch.rows() >= ROWS || io::BufReader::buffer(&input).is_empty() {
            records += batch.rows() as u64;
            write_scores(model, &batch, out)?;
            out.flush()?;
            batch.clear();
        }
    }
    records += batch.rows() as u64;
    write_scores(model, &batch, out)?;
    out.flush()?;
    Ok(records)
}

fn write_scores(model: &LinearModel, batch: &Batch, out: &mut dyn Write) -> io::Result<()> {
    for row in 0..batch.rows() {
        let (indices, values) = batch.row(row);
        writeln!(out, "{}", model.probability(indices, values) as f32)?;
    }
    Ok(())
}
