//! Jobs with `checkpoint.copies = 2`: backups save their shards too, and a file that is missing or bad is replaced by the
//! other one of the same cut, with the same bytes.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use heddle_protocol::ids::Slot;
use heddle_protocol::manifest::Manifest;
use heddle_protocol::view::{JobEvent, JobState};
use heddle_tests::checkpointed_job::{SLOW_STEPS, checkpointed_job, checkpoints_in};
use heddle_tests::local::{Ended, Run, heddle, heddle_with, kill9, pid_of};
use heddle_tests::logs::KILLS;

const LIMIT: Duration = Duration::from_secs(120);

/// A job of four shards, each with a backup that saves its file too.
fn job() -> tempfile::TempDir {
    let dir = checkpointed_job("copies = 2\n");
    let path = dir.path().join("job.toml");
    let text = std::fs::read_to_string(&path).expect("readable");
    let text = text.replace("[pservers]\n", "[pservers]\nreplicas = 1\n");
    std::fs::write(path, text).expect("written");
    dir
}

fn run(dir: &Path, arguments: &[&str]) -> Ended {
    let mut all = vec!["run", "job.toml"];
    all.extend(arguments);
    heddle_with(dir, &all, &[SLOW_STEPS]).expect("heddle starts")
}

fn ends_well(dir: &Path, arguments: &[&str]) -> Ended {
    let ended = run(dir, arguments);
    assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
    ended
}

fn model(dir: &Path) -> Vec<u8> {
    std::fs::read(dir.join("model/model.safetensors")).expect("a model")
}

/// The model of an undisturbed run without backups.
fn undisturbed() -> Vec<u8> {
    let dir = checkpointed_job("");
    ends_well(dir.path(), &[]);
    model(dir.path())
}

fn manifest(folder: &Path) -> Manifest {
    let json = std::fs::read(folder.join("MANIFEST.json")).expect("a manifest");
    Manifest::from_json(&json).expect("valid")
}

/// The folders of the newest checkpoint and of the one before it.
fn newest_two(dir: &Path) -> [PathBuf; 2] {
    let mut folders = checkpoints_in(&dir.join("ckpt"));
    let newest = folders.pop().expect("two at least");
    [newest, folders.pop().expect("two at least")]
}

/// The files of a shard in a checkpoint, the primary's first.
fn files(folder: &Path, shard: usize) -> [PathBuf; 2] {
    let copies = manifest(folder).shards[shard].copies();
    let paths: Vec<PathBuf> = copies.iter().map(|copy| folder.join(&copy.file)).collect();
    paths.try_into().expect("two copies")
}

fn flip(file: &Path) {
    let mut bytes = std::fs::read(file).expect("readable");
    *bytes.last_mut().expect("not empty") ^= 1;
    std::fs::write(file, bytes).expect("written");
}

fn truncate(file: &Path) {
    let bytes = std::fs::read(file).expect("readable");
    std::fs::write(file, &bytes[..bytes.len() / 2]).expect("written");
}

/// The file becomes that of another cut, and its sidecar fits it.
fn swap(file: &Path, other: &Path) {
    std::fs::copy(other, file).expect("copied");
    let sidecar = |file: &Path| PathBuf::from(format!("{}.md5", file.display()));
    let theirs = std::fs::read_to_string(sidecar(other)).expect("readable");
    let (sum, _) = theirs.split_once(' ').expect("a sum");
    let name = file.file_name().and_then(|name| name.to_str()).expect("a name");
    std::fs::write(sidecar(file), format!("{sum} *{name}\n")).expect("written");
}

fn checkpoint(dir: &Path, arguments: &[&str]) -> Ended {
    let mut all = vec!["checkpoint"];
    all.extend(arguments);
    heddle(dir, &all).expect("heddle starts")
}

/// A different accident for one file of each shard of the newest checkpoint. `first`: which of the two files.
fn damage(dir: &Path, first: usize) {
    let [newest, before] = newest_two(dir);
    let file = |shard: usize| files(&newest, shard)[(first + shard) % 2].clone();
    std::fs::remove_file(file(0)).expect("removed");
    truncate(&file(1));
    flip(&file(2));
    swap(&file(3), &files(&before, 3)[0]);
}

#[test]
fn s46_each_damage_of_a_copy_restores_the_same_cut() {
    let dir = job();
    let dir = dir.path();
    let trained = ends_well(dir, &["--set", "data.passes=2"]);
    let [newest, _] = newest_two(dir);
    for (shard, file) in manifest(&newest).shards.iter().enumerate() {
        let holders: Vec<_> = file.copies.iter().filter_map(|copy| copy.holder).collect();
        assert_eq!(holders.len(), 2, "{file:?}: {}", trained.stderr);
        assert_ne!(holders[0], holders[1]);
        let [one, other] = files(&newest, shard);
        assert_eq!(std::fs::read(one).expect("one"), std::fs::read(other).expect("other"));
    }
    damage(dir, 0);
    let groups = checkpoint(dir, &["groups", "ckpt"]);
    assert_eq!(groups.stdout.matches("1 of 2 good").count(), 4, "{}", groups.stdout);
    let ended = ends_well(dir, &["--resume", "--overwrite"]);
    let name = newest.file_name().and_then(|name| name.to_str()).expect("a name");
    assert!(ended.stderr.contains("from another copy"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("older"), "{}", ended.stderr);
    assert_eq!(model(dir), undisturbed(), "from {name}: {}", ended.stderr);
}

#[test]
fn s47_repair_puts_equal_files_in_the_place_of_bad_ones() {
    let dir = job();
    let dir = dir.path();
    ends_well(dir, &[]);
    let trained = model(dir);
    for first in [0, 1] {
        damage(dir, first);
        let repaired = checkpoint(dir, &["repair", "ckpt"]);
        assert_eq!(repaired.code, Some(0), "{repaired:?}");
        let verified = checkpoint(dir, &["verify", "ckpt"]);
        assert_eq!(verified.code, Some(0), "{verified:?}");
    }
    // What reads a checkpoint directly takes the good copies too.
    damage(dir, 1);
    let [newest, _] = newest_two(dir);
    let from = newest.to_str().expect("a name");
    let exported = heddle(dir, &["export", from, "exported"]).expect("heddle starts");
    assert_eq!(exported.code, Some(0), "{exported:?}");
    let bytes = std::fs::read(dir.join("exported/model.safetensors")).expect("exported");
    assert_eq!(bytes, trained);
    let init = format!("model.init={from}");
    let warm = ["--set", &init, "--set", "checkpoint.dir=warm", "--set", "output.model=warm-model"];
    ends_well(dir, &warm);
    assert_ne!(std::fs::read(dir.join("warm-model/model.safetensors")).expect("a model"), trained);
}

#[test]
fn s46_without_a_good_copy_an_older_cut_is_used() {
    let dir = job();
    let dir = dir.path();
    ends_well(dir, &["--set", "data.passes=2"]);
    let [newest, _] = newest_two(dir);
    for file in files(&newest, 2) {
        flip(&file);
    }
    let lost = checkpoint(dir, &["repair", "ckpt"]);
    assert_eq!(lost.code, Some(8), "{lost:?}");
    let ended = ends_well(dir, &["--resume", "--overwrite"]);
    let name = newest.file_name().and_then(|name| name.to_str()).expect("a name");
    assert!(ended.stderr.contains(name), "{name} is not named: {}", ended.stderr);
    assert_eq!(model(dir), undisturbed(), "{}", ended.stderr);
}

/// A checkpoint at each step while a pserver is killed: none is torn, each has the state of its step.
#[test]
fn r18_primaries_may_die_while_their_shards_are_saved() {
    let dir = job();
    let dir = dir.path();
    let set = ["--set", "pservers.count=3", "--set", "checkpoint.every=\"1 steps\""];
    let keep = ["--set", "checkpoint.keep=1000"];
    let arguments = [&set[..], &keep[..]].concat();
    let run = Run::start_with(dir, "job.toml", &arguments, &[SLOW_STEPS]).expect("started");
    let mut run = run.expecting(KILLS).expecting(&["fewer than 2 copies"]);
    let ready = |view: &heddle_protocol::view::JobView| {
        view.state == JobState::Running
            && view.checkpoints.len() >= 2
            && view.slots.iter().all(|slot| slot.pid > 0)
    };
    let view = run.wait_for("checkpoints", LIMIT, ready).expect("it trains");
    let killed = Instant::now();
    kill9(pid_of(&view, Slot::pserver(1)).expect("it runs")).expect("it was alive");
    let (code, events, stderr) = run.finish(LIMIT).expect("the run ends");
    assert_eq!(code, Some(0), "{stderr}");
    println!("ended {} ms after the kill", killed.elapsed().as_millis());
    let failed_over = events.iter().any(|event| matches!(event, JobEvent::FailedOver { .. }));
    assert!(failed_over, "{stderr}");
    assert_eq!(model(dir), undisturbed());
    let verified = checkpoint(dir, &["verify", "ckpt"]);
    assert_eq!(verified.code, Some(0), "{verified:?}");
    for folder in checkpoints_in(&dir.join("ckpt")) {
        for file in manifest(&folder).shards {
            assert!(file.copies.iter().all(|copy| copy.md5 == file.md5), "{}", folder.display());
        }
    }
}

#[test]
fn copies_without_backups_are_refused_with_7() {
    let dir = checkpointed_job("copies = 2\n");
    let refused = run(dir.path(), &[]);
    assert_eq!(refused.code, Some(7), "{refused:?}");
    let text = "checkpoint.copies = 2: is 2, must be at most 1 + pservers.replicas = 1";
    assert!(refused.stderr.contains(text), "{}", refused.stderr);
    assert!(!dir.path().join("ckpt").exists());
}
