//! A damaged checkpoint is moved to `damaged/` and reported; the job uses an older one or fails, according to its policy.

use std::path::{Path, PathBuf};

use heddle_tests::local::{Ended, heddle, heddle_with, write_libsvm};

fn finished_job() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    write_libsvm(&dir.path().join("data"), "train", 2, 100, 40, 5, 1).expect("data");
    let text = "name = \"damage\"\n\
         [data]\ntrain = \"data/*.libsvm\"\npasses = 3\n\
         [model]\nalgorithm = \"logistic-regression\"\nfeatures = 40\n\
         [training]\nlanes = 2\nbatch = 10\n\
         [pservers]\ncount = 2\nshards = 4\n[trainers]\nmin = 1\nmax = 2\n\
         [checkpoint]\ndir = \"ckpt\"\nevery = \"1 pass\"\n[output]\nmodel = \"model\"\n";
    std::fs::write(dir.path().join("job.toml"), text).expect("a job file");
    // Each pass takes longer than a checkpoint: the final one would replace one that is still being saved.
    let slow = [("FAILPOINTS", "step-computed=sleep(50)")];
    let ended = heddle_with(dir.path(), &["run", "job.toml"], &slow).expect("heddle starts");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    dir
}

/// The newest checkpoint's folder.
fn newest(dir: &Path) -> PathBuf {
    let entries = std::fs::read_dir(dir.join("ckpt")).expect("checkpoints");
    let mut folders: Vec<(u32, PathBuf)> = entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let (_, number) = path.file_name()?.to_str()?.strip_prefix('g')?.split_once("-c")?;
            Some((number.parse().ok()?, path))
        })
        .collect();
    folders.sort();
    folders.pop().expect("one at least").1
}

fn shard_file(folder: &Path) -> PathBuf {
    let entries = std::fs::read_dir(folder).expect("files");
    let mut files: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "ckpt"))
        .collect();
    files.sort();
    files.remove(0)
}

/// Goes on for two more passes.
fn go_on(dir: &Path, more: &[&str]) -> Ended {
    let mut arguments =
        vec!["run", "job.toml", "--resume", "--overwrite", "--set", "data.passes=5"];
    arguments.extend(more);
    heddle(dir, &arguments).expect("heddle starts")
}

#[test]
fn a_changed_byte_falls_back_to_an_older_checkpoint() {
    let dir = finished_job();
    let folder = newest(dir.path());
    let file = shard_file(&folder);
    let mut bytes = std::fs::read(&file).expect("readable");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&file, bytes).expect("written");
    let name = file.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
    let ended = go_on(dir.path(), &[]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains(&name), "the file is named: {}", ended.stderr);
    assert!(!folder.exists(), "the damaged checkpoint is out of the way");
    let verified = heddle(dir.path(), &["checkpoint", "verify", "ckpt"]).expect("heddle starts");
    assert_eq!(verified.code, Some(0), "{verified:?}");
}

#[test]
fn on_corrupt_fail_stops_with_8_and_changes_nothing() {
    let dir = finished_job();
    let folder = newest(dir.path());
    std::fs::write(shard_file(&folder), b"nothing like a shard").expect("written");
    let ended = go_on(dir.path(), &["--set", "checkpoint.on-corrupt=fail"]);
    assert_eq!(ended.code, Some(8), "{ended:?}");
    assert!(folder.exists());
    let verified = heddle(dir.path(), &["checkpoint", "verify", "ckpt"]).expect("heddle starts");
    assert_eq!(verified.code, Some(8), "{verified:?}");
}

#[test]
fn a_missing_file_is_refused_by_name() {
    let dir = finished_job();
    std::fs::remove_file(shard_file(&newest(dir.path()))).expect("removed");
    let verified = heddle(dir.path(), &["checkpoint", "verify", "ckpt"]).expect("heddle starts");
    assert_eq!(verified.code, Some(8), "{verified:?}");
    let said = format!("{}{}", verified.stdout, verified.stderr);
    assert!(said.contains(".ckpt"), "the file is named: {said}");
}
