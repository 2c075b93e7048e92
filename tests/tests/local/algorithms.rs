//! Every built-in algorithm as a real job: its figures, its model, what `heddle predict` makes of it, and what it refuses.

use std::path::Path;

use heddle_tests::local::{Ended, heddle};
use tempfile::TempDir;

/// An algorithm with labels that fit it.
struct Case {
    name: &'static str,
    /// Of `[model]`, beside the features.
    keys: &'static str,
    labels: fn(usize) -> i64,
    /// Names of the figures, in their order.
    figures: &'static [&'static str],
    /// A label that the algorithm refuses, and words of the message.
    bad: (&'static str, &'static str),
    /// Whether a score is that of a record of label 1.
    is_one: fn(f64) -> bool,
}

const CASES: &[Case] = &[
    Case {
        name: "logistic-regression",
        keys: "",
        labels: |n| (n % 2) as i64,
        figures: &["log-loss", "auc", "accuracy"],
        bad: ("2", "label 2, but the labels of two classes are 0 and 1, or -1 and +1"),
        is_one: |score| score > 0.5,
    },
    Case {
        name: "svm",
        keys: "loss = \"hinge\"\n",
        labels: |n| (n % 2) as i64 * 2 - 1,
        figures: &["hinge", "auc", "accuracy"],
        bad: ("2", "label 2, but the labels of two classes are 0 and 1, or -1 and +1"),
        is_one: |score| score > 0.0,
    },
    Case {
        name: "linear-regression",
        keys: "",
        labels: |n| (n % 2) as i64 * 2 - 1,
        figures: &["rmse", "mae", "r2"],
        bad: ("nan", "expected a label, found \"nan\""),
        is_one: |score| score > 0.0,
    },
    Case {
        name: "softmax-regression",
        keys: "classes = 4\n",
        labels: |n| (n % 4) as i64,
        figures: &["log-loss", "accuracy"],
        bad: ("4", "label 4, but labels are whole numbers from 0 to 3 (model.classes is 4)"),
        is_one: |score| score == 1.0,
    },
    Case {
        name: "factorization-machine",
        keys: "rank = 2\nstandardise = true\n",
        labels: |n| (n % 2) as i64,
        figures: &["log-loss", "auc", "accuracy"],
        bad: ("2", "label 2, but the labels of two classes are 0 and 1, or -1 and +1"),
        is_one: |score| score > 0.5,
    },
    Case {
        name: "factorization-machine",
        keys: "rank = 3\nloss = \"squared\"\n",
        labels: |n| (n % 2) as i64 * 2 - 1,
        figures: &["rmse", "mae", "r2"],
        bad: ("nan", "expected a label, found \"nan\""),
        is_one: |score| score > 0.0,
    },
];

/// A record of each label has a feature that only that label has, and one that all have.
fn folder(case: &Case) -> TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    let records: String = (0..400)
        .map(|n| {
            let label = (case.labels)(n);
            format!("{label} {}:1 9:{}\n", label + 2, n % 3)
        })
        .collect();
    std::fs::write(dir.path().join("train.libsvm"), records).expect("written");
    let text = format!(
        "name = \"small\"\n[data]\ntrain = \"train.libsvm\"\ntest = \"train.libsvm\"\npasses = 5\n\
         [model]\nalgorithm = \"{}\"\nfeatures = 9\n{}\
         [training]\nlanes = 2\nbatch = 10\n\
         [pservers]\ncount = 1\nshards = 2\n[trainers]\nmin = 1\nmax = 1\n\
         [checkpoint]\ndir = \"ckpt\"\n[output]\nmodel = \"model\"\n",
        case.name, case.keys
    );
    std::fs::write(dir.path().join("job.toml"), text).expect("a job file");
    dir
}

fn run(dir: &Path, sets: &[&str]) -> Ended {
    let mut arguments = vec!["run", "job.toml"];
    sets.iter().for_each(|set| arguments.extend(["--set", set]));
    heddle(dir, &arguments).expect("heddle starts")
}

/// The names of the figures in a line such as `log-loss 0.2118  auc 0.9729`.
fn names(line: &str) -> Vec<&str> {
    line.split("  ").filter_map(|figure| figure.trim().split(' ').next()).collect()
}

#[test]
fn each_algorithm_trains_prints_one_test_line_and_predicts() {
    for case in CASES {
        let dir = folder(case);
        let ended = run(dir.path(), &[]);
        assert_eq!(ended.code, Some(0), "{}: {}", case.name, ended.stderr);
        let lines: Vec<&str> =
            ended.stdout.lines().filter(|line| line.starts_with("test  ")).collect();
        let [line] = lines[..] else { panic!("{}: {}", case.name, ended.stdout) };
        let figures = line.trim_start_matches("test  ");
        assert_eq!(names(figures), case.figures, "{line}");

        let scored = heddle(dir.path(), &["predict", "model", "train.libsvm"]).expect("starts");
        assert_eq!(scored.code, Some(0), "{}", scored.stderr);
        assert!(scored.stderr.contains(figures), "{figures:?} in {}", scored.stderr);
        let scores: Vec<f64> =
            scored.stdout.lines().map(|line| line.parse().expect("a number")).collect();
        assert_eq!(scores.len(), 400);
        for (n, score) in scores.iter().enumerate() {
            assert_eq!((case.is_one)(*score), (case.labels)(n) == 1, "{}: {score}", case.name);
        }
        let formats = |name: &str| dir.path().join("model").join(name).exists();
        let linear = !matches!(case.name, "softmax-regression" | "factorization-machine");
        assert_eq!((formats("model.safetensors"), formats("model.txt")), (true, linear));
        if linear {
            let text = heddle(dir.path(), &["predict", "model/model.txt", "train.libsvm"]);
            assert_eq!(text.expect("starts").stdout, scored.stdout, "{}", case.name);
        }
    }
}

#[test]
fn probabilities_of_classes_add_up_to_one() {
    let case = CASES.iter().find(|case| case.name == "softmax-regression").expect("a case");
    let dir = folder(case);
    assert_eq!(run(dir.path(), &[]).code, Some(0));
    let arguments = ["predict", "model", "train.libsvm", "--probabilities"];
    let scored = heddle(dir.path(), &arguments).expect("starts");
    assert_eq!(scored.code, Some(0), "{}", scored.stderr);
    for (n, line) in scored.stdout.lines().enumerate() {
        let shares: Vec<f64> = line.split(' ').map(|word| word.parse().expect("one")).collect();
        assert_eq!(shares.len(), 4);
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-5, "{line}");
        assert!(shares[n % 4] > 0.5, "{line}");
    }
    for (flag, field) in [(None, "class"), (Some("--probabilities"), "probabilities")] {
        let mut arguments = vec!["predict", "model", "train.libsvm", "--json"];
        arguments.extend(flag);
        let scored = heddle(dir.path(), &arguments).expect("starts");
        let first = scored.stdout.lines().next().expect("a line");
        let json: serde_json::Value = serde_json::from_str(first).expect("JSON");
        match &json[field] {
            serde_json::Value::Array(shares) => assert_eq!(shares.len(), 4, "{first}"),
            class => assert_eq!(class, 0, "{first}"),
        }
    }
    let case = &CASES[0];
    let dir = folder(case);
    assert_eq!(run(dir.path(), &[]).code, Some(0));
    let scored = heddle(dir.path(), &arguments).expect("starts");
    assert_eq!(scored.code, Some(7), "{scored:?}");
    let message = "cannot write probabilities of classes: model has no classes";
    assert!(scored.stderr.contains(message), "{}", scored.stderr);
}

#[test]
fn labels_outside_of_an_algorithms_range_are_exit_7() {
    for case in CASES {
        let dir = folder(case);
        let path = dir.path().join("train.libsvm");
        let (label, message) = case.bad;
        let text = std::fs::read_to_string(&path).expect("readable") + label + " 1:1\n";
        std::fs::write(&path, text).expect("written");
        let ended = run(dir.path(), &[]);
        assert_eq!(ended.code, Some(7), "{}: {ended:?}", case.name);
        let place = format!("train.libsvm:401:1: {message}");
        assert!(ended.stderr.contains(&place), "{place} in {}", ended.stderr);
        assert!(!dir.path().join("model/MODEL.json").exists(), "something was published");
        let skipped = run(dir.path(), &["data.bad-records=skip:1"]);
        assert_eq!(skipped.code, Some(0), "{}: {}", case.name, skipped.stderr);
    }
}

#[test]
fn keys_of_another_algorithm_are_refused_with_its_name() {
    let dir = folder(&CASES[0]);
    for (sets, message) in [
        (
            &["model.loss=hinge"][..],
            "model.loss = \"hinge\": is a key of algorithm svm and factorization-machine, not of logistic-regression",
        ),
        (
            &["model.classes=3"],
            "model.classes = 3: is a key of algorithm softmax-regression, not of logistic-regression",
        ),
        (
            &["model.algorithm=softmax-regression", "model.classes=1"],
            "model.classes = 1: is 1, must be from 2 to 65536",
        ),
        (
            &["model.algorithm=softmax-regression"],
            "model.classes = 0: is 0, must be from 2 to 65536",
        ),
        (
            &["model.algorithm=factorization-machine"],
            "model.rank = 0: is 0, must be from 1 to 65536",
        ),
        (
            &["model.rank=4"],
            "model.rank = 4: is a key of algorithm factorization-machine, not of logistic-regression",
        ),
        (
            &["model.algorithm=svm", "model.loss=logistic"],
            "model.loss = \"logistic\": of algorithm svm must be \"hinge\" or \"squared-hinge\"",
        ),
        (
            &["model.algorithm=softmax-regression", "model.classes=3", "output.formats=text"],
            "\"text\" is for linear models, not for algorithm \"softmax-regression\"",
        ),
    ] {
        let ended = run(dir.path(), sets);
        assert_eq!(ended.code, Some(7), "{sets:?}: {ended:?}");
        assert!(ended.stderr.contains(message), "{message} in {}", ended.stderr);
        assert!(!dir.path().join("ckpt").exists(), "{sets:?}: something was written");
    }
}
