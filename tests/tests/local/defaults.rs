//! What comes of a job file with the required keys alone: values that the data decides, labels of any unit, and a warning
//! where the model is of no use.

use std::fmt::Write as _;
use std::path::Path;

use heddle_protocol::view::{JobEvent, WarningCode};
use heddle_tests::local::{Ended, heddle};
use tempfile::TempDir;

/// Mean and deviation of the labels.
const MEAN: f64 = 40_000.0;
const DEVIATION: f64 = 700.0;

/// A job of `model` over 600 records, a sixth of them to test on. Dense: three columns of different size. Sparse: one of
/// thirty features that are 1. Labels are linear in them.
fn folder(model: &str, sparse: bool) -> TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    for (name, records) in [("train", 0..500), ("test", 500..600)] {
        let mut text = String::new();
        for n in records {
            let at = |period: usize| (n * 7919 % period) as f64 / period as f64 - 0.5;
            let (a, b, c) = (at(101), at(103), at(107));
            if sparse {
                let feature = n * 31 % 30;
                let label = MEAN + DEVIATION * (feature as f64 - 15.0) / 9.0;
                writeln!(text, "{label} {}:1", feature + 1).expect("a string");
            } else {
                let label = MEAN + DEVIATION * (2.0 * a - 2.0 * b + c);
                let (b, c) = (1e-3 * b, 1e4 * c);
                writeln!(text, "{label} 1:{a} 2:{b} 3:{c}").expect("a string");
            }
        }
        std::fs::write(dir.path().join(format!("{name}.libsvm")), text).expect("data");
    }
    write_job(dir.path(), "job", model);
    dir
}

fn write_job(dir: &Path, name: &str, model: &str) {
    let text = format!(
        "name = \"{name}\"\n[data]\ntrain = \"train.libsvm\"\ntest = \"test.libsvm\"\n[model]\n{model}\
         [checkpoint]\ndir = \"{name}-ckpt\"\n[output]\nmodel = \"{name}-model\"\n"
    );
    std::fs::write(dir.join(format!("{name}.toml")), text).expect("a job file");
}

fn run(dir: &Path, name: &str, sets: &[&str]) -> Ended {
    let file = format!("{name}.toml");
    let mut arguments = vec!["run", &file];
    sets.iter().for_each(|set| arguments.extend(["--set", set]));
    heddle(dir, &arguments).expect("heddle starts")
}

/// The number after `name` in a text.
pub(crate) fn figure(text: &str, name: &str) -> f64 {
    let after = text.split(&format!("{name} ")).last().expect("a part");
    let word = after.split_whitespace().next().unwrap_or_default();
    word.parse().unwrap_or_else(|_| panic!("{name} in {text}"))
}

const LINEAR: &str = "algorithm = \"linear-regression\"\nfeatures = 3\n";

#[test]
fn labels_of_any_unit_are_learnt_and_predicted_in_it() {
    let machine = "algorithm = \"factorization-machine\"\nloss = \"squared\"\nrank = 2\n";
    let linear = |features| format!("algorithm = \"linear-regression\"\nfeatures = {features}\n");
    for (model, consistency, sparse, most) in [
        (linear("3"), "bsp", false, 0.05),
        (linear("3"), "asp", false, 0.05),
        (format!("{machine}features = 3\n"), "bsp", false, 0.1),
        (linear("30"), "ssp", true, 0.2),
        (linear("\"any\""), "bsp", true, 0.2),
        (format!("{machine}features = 30\n"), "bsp", true, 0.2),
        (format!("{machine}features = \"any\"\n"), "asp", true, 0.2),
    ] {
        let dir = folder(&model, sparse);
        let ended = run(dir.path(), "job", &[&format!("training.consistency={consistency}")]);
        assert_eq!(ended.code, Some(0), "{model}: {}", ended.stderr);
        let scaled = if sparse { "(labels of the first " } else { "(measured with the columns)" };
        assert!(ended.stderr.contains(scaled), "{}", ended.stderr);
        let rmse = figure(&ended.stdout, "rmse");
        assert!(rmse < most * DEVIATION, "{model} {consistency}: {rmse}");
        let arguments = ["predict", "job-model", "test.libsvm", "--labelled"];
        let scored = heddle(dir.path(), &arguments).expect("it starts");
        assert!((figure(&scored.stderr, "rmse") - rmse).abs() < 1e-2, "{}", scored.stderr);
        let first: f64 = scored.stdout.lines().next().expect("a value").parse().expect("it");
        assert!((first - MEAN).abs() < 5.0 * DEVIATION, "{first}");
    }
}

#[test]
fn job_begins_with_the_scales_of_the_job_before() {
    let dir = folder(LINEAR, false);
    let path = dir.path();
    let first = run(path, "job", &[]);
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    write_job(path, "next", &format!("{LINEAR}init = \"job-ckpt\"\n"));
    let next = run(path, "next", &["data.passes=1", "training.keep=last"]);
    assert_eq!(next.code, Some(0), "{}", next.stderr);
    assert!(next.stderr.contains("(as in the job of model.init)"), "{}", next.stderr);
    let (before, after) = (figure(&first.stdout, "rmse"), figure(&next.stdout, "rmse"));
    assert!(after < 2.0 * before + 1.0, "{before}, then {after}");
    for set in ["model.scale-labels=false", "model.standardise=false"] {
        let refused = run(path, "next", &[set, "checkpoint.dir=c", "output.model=m"]);
        assert_eq!(refused.code, Some(7), "{}", refused.stderr);
        assert!(refused.stderr.contains("on that scale"), "{}", refused.stderr);
    }
}

#[test]
fn model_that_is_worse_than_none_is_a_warning_with_a_code() {
    let dir = folder(LINEAR, false);
    let as_before = ["model.scale-labels=false", "model.standardise=false"];
    let ended = run(dir.path(), "job", &as_before);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let words = "warning: the model is worse than one without features: rmse ";
    assert!(ended.stderr.contains(words), "{}", ended.stderr);
    assert!(ended.stderr.contains("try model.scale-labels = \"auto\""), "{}", ended.stderr);
    let mut arguments = vec!["run", "job.toml", "--json", "--fresh", "--overwrite"];
    as_before.iter().for_each(|set| arguments.extend(["--set", set]));
    let events = heddle(dir.path(), &arguments).expect("it starts").stdout;
    let is_coded = |line: &str| {
        let event = JobEvent::from_json(line.as_bytes());
        matches!(event, Ok(JobEvent::Warning { code: WarningCode::WorseThanConstant, .. }))
    };
    assert!(events.lines().any(is_coded), "{events}");
}

#[test]
fn columns_and_labels_beyond_32_bits_are_named() {
    for (column, label, words) in [
        ("1e-30", "1", "the values of column 1 (from 0) cannot be scaled in 32 bits (table stats)"),
        // The sum of the first fits into 32 bits, and not that of its squares.
        ("1e25", "1", "the values of column 1 (from 0) cannot be scaled in 32 bits (table stats)"),
        ("3e38", "1", "the values of column 1 (from 0) cannot be scaled in 32 bits (table stats)"),
        ("1", "3e38", "the labels cannot be scaled in 32 bits (table label)"),
    ] {
        let dir = folder(LINEAR, false);
        let mut text = String::new();
        for n in 0..40 {
            let (label, column) = if n % 2 == 0 { (label, column) } else { ("0", "0") };
            writeln!(text, "{label} 1:{n} 2:{column} 3:{}", n % 7).expect("a string");
        }
        for name in ["train", "test"] {
            std::fs::write(dir.path().join(format!("{name}.libsvm")), &text).expect("data");
        }
        let ended = run(dir.path(), "job", &[]);
        assert_eq!(ended.code, Some(7), "{}", ended.stderr);
        assert!(ended.stderr.contains(words), "{}", ended.stderr);
        assert!(!dir.path().join("job-model").join("MODEL.json").exists());
    }
}

#[test]
fn data_of_one_class_is_refused() {
    for (algorithm, code) in [("logistic-regression", 7), ("linear-regression", 0)] {
        let dir = folder(&format!("algorithm = \"{algorithm}\"\nfeatures = 3\n"), false);
        let text: String = (0..40).map(|n| format!("1 1:{n} 2:{} 3:1\n", n % 7)).collect();
        for name in ["train", "test"] {
            std::fs::write(dir.path().join(format!("{name}.libsvm")), &text).expect("data");
        }
        let ended = run(dir.path(), "job", &[]);
        assert_eq!(ended.code, Some(code), "{}", ended.stderr);
        let words = "data.train must have records of two classes at least (got label 1 in all 40)";
        assert_eq!(ended.stderr.contains(words), code == 7, "{}", ended.stderr);
        assert_eq!(dir.path().join("job-model").exists(), code == 0);
    }
}

#[test]
fn data_that_begins_with_one_label_is_warned_about() {
    let dir = folder("features = 3\n", false);
    let text: String =
        (0..60_000).map(|n| format!("{} 1:{} 2:1.5 3:{}\n", n / 30_000, n % 5, n % 7)).collect();
    for name in ["train", "test"] {
        std::fs::write(dir.path().join(format!("{name}.libsvm")), &text).expect("data");
    }
    let plan = heddle(dir.path(), &["run", "job.toml", "--dry-run"]).expect("it starts");
    assert_eq!(plan.code, Some(0), "{}", plan.stderr);
    assert!(
        plan.stdout.contains("have the same label, 0; if the data is sorted"),
        "{}",
        plan.stdout
    );
}
