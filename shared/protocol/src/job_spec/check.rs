//! The rules for the values of a job, alone and together.
//!
//! [`check`] runs on every spec that comes from outside: a job file, or the JSON of another process. Later code
//! does not check again. The ranges of single numbers are in the tables of the sections.

use std::collections::BTreeSet;

use heddle_optimizer::{Optimizer, Schedule};

use super::algorithm::{AlgorithmKind, LabelRange, LossFunction};
use super::check_cluster::check_cluster;
use super::check_pserver_bounds::check_pserver_bounds;
use super::check_replicas::check_replicas;
use super::columns::{Header, default_null};
use super::file::section::SpecSection;
use super::job::JobSpec;
use super::limits::{
    BANDWIDTH_MIN, COLS_MAX, MEMORY_MIN, MIRRORS_MAX, ROWS_MAX, SLOTS_MAX, SPARSE_ROWS_MIN,
    STALENESS_MAX, SpecError, VALUES_MAX, rule, within,
};
use super::liveness::check_liveness;
use super::objective::check_keys;
use super::options::{
    Consistency, DataCache, KeptPass, LabelScale, LabelScaling, ModelFormat, TaskSize,
};
use super::phase::{TableUse, table_use};
use super::pserver_memory::PserverMemory;
use super::sections::ModelSpec;
use super::table::TableKind;
use super::value::{Bytes, DurationMs, TaskShare};
use super::warm_start;

/// Whether all values are within their bounds and fit together.
///
/// # Errors
/// The first rule that does not hold.
pub fn check(spec: &JobSpec) -> Result<(), SpecError> {
    check_name(&spec.name)?;
    check_ranges(spec)?;
    check_data(spec)?;
    check_model(spec)?;
    check_training(spec)?;
    check_containers(spec)?;
    check_replicas(spec)?;
    check_outputs(spec)?;
    check_liveness(spec)?;
    check_cluster(&spec.yarn, &spec.trainers.resources)?;
    check_memory(spec)
}

/// Reads the JSON that [`JobSpec::to_json`] made, and checks all rules again.
///
/// # Errors
/// The bytes are not a spec, or the spec breaks a rule.
pub fn from_json(bytes: &[u8]) -> Result<JobSpec, SpecError> {
    let spec: JobSpec =
        serde_json::from_slice(bytes).map_err(|error| SpecError::Json(error.to_string()))?;
    check(&spec)?;
    Ok(spec)
}

fn check_ranges(spec: &JobSpec) -> Result<(), SpecError> {
    spec.data.check_ranges()?;
    spec.model.check_ranges()?;
    spec.training.check_ranges()?;
    spec.pservers.check_ranges()?;
    spec.trainers.check_ranges()?;
    spec.checkpoint.check_ranges()?;
    spec.output.check_ranges()?;
    spec.am.check_ranges()?;
    spec.network.check_ranges()?;
    spec.liveness.check_ranges()?;
    spec.run.check_ranges()?;
    spec.submit.check_ranges()?;
    spec.yarn.check_ranges()
}

fn check_data(spec: &JobSpec) -> Result<(), SpecError> {
    let data = &spec.data;
    rule(!data.train.is_empty(), "data.train", || "names no file".to_owned())?;
    rule(data.index_base <= 1, "data.index-base", || {
        format!("is {}, must be 0 or 1", data.index_base)
    })?;
    rule(data.task_size != TaskSize::Bytes(Bytes(0)), "data.task-size", || {
        "must be above 0".to_owned()
    })?;
    let (cache, memory) = (spec.cache_bytes(), spec.trainers.memory);
    rule(data.cache != DataCache::Memory || cache <= memory.0 / 4 * 3, "data.cache-size", || {
        format!(
            "is {}, must be at most three quarters of trainers.memory = {memory} with data.cache = \"memory\"",
            Bytes(cache)
        )
    })?;
    let in_lanes = spec.training.consistency == Consistency::Bsp;
    rule(!in_lanes || data.failed_share == TaskShare(0), "data.failed-share", || {
        format!(
            "is {}, must be 0% with training.consistency = \"bsp\", whose steps have parts of all lanes",
            data.failed_share
        )
    })?;
    check_columns(spec)?;
    check_class_weights(spec)
}

/// Keys of tables are given for tables alone, and those that a table needs are.
fn check_columns(spec: &JobSpec) -> Result<(), SpecError> {
    let data = &spec.data;
    let format = data.format.name();
    if !data.format.has_columns() {
        let given = [
            ("data.label", !data.label.is_empty()),
            ("data.weight", !data.weight.is_empty()),
            ("data.id", !data.id.is_empty()),
            ("data.header", data.header != Header::default()),
            ("data.delimiter", data.delimiter.is_some()),
            ("data.null", data.null != default_null()),
            ("data.columns", !data.columns.is_empty()),
            ("data.cross", !data.cross.is_empty()),
        ];
        return given.into_iter().try_for_each(|(key, is_given)| {
            rule(!is_given, key, || {
                format!("is for tables with columns, and data.format is {format:?}")
            })
        });
    }
    if !data.format.is_text() {
        let given = [
            ("data.header", data.header != Header::default()),
            ("data.delimiter", data.delimiter.is_some()),
        ];
        given.into_iter().try_for_each(|(key, is_given)| {
            rule(!is_given, key, || format!("is for tables of text, and data.format is {format:?}"))
        })?;
    }
    rule(
        !data.label.is_empty() || spec.model.algorithm == AlgorithmKind::Kmeans,
        "data.label",
        || format!("must name the column of the label with data.format = {format:?}"),
    )?;
    rule(!data.columns.is_empty(), "data.columns", || {
        format!(
            "must state what the columns are with data.format = {format:?}, such as [[data.columns]] with names = [\"*\"], as = \"number\"; `heddle data sample DATA` proposes rules"
        )
    })?;
    let has_statistics =
        !matches!(spec.model.algorithm, AlgorithmKind::Kmeans | AlgorithmKind::Custom);
    rule(has_statistics || spec.measured_columns() == 0, "data.columns", || {
        format!(
            "must have scale = \"none\" for each number, and no missing = \"mean\", with model.algorithm = {:?}",
            spec.model.algorithm.name()
        )
    })?;
    rule(!spec.model.standardise, "model.standardise", || {
        "is for data without columns; with data.columns each number has its scale".to_owned()
    })
}

fn check_class_weights(spec: &JobSpec) -> Result<(), SpecError> {
    const KEY: &str = "data.class-weights";
    for (class, weight) in &spec.data.class_weights {
        // Weights are f32 where they are used.
        rule((0.0..=f64::from(f32::MAX)).contains(weight), KEY, || {
            format!("{class}: is {weight}, must be a finite number of at least 0")
        })?;
        let (exists, classes) = match spec.model.labels() {
            LabelRange::TwoClasses => (*class <= 1, "0 and 1, or -1 and +1".to_owned()),
            LabelRange::Classes(classes) => {
                (*class < classes, format!("0 to {}", classes.saturating_sub(1)))
            }
            LabelRange::Number => (false, String::new()),
        };
        rule(exists, KEY, || match classes.as_str() {
            "" => format!(
                "is for algorithms with classes; the labels of {} are numbers",
                spec.model.algorithm.name()
            ),
            _ => format!("{class}: is not a class of the job, whose labels are {classes}"),
        })?;
    }
    Ok(())
}

fn check_model(spec: &JobSpec) -> Result<(), SpecError> {
    let model = &spec.model;
    let custom = model.algorithm == AlgorithmKind::Custom;
    check_keys(model)?;
    rule(model.l2.is_finite() && model.l2 >= 0.0, "model.l2", || {
        format!("is {}, must be at least 0", model.l2)
    })?;
    check_optimizer("model.optimizer", &model.optimizer)?;
    check_schedule(model)?;
    check_label_scaling(model)?;
    if custom {
        rule(!model.tables.is_empty(), "model.table", || {
            "algorithm \"custom\" needs at least one [[model.table]]".to_owned()
        })?;
        rule(!spec.trainers.command.is_empty(), "trainers.command", || {
            "algorithm \"custom\" needs the program that computes it".to_owned()
        })?;
        rule(!model.standardise, "model.standardise", || {
            "is a step of built-in algorithms, not of algorithm \"custom\"".to_owned()
        })?;
    } else {
        let any = model.any_features();
        rule(any || (1..ROWS_MAX).contains(&model.features), "model.features", || {
            format!("is {}, must be \"any\" or from 1 to {}", model.features, ROWS_MAX - 1)
        })?;
        rule(!any || !model.standardise, "model.standardise", || {
            "needs the number of features; model.features is \"any\"".to_owned()
        })?;
        rule(model.tables.is_empty(), "model.table", || {
            "is for algorithm \"custom\"; built-in algorithms name their own tables".to_owned()
        })?;
    }
    check_tables(spec)
}

fn check_label_scaling(model: &ModelSpec) -> Result<(), SpecError> {
    let squared = model.objective() == LossFunction::Squared;
    let holds = match model.scale_labels {
        LabelScaling::Off => true,
        LabelScaling::Measured => squared && model.standardise,
        LabelScaling::By(LabelScale { mean, deviation }) => {
            squared && mean.is_finite() && deviation.is_finite() && deviation > 0.0
        }
    };
    rule(holds, "model.scale-labels", || "does not fit the algorithm; must be false".to_owned())
}

fn check_tables(spec: &JobSpec) -> Result<(), SpecError> {
    const KEY: &str = "model.table";
    let tables = spec.tables();
    rule(tables.len() <= 1024, KEY, || format!("{} tables, at most 1024", tables.len()))?;
    let mut names = BTreeSet::new();
    let mut values = 0u64;
    for (n, table) in tables.iter().enumerate() {
        let name = &table.name;
        rule(usize::from(table.id.0) == n, KEY, || format!("table {name} has a wrong id"))?;
        rule(is_word(name, 64), KEY, || {
            format!("name {name:?} must be 1 to 64 letters, digits, \"-\" and \"_\"")
        })?;
        rule(names.insert(name), KEY, || format!("two tables are named {name:?}"))?;
        let sparse = table.kind == TableKind::Sparse;
        rule(sparse || (1..=ROWS_MAX).contains(&table.rows), KEY, || {
            format!("table {name:?}: rows is {}, must be from 1 to {ROWS_MAX}", table.rows)
        })?;
        rule((1..=COLS_MAX).contains(&table.cols), KEY, || {
            format!("table {name:?}: cols is {}, must be from 1 to {COLS_MAX}", table.cols)
        })?;
        rule(table.l2.is_finite() && table.l2 >= 0.0, KEY, || {
            format!("table {name:?}: l2 is {}, must be at least 0", table.l2)
        })?;
        check_optimizer(KEY, &table.optimizer)?;
        let init =
            |what| SpecError::Rule { key: KEY, rule: format!("table {name:?}: init: {what}") };
        table.init.check().map_err(init)?;
        values = values.saturating_add(table.values());
    }
    let room = PserverMemory::sparse_rows(spec);
    rule(room.is_none_or(|rows| rows >= SPARSE_ROWS_MIN), "pservers.memory", || {
        format!(
            "has room for {} rows of sparse tables in each of {} shards, must have room for {SPARSE_ROWS_MIN}",
            room.unwrap_or(0),
            spec.pservers.shards
        )
    })?;
    rule(values <= VALUES_MAX, KEY, || format!("{values} values in all, at most {VALUES_MAX}"))
}

fn check_training(spec: &JobSpec) -> Result<(), SpecError> {
    let training = &spec.training;
    let ssp = training.consistency == Consistency::Ssp;
    rule(training.staleness.is_some() == ssp, "training.staleness", || match ssp {
        true => "is missing; training.consistency = \"ssp\" needs it".to_owned(),
        false => "is for training.consistency = \"ssp\" alone".to_owned(),
    })?;
    let clustering = spec.model.algorithm == AlgorithmKind::Kmeans;
    rule(!(ssp && clustering), "training.consistency", || {
        "must be \"bsp\" or \"asp\" with algorithm kmeans, whose values rest during a pass"
            .to_owned()
    })?;
    within("training.staleness", training.staleness.unwrap_or(0), 0, STALENESS_MAX)?;
    rule(training.early_stop == 0 || !spec.data.test.is_empty(), "training.early-stop", || {
        "watches the figures of the test data, and data.test is not set".to_owned()
    })?;
    let is_last = training.keep == KeptPass::Last;
    rule(is_last || !spec.data.test.is_empty(), "training.keep", || {
        "\"best\" goes by the figures of the test data, and data.test is not set".to_owned()
    })
}

fn check_containers(spec: &JobSpec) -> Result<(), SpecError> {
    let idle_timeout = spec.trainers.idle_timeout;
    rule(idle_timeout >= DurationMs::secs(1), "trainers.idle-timeout", || {
        format!("is {idle_timeout}, must be at least 1s")
    })?;
    let replacement = spec.pservers.replacement;
    rule(replacement <= DurationMs::secs(3_600), "pservers.replacement", || {
        format!("is {replacement}, must be from 0s to 1h")
    })?;
    let lease = spec.output.save_lease;
    rule(
        (DurationMs::secs(5)..=DurationMs::secs(3_600)).contains(&lease),
        "output.save-lease",
        || format!("is {lease}, must be from 5s to 1h"),
    )?;
    let (pservers, trainers) = (&spec.pservers, &spec.trainers);
    let has_tables = table_use(spec) != TableUse::None;
    rule((pservers.count > 0) == has_tables, "pservers.count", || {
        if has_tables {
            format!("expected a whole number from 1 to {SLOTS_MAX}")
        } else {
            format!("is {}, must be 0: no phase of the job uses tables", pservers.count)
        }
    })?;
    check_pserver_bounds(spec)?;
    let threads = pservers.most() * pservers.vcores;
    rule(pservers.shards >= threads, "pservers.shards", || {
        let most = if pservers.max.is_some() { "max" } else { "count" };
        format!(
            "is {}, must be at least pservers.{most} × pservers.vcores = {threads}, a shard for each data thread",
            pservers.shards
        )
    })?;
    rule(trainers.min <= trainers.max, "trainers.min", || {
        format!("is {}, must not be above trainers.max = {}", trainers.min, trainers.max)
    })?;
    for (further, of, key, bound) in [
        (pservers.spares, pservers.count, "pservers.spares", "pservers.count"),
        (trainers.spares, trainers.max, "trainers.spares", "trainers.max"),
        (trainers.extra, trainers.max, "trainers.extra", "trainers.max"),
    ] {
        rule(further <= of, key, || format!("is {further}, must be at most {bound} = {of}"))?;
    }
    let lanes = spec.training.lanes;
    let bsp = spec.training.consistency == Consistency::Bsp;
    rule(!bsp || trainers.min <= lanes, "trainers.min", || {
        format!(
            "is {}, must not be above training.lanes = {lanes}: each trainer computes at least one lane",
            trainers.min
        )
    })?;
    for (key, memory) in [
        ("pservers.memory", pservers.memory),
        ("trainers.memory", trainers.memory),
        ("am.memory", spec.am.memory),
    ] {
        rule(memory >= MEMORY_MIN, key, || format!("is {memory}, must be at least {MEMORY_MIN}"))?;
    }
    Ok(())
}

fn check_outputs(spec: &JobSpec) -> Result<(), SpecError> {
    let (checkpoint, output) = (&spec.checkpoint, &spec.output);
    rule(checkpoint.timeout >= DurationMs::secs(1), "checkpoint.timeout", || {
        format!("is {}, must be at least 1s", checkpoint.timeout)
    })?;
    rule(checkpoint.last_save <= DurationMs::secs(3_600), "checkpoint.last-save", || {
        format!("is {}, must be from 0s to 1h", checkpoint.last_save)
    })?;
    rule(
        checkpoint.bandwidth.is_none_or(|rate| rate >= BANDWIDTH_MIN),
        "checkpoint.bandwidth",
        || "must be at least 1KiB (a second), or empty".to_owned(),
    )?;
    check_mirrors(spec)?;
    let mut formats = BTreeSet::new();
    rule(!output.formats.is_empty(), "output.formats", || "names no format".to_owned())?;
    rule(output.formats.iter().all(|format| formats.insert(format)), "output.formats", || {
        "names a format twice".to_owned()
    })?;
    rule(
        spec.model.algorithm.is_linear() || !formats.contains(&ModelFormat::Text),
        "output.formats",
        || {
            let name = spec.model.algorithm.name();
            format!("\"text\" is for linear models, not for algorithm \"{name}\"")
        },
    )?;
    rule(!warm_start::is_own(spec), "model.init", || {
        "is the job's own checkpoint.dir; leave model.init out to continue this job, or name another checkpoint.dir"
            .to_owned()
    })?;
    rule(output.model != checkpoint.dir, "output.model", || {
        "is the same folder as checkpoint.dir".to_owned()
    })?;
    rule(
        spec.run.orphan_timeout.is_none_or(|timeout| timeout >= DurationMs::secs(5)),
        "run.orphan-timeout",
        || "must be \"auto\" or at least 5s".to_owned(),
    )
}

/// Mirrors are folders of their own: a folder of checkpoints holds nothing else.
fn check_mirrors(spec: &JobSpec) -> Result<(), SpecError> {
    let (key, mirrors) = ("checkpoint.mirrors", &spec.checkpoint.mirrors);
    rule(mirrors.len() <= MIRRORS_MAX, key, || {
        format!("names {} folders, must be at most {MIRRORS_MAX}", mirrors.len())
    })?;
    for (index, mirror) in mirrors.iter().enumerate() {
        let folders =
            [("checkpoint.dir", &spec.checkpoint.dir), ("output.model", &spec.output.model)];
        for (other, folder) in folders {
            rule(!mirror.is_in(folder), key, || {
                format!("{mirror} is {other} = {folder}, or lies in it")
            })?;
            rule(!folder.is_in(mirror), key, || format!("{other} = {folder} lies in {mirror}"))?;
        }
        for other in &mirrors[..index] {
            let apart = !mirror.is_in(other) && !other.is_in(mirror);
            rule(apart, key, || {
                format!("{mirror} and {other} are one folder, or one lies in the other")
            })?;
        }
    }
    Ok(())
}

/// The fullest pserver must hold its shards and all that it does with them.
fn check_memory(spec: &JobSpec) -> Result<(), SpecError> {
    let (memory, need) = (spec.pservers.memory, PserverMemory::of(spec));
    rule(need.total().0 <= memory.0, "pservers.memory", || {
        let enough = PserverMemory::sufficient(spec).0.div_ceil(1 << 20);
        format!("is {memory}, must be at least {enough} MiB: {}", need.in_words())
    })
}

fn is_word(text: &str, max: usize) -> bool {
    (1..=max).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

fn check_name(name: &str) -> Result<(), SpecError> {
    let plain = name.replace('.', "-");
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    rule(is_word(&plain, 64) && starts_well, "name", || {
        format!(
            "{name:?} must be 1 to 64 letters, digits, \"-\", \"_\" and \".\", and start with a letter or digit"
        )
    })
}

fn check_optimizer(key: &'static str, optimizer: &Optimizer) -> Result<(), SpecError> {
    optimizer.check().map_err(|rule| SpecError::Rule { key, rule })
}

fn check_schedule(model: &ModelSpec) -> Result<(), SpecError> {
    const KEY: &str = "model.schedule";
    let schedule = &model.schedule;
    schedule.check().map_err(|rule| SpecError::Rule { key: KEY, rule })?;
    let of_tables = model.tables.iter().map(|table| &table.optimizer);
    let rated = std::iter::once(&model.optimizer)
        .filter(|_| model.tables.is_empty())
        .chain(of_tables)
        .any(|optimizer| optimizer.kind().has_rate());
    rule(rated || *schedule == Schedule::CONSTANT, KEY, || {
        format!(
            "needs an optimizer with a rate; \"{}\" has none (leave model.schedule out)",
            model.optimizer.kind().name
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job_spec::job::sample;
    use crate::job_spec::options::JobKind;

    fn refused(change: impl FnOnce(&mut JobSpec)) -> String {
        let mut spec = sample();
        change(&mut spec);
        check(&spec).expect_err("the change breaks a rule").to_string()
    }

    #[test]
    fn a_spec_survives_json() {
        let spec = sample();
        assert_eq!(from_json(&spec.to_json()), Ok(spec));
    }

    #[test]
    fn json_that_breaks_a_rule_is_refused() {
        let mut spec = sample();
        spec.pservers.shards = 0;
        assert!(matches!(from_json(&spec.to_json()), Err(SpecError::Rule { .. })));
        assert!(matches!(from_json(b"{}"), Err(SpecError::Json(_))));
    }

    #[test]
    fn impossible_combinations_are_refused_with_both_numbers() {
        assert_eq!(
            refused(|spec| spec.trainers.min = 3),
            "trainers.min: is 3, must not be above trainers.max = 2"
        );
        assert_eq!(
            refused(|spec| spec.pservers.shards = 1),
            "pservers.shards: is 1, must be at least pservers.count × pservers.vcores = 2, a shard for each data thread"
        );
        assert!(refused(|spec| spec.training.early_stop = 1).contains("data.test is not set"));
        assert!(refused(|spec| spec.training.keep = KeptPass::Best).contains("data.test is not"));
        assert!(
            refused(|spec| spec.model.algorithm = AlgorithmKind::Custom)
                .contains("[[model.table]]")
        );
    }

    #[test]
    fn pservers_follow_from_what_the_phases_use() {
        let text = "pservers.count: expected a whole number from 1 to 4096";
        assert_eq!(refused(|spec| spec.pservers.count = 0), text);
        let mut spec = sample();
        (spec.kind, spec.pservers.count) = (JobKind::Evaluate, 0);
        spec.data.test = spec.data.train.clone();
        check(&spec).expect("trainers evaluate the model alone");
        assert_eq!(from_json(&spec.to_json()), Ok(spec));
    }

    #[test]
    fn staleness_belongs_to_ssp() {
        assert_eq!(
            refused(|spec| spec.training.staleness = Some(2)),
            "training.staleness: is for training.consistency = \"ssp\" alone"
        );
        assert_eq!(
            refused(|spec| spec.training.consistency = Consistency::Ssp),
            "training.staleness: is missing; training.consistency = \"ssp\" needs it"
        );
        assert_eq!(
            refused(|spec| {
                spec.training.consistency = Consistency::Ssp;
                spec.training.staleness = Some(STALENESS_MAX + 1);
            }),
            "training.staleness: is 1000001, must be from 0 to 1000000"
        );
    }

    #[test]
    fn class_weights_name_classes_of_the_job() {
        let with = |class, weight| {
            refused(|spec| {
                spec.data.class_weights.push((class, weight));
            })
        };
        assert_eq!(
            with(2, 1.0),
            "data.class-weights: 2: is not a class of the job, whose labels are 0 and 1, or -1 and +1"
        );
        for weight in [-1.0, f64::NAN, f64::INFINITY, 1e99] {
            assert!(with(1, weight).ends_with("must be a finite number of at least 0"), "{weight}");
        }
        let text = refused(|spec| {
            spec.model.algorithm = AlgorithmKind::LinearRegression;
            spec.data.class_weights.push((1, 2.0));
        });
        assert!(text.ends_with("the labels of linear-regression are numbers"), "{text}");
    }

    #[test]
    fn a_model_larger_than_the_memory_is_refused_with_the_sum() {
        let with = |mib: u64| {
            let mut spec = sample();
            spec.model.features = 1 << 28;
            spec.pservers.memory = Bytes::mib(mib);
            check(&spec)
        };
        let text = with(256).expect_err("refused").to_string();
        let enough = text
            .strip_prefix("pservers.memory: is 256MiB, must be at least ")
            .and_then(|rest| rest.split_once(" MiB: 513 MiB of tables"))
            .unwrap_or_else(|| panic!("{text}"));
        let enough: u64 = enough.0.parse().expect("a number");
        with(enough).expect("what the message says suffices");
        with(enough - 1).expect_err("and no less");
    }

    #[test]
    fn names_are_safe_as_folder_names() {
        for name in ["", ".x", "a/b", "..", "a b", "-a"] {
            assert!(refused(|spec| spec.name = name.to_owned()).starts_with("name: "), "{name}");
        }
    }

    #[test]
    fn standardising_adds_the_table_of_sums() {
        let mut spec = sample();
        spec.model.standardise = true;
        let tables = spec.tables();
        let names: Vec<_> = tables.iter().map(|t| (t.name.as_str(), t.rows, t.cols)).collect();
        assert_eq!(names, [("weights", 10, 1), ("bias", 1, 1), ("stats", 11, 3)]);
        assert_eq!(tables[2].optimizer, Optimizer::add());
    }

    #[test]
    fn the_effective_batch_is_of_all_lanes_in_bsp() {
        let mut spec = sample();
        assert_eq!(spec.effective_batch(), Some(16));
        for consistency in [Consistency::Ssp, Consistency::Asp] {
            spec.training.consistency = consistency;
            assert_eq!(spec.effective_batch(), Some(8));
        }
    }
}
