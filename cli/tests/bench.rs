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
            // What encryption adds is a difference of two times, which noise makes negative in a single round.
            let is_signed = name != "baseline_value" && is_difference(figure);
            let is_right = |value| value > 0.0 || is_signed;
            assert!(figure[name].as_f64().is_some_and(is_right), "{name}: {figure}");
        }
    }
    figures
}

fn is_difference(figure: &Value) -> bool {
    figure["what"].as_str().unwrap().ends_with("added by encryption")
}

fn names(figures: &[Value]) -> Vec<&str> {
    figures.iter().map(|figure| figure["what"].as_str().unwrap()).collect()
}

#[test]
fn exchanges_are_measured_beside_raw_tcp() {
    let figures = figures(&["net", "--rounds", "1"]);
    let plain: Vec<String> = ["64 B", "1 MiB", "16 MiB"]
        .iter()
        .flat_map(|size| [format!("push {size}"), format!("pull {size}")])
        .collect();
    let windows =
        ["", ", 4 in flight"].map(|window| plain.iter().map(move |row| format!("{row}{window}")));
    let encrypted = plain.iter().flat_map(|row| {
        let added = (!row.ends_with("64 B")).then(|| format!("{row}, added by encryption"));
        [Some(format!("{row}, encrypted")), added].into_iter().flatten()
    });
    let expected: Vec<String> = windows.into_iter().flatten().chain(encrypted).collect();
    assert_eq!(names(&figures), expected);
    for figure in &figures {
        let baseline = if is_difference(figure) {
            "seal and open"
        } else if figure["what"].as_str().unwrap().ends_with("encrypted") {
            "plain"
        } else {
            "raw TCP"
        };
        assert_eq!(figure["baseline"], baseline);
    }
}

#[test]
fn rows_and_parser_are_measured_beside_loops() {
    assert_eq!(figures(&["table", "--rounds", "1"]).len(), 5);
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
