//! Whole small jobs through `heddle run`: what data does to them, and what they end with.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

const JOB: &str = "name = \"small\"\n[data]\ntrain = \"train.libsvm\"\n[model]\nfeatures = 2\n\
    [training]\nlanes = 2\nbatch = 4\n[pservers]\ncount = 1\nshards = 2\n[trainers]\nmax = 1\n";

/// A folder with a job of forty records, of which the third may be another.
struct Bench(TempDir);

impl Bench {
    fn new(third: Option<&str>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let record = |n: usize| format!("{} 1:{} 2:{}", n % 2, n % 7, n * 3 % 5);
        let mut records: Vec<String> = (0..40).map(record).collect();
        if let Some(third) = third {
            records[2] = third.to_owned();
        }
        std::fs::write(dir.path().join("train.libsvm"), records.join("\n")).unwrap();
        std::fs::write(dir.path().join("job.toml"), JOB).unwrap();
        Self(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn heddle(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_heddle"))
            .args(arguments)
            .current_dir(self.path())
            .env_remove("RUST_LOG")
            .env("XDG_STATE_HOME", self.path().join("state"))
            .output()
            .unwrap()
    }

    /// Runs the job with these overrides; exit code, stdout, stderr.
    fn run(&self, sets: &[&str]) -> (Option<i32>, String, String) {
        let mut arguments = vec!["run", "job.toml"];
        for set in sets {
            arguments.extend(["--set", set]);
        }
        let output = self.heddle(&arguments);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr),
        )
    }
}

#[test]
fn a_record_that_cannot_be_read_is_exit_7_with_file_line_and_column() {
    for (record, message) in [
        (
            "1 1:x",
            "train.libsvm:3:5: expected a finite number, found \"x\"",
        ),
        ("1 3:1", "train.libsvm:3:3: index 3 is above the highest, 2"),
        ("7 1:1", "train.libsvm:3:1: label 7"),
    ] {
        let bench = Bench::new(Some(record));
        let (exit, stdout, stderr) = bench.run(&[]);
        assert_eq!(exit, Some(7), "{stderr}");
        assert!(stderr.contains(message), "{message} in {stderr}");
        assert_eq!(stdout, "");
        let out = std::fs::read_dir(bench.path().join("out"))
            .unwrap()
            .next()
            .unwrap()
            .unwrap();
        assert!(
            !out.path().join("model").exists(),
            "no part of a model is left behind"
        );
    }
}

#[test]
fn bad_records_may_be_left_out_up_to_a_number() {
    let bench = Bench::new(Some("1 1:x"));
    let (exit, stdout, stderr) = bench.run(&["data.bad-records=skip:1"]);
    assert_eq!(exit, Some(0), "{stderr}");
    assert!(
        stdout.contains("bad records  1\n") && stdout.contains(" 39 in "),
        "{stdout}"
    );
    let (exit, _, stderr) = bench.run(&["data.bad-records=skip:0"]);
    assert_eq!(exit, Some(7), "{stderr}");
}

#[test]
fn the_scores_are_told_once_on_stdout_and_the_model_scores_in_input_order() {
    let bench = Bench::new(None);
    let (exit, stdout, stderr) = bench.run(&["data.test=train.libsvm", "data.passes=2"]);
    assert_eq!(exit, Some(0), "{stderr}");
    let told: Vec<_> = stdout
        .lines()
        .filter(|line| line.starts_with("test  log-loss "))
        .collect();
    assert_eq!(told.len(), 1, "{stdout}");
    assert_eq!(stdout.lines().next(), Some(told[0]));
    for row in [
        "passes  ",
        "rows  ",
        "checkpoints  ",
        "model  ",
        "logs  ",
        "next  ",
    ] {
        assert!(
            stdout.lines().any(|line| line.starts_with(row)),
            "{row} in {stdout}"
        );
    }
    let next = stdout
        .lines()
        .find_map(|line| line.strip_prefix("next"))
        .unwrap();
    let next: Vec<_> = next.split_whitespace().skip(1).collect();
    let scores = bench.heddle(&next);
    assert_eq!(scores.status.code(), Some(0));
    let scores = String::from_utf8(scores.stdout).unwrap();
    assert_eq!(scores.lines().count(), 40);
    assert!(
        scores
            .lines()
            .all(|score| (0.0..=1.0).contains(&score.parse::<f64>().unwrap()))
    );
}

#[test]
fn a_finished_job_with_a_folder_of_its_own_trains_anew_only_when_told() {
    let bench = Bench::new(None);
    let sets = ["checkpoint.dir=ck", "output.model=model"];
    assert_eq!(bench.run(&sets).0, Some(0));
    let (exit, _, stderr) = bench.run(&sets);
    assert_eq!(exit, Some(7));
    assert!(stderr.contains("--overwrite"), "{stderr}");
    let again = |more: &[&str]| {
        let mut arguments = vec!["run", "job.toml", "--overwrite"];
        for set in &sets {
            arguments.extend(["--set", set]);
        }
        arguments.extend(more);
        let output = bench.heddle(&arguments);
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let (exit, stderr) = again(&[]);
    assert_eq!(exit, Some(7), "{stderr}");
    assert!(stderr.contains("--fresh"), "{stderr}");
    let (exit, stderr) = again(&["--fresh"]);
    assert_eq!(exit, Some(0), "{stderr}");
    let (exit, stderr) = again(&["--resume", "--set", "data.passes=2"]);
    assert_eq!(exit, Some(0), "{stderr}");
}
