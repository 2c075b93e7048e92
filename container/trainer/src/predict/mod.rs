//! Scores files with a model: one line per record, in the order of the input. A line is the probability of label 1
//! (log-loss), the value (squared loss), the margin (hinge losses), the cluster and the distance from its centre (k-means), or
//! the class, with [`ClassOutput::Probabilities`] the
//! probabilities of all classes.
//!
//! Records may lack the label. If all of them have one that the model's loss accepts, the scores are compared with the
//! labels. A malformed record ends the scoring, with its place; scores written before are valid.

mod model;

use std::io::{self, BufRead, Read, Write};
use std::sync::Arc;

use heddle_input::{TaskLength, compression_of, plan_tasks};
use heddle_metrics::PhaseMetrics;
use heddle_protocol::figure::EvaluationFigures;
use heddle_protocol::ids::TaskId;
use heddle_protocol::manifest::InputFile;
use heddle_protocol::metrics::TaskMetrics;
use heddle_protocol::spec::{LabelRange, LossFunction};
use heddle_storage::{Storage, StorageError, StorageUrl, connect, find_files, folders_left_out};

pub use model::{ModelError, ScoringModel};

use crate::algorithm::loss::{count, count_classes, sigmoid, softmax};
use heddle_input::Batch;
use heddle_input::GunzipReader;
use heddle_input::{BYTE_ORDER_MARK, LINE_BYTES_MAX, kind_of, refusal};
use heddle_input::{BadPolicy, Labels, ReadError, RowLines, TaskReader};

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
    /// Standard input cannot be read.
    #[error("cannot read standard input")]
    Input(#[source] io::Error),
    /// The system provides no event queue.
    #[error("cannot start reading")]
    Runtime(#[source] io::Error),
    /// Scores cannot be written.
    #[error("cannot write the scores")]
    Output(#[source] io::Error),
    /// Standard input is not text.
    #[error("standard input: {}", refusal(.0))]
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
    /// A sentence for the user about each folder that was not read.
    pub warnings: Vec<String>,
    /// Figures of the scores against the labels, as an evaluation of a job computes them; `None` if a record has no
    /// label, or one that the loss does not accept.
    pub figures: Option<EvaluationFigures>,
    /// Why there are none, though there are labels: the first record that has none or another one, with its place.
    pub no_figures: Option<String>,
}

/// What a line holds, of a model with several classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClassOutput {
    /// The class of the highest score.
    #[default]
    Class,
    /// The probabilities of all classes, in their order, with a blank between.
    Probabilities,
}

/// Scores records and compares them with their labels.
struct Scorer<'a> {
    model: &'a ScoringModel,
    output: ClassOutput,
    out: &'a mut dyn Write,
    scores: Vec<f64>,
    rows: u64,
    metrics: TaskMetrics,
    /// Labels of two classes so far that are 0, and −1.
    zero: bool,
    minus_one: bool,
    /// Place and label of the first record whose label is missing or is one that the loss does not accept.
    unfit: Option<String>,
    /// A record has a label.
    is_labelled: bool,
}

impl<'a> Scorer<'a> {
    fn new(model: &'a ScoringModel, output: ClassOutput, out: &'a mut dyn Write) -> Self {
        Self {
            model,
            output,
            out,
            scores: Vec::new(),
            rows: 0,
            metrics: TaskMetrics::default(),
            zero: false,
            minus_one: false,
            unfit: None,
            is_labelled: false,
        }
    }

    /// Scores a batch. `place` finds a row of it.
    fn write(&mut self, batch: &Batch, place: impl Fn(usize) -> String) -> io::Result<()> {
        self.rows += batch.rows() as u64;
        for row in 0..batch.rows() {
            self.model.score_record(batch, row, &mut self.scores);
            if let Some(what) = self.compare(batch.labels[row], batch.weight(row)) {
                self.unfit.get_or_insert_with(|| format!("{} has {what}", place(row)));
            }
            self.line()?;
        }
        Ok(())
    }

    /// Compares the record's scores with its label, unless it or an earlier one is unfit; what is, if it is this one.
    fn compare(&mut self, label: f32, weight: Option<f32>) -> Option<String> {
        let loss = self.model.loss();
        if loss == LossFunction::Distance {
            // Labels are not used.
            let weight = weight.map_or(1.0, f64::from);
            self.metrics.rows += 1;
            self.metrics.loss_sum += weight * self.scores[1];
            return None;
        }
        self.is_labelled |= !label.is_nan();
        let unfit = self.unfit(label);
        if unfit.is_some() || self.unfit.is_some() {
            return unfit;
        }
        match loss {
            LossFunction::Distance => {}
            LossFunction::Softmax => {
                let mut scores = self.scores.clone();
                count_classes(&mut scores, label, weight, &mut self.metrics);
            }
            LossFunction::Squared => {
                count(loss.into(), self.scores[0], label, weight, true, &mut self.metrics);
            }
            LossFunction::Logistic | LossFunction::Hinge | LossFunction::SquaredHinge => {
                let label = label.max(0.0);
                count(loss.into(), self.scores[0], label, weight, true, &mut self.metrics);
            }
        }
        None
    }

    /// Why the loss does not accept this label.
    fn unfit(&mut self, label: f32) -> Option<String> {
        if label.is_nan() {
            return Some("no label".to_owned());
        }
        match self.model.loss().labels(self.model.classes()) {
            LabelRange::TwoClasses => {
                self.zero |= label == 0.0;
                self.minus_one |= label == -1.0;
                if label != 0.0 && label != 1.0 && label != -1.0 {
                    return Some(format!("label {label} (labels are 0 and 1, or -1 and +1)"));
                }
                let other = -1.0 - label;
                (label != 1.0 && self.zero && self.minus_one)
                    .then(|| format!("label {label}, and an earlier record label {other}"))
            }
            LabelRange::Classes(classes) => {
                let fits = label.fract() == 0.0 && (0.0..classes as f32).contains(&label);
                (!fits).then(|| format!("label {label} (labels are 0 to {})", classes - 1))
            }
            LabelRange::Number => (!label.is_finite()).then(|| format!("label {label}")),
        }
    }

    /// Writes the line of the record.
    fn line(&mut self) -> io::Result<()> {
        match self.model.loss() {
            LossFunction::Logistic => writeln!(self.out, "{}", sigmoid(self.scores[0]) as f32),
            LossFunction::Squared | LossFunction::Hinge | LossFunction::SquaredHinge => {
                writeln!(self.out, "{}", self.scores[0] as f32)
            }
            LossFunction::Distance => {
                let [cluster, distance] = [self.scores[0], self.scores[1].sqrt()];
                writeln!(self.out, "{cluster} {}", distance as f32)
            }
            LossFunction::Softmax => {
                let (class, _) = softmax(&mut self.scores);
                if self.output == ClassOutput::Class {
                    return writeln!(self.out, "{class}");
                }
                for (n, probability) in self.scores.iter().enumerate() {
                    let gap = if n == 0 { "" } else { " " };
                    write!(self.out, "{gap}{}", *probability as f32)?;
                }
                writeln!(self.out)
            }
        }
    }

    fn end(self) -> io::Result<Scored> {
        self.out.flush()?;
        let is_fit = self.unfit.is_none();
        let mut all = PhaseMetrics::default();
        all.add(TaskId(0), self.metrics);
        let figures = is_fit.then(|| all.summary().figures(self.model.loss()));
        let no_figures = self.unfit.filter(|_| self.is_labelled);
        Ok(Scored { rows: self.rows, warnings: Vec::new(), figures: figures.flatten(), no_figures })
    }
}

/// Scores the files of `inputs` (files, folders or globs, in this order; files of one by name). All are looked up first.
///
/// # Errors
/// See [`PredictError`].
pub fn predict_files(
    model: &ScoringModel,
    output: ClassOutput,
    labels: Labels,
    inputs: &[StorageUrl],
    out: &mut dyn Write,
) -> Result<Scored, PredictError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(PredictError::Runtime)?;
    runtime.block_on(async {
        let (mut files, mut folders) = (Vec::new(), Vec::new());
        for input in inputs {
            let storage = connect(input)?;
            let found = find_files(&*storage, input.path()).await?;
            let url = |path| input.with_path(path).to_string();
            folders.extend(found.folders.into_iter().map(url));
            files.extend(found.files.into_iter().map(|entry| {
                let file = InputFile {
                    bytes: entry.bytes,
                    modified_ms: entry.modified_ms,
                    compression: compression_of(entry.name()),
                    url: url(entry.path),
                };
                (Arc::clone(&storage), file)
            }));
        }
        let mut scorer = Scorer::new(model, output, out);
        for (storage, file) in &files {
            predict_file(&mut scorer, labels, storage, file).await?;
        }
        let urls = files.iter().map(|(_, file)| file.url.as_str());
        let warnings = folders_left_out(&folders, urls).collect();
        Ok(Scored { warnings, ..scorer.end().map_err(PredictError::Output)? })
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
            scorer.write(&batch, |row| reader.place_of(row)).map_err(PredictError::Output)?;
        }
    }
    Ok(())
}

/// Scores a stream such as standard input: text, or text compressed with gzip.
///
/// # Errors
/// See [`PredictError`].
pub fn predict_stream(
    model: &ScoringModel,
    output: ClassOutput,
    labels: Labels,
    input: &mut dyn Read,
    out: &mut dyn Write,
) -> Result<Scored, PredictError> {
    let mut input = io::BufReader::with_capacity(1 << 20, input);
    let mut scorer = Scorer::new(model, output, out);
    if kind_of(input.fill_buf().map_err(PredictError::Input)?) == Some("gzip") {
        let mut unpacked = io::BufReader::with_capacity(1 << 20, GunzipReader::new(&mut input));
        match kind_of(unpacked.fill_buf().map_err(PredictError::Input)?) {
            Some("gzip") => return Err(PredictError::Kind("gzip within gzip")),
            _ => predict_lines(&mut scorer, labels, &mut unpacked)?,
        }
    } else {
        predict_lines(&mut scorer, labels, &mut input)?;
    }
    scorer.end().map_err(PredictError::Output)
}

fn stdin_place(lines: &RowLines, row: usize) -> String {
    format!("standard input:{}", lines.of(row))
}

fn predict_lines<R: Read>(
    scorer: &mut Scorer<'_>,
    labels: Labels,
    input: &mut io::BufReader<R>,
) -> Result<(), PredictError> {
    if let Some(kind) = kind_of(input.fill_buf().map_err(PredictError::Input)?) {
        return Err(PredictError::Kind(kind));
    }
    let format = scorer.model.format(labels);
    let mut lines = 0;
    let mut row_lines = RowLines::default();
    let (mut text, mut batch) = (Vec::new(), Batch::default());
    loop {
        text.clear();
        let mut limited = Read::take(&mut *input, LINE_BYTES_MAX as u64 + 2);
        if limited.read_until(b'\n', &mut text).map_err(PredictError::Input)? == 0 {
            break;
        }
        lines += 1;
        let record = |what: String| PredictError::Record { line: lines, what };
        if text.last() != Some(&b'\n') {
            text.push(b'\n');
        }
        if text.len() > LINE_BYTES_MAX + 1 {
            let what =
                format!("{}: the line is longer than {LINE_BYTES_MAX} bytes", LINE_BYTES_MAX + 1);
            return Err(record(what));
        }
        if lines == 1 && text.starts_with(BYTE_ORDER_MARK) {
            text[..BYTE_ORDER_MARK.len()].fill(b' ');
        }
        let read = format.read_line(&text, &mut batch);
        let (_, has_record) = read.map_err(|error| record(error.to_string()))?;
        if !has_record {
            row_lines.skip(batch.rows());
        }
        // The user of a pipe expects a score after each line, not after a thousand.
        if batch.rows() >= ROWS || input.buffer().is_empty() {
            scorer
                .write(&batch, |row| stdin_place(&row_lines, row))
                .map_err(PredictError::Output)?;
            scorer.out.flush().map_err(PredictError::Output)?;
            batch.clear();
            row_lines.begin(lines);
        }
    }
    scorer.write(&batch, |row| stdin_place(&row_lines, row)).map_err(PredictError::Output)?;
    Ok(())
}
