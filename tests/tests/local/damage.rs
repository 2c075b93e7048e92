//! A damaged checkpoint is moved to `damaged/` and reported; the job uses an older one or fails, according to its policy.

use std::path::{Path, PathBuf};

use heddle_tests::checkpointed_job::{checkpoints_in, finished_job, shard_files};
use heddle_tests::local::{Ended, heddle};

/// The newest checkpoint's folder.
fn newest(dir: &Path) -> PathBuf {
    checkpoints_in(&dir.join("ckpt")).pop().expect("one at least")
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
    let file = shard_files(&folder).remove(0);
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
    std::fs::write(shard_files(&folder).remove(0), b"nothing like a shard").expect("written");
    let ended = go_on(dir.path(), &["--set", "checkpoint.on-corrupt=fail"]);
    assert_eq!(ended.code, Some(8), "{ended:?}");
    assert!(folder.exists());
    let verified = heddle(dir.path(), &["checkpoint", "verify", "ckpt"]).expect("heddle starts");
    assert_eq!(verified.code, Some(8), "{verified:?}");
}

#[test]
fn a_missing_file_is_refused_by_name() {
    let dir = finished_job();
    std::fs::remove_file(shard_files(&newest(dir.path())).remove(0)).expect("removed");
    let verified = heddle(dir.path(), &["checkpoint", "verify", "ckpt"]).expect("heddle starts");
    assert_eq!(verified.code, Some(8), "{verified:?}");
    let said = format!("{}{}", verified.stdout, verified.stderr);
    assert!(said.contains(".ckpt"), "the file is named: {said}");
}
