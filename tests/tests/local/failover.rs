//! Jobs with `pservers.replicas`: a lost pserver costs no rollback while a copy of each of its shards is left, and in BSP the
//! model has the bytes of an undisturbed run without backups. Counts of ASP are in `local_counting`.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use heddle_protocol::ids::Slot;
use heddle_protocol::view::{JobEvent, JobState, JobView, RecoveryKind};
use heddle_tests::local::{Run, heddle, kill9, pid_of, write_libsvm};
use heddle_tests::logs::KILLS;
use sha2::{Digest, Sha256};

const LIMIT: Duration = Duration::from_secs(120);

/// A BSP job of about 400 steps on three pservers.
fn job(dir: &Path, name: &str, replicas: u32) -> String {
    let file = format!("{name}.toml");
    let text = format!(
        "name = \"failover\"\n\
         [data]\ntrain = \"data/train-*.libsvm\"\ntest = \"data/test-*.libsvm\"\npasses = 4\n\
         [model]\nalgorithm = \"logistic-regression\"\nfeatures = 300\nl2 = 1e-4\nstandardise = true\n\
         optimizer = {{ kind = \"ftrl\", alpha = 0.1 }}\n\
         [training]\nconsistency = \"bsp\"\nlanes = 4\nbatch = 8\nseed = 7\n\
         [pservers]\ncount = 3\nvcores = 2\nshards = 12\nreplicas = {replicas}\n\
         [trainers]\nmin = 2\nmax = 2\n\
         [checkpoint]\ndir = \"ckpt-{name}\"\nevery = \"40 steps\"\n\
         [output]\nmodel = \"model-{name}\"\n"
    );
    std::fs::write(dir.join(&file), text).expect("a job file");
    file
}

/// SHA-256 of the published model's files, by name.
fn model(dir: &Path, name: &str) -> BTreeMap<String, String> {
    let root = dir.join(format!("model-{name}"));
    let published = std::fs::read(root.join("MODEL.json")).expect("a published model");
    let published = heddle_protocol::model::ModelFile::from_json(&published).expect("a model file");
    let sum = |file: &heddle_protocol::control::ExportedFile| {
        let bytes = std::fs::read(root.join(&published.dir).join(&file.name)).expect("a file");
        (file.name.clone(), hex::encode(Sha256::digest(bytes)))
    };
    published.files.iter().map(sum).collect()
}

/// What a copy may do on a busy machine, where it waits for a core: it is filled again.
const WAITS: &[&str] = &["backup_lags"];

fn finished(run: Run) -> JobView {
    let (code, events, stderr) = run.finish(LIMIT).expect("the run ends");
    let ended = events.iter().find_map(|event| match event {
        JobEvent::Ended { view, .. } => Some((**view).clone()),
        _ => None,
    });
    let view = ended.unwrap_or_else(|| panic!("no end was reported: {stderr}"));
    assert_eq!((code, view.state), (Some(0), JobState::Finished), "{stderr}");
    view
}

fn training(run: &mut Run, steps: u64) -> JobView {
    let trains =
        |view: &JobView| view.state == JobState::Running && view.phase_text.starts_with("pass");
    let first = run.wait_for("training", LIMIT, trains).expect("it trains");
    run.wait_for("steps are taken", LIMIT, |view| {
        trains(view)
            && (view.phase > first.phase || view.step.0 >= first.step.0 + steps)
            && view.slots.iter().all(|place| place.pid > 0)
    })
    .expect("steps are taken")
}

/// Kills the process of a slot; returns the view when the loss is dealt with, and prints what the next step took.
fn kill(run: &mut Run, slot: Slot) -> JobView {
    let before = training(run, 3);
    let known = before.recoveries.len();
    let killed = Instant::now();
    kill9(pid_of(&before, slot).expect("it runs")).expect("it was alive");
    let after = run
        .wait_for("recovered", LIMIT, |view| {
            view.recoveries.len() > known && view.recoveries.iter().all(|recovery| recovery.done)
        })
        .expect("it recovers");
    let recovery = after.recoveries.last().expect("one more");
    println!(
        "{slot} killed: {:?} notice {:?} ms, record {:?} ms, promotion {:?} ms, next step {:?} ms; seen after {} ms",
        recovery.kind,
        recovery.notice_ms,
        recovery.restart_ms,
        recovery.load_ms,
        recovery.resume_ms,
        killed.elapsed().as_millis()
    );
    assert_eq!(recovery.slot, Some(slot));
    after
}

/// Waits until all shards have their backups again.
fn refilled(run: &mut Run) -> JobView {
    run.wait_for("refilled", LIMIT, |view| {
        view.replication.as_ref().is_some_and(|it| it.under_replicated == 0)
    })
    .expect("copies come in the background")
}

/// Kills the processes of slots, without waiting in between; returns the view when the losses are dealt with.
fn kill_at_once(run: &mut Run, slots: [Slot; 2]) -> JobView {
    let before = training(run, 3);
    let known = before.recoveries.len();
    for slot in slots {
        kill9(pid_of(&before, slot).expect("it runs")).expect("it was alive");
    }
    run.wait_for("recovered", LIMIT, |view| {
        view.recoveries.len() >= known + 2 && view.recoveries.iter().all(|recovery| recovery.done)
    })
    .expect("it recovers")
}

/// Waits until each of three pservers serves a third of the shards again.
fn spread(run: &mut Run) -> JobView {
    run.wait_for("spread evenly", LIMIT, |view| {
        let served = view.replication.as_ref().map(|it| &it.served);
        served.is_some_and(|served| served.len() == 3 && served.values().all(|it| *it == 4))
    })
    .expect("shards are handed over")
}

/// A spare takes the shards of a killed pserver, and another the work of a killed trainer, without a container that starts.
fn spares(dir: &Path, expected: &BTreeMap<String, String>) {
    let file = job(dir, "spared", 0);
    let slow = [("FAILPOINTS", "step-computed=sleep(25)")];
    let more = ["--set", "pservers.spares=1", "--set", "trainers.spares=1"];
    let mut run = Run::start_with(dir, &file, &more, &slow).expect("it starts");
    let ready = |view: &JobView| {
        view.spares.is_some_and(|it| (it.pservers.ready, it.trainers.ready) == (1, 1))
    };
    run.wait_for("spares are ready", LIMIT, ready).expect("they start");
    let status = heddle(dir, &["status"]).expect("heddle starts").stdout;
    assert!(status.contains("spares: 1 of 1 pserver ready, 1 of 1 trainer ready"), "{status}");
    for slot in [Slot::pserver(1), Slot::trainer(0), Slot::pserver(3)] {
        run.wait_for("spares are ready", LIMIT, ready).expect("the last one is replaced");
        let after = kill(&mut run, slot);
        let recovery = after.recoveries.last().expect("one");
        assert_eq!(recovery.kind, RecoveryKind::Spare, "{}", recovery.cause);
    }
    let view = finished(run.expecting(KILLS));
    assert_eq!(view.epoch.count, 2, "a rollback for each pserver");
    let report = heddle(dir, &["report"]).expect("heddle starts").stdout;
    assert!(report.contains("(spare, epoch"), "{report}");
    assert_eq!(model(dir, "spared"), *expected, "spares change no byte");
}

/// Shards that move while the job trains change no byte.
fn moves(dir: &Path, expected: &BTreeMap<String, String>) {
    let file = job(dir, "moved", 0);
    let slow = [("FAILPOINTS", "step-computed=sleep(25)")];
    let more = ["--set", "pservers.min=1", "--set", "pservers.max=4"];
    let mut run = Run::start_with(dir, &file, &more, &slow).expect("it starts");
    for wanted in [4, 1, 2] {
        let trains = |view: &JobView| view.phase_text.starts_with("pass");
        let id = run.wait_for("training", LIMIT, trains).expect("it trains").run.to_string();
        let words = ["scale", &id, "pservers", &wanted.to_string()];
        let scaled = heddle(dir, &words).expect("heddle starts");
        assert_eq!(scaled.code, Some(0), "{scaled:?}");
        let is_even = |view: &JobView| {
            let served = view.replication.as_ref().map(|copies| &copies.served);
            served.is_some_and(|by| {
                by.len() as u32 == wanted && by.values().all(|shards| *shards == 12 / wanted)
            })
        };
        run.wait_for("spread evenly", LIMIT, is_even).expect("shards move");
    }
    let status = heddle(dir, &["status"]).expect("heddle starts").stdout;
    assert!(status.contains("pservers: 2 wanted by an operator (1 to 4), 2 there"), "{status}");
    let view = finished(run.expecting(WAITS));
    assert_eq!((view.epoch.count, view.recoveries.len()), (0, 0));
    assert_eq!(model(dir, "moved"), *expected, "moves change no byte");
}

#[test]
fn killed_pservers_change_no_byte_and_no_epoch() {
    let dir = tempfile::tempdir().expect("a folder");
    let data = dir.path().join("data");
    write_libsvm(&data, "train", 4, 800, 300, 12, 11).expect("data");
    write_libsvm(&data, "test", 1, 400, 300, 12, 12).expect("data");
    let file = job(dir.path(), "calm", 0);
    let calm = finished(Run::start(dir.path(), &file, &[]).expect("it starts"));
    assert!(calm.replication.is_none());
    let expected = model(dir.path(), "calm");

    spares(dir.path(), &expected);
    moves(dir.path(), &expected);
    let file = job(dir.path(), "copied", 1);
    let copied = Run::start(dir.path(), &file, &[]).expect("it starts");
    let copied = finished(copied.expecting(WAITS));
    assert_eq!(model(dir.path(), "copied"), expected, "backups change no byte");
    let replication = copied.replication.expect("it has backups");
    assert_eq!((replication.in_sync, replication.under_replicated), (12, 0));

    let file = job(dir.path(), "killed", 1);
    let slow = [("FAILPOINTS", "step-computed=sleep(25)")];
    let mut run = Run::start_with(dir.path(), &file, &[], &slow).expect("it starts");
    // A primary of four shards that holds backups of four others.
    let after = kill(&mut run, Slot::pserver(0));
    let recovery = after.recoveries.last().expect("one");
    assert_eq!(recovery.kind, RecoveryKind::Failover);
    assert_eq!((recovery.epoch_after.count, after.epoch.count), (0, 0), "no rollback");
    assert_eq!(after.replication.expect("it has backups").promotions, 4);
    // Each shard gets another backup, and the loss of the next pserver costs as little.
    let view = refilled(&mut run);
    println!("refilled: {:?}", view.replication);
    // Living pservers hand shards over, to the replacement too: no rollback, and no byte changes.
    let view = spread(&mut run);
    println!("spread: {:?}", view.replication);
    let replication = view.replication.expect("it has backups");
    assert!(replication.hand_overs >= 4, "{replication:?}");
    assert_eq!((view.epoch.count, replication.promotions), (0, 4));
    let after = kill(&mut run, Slot::pserver(1));
    let recovery = after.recoveries.last().expect("one more");
    assert_eq!(recovery.kind, RecoveryKind::Failover, "{}", recovery.cause);
    assert_eq!(after.epoch.count, 0, "no rollback");
    refilled(&mut run);
    // Both copies of some shards at once.
    let before = training(&mut run, 3);
    let known = before.recoveries.len();
    for slot in [Slot::pserver(1), Slot::pserver(2)] {
        kill9(pid_of(&before, slot).expect("it runs")).expect("it was alive");
    }
    let after = run
        .wait_for("rolled back", LIMIT, |view| {
            view.epoch.count > 0
                && view.recoveries.len() > known
                && view.recoveries.iter().all(|recovery| recovery.done)
        })
        .expect("it recovers");
    let rolled_back = after.recoveries.iter().rev().find(|it| it.kind == RecoveryKind::Rollback);
    let recovery = rolled_back.expect("a rollback");
    // Whichever is noticed first: the end of the process, or its closed port.
    let causes = ["signal 9", "its process is gone"];
    assert!(causes.iter().any(|cause| recovery.cause.contains(cause)), "{}", recovery.cause);
    assert!(
        run.events().iter().any(|event| matches!(
            event,
            JobEvent::RollbackStarted { cause, .. } if cause.contains("no copy is left of shard")
        )),
        "the rollback names the shards"
    );
    let view = finished(run.expecting(KILLS));
    assert!(view.epoch.count >= 1);
    // After the rollback all shards have their backups again.
    let replication = view.replication.expect("it has backups");
    assert_eq!(replication.under_replicated, 0);
    assert_eq!(model(dir.path(), "killed"), expected, "kills change no byte");
}

/// With two backups the last copy serves, whichever two of three pservers are lost.
#[test]
fn two_of_three_pservers_are_lost_and_no_byte_changes() {
    let dir = tempfile::tempdir().expect("a folder");
    let data = dir.path().join("data");
    write_libsvm(&data, "train", 4, 800, 300, 12, 11).expect("data");
    write_libsvm(&data, "test", 1, 400, 300, 12, 12).expect("data");
    let file = job(dir.path(), "calm", 0);
    finished(Run::start(dir.path(), &file, &[]).expect("it starts"));
    let expected = model(dir.path(), "calm");

    let file = job(dir.path(), "twice", 2);
    let slow = [("FAILPOINTS", "step-computed=sleep(25)")];
    // On a busy machine a backup may be silent for the usual two seconds. Left out, it would not be the last copy.
    let patient = ["--set", "liveness.lag=10s"];
    let mut run = Run::start_with(dir.path(), &file, &patient, &slow).expect("it starts");
    let after = kill_at_once(&mut run, [0, 1].map(Slot::pserver));
    assert_eq!(after.epoch.count, 0, "no rollback: {:?}", after.recoveries.last());
    refilled(&mut run);
    // One after the other, before any copy can be filled.
    for slot in [1, 2] {
        let after = kill(&mut run, Slot::pserver(slot));
        let recovery = after.recoveries.last().expect("one more");
        assert_eq!(recovery.kind, RecoveryKind::Failover, "{}", recovery.cause);
        assert_eq!(after.epoch.count, 0, "no rollback");
    }
    let view = finished(run.expecting(KILLS));
    assert_eq!(view.epoch.count, 0);
    assert_eq!(model(dir.path(), "twice"), expected, "kills change no byte");
}
