//! Weights of records as real jobs: in the text, by class, and those that are refused.

use std::path::Path;

use heddle_tests::local::{Ended, heddle};
use tempfile::TempDir;

/// A job on records with these labels; each has a feature of its class and a common one.
fn folder(labels: impl Iterator<Item = &'static str>) -> TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    let records: String = labels
        .enumerate()
        .map(|(n, label)| format!("{label} {}:1 5:{}\n", 1 + n % 4, n % 3))
        .collect();
    std::fs::write(dir.path().join("train.libsvm"), records).expect("written");
    let text = "name = \"weights\"\n[data]\ntrain = \"train.libsvm\"\ntest = \"train.libsvm\"\n\
        passes = 3\n\
        [model]\nfeatures = 5\nstandardise = false\n[training]\nlanes = 2\nbatch = 10\n\
        [pservers]\ncount = 1\nshards = 2\n[trainers]\nmin = 1\nmax = 1\n\
        [checkpoint]\ndir = \"ckpt\"\n[output]\nmodel = \"model\"\n";
    std::fs::write(dir.path().join("job.toml"), text).expect("a job file");
    dir
}

fn run(dir: &Path, sets: &[&str]) -> Ended {
    let mut arguments = vec!["run", "job.toml"];
    sets.iter().for_each(|set| arguments.extend(["--set", set]));
    heddle(dir, &arguments).expect("heddle starts")
}

/// The model's weights and the line of figures of a job that completes.
fn trained(dir: &Path, sets: &[&str]) -> (String, String) {
    let ended = run(dir, sets);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let line = ended.stdout.lines().find(|line| line.starts_with("test  ")).expect("figures");
    let model = std::fs::read_to_string(dir.join("model/model.txt")).expect("a model");
    (model, line.trim_start_matches("test  ").to_owned())
}

#[test]
fn class_weight_is_a_weight_of_each_record_of_the_class() {
    // Of the same length: tasks are cut by bytes.
    let plain = || folder((0..200).map(|n| ["0", "1:1", "1:1"][n % 3]));
    let weighted = folder((0..200).map(|n| ["0", "1:3", "1:3"][n % 3]));
    let by_record = trained(weighted.path(), &[]);
    let by_class = trained(plain().path(), &["data.class-weights={ \"1\" = 3.0 }"]);
    assert_eq!(by_class, by_record);
    assert_ne!(by_record, trained(plain().path(), &[]), "a weight changes the model");

    let scored = heddle(weighted.path(), &["predict", "model", "train.libsvm", "--labelled"]);
    let scored = scored.expect("starts");
    assert_eq!(scored.code, Some(0), "{}", scored.stderr);
    assert!(scored.stderr.contains(&by_record.1), "{} in {}", by_record.1, scored.stderr);
}

#[test]
fn records_of_weight_zero_change_no_figure() {
    // A wrong label at weight 0 beside each right one.
    let with_zeros = folder((0..200).map(|n| ["1", "0:0", "0", "1:0"][n % 4]));
    let (_, figures) = trained(with_zeros.path(), &["data.passes=20"]);
    assert!(figures.ends_with("auc 1.0000  accuracy 1.0000"), "{figures}");
}

#[test]
fn weights_that_are_refused_are_exit_7() {
    for (record, message) in [
        (
            "1:-2 1:1",
            "201:3: expected a weight after the label (a finite number of at least 0), found \"-2\"",
        ),
        (
            "1:nan 1:1",
            "201:3: expected a weight after the label (a finite number of at least 0), found \"nan\"",
        ),
        (
            "1:much 1:1",
            "201:3: expected a weight after the label (a finite number of at least 0), found \"much\"",
        ),
    ] {
        let dir = folder((0..200).map(|n| ["0", "1"][n % 2]));
        let path = dir.path().join("train.libsvm");
        let text = std::fs::read_to_string(&path).expect("readable") + record + "\n";
        std::fs::write(&path, text).expect("written");
        let ended = run(dir.path(), &[]);
        assert_eq!(ended.code, Some(7), "{record}: {ended:?}");
        assert!(ended.stderr.contains(message), "{message} in {}", ended.stderr);
        let skipped = run(dir.path(), &["data.bad-records=skip:1"]);
        assert_eq!(skipped.code, Some(0), "{record}: {}", skipped.stderr);
    }
    let dir = folder((0..200).map(|n| ["0", "1"][n % 2]));
    for (sets, message) in [
        (
            &["data.class-weights={ \"2\" = 3.0 }"][..],
            "2: is not a class of the job, whose labels are 0 and 1, or -1 and +1",
        ),
        (
            &["data.class-weights={ \"1\" = -3.0 }"],
            "1: is -3, must be a finite number of at least 0",
        ),
        (&["data.class-weights={ \"0\" = 1, \"-1\" = 2 }"], "\"0\": the class has two weights"),
        (&["data.class-weights={ one = 1 }"], "\"one\" is not the label of a class"),
        (&["data.class-weights=3"], "expected a table such as { \"1\" = 3.0 }"),
        (
            &["model.algorithm=linear-regression", "data.class-weights={ \"1\" = 3.0 }"],
            "is for algorithms with classes; the labels of linear-regression are numbers",
        ),
    ] {
        let ended = run(dir.path(), sets);
        assert_eq!(ended.code, Some(7), "{sets:?}: {ended:?}");
        assert!(ended.stderr.contains(message), "{message} in {}", ended.stderr);
        assert!(!dir.path().join("ckpt").exists(), "{sets:?}: something was written");
    }
}
