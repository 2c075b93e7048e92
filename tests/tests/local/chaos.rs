//! `heddle chaos` on a run of this machine: the job survives seeded faults, and who may order them.

use std::path::Path;
use std::time::Duration;

use heddle_tests::local::{Ended, Run, heddle, write_libsvm};
use heddle_tests::logs::{KILLS, SILENCE, SLOWNESS};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(240);

/// A folder with data and a BSP job of some hundred steps; `name` names its places.
fn folder() -> TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    write_libsvm(&dir.path().join("data"), "train", 4, 500, 300, 12, 11).expect("data");
    dir
}

fn job(dir: &Path, name: &str, chaos: bool) -> String {
    let file = format!("{name}.toml");
    let text = format!(
        "name = \"chaos\"\n[data]\ntrain = \"data/train-*.libsvm\"\npasses = 6\n\
         [model]\nfeatures = 300\nl2 = 1e-4\n\
         [training]\nlanes = 4\nbatch = 8\nseed = 7\n\
         [pservers]\ncount = 2\n[trainers]\nmin = 2\nmax = 2\n\
         [checkpoint]\ndir = \"ckpt-{name}\"\nevery = \"20 steps\"\nkeep = 100\n\
         [output]\nmodel = \"model-{name}\"\n[run]\nchaos = {chaos}\n"
    );
    std::fs::write(dir.join(&file), text).expect("a job file");
    file
}

/// A job that takes a minute, once it trains.
fn started(dir: &Path, file: &str) -> (Run, String) {
    let slow = [("FAILPOINTS", "step-computed=sleep(60)")];
    let mut run = Run::start_with(dir, file, &[], &slow).expect("it starts");
    let view = run
        .wait_for("a checkpoint of its own", LIMIT, |view| view.checkpoints_taken > 1)
        .expect("it trains");
    (run, view.run.short())
}

fn chaos(dir: &Path, run: &str, arguments: &[&str]) -> Ended {
    let mut all = vec!["chaos", run];
    all.extend(arguments);
    heddle(dir, &all).expect("heddle starts")
}

#[test]
fn seeded_faults_change_no_byte_and_are_reported() {
    let dir = folder();
    let calm = job(dir.path(), "calm", false);
    let ended = heddle(dir.path(), &["run", &calm]).expect("heddle starts");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let (run, id) = started(dir.path(), &job(dir.path(), "chaotic", true));
    let session = ["--seed", "5", "--for", "14s", "--every", "2s", "--kinds", "kill,drop"];
    let dry: Vec<&str> = session.into_iter().chain(["--dry-run"]).collect();
    let planned = chaos(dir.path(), &id, &dry);
    assert_eq!(planned.code, Some(0), "{planned:?}");
    let with_reference: Vec<&str> =
        session.into_iter().chain(["--json", "--reference", "model-calm"]).collect();
    let ended = chaos(dir.path(), &id, &with_reference);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let objects: Vec<serde_json::Value> = ended
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    let (report, faults) = objects.split_last().expect("a report");
    assert_eq!(planned.stdout.lines().count(), 7);
    for (fault, planned) in faults.iter().zip(planned.stdout.lines()) {
        let target = fault["targets"][0].as_str().expect("a target");
        let kind = fault["fault"].as_str().expect("a kind");
        assert!(planned.contains(&format!("{kind} of {target}")), "{planned}: {fault}");
        assert!(fault["settled_ms"].is_u64(), "{fault}");
        let recoveries = fault["recoveries"].as_array().expect("a list").len();
        assert_eq!(recoveries, usize::from(kind == "kill"), "{fault}");
    }
    assert!(faults.len() >= 3, "{objects:#?}");
    assert_eq!(report["held"], true, "{report}");
    assert_eq!(report["equals_reference"], true, "{report}");
    assert_eq!(report["faults"], faults.len(), "{report}");
    let (code, ..) = run
        .expecting(&[KILLS, &["fault_ordered", "_by_order"]].concat())
        .finish(LIMIT)
        .expect("the run ends");
    assert_eq!(code, Some(0));
}

/// A corrupted file stays unnoticed until the job needs it, here until all checkpoints are verified. Savers that are slow hold
/// nobody up.
#[test]
fn corrupted_files_and_slow_savers_change_no_byte() {
    let dir = folder();
    let calm = job(dir.path(), "calm", false);
    let ended = heddle(dir.path(), &["run", &calm]).expect("heddle starts");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let (mut run, id) = started(dir.path(), &job(dir.path(), "damaged", true));
    run.wait_for("an older checkpoint", LIMIT, |view| view.checkpoints.len() > 2)
        .expect("it trains");
    let ended =
        chaos(dir.path(), &id, &["--kinds", "corrupt", "--for", "3s", "--every", "1s", "--json"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.contains("\"targets\":[\"checkpoint\"]"), "{ended:?}");
    assert!(!ended.stderr.contains("no file was corrupted"), "{ended:?}");
    let session =
        ["--kinds", "slow-disk,kill", "--roles", "pserver", "--for", "30s", "--seed", "2"];
    let planned = chaos(dir.path(), &id, &[&session[..], &["--every", "5s", "--dry-run"]].concat());
    for kind in ["slow-disk by", "kill of"] {
        assert!(planned.stdout.contains(kind), "another seed has both: {planned:?}");
    }
    let ended = chaos(
        dir.path(),
        &id,
        &[&session[..], &["--every", "5s", "--reference", "model-calm"]].concat(),
    );
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.contains("the model has the bytes of the reference"), "{ended:?}");
    let (code, ..) = run
        .expecting(&[KILLS, &["fault_ordered", "_by_order", "damaged"]].concat())
        .finish(LIMIT)
        .expect("the run ends");
    assert_eq!(code, Some(0));
    let verified = heddle(dir.path(), &["checkpoint", "verify", "ckpt-damaged"]).expect("it runs");
    let was_set_aside = dir.path().join("ckpt-damaged/damaged").exists();
    assert!(verified.code == Some(8) || was_set_aside, "{verified:?}");
}

/// A cut of 5 s is no incident; after `liveness.dead` (10 s) the trainer is replaced, and nobody else.
#[test]
fn a_trainer_is_replaced_after_a_long_cut_alone() {
    let dir = folder();
    let (run, id) = started(dir.path(), &job(dir.path(), "cut", true));
    for (length, replaced) in [("for 5 s", 0), ("for 15 s", 1)] {
        let session = ["--kinds", "cut", "--for", "2s", "--every", "1s", "--seed"];
        let drawn = |seed: &u32| {
            let seed = seed.to_string();
            let planned =
                chaos(dir.path(), &id, &[&session[..], &[seed.as_str(), "--dry-run"]].concat());
            planned.stdout.lines().next().is_some_and(|first| first.contains(length))
        };
        let seed = (0..40).find(drawn).expect("a seed whose first fault lasts that long");
        let seed = seed.to_string();
        let ended = chaos(dir.path(), &id, &[&session[..], &[seed.as_str(), "--json"]].concat());
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let fault: serde_json::Value =
            serde_json::from_str(ended.stdout.lines().next().expect("a fault")).expect("JSON");
        let recoveries = fault["recoveries"].as_array().expect("a list");
        assert_eq!(recoveries.len(), replaced, "{length}: {fault:#}");
        let is_trainer = |it: &serde_json::Value| it["kind"] == "trainer";
        assert!(recoveries.iter().all(is_trainer), "{length}: {fault:#}");
    }
    let expected = ["fault_ordered", "_by_order"];
    let (code, ..) = run
        .expecting(&[KILLS, SILENCE, SLOWNESS, &expected].concat())
        .finish(LIMIT)
        .expect("the run ends");
    assert_eq!(code, Some(0));
}

#[test]
fn faults_need_the_jobs_consent_and_one_session() {
    let dir = folder();
    let (run, id) = started(dir.path(), &job(dir.path(), "guarded", false));
    let refused = chaos(dir.path(), &id, &["--for", "5s"]);
    assert_eq!(refused.code, Some(5), "{refused:?}");
    assert!(refused.stderr.contains("run.chaos of its job is false"), "{refused:?}");
    assert!(refused.stderr.contains("--set run.chaos=true"), "{refused:?}");
    drop(run);

    let (run, id) = started(dir.path(), &job(dir.path(), "open", true));
    let wrong = chaos(dir.path(), &id, &["--roles", "am"]);
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    let wrong = chaos(dir.path(), &id, &["--kinds", "slow", "--roles", "pserver"]);
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    // One that waits for its first fault.
    let first = ["chaos", &id, "--every", "1h"];
    let mut first = heddle_tests::local::command(dir.path())
        .expect("a command")
        .args(first)
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("heddle starts");
    let mut other = run;
    other
        .wait_for("a session", LIMIT, |view| view.chaos.is_some_and(|it| it.session.is_some()))
        .expect("it begins");
    let second = chaos(dir.path(), &id, &["--for", "5s"]);
    assert_eq!(second.code, Some(9), "{second:?}");
    assert!(second.stderr.contains("one session at a time"), "{second:?}");
    let pid = nix::unistd::Pid::from_raw(first.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).expect("it runs");
    assert_eq!(first.wait().expect("it ends").code(), Some(3));
    other
        .wait_for("the end of the session", LIMIT, |view| {
            view.chaos.is_some_and(|it| it.session.is_none())
        })
        .expect("it ends with its command");
}
