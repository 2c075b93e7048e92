//! What job files ask for, on real processes: losses of several parameter servers, rhythm and rate of checkpoints,
//! another number of parameter servers on resume, and what to do about NaN, no progress and bad records.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use heddle_protocol::figure::Figure;
use heddle_protocol::ids::{Role, Slot};
use heddle_protocol::view::{CheckpointView, EvaluationView, JobEvent, JobState, JobView};
use heddle_tests::local::{Ended, Run, heddle, kill9, pid_of, write_libsvm};
use heddle_tests::logs::KILLS;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(240);
/// Makes each step take 25 ms, so that a job can be met in the middle.
const SLOW: [(&str, &str); 1] = [("FAILPOINTS", "step-computed=sleep(25)")];

fn folder() -> TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    write_libsvm(&dir.path().join("data"), "train", 3, 400, 100, 8, 11).expect("data");
    write_libsvm(&dir.path().join("data"), "test", 1, 200, 100, 8, 12).expect("data");
    dir
}

/// A BSP job of four lanes on three pservers and two trainers.
fn job(dir: &Path, name: &str, more: &str) -> String {
    let text = format!(
        "name = \"policies\"\n\
         [data]\ntrain = \"data/train-*.libsvm\"\ntest = \"data/test-*.libsvm\"\npasses = 6\n\
         [model]\nalgorithm = \"logistic-regression\"\nfeatures = 100\n\
         optimizer = {{ kind = \"ftrl\", alpha = 0.1 }}\n\
         [training]\nlanes = 4\nbatch = 8\nseed = 7\n\
         [pservers]\ncount = 3\nshards = 6\n\
         [trainers]\nmin = 2\nmax = 2\n\
         [output]\nmodel = \"model-{name}\"\n\
         [checkpoint]\ndir = \"ckpt-{name}\"\n{more}"
    );
    let file = format!("{name}.toml");
    std::fs::write(dir.join(&file), text).expect("a job file");
    file
}

fn model(dir: &Path, name: &str) -> BTreeMap<String, Vec<u8>> {
    let root = dir.join(format!("model-{name}"));
    ["model.safetensors", "model.txt"]
        .map(|file| (file.to_owned(), std::fs::read(root.join(file)).expect("published")))
        .into()
}

fn finished(run: Run) -> (JobView, Vec<JobEvent>) {
    let (code, events, stderr) = run.finish(LIMIT).expect("the run ends");
    let view = events.iter().find_map(|event| match event {
        JobEvent::Ended { view, .. } => Some((**view).clone()),
        _ => None,
    });
    let view = view.unwrap_or_else(|| panic!("no end was reported: {stderr}"));
    assert_eq!(code, Some(0), "{}: {stderr}", view.message);
    (view, events)
}

fn committed(events: &[JobEvent]) -> Vec<CheckpointView> {
    let taken = events.iter().filter_map(|event| match event {
        JobEvent::CheckpointCommitted(taken) => Some(taken.clone()),
        _ => None,
    });
    taken.collect()
}

/// Waits until steps are taken that a checkpoint of this run lies before.
fn training(run: &mut Run, checkpoints: u32) -> JobView {
    let before = run
        .wait_for("training", LIMIT, |view| {
            view.state == JobState::Running && view.checkpoints_taken >= checkpoints
        })
        .expect("it trains");
    run.wait_for("a step is taken", LIMIT, |view| {
        view.state == JobState::Running
            && view.slots.iter().all(|place| place.pid > 0)
            && (view.phase, view.step) > (before.phase, before.step)
    })
    .expect("steps are taken")
}

#[test]
fn the_loss_of_two_then_all_pservers_changes_no_byte() {
    let dir = folder();
    let file = job(dir.path(), "calm", "every = \"20 steps\"\n");
    finished(Run::start(dir.path(), &file, &[]).expect("it starts"));

    let file = job(dir.path(), "killed", "every = \"20 steps\"\n");
    let mut run = Run::start_with(dir.path(), &file, &[], &SLOW).expect("it starts");
    let mut taken = 2;
    for losses in [vec![0, 2], vec![0, 1, 2]] {
        let view = training(&mut run, taken);
        let slots: Vec<Slot> = losses.into_iter().map(Slot::pserver).collect();
        let pids: Vec<_> =
            slots.iter().map(|slot| pid_of(&view, *slot).expect("it runs")).collect();
        for pid in &pids {
            kill9(*pid).expect("it was alive");
        }
        let after = run
            .wait_for("all are replaced and steps are taken", LIMIT, |now| {
                now.state == JobState::Running
                    && now.recoveries.iter().all(|recovery| recovery.done)
                    && now.epoch > view.epoch
                    && slots
                        .iter()
                        .all(|slot| pid_of(now, *slot).is_ok_and(|pid| !pids.contains(&pid)))
            })
            .expect("it recovers");
        let trainers = |view: &JobView| -> Vec<u32> {
            let places = view.slots.iter();
            places.filter(|place| place.slot.role == Role::Trainer).map(|place| place.pid).collect()
        };
        assert_eq!(trainers(&after), trainers(&view), "trainers survive");
        taken = after.checkpoints_taken + 1;
    }
    finished(run.expecting(KILLS));
    assert_eq!(model(dir.path(), "killed"), model(dir.path(), "calm"));
}

#[test]
fn checkpoints_every_two_seconds_are_taken_every_two_seconds() {
    let dir = folder();
    let file = job(dir.path(), "rhythm", "every = \"2s\"\nkeep = 2\n");
    let run = Run::start_with(dir.path(), &file, &["--set", "data.passes=10"], &SLOW);
    let (view, events) = finished(run.expect("it starts"));
    let taken = committed(&events);
    // Without the one before the first step and the one at the end: those have other reasons.
    let periodic = &taken[1..taken.len() - 1];
    assert!(periodic.len() >= 2, "{taken:?}");
    for pair in taken[..taken.len() - 1].windows(2) {
        let apart = pair[1].at_ms.saturating_sub(pair[0].at_ms);
        // The order comes 2 s after the order before; on a busy machine a commit may be late, and the next is not.
        assert!((1_000..20_000).contains(&apart), "{apart} ms: {taken:?}");
    }
    assert_eq!(view.checkpoints_taken as usize, taken.len());
    let kept = std::fs::read_dir(dir.path().join("ckpt-rhythm"))
        .expect("listed")
        .filter(|entry| {
            let name = entry.as_ref().expect("listed").file_name();
            name.to_string_lossy().starts_with("g1-c")
        })
        .count();
    assert_eq!(kept, 2);
}

#[test]
fn checkpoints_are_written_no_faster_than_their_bandwidth() {
    const RATE: u64 = 1 << 20;
    let dir = folder();
    // 400,000 features with three values each: 4.8 MB.
    let file = job(dir.path(), "slow", "bandwidth = \"1MiB/s\"\n");
    let run = Run::start_with(
        dir.path(),
        &file,
        &["--set", "model.features=400000", "--set", "data.passes=1"],
        &SLOW,
    );
    let (_, events) = finished(run.expect("it starts"));
    let all = committed(&events);
    assert!(all.len() > 1 && all[0].bytes == 0, "the first one has initial values: {all:?}");
    for taken in &all[1..] {
        assert!(taken.bytes > 4_000_000, "{taken:?}");
        // Each of the three pservers may write one burst of 512 KiB at once.
        let limited = taken.bytes.saturating_sub(3 * (512 << 10));
        let least_ms = limited * 1000 / RATE;
        assert!(
            taken.took_ms * 10 >= least_ms * 9,
            "{} bytes in {} ms, at least {least_ms} ms at {RATE} bytes a second",
            taken.bytes,
            taken.took_ms
        );
        println!("{} bytes in {} ms, at least {least_ms} ms", taken.bytes, taken.took_ms);
    }
}

#[test]
fn a_resume_with_other_pservers_gives_the_same_bytes() {
    let dir = folder();
    let file = job(dir.path(), "calm", "every = \"20 steps\"\n");
    finished(Run::start(dir.path(), &file, &[]).expect("it starts"));

    let file = job(dir.path(), "moved", "every = \"20 steps\"\n");
    let mut run = Run::start_with(dir.path(), &file, &[], &SLOW).expect("it starts");
    training(&mut run, 2);
    nix::sys::signal::kill(run.pid(), nix::sys::signal::Signal::SIGINT).expect("it runs");
    let (code, ..) = run.finish(LIMIT).expect("it stops");
    assert_eq!(code, Some(130));

    for count in ["pservers.count=1", "pservers.count=6"] {
        let mut arguments = vec!["--set", count];
        let refused = heddle(dir.path(), &[&["run", &file][..], &arguments].concat());
        let refused: Ended = refused.expect("heddle starts");
        assert_eq!(refused.code, Some(7), "{refused:?}");
        assert!(refused.stderr.contains("pservers.count"), "{refused:?}");
        arguments.push("--resume");
        let mut run = Run::start_with(dir.path(), &file, &arguments, &SLOW).expect("it starts");
        let view = training(&mut run, 1);
        let pservers = view.slots.iter().filter(|place| place.slot.role == Role::Pserver).count();
        assert!(count.ends_with(&pservers.to_string()), "{pservers}, {count}");
        if count.ends_with('1') {
            nix::sys::signal::kill(run.pid(), nix::sys::signal::Signal::SIGINT).expect("it runs");
            let (code, ..) = run.finish(LIMIT).expect("it stops");
            assert_eq!(code, Some(130));
        } else {
            finished(run);
        }
    }
    assert_eq!(model(dir.path(), "moved"), model(dir.path(), "calm"));
}

/// A job with these rows as its data; arguments that fit them follow.
fn regression(dir: &Path, rows: String) -> String {
    std::fs::write(dir.join("data/train-000.libsvm"), rows).expect("written");
    job(dir, "nan", "")
}

const REGRESSION: [&str; 10] = [
    "--set",
    "data.train=data/train-000.libsvm",
    "--set",
    "data.passes=2",
    "--set",
    "model.algorithm=linear-regression",
    "--set",
    "model.standardise=false",
    "--set",
    "model.scale-labels=false",
];

#[test]
fn a_gradient_that_is_not_finite_ends_the_job_or_is_left_out() {
    let dir = folder();
    // The square of one value is too large for 32 bits.
    let value = |n: usize| if n % 50 == 7 { "1e30" } else { "0.5" };
    let rows = (0..400).map(|n| format!("{0} 1:{0} {1}:1\n", value(n), 3 + n % 7)).collect();
    let file = regression(dir.path(), rows);
    let run = |policy: &str, more: &[&str]| {
        let set = format!("training.nan={policy}");
        let rate = "model.optimizer={ kind = \"sgd\", rate = 0.1 }";
        let arguments = [&["run", &file][..], &REGRESSION, &["--set", rate, "--set", &set], more];
        heddle(dir.path(), &arguments.concat()).expect("heddle starts")
    };
    let ended = run("fail", &[]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    for words in ["NaN or infinity", "lower the rate", "training.nan"] {
        assert!(ended.stderr.contains(words), "{words}: {}", ended.stderr);
    }
    let ended = run("skip", &["--fresh"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(dir.path().join("model-nan/model.safetensors").exists());
}

/// Each gradient is finite, and the values that follow from it are not.
#[test]
fn a_model_that_is_not_finite_is_not_published() {
    let dir = folder();
    let rows = (0..400)
        .map(|n| format!("{} 1:{} 2:{} 3:1\n", 7 * n - 900, 1000 * (n % 500), 9 - n % 17))
        .collect();
    let file = regression(dir.path(), rows);
    let rate = "model.optimizer={ kind = \"sgd\", rate = 1e34 }";
    let more = ["--set", rate, "--set", "training.nan=skip"];
    let ended = heddle(dir.path(), &[&["run", &file][..], &REGRESSION, &more].concat());
    let ended: Ended = ended.expect("heddle starts");
    assert_eq!(ended.code, Some(1), "{ended:?}");
    for words in ["the model could not be written: row ", " of table weights holds "] {
        assert!(ended.stderr.contains(words), "{words}: {}", ended.stderr);
    }
    assert!(!dir.path().join("model-nan/MODEL.json").exists(), "{ended:?}");
}

#[test]
fn training_ends_early_when_the_test_loss_gets_no_better() {
    let dir = folder();
    let file = job(dir.path(), "early", "");
    let arguments = [
        "--set",
        "data.passes=60",
        "--set",
        "training.early-stop=2",
        // So large that the loss gets worse soon.
        "--set",
        "model.optimizer={ kind = \"sgd\", rate = 30.0 }",
    ];
    let run = Run::start(dir.path(), &file, &arguments).expect("it starts");
    let (view, _) = finished(run.expecting(&["worse_than_constant"]));
    let log_loss = |scores: &EvaluationView| scores.figures.get(Figure::LogLoss);
    let losses: Vec<f64> = view.evaluations.iter().filter_map(log_loss).collect();
    assert_eq!(losses.len(), view.evaluations.len());
    assert!(losses.len() < 60, "{losses:?}");
    let (before, lately) = losses.split_at(losses.len() - 2);
    let best = before.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(lately.iter().all(|loss| *loss >= best), "{losses:?}");
    // And no pass sooner.
    for end in 3..losses.len() {
        let (before, lately) = losses[..end].split_at(end - 2);
        let best = before.iter().copied().fold(f64::INFINITY, f64::min);
        assert!(lately.iter().any(|loss| *loss < best), "{end}: {losses:?}");
    }
}

/// All files of quarantined records below a folder.
pub fn quarantined(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("listed") {
        let path = entry.expect("listed").path();
        if path.is_dir() {
            quarantined(&path, found);
        } else if path.parent().is_some_and(|parent| parent.ends_with("bad-records")) {
            found.push(path);
        }
    }
}

#[test]
fn quarantined_records_are_beside_the_logs_with_their_places() {
    let dir = folder();
    let path = dir.path().join("data/train-001.libsvm");
    let mut text = std::fs::read_to_string(&path).expect("readable");
    text.push_str("1 7:oops\n0 8:1\nwhat is this\n");
    std::fs::write(&path, text).expect("written");
    let file = job(dir.path(), "bad", "");
    let arguments =
        ["run", &file, "--set", "data.bad-records=quarantine", "--set", "data.passes=2"];
    let ended = heddle(dir.path(), &arguments).expect("heddle starts");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let line =
        ended.stdout.lines().find(|line| line.starts_with("bad records ")).expect("reported");
    assert!(line.contains(" 2, written to "), "{line}");
    let mut files = Vec::new();
    quarantined(&dir.path().join("state/heddle/runs"), &mut files);
    let mut texts: Vec<String> =
        files.iter().map(|file| std::fs::read_to_string(file).expect("readable")).collect();
    texts.sort();
    // Two passes; the task of both records, or the tasks of one each.
    let all = texts.concat();
    for (place, record) in [(":401:5: ", "1 7:oops\n"), (":403:1: ", "what is this\n")] {
        assert_eq!(all.matches(place).count(), 2, "{place} in {all}");
        assert_eq!(all.matches(record).count(), 2, "{record} in {all}");
    }
    assert!(all.contains("# ") && all.contains("train-001.libsvm:401:5"), "{all}");
}
