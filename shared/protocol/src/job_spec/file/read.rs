//! Values as written become a [`JobSpec`]: each key once, with its origin.

use std::collections::{BTreeMap, BTreeSet};

use super::super::batch_features::BatchFeatures;
use super::super::check::check;
use super::super::job::JobSpec;
use super::super::limits::SpecError;
use super::super::options::KINDS;
use super::super::sections::{
    AmSpec, CheckpointSpec, ControllerSpec, DataSpec, KIND, LivenessSpec, ModelSpec, NAME,
    NetworkSpec, OutputSpec, PserverSpec, RunSpec, TrainerSpec, TrainingSpec,
};
use super::super::yarn::{SubmitSpec, YarnSpec};
use super::context::{ReadContext, Shown};
use super::key::Fallback;
use super::keys;
use super::known_keys::known_keys;
use super::origin::Origin;
use super::problem::{Problem, Problems};
use super::raw::{self, RawValue};
use super::site::SiteValues;
use super::take::{Take, Taken};

/// A job file that was read.
#[derive(Clone, Debug)]
pub struct Job {
    /// The job; [`check`] accepts it.
    pub spec: JobSpec,
    /// Every key in the order of the reference.
    pub shown: Vec<Shown>,
    /// Whether `checkpoint.dir` was not given, so that it follows the run.
    pub default_checkpoint_dir: bool,
    /// Whether `output.model` was not given, so that it follows the run.
    pub default_output: bool,
    /// Fields of `model.optimizer` that are given.
    pub optimizer_fields: BTreeSet<String>,
}

/// Reads a job.
///
/// # Errors
/// All problems of single values, each with its place; else the first rule that the values break together.
pub fn read(text: &str, context: &ReadContext) -> Result<Job, Problems> {
    let mut table = raw::parse_file(&context.file, text).map_err(|p| Problems(vec![p]))?;
    let mut problems = Vec::new();
    let site = match &context.site {
        Some(file) => SiteValues::parse(file, &mut problems),
        None => SiteValues::default(),
    };
    site.fill(&mut table);
    for set in &context.sets {
        match raw::parse_set(set) {
            Ok((parts, raw)) => raw::overlay(&mut table, &parts, raw),
            Err(problem) => problems.push(problem),
        }
    }
    let given = known_keys(table, &mut problems);
    site.check_finals(&given, &mut problems);
    let optimizer_fields = match given.get("model.optimizer").map(|raw| &raw.value) {
        Some(RawValue::Table(fields)) => fields.keys().cloned().collect(),
        _ => BTreeSet::new(),
    };
    let mut take = Take::new(context, given, problems);
    let spec = spec(&mut take);
    let Taken { mut shown, problems, defaulted, undecided, origins } = take.finish();
    let shown: Vec<Shown> = keys().filter_map(|key| shown.remove(key.path)).collect();
    let (Some(mut spec), true) = (spec, problems.is_empty()) else {
        return Err(Problems(problems));
    };
    let of_site = origins.iter().filter(|(_, origin)| matches!(origin, Origin::Site { .. }));
    spec.site_keys = of_site.map(|(key, _)| (*key).to_owned()).collect();
    spec.undecided = undecided;
    spec.batch_features = BatchFeatures::of(spec.working_memory());
    check(&spec).map_err(|error| Problems(vec![placed(error, &shown, &origins)]))?;
    Ok(Job {
        spec,
        shown,
        default_checkpoint_dir: defaulted.contains("checkpoint.dir"),
        default_output: defaulted.contains("output.model"),
        optimizer_fields,
    })
}

/// A broken rule, with the place of its key.
fn placed(error: SpecError, shown: &[Shown], origins: &BTreeMap<&'static str, Origin>) -> Problem {
    let SpecError::Rule { key, rule } = error else {
        return Problem {
            place: String::new(),
            key: String::new(),
            value: String::new(),
            what: error.to_string(),
        };
    };
    let value = shown.iter().find(|shown| shown.key == key);
    Problem {
        place: origins
            .get(key)
            .filter(|origin| **origin != Origin::Default)
            .map_or_else(String::new, Origin::to_string),
        key: key.to_owned(),
        value: value.map_or_else(String::new, |shown| shown.value.clone()),
        what: rule,
    }
}

/// Takes every key. `None` where a problem was noted for a value without a stand-in.
fn spec(take: &mut Take<'_>) -> Option<JobSpec> {
    for key in keys() {
        if let Fallback::NotYet(_) = key.fallback {
            take.not_yet(key);
        }
    }
    let name = take.text(&NAME);
    // Default folders carry the name; a missing one is a problem already.
    take.set_name(name.as_deref().unwrap_or("job"));
    let kind = take.choice(&KIND, KINDS, &["evaluate", "predict"]);
    let data = DataSpec::read(take);
    let model = ModelSpec::read(take);
    let training = TrainingSpec::read(take);
    let pservers = PserverSpec::read(take);
    let trainers = TrainerSpec::read(take);
    let am = AmSpec::read(take);
    let checkpoint = CheckpointSpec::read(take);
    let output = OutputSpec::read(take, model.as_ref().map(|model| model.algorithm));
    let network = NetworkSpec::read(take);
    let liveness = LivenessSpec::read(take);
    let run = RunSpec::read(take);
    let controller = ControllerSpec::read(take);
    let submit = SubmitSpec::read(take);
    let yarn = YarnSpec::read(take);
    Some(JobSpec {
        name: name?,
        kind: kind?,
        data: data?,
        model: model?,
        training: training?,
        pservers: pservers?,
        trainers: trainers?,
        checkpoint: checkpoint?,
        output: output?,
        am: am?,
        network: network?,
        liveness: liveness?,
        run: run?,
        controller: controller?,
        submit: submit?,
        yarn: yarn?,
        site_keys: BTreeSet::new(),
        undecided: BTreeSet::new(),
        schema: None,
        batch_features: BatchFeatures::default(),
        lanes_keep_tasks: true,
    })
}
