//! A run that gives up saves the state of its pservers first, and the same command continues from it.

use std::path::Path;
use std::time::Duration;

use heddle_protocol::ids::CutId;
use heddle_protocol::view::JobEvent;
use heddle_tests::local::Run;
use heddle_tests::standstill::{model, write_job};

const LIMIT: Duration = Duration::from_secs(180);
const ARGUMENTS: [&str; 6] =
    ["--set", "checkpoint.every=10min", "--set", "trainers.min=1", "--set", "trainers.max=1"];

fn start(dir: &Path, switch: &Path) -> Run {
    // Its processes end at their first step, as if an operator killed each of them.
    let points =
        format!("step-computed=return(exit,while={});step-slowed=sleep(10)", switch.display());
    Run::start_with(dir, "job.toml", &ARGUMENTS, &[("FAILPOINTS", points.as_str())])
        .expect("it starts")
}

fn committed(events: &[JobEvent]) -> Vec<CutId> {
    let cut = |event: &JobEvent| match event {
        JobEvent::CheckpointCommitted(view) => Some(view.cut),
        _ => None,
    };
    events.iter().filter_map(cut).collect()
}

#[test]
fn run_whose_trainer_fails_too_often_continues_where_it_stood() {
    let undisturbed = tempfile::tempdir().expect("a folder");
    write_job(undisturbed.path(), "last-save", 4_000).expect("a job");
    let run = start(undisturbed.path(), Path::new("/no such file"));
    assert_eq!(run.finish(LIMIT).expect("it ends").0, Some(0));

    let dir = tempfile::tempdir().expect("a folder");
    write_job(dir.path(), "last-save", 4_000).expect("a job");
    let switch = dir.path().join("exit");
    let mut run = start(dir.path(), &switch);
    run.wait_for("steps", LIMIT, |view| view.step.0 > 20).expect("it trains");
    std::fs::write(&switch, "").expect("written");
    let (code, events, stderr) = run.finish(LIMIT).expect("it gives up");
    assert_eq!(code, Some(1), "{stderr}");
    let saved = committed(&events).pop().expect("there is one");
    let message = events.iter().find_map(|event| match event {
        JobEvent::Ended { message, .. } => Some(message.as_str()),
        _ => None,
    });
    for words in ["trainer-0 failed too often", &format!("saved checkpoint {saved} (pass 1 of 1)")]
    {
        assert!(message.is_some_and(|it| it.contains(words)), "{words}: {message:?}");
    }

    std::fs::remove_file(&switch).expect("it is there");
    let run = start(dir.path(), &switch);
    let (code, events, stderr) = run.finish(LIMIT).expect("it ends");
    assert_eq!(code, Some(0), "{stderr}");
    let from = events.iter().find_map(|event| match event {
        JobEvent::Started { resumed_from, .. } => *resumed_from,
        _ => None,
    });
    assert_eq!(from, Some(saved));
    let [own, expected] = [&dir, &undisturbed].map(|dir| model(dir.path()).expect("a model"));
    assert_eq!(own, expected, "no step was lost or taken twice");
}
