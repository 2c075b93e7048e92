//! From values as written to a [`JobSpec`], each key once, with its origin remembered.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::super::check::{
    BATCH_MAX, PASSES_MAX, ROWS_MAX, SHARDS_MAX, SLOTS_MAX, SpecError, VCORES_MAX,
};
use super::super::job::{
    Algorithm, AmSpec, BadRecords, CheckpointSpec, Consistency, DataFormat, DataSpec, JobSpec,
    ModelFormat, ModelSpec, NanPolicy, NetworkSpec, OnCorrupt, OutputSpec, PserverSpec, RunSpec,
    TaskSize, TrainerSpec, TrainingSpec,
};
use super::super::location::Location;
use super::super::value::BytesPerSecond;
use super::keys::{self, Fallback, GROUPS, KEYS};
use super::parameters::{optimizer, tables};
use super::problem::{Problem, Problems};
use super::raw::{self, Origin, Raw, RawValue};
use super::scalar::{list_of, text_of};
use super::take::{Take, Taken};
use super::yarn::{resources, submit, yarn};

/// What the reading of a job file depends on besides its text.
#[derive(Clone, Debug)]
pub struct Context {
    /// The file as it is named in messages.
    pub file: String,
    /// Folder of the job file, absolute: what its paths are relative to.
    pub job_dir: PathBuf,
    /// The working directory, absolute: what paths in `--set` and default outputs are relative to.
    pub working_dir: PathBuf,
    /// Overrides, `key=value`, the later winning.
    pub sets: Vec<String>,
    /// Where default output folders lie: `<here>/<name>-<label>/…`; nothing: `out` in the working directory.
    pub outputs: Option<Location>,
    /// What default output folders carry after the job's name: the first 8 digits of the run's uuid.
    pub run_label: String,
}

/// A job file that was understood.
#[derive(Clone, Debug)]
pub struct Job {
    /// The job, checked.
    pub spec: JobSpec,
    /// Every key in the order of the reference.
    pub shown: Vec<Shown>,
    /// Whether `checkpoint.dir` was not given, so that it follows the run.
    pub default_checkpoint_dir: bool,
    /// Whether `output.model` was not given, so that it follows the run.
    pub default_output: bool,
}

/// A key's value for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Dotted.
    pub key: &'static str,
    /// As TOML.
    pub value: String,
    /// Where it comes from.
    pub origin: Origin,
    /// What it comes to, where that is not the value itself: absolute paths, resolved `auto`.
    pub resolved: Option<String>,
}

/// Reads a job.
///
/// # Errors
/// Everything that is wrong with it, each with its place, or the first rule that the values break
/// together.
pub fn read(text: &str, context: &Context) -> Result<Job, Problems> {
    let mut table = raw::parse_file(&context.file, text).map_err(|p| Problems(vec![p]))?;
    let mut problems = Vec::new();
    for set in &context.sets {
        match raw::parse_set(set) {
            Ok((parts, raw)) => raw::overlay(&mut table, &parts, raw),
            Err(problem) => problems.push(problem),
        }
    }
    let given = known_keys(table, &mut problems);
    let mut take = Take::new(context, given, problems);
    let spec = spec(&mut take);
    let Taken { shown, problems, defaulted, origins } = take.finish();
    let (Some(spec), true) = (spec, problems.is_empty()) else {
        return Err(Problems(problems));
    };
    spec.check().map_err(|error| Problems(vec![placed(error, &shown, &origins)]))?;
    Ok(Job {
        spec,
        shown,
        default_checkpoint_dir: defaulted.contains("checkpoint.dir"),
        default_output: defaulted.contains("output.model"),
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
            // A whole section that nobody knows: its first key says where, its name what.
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

/// Gives a broken rule the place of the key it is about.
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

/// Takes every key. Nothing where a problem was noted for a value that has no stand-in.
fn spec(take: &mut Take<'_>) -> Option<JobSpec> {
    for key in KEYS {
        if let Fallback::NotYet(_) = key.fallback {
            take.not_yet(key);
        }
    }
    let name = take.text("name");
    // Default folders carry the name; a missing one is a problem already.
    take.set_name(name.as_deref().unwrap_or("job"));
    let data = data(take);
    let model = model(take);
    let training = training(take);
    let containers = containers(take);
    let checkpoint = checkpoint(take);
    let custom = model.as_ref()?.algorithm == Algorithm::Custom;
    let output = output(take, custom);
    let network = take.optional("network.ports", "");
    let run = run(take);
    let submit = submit(take);
    let yarn = yarn(take);
    let (pservers, trainers, am) = containers?;
    Some(JobSpec {
        name: name?,
        data: data?,
        model: model?,
        training: training?,
        pservers,
        trainers,
        checkpoint: checkpoint?,
        output: output?,
        am,
        network: NetworkSpec { ports: network? },
        run: run?,
        submit: submit?,
        yarn: yarn?,
    })
}

fn data(take: &mut Take<'_>) -> Option<DataSpec> {
    let train = take.locations("data.train");
    let test = take.locations("data.test");
    let format = take.choice(
        "data.format",
        &[("libsvm", DataFormat::Libsvm), ("dummy", DataFormat::Dummy)],
        &["csv", "parquet", "tfrecord", "avro"],
    );
    let index_base = take.index_base(format);
    let passes = take.number("data.passes", 1, PASSES_MAX);
    let task_size = take.with("data.task-size", |raw| match text_of(raw)? {
        "auto" => Ok(TaskSize::Auto),
        size => match size.parse() {
            Ok(size) if size != super::super::value::Bytes(0) => Ok(TaskSize::Bytes(size)),
            _ => Err("expected \"auto\" or a size above 0 such as \"16MiB\"".to_owned()),
        },
    });
    let shuffle = take.boolean("data.shuffle");
    let bad_records = take.with("data.bad-records", |raw| {
        let expected = || {
            Err("expected \"fail\", \"skip:N\" with a whole number N, or \"quarantine\"".to_owned())
        };
        match text_of(raw)? {
            "fail" => Ok(BadRecords::Fail),
            "quarantine" => Ok(BadRecords::Quarantine),
            text => match text.strip_prefix("skip:").map(str::parse) {
                Some(Ok(n)) => Ok(BadRecords::Skip(n)),
                _ => expected(),
            },
        }
    });
    Some(DataSpec {
        train: train?,
        test: test?,
        format: format?,
        index_base: index_base?,
        passes: passes?,
        task_size: task_size?,
        shuffle: shuffle?,
        bad_records: bad_records?,
    })
}

fn model(take: &mut Take<'_>) -> Option<ModelSpec> {
    let algorithm = take.choice(
        "model.algorithm",
        &[("logistic-regression", Algorithm::LogisticRegression), ("custom", Algorithm::Custom)],
        &[
            "linear-regression",
            "softmax",
            "fm",
            "factorization-machine",
            "kmeans",
            "matrix-factorization",
            "svm",
            "lasso",
        ],
    );
    let features = if take.given("model.features") || algorithm != Some(Algorithm::Custom) {
        take.number("model.features", 1, ROWS_MAX - 1)
    } else {
        take.absent("model.features");
        Some(0)
    };
    let l2 = take.real("model.l2");
    let standardise = take.boolean("model.standardise");
    let optimizer = take.with("model.optimizer", |raw| optimizer(raw, false));
    let tables = match optimizer {
        Some(optimizer) if take.given("model.table") => {
            take.with("model.table", |raw| tables(raw, optimizer))
        }
        _ => {
            take.absent("model.table");
            Some(Vec::new())
        }
    };
    Some(ModelSpec {
        algorithm: algorithm?,
        features: features?,
        l2: l2?,
        standardise: standardise?,
        optimizer: optimizer?,
        tables: tables?,
    })
}

fn training(take: &mut Take<'_>) -> Option<TrainingSpec> {
    let consistency = take.choice(
        "training.consistency",
        &[("bsp", Consistency::Bsp), ("asp", Consistency::Asp)],
        &["ssp"],
    );
    let lanes = take.number("training.lanes", 1, SLOTS_MAX);
    let batch = take.number("training.batch", 1, BATCH_MAX);
    // TOML integers of other programs are 64-bit signed; so is the seed, and not negative.
    let seed = take.number("training.seed", 0, i64::MAX as u64);
    let nan =
        take.choice("training.nan", &[("fail", NanPolicy::Fail), ("skip", NanPolicy::Skip)], &[]);
    let early_stop = take.number("training.early-stop", 0, PASSES_MAX);
    Some(TrainingSpec {
        consistency: consistency?,
        lanes: lanes?,
        batch: batch?,
        seed: seed?,
        nan: nan?,
        early_stop: early_stop?,
    })
}

fn containers(take: &mut Take<'_>) -> Option<(PserverSpec, TrainerSpec, AmSpec)> {
    let count = take.number("pservers.count", 1, SLOTS_MAX);
    let memory = take.parse("pservers.memory");
    let vcores = take.number("pservers.vcores", 1, VCORES_MAX);
    let shards = take.number("pservers.shards", 1, SHARDS_MAX);
    let min = take.number("trainers.min", 1, SLOTS_MAX);
    let max = take.number("trainers.max", 1, SLOTS_MAX);
    let trainer_memory = take.parse("trainers.memory");
    let trainer_vcores = take.number("trainers.vcores", 1, VCORES_MAX);
    let resources = take.with("trainers.resources", resources);
    let command = take.command("trainers.command");
    let am_memory = take.parse("am.memory");
    let am_vcores = take.number("am.vcores", 1, VCORES_MAX);
    let pservers = PserverSpec { count: count?, memory: memory?, vcores: vcores?, shards: shards? };
    let trainers = TrainerSpec {
        min: min?,
        max: max?,
        memory: trainer_memory?,
        vcores: trainer_vcores?,
        resources: resources?,
        command: command?,
    };
    let am = AmSpec { memory: am_memory?, vcores: am_vcores? };
    Some((pservers, trainers, am))
}

fn checkpoint(take: &mut Take<'_>) -> Option<CheckpointSpec> {
    let dir = take.output("checkpoint.dir", "checkpoints");
    let every = take.parse("checkpoint.every");
    let keep = take.number("checkpoint.keep", 2, 1_000_000);
    let timeout = take.parse("checkpoint.timeout");
    let on_corrupt = take.choice(
        "checkpoint.on-corrupt",
        &[("previous", OnCorrupt::Previous), ("fail", OnCorrupt::Fail)],
        &[],
    );
    let memory = take.parse("checkpoint.memory");
    let bandwidth: Option<Option<BytesPerSecond>> = take.optional("checkpoint.bandwidth", "");
    Some(CheckpointSpec {
        dir: dir?,
        every: every?,
        keep: keep?,
        timeout: timeout?,
        on_corrupt: on_corrupt?,
        memory: memory?,
        bandwidth: bandwidth?.map(|rate| rate.0),
    })
}

fn output(take: &mut Take<'_>, custom: bool) -> Option<OutputSpec> {
    let model: Option<Location> = take.output("output.model", "model");
    let asked = take.given("output.formats");
    let mut formats = take.with("output.formats", |raw| {
        list_of(raw)?
            .iter()
            .map(|item| match text_of(item)? {
                "safetensors" => Ok(ModelFormat::Safetensors),
                "text" => Ok(ModelFormat::Text),
                "npy" => Err("\"npy\" is not available yet".to_owned()),
                _ => Err("expected a list of \"safetensors\" and \"text\"".to_owned()),
            })
            .collect::<Result<Vec<_>, _>>()
    });
    if custom && !asked {
        // A custom model need not be linear, so that the default leaves text out.
        formats = Some(vec![ModelFormat::Safetensors]);
        take.resolved("output.formats", "[\"safetensors\"]");
    }
    let permissions = take.optional("output.permissions", "auto");
    Some(OutputSpec { model: model?, formats: formats?, permissions: permissions? })
}

fn run(take: &mut Take<'_>) -> Option<RunSpec> {
    let work_dir = take.local_path("run.work-dir");
    let orphan_timeout = take.optional("run.orphan-timeout", "auto");
    Some(RunSpec { work_dir: work_dir?, orphan_timeout: orphan_timeout? })
}
