//! Processes whose control thread sends heartbeats while another thread hangs.

use std::path::Path;
use std::time::{Duration, Instant};

use heddle_protocol::ids::{Incarnation, Slot};
use heddle_protocol::view::{JobEvent, JobView, WarningCode};
use heddle_tests::local::Run;
use heddle_tests::logs::{KILLS, SILENCE};
use heddle_tests::standstill::{await_training, end_of, model, write_job};

const LIMIT: Duration = Duration::from_secs(180);

fn job(dir: &Path) {
    write_job(dir, "hang", 2_000).expect("a job");
}

/// The first loss: its slot and cause.
fn loss(run: &Run) -> (Slot, String) {
    run.wait_event("a loss", LIMIT, |event| match event {
        JobEvent::Lost { slot, cause, .. } => Some((*slot, cause.clone())),
        _ => None,
    })
    .expect("it is given up")
}

/// The run ends well, and no slot but this one was replaced.
fn ends_well(run: Run, replaced: Slot) -> JobView {
    let run = run.expecting(KILLS).expecting(SILENCE).expecting(&["task_failed"]);
    let (code, events, stderr) = run.finish(LIMIT).expect("it ends");
    assert_eq!(code, Some(0), "{stderr}");
    let view = end_of(events).expect("the end is reported");
    assert_eq!(view.recoveries.len(), 1, "{:?}", view.recoveries);
    for slot in &view.slots {
        assert_eq!(slot.incarnation == Incarnation(1), slot.slot != replaced, "{slot:?}");
    }
    view
}

#[test]
fn s40_hung_thread_is_given_up_and_named_and_no_other_process() {
    let undisturbed = tempfile::tempdir().expect("a folder");
    job(undisturbed.path());
    let run = Run::start(undisturbed.path(), "job.toml", &[]).expect("it starts");
    assert_eq!(run.finish(LIMIT).expect("it ends").0, Some(0));
    for (point, slot, thread) in [
        ("data-turn", Slot::pserver(0), "data-0"),
        ("training-loop-turn", Slot::trainer(0), "the training loop"),
    ] {
        let dir = tempfile::tempdir().expect("a folder");
        job(dir.path());
        let switch = dir.path().join("hang");
        let hang = format!("return(sleep=60000,slot=0,incarnation=1,while={})", switch.display());
        let points = format!("step-computed=sleep(25);{point}={hang}");
        // Trainers that wait for a pserver that hangs are not stuck, however small that limit.
        let arguments = ["--set", "liveness.stuck=10s"];
        let variables = [("FAILPOINTS", points.as_str())];
        let mut run =
            Run::start_with(dir.path(), "job.toml", &arguments, &variables).expect("it starts");
        await_training(&mut run, LIMIT).expect("it trains");
        std::fs::write(&switch, "").expect("written");
        let begun = Instant::now();
        let (lost, cause) = loss(&run);
        let seconds = begun.elapsed().as_secs_f64();
        assert_eq!(lost, slot, "{cause}");
        assert!(cause.contains(&format!("hangs: {thread} took no turn for 1")), "{cause}");
        assert!((8.5..14.0).contains(&seconds), "{slot} was given up after {seconds} s");
        ends_well(run, slot);
        let [own, expected] = [&dir, &undisturbed].map(|dir| model(dir.path()).expect("a model"));
        assert_eq!(own, expected, "{slot}");
    }
}

#[test]
fn trainer_whose_algorithm_never_ends_a_step_is_replaced() {
    let dir = tempfile::tempdir().expect("a folder");
    job(dir.path());
    let hang = "step-computed=return(sleep=120000,slot=1,incarnation=1)";
    let arguments = ["--set", "liveness.dead=5s", "--set", "liveness.stuck=12s"];
    let run = Run::start_with(dir.path(), "job.toml", &arguments, &[("FAILPOINTS", hang)])
        .expect("it starts");
    let warning = run
        .wait_event("the error of the task", LIMIT, |event| match event {
            JobEvent::Warning { text, code: WarningCode::TaskFailed } => Some(text.clone()),
            _ => None,
        })
        .expect("the task has an error");
    assert!(warning.contains("computed one step of it for 1"), "{warning}");
    let (lost, cause) = loss(&run);
    assert_eq!(lost, Slot::trainer(1), "{cause}");
    assert!(cause.contains("is stuck: it has computed a step of task"), "{cause}");
    ends_well(run, Slot::trainer(1));
}
