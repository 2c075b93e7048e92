//! Trainers that compute slower than others: lanes move away from them, and the model keeps its bytes.

use std::path::Path;
use std::time::{Duration, Instant};

use heddle_protocol::ids::{Incarnation, Slot};
use heddle_protocol::view::JobEvent;
use heddle_tests::local::{Run, write_libsvm};
use heddle_tests::standstill::{end_of, model};

const LIMIT: Duration = Duration::from_secs(240);

/// Eight lanes on four trainers. Each step of a lane takes eight records.
fn bsp(dir: &Path, steps: u32) {
    write_libsvm(&dir.join("data"), "train", 8, 8 * steps, 50, 5, 3).expect("data");
    let text = "name = \"stragglers\"\n\
         [data]\ntrain = \"data/train-*.libsvm\"\npasses = 1\n\
         [model]\nalgorithm = \"logistic-regression\"\nfeatures = 50\n\
         [training]\nconsistency = \"bsp\"\nlanes = 8\nbatch = 8\n\
         [pservers]\ncount = 1\nshards = 2\n\
         [trainers]\nmin = 4\nmax = 4\n\
         [checkpoint]\ndir = \"ckpt\"\nevery = \"2s\"\n\
         [output]\nmodel = \"model\"\n";
    std::fs::write(dir.join("job.toml"), text).expect("a job file");
}

/// The bytes of the model of an undisturbed run.
fn undisturbed(write: impl Fn(&Path)) -> Vec<u8> {
    let dir = tempfile::tempdir().expect("a folder");
    write(dir.path());
    let run = Run::start(dir.path(), "job.toml", &[]).expect("it starts");
    assert_eq!(run.finish(LIMIT).expect("it ends").0, Some(0));
    model(dir.path()).expect("a model")
}

fn warning(run: &Run, words: &str) -> String {
    run.wait_event("a warning", LIMIT, |event| match event {
        JobEvent::Warning { text } if text.contains(words) => Some(text.clone()),
        _ => None,
    })
    .expect("it is noticed")
}

#[test]
fn lanes_move_away_from_a_slow_trainer_and_bytes_stay() {
    let job = |dir: &Path| bsp(dir, 160);
    let expected = undisturbed(job);
    let dir = tempfile::tempdir().expect("a folder");
    job(dir.path());
    // Five times as long as the others.
    let points = "step-computed=sleep(20);step-slowed=return(sleep=80,slot=1)";
    let run = Run::start_with(dir.path(), "job.toml", &[], &[("FAILPOINTS", points)]);
    let run = run.expect("it starts").expecting(&["warning_raised"]);
    let text = warning(&run, "lanes are divided by the trainers' speeds");
    assert!(text.starts_with("trainer-1 ") && text.contains(" times as long"), "{text}");
    let (code, events, stderr) = run.finish(LIMIT).expect("it ends");
    assert_eq!(code, Some(0), "{stderr}");
    let view = end_of(events).expect("the end is reported");
    assert!(view.slots.iter().all(|slot| slot.incarnation == Incarnation(1)), "{:?}", view.slots);
    assert_eq!(view.recoveries, [], "no work is lost");
    assert!(model(dir.path()).expect("a model") == expected, "another model");
}

#[test]
fn trainer_far_too_slow_is_replaced_and_bytes_stay() {
    let job = |dir: &Path| bsp(dir, 80);
    let expected = undisturbed(job);
    let dir = tempfile::tempdir().expect("a folder");
    job(dir.path());
    // A hundred times as long as the others.
    let points = "step-computed=sleep(20);step-slowed=return(sleep=1980,slot=3,incarnation=1)";
    let run = Run::start_with(dir.path(), "job.toml", &[], &[("FAILPOINTS", points)]);
    let run = run.expect("it starts").expecting(&["warning_raised"]);
    let text = warning(&run, "it is replaced");
    assert!(text.starts_with("trainer-3 "), "{text}");
    let noticed = Instant::now();
    let (code, events, stderr) = run.finish(LIMIT).expect("it ends");
    assert_eq!(code, Some(0), "{stderr}");
    println!("{} s from the notice to the end", noticed.elapsed().as_secs_f64());
    let view = end_of(events).expect("the end is reported");
    for slot in &view.slots {
        let replaced = slot.slot == Slot::trainer(3);
        assert_eq!(slot.incarnation != Incarnation(1), replaced, "{slot:?}");
    }
    assert_eq!(view.recoveries, [], "no work is lost");
    assert!(model(dir.path()).expect("a model") == expected, "another model");
}
