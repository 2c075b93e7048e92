//! A checkpoint is restored into any number of pservers, from one to as many as there are shards.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use heddle_tests::local::{Run, write_libsvm};
use tempfile::TempDir;

use crate::recovery::model;

const LIMIT: Duration = Duration::from_secs(120);
const SHARDS: u32 = 6;

/// A BSP job with the optimizer's state beside the values. `features` of the model: dense or sparse.
fn folder(features: &str) -> TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    write_libsvm(&dir.path().join("data"), "train", 4, 100, 300, 12, 11).expect("data");
    let text = format!(
        "name = \"restored\"\n\
         [data]\ntrain = \"data/train-*.libsvm\"\n\
         [model]\nalgorithm = \"factorization-machine\"\nrank = 4\nfeatures = {features}\n\
         optimizer = {{ kind = \"adam\" }}\n\
         [training]\nconsistency = \"bsp\"\nlanes = 2\nbatch = 16\nseed = 7\n\
         [pservers]\ncount = 2\nshards = {SHARDS}\n\
         [trainers]\nmin = 2\nmax = 2\n\
         [checkpoint]\ndir = \"ckpt\"\nevery = \"1h\"\nkeep = 20\n\
         [output]\nmodel = \"model-moved\"\n"
    );
    std::fs::write(dir.path().join("job.toml"), text).expect("a job file");
    dir
}

fn train(dir: &Path, arguments: &[&str]) -> BTreeMap<String, String> {
    let run = Run::start(dir, "job.toml", arguments).expect("it starts");
    let (code, _, stderr) = run.finish(LIMIT).expect("the run ends");
    assert_eq!(code, Some(0), "{arguments:?}: {stderr}");
    model(dir, "moved")
}

/// Each run goes on with the pass after the last one, on another number of pservers: downwards and upwards.
fn any_number(features: &str) {
    let counts: Vec<u32> = (1..=SHARDS).rev().chain([4, 1, 6]).collect();
    let calm = folder(features);
    let passes = format!("data.passes={}", counts.len() + 1);
    let expected = train(calm.path(), &["--set", &passes]);

    let moved = folder(features);
    let mut values = train(moved.path(), &["--set", "data.passes=1"]);
    for (count, passes) in counts.into_iter().zip(2..) {
        let (passes, count) = (format!("data.passes={passes}"), format!("pservers.count={count}"));
        let before = std::mem::take(&mut values);
        std::fs::remove_dir_all(moved.path().join("model-moved"))
            .expect("the model of the run before");
        values = train(moved.path(), &["--resume", "--set", &passes, "--set", &count]);
        assert_ne!(values, before, "{count} trained another pass");
    }
    assert_eq!(values, expected);
}

#[test]
fn dense_checkpoints_restore_into_any_number_of_pservers() {
    any_number("300");
}

#[test]
fn sparse_checkpoints_restore_into_any_number_of_pservers() {
    any_number("\"any\"");
}
