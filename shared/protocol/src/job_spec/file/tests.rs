//! What a person meets: values, origins, messages.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use proptest::prelude::*;

use heddle_optimizer::{Initialiser, Optimizer, Schedule, ScheduleKind};

use super::super::algorithm::AlgorithmKind;
use super::super::identity::decided_keys;
use super::super::options::{BadRecords, Consistency, ModelFormat};
use super::super::table::TableKind;
use super::super::value::{Bytes, Every};
use super::*;

const SMALL: &str = "name = \"ctr\"\n[data]\ntrain = \"train.libsvm\"\n[model]\nfeatures = 10\n";

fn context(sets: &[&str]) -> ReadContext {
    ReadContext {
        file: "job.toml".to_owned(),
        job_dir: "/jobs/ctr".into(),
        working_dir: "/home/u".into(),
        sets: sets.iter().map(|set| KeyOverride::set(set)).collect(),
        run_label: "1a2b3c4d".to_owned(),
        ..ReadContext::default()
    }
}

fn job(text: &str, sets: &[&str]) -> Job {
    read(text, &context(sets)).unwrap()
}

fn refused(text: &str, sets: &[&str]) -> String {
    read(text, &context(sets)).unwrap_err().to_string()
}

/// The message for `SMALL` with one more section.
fn refused_with(more: &str) -> String {
    refused(&format!("{SMALL}{more}\n"), &[])
}

fn shown(job: &Job, key: &str) -> Shown {
    job.shown.iter().find(|shown| shown.key == key).unwrap().clone()
}

#[test]
fn keys_that_the_data_decides_are_undecided_until_then() {
    let undecided = job(SMALL, &[]).spec.undecided;
    let decided = decided_keys();
    assert_eq!(undecided, decided);
    let sets = ["model.l2=0.5", "model.standardise=false", "model.scale-labels=false"];
    let spec = job(SMALL, &sets).spec;
    assert_eq!((spec.undecided.len(), spec.model.l2), (decided.len() - sets.len(), 0.5));
    for (set, expected) in [
        ("model.l2=-1", "expected a number of at least 0, or \"auto\""),
        ("model.standardise=1", "expected true or false, not a whole number, or \"auto\""),
        ("model.scale-labels=true", "expected false, or \"auto\""),
        ("data.passes=0", "expected a whole number from 1 to 1000000, or \"auto\""),
        ("training.keep=\"first\"", "expected \"last\" or \"best\", or \"auto\""),
    ] {
        let problems = refused(SMALL, &[set]);
        assert!(problems.contains(expected), "{set}: {problems}");
    }
}

#[test]
fn a_small_file_is_a_job_of_defaults() {
    let job = job(SMALL, &[]);
    assert_eq!(job.spec.name, "ctr");
    assert_eq!(job.spec.data.train[0].to_string(), "/jobs/ctr/train.libsvm");
    assert_eq!(job.spec.data.index_base, 1);
    assert_eq!(job.spec.pservers.memory, Bytes::mib(512));
    assert_eq!(job.spec.model.algorithm, AlgorithmKind::LogisticRegression);
    assert_eq!(job.spec.model.optimizer, Optimizer::ftrl(0.2, 1.0, 0.0, 0.0));
    assert!(job.default_checkpoint_dir && job.default_output);
}

#[test]
fn every_key_is_taken_and_shown_once() {
    let job = job(SMALL, &[]);
    let shown: Vec<_> = job.shown.iter().map(|shown| shown.key).collect();
    let keys: Vec<_> = keys().map(|key| key.path).collect();
    assert_eq!(shown, keys);
}

#[test]
fn the_template_reads_back_as_a_job_of_defaults() {
    let text = template();
    let templated = job(&text, &[]);
    let small = job(SMALL, &["model.features=1000000", "data.train=/jobs/ctr/data/train-*.libsvm"]);
    assert_eq!(templated.spec, small.spec);
    assert!(text.lines().all(|line| line.chars().count() <= 140), "{text}");
    // Commented keys are defaults: uncommented they are the same job. [[model.table]] has no default, and
    // trainers.command is needed with it; columns are for tables, staleness is for ssp, two others for k-means.
    let others = [
        "# table = ",
        "# columns = ",
        "# cross = ",
        "# staleness = ",
        "# init-rounds = ",
        "# tolerance = ",
    ];
    let uncommented: String = text
        .lines()
        .filter(|line| !others.iter().any(|key| line.starts_with(key)))
        .filter(|line| {
            !line.starts_with("##") && !line.starts_with("# A ") && !line.starts_with("# What")
        })
        .map(|line| format!("{}\n", line.strip_prefix("# ").unwrap_or(line)))
        .collect();
    assert_eq!(job(&uncommented, &[]).spec, small.spec);
}

#[test]
fn origins_are_default_line_or_override() {
    let job = job(SMALL, &["trainers.max=8"]);
    assert_eq!(shown(&job, "trainers.min").origin.to_string(), "default");
    assert_eq!(shown(&job, "data.train").origin.to_string(), "job.toml:3");
    assert_eq!(shown(&job, "trainers.max").origin.to_string(), "--set trainers.max=8");
    assert_eq!(job.spec.trainers.max, 8);
}

#[test]
fn paths_of_the_file_and_of_overrides_have_different_bases() {
    let job = job(SMALL, &["data.test=t.libsvm", "checkpoint.dir=file:///ck"]);
    assert_eq!(shown(&job, "data.train").resolved.unwrap(), "/jobs/ctr/train.libsvm");
    assert_eq!(shown(&job, "data.test").resolved.unwrap(), "/home/u/t.libsvm");
    assert_eq!(job.spec.checkpoint.dir.to_string(), "/ck");
    assert_eq!(job.spec.output.model.to_string(), "/home/u/out/ctr-1a2b3c4d/model");
    assert!(!job.default_checkpoint_dir);
}

#[test]
fn overrides_take_bare_words_and_reach_into_tables() {
    let sets = [
        "checkpoint.every=2 passes",
        "training.consistency=asp",
        "model.optimizer.alpha=0.5",
        "data.bad-records=skip:10",
        "name=7",
        "output.formats=text",
        "trainers.max=3",
        "trainers.max=4",
    ];
    let spec = job(SMALL, &sets).spec;
    assert_eq!(spec.checkpoint.every, Every::Passes(2));
    assert_eq!(spec.training.consistency, Consistency::Asp);
    assert_eq!(spec.data.bad_records, BadRecords::Skip(10));
    assert_eq!(spec.name, "7");
    assert_eq!(spec.output.formats, [ModelFormat::Text]);
    assert_eq!(spec.trainers.max, 4);
}

#[test]
fn an_override_of_one_field_keeps_the_others() {
    let text = format!("{SMALL}optimizer = {{ kind = \"ftrl\", alpha = 0.3, l1 = 2.0 }}\n");
    let spec = job(&text, &["model.optimizer.alpha=0.5"]).spec;
    assert_eq!(spec.model.optimizer, Optimizer::ftrl(0.5, 1.0, 2.0, 0.0));
    // Without the table in the file the default's kind holds too.
    let spec = job(SMALL, &["model.optimizer.alpha=0.5"]).spec;
    assert_eq!(spec.model.optimizer, Optimizer::ftrl(0.5, 1.0, 0.0, 0.0));
}

#[test]
fn custom_jobs_name_their_tables_and_program() {
    let text = "name = \"count\"\n[data]\ntrain = \"d\"\n[model]\nalgorithm = \"custom\"\n\
        [[model.table]]\nname = \"counts\"\nrows = 100\noptimizer = { kind = \"sgd\", rate = 1 }\n\
        [[model.table]]\nname = \"sums\"\nrows = 5\ncols = 2\noptimizer = { kind = \"add\" }\n\
        [trainers]\ncommand = [\"./count\", \"-x\"]\n";
    let spec = job(text, &[]).spec;
    let tables: Vec<_> = spec.tables().into_iter().map(|t| (t.name, t.rows, t.cols)).collect();
    assert_eq!(tables, [("counts".to_owned(), 100, 1), ("sums".to_owned(), 5, 2)]);
    assert_eq!(spec.trainers.command, ["/jobs/ctr/count", "-x"]);
    assert_eq!(spec.output.formats, [ModelFormat::Safetensors]);
}

#[test]
fn tables_and_rates_take_initial_values_and_schedules() {
    let text = "name = \"count\"\n[data]\ntrain = \"d\"\n[model]\nalgorithm = \"custom\"\n\
        schedule = { kind = \"cosine\", steps = 100, warmup = 10 }\n\
        optimizer = { kind = \"adam\" }\n\
        [[model.table]]\nname = \"a\"\nrows = 100\ninit = { normal = [0, 0.05] }\n\
        [[model.table]]\nname = \"b\"\nrows = 100\ninit = { uniform = [-1, 1] }\n\
        [[model.table]]\nname = \"c\"\nrows = 100\ninit = { constant = 2 }\n\
        [[model.table]]\nname = \"d\"\nrows = 100\ninit = \"zero\"\n\
        [trainers]\ncommand = [\"./count\"]\n";
    let spec = job(text, &[]).spec;
    let init: Vec<_> = spec.tables().iter().map(|table| table.init).collect();
    assert_eq!(
        init,
        [
            Initialiser::Normal(0.0, 0.05),
            Initialiser::Uniform(-1.0, 1.0),
            Initialiser::Constant(2.0),
            Initialiser::Zero,
        ]
    );
    let cosine = Schedule { kind: ScheduleKind::Cosine, steps: 100, factor: 0.0, warmup: 10 };
    assert!(spec.tables().iter().all(|table| table.schedule == cosine));
    let json = serde_json::from_slice::<crate::job_spec::JobSpec>(&spec.to_json());
    assert_eq!(json.expect("its own form"), spec);
}

#[test]
fn staleness_of_ssp_is_2_unless_given() {
    for (keys, staleness) in [
        ("", None),
        ("[training]\nconsistency = \"ssp\"", Some(2)),
        ("[training]\nconsistency = \"ssp\"\nstaleness = 0", Some(0)),
    ] {
        let job = job(&format!("{SMALL}{keys}\n"), &[]);
        assert_eq!(job.spec.training.staleness, staleness, "{keys}");
        assert_eq!(crate::job_spec::from_json(&job.spec.to_json()), Ok(job.spec));
    }
}

#[test]
fn messages_name_file_line_key_value_and_expectation() {
    for (more, message) in [
        (
            "[trainers]\nmax = \"many\"",
            "job.toml:7: trainers.max = \"many\": expected a whole number from 1 to 4096",
        ),
        ("[trainers]\nmx = 3", "job.toml:7: trainers.mx: unknown key; did you mean trainers.max?"),
        ("[trainer]\nmax = 3", "job.toml:6: trainer: unknown key; did you mean [trainers]?"),
        ("[training]\nthrottle = 1", "job.toml:7: training.throttle = 1: is not available yet"),
        (
            "[pservers]\nspares = 3",
            "job.toml:7: pservers.spares = 3: is 3, must be at most pservers.count = 2",
        ),
        (
            "[trainers]\nextra = 3",
            "job.toml:7: trainers.extra = 3: is 3, must be at most trainers.max = 2",
        ),
        (
            "[training]\nstaleness = 1",
            "job.toml:7: training.staleness = 1: is for training.consistency = \"ssp\" alone",
        ),
        (
            "[training]\nconsistency = \"asp\"\nstaleness = 0",
            "job.toml:8: training.staleness = 0: is for training.consistency = \"ssp\" alone",
        ),
        (
            "[training]\nconsistency = \"ssp\"\nstaleness = -1",
            "job.toml:8: training.staleness = -1: expected a whole number from 0 to 1000000",
        ),
        (
            "[training]\nconsistency = \"bps\"",
            "job.toml:7: training.consistency = \"bps\": expected \"bsp\" or \"ssp\" or \"asp\"",
        ),
        (
            "optimizer = { kind = \"newton\" }",
            "job.toml:6: model.optimizer = { kind = \"newton\" }: kind: expected \"ftrl\", \"sgd\", \"momentum\", \"adagrad\", \"rmsprop\", \"adadelta\" or \"adam\"",
        ),
        (
            "optimizer = { kind = \"adagrad\", alpha = 1 }",
            "job.toml:6: model.optimizer = { alpha = 1, kind = \"adagrad\" }: unknown field \"alpha\" (it is of ftrl); kind \"adagrad\" has rate, epsilon, gradient",
        ),
        (
            "optimizer = { kind = \"momentum\", rate = 1, momentum = 1 }",
            "job.toml:6: model.optimizer = { kind = \"momentum\", momentum = 1, rate = 1 }: momentum must be at least 0 and below 1 (got 1)",
        ),
        (
            "optimizer = { kind = \"ftrl\", gradient = \"median\" }",
            "job.toml:6: model.optimizer = { gradient = \"median\", kind = \"ftrl\" }: gradient: expected \"sum\" or \"mean\"",
        ),
        (
            "optimizer = { kind = \"sgd\", rate = inf }",
            "job.toml:6: model.optimizer = { kind = \"sgd\", rate = inf }: rate: expected a finite number (got inf)",
        ),
        ("l2 = nan", "job.toml:6: model.l2 = nan: expected a finite number (got nan), or \"auto\""),
        (
            "[trainers]\nmemory = 512",
            "job.toml:7: trainers.memory = 512: is 512 bytes; give a unit, such as 512MiB",
        ),
        (
            "[am]\nmemory = \"512\"",
            "job.toml:7: am.memory = \"512\": is 512 bytes; give a unit, such as 512MiB",
        ),
        (
            "[pservers]\nmemory = \"16MiB\"",
            "job.toml:7: pservers.memory = \"16MiB\": is 16MiB, must be at least 32MiB",
        ),
        (
            "[checkpoint]\nbandwidth = 100",
            "job.toml:7: checkpoint.bandwidth = 100: is 100 bytes; give a unit, such as 512MiB",
        ),
        (
            "schedule = { kind = \"inverse\", steps = 10 }",
            "job.toml:6: model.schedule = { kind = \"inverse\", steps = 10 }: needs an optimizer with a rate; \"ftrl\" has none (leave model.schedule out)",
        ),
        (
            "schedule = { kind = \"cosine\" }",
            "job.toml:6: model.schedule = { kind = \"cosine\" }: steps must be at least 1 (got 0)",
        ),
        (
            "schedule = { kind = \"step\" }",
            "job.toml:6: model.schedule = { kind = \"step\" }: kind: expected one of \"constant\", \"inverse\", \"exponential\", \"cosine\"",
        ),
        (
            "[trainers]\nresources = { \"yarn.io/gpu\" = -1 }",
            "job.toml:7: trainers.resources = { \"yarn.io/gpu\" = -1 }: \"yarn.io/gpu\": expected a whole number of at least 0",
        ),
        (
            "[yarn]\nfiles = [\"a#b/c\"]",
            "job.toml:7: yarn.files = [\"a#b/c\"]: \"a#b/c\": expected a path, or path#name where name is one plain file name",
        ),
        (
            "[yarn]\nmemory-retry = { factor = 0.5 }",
            "job.toml:7: yarn.memory-retry = { factor = 0.5 }: factor is 0.5, must be from 1 to 10; times is 1, must be at most 10",
        ),
        (
            "[yarn]\nmemory-retry = { time = 2 }",
            "job.toml:7: yarn.memory-retry = { time = 2 }: unknown field \"time\"; here are factor, times",
        ),
        (
            "[yarn]\nenv = { A = 1.5 }",
            "job.toml:7: yarn.env = { A = 1.5 }: \"A\": expected a text in quotes, not a number",
        ),
        ("[yarn]\nquue = \"ml\"", "job.toml:7: yarn.quue: unknown key; did you mean yarn.queue?"),
        (
            "[checkpoint]\ndir = \"s3://bucket/ck\"",
            "job.toml:7: checkpoint.dir = \"s3://bucket/ck\": expected a path, or a URL that starts with file://, hdfs:// or viewfs://",
        ),
        (
            "[checkpoint]\nevery = \"often\"",
            "job.toml:7: checkpoint.every = \"often\": expected \"auto\", or a duration, a number of passes or of steps above 0, such as \"10min\", \"2 passes\" or \"500 steps\"",
        ),
        (
            "[trainers]\nmin = 3",
            "job.toml:7: trainers.min = 3: is 3, must not be above trainers.max = 2",
        ),
        (
            "[pservers]\ncount = 9",
            "pservers.shards = 8: is 8, must be at least pservers.count × pservers.vcores = 9, a shard for each data thread",
        ),
    ] {
        assert_eq!(refused_with(more), message);
    }
}

#[test]
fn staging_is_a_directory_on_hdfs_for_each_user() {
    let with = |value: &str| format!("{SMALL}[submit]\nstaging = \"{value}\"\n");
    let spec = job(&with("hdfs://ns1/jobs/{user}"), &[]).spec;
    assert_eq!(spec.submit.staging.as_deref(), Some("hdfs://ns1/jobs/{user}"));
    for value in
        ["/tmp/{user}", "s3a://box/{user}", "hdfs://ns1", "hdfs://ns1/{home}", "hdfs://a/*"]
    {
        let refused = refused(&with(value), &[]);
        assert!(refused.contains("submit.staging"), "{refused}");
        assert!(refused.contains("hdfs://ns1/user/{user}"), "{refused}");
    }
}

#[test]
fn requests_to_the_cluster_are_typed() {
    let text = format!(
        "{SMALL}[trainers]\nresources = {{ \"yarn.io/gpu\" = 2, fpga = 0 }}\n[submit]\nupload-limit = \"1GiB\"\nbinary = \"bin/heddle\"\n[yarn]\nqueue = \"ml\"\ntags = [\"A\"]\nfiles = [\"f.txt#g\"]\nenv = {{ OMP = 1 }}\n"
    );
    let sets = [
        "yarn.memory-retry.times=0",
        "yarn.archives=x.zip#d",
        "yarn.env.N=007",
        "yarn.node-label=gpu",
        "yarn.allocation-timeout=30s",
    ];
    let spec = job(&text, &sets).spec;
    assert_eq!(spec.trainers.resources, [("yarn.io/gpu".to_owned(), 2)].into());
    assert_eq!(spec.submit.binary, Some("/jobs/ctr/bin/heddle".into()));
    assert_eq!(spec.submit.upload_limit, Bytes(1 << 30));
    assert_eq!((spec.submit.staging, spec.submit.rm_wait), (None, None));
    let yarn = spec.yarn;
    assert_eq!((yarn.queue.as_str(), yarn.priority), ("ml", 0));
    assert_eq!(yarn.tags, ["a"]);
    assert_eq!(yarn.files[0].to_string(), "/jobs/ctr/f.txt#g");
    assert_eq!(yarn.archives[0].to_string(), "/home/u/x.zip#d");
    let env: Vec<_> = yarn.env.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(env, ["N=007", "OMP=1"]);
    assert_eq!(yarn.node_label.as_deref(), Some("gpu"));
    assert_eq!((yarn.memory_retry.factor, yarn.memory_retry.times), (1.5, 0));
    assert_eq!(yarn.allocation_timeout.to_string(), "30s");
}

#[test]
fn default_outputs_are_in_the_folder_of_the_caller() {
    let mut context = context(&[]);
    context.outputs = Some("hdfs:///user/u/heddle".parse().unwrap());
    let job = read(SMALL, &context).unwrap();
    assert_eq!(job.spec.output.model.to_string(), "hdfs:///user/u/heddle/ctr-1a2b3c4d/model");
    assert!(job.default_output);
}

#[test]
fn all_problems_are_reported_at_once() {
    let text = "[data]\npasses = 0\n[training]\nlanes = -1\n";
    let message = refused(text, &["data.shuffle=7"]);
    assert_eq!(message.lines().count(), 6, "{message}");
    assert!(message.contains("job.toml: name: is missing; give it, for example name = \"ctr\""));
    assert!(message.contains("--set data.shuffle=7: data.shuffle = 7: expected true or false"));
}

#[test]
fn sparse_tables_have_no_number_of_rows() {
    let of =
        |rows: &str| format!("{SMALL}[[model.table]]\nname = \"e\"\n{rows}kind = \"sparse\"\n");
    let error = refused(&of("rows = 1\n"), &[]);
    assert!(error.ends_with("rows: a sparse table has the rows that are pushed"), "{error}");
    let custom = ["model.algorithm=custom", "trainers.command=[\"/bin/true\"]"];
    let table = &job(&of(""), &custom).spec.model.tables[0];
    assert_eq!((table.kind, table.rows), (TableKind::Sparse, 0));
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), set in ".{0,40}") {
        let _ = read(&String::from_utf8_lossy(&bytes), &context(&[&set]));
    }

    /// Text made of what job files are made of gets further than random bytes do.
    #[test]
    fn no_mixture_of_job_file_words_panics(words in proptest::collection::vec(
        prop_oneof![
            Just("[data]\n"), Just("[[model.table]]\n"), Just("[model]\n"), Just("name"), Just("="),
            Just("\n"), Just("optimizer"), Just("{"), Just("}"), Just("kind"), Just("\"ftrl\""),
            Just("["), Just("]"), Just(","), Just("."), Just("passes"),
            Just("-9223372036854775809"),
            Just("1e400"), Just("nan"), Just("1979-05-27"), Just("\"\\u0000\""),
            Just("0xffffffffffffffffffff"),
            Just("train"), Just("\"hdfs:///x\""), Just("features"), Just("18446744073709551616"),
        ], 0..60)
    ) {
        let _ = read(&words.concat(), &context(&[]));
        let _ = read(SMALL, &context(&[&words.concat()]));
    }
}
