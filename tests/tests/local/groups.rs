//! `heddle checkpoint groups` and `repair` on each kind of damage, with a copy of the folder as a mirror.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use heddle_am::claim::local_owner;
use heddle_tests::checkpointed_job::{checkpoints_in, copy_tree, finished_job, shard_files};
use heddle_tests::local::{Ended, command, heddle};

/// A finished job with checkpoints in `ckpt`, and a copy of them in `mirror`.
fn mirrored_job() -> tempfile::TempDir {
    let dir = finished_job();
    copy_tree(&dir.path().join("ckpt"), &dir.path().join("mirror"));
    dir
}

/// The folders of the newest checkpoint and of the one before it.
fn newest_two(dir: &Path) -> (PathBuf, PathBuf) {
    let mut folders = checkpoints_in(&dir.join("ckpt"));
    let newest = folders.pop().expect("two at least");
    (newest, folders.pop().expect("two at least"))
}

fn checkpoint(dir: &Path, arguments: &[&str]) -> Ended {
    let mut all = vec!["checkpoint"];
    all.extend(arguments);
    heddle(dir, &all).expect("heddle starts")
}

type Accident = (&'static str, &'static str, fn(&Path, &Path));

fn sidecar(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".md5");
    name.into()
}

const ACCIDENTS: [Accident; 5] = [
    ("deleted", "missing", |file, _| std::fs::remove_file(file).expect("removed")),
    ("truncated", "damaged", |file, _| {
        let bytes = std::fs::read(file).expect("readable");
        std::fs::write(file, &bytes[..bytes.len() / 2]).expect("written");
    }),
    ("flipped", "damaged", |file, _| {
        let mut bytes = std::fs::read(file).expect("readable");
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        std::fs::write(file, bytes).expect("written");
    }),
    ("swapped", "other version", |file, other| {
        std::fs::copy(other, file).expect("copied");
    }),
    ("swapped with its sidecar", "other version", |file, other| {
        std::fs::copy(other, file).expect("copied");
        let theirs = std::fs::read_to_string(sidecar(other)).expect("readable");
        let (sum, _) = theirs.split_once(' ').expect("a sum");
        let name = file.file_name().and_then(|name| name.to_str()).expect("a name");
        std::fs::write(sidecar(file), format!("{sum} *{name}\n")).expect("written");
    }),
];

#[test]
fn each_damage_is_named_and_repaired_from_a_mirror() {
    let dir = mirrored_job();
    let dir = dir.path();
    let whole = checkpoint(dir, &["groups", "ckpt"]);
    assert_eq!(whole.code, Some(0), "{whole:?}");
    assert!(whole.stdout.contains("1 of 1 good"), "{}", whole.stdout);
    let (newest, before) = newest_two(dir);
    let (file, other) = (shard_files(&newest).remove(1), shard_files(&before).remove(1));
    let bytes = std::fs::read(&file).expect("readable");
    for (what, word, happen) in ACCIDENTS {
        happen(&file, &other);
        let alone = checkpoint(dir, &["groups", "ckpt"]);
        assert_eq!(alone.code, Some(8), "{what}: {alone:?}");
        assert!(alone.stdout.contains(&format!("{word} ")), "{what}: {}", alone.stdout);
        let with = checkpoint(dir, &["--json", "groups", "ckpt", "--from", "mirror"]);
        assert_eq!(with.code, Some(0), "{what}: {with:?}");
        let bad = format!("\"state\":\"{word}\"");
        let line = with.stdout.lines().find(|line| line.contains(&bad)).expect("its shard");
        assert!(line.contains("\"restorable\":true,\"whole\":false"), "{what}: {line}");
        assert!(line.contains("\"state\":\"good\""), "{what}: {line}");

        let lost = checkpoint(dir, &["repair", "ckpt"]);
        assert_eq!(lost.code, Some(8), "{what}: {lost:?}");
        assert!(lost.stderr.contains("shard 1 has no good copy"), "{what}: {}", lost.stderr);
        let dry = checkpoint(dir, &["repair", "ckpt", "--from", "mirror", "--dry-run"]);
        assert_eq!(dry.code, Some(0), "{what}: {dry:?}");
        let json = ["--json", "repair", "ckpt", "--from", "mirror", "--dry-run"];
        let lines = checkpoint(dir, &json).stdout;
        let line = lines.lines().find(|line| line.contains("\"was\"")).expect("its checkpoint");
        let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let replaced = &line["replaced"][0];
        assert!(file.ends_with(replaced["file"].as_str().expect("a name")), "{what}: {line}");
        let was = replaced["was"].as_str().expect("a text");
        assert!(was.contains(&file.display().to_string()), "{what}: {line}");
        assert!(line["dry_run"] == true && line["lost"] == serde_json::json!([]), "{line}");
        assert_eq!(checkpoint(dir, &["verify", "ckpt"]).code, Some(8), "{what}: nothing changed");
        let repaired = checkpoint(dir, &["repair", "ckpt", "--from", "mirror"]);
        assert_eq!(repaired.code, Some(0), "{what}: {repaired:?}");
        assert!(repaired.stderr.contains("is replaced by"), "{what}: {}", repaired.stderr);
        assert_eq!(checkpoint(dir, &["verify", "ckpt"]).code, Some(0), "{what}");
        assert_eq!(std::fs::read(&file).expect("readable"), bytes, "{what}");
    }
    let aside = std::fs::read_dir(dir.join("ckpt/damaged")).expect("set aside").count();
    assert_eq!(aside, ACCIDENTS.len(), "one folder for each repair");
    let again = checkpoint(dir, &["repair", "ckpt"]);
    assert_eq!(again.code, Some(0), "{again:?}");
    assert!(again.stderr.contains("every file is good"), "{}", again.stderr);
}

/// Makes this process, which lives, the owner of a folder. Returns the claim as it was.
fn own(folder: &Path) -> Vec<u8> {
    let file = folder.join("claims/g1");
    let before = std::fs::read(&file).expect("readable");
    let mut claim: serde_json::Value = serde_json::from_slice(&before).expect("JSON");
    claim["owner"] = serde_json::to_value(local_owner().expect("in /proc")).expect("JSON");
    std::fs::write(&file, claim.to_string()).expect("written");
    before
}

#[test]
fn s47_repair_while_an_owner_lives_is_exit_9() {
    let dir = mirrored_job();
    let dir = dir.path();
    let (newest, _) = newest_two(dir);
    let file = shard_files(&newest).remove(0);
    std::fs::remove_file(&file).expect("removed");
    for owned in ["ckpt", "mirror"] {
        let before = own(&dir.join(owned));
        for arguments in [&[][..], &["--dry-run"], &["--take-over"]] {
            let repair = ["repair", "ckpt", "--from", "mirror"];
            let refused = checkpoint(dir, &[&repair, arguments].concat());
            assert_eq!(refused.code, Some(9), "{owned} {arguments:?}: {refused:?}");
            let (owner, running) = (format!("/{owned} belongs to run"), "which is running");
            assert!(refused.stderr.contains(&owner), "{}", refused.stderr);
            assert!(refused.stderr.contains(running), "{}", refused.stderr);
            assert!(!file.exists(), "nothing was touched");
        }
        std::fs::write(dir.join(owned).join("claims/g1"), before).expect("written");
    }
    let repaired = checkpoint(dir, &["repair", "ckpt", "--from", "mirror"]);
    assert_eq!(repaired.code, Some(0), "{repaired:?}");
}

/// The process is killed at many moments of its work. The next one makes the folder whole, and nothing of the first is in its
/// way.
#[test]
fn s47_repair_that_is_killed_is_completed_by_the_next_one() {
    let dir = mirrored_job();
    let dir = dir.path();
    let (newest, before) = newest_two(dir);
    let mut files = shard_files(&newest);
    files.extend(shard_files(&before));
    let bytes: Vec<_> = files.iter().map(|file| std::fs::read(file).expect("readable")).collect();
    let repair = ["checkpoint", "repair", "ckpt", "--from", "mirror"];
    let damage = || files.iter().for_each(|file| std::fs::write(file, "damaged").expect("written"));
    damage();
    let begun = Instant::now();
    assert_eq!(heddle(dir, &repair).expect("heddle starts").code, Some(0));
    let usual = begun.elapsed();
    let mut killed_halfway = 0;
    for n in 0..40 {
        damage();
        let mut child = command(dir).expect("it is built");
        let child = child.args(repair).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = child.spawn().expect("heddle starts");
        std::thread::sleep(usual * n / 40);
        child.kill().expect("a child of this process");
        child.wait().expect("a child of this process");
        let is_good = |(file, bytes): &(&PathBuf, &Vec<u8>)| {
            std::fs::read(file).ok().as_ref() == Some(*bytes)
        };
        let good = files.iter().zip(&bytes).filter(is_good).count();
        killed_halfway += u32::from(good > 0 && good < files.len());
        let again = heddle(dir, &repair).expect("heddle starts");
        assert_eq!(again.code, Some(0), "{n}: {again:?}");
        assert!(files.iter().zip(&bytes).all(|pair| is_good(&pair)), "{n}: {again:?}");
        assert_eq!(checkpoint(dir, &["verify", "ckpt"]).code, Some(0), "{n}");
    }
    assert!(killed_halfway > 0, "no kill met the work, which takes {usual:?}");
}

#[test]
fn a_place_without_checkpoints_is_exit_7_at_once() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    std::fs::create_dir(dir.join("empty")).expect("a folder");
    std::fs::write(dir.join("file"), "text").expect("a file");
    nix::unistd::mkfifo(&dir.join("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    for place in ["empty", "file", "pipe", "./pipe", "/none/at/all"] {
        for command in ["groups", "repair"] {
            let begun = Instant::now();
            let ended = checkpoint(dir, &[command, place]);
            assert_eq!(ended.code, Some(7), "{command} {place}: {ended:?}");
            assert!(begun.elapsed() < Duration::from_secs(20), "{command} {place} hung");
        }
    }
}
