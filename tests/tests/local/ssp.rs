//! SSP with real processes: no pull is granted across a gap above the staleness, whatever happens to trainers, and every job
//! ends.

use std::path::Path;
use std::time::Duration;

use heddle_protocol::ids::Slot;
use heddle_protocol::process_figures::ProcessFigure;
use heddle_protocol::view::{JobEvent, JobState, JobView};
use heddle_tests::hadoop::wait::wait_until;
use heddle_tests::local::{Run, am_pid, heddle, kill9, pid_of, write_libsvm};
use heddle_tests::logs::{KILLS, logs_below};
use nix::sys::signal::{Signal, kill};

const LIMIT: Duration = Duration::from_secs(120);
const FILES: u32 = 8;
const ROWS: u32 = 60;
const PASSES: u32 = 2;

/// A job of small steps: more tasks than trainers.
fn folder(staleness: u32, trainers: u32, passes: u32) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    write_libsvm(&dir.path().join("data"), "train", FILES, ROWS, 50, 5, 1).expect("data");
    let text = format!(
        "name = \"ssp\"\n\
         [data]\ntrain = \"data/train-*.libsvm\"\npasses = {passes}\n\
         [model]\nalgorithm = \"logistic-regression\"\nfeatures = 50\nstandardise = false\n\
         [training]\nconsistency = \"ssp\"\nstaleness = {staleness}\nbatch = 4\nseed = 3\n\
         [pservers]\ncount = 2\nshards = 4\n\
         [trainers]\nmin = 1\nmax = {trainers}\n\
         [checkpoint]\ndir = \"ckpt\"\nevery = \"10min\"\n\
         [output]\nmodel = \"model\"\n"
    );
    std::fs::write(dir.path().join("job.toml"), text).expect("a job file");
    dir
}

fn ended(run: Run) -> JobView {
    let (code, events, stderr) = run.finish(LIMIT).expect("the run ends");
    assert_eq!(code, Some(0), "{stderr}");
    let view = events.into_iter().find_map(|event| match event {
        JobEvent::Ended { view, .. } => Some(*view),
        _ => None,
    });
    view.expect("the end is reported")
}

/// What the shards have measured.
fn granted(view: &JobView, figure: ProcessFigure) -> u64 {
    view.figures.known(figure).expect("pulls were granted")
}

fn training(run: &mut Run, trainers: u32) -> JobView {
    let is_running = |view: &JobView| {
        (0..trainers).all(|index| pid_of(view, Slot::trainer(index)).is_ok())
            && view.state == JobState::Running
            && view.figures.known(ProcessFigure::PullGaps).is_some()
    };
    run.wait_for("all train", LIMIT, is_running).expect("they train")
}

/// Orders a cut and waits for its checkpoint.
fn cut(dir: &Path, run: &mut Run) {
    let view = run.view().expect("it runs");
    let ordered = heddle(dir, &["checkpoint", "now", &view.run.to_string()]).expect("it starts");
    assert_eq!(ordered.code, Some(0), "{ordered:?}");
    let taken = view.checkpoints_taken;
    run.wait_for("a checkpoint", LIMIT, |view| view.checkpoints_taken > taken)
        .expect("the cut becomes a checkpoint");
}

#[test]
fn undisturbed_jobs_train_within_their_staleness() {
    for staleness in [0, 1, 4] {
        let dir = folder(staleness, 3, PASSES);
        let slow = [("FAILPOINTS", "step-computed=sleep(10)")];
        let run = Run::start_with(dir.path(), "job.toml", &[], &slow).expect("it starts");
        let view = ended(run);
        let rows = u64::from(PASSES * FILES * ROWS);
        assert!(view.rows >= rows, "{} rows of staleness {staleness}", view.rows);
        let gap_max = granted(&view, ProcessFigure::PullGapMax);
        assert!(gap_max <= u64::from(staleness), "{gap_max}");
    }
}

/// One trainer takes twenty times as long as the others; one is killed and its successor joins. A cut is taken at each of
/// these moments.
fn disturbed(staleness: u32) {
    let dir = folder(staleness, 3, 3);
    let slow = [("FAILPOINTS", "step-computed=return(sleep=40,slot=2)")];
    let run = Run::start_with(dir.path(), "job.toml", &[], &slow).expect("it starts");
    let mut run = run.expecting(KILLS);
    let view = training(&mut run, 3);
    cut(dir.path(), &mut run);
    let victim = pid_of(&view, Slot::trainer(1)).expect("it runs");
    kill9(victim).expect("it was alive");
    cut(dir.path(), &mut run);
    run.wait_for("a successor", LIMIT, |view| {
        pid_of(view, Slot::trainer(1)).is_ok_and(|pid| pid != victim)
    })
    .expect("it is replaced");
    cut(dir.path(), &mut run);
    let view = ended(run);
    let pulls = |figure| granted(&view, figure);
    assert!(pulls(ProcessFigure::PullGapMax) <= u64::from(staleness), "{:?}", view.figures);
    let waited = [ProcessFigure::PullsWaited, ProcessFigure::PullWait].map(pulls);
    assert!(waited.iter().all(|waited| *waited > 0), "fast trainers waited: {waited:?}");
    assert!(view.recoveries.iter().any(|recovery| recovery.slot == Some(Slot::trainer(1))));
}

#[test]
fn staleness_0_holds_for_a_slow_a_killed_and_a_joining_trainer() {
    disturbed(0);
}

#[test]
fn staleness_1_holds_for_a_slow_a_killed_and_a_joining_trainer() {
    disturbed(1);
}

#[test]
fn staleness_4_holds_for_a_slow_a_killed_and_a_joining_trainer() {
    disturbed(4);
}

/// Frames that the pservers have accepted, by the last figure in the log of each.
fn pushes_taken(view: &JobView, dir: &Path) -> u64 {
    let runs = dir.join("state/heddle/runs");
    let logs = logs_below(&runs.join(view.run.to_string()).join("logs"));
    let last = |log: &String| {
        let line = log.lines().rfind(|line| line.contains("pushes_counted"))?;
        let number = line.split("pushes=").nth(1)?;
        number.split_whitespace().next()?.parse::<u64>().ok()
    };
    logs.iter().filter_map(|(_, log)| last(log)).sum()
}

/// A trainer dies while no ApplicationMaster can take it out of the list of members: the others go on.
#[test]
fn trainer_that_dies_without_a_master_holds_up_nobody() {
    let dir = folder(0, 2, PASSES);
    let variables = [("FAILPOINTS", "step-computed=sleep(20);log-pushes=return(on)")];
    let run = Run::start_with(dir.path(), "job.toml", &[], &variables).expect("it starts");
    let mut run = run.expecting(KILLS);
    let view = training(&mut run, 2);
    let am = am_pid(dir.path()).expect("its address");
    kill(am, Signal::SIGSTOP).expect("it was alive");
    kill9(pid_of(&view, Slot::trainer(1)).expect("it runs")).expect("it was alive");
    let before = pushes_taken(&view, dir.path());
    // Four shards take at least a part each: three steps. Without the rule there is one more step at the most. No more than the
    // rest of its task is left to the other trainer while there is no master.
    let went_on = wait_until("steps without a master", LIMIT, || {
        let taken = pushes_taken(&view, dir.path());
        anyhow::ensure!(taken > before + 12, "{taken} after {before}");
        Ok(())
    });
    kill(am, Signal::SIGCONT).expect("it is stopped");
    went_on.expect("training goes on");
    let view = ended(run);
    assert_eq!(granted(&view, ProcessFigure::PullGapMax), 0);
}

/// Each of three pservers is lost once. Its backup serves, and knows the clocks of all trainers before it grants a pull.
#[test]
fn staleness_holds_when_pservers_with_backups_are_lost() {
    for staleness in [0, 1] {
        let dir = folder(staleness, 3, 3);
        let sets = ["--set", "pservers.count=3", "--set", "pservers.replicas=1"];
        let slow = [("FAILPOINTS", "step-computed=sleep(10);step-slowed=return(sleep=30,slot=2)")];
        let run = Run::start_with(dir.path(), "job.toml", &sets, &slow).expect("it starts");
        let mut run = run.expecting(KILLS);
        training(&mut run, 3);
        for index in 0..3 {
            let has_backups = |view: &JobView| {
                let whole = view.replication.as_ref().is_some_and(|it| it.under_replicated == 0);
                whole && view.recoveries.iter().all(|recovery| recovery.done)
            };
            let view = run.wait_for("backups of all shards", LIMIT, has_backups).expect("filled");
            let known = view.recoveries.len();
            kill9(pid_of(&view, Slot::pserver(index)).expect("it runs")).expect("it was alive");
            run.wait_for("the loss is noticed", LIMIT, |view| view.recoveries.len() > known)
                .expect("noticed");
        }
        let view = ended(run);
        let gap_max = granted(&view, ProcessFigure::PullGapMax);
        assert!(gap_max <= u64::from(staleness), "{gap_max}");
        assert_eq!(view.epoch.count, 0, "no rollback: {:?}", view.recoveries);
        assert!(view.rows >= u64::from(3 * FILES * ROWS), "{} rows", view.rows);
    }
}
