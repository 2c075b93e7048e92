//! Jobs whose work is shaped badly end all the same, also when cuts are ordered and trainers die in the middle of them.

use std::path::Path;
use std::time::{Duration, Instant};

use heddle_protocol::ids::Slot;
use heddle_protocol::view::{JobEvent, JobState, JobView};
use heddle_tests::local::{Run, heddle, kill9, pid_of, write_libsvm};
use heddle_tests::logs::KILLS;

const LIMIT: Duration = Duration::from_secs(180);

fn job(dir: &Path, consistency: &str, lanes: u32, trainers: u32) {
    let text = format!(
        "name = \"shape\"\n\
         [data]\ntrain = \"data/*.libsvm\"\npasses = 2\n\
         [model]\nalgorithm = \"logistic-regression\"\nfeatures = 50\nstandardise = false\n\
         [training]\nconsistency = \"{consistency}\"\nlanes = {lanes}\nbatch = 4\n\
         [pservers]\ncount = 2\nshards = 4\n\
         [trainers]\nmin = 1\nmax = {trainers}\n\
         [checkpoint]\ndir = \"ckpt\"\nevery = \"10min\"\n\
         [output]\nmodel = \"model\"\n"
    );
    std::fs::write(dir.join("job.toml"), text).expect("a job file");
}

fn ended(run: Run) -> JobView {
    let (code, events, stderr) = run.finish(LIMIT).expect("the run ends");
    assert_eq!(code, Some(0), "{stderr}");
    events
        .into_iter()
        .find_map(|event| match event {
            JobEvent::Ended { view, .. } => Some(*view),
            _ => None,
        })
        .expect("the end is reported")
}

#[test]
fn fewer_records_than_lanes_and_fewer_tasks_than_trainers() {
    for consistency in ["bsp", "asp"] {
        let dir = tempfile::tempdir().expect("a folder");
        write_libsvm(&dir.path().join("data"), "few", 1, 3, 50, 5, 2).expect("data");
        job(dir.path(), consistency, 8, 3);
        let view = ended(Run::start(dir.path(), "job.toml", &[]).expect("it starts"));
        // A trainer without work may compute the end of another's task too; what it pushes counts once.
        assert!(
            view.rows == 6 || (consistency == "asp" && view.rows > 6),
            "{consistency}: three records, two passes, but {} rows",
            view.rows
        );
    }
}

/// One long file and many tiny ones; steps take long.
fn uneven(consistency: &str, trainers: u32) -> (tempfile::TempDir, Run) {
    let dir = tempfile::tempdir().expect("a folder");
    let data = dir.path().join("data");
    write_libsvm(&data, "long", 1, 900, 50, 5, 1).expect("data");
    write_libsvm(&data, "tiny", 6, 3, 50, 5, 2).expect("data");
    job(dir.path(), consistency, 5, trainers);
    let slow = [("FAILPOINTS", "step-computed=sleep(15)")];
    let run = Run::start_with(dir.path(), "job.toml", &[], &slow).expect("it starts");
    (dir, run)
}

fn training(run: &mut Run, rows: u64) -> JobView {
    run.wait_for("training", LIMIT, |view| {
        view.state == JobState::Running
            && view.rows >= rows
            && view.phase_text.starts_with("pass")
            && view.slots.iter().all(|place| place.pid > 0)
    })
    .expect("it trains")
}

fn checkpoint_now(dir: &Path, run: &Run) {
    let id = run.view().expect("it runs").run.to_string();
    let said = heddle(dir, &["checkpoint", "now", &id]).expect("heddle starts");
    assert_eq!(said.code, Some(0), "{said:?}");
}

#[test]
fn cuts_ordered_at_any_time_of_an_uneven_job_are_taken() {
    for consistency in ["bsp", "asp"] {
        let (dir, mut run) = uneven(consistency, 3);
        let mut taken = training(&mut run, 1).checkpoints_taken;
        for _ in 0..3 {
            checkpoint_now(dir.path(), &run);
            let view = run
                .wait_for("a checkpoint", LIMIT, |view| view.checkpoints_taken > taken)
                .expect("the cut becomes a checkpoint");
            taken = view.checkpoints_taken;
        }
        let view = ended(run);
        let rows = 2 * (900 + 18);
        // In ASP a second trainer may compute the long task's end too; what it pushes counts once.
        assert!(view.rows >= rows && (consistency == "asp" || view.rows == rows), "{}", view.rows);
    }
}

#[test]
fn a_death_and_a_join_in_a_cut_do_not_block_it() {
    for consistency in ["bsp", "asp"] {
        let (dir, mut run) = uneven(consistency, 2);
        let view = training(&mut run, 1);
        let victim = pid_of(&view, Slot::trainer(1)).expect("it runs");
        checkpoint_now(dir.path(), &run);
        kill9(victim).expect("it was alive");
        run.wait_for("a successor", LIMIT, |view| {
            view.recoveries.iter().any(|recovery| recovery.slot == Some(Slot::trainer(1)))
                && pid_of(view, Slot::trainer(1)).is_ok_and(|pid| pid != victim)
        })
        .expect("it is replaced");
        let taken = run.view().expect("it runs").checkpoints_taken;
        checkpoint_now(dir.path(), &run);
        run.wait_for("a checkpoint after it", LIMIT, |view| view.checkpoints_taken > taken)
            .expect("cuts are taken again");
        ended(run.expecting(KILLS));
    }
}

#[test]
fn the_recovery_of_a_pserver_is_reported_in_five_rows() {
    let (dir, mut run) = uneven("bsp", 2);
    let view = training(&mut run, 1);
    checkpoint_now(dir.path(), &run);
    run.wait_for("a checkpoint", LIMIT, |now| now.checkpoints_taken > view.checkpoints_taken)
        .expect("the cut becomes a checkpoint");
    let victim = pid_of(&view, Slot::pserver(0)).expect("it runs");
    let kill = Instant::now();
    kill9(victim).expect("it was alive");
    run.wait_for("noticed", LIMIT, |view| !view.recoveries.is_empty()).expect("noticed");
    let noticed = kill.elapsed();
    let view = run
        .wait_for("recovered", LIMIT, |view| view.recoveries.iter().all(|recovery| recovery.done))
        .expect("recovered");
    // The page is renewed five times a second, which both figures include.
    println!("noticed after {noticed:?}, all training after {:?}", kill.elapsed());
    let recovery = &view.recoveries[0];
    println!("{recovery:#?}");
    assert_eq!(recovery.epoch_after, recovery.epoch_before.next());
    assert!(recovery.base.is_some());
    for (row, ms) in [
        ("checkpoint", recovery.save_ms),
        ("age of the checkpoint", recovery.checkpoint_ms),
        ("steps done again", recovery.steps_again),
        ("notice", recovery.notice_ms),
        ("restart", recovery.restart_ms),
        ("load", recovery.load_ms),
        ("resume", recovery.resume_ms),
    ] {
        assert!(ms.is_some(), "{row} is missing: {recovery:?}");
    }
    ended(run.expecting(KILLS));
}
