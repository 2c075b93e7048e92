//! The first checkpoint of a job has no shard files: jobs whose processes die before the second one make their initial values
//! again, and end with the bytes of an undisturbed run.

use std::path::Path;
use std::time::Duration;

use heddle_protocol::ids::Slot;
use heddle_protocol::view::{JobEvent, JobState, JobView, WarningCode};
use heddle_tests::checkpointed_job::checkpoints_in;
use heddle_tests::local::{Ended, Run, am_pid, heddle, kill9, pid_of, program, write_libsvm};
use heddle_tests::logs::KILLS;
use tempfile::TempDir;

use crate::recovery::{RULES, model};

const LIMIT: Duration = Duration::from_secs(120);
/// Steps take long enough to kill processes between them.
const SLOW: [(&str, &str); 1] = [("FAILPOINTS", "step-computed=sleep(60)")];

/// Each algorithm, dense and sparse, with zeros and with drawn initial values. k-means measures first, from initial values.
const MODELS: [(&str, &str); 9] = [
    (
        "logistic",
        "algorithm = \"logistic-regression\"\nfeatures = 300\noptimizer = { kind = \"ftrl\", alpha = 0.1 }\n",
    ),
    (
        "linear",
        "algorithm = \"linear-regression\"\nfeatures = 300\noptimizer = { kind = \"adam\" }\n",
    ),
    ("svm", "algorithm = \"svm\"\nfeatures = 300\noptimizer = { kind = \"adagrad\" }\n"),
    ("softmax", "algorithm = \"softmax-regression\"\nclasses = 3\nfeatures = 300\n"),
    ("machine", "algorithm = \"factorization-machine\"\nrank = 4\nfeatures = 300\n"),
    ("sparse", "algorithm = \"logistic-regression\"\nfeatures = \"any\"\n"),
    ("sparse-machine", "algorithm = \"factorization-machine\"\nrank = 4\nfeatures = \"any\"\n"),
    ("kmeans", "algorithm = \"kmeans\"\nclusters = 8\nfeatures = 300\nstandardise = true\n"),
    ("rules", RULES),
];

fn folder() -> TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    write_libsvm(&dir.path().join("data"), "train", 4, 200, 300, 12, 11).expect("data");
    dir
}

/// A BSP job of 25 steps without a periodic checkpoint.
fn job(dir: &Path, name: &str, model: &str) -> String {
    let file = format!("{name}.toml");
    let text = format!(
        "name = \"initial\"\n\
         [data]\ntrain = \"data/train-*.libsvm\"\n\
         [model]\n{model}\
         [training]\nconsistency = \"bsp\"\nlanes = 4\nbatch = 8\nseed = 7\n\
         [pservers]\ncount = 2\nvcores = 2\nshards = 8\n\
         [trainers]\nmin = 1\nmax = 2\n\
         [checkpoint]\ndir = \"ckpt-{name}\"\nevery = \"1h\"\n\
         [output]\nmodel = \"model-{name}\"\n"
    );
    std::fs::write(dir.join(&file), text).expect("a job file");
    file
}

fn machine(dir: &Path, name: &str) -> String {
    job(dir, name, MODELS[4].1)
}

fn finished(run: Run) -> Vec<JobEvent> {
    let (code, events, stderr) = run.finish(LIMIT).expect("the run ends");
    assert_eq!(code, Some(0), "{stderr}");
    events
}

/// Waits until steps are taken and the first checkpoint is the only one.
fn before_the_second(run: &mut Run) -> JobView {
    let is_before = |view: &JobView| {
        view.state == JobState::Running
            && view.checkpoints_taken == 1
            && view.step.0 > 0
            && view.slots.iter().all(|place| place.pid > 0)
    };
    run.wait_for("steps with one checkpoint", LIMIT, is_before).expect("it trains")
}

/// Kills these processes before the second checkpoint, and waits until the job has returned to the first one.
fn kill(run: &mut Run, slots: &[Slot]) {
    let before = before_the_second(run);
    for slot in slots {
        kill9(pid_of(&before, *slot).expect("it runs")).expect("it was alive");
    }
    let wanted = before.recoveries.len() + slots.len();
    let after = run.wait_for("recovered", LIMIT, |view| {
        view.recoveries.len() >= wanted && view.recoveries.iter().all(|recovery| recovery.done)
    });
    let recovery = after.expect("it recovers").recoveries.last().expect("one more").clone();
    assert_eq!(recovery.base.map(|base| base.number), Some(1), "{recovery:?}");
}

#[test]
fn kills_before_the_second_checkpoint_change_no_byte() {
    let dir = folder();
    let trainer = program("rules-trainer").expect("built before");
    let command = format!("trainers.command=[\"{}\"]", trainer.display());
    for (name, section) in MODELS {
        let arguments: &[&str] = if name == "rules" { &["--set", &command] } else { &[] };
        let calm = format!("{name}-calm");
        let file = job(dir.path(), &calm, section);
        finished(Run::start(dir.path(), &file, arguments).expect("it starts"));
        let file = job(dir.path(), name, section);
        let mut run = Run::start_with(dir.path(), &file, arguments, &SLOW).expect("it starts");
        // The shards of the first one are made again, then those of the other, while the first has no snapshot.
        kill(&mut run, &[Slot::pserver(0)]);
        kill(&mut run, &[Slot::pserver(1)]);
        finished(run.expecting(KILLS));
        assert_eq!(model(dir.path(), name), model(dir.path(), &calm), "{name}");
    }
}

#[test]
fn backups_that_are_lost_too_are_made_again() {
    let dir = folder();
    let file = machine(dir.path(), "calm");
    finished(Run::start(dir.path(), &file, &[]).expect("it starts"));
    let file = machine(dir.path(), "copied");
    let more = ["pservers.count=3", "pservers.replicas=1", "checkpoint.copies=2"];
    let more: Vec<&str> = more.iter().flat_map(|set| ["--set", set]).collect();
    let mut run = Run::start_with(dir.path(), &file, &more, &SLOW).expect("it starts");
    kill(&mut run, &[Slot::pserver(0), Slot::pserver(1)]);
    finished(run.expecting(&[KILLS, &["updates_lost", "all_shards_return"]].concat()));
    assert_eq!(model(dir.path(), "copied"), model(dir.path(), "calm"));
}

#[test]
fn lost_shards_alone_return_to_initial_values() {
    let dir = folder();
    let file = machine(dir.path(), "alone");
    let more = ["training.consistency=asp", "pservers.recovery=local"];
    let more: Vec<&str> = more.iter().flat_map(|set| ["--set", set]).collect();
    let mut run = Run::start_with(dir.path(), &file, &more, &SLOW).expect("it starts");
    run.wait_for("tasks", LIMIT, |view| view.rows > 0 && view.checkpoints_taken == 1)
        .expect("it trains");
    let view = run.view().expect("it runs");
    kill9(pid_of(&view, Slot::pserver(0)).expect("it runs")).expect("it was alive");
    let events = finished(run.expecting(&[KILLS, &["updates_lost", "all_shards_return"]].concat()));
    let is_told = |event: &JobEvent| {
        matches!(
            event,
            JobEvent::Warning { text, code: WarningCode::UpdatesLost }
                if text.contains("returned to the initial values")
        )
    };
    assert!(events.iter().any(is_told), "{events:?}");
}

fn run(dir: &Path, arguments: &[&str]) -> Ended {
    heddle(dir, arguments).expect("heddle starts")
}

/// A job whose ApplicationMaster died before its second checkpoint, with the first one in a mirror too.
fn ended_early(dir: &Path, name: &str) -> String {
    let file = machine(dir, name);
    let mirrors = "checkpoint.mirrors=[\"mirror\"]";
    let mut job = Run::start_with(dir, &file, &["--set", mirrors], &SLOW).expect("it starts");
    before_the_second(&mut job);
    job.wait_for("a copy", LIMIT, |_| dir.join("mirror/g1-c1").exists()).expect("it is copied");
    kill9(am_pid(dir).expect("the ApplicationMaster's address")).expect("it was alive");
    let (code, ..) = job.finish(LIMIT).expect("the command line ends");
    assert_ne!(code, Some(0));
    file
}

#[test]
fn initial_values_continue_with_more_pservers_and_from_a_mirror() {
    let dir = folder();
    let dir = dir.path();
    let file = machine(dir, "calm");
    finished(Run::start(dir, &file, &[]).expect("it starts"));
    let file = ended_early(dir, "early");
    let names = |place: &str| {
        let entries = std::fs::read_dir(dir.join(place)).expect("a checkpoint");
        let mut names: Vec<_> = entries.map(|it| it.expect("readable").file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names("ckpt-early/g1-c1"), ["MANIFEST.json", "MANIFEST.json.md5"]);
    assert_eq!(names("mirror/g1-c1"), ["MANIFEST.json", "MANIFEST.json.md5"]);
    let wider = ["--resume", "--set", "pservers.count=3"];
    let elsewhere =
        [&wider[..], &["--from", "mirror", "--set", "checkpoint.dir=ckpt-late"]].concat();
    for arguments in [&elsewhere[..], &[&wider[..], &["--overwrite"]].concat()] {
        let events = finished(Run::start(dir, &file, arguments).expect("it starts"));
        let from = events.iter().find_map(|event| match event {
            JobEvent::Started { resumed_from, .. } => *resumed_from,
            _ => None,
        });
        assert_eq!(from.map(|cut| cut.to_string()).as_deref(), Some("g1-c1"));
        assert_eq!(model(dir, "early"), model(dir, "calm"), "{arguments:?}");
    }
}

#[test]
fn commands_name_initial_values_and_read_no_model_from_them() {
    let dir = folder();
    let dir = dir.path();
    ended_early(dir, "early");
    assert_eq!(checkpoints_in(&dir.join("ckpt-early")).len(), 1);
    for command in ["ls", "verify", "groups"] {
        let shown = run(dir, &["checkpoint", command, "ckpt-early"]);
        assert_eq!(shown.code, Some(0), "{shown:?}");
        assert!(shown.stdout.contains("initial values"), "{shown:?}");
        let shown = run(dir, &["checkpoint", command, "ckpt-early", "--json"]);
        assert!(shown.stdout.contains("\"initial\":true"), "{shown:?}");
    }
    let file = job(dir, "inherits", MODELS[4].1);
    let export = ["export", "ckpt-early", "out"];
    let init = ["run", &file, "--set", "model.init=ckpt-early"];
    let one = ["run", &file, "--set", "model.init=ckpt-early/g1-c1"];
    for arguments in [&export[..], &init, &one] {
        let refused = run(dir, arguments);
        assert_eq!(refused.code, Some(7), "{refused:?}");
        let text = "nothing was trained; continue the job, or name a later checkpoint";
        assert!(refused.stderr.contains(text), "{refused:?}");
    }
    assert!(!dir.join("out").exists() && !dir.join("model-inherits").exists());
    let refused = run(dir, &["predict", "ckpt-early/g1-c1", "data/train-000.libsvm"]);
    assert_eq!(refused.code, Some(7), "{refused:?}");
}
