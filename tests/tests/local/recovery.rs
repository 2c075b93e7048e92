//! Jobs whose processes are killed end with the bytes of an undisturbed run.
//!
//! Every kill is asserted to have hit a running step, survivors keep their processes, the epoch goes up by one
//! for each rollback and by nothing else, and the work done twice is bounded by the age of checkpoints.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use heddle_protocol::ids::{Role, Slot};
use heddle_protocol::view::{JobEvent, JobState, JobView};
use heddle_tests::local::{Lot, Run, kill9, pid_of, program, write_libsvm};
use heddle_tests::logs::KILLS;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(240);
const FILES: u32 = 4;
const ROWS: u32 = 600;
const PASSES: u32 = 8;
const LANES: u32 = 4;
const BATCH: u32 = 8;

fn folder() -> TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    write_libsvm(&dir.path().join("data"), "train", FILES, ROWS, 300, 12, 11).expect("data");
    write_libsvm(&dir.path().join("data"), "test", 1, 400, 300, 12, 12).expect("data");
    dir
}

/// The model of most tests here.
const LOGISTIC: &str = "algorithm = \"logistic-regression\"\nfeatures = 300\nl2 = 1e-4\n\
    standardise = true\n\
    optimizer = { kind = \"ftrl\", alpha = 0.1 }\n";
/// Other models, with names.
const MODELS: [(&str, &str); 7] = [
    (
        "linear",
        "algorithm = \"linear-regression\"\nfeatures = 300\nl2 = 1e-4\nstandardise = true\n\
         optimizer = { kind = \"adam\" }\nschedule = { kind = \"cosine\", steps = 500, warmup = 20 }\n",
    ),
    (
        "svm",
        "algorithm = \"svm\"\nloss = \"squared-hinge\"\nfeatures = 300\nl2 = 1e-4\n\
         optimizer = { kind = \"adagrad\" }\n",
    ),
    (
        "softmax",
        "algorithm = \"softmax-regression\"\nclasses = 3\nfeatures = 300\nl2 = 1e-4\nstandardise = true\n",
    ),
    (
        "machine",
        "algorithm = \"factorization-machine\"\nrank = 4\nfeatures = 300\nl2 = 1e-4\n\
         optimizer = { kind = \"adagrad\" }\n",
    ),
    ("sparse", "algorithm = \"logistic-regression\"\nfeatures = \"any\"\nl2 = 1e-4\n"),
    (
        "sparse-machine",
        "algorithm = \"factorization-machine\"\nrank = 4\nfeatures = \"any\"\nl2 = 1e-4\n\
         optimizer = { kind = \"adagrad\" }\n",
    ),
    ("kmeans", KMEANS),
];

/// A trainer of one's own: a sparse table with normal initial values, and one table for each rule without gradients.
pub const RULES: &str = "algorithm = \"custom\"\n\
    [[model.table]]\nname = \"vectors\"\nkind = \"sparse\"\ncols = 3\ninit = { normal = [0.0, 0.1] }\n\
    optimizer = { kind = \"adagrad\" }\n\
    [[model.table]]\nname = \"counts\"\nrows = 16\ncols = 1\noptimizer = { kind = \"add\" }\n\
    [[model.table]]\nname = \"means\"\nrows = 16\ncols = 2\noptimizer = { kind = \"mean\" }\n\
    [[model.table]]\nname = \"firsts\"\nrows = 16\ncols = 2\noptimizer = { kind = \"least\" }\n";

/// Each pass has records for all processes: it does not end before the last one.
const KMEANS: &str =
    "algorithm = \"kmeans\"\nclusters = 8\nfeatures = 300\nstandardise = true\ntolerance = 0.0\n";

/// A BSP job of about `PASSES * ROWS * FILES / (LANES * BATCH)` steps.
fn job(dir: &Path, name: &str, trainers: u32) -> String {
    job_of(dir, name, trainers, LOGISTIC)
}

fn job_of(dir: &Path, name: &str, trainers: u32, model: &str) -> String {
    let file = format!("{name}.toml");
    let text = format!(
        "name = \"bytes\"\n\
         [data]\ntrain = \"data/train-*.libsvm\"\ntest = \"data/test-*.libsvm\"\npasses = {PASSES}\n\
         [model]\n{model}\
         [training]\nconsistency = \"bsp\"\nlanes = {LANES}\nbatch = {BATCH}\nseed = 7\n\
         [pservers]\ncount = 2\nvcores = 2\nshards = 8\n\
         [trainers]\nmin = 1\nmax = {trainers}\n\
         [checkpoint]\ndir = \"ckpt-{name}\"\nevery = \"20 steps\"\n\
         [output]\nmodel = \"model-{name}\"\n"
    );
    std::fs::write(dir.join(&file), text).expect("a job file");
    file
}

/// SHA-256 of the published model's files, by name.
pub fn model(dir: &Path, name: &str) -> BTreeMap<String, String> {
    let root = dir.join(format!("model-{name}"));
    let published = std::fs::read(root.join("MODEL.json")).expect("a published model");
    let published = heddle_protocol::model::ModelFile::from_json(&published).expect("a model file");
    let sums = published.files.iter().map(|file| {
        let bytes = std::fs::read(root.join(&published.dir).join(&file.name)).expect("a file");
        (file.name.clone(), hex::encode(Sha256::digest(bytes)))
    });
    let sums: BTreeMap<_, _> = sums.collect();
    assert!(!sums.is_empty(), "no format was written");
    sums
}

fn finished(run: Run) -> (JobView, Vec<JobEvent>) {
    let (code, events, stderr) = run.finish(LIMIT).expect("the run ends");
    let view = events
        .iter()
        .find_map(|event| match event {
            JobEvent::Ended { view, .. } => Some((**view).clone()),
            _ => None,
        })
        .unwrap_or_else(|| panic!("no end was reported: {stderr}"));
    assert_eq!(code, Some(0), "{}: {stderr}", view.message);
    assert_eq!(view.state, JobState::Finished);
    (view, events)
}

fn undisturbed(dir: &Path) -> (BTreeMap<String, String>, JobView) {
    let file = job(dir, "calm", 2);
    let (view, _) = finished(Run::start(dir, &file, &[]).expect("it starts"));
    assert!(view.recoveries.is_empty());
    assert_eq!(view.epoch.count, 0);
    let sums = model(dir, "calm");
    assert_eq!(sums.len(), 2, "both formats are written: {sums:?}");
    (sums, view)
}

#[test]
fn one_two_and_three_trainers_give_the_same_bytes() {
    let dir = folder();
    let (expected, _) = undisturbed(dir.path());
    for trainers in [1, 3] {
        let name = format!("with-{trainers}");
        let file = job(dir.path(), &name, trainers);
        finished(Run::start(dir.path(), &file, &[]).expect("it starts"));
        assert_eq!(model(dir.path(), &name), expected, "{trainers} trainers");
    }
}

/// Kills one slot's process while steps are taken; returns once it is replaced and steps are taken again.
fn kill_in_a_step(run: &mut Run, slot: Slot) -> (JobView, Duration) {
    let before = running(run);
    let pids: Vec<_> = before.slots.iter().map(|place| (place.slot, place.pid)).collect();
    let pid = pid_of(&before, slot).expect("it runs");
    let kill = Instant::now();
    kill9(pid).expect("it was alive");
    let known = before.recoveries.len();
    let after = run
        .wait_for("recovered", LIMIT, |view| {
            view.recoveries.len() > known
                && view.recoveries.iter().all(|recovery| recovery.done)
                && view.slots.iter().any(|place| {
                    place.slot == slot && place.pid > 0 && place.pid != pid.as_raw().cast_unsigned()
                })
        })
        .expect("it recovers");
    let took = kill.elapsed();
    for (other, pid) in pids {
        if other != slot {
            let now = after.slots.iter().find(|place| place.slot == other).expect("slots stay");
            assert_eq!(now.pid, pid, "{other} survives a kill of {slot}");
        }
    }
    let recovery = after.recoveries.last().expect("one more").clone();
    assert_eq!(recovery.slot, Some(slot));
    let raised = u32::from(slot.role == Role::Pserver);
    assert_eq!(recovery.epoch_after.count, recovery.epoch_before.count + raised, "{recovery:?}");
    if slot.role == Role::Pserver {
        assert!(recovery.base.is_some_and(|base| base.number > 0), "{recovery:?}");
    }
    (after, took)
}

/// Waits until a training step is taken.
fn running(run: &mut Run) -> JobView {
    let first = run
        .wait_for("training", LIMIT, |view| {
            view.state == JobState::Running
                && view.phase_text.starts_with("pass")
                && view.checkpoints_taken > 1
        })
        .expect("it trains");
    run.wait_for("a step is taken", LIMIT, |view| {
        view.state == JobState::Running
            && view.slots.iter().all(|place| place.pid > 0)
            && (view.phase, view.step) > (first.phase, first.step)
    })
    .expect("steps are taken")
}

#[test]
fn twenty_kills_of_trainers_and_pservers_change_no_byte() {
    let dir = folder();
    let (expected, calm) = undisturbed(dir.path());
    let file = job(dir.path(), "killed", 3);
    let slow = [("FAILPOINTS", "step-computed=sleep(25)")];
    let mut run = Run::start_with(dir.path(), &file, &[], &slow).expect("it starts");
    let mut lot = Lot(20);
    let mut rollbacks = 0;
    for kill in 0..20 {
        let slot = match lot.below(5) {
            0 | 1 => Slot::pserver(lot.below(2) as u32),
            _ => Slot::trainer(lot.below(3) as u32),
        };
        rollbacks += u32::from(slot.role == Role::Pserver);
        let (after, took) = kill_in_a_step(&mut run, slot);
        println!("kill {kill} of {slot}: {took:?}, now phase {} step {}", after.phase, after.step);
        std::thread::sleep(Duration::from_millis(lot.below(200)));
    }
    let (view, _) = finished(run.expecting(KILLS));
    assert_eq!(model(dir.path(), "killed"), expected);
    assert_eq!(view.epoch.count, rollbacks, "the epoch counts rollbacks and nothing else");
    assert_eq!(view.recoveries.len(), 20);
    // A kill costs at most the rows since the last checkpoint (20 steps and what was under way meanwhile).
    let since_checkpoint = 3 * 20 * u64::from(LANES * BATCH);
    assert!(view.rows >= calm.rows, "{} rows, undisturbed {}", view.rows, calm.rows);
    assert!(
        view.rows <= calm.rows + 20 * since_checkpoint,
        "{} rows, undisturbed {}",
        view.rows,
        calm.rows
    );
}

/// Dense tables of several columns with sums of a pass, and sparse ones with two kinds of values.
#[test]
#[ignore = "nightly: two jobs of a minute"]
fn kills_change_no_byte_of_clusters_and_sparse_factors() {
    let dir = folder();
    let mut lot = Lot(33);
    for model in MODELS.iter().filter(|(name, _)| ["kmeans", "sparse-machine"].contains(name)) {
        kill_ten_times(dir.path(), *model, &[], &mut lot);
    }
}

#[test]
#[ignore = "nightly: seven jobs of a minute"]
fn kills_change_no_byte_of_any_algorithm() {
    let dir = folder();
    let mut lot = Lot(33);
    for model in MODELS {
        kill_ten_times(dir.path(), model, &[], &mut lot);
    }
}

#[test]
fn kills_change_no_byte_of_custom_tables() {
    let dir = folder();
    let trainer = program("rules-trainer").expect("built before");
    let command = format!("trainers.command=[\"{}\"]", trainer.display());
    kill_ten_times(dir.path(), ("rules", RULES), &["--set", &command], &mut Lot(34));
}

/// Runs a job with one trainer undisturbed, and with three while processes of both roles are killed: the same bytes.
fn kill_ten_times(dir: &Path, (name, section): (&str, &str), arguments: &[&str], lot: &mut Lot) {
    let calm = format!("{name}-calm");
    let file = job_of(dir, &calm, 1, section);
    finished(Run::start(dir, &file, arguments).expect("it starts"));
    let killed = format!("{name}-killed");
    let file = job_of(dir, &killed, 3, section);
    let slow = [("FAILPOINTS", "step-computed=sleep(15)")];
    let mut run = Run::start_with(dir, &file, arguments, &slow).expect("it starts");
    let mut rollbacks = 0;
    for kill in 0..10 {
        let slot = match kill % 5 {
            1 | 3 => Slot::pserver(lot.below(2) as u32),
            _ => Slot::trainer(lot.below(3) as u32),
        };
        rollbacks += u32::from(slot.role == Role::Pserver);
        kill_in_a_step(&mut run, slot);
        std::thread::sleep(Duration::from_millis(lot.below(100)));
    }
    let (view, _) = finished(run.expecting(KILLS));
    assert_eq!(model(dir, &killed), model(dir, &calm), "{name}");
    assert_eq!((view.recoveries.len(), view.epoch.count), (10, rollbacks), "{name}");
}

#[test]
fn a_protected_job_recovers_to_the_same_bytes() {
    let dir = folder();
    let (expected, _) = undisturbed(dir.path());
    let file = job(dir.path(), "protected", 3);
    let slow = [("FAILPOINTS", "step-computed=sleep(15)")];
    let arguments = ["--set", "network.protection=on"];
    let mut run = Run::start_with(dir.path(), &file, &arguments, &slow).expect("it starts");
    for slot in [Slot::trainer(0), Slot::pserver(1)] {
        kill_in_a_step(&mut run, slot);
    }
    let (view, _) = finished(run.expecting(KILLS));
    assert_eq!(model(dir.path(), "protected"), expected);
    assert_eq!((view.recoveries.len(), view.epoch.count), (2, 1));
}

#[test]
#[ignore = "nightly: three jobs of half a minute"]
fn one_two_and_three_trainers_give_the_same_clusters() {
    let dir = folder();
    for trainers in [1, 2, 3] {
        let name = format!("clusters-{trainers}");
        let file = job_of(dir.path(), &name, trainers, KMEANS);
        finished(Run::start(dir.path(), &file, &[]).expect("it starts"));
        assert_eq!(model(dir.path(), &name), model(dir.path(), "clusters-1"), "{trainers}");
    }
}

#[test]
#[ignore = "nightly: a job of a minute"]
fn kills_while_candidates_are_drawn_change_no_byte() {
    let dir = folder();
    let file = job_of(dir.path(), "drawn-calm", 2, KMEANS);
    finished(Run::start(dir.path(), &file, &[]).expect("it starts"));
    let file = job_of(dir.path(), "drawn-killed", 2, KMEANS);
    let slow = [("FAILPOINTS", "step-computed=sleep(15)")];
    let mut run = Run::start_with(dir.path(), &file, &[], &slow).expect("it starts");
    // Columns, six rounds of candidates, their counts.
    for phase in 1..=9 {
        let text = format!("measuring, {phase} of 9");
        let view = run
            .wait_for(&text, LIMIT, |view| {
                view.phase_text == text
                    && view.step.0 > 0
                    && view.slots.iter().all(|slot| slot.pid > 0)
            })
            .expect("the phase has steps");
        let slot = match phase % 3 {
            0 => Slot::pserver(0),
            1 => Slot::trainer(0),
            _ => Slot::trainer(1),
        };
        let known = view.recoveries.len();
        kill9(pid_of(&view, slot).expect("it runs")).expect("it was alive");
        run.wait_for("recovered", LIMIT, |view| {
            view.recoveries.len() > known && view.recoveries.iter().all(|recovery| recovery.done)
        })
        .expect("it recovers");
    }
    finished(run.expecting(KILLS));
    assert_eq!(model(dir.path(), "drawn-killed"), model(dir.path(), "drawn-calm"));
}

/// One data thread has made new centres of the sums when its process dies, the other threads have or have not.
#[test]
#[ignore = "nightly: jobs of two minutes"]
fn deaths_at_the_end_of_a_pass_change_no_byte() {
    let dir = folder();
    let file = job_of(dir.path(), "ends-calm", 2, KMEANS);
    finished(Run::start(dir.path(), &file, &[]).expect("it starts"));
    // The evaluation after the second pass, and the third pass.
    for (phase, thread) in [(12, 0), (12, 1), (13, 0)] {
        let name = format!("ends-{phase}-{thread}");
        let point =
            format!("phase-begun=return(exit,incarnation=1,slot=0,phase={phase},thread={thread})");
        let file = job_of(dir.path(), &name, 2, KMEANS);
        let run = Run::start_with(dir.path(), &file, &[], &[("FAILPOINTS", &point)]);
        let (view, _) = finished(run.expect("it starts").expecting(KILLS));
        assert!(!view.recoveries.is_empty(), "{name}: no process exited");
        assert_eq!(model(dir.path(), &name), model(dir.path(), "ends-calm"), "{name}");
    }
}

#[test]
fn deaths_between_the_frames_of_a_step_change_no_byte() {
    let dir = folder();
    let (expected, _) = undisturbed(dir.path());
    for (name, fail_points) in [
        (
            "between-shards",
            "frame-sent=return(exit,incarnation=1,kind=Push,step=30,lane=1,changed=peer)",
        ),
        ("before-done", "frame-sent=return(exit,incarnation=1,kind=Done,step=31,lane=0)"),
        ("pserver-staged", "frame-received=return(exit,incarnation=1,kind=Done,step=32)"),
    ] {
        let file = job(dir.path(), name, 2);
        let run = Run::start_with(dir.path(), &file, &[], &[("FAILPOINTS", fail_points)]);
        let (view, _) = finished(run.expect("it starts").expecting(KILLS));
        assert!(!view.recoveries.is_empty(), "{name}: no process exited");
        assert_eq!(model(dir.path(), name), expected, "{name}");
    }
}

#[test]
fn both_roles_at_once_and_the_master_may_die() {
    let dir = folder();
    let (expected, _) = undisturbed(dir.path());
    let file = job(dir.path(), "master", 2);
    let slow = [("FAILPOINTS", "step-computed=sleep(25)")];
    let mut run = Run::start_with(dir.path(), &file, &[], &slow).expect("it starts");
    let view = running(&mut run);
    kill9(pid_of(&view, Slot::pserver(0)).expect("runs")).expect("alive");
    kill9(pid_of(&view, Slot::trainer(1)).expect("runs")).expect("alive");
    run.wait_for("recovered", LIMIT, |view| {
        view.recoveries.len() >= 2 && view.recoveries.iter().all(|recovery| recovery.done)
    })
    .expect("it recovers");
    let view = running(&mut run);
    let children: Vec<_> = view
        .slots
        .iter()
        .map(|place| nix::unistd::Pid::from_raw(place.pid.cast_signed()))
        .collect();
    let am = heddle_tests::local::am_pid(dir.path()).expect("the ApplicationMaster's address");
    kill9(am).expect("alive");
    heddle_tests::hadoop::wait::wait_until("children stop by themselves", LIMIT, || {
        anyhow::ensure!(
            !children.iter().any(|pid| heddle_tests::local::is_alive(*pid)),
            "some live"
        );
        Ok(())
    })
    .expect("children end with the ApplicationMaster");
    let (code, ..) = run.finish(LIMIT).expect("the command line ends");
    assert_ne!(code, Some(0));
    let again = Run::start(dir.path(), &file, &[]).expect("it starts again");
    let (_, events) = finished(again);
    let resumed = events.iter().find_map(|event| match event {
        JobEvent::Started { resumed_from, .. } => *resumed_from,
        _ => None,
    });
    assert!(resumed.is_some(), "it prints from where it continues");
    assert_eq!(model(dir.path(), "master"), expected);
}
