//! Processes that stand still (SIGSTOP): a short pause has no consequences, a long one costs the process its place.

use std::path::Path;
use std::time::{Duration, Instant};

use heddle_protocol::ids::{Incarnation, Slot};
use heddle_protocol::view::{JobEvent, JobState, JobView};
use heddle_tests::hadoop::wait::wait_until;
use heddle_tests::local::{Run, am_pid, is_alive, pid_of};
use heddle_tests::logs::{KILLS, SILENCE};
use heddle_tests::standstill::{self, await_training, end_of, write_job};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const LIMIT: Duration = Duration::from_secs(180);
const PAUSE: Duration = Duration::from_secs(5);

/// A job of about `steps` steps.
fn job(dir: &Path, steps: u32) {
    write_job(dir, "pause", steps * 8).expect("a job");
}

fn started(dir: &Path, fail_points: &str) -> Run {
    Run::start_with(dir, "job.toml", &[], &[("FAILPOINTS", fail_points)]).expect("it starts")
}

fn training(run: &mut Run) -> JobView {
    await_training(run, LIMIT).expect("it trains")
}

fn ended(run: Run) -> JobView {
    let (code, events, stderr) = run.finish(LIMIT).expect("it ends");
    assert_eq!(code, Some(0), "{stderr}");
    end_of(events).expect("the end is reported")
}

fn stop(pid: Pid) {
    kill(pid, Signal::SIGSTOP).expect("it was alive");
}

/// The model of a run that nothing disturbed.
fn undisturbed(steps: u32) -> Vec<u8> {
    let dir = tempfile::tempdir().expect("a folder");
    job(dir.path(), steps);
    ended(started(dir.path(), ""));
    model(dir.path())
}

fn model(dir: &Path) -> Vec<u8> {
    standstill::model(dir).expect("a model")
}

#[test]
fn s36_pause_of_5_s_of_any_role_has_no_consequences() {
    let dir = tempfile::tempdir().expect("a folder");
    job(dir.path(), 1_200);
    let mut run = started(dir.path(), "step-computed=sleep(25)");
    let before = training(&mut run);
    let am = am_pid(dir.path()).expect("it runs");
    let pids =
        [Slot::pserver(0), Slot::trainer(0)].map(|slot| pid_of(&before, slot).expect("it runs"));
    for pid in [pids[0], pids[1], am] {
        stop(pid);
        std::thread::sleep(PAUSE);
        kill(pid, Signal::SIGCONT).expect("it is still there");
        std::thread::sleep(Duration::from_secs(2));
    }
    let after = run.view().expect("it runs on");
    assert_eq!(after.state, JobState::Running, "the pauses were in the training");
    assert_eq!(after.epoch, before.epoch);
    assert_eq!(after.recoveries, []);
    assert!(after.slots.iter().all(|slot| slot.incarnation == Incarnation(1)), "{after:?}");
    let view = ended(run.expecting(SILENCE));
    assert_eq!(view.recoveries, []);
    assert_eq!(model(dir.path()), undisturbed(1_200), "BSP gives the same bytes");
}

/// Stops the process in a slot for good. Returns the cause that the job gives for the loss, and the process.
fn stopped_for_good(run: &mut Run, slot: Slot) -> (String, Pid) {
    let before = training(run);
    let pid = pid_of(&before, slot).expect("it runs");
    stop(pid);
    let begun = Instant::now();
    let cause = run
        .wait_event("the loss", LIMIT, |event| match event {
            JobEvent::Lost { slot: lost, cause, .. } if *lost == slot => Some(cause.clone()),
            _ => None,
        })
        .expect("it is given up");
    // The promise is 10 ± 1 s. The last heartbeat was up to a second old, and the machine may be busy.
    let seconds = begun.elapsed().as_secs_f64();
    assert!((8.5..14.0).contains(&seconds), "{slot} was given up after {seconds} s");
    (cause, pid)
}

#[test]
fn s37_process_that_stands_still_is_given_up_and_killed() {
    let expected = undisturbed(700);
    for slot in [Slot::pserver(0), Slot::trainer(0)] {
        let dir = tempfile::tempdir().expect("a folder");
        job(dir.path(), 700);
        let mut run = started(dir.path(), "step-computed=sleep(25)");
        let (cause, pid) = stopped_for_good(&mut run, slot);
        assert!(cause.contains("was not heard for 10 s"), "{cause}");
        let stands_still = cause.contains("stands still: its port accepts connections");
        assert_eq!(stands_still, slot == Slot::pserver(0), "{cause}");
        wait_until("its end", LIMIT, || match is_alive(pid) {
            true => anyhow::bail!("{pid} lives"),
            false => Ok(()),
        })
        .expect("it was killed");
        // A pause of 12 s ends after the process: it does not wake.
        let _not_reaped = kill(pid, Signal::SIGCONT);
        assert!(!is_alive(pid), "{slot} woke");
        let view = ended(run.expecting(SILENCE).expecting(KILLS));
        assert_eq!(view.recoveries.len(), 1, "{:?}", view.recoveries);
        assert_eq!(model(dir.path()), expected, "{slot}");
    }
}

#[test]
fn s37_zombie_that_wakes_changes_nothing_and_ends_by_itself() {
    let expected = undisturbed(700);
    for slot in [Slot::pserver(0), Slot::trainer(0)] {
        let dir = tempfile::tempdir().expect("a folder");
        job(dir.path(), 700);
        let nobody_kills =
            format!("step-computed=sleep(25);container-stop=return(skip,container={slot}-1)");
        let mut run = started(dir.path(), &nobody_kills);
        let (_, pid) = stopped_for_good(&mut run, slot);
        let view = run
            .wait_for("a successor that works", LIMIT, |view| {
                view.recoveries.iter().all(|recovery| recovery.done)
                    && pid_of(view, slot).is_ok_and(|now| now != pid)
            })
            .expect("it is replaced");
        assert!(is_alive(pid), "its node is lost: the process still exists");
        kill(pid, Signal::SIGCONT).expect("it exists");
        ends_by_itself(pid);
        assert_eq!(run.view().expect("it trains on").epoch, view.epoch);
        let view = ended(run.expecting(SILENCE).expecting(KILLS));
        assert_eq!(view.recoveries.len(), 1, "{:?}", view.recoveries);
        assert_eq!(model(dir.path()), expected, "{slot}");
    }
}

/// Waits for the end of a process that nobody ends.
fn ends_by_itself(pid: Pid) {
    wait_until("its end", Duration::from_secs(10), || match is_alive(pid) {
        true => anyhow::bail!("{pid} lives"),
        false => Ok(()),
    })
    .expect("it ends by itself");
}

/// The same job with a backup of each shard on the other pserver.
fn replicated_job(dir: &Path, steps: u32) {
    job(dir, steps);
    let path = dir.join("job.toml");
    let text = std::fs::read_to_string(&path).expect("a job file");
    let more = text.replace("shards = 4\n", "shards = 4\nreplicas = 1\n");
    assert_ne!(more, text);
    std::fs::write(path, more).expect("written");
}

/// Its backups leave the sets after `liveness.lag` and are filled again; nothing is promoted, and nobody is replaced.
#[test]
fn s36_pause_of_a_pserver_with_backups_has_no_consequences() {
    let dir = tempfile::tempdir().expect("a folder");
    replicated_job(dir.path(), 1_200);
    let mut run = started(dir.path(), "step-computed=sleep(25)");
    let before = training(&mut run);
    let pid = pid_of(&before, Slot::pserver(0)).expect("it runs");
    stop(pid);
    std::thread::sleep(PAUSE);
    kill(pid, Signal::SIGCONT).expect("it is still there");
    let after = run
        .wait_for("backups of all shards", LIMIT, |view| {
            view.replication.as_ref().is_some_and(|it| it.under_replicated == 0)
        })
        .expect("they are filled again");
    assert_eq!((after.state, after.epoch), (JobState::Running, before.epoch));
    let view = ended(run.expecting(SILENCE));
    assert_eq!(view.recoveries, []);
    assert!(view.slots.iter().all(|slot| slot.incarnation == Incarnation(1)), "{view:?}");
    let replication = view.replication.expect("it has backups");
    assert_eq!(replication.promotions, 0, "{replication:?}");
    assert_eq!(model(dir.path()), undisturbed(1_200), "BSP gives the same bytes");
}

/// A primary that stands still for good, and wakes when its backups serve its shards: nobody could end it meanwhile.
#[test]
fn s37_primary_that_wakes_beside_its_successor_changes_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    replicated_job(dir.path(), 1_000);
    let nobody_kills = "step-computed=sleep(25);container-stop=return(skip,container=pserver-0-1)";
    let mut run = started(dir.path(), nobody_kills);
    let before = training(&mut run);
    let (_, pid) = stopped_for_good(&mut run, Slot::pserver(0));
    let view = run
        .wait_for("a failover", LIMIT, |view| {
            view.recoveries.iter().all(|recovery| recovery.done)
                && view.replication.as_ref().is_some_and(|it| it.promotions > 0)
        })
        .expect("backups serve its shards");
    assert_eq!(view.epoch, before.epoch);
    assert!(is_alive(pid), "its node is lost: the process still exists");
    kill(pid, Signal::SIGCONT).expect("it exists");
    ends_by_itself(pid);
    let view = ended(run.expecting(SILENCE).expecting(KILLS));
    assert_eq!((view.epoch, view.recoveries.len()), (before.epoch, 1), "{:?}", view.recoveries);
    assert_eq!(model(dir.path()), undisturbed(1_000), "BSP gives the same bytes");
}
