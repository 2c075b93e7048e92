//! Sparse tables in real jobs: the bits of a dense table, any keys, kills, and a table that gets full.

use std::path::Path;

use heddle_tests::local::{Ended, heddle};
use tempfile::TempDir;

const RECORDS: usize = 600;

/// Records with four of 40 features; `key` turns the number of a feature into its index.
fn folder(model: &str, key: fn(u64) -> u64) -> TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    let records: String = (0..RECORDS as u64)
        .map(|n| {
            let features = [1, 5 + n % 7, 15 + n % 11, 28 + n % 13];
            let features: String = features
                .iter()
                .enumerate()
                .map(|(i, feature)| format!(" {}:{}", key(*feature), 0.5 + i as f32))
                .collect();
            format!("{}{features}\n", (n % 7 < 3) as u8)
        })
        .collect();
    std::fs::write(dir.path().join("train.libsvm"), records).expect("written");
    let text = format!(
        "name = \"small\"\n[data]\ntrain = \"train.libsvm\"\ntest = \"train.libsvm\"\npasses = 4\n\
         [model]\n{model}[training]\nlanes = 2\nbatch = 16\n\
         [pservers]\ncount = 2\nshards = 4\n[trainers]\nmin = 1\nmax = 1\n\
         [checkpoint]\ndir = \"ckpt\"\n[output]\nmodel = \"model\"\n"
    );
    std::fs::write(dir.path().join("job.toml"), text).expect("a job file");
    dir
}

fn run(dir: &Path, sets: &[&str]) -> Ended {
    let mut arguments = vec!["run", "job.toml"];
    sets.iter().for_each(|set| arguments.extend(["--set", set]));
    heddle(dir, &arguments).expect("heddle starts")
}

/// The lines of a text model with a weight.
fn weights(dir: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(dir.join("model/model.txt")).expect("a model");
    let numbered =
        |line: &&str| line.starts_with(|c: char| c.is_ascii_digit()) || line.starts_with("bias");
    text.lines().filter(numbered).map(str::to_owned).collect()
}

fn test_line(ended: &Ended) -> String {
    let line = ended.stdout.lines().find(|line| line.starts_with("test  "));
    line.unwrap_or_else(|| panic!("{ended:?}")).to_owned()
}

/// A row of a sparse table has the bits of the same row of a dense one, whatever holds it.
#[test]
fn sparse_rows_have_the_bits_of_dense_ones() {
    let [dense, sparse] =
        ["features = 40\nstandardise = false\n", "features = \"any\"\n"].map(|model| {
            let dir = folder(model, |feature| feature);
            let ended = run(dir.path(), &[]);
            assert_eq!(ended.code, Some(0), "{}", ended.stderr);
            let scored = heddle(dir.path(), &["predict", "model", "train.libsvm"]).expect("starts");
            assert_eq!(scored.code, Some(0), "{}", scored.stderr);
            let text = ["predict", "model/model.txt", "train.libsvm"];
            let by_text = heddle(dir.path(), &text).expect("starts");
            assert_eq!(by_text.stdout, scored.stdout);
            (weights(dir.path()), test_line(&ended), scored.stdout)
        });
    assert_eq!(dense.0.len(), 33, "32 features and the bias");
    assert_eq!(dense, sparse);
}

/// Hashed keys of 64 bits, in no order; a factorization machine has two sparse tables.
#[test]
fn keys_are_any_u64() {
    fn hash(feature: u64) -> u64 {
        feature.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17)
    }
    for (algorithm, consistency) in
        [("", "asp"), ("", "ssp"), ("algorithm = \"factorization-machine\"\nrank = 3\n", "bsp")]
    {
        let dir = folder(&format!("features = \"any\"\n{algorithm}"), hash);
        let ended = run(dir.path(), &[&format!("training.consistency={consistency}")]);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let figures = test_line(&ended);
        let scored = heddle(dir.path(), &["predict", "model", "train.libsvm"]).expect("starts");
        let figures = figures.trim_start_matches("test  ");
        assert!(scored.stderr.contains(figures), "{figures} in {}", scored.stderr);
        if algorithm.is_empty() {
            let lines = weights(dir.path());
            let keys: Vec<u64> =
                lines.iter().filter_map(|line| line.split(' ').next()?.parse().ok()).collect();
            assert!(keys.is_sorted() && keys.len() == 32, "{keys:?}");
            assert!(keys.contains(&hash(28)), "{keys:?}");
        }
    }
}

#[test]
fn an_index_above_u64_is_a_bad_record() {
    let dir = folder("features = \"any\"\n", |feature| feature);
    std::fs::write(dir.path().join("train.libsvm"), "1 18446744073709551615:1\n").expect("written");
    assert_eq!(run(dir.path(), &[]).code, Some(0));
    std::fs::write(dir.path().join("train.libsvm"), "1 18446744073709551616:1\n").expect("written");
    let ended = run(dir.path(), &["checkpoint.dir=other", "output.model=other-model"]);
    assert_eq!(ended.code, Some(7), "{}", ended.stderr);
    let message =
        "train.libsvm:1:3: expected an index of at most 2^64 - 1, found \"18446744073709551616:1\"";
    assert!(ended.stderr.contains(message), "{}", ended.stderr);
}

#[test]
fn impossible_sparse_jobs_are_refused() {
    let dir = folder("features = \"any\"\n", |feature| feature);
    for (sets, message) in [
        (
            &["model.standardise=true"][..],
            "model.standardise = true: needs the number of features; model.features is \"any\"",
        ),
        (
            &["model.features=some"],
            "model.features = \"some\": expected \"any\" or a whole number from 1 to 4294967294",
        ),
        (&["model.table-full=stop"], "model.table-full = \"stop\""),
        (&["pservers.memory=17MiB"], "pservers.memory"),
    ] {
        let ended = run(dir.path(), sets);
        assert_eq!(ended.code, Some(7), "{sets:?}: {ended:?}");
        assert!(ended.stderr.contains(message), "{message} in {}", ended.stderr);
        assert!(!dir.path().join("ckpt").exists(), "{sets:?}: something was written");
    }
}

/// 300,000 features, of which a pserver of 40 MiB has room for two thirds.
#[test]
fn a_full_table_fails_the_job_or_drops_rows() {
    let dir = folder("features = \"any\"\n", |feature| feature);
    let records: String = (0..6000u64)
        .map(|n| {
            let features: String = (0..50).map(|i| format!(" {}:1", n * 50 + i)).collect();
            format!("{}{features}\n", n % 2)
        })
        .collect();
    std::fs::write(dir.path().join("train.libsvm"), records).expect("written");
    let small = ["pservers.memory=40MiB", "pservers.count=1", "data.passes=1"];
    let ended = run(dir.path(), &small);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    for words in
        ["table \"weights\" is full: shard ", "pservers.memory", "model.table-full = \"drop\""]
    {
        assert!(ended.stderr.contains(words), "{words} in {}", ended.stderr);
    }
    let rows = ["", "-again"].map(|name| {
        let (dir_set, model_set) =
            (format!("checkpoint.dir=ckpt{name}-drop"), format!("output.model=model{name}"));
        let sets = [&small[..], &["model.table-full=drop", &dir_set, &model_set]].concat();
        let ended = run(dir.path(), &sets);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let text = dir.path().join(format!("model{name}/model.txt"));
        std::fs::read_to_string(text).expect("a model")
    });
    assert_eq!(rows[0], rows[1], "the same rows are dropped");
    let kept = rows[0].lines().count();
    assert!((100_000..299_000).contains(&kept), "{kept}");
}
