//! Input that cannot be used ends a run with its exit code, with words that say where, and leaves nothing behind.

use std::path::Path;

use heddle_tests::checkpointed_job::checkpoints_in;
use heddle_tests::local::{Ended, heddle, write_libsvm};
use tempfile::TempDir;

/// A folder with good data and a good job file.
fn good() -> TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    write_libsvm(&dir.path().join("data"), "train", 2, 50, 20, 5, 1).expect("data");
    write_libsvm(&dir.path().join("data"), "test", 1, 50, 20, 5, 2).expect("data");
    job(dir.path(), "");
    dir
}

fn job(dir: &Path, more: &str) {
    let text = format!(
        "name = \"bad\"\n\
         [data]\ntrain = \"data/train-*.libsvm\"\ntest = \"data/test-*.libsvm\"\npasses = 1\n\
         [model]\nalgorithm = \"logistic-regression\"\nfeatures = 20\nstandardise = false\n\
         [training]\nlanes = 2\nbatch = 10\n\
         [pservers]\ncount = 1\nshards = 2\n[trainers]\nmin = 1\nmax = 1\n\
         [checkpoint]\ndir = \"ckpt\"\n[output]\nmodel = \"model\"\n{more}"
    );
    std::fs::write(dir.join("job.toml"), text).expect("a job file");
}

fn run(dir: &Path, arguments: &[&str]) -> Ended {
    let mut all = vec!["run", "job.toml"];
    all.extend(arguments);
    heddle(dir, &all).expect("heddle starts")
}

/// Ended with this code, printed all of these words, published nothing.
fn refused(dir: &Path, ended: &Ended, code: i32, words: &[&str]) {
    assert_eq!(ended.code, Some(code), "{ended:?}");
    for word in words {
        assert!(ended.stderr.contains(word), "{word:?} is not printed: {}", ended.stderr);
    }
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    assert!(!dir.join("model/MODEL.json").exists(), "something was published");
}

/// Whether no checkpoint was committed.
fn has_no_checkpoint(dir: &Path) -> bool {
    let dir = dir.join("ckpt");
    !dir.exists() || checkpoints_in(&dir).is_empty()
}

#[test]
fn missing_data_is_exit_7_and_named() {
    let dir = good();
    let ended = run(dir.path(), &["--set", "data.train=data/none.libsvm"]);
    refused(dir.path(), &ended, 7, &["data.train", "none.libsvm"]);
    let ended = run(dir.path(), &["--set", "data.test=data/none-*.libsvm"]);
    refused(dir.path(), &ended, 7, &["data.test", "none-*.libsvm"]);
    assert!(has_no_checkpoint(dir.path()));
}

#[test]
fn times_of_liveness_that_contradict_are_exit_7() {
    let dir = good();
    let orphan = ["--set", "liveness.dead=10s", "--set", "run.orphan-timeout=15s"];
    let refusals: [(&[&str], [&str; 3]); 5] = [
        (&["--set", "liveness.dead=4s"], ["liveness.dead", "4s", "5 × liveness.beat = 5s"]),
        (&["--set", "liveness.suspect=10s"], ["liveness.dead", "10s", "liveness.suspect = 10s"]),
        (&["--set", "liveness.beat=50ms"], ["liveness.beat", "50ms", "from 100ms to 10s"]),
        (&["--set", "liveness.stuck=5s"], ["liveness.stuck", "5s", "liveness.dead = 10s"]),
        (&orphan, ["liveness.dead", "10s", "half of run.orphan-timeout = 15s"]),
    ];
    for (arguments, words) in refusals {
        let ended = run(dir.path(), arguments);
        refused(dir.path(), &ended, 7, &words);
    }
    let ended = run(dir.path(), &["--set", "liveness.beat=soon"]);
    refused(dir.path(), &ended, 7, &["liveness.beat", "soon", "a duration"]);
}

#[test]
fn data_without_a_byte_is_exit_7() {
    let dir = good();
    std::fs::write(dir.path().join("data/empty.libsvm"), "").expect("written");
    let ended = run(dir.path(), &["--set", "data.train=data/empty.libsvm"]);
    refused(dir.path(), &ended, 7, &["data.train"]);
}

#[test]
fn data_without_a_record_is_exit_7() {
    let dir = good();
    let path = |name: &str| dir.path().join("data").join(name);
    std::fs::write(path("none.libsvm"), "# a comment\n\n \n# 1 1:1").expect("written");
    std::fs::write(path("bad.libsvm"), "x\ny\n").expect("written");
    std::fs::write(path("a-empty.libsvm"), "").expect("written");
    let set = |set: &str| run(dir.path(), &["--set", set, "--set", "data.bad-records=skip:5"]);
    for (key, file) in [("data.train", "none"), ("data.test", "none"), ("data.train", "bad")] {
        let ended = set(&format!("{key}=data/{file}.libsvm"));
        refused(dir.path(), &ended, 7, &[key, "no record"]);
    }
    assert!(has_no_checkpoint(dir.path()));
    // An empty file, and one of comments, before others.
    let all = "data.train=[\"data/a-empty.libsvm\", \"data/none.libsvm\", \"data/train-*.libsvm\"]";
    let ended = set(all);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.contains(" 100 in "), "{}", ended.stdout);
}

#[test]
fn a_malformed_record_is_exit_7_with_file_line_and_column() {
    for (record, words) in [
        ("1 3:0.5 4:oops", ["train-000.libsvm:51:", "oops"]),
        ("1 3:0.5 21:1", ["train-000.libsvm:51:", "21"]),
        ("7 3:0.5", ["train-000.libsvm:51:", "7"]),
        ("1 3:nan", ["train-000.libsvm:51:", "nan"]),
        ("1 0:1", ["train-000.libsvm:51:", "0"]),
    ] {
        let dir = good();
        let path = dir.path().join("data/train-000.libsvm");
        let text = std::fs::read_to_string(&path).expect("readable") + record + "\n";
        std::fs::write(&path, text).expect("written");
        let ended = run(dir.path(), &[]);
        refused(dir.path(), &ended, 7, &words);
    }
}

#[test]
fn bad_records_may_be_skipped_or_set_aside_and_are_counted() {
    for policy in ["skip:1", "quarantine"] {
        let dir = good();
        let path = dir.path().join("data/train-000.libsvm");
        let text = std::fs::read_to_string(&path).expect("readable") + "what is this\n";
        std::fs::write(&path, text).expect("written");
        let ended = run(dir.path(), &["--set", &format!("data.bad-records={policy}")]);
        assert_eq!(ended.code, Some(0), "{policy}: {ended:?}");
        assert!(ended.stderr.contains("train-000.libsvm:51"), "{policy}: {}", ended.stderr);
    }
    let dir = good();
    let path = dir.path().join("data/train-000.libsvm");
    let text = std::fs::read_to_string(&path).expect("readable") + "one\ntwo\n";
    std::fs::write(&path, text).expect("written");
    let ended = run(dir.path(), &["--set", "data.bad-records=skip:1"]);
    refused(dir.path(), &ended, 7, &["train-000.libsvm"]);
}

#[test]
fn message_names_the_first_bad_record_in_each_run() {
    for (consistency, policy, bad) in
        [("bsp", "fail", 1), ("asp", "fail", 1), ("bsp", "skip:3", 2), ("asp", "skip:3", 2)]
    {
        let dir = good();
        // Each lane, or trainer, meets some.
        for (file, at) in [(0, 40), (1, 2)] {
            let path = dir.path().join(format!("data/train-00{file}.libsvm"));
            let text = std::fs::read_to_string(&path).expect("readable");
            let mut lines: Vec<&str> = text.lines().collect();
            lines[at..at + bad].fill("what is this");
            std::fs::write(&path, lines.join("\n")).expect("written");
        }
        let set = [
            format!("training.consistency={consistency}"),
            format!("data.bad-records={policy}"),
            "trainers.max=2".to_owned(),
        ];
        let arguments: Vec<&str> = set.iter().flat_map(|set| ["--set", set]).collect();
        let ended = run(dir.path(), &arguments);
        refused(dir.path(), &ended, 7, &["train-000.libsvm:41:1:"]);
        assert!(!ended.stderr.contains("train-001.libsvm:3:"), "{}", ended.stderr);
    }
}

#[test]
fn poisoned_file_costs_its_own_tasks_alone() {
    let dir = good();
    let path = dir.path().join("data/train-000.libsvm");
    std::fs::write(&path, "what is this\n").expect("written");
    let asp = ["--set", "training.consistency=asp", "--set", "data.passes=2"];
    let ended = run(dir.path(), &asp);
    refused(dir.path(), &ended, 7, &["train-000.libsvm:1"]);
    let tolerant = [&asp[..], &["--set", "data.failed-share=50%"]].concat();
    let ended = run(dir.path(), &tolerant);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for words in ["set aside", "train-000.libsvm", "label"] {
        assert!(ended.stderr.contains(words), "{words}: {}", ended.stderr);
    }
    assert!(ended.stdout.contains("set aside"), "it is in the summary: {}", ended.stdout);
    let newest = checkpoints_in(&dir.path().join("ckpt")).pop().expect("a checkpoint");
    let manifest = std::fs::read_to_string(newest.join("MANIFEST.json"));
    assert!(manifest.expect("readable").contains("set_aside"), "and in the manifest");
    let ended = run(good().path(), &["--set", "data.failed-share=50%"]);
    assert_eq!(ended.code, Some(7), "{ended:?}");
    assert!(
        ended.stderr.contains("is 50%, must be 0% with training.consistency"),
        "{}",
        ended.stderr
    );
}

#[test]
fn foreign_checkpoint_directory_keeps_every_file() {
    let dir = good();
    std::fs::create_dir_all(dir.path().join("ckpt/g1-c1")).expect("made");
    std::fs::write(dir.path().join("ckpt/letters.txt"), "mine").expect("written");
    std::fs::write(dir.path().join("ckpt/g1-c1/thesis.tex"), "mine too").expect("written");
    let ended = run(dir.path(), &[]);
    refused(dir.path(), &ended, 7, &["checkpoint.dir", "ckpt"]);
    let read = |name: &str| std::fs::read_to_string(dir.path().join("ckpt").join(name));
    assert_eq!(read("letters.txt").expect("still there"), "mine");
    assert_eq!(read("g1-c1/thesis.tex").expect("still there"), "mine too");
}

#[test]
fn foreign_files_beside_checkpoints_survive_retention() {
    let dir = good();
    let ended = run(dir.path(), &["--set", "data.passes=2"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    std::fs::write(dir.path().join("ckpt/notes.txt"), "mine").expect("written");
    std::fs::create_dir(dir.path().join("ckpt/g1-c1-copy")).expect("made");
    let again = [
        "--fresh",
        "--overwrite",
        "--set",
        "data.passes=6",
        "--set",
        "checkpoint.every=1 pass",
        "--set",
        "checkpoint.keep=2",
    ];
    let ended = run(dir.path(), &again);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(dir.path().join("ckpt/notes.txt").exists());
    assert!(dir.path().join("ckpt/g1-c1-copy").exists());
}

#[test]
fn an_existing_model_is_kept_without_overwrite() {
    let dir = good();
    assert_eq!(run(dir.path(), &[]).code, Some(0));
    let before = std::fs::read(dir.path().join("model/MODEL.json")).expect("published");
    let ended = run(dir.path(), &["--fresh"]);
    assert_eq!(ended.code, Some(7), "{ended:?}");
    assert!(ended.stderr.contains("--overwrite"), "{}", ended.stderr);
    assert_eq!(std::fs::read(dir.path().join("model/MODEL.json")).expect("kept"), before);
    let ended = run(dir.path(), &["--fresh", "--overwrite"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_ne!(std::fs::read(dir.path().join("model/MODEL.json")).expect("replaced"), before);
}

#[test]
fn a_finished_run_is_not_repeated_and_names_the_next_step() {
    let dir = good();
    assert_eq!(run(dir.path(), &[]).code, Some(0));
    let before = std::fs::read(dir.path().join("model/MODEL.json")).expect("published");
    let ended = run(dir.path(), &["--overwrite"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("this job is finished"), "{}", ended.stderr);
    assert!(ended.stderr.contains("--fresh"), "{}", ended.stderr);
    let after = std::fs::read(dir.path().join("model/MODEL.json")).expect("kept");
    assert_eq!(before, after, "nothing is published again");
}

#[test]
fn ports_that_are_taken_are_exit_7_and_named() {
    let dir = good();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("bound").port();
    let ended = run(dir.path(), &["--set", &format!("network.ports={port}-{port}")]);
    refused(dir.path(), &ended, 7, &["network.ports"]);
}

#[test]
fn unwritable_directories_are_named() {
    // Root may write everywhere, so the places are files where folders are needed.
    for (key, file) in [("checkpoint.dir", "ckpt-file"), ("output.model", "model-file")] {
        let dir = good();
        std::fs::write(dir.path().join(file), "in the way").expect("written");
        let ended = run(dir.path(), &["--set", &format!("{key}={file}/below")]);
        refused(dir.path(), &ended, 7, &[file]);
        assert_eq!(std::fs::read_to_string(dir.path().join(file)).expect("kept"), "in the way");
    }
}

#[test]
fn keys_that_do_not_fit_each_other_are_exit_7_with_the_key() {
    let dir = good();
    for (sets, words) in [
        (
            &["model.optimizer={ kind = \"sgd\", rate = 0.1, alpha = 0.2 }"][..],
            &[
                "model.optimizer",
                "unknown field \"alpha\" (it is of ftrl); kind \"sgd\" has rate, gradient",
            ][..],
        ),
        (
            &["model.optimizer={ kind = \"adam\", decay = 0.9 }"],
            &[
                "model.optimizer",
                "unknown field \"decay\" (it is of rmsprop, adadelta); kind \"adam\" has rate",
            ],
        ),
        (
            &["pservers.min=3", "pservers.max=4"],
            &["pservers.min", "is 3, must not be above pservers.count = 1"],
        ),
        (
            &["pservers.count=2", "pservers.max=1"],
            &["pservers.max", "is 1, must not be below pservers.count = 2"],
        ),
        (
            &["pservers.count=2", "pservers.min=1", "pservers.replicas=1"],
            &["pservers.replicas", "pservers.min = 1"],
        ),
        (
            &["pservers.max=64", "pservers.shards=8"],
            &["pservers.shards", "is 8, must be at least pservers.max × pservers.vcores = 64"],
        ),
        (
            &["pservers.count=4", "pservers.shards=4", "pservers.min=1", "model.features=40000000"],
            &["pservers.memory", "is 512MiB, must be at least "],
        ),
        (
            &["pservers.max=2", "training.consistency=asp", "pservers.recovery=local"],
            &["pservers.recovery", "is \"local\""],
        ),
        (
            &["trainers.idle-timeout=10ms"],
            &["trainers.idle-timeout", "is 10ms, must be at least 1s"],
        ),
        (
            &["training.staleness=2"],
            &["training.staleness", "is for training.consistency = \"ssp\" alone"],
        ),
        (
            &["training.consistency=ssp", "training.staleness=-1"],
            &["training.staleness", "expected a whole number from 0 to 1000000"],
        ),
        (
            &["model.features=2000000000"],
            &["pservers.memory", "is 512MiB, must be at least ", " MiB of tables"],
        ),
        (
            &["model.init=s3://bucket/x"],
            &["model.init", "a URL that starts with file://, hdfs:// or viewfs://"],
        ),
        (&["model.init=ckpt"], &["model.init", "is the job's own checkpoint.dir"]),
        (
            &["pservers.recovery=local"],
            &[
                "pservers.recovery",
                "is \"local\", must be \"global\" with training.consistency = \"bsp\"",
            ],
        ),
        (
            &["pservers.recovery=local", "training.consistency=ssp", "training.staleness=1"],
            &[
                "pservers.recovery",
                "is \"local\", must be \"global\" with training.consistency = \"ssp\"",
            ],
        ),
        (
            &[
                "pservers.recovery=local",
                "training.consistency=asp",
                "pservers.count=2",
                "pservers.replicas=1",
            ],
            &["pservers.recovery", "is \"local\", must be \"global\" with pservers.replicas = 1"],
        ),
        (&["pservers.recovery=some"], &["pservers.recovery", "some", "\"global\" or \"local\""]),
        (&["checkpoint.digest=sha1"], &["checkpoint.digest", "sha1", "md5+sha256"]),
        (&["pservers.replacement=2h"], &["pservers.replacement", "2h, must be from 0s to 1h"]),
        (&["output.save-lease=4s"], &["output.save-lease", "is 4s, must be from 5s to 1h"]),
        (&["data.task-errors=0"], &["data.task-errors = 0", "a whole number from 1 to 1000"]),
    ] {
        let arguments: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        let ended = run(dir.path(), &arguments);
        refused(dir.path(), &ended, 7, words);
        assert!(!dir.path().join("ckpt").exists(), "{sets:?}: something was written");
    }
}

#[test]
fn mirrors_that_are_no_folders_of_their_own_are_exit_7() {
    let dir = good();
    std::fs::create_dir(dir.path().join("strange")).expect("a folder");
    std::fs::write(dir.path().join("strange/file"), "not of Heddle").expect("written");
    std::os::unix::fs::symlink("ckpt", dir.path().join("link")).expect("a link");
    let five = "[\"m1\", \"m2\", \"m3\", \"m4\", \"m5\"]";
    for (mirrors, words) in [
        ("[\"ckpt\"]", &["is checkpoint.dir", "or lies in it"][..]),
        ("[\"ckpt/mirror\"]", &["ckpt/mirror is checkpoint.dir", "or lies in it"]),
        ("[\".\"]", &["checkpoint.dir", "lies in"]),
        ("[\"model\"]", &["is output.model", "or lies in it"]),
        ("[\"m\", \"m\"]", &["are one folder"]),
        (five, &["names 5 folders, must be at most 4"]),
        ("[\"job.toml/below\"]", &["job.toml", "is not a folder"]),
        ("[\"strange\"]", &["strange", "is not a checkpoint directory of Heddle"]),
        ("[\"s3://bucket/x\"]", &["a URL that starts with file://, hdfs:// or viewfs://"]),
        ("7", &["expected a path or a list of paths"]),
    ] {
        let ended = run(dir.path(), &["--set", &format!("checkpoint.mirrors={mirrors}")]);
        refused(dir.path(), &ended, 7, &[&["checkpoint.mirrors"], words].concat());
        assert!(!dir.path().join("ckpt").exists(), "{mirrors}: something was written");
    }
    // A file system that does not respond.
    let away = "checkpoint.mirrors=[\"hdfs://127.0.0.1:1/m\"]";
    let ended = run(dir.path(), &["--set", away]);
    refused(dir.path(), &ended, 6, &["checkpoint.mirrors", "hdfs://127.0.0.1:1/m", "unavailable"]);
    assert!(!dir.path().join("ckpt").exists(), "something was written");
    // The folder that a link leads to.
    std::fs::create_dir(dir.path().join("ckpt")).expect("a folder");
    let ended = run(dir.path(), &["--set", "checkpoint.mirrors=[\"link\"]"]);
    refused(dir.path(), &ended, 7, &["checkpoint.mirrors", "it is checkpoint.dir"]);
    assert!(has_no_checkpoint(dir.path()));
}

#[test]
fn a_source_of_a_resume_that_is_no_mirror_is_refused() {
    let dir = good();
    std::fs::create_dir(dir.path().join("empty")).expect("a folder");
    std::fs::write(dir.path().join("file"), "text").expect("written");
    nix::unistd::mkfifo(&dir.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    for place in ["empty", "file", "pipe", "none/at/all"] {
        let ended = run(dir.path(), &["--resume", "--from", place]);
        refused(dir.path(), &ended, 7, &[place]);
    }
    let ended = run(dir.path(), &["--from", "empty"]);
    refused(dir.path(), &ended, 2, &["--resume"]);
    assert!(!dir.path().join("ckpt").exists(), "nothing was started");
}
