//! `heddle predict`: scores files with a model, one score a line, in input order.

use std::collections::BTreeMap;
use std::io::{self, Write};

use heddle_input::{Labels, ReadError};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::LossFunction;
use heddle_storage::StorageUrl;
use heddle_trainer::predict::{
    ModelError, PredictError, ScoreForm, Scored, ScoringModel, predict_files, predict_stream,
};
use serde::Serialize;

use super::checkpoint_source::{location, reached, unusable};
use super::run::preflight::spelling::advice;
use crate::am_client;
use crate::failure::{CommandFailure, CommandResult, OrFail};
use crate::output;
use crate::waiting;

mod sink;

use sink::{Sink, unwritten};

/// Score data with a model.
///
/// One line per record, in the order of the input: the probability of label 1, from 0 to 1 (logistic-regression), the
/// value (linear-regression), the margin (svm, label 1 if at least 0), the class (softmax-regression) or the cluster and
/// the distance from its centre (kmeans). (--json: an object {"score": …} per line, of classes {"class": …} or
/// {"probabilities": […]}, of clusters {"cluster": …, "distance": …}.) Blank lines and comments are not records.
///
/// Data is in the format that the model was trained on, plain or packed. The label may be missing: a libsvm record may
/// begin with its first feature, and ? stands for a label in any format. Labels with weights (label:weight)
/// look like features: --labelled reads them. If all records have a label that the algorithm accepts, the figures of an
/// evaluation are printed at the end.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The model: its folder, or one of its files
    #[arg(value_name = "MODEL")]
    model: String,
    /// Files or globs to score, in the format the model was trained on; - is standard input
    #[arg(value_name = "DATA", required = true)]
    data: Vec<String>,
    /// Write the scores to this file, whole or not at all, instead of to standard output
    #[arg(long, value_name = "FILE")]
    output: Option<String>,
    /// Replace the file of --output
    #[arg(long, requires = "output")]
    overwrite: bool,
    /// Read every word as a feature (dummy data without labels)
    #[arg(long)]
    no_labels: bool,
    /// Every record begins with a label, which may have a weight (label:weight)
    #[arg(long, conflicts_with = "no_labels")]
    labelled: bool,
    /// Write the probabilities of all classes instead of the class (softmax-regression)
    #[arg(long)]
    probabilities: bool,
}

pub fn predict(args: &Args, json: bool) -> CommandResult {
    let place = location(&args.model)?;
    let target = args.output.as_deref().map(location).transpose()?;
    am_client::runtime()?.block_on(async {
        reached(&place).await?;
        match &target {
            Some(target) => reached(target).await.map(|_| ()),
            None => Ok(()),
        }
    })?;
    let opened = waiting::while_blocked(&place, || ScoringModel::open(&place));
    let refused = |fact: &str, error: &ModelError| match error {
        ModelError::Storage(error) if !error.is_not_found() => unusable(fact, error),
        error => CommandFailure::caused(ExitCode::Input, fact, error),
    };
    let fact = format!("cannot score with {}: it is not a model", args.model);
    let model = opened.or_fail_with(refused, fact)?;
    if args.probabilities && model.loss() != LossFunction::Softmax {
        let fact = format!("cannot write probabilities of classes: {} has no classes", args.model);
        return Err(CommandFailure::new(ExitCode::Input, fact).next("leave out --probabilities"));
    }
    let scored = match &target {
        None => {
            let mut out = io::BufWriter::with_capacity(1 << 16, io::stdout().lock());
            score(args, json, &model, &mut out)?
        }
        Some(target) => {
            let mut sink = Sink::create(target, args.overwrite)?;
            let scored = score(args, json, &model, &mut sink)?;
            sink.publish()?;
            scored
        }
    };
    summarize(&scored, json, target.is_some())?;
    Ok(ExitCode::Ok)
}

/// Scores all data into `out`.
fn score(
    args: &Args,
    json: bool,
    model: &ScoringModel,
    out: &mut dyn Write,
) -> Result<Scored, CommandFailure> {
    let labels = match (args.no_labels, args.labelled) {
        (true, _) => Labels::Absent,
        (false, true) => Labels::Required,
        (false, false) => Labels::Optional,
    };
    let (before, between, after) = match (json, model.loss(), args.probabilities) {
        (false, ..) => ("", " ", ""),
        (true, LossFunction::Softmax, false) => ("{\"class\":", "", "}"),
        (true, LossFunction::Softmax, true) => ("{\"probabilities\":[", ",", "]}"),
        (true, LossFunction::Distance, _) => ("{\"cluster\":", ",\"distance\":", "}"),
        (true, ..) => ("{\"score\":", "", "}"),
    };
    let form = ScoreForm { probabilities: args.probabilities, before, between, after };
    let scored = match args.data.as_slice() {
        [only] if only == "-" => predict_stream(model, form, labels, io::stdin(), out),
        files => {
            let inputs: Vec<StorageUrl> =
                files.iter().map(|file| location(file)).collect::<Result<_, _>>()?;
            predict_files(model, form, labels, &inputs, out)
        }
    };
    match scored {
        Ok(scored) => Ok(scored),
        Err(PredictError::Output(error)) => Err(unwritten("cannot write the scores", &error)),
        Err(error) => {
            // What was right stays written.
            let _told_below = out.flush();
            const FACT: &str = "not everything was scored";
            Err(match &error {
                PredictError::Storage(error) | PredictError::Read(ReadError::Storage(error)) => {
                    let failure = unusable(FACT, error);
                    match advice(&error.place).filter(|_| error.is_not_found()) {
                        Some(advice) => failure.next(advice),
                        None if error.is_not_found() && error.place.contains(',') => {
                            failure.next("each file is an argument of its own")
                        }
                        None => failure,
                    }
                }
                error => CommandFailure::caused(ExitCode::Input, FACT, error),
            })
        }
    }
}

/// The end of it as `--json` shows it.
#[derive(Serialize)]
struct PredictSummary<'a> {
    rows: u64,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    warnings: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    no_figures: Option<&'a str>,
    #[serde(flatten)]
    figures: BTreeMap<&'static str, f64>,
}

/// Reports how many records were scored and how well the scores fit their labels: on standard output where that holds no
/// scores, else on standard error.
fn summarize(scored: &Scored, json: bool, in_file: bool) -> Result<(), CommandFailure> {
    let figures = scored.figures.clone().unwrap_or_default();
    let no_figures = scored.no_figures.as_deref();
    let text = if json {
        let by_name = figures.printed().map(|(figure, value)| (figure.key(), value)).collect();
        let summary = PredictSummary {
            rows: scored.rows,
            warnings: &scored.warnings,
            no_figures,
            figures: by_name,
        };
        serde_json::to_string(&summary).or_fail(ExitCode::Internal, "figures are not JSON")?
    } else {
        output::notes(&scored.warnings, false);
        let reason = no_figures.map_or_else(String::new, |what| format!("no figures: {what}"));
        format!("rows {}  {figures}{reason}", scored.rows).trim_end().to_owned()
    };
    match in_file {
        true => output::line(&text),
        false => {
            eprintln!("{text}");
            Ok(())
        }
    }
}
