//! The required keys alone in ASP and SSP, where each run is another: on data of the examples and on generated data the
//! figure stays within 1 % of the worst of twenty runs.

use std::fmt::Write as _;
use std::path::Path;

use click_log::{ClickLog, Shape, Split};
use heddle_tests::local::{Lot, heddle};

use crate::defaults::figure;

/// Data, and the worst figure of twenty runs in each mode.
struct Case {
    /// The test data's loss, as the output names it.
    figure: &'static str,
    /// Of `[data]` and `[model]`.
    keys: String,
    asp: f64,
    ssp: f64,
    /// Writes `train.libsvm` and `test.libsvm`.
    write: fn(&Path),
}

fn spambase() -> Case {
    Case {
        figure: "log-loss",
        keys: example("quickstart", "algorithm = \"logistic-regression\"\nfeatures = 57\n"),
        asp: 0.2164,
        ssp: 0.2157,
        write: |_| (),
    }
}

fn letter() -> Case {
    let model = "algorithm = \"softmax-regression\"\nclasses = 26\nfeatures = 16\n";
    Case {
        figure: "log-loss",
        keys: example("letter", model),
        asp: 0.8911,
        ssp: 0.8837,
        write: |_| (),
    }
}

/// Labels about 40,000 with a deviation of 700, over columns of one size.
fn offset_regression() -> Case {
    let write = |dir: &Path| write_linear(dir, 40_000.0, 300.0, |_| 1.0);
    Case {
        figure: "rmse",
        keys: generated("linear-regression", COLUMNS),
        asp: 301.68,
        ssp: 301.96,
        write,
    }
}

/// Columns from 1e-4 to 1e4.
fn badly_scaled_columns() -> Case {
    let write = |dir: &Path| write_linear(dir, 0.0, 1.0, |column| 10f64.powi(column as i32 - 4));
    Case {
        figure: "rmse",
        keys: generated("linear-regression", COLUMNS),
        asp: 1.0097,
        ssp: 1.0132,
        write,
    }
}

fn sparse_binary() -> Case {
    let write = |dir: &Path| {
        for (name, split, rows) in [("train", Split::Train, 8_000), ("test", Split::Test, 4_000)] {
            let log = ClickLog::new(Shape { fields: 20, features: 20_000 }, 5, split);
            log.write_files(rows, &dir.join(format!("{name}.libsvm")), None).expect("written");
        }
    };
    Case {
        figure: "log-loss",
        keys: generated("logistic-regression", 20_000),
        asp: 0.4999,
        ssp: 0.4987,
        write,
    }
}

fn example(name: &str, model: &str) -> String {
    let data = format!("{}/../examples/{name}/data", env!("CARGO_MANIFEST_DIR"));
    format!("train = \"{data}/train/*\"\ntest = \"{data}/test/*\"\n[model]\n{model}")
}

fn generated(algorithm: &str, features: usize) -> String {
    let model = format!("[model]\nalgorithm = \"{algorithm}\"\nfeatures = {features}\n");
    format!("train = \"train.libsvm\"\ntest = \"test.libsvm\"\n{model}")
}

const COLUMNS: usize = 9;

/// Labels that are linear in columns of a size, with noise of a quarter of their deviation.
fn write_linear(dir: &Path, mean: f64, unit: f64, size: fn(usize) -> f64) {
    let mut lot = Lot(3);
    let mut normal =
        || (0..12).map(|_| lot.below(1 << 32) as f64 / 2f64.powi(32) - 0.5).sum::<f64>();
    for (name, rows) in [("train", 3_000), ("test", 1_000)] {
        let mut text = String::new();
        for _ in 0..rows {
            let columns: [f64; COLUMNS] = std::array::from_fn(|_| normal() + 1.0);
            let sum: f64 =
                columns.iter().zip([1.0, -2.0, 0.5].iter().cycle()).map(|(x, w)| x * w).sum();
            write!(text, "{}", mean + unit * (sum + normal())).expect("a string");
            for (column, value) in columns.iter().enumerate() {
                write!(text, " {}:{}", column + 1, value * size(column)).expect("a string");
            }
            text.push('\n');
        }
        std::fs::write(dir.join(format!("{name}.libsvm")), text).expect("written");
    }
}

/// Trains `runs` times in each mode. No figure is more than 1 % above the worst that was measured.
fn check(case: &Case, runs: usize) {
    let dir = tempfile::tempdir().expect("a folder");
    (case.write)(dir.path());
    let job = format!("name = \"quality\"\n[data]\n{}", case.keys);
    std::fs::write(dir.path().join("job.toml"), job).expect("a job file");
    for (mode, worst) in [("asp", case.asp), ("ssp", case.ssp)] {
        let mode = format!("training.consistency={mode}");
        let arguments = ["run", "job.toml", "--fresh", "--overwrite", "--set", &mode];
        let mut figures: Vec<f64> =
            (0..runs).map(|_| run(dir.path(), &arguments, case.figure)).collect();
        figures.sort_by(f64::total_cmp);
        println!("{mode}: {} {figures:?}, worst measured {worst}", case.figure);
        assert!(
            figures.iter().all(|figure| *figure <= 1.01 * worst),
            "{mode}: {figures:?}, {worst}"
        );
    }
}

fn run(dir: &Path, arguments: &[&str], name: &str) -> f64 {
    let ended = heddle(dir, arguments).expect("heddle starts");
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    figure(&ended.stdout, name)
}

/// A test of each case, with a number of runs.
macro_rules! cases {
    ($($case:ident),* $(,)?) => {
        $(mod $case {
            #[test]
            fn stays_within_the_range_of_its_runs() {
                super::check(&super::$case(), 1);
            }

            #[test]
            #[ignore = "nightly: twenty runs in each mode"]
            fn stays_within_the_range_of_its_runs_twenty_times() {
                super::check(&super::$case(), 20);
            }
        })*
    };
}

cases! { spambase, offset_regression, badly_scaled_columns, sparse_binary }

#[test]
#[ignore = "nightly: twenty runs in each mode"]
fn letter_stays_within_the_range_of_its_runs_twenty_times() {
    check(&letter(), 20);
}
