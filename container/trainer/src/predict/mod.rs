//! Scores files with a model: one probability of label 1 per line, in the order of the input.
//!
//! Records may lack the label. If all of them have one, 0 and 1 or −1 and +1, the scores are compared with the labels. A
//! malformed record ends the scoring, with its place; scores written before are valid.

mod model;

use std::io::{self, BufRead, Read, Write};
use std::sync::Arc;

use flate2::bufread::MultiGzDecoder;
use heddle_input::{TaskLength, compression_of, plan_tasks};
use heddle_metrics::Auc;
use heddle_protocol::manifest::InputFile;
use heddle_protocol::metrics::TaskMetrics;
use heddle_storage::{Storage, StorageError, StorageUrl, connect, find_files};

pub use model::{LinearModel, ModelError};

use crate::algorithm::logistic::{count, sigmoid};
use crate::batch::Batch;
use crate::reader::bytes::{LINE_BYTES_MAX, kind_of};
use crate::reader::{BadPolicy, Labels, ReadError, TaskReader};

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
    /// Standard input is not text.
    #[error(
        "standard input is {0}, which cannot be read: data is libsvm or dummy text, plain or gzip"
    )]
    Kind(&'static str),
    /// A record of standard input is malformed.
    #[error("standard input:{line}:{what}")]
    Record {
        /// From 1.
        line: u64,
        /// `column: what`.
        what: String,
    },
}

/// The result.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scored {
    /// Records.
    pub rows: u64,
    /// Quality of the scores against the labels; `None` if a record has none, or one other than 0, 1 and −1.
    pub quality: Option<Quality>,
}

/// Quality of scores against labels, as an evaluation of a job computes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quality {
    /// Mean log-loss.
    pub log_loss: f64,
    /// Area under the ROC curve; `None` with one class only.
    pub auc: Option<f64>,
    /// Share of records on the right side of ½.
    pub accuracy: f64,
}

/// Scores records and compares them with their labels.
struct Scorer<'a> {
    model: &'a LinearModel,
    out: &'a mut dyn Write,
    rows: u64,
    metrics: TaskMetrics,
    /// Labels so far that are 0 or 1, and −1.
    zero: bool,
    minus_one: bool,
    /// A label is missing or has another value.
    is_unlabelled: bool,
}

impl<'a> Scorer<'a> {
    fn new(model: &'a LinearModel, out: &'a mut dyn Write) -> Self {
        Self {
            model,
            out,
            rows: 0,
            metrics: TaskMetrics::default(),
            zero: false,
            minus_one: false,
            is_unlabelled: false,
        }
    }

    fn write(&mut self, batch: &Batch) -> io::Result<()> {
        self.rows += batch.rows() as u64;
        for row in 0..batch.rows() {
            let (indices, values) = batch.row(row);
            let score = self.model.score(indices, values);
            writeln!(self.out, "{}", sigmoid(score) as f32)?;
            self.compare(score, batch.labels[row]);
        }
        Ok(())
    }

    fn compare(&mut self, score: f64, label: f32) {
        self.zero |= label == 0.0;
        self.minus_one |= label == -1.0;
        let is_known = label == 0.0 || label == 1.0 || label == -1.0;
        self.is_unlabelled |= !is_known;
        if !self.is_unlabelled {
            count(score, label.max(0.0), true, &mut self.metrics);
        }
    }

    fn end(self) -> io::Result<Scored> {
        self.out.flush()?;
        let has_three_classes = self.zero && self.minus_one;
        let is_labelled = self.rows > 0 && !self.is_unlabelled && !has_three_classes;
        Ok(Scored {
            rows: self.rows,
            quality: is_labelled.then(|| Quality {
                log_loss: self.metrics.loss_sum / self.rows as f64,
                auc: Auc::of(&self.metrics.scores).map(|auc| auc.value),
                accuracy: self.metrics.correct as f64 / self.rows as f64,
            }),
        })
    }
}

/// Scores the files of `inputs` (files or globs, in this order; files of a glob by name).
///
/// # Errors
/// See [`PredictError`].
pub fn predict_files(
    model: &LinearModel,
    labels: Labels,
    inputs: &[StorageUrl],
    out: &mut dyn Write,
) -> Result<Scored, PredictError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut scorer = Scorer::new(model, out);
        for input in inputs {
            let storage = connect(input)?;
            for entry in find_files(&*storage, input.path()).await? {
                let file = InputFile {
                    url: input.with_path(entry.path.clone()).to_string(),
                    bytes: entry.bytes,
                    modified_ms: entry.modified_ms,
                    compression: compression_of(entry.name()),
                };
                predict_file(&mut scorer, labels, &storage, &file).await?;
            }
        }
        Ok(scorer.end()?)
    })
}

async fn predict_file(
    scorer: &mut Scorer<'_>,
    labels: Labels,
    storage: &Arc<dyn Storage>,
    file: &InputFile,
) -> Result<(), PredictError> {
    let mut batch = Batch::default();
    let format = scorer.model.format(labels);
    for range in plan_tasks(std::slice::from_ref(file), 0, TaskLength::Bytes(u64::MAX)) {
        let storage = Arc::clone(storage);
        let mut reader = TaskReader::open(storage, file, range, format, BadPolicy::Fail).await?;
        loop {
            reader.next_batch(ROWS, &mut batch).await?;
            if batch.is_empty() {
                break;
            }
            scorer.write(&batch)?;
        }
    }
    Ok(())
}

/// Scores a stream such as standard input: text, or text compressed with gzip.
///
/// # Errors
/// See [`PredictError`].
pub fn predict_stream(
    model: &LinearModel,
    labels: Labels,
    input: &mut dyn Read,
    out: &mut dyn Write,
) -> Result<Scored, PredictError> {
    let mut input = io::BufReader::with_capacity(1 << 20, input);
    let mut scorer = Scorer::new(model, out);
    match kind_of(input.fill_buf()?) {
        None => predict_lines(&mut scorer, labels, &mut input)?,
        Some("gzip") => {
            let mut unpacked =
                io::BufReader::with_capacity(1 << 20, MultiGzDecoder::new(&mut input));
            predict_lines(&mut scorer, labels, &mut unpacked)?;
        }
        Some(kind) => return Err(PredictError::Kind(kind)),
    }
    Ok(scorer.end()?)
}

fn predict_lines<R: Read>(
    scorer: &mut Scorer<'_>,
    labels: Labels,
    input: &mut io::BufReader<R>,
) -> Result<(), PredictError> {
    let format = scorer.model.format(labels);
    let mut lines = 0;
    let (mut text, mut batch) = (Vec::new(), Batch::default());
    loop {
        text.clear();
        let mut limited = Read::take(&mut *input, LINE_BYTES_MAX as u64 + 2);
        if limited.read_until(b'\n', &mut text)? == 0 {
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
        let read = format.read_line(&text, &mut batch);
        read.map_err(|error| record(error.to_string()))?;
        // The user of a pipe expects a score after each line, not after a thousand.
        if batch.rows() >= ROWS || input.buffer().is_empty() {
            scorer.write(&batch)?;
            scorer.out.flush()?;
            batch.clear();
        }
    }
    scorer.write(&batch)?;
    Ok(())
}
