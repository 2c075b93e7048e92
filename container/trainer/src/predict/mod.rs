//! Scores files with a model: one line per record, in the order of the input. A line is the probability of label 1
//! (log-loss), the value (squared loss), the margin (hinge losses), the cluster and the distance from its centre (k-means), or
//! the class, with [`ScoreForm::probabilities`] the
//! probabilities of all classes.
//!
//! Records may lack the label. If all of them have one that the model's loss accepts, the scores are compared with the
//! labels. A malformed record ends the scoring, with its place; scores written before are valid.

mod model;

use std::fmt::Debug;
use std::io::{self, Read, Write};

use heddle_input::{
    BadPolicy, Batch, Labels, ReadError, TaskLength, TaskReader, input_files, plan_tasks,
};
use heddle_metrics::PhaseMetrics;
use heddle_protocol::figure::EvaluationFigures;
use heddle_protocol::ids::TaskId;
use heddle_protocol::job_spec::{LabelRange, LossFunction};
use heddle_protocol::metrics::TaskMetrics;
use heddle_storage::{StorageError, StorageUrl, folders_left_out};
use tokio::runtime::Runtime;

pub use model::{ModelError, ScoringModel};

use crate::algorithm::count_scores;
use crate::algorithm::loss::{sigmoid, softmax};

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
    /// The system provides no event queue.
    #[error("cannot start reading")]
    Runtime(#[source] io::Error),
    /// Scores cannot be written.
    #[error("cannot write the scores")]
    Output(#[source] io::Error),
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

/// How the line of a record is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScoreForm {
    /// Of a model with several classes the probabilities of all, in their order, instead of the class.
    pub probabilities: bool,
    /// Before the first value.
    pub before: &'static str,
    /// Between two values.
    pub between: &'static str,
    /// After the last value.
    pub after: &'static str,
}

impl ScoreForm {
    /// The values with blanks between.
    pub const PLAIN: Self = Self { probabilities: false, before: "", between: " ", after: "" };
}

/// Scores records and compares them with their labels.
struct Scorer<'a> {
    model: &'a ScoringModel,
    form: ScoreForm,
    out: &'a mut dyn Write,
    scores: Vec<f64>,
    /// The same, which become other values when they are counted.
    counted: Vec<f64>,
    rows: u64,
    metrics: TaskMetrics,
    /// Labels of two classes so far that are 0, and −1.
    zero: bool,
    minus_one: bool,
    /// Place and label of the first record whose label is missing or is one that the loss does not accept.
    unfit: Option<String>,
    /// A record has a label.
    is_labelled: bool,
    /// The user of a pipe expects a score after each line, not after a thousand.
    is_live: bool,
}

impl<'a> Scorer<'a> {
    fn new(model: &'a ScoringModel, form: ScoreForm, out: &'a mut dyn Write) -> Self {
        Self {
            model,
            form,
            out,
            scores: Vec::new(),
            counted: Vec::new(),
            rows: 0,
            metrics: TaskMetrics::default(),
            zero: false,
            minus_one: false,
            unfit: None,
            is_labelled: false,
            is_live: false,
        }
    }

    /// Scores all records of a reader.
    async fn read(&mut self, mut reader: TaskReader) -> Result<(), PredictError> {
        let mut batch = Batch::default();
        loop {
            reader.next_batch(ROWS, &mut batch).await?;
            if batch.is_empty() {
                return Ok(());
            }
            self.write(&batch, &reader).map_err(PredictError::Output)?;
        }
    }

    /// Scores the last batch of a reader.
    fn write(&mut self, batch: &Batch, reader: &TaskReader) -> io::Result<()> {
        self.rows += batch.rows() as u64;
        for row in 0..batch.rows() {
            self.model.score_record(batch, row, &mut self.scores);
            if let Some(what) = self.compare(batch.labels[row], batch.weight(row)) {
                self.unfit.get_or_insert_with(|| format!("{} has {what}", reader.place_of(row)));
            }
            self.line()?;
        }
        if self.is_live { self.out.flush() } else { Ok(()) }
    }

    /// Compares the record's scores with its label, unless it or an earlier one is unfit; what is, if it is this one.
    fn compare(&mut self, label: f32, weight: Option<f32>) -> Option<String> {
        let loss = self.model.loss();
        // Labels are not used with centres.
        if loss != LossFunction::Distance {
            self.is_labelled |= !label.is_nan();
            let unfit = self.unfit(label);
            if unfit.is_some() || self.unfit.is_some() {
                return unfit;
            }
        }
        let has_classes = loss.labels(self.model.classes()) == LabelRange::TwoClasses;
        let label = if has_classes { label.max(0.0) } else { label };
        self.counted.clone_from(&self.scores);
        count_scores(loss.into(), &mut self.counted, label, weight, &mut self.metrics);
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
            LossFunction::Logistic => self.scores[0] = sigmoid(self.scores[0]),
            LossFunction::Squared | LossFunction::Hinge | LossFunction::SquaredHinge => {}
            LossFunction::Distance => self.scores[1] = self.scores[1].sqrt(),
            LossFunction::Softmax => {
                let (class, _) = softmax(&mut self.scores);
                if !self.form.probabilities {
                    self.scores.truncate(1);
                    self.scores[0] = class as f64;
                }
            }
        }
        let mut gap = self.form.before;
        for score in &self.scores {
            write!(self.out, "{gap}{}", *score as f32)?;
            gap = self.form.between;
        }
        writeln!(self.out, "{}", self.form.after)
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
    form: ScoreForm,
    labels: Labels,
    inputs: &[StorageUrl],
    out: &mut dyn Write,
) -> Result<Scored, PredictError> {
    runtime()?.block_on(async {
        let (mut files, mut folders) = (Vec::new(), Vec::new());
        for input in inputs {
            let (found, left_out) = input_files(input).await?;
            files.extend(found);
            folders.extend(left_out);
        }
        let mut scorer = Scorer::new(model, form, out);
        let format = model.format(labels);
        for file in &files {
            let one = std::slice::from_ref(file);
            for task in plan_tasks(format.format, one, 0, TaskLength::Bytes(u64::MAX)) {
                let reader = TaskReader::open(file, task, format.clone(), BadPolicy::Fail).await?;
                scorer.read(reader).await?;
            }
        }
        let urls = files.iter().map(|file| file.url.as_str());
        let warnings = folders_left_out(&folders, urls).collect();
        Ok(Scored { warnings, ..scorer.end().map_err(PredictError::Output)? })
    })
}

/// Scores a stream such as standard input: text, or text packed with gzip, zstd or bzip2.
///
/// # Errors
/// See [`PredictError`].
pub fn predict_stream(
    model: &ScoringModel,
    form: ScoreForm,
    labels: Labels,
    input: impl Read + Debug + Send + 'static,
    out: &mut dyn Write,
) -> Result<Scored, PredictError> {
    let mut scorer = Scorer::new(model, form, out);
    scorer.is_live = true;
    let (format, policy) = (model.format(labels), BadPolicy::Fail);
    let reader = TaskReader::of_stream("standard input", input, format, policy);
    runtime()?.block_on(scorer.read(reader))?;
    scorer.end().map_err(PredictError::Output)
}

fn runtime() -> Result<Runtime, PredictError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(PredictError::Runtime)
}
