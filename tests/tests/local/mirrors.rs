//! Mirrors of the checkpoint directory: a job continues from one when the directory is lost, and takes single files from it.

use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use heddle_am::claim::local_owner;
use heddle_protocol::view::JobEvent;
use heddle_tests::checkpointed_job::{checkpointed_job, checkpoints_in, shard_files};
use heddle_tests::hadoop::wait_until;
use heddle_tests::local::{Ended, Run, heddle, heddle_with};

const LIMIT: Duration = Duration::from_secs(120);
/// Makes each pass longer than a checkpoint.
const SLOW: &str = "step-computed=sleep(20)";

/// A job that keeps mirrors in `m1` and `m2`.
fn job() -> tempfile::TempDir {
    checkpointed_job("mirrors = [\"m1\", \"m2\"]\n")
}

fn run(dir: &Path, arguments: &[&str]) -> Ended {
    let mut all = vec!["run", "job.toml"];
    all.extend(arguments);
    heddle_with(dir, &all, &[("FAILPOINTS", SLOW)]).expect("heddle starts")
}

fn ends_well(dir: &Path, arguments: &[&str]) -> Ended {
    let ended = run(dir, arguments);
    assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
    ended
}

/// The model of an undisturbed run.
fn undisturbed() -> Vec<u8> {
    let dir = job();
    ends_well(dir.path(), &["--set", "checkpoint.mirrors=[]"]);
    model(dir.path())
}

fn model(dir: &Path) -> Vec<u8> {
    std::fs::read(dir.join("model/model.safetensors")).expect("a model")
}

/// The name of the newest checkpoint's folder in `dir`.
fn newest(dir: &Path) -> Option<String> {
    let folder = checkpoints_in(dir).pop()?;
    folder.file_name()?.to_str().map(str::to_owned)
}

fn verify(dir: &Path, place: &str) {
    let verified = heddle(dir, &["checkpoint", "verify", place]).expect("heddle starts");
    assert_eq!(verified.code, Some(0), "{place}: {verified:?}");
}

#[test]
fn a_job_resumes_from_a_mirror_with_the_same_bytes() {
    let dir = job();
    let dir = dir.path();
    ends_well(dir, &["--set", "data.passes=2"]);
    let last = newest(&dir.join("ckpt")).expect("one at least");
    for mirror in ["m1", "m2"] {
        verify(dir, mirror);
        assert_eq!(newest(&dir.join(mirror)).as_ref(), Some(&last), "{mirror}");
    }
    std::fs::remove_dir_all(dir.join("ckpt")).expect("lost");
    let again = ["--resume", "--from", "m1", "--overwrite"];
    let set = ["--set", "data.passes=3", "--set", "checkpoint.dir=ckpt-2"];
    let sums = ["--set", "checkpoint.digest=md5+sha256"];
    let ended = ends_well(dir, &[&again[..], &set[..], &sums[..]].concat());
    assert_eq!(model(dir), undisturbed(), "{}", ended.stderr);
    verify(dir, "ckpt-2");
    // The mirrors follow the new directory.
    let last = newest(&dir.join("ckpt-2")).expect("one at least");
    assert!(last.starts_with("g2-"), "{last}");
    for place in ["ckpt-2", "m1", "m2"] {
        for file in shard_files(&dir.join(place).join(&last)) {
            let sums = file.with_extension("ckpt.sha256");
            assert!(sums.exists(), "{} is not there", sums.display());
        }
    }
    for mirror in ["m1", "m2"] {
        verify(dir, mirror);
        assert_eq!(newest(&dir.join(mirror)).as_ref(), Some(&last), "{mirror}");
    }
}

#[test]
fn single_files_are_restored_from_a_mirror() {
    let dir = job();
    let dir = dir.path();
    ends_well(dir, &["--set", "data.passes=2"]);
    let last = newest(&dir.join("ckpt")).expect("one at least");
    let files = shard_files(&dir.join("ckpt").join(&last));
    std::fs::remove_file(&files[0]).expect("removed");
    let mut bytes = std::fs::read(&files[2]).expect("readable");
    *bytes.last_mut().expect("not empty") ^= 1;
    std::fs::write(&files[2], bytes).expect("written");
    // One mirror has lost the file too.
    let there = shard_files(&dir.join("m1").join(&last));
    std::fs::remove_file(&there[0]).expect("removed");
    let ended = ends_well(dir, &["--resume", "--overwrite", "--set", "data.passes=3"]);
    for file in [&files[0], &files[2]] {
        let name = file.file_name().and_then(|name| name.to_str()).expect("a name");
        assert!(ended.stderr.contains(name), "{name} is not named: {}", ended.stderr);
    }
    assert!(ended.stderr.contains("from another copy"), "{}", ended.stderr);
    assert_eq!(model(dir), undisturbed(), "{}", ended.stderr);
    let aside = std::fs::read_dir(dir.join("ckpt/damaged")).expect("set aside");
    let names: Vec<_> = aside.map(|entry| entry.expect("readable").file_name()).collect();
    let is_file = |name: &std::ffi::OsString| name.to_string_lossy().starts_with("files-");
    assert!(!names.is_empty() && names.iter().all(is_file), "{names:?}");
}

#[test]
fn a_failing_mirror_fails_no_checkpoint() {
    let dir = job();
    let dir = dir.path();
    let slow = [("FAILPOINTS", "step-computed=sleep(50)")];
    let run = Run::start_with(dir, "job.toml", &[], &slow).expect("started");
    run.wait_event("a checkpoint", LIMIT, |event| {
        matches!(event, JobEvent::CheckpointCommitted(_)).then_some(())
    })
    .expect("committed");
    wait_until("both mirrors", LIMIT, || {
        let views = run.view()?.mirrors;
        ensure!(views.iter().all(|mirror| mirror.checkpoint.is_some()), "{views:?}");
        Ok(())
    })
    .expect("copied");
    // A file takes the place of one mirror, while the next checkpoint may be copied to it.
    for moved in 0.. {
        if std::fs::write(dir.join("m2"), "a file").is_ok() {
            break;
        }
        std::fs::rename(dir.join("m2"), dir.join(format!("lost-{moved}"))).expect("renamed");
    }
    let run = run.expecting(&["checkpoint_not_mirrored", "mirror_delayed"]);
    let (code, _, stderr) = run.finish(LIMIT).expect("ended");
    assert_eq!(code, Some(0), "{stderr}");
    verify(dir, "m1");
    assert_eq!(newest(&dir.join("m1")), newest(&dir.join("ckpt")));
    let status = heddle(dir, &["status"]).expect("heddle starts");
    let line = status.stdout.lines().find(|line| line.starts_with("mirror") && line.contains("m2"));
    assert!(line.is_some_and(|line| line.contains(" behind for ")), "{}", status.stdout);
}

#[test]
fn a_mirror_whose_owner_lives_is_exit_9() {
    let dir = job();
    let dir = dir.path();
    ends_well(dir, &["--set", "data.passes=1"]);
    let path = dir.join("m1/claims/g1");
    let claim = std::fs::read(&path).expect("readable");
    let mut claim: serde_json::Value = serde_json::from_slice(&claim).expect("JSON");
    claim["owner"] = serde_json::to_value(local_owner().expect("in /proc")).expect("JSON");
    std::fs::write(&path, claim.to_string()).expect("written");
    let set = ["--set", "checkpoint.dir=ckpt-2"];
    let refused = run(dir, &[&["--resume", "--from", "m1", "--overwrite"][..], &set[..]].concat());
    assert_eq!(refused.code, Some(9), "{refused:?}");
    assert!(refused.stderr.contains("which is running"), "{}", refused.stderr);
    assert!(!dir.join("ckpt-2").exists(), "nothing was started");
}
