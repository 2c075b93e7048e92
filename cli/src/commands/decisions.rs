//! Automatic values of a job, decided by its data, and how commands show them.

use heddle_am::input::{self, InputError, PlannedInput};
use heddle_am::warm_start::InitialCheckpoint;
use heddle_input::{InitialJob, Sample, ValueDecision, decide, sample};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::file::Job;
use heddle_protocol::job_spec::{
    AlgorithmKind, Consistency, JobSpec, LabelScaling, LossFunction, check, identity,
};
use heddle_storage::StorageUrl;
use heddle_trainer::export::label_scale_of;

use super::run::preflight::{self, unreadable};
use super::submit::resume;
use crate::failure::{CommandFailure, OrFail};
use crate::output;

/// Takes over the automatic values of the run that a job continues, in `dir` (a URL), if there is one.
pub async fn keep(job: &mut Job, dir: &str) {
    // What is wrong with the folder the ApplicationMaster reports.
    let base = resume::base(dir).await.ok().flatten();
    if let Some(before) = base.and_then(|base| base.before) {
        identity::keep_defaults(&mut job.spec, &before, &job.optimizer_fields);
    }
}

/// Decides every automatic value of a job that is undecided. `init`: the checkpoint that it begins with. `notes` gets what is
/// odd about the data.
///
/// # Errors
/// The data or that checkpoint cannot be read, or the values break a rule together.
pub async fn resolve(
    spec: &mut JobSpec,
    plan: &PlannedInput,
    init: Option<&InitialCheckpoint>,
    notes: &mut Vec<String>,
) -> Result<Vec<ValueDecision>, CommandFailure> {
    if spec.undecided.is_empty() && !spec.data.format.has_columns() {
        return Ok(Vec::new());
    }
    let head = input::head(spec, plan).await.map_err(|error| unreadable(&error))?;
    preflight::columns(spec, &head)?;
    if spec.undecided.is_empty() {
        return Ok(Vec::new());
    }
    let failed = |source| unreadable(&InputError::File { key: "data.train", source });
    let sample = sample(spec, &head).await.map_err(failed)?;
    notes.extend(one_label(spec, &sample)?);
    let init = match init {
        Some(init) => Some(initial_job(init).await?),
        None => None,
    };
    let decisions = decide(spec, &sample, init.as_ref());
    check(spec).or_fail(ExitCode::Input, "the job with its automatic values")?;
    Ok(decisions)
}

/// What it means that all records of the sample have the same label: an error if they are all records, and the job separates
/// classes.
fn one_label(spec: &JobSpec, sample: &Sample) -> Result<Option<String>, CommandFailure> {
    let (records, label) = (sample.records, sample.label_mean);
    let has_classes = match spec.model.algorithm {
        AlgorithmKind::Kmeans | AlgorithmKind::Custom => return Ok(None),
        _ => spec.model.objective() != LossFunction::Squared,
    };
    if records < 2 || sample.label_deviation > 0.0 {
        return Ok(None);
    }
    if sample.all_records <= records && has_classes {
        return Err(CommandFailure::new(
            ExitCode::Input,
            format!(
                "data.train must have records of two classes at least (got label {label} in all {records})"
            ),
        ));
    }
    Ok(Some(format!(
        "warning: the first {records} records of data.train have the same label, {label}; if the data is sorted by label, \
         shuffle it"
    )))
}

async fn initial_job(init: &InitialCheckpoint) -> Result<InitialJob, CommandFailure> {
    let fact = format!("model.init = {}", init.location);
    let label_scale = match init.job.model.scale_labels {
        LabelScaling::Off => None,
        LabelScaling::By(scale) => Some(scale),
        LabelScaling::Measured => {
            let location =
                StorageUrl::parse(&init.location.url()).or_fail(ExitCode::Input, &fact)?;
            Some(label_scale_of(&location).await.or_fail_with(
                |fact, error| CommandFailure::caused(error.class().exit_code(), fact, error),
                &fact,
            )?)
        }
    };
    Ok(InitialJob { standardise: init.job.model.standardise, label_scale })
}

/// Prints the decisions of a job that begins.
pub fn print(decisions: &[ValueDecision]) {
    if !decisions.is_empty() {
        eprintln!("{}", in_words(decisions));
    }
}

/// A line for each decision.
pub fn in_words(decisions: &[ValueDecision]) -> String {
    let row = |decision: &ValueDecision| {
        vec![decision.key.to_owned(), decision.value.clone(), format!("({})", decision.reason)]
    };
    output::columns(&decisions.iter().map(row).collect::<Vec<_>>())
}

/// The number of rows of one update, as text.
#[must_use]
pub fn effective_batch(spec: &JobSpec) -> String {
    let training = &spec.training;
    let Some(rows) = spec.effective_batch() else {
        return "effective batch: by the number of records, when the job starts".to_owned();
    };
    match training.consistency {
        Consistency::Bsp => format!(
            "effective batch: {rows} rows an update ({} lanes × {})",
            training.lanes, training.batch
        ),
        Consistency::Ssp | Consistency::Asp => format!("effective batch: {rows} rows an update"),
    }
}
