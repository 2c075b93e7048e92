//! Values as written become a [`JobSpec`]: each key once, with its origin.

use std::collections::{BTreeMap, BTreeSet};

use super::super::check::check;
use super::super::job::JobSpec;
use super::super::limits::SpecError;
use super::super::sections::{
    AmSpec, CheckpointSpec, DataSpec, ModelSpec, NAME, NetworkSpec, OutputSpec, PserverSpec,
    RunSpec, TrainerSpec, TrainingSpec,
};
use super::super::yarn::{SubmitSpec, YarnSpec};
use super::context::{ReadContext, Shown};
use super::key::Fallback;
use super::keys::{self, GROUPS};
use super::problem::{Problem, Problems};
use super::raw::{self, Origin, Raw, RawValue};
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
    for set in &context.sets {
        match raw::parse_set(set) {
            Ok((parts, raw)) => raw::overlay(&mut table, &parts, raw),
            Err(problem) => problems.push(problem),
        }
    }
    let given = known_keys(table, &mut problems);
    let optimizer_fields = match given.get("model.optimizer").map(|raw| &raw.value) {
        Some(RawValue::Table(fields)) => fields.keys().cloned().collect(),
        _ => BTreeSet::new(),
    };
    let mut take = Take::new(context, given, problems);
    let spec = spec(&mut take);
    let Taken { mut shown, problems, defaulted, origins } = take.finish();
    let shown: Vec<Shown> = keys::keys().filter_map(|key| shown.remove(key.path)).collect();
    let (Some(spec), true) = (spec, problems.is_empty()) else {
        return Err(Problems(problems));
    };
    check(&spec).map_err(|error| Problems(vec![placed(error, &shown, &origins)]))?;
    Ok(Job {
        spec,
        shown,
        default_checkpoint_dir: defaulted.contains("checkpoint.dir"),
        default_output: defaulted.contains("output.model"),
        optimizer_fields,
    })
}

/// Flattens the sections into dotted keys; unknown ones become problems.
fn known_keys(
    table: BTreeMap<String, Raw>,
    problems: &mut Vec<Problem>,
) -> BTreeMap<&'static str, Raw> {
    let mut given = BTreeMap::new();
    let mut take = |path: &str, raw: Raw, problems: &mut Vec<Problem>| match keys::find(path) {
        Some(key) => {
            given.insert(key.path, raw);
        }
        None => problems.push(unknown(path, &raw)),
    };
    for (name, raw) in table {
        let section = GROUPS.iter().any(|group| group.name == name && !name.is_empty());
        match raw.value {
            RawValue::Table(fields) if section => {
                for (field, raw) in fields {
                    take(&format!("{name}.{field}"), raw, problems);
                }
            }
            _ if section => problems.push(Problem {
                place: raw.origin.to_string(),
                key: name.clone(),
                value: raw.to_string(),
                what: format!("expected the section [{name}]"),
            }),
            // An unknown section: the place of its first key, and its name.
            value => take(&name, Raw { value, origin: raw.origin }, problems),
        }
    }
    given
}

fn unknown(path: &str, raw: &Raw) -> Problem {
    let section = |name: &str| {
        GROUPS
            .iter()
            .map(|group| group.name)
            .filter(|group| strsim::damerau_levenshtein(name, group) <= 2 && !group.is_empty())
            .min_by_key(|group| strsim::damerau_levenshtein(name, group))
    };
    let meant = match raw.value {
        RawValue::Table(_) => section(path).map(|section| format!("[{section}]")),
        _ => keys::nearest(path).map(str::to_owned),
    };
    let what = match meant {
        Some(meant) => format!("unknown key; did you mean {meant}?"),
        None => "unknown key; `heddle config template` lists all".to_owned(),
    };
    // Names come from the file and may be of any length.
    let key: String = path.chars().take(100).collect();
    Problem { place: raw.origin.to_string(), key, value: String::new(), what }
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
    for key in keys::keys() {
        if let Fallback::NotYet(_) = key.fallback {
            take.not_yet(key);
        }
    }
    let name = take.text(&NAME);
    // Default folders carry the name; a missing one is a problem already.
    take.set_name(name.as_deref().unwrap_or("job"));
    let data = DataSpec::read(take);
    let model = ModelSpec::read(take);
    let training = TrainingSpec::read(take);
    let pservers = PserverSpec::read(take);
    let trainers = TrainerSpec::read(take);
    let am = AmSpec::read(take);
    let checkpoint = CheckpointSpec::read(take);
    let output = OutputSpec::read(take, model.as_ref().map(|model| model.algorithm));
    let network = NetworkSpec::read(take);
    let run = RunSpec::read(take);
    let submit = SubmitSpec::read(take);
    let yarn = YarnSpec::read(take);
    Some(JobSpec {
        name: name?,
        data: data?,
        model: model?,
        training: training?,
        pservers: pservers?,
        trainers: trainers?,
        checkpoint: checkpoint?,
        output: output?,
        am: am?,
        network: network?,
        run: run?,
        submit: submit?,
        yarn: yarn?,
    })
}
