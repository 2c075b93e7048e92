//! `heddle bench`: each part measures, prints its figures and leaves no files.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

use serde_json::Value;

/// Runs `heddle bench` in a new folder, which must be empty afterwards. Returns the exit code and the output.
fn bench(arguments: &[&str]) -> (Option<i32>, String, String) {
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_heddle"))
        .arg("bench")
        .args(arguments)
        .current_dir(dir.path())
        .env("XDG_STATE_HOME", dir.path().join("state"))
        .output()
        .unwrap();
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap()).collect();
    assert!(left.is_empty(), "{arguments:?} left {left:?}");
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// The figures of a bench as JSON.
fn figures(arguments: &[&str]) -> Vec<Value> {
    let (code, stdout, stderr) = bench(&[arguments, &["--json"]].concat());
    assert_eq!(code, Some(0), "{arguments:?}: {stderr}");
    let figures: Vec<Value> =
        stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for figure in &figures {
        for name in ["heddle", "baseline_value", "ratio"] {
            assert!(figure[name].as_f64().is_some_and(|value| value > 0.0), "{name}: {figure}");
        }
    }
    figures
}

fn names(figures: &[Value]) -> Vec<&str> {
    figures.iter().map(|figure| figure["what"].as_str().unwrap()).collect()
}

#[test]
fn exchanges_are_measured_beside_raw_tcp() {
    let figures = figures(&["net", "--rounds", "1"]);
    let plain =
        ["push 64 B", "pull 64 B", "push 1 MiB", "pull 1 MiB", "push 16 MiB", "pull 16 MiB"];
    let encrypted = plain.map(|exchange| format!("{exchange}, encrypted"));
    let expected = plain.into_iter().chain(encrypted.iter().map(String::as_str));
    assert_eq!(names(&figures), expected.collect::<Vec<_>>());
    for (figure, baseline) in figures.iter().zip([["raw TCP"; 6], ["plain"; 6]].concat()) {
        assert_eq!(figure["baseline"], baseline);
    }
}

#[test]
fn rows_and_parser_are_measured_beside_loops() {
    assert_eq!(figures(&["table", "--rounds", "1"]).len(), 4);
    let figures = figures(&["read", "--rounds", "1"]);
    assert_eq!(names(&figures), ["libsvm, values 1", "libsvm, three decimals"]);
}

#[test]
fn save_is_measured_beside_a_plain_write() {
    let figures = figures(&["checkpoint", "--rounds", "1", "--size", "2MiB"]);
    let expected =
        ["save of 2 MiB in 8 shards, with MD5", "push of 10000 rows while 2 MiB are saved"];
    assert_eq!(names(&figures), expected);
    let (code, _, stderr) = bench(&["checkpoint", "--size", "1TiB"]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("--size must be from 1MiB to 8GiB"), "{stderr}");
}

#[test]
fn sparse_rows_are_measured_and_saved() {
    let figures = figures(&["sparse", "--rounds", "1", "--rows", "100000"]);
    let expected = [
        "push of 10000 sparse rows of 16",
        "pull of 10000 sparse rows of 16",
        "push of 26000 new rows",
        "push of 10000 rows while 100000 are saved",
        "save of 100000 rows, with MD5",
    ];
    assert_eq!(names(&figures), expected);
}

#[test]
fn whole_run_is_measured_beside_one_thread() {
    let sets = ["--set", "trainers.max=1", "--set", "pservers.count=1"];
    let train = [&["train", "--rounds", "1", "--rows", "1000"][..], &sets].concat();
    assert_eq!(names(&figures(&train)), ["run over 1,000 records, with its evaluation"]);
    let (code, _, stderr) = bench(&["train", "--rows", "100", "--set", "model.l2=x"]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("the measured run failed") && stderr.contains("model.l2"), "{stderr}");
}

#[test]
fn text_says_which_side_is_faster() {
    let (code, stdout, stderr) = bench(&["read", "--rounds", "1"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("ratio") && stdout.contains("plain scan"), "{stdout}");
    assert!(stderr.contains("above 1 Heddle is faster"), "{stderr}");
}
