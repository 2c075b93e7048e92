//! Trainers that compute slower than others: lanes move away from them, and the model keeps its bytes. Their late tasks are
//! computed by others too, and counts stay exact.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use heddle_protocol::ids::{Incarnation, Slot};
use heddle_protocol::view::{JobEvent, JobView, WarningCode};
use heddle_tests::counts::published_counts;
use heddle_tests::local::{Run, program, write_libsvm};
use heddle_tests::logs::SLOWNESS;
use heddle_tests::standstill::{end_of, model};

const LIMIT: Duration = Duration::from_secs(240);

/// Eight lanes on four trainers. Each step of a lane takes eight records.
fn bsp(dir: &Path, steps: u32) {
    write_libsvm(&dir.join("data"), "train", 8, 8 * steps, 50, 5, 3).expect("data");
    let text = "name = \"stragglers\"\n\
         [data]\ntrain = \"data/train-*.libsvm\"\npasses = 1\n\
         [model]\nalgorithm = \"logistic-regression\"\nfeatures = 50\nstandardise = false\n\
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

fn warning(run: &Run, of: WarningCode) -> String {
    run.wait_event("a warning", LIMIT, |event| match event {
        JobEvent::Warning { text, code } if *code == of => Some(text.clone()),
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
    let run = run.expect("it starts").expecting(SLOWNESS);
    let text = warning(&run, WarningCode::TrainerSlow);
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
    let run = run.expect("it starts").expecting(SLOWNESS);
    let text = warning(&run, WarningCode::SlowTrainerReplaced);
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

/// Steps of each file of the counting job.
const STEPS: u32 = 20;

/// A counting job (ASP) of this number of files: each sample adds 1 to its row.
fn asp(dir: &Path, files: u32, passes: u32, trainers: &str) {
    for file in 0..files {
        let mut text = String::new();
        for row in file * STEPS..(file + 1) * STEPS {
            writeln!(text, "1 {row}").expect("a string takes it");
        }
        std::fs::write(dir.join(format!("samples-{file:02}.dummy")), text).expect("data");
    }
    let program = program("counting-trainer").expect("built before");
    let text = format!(
        "name = \"late\"\n\
         [data]\ntrain = \"samples-*.dummy\"\nformat = \"dummy\"\npasses = {passes}\n\
         [model]\nalgorithm = \"custom\"\n\
         [[model.table]]\nname = \"counts\"\nrows = {}\ncols = 1\noptimizer = {{ kind = \"add\" }}\n\
         [training]\nconsistency = \"asp\"\nbatch = 1\n\
         [pservers]\ncount = 1\nshards = 2\n\
         [trainers]\n{trainers}\ncommand = [\"{}\"]\n\
         [checkpoint]\ndir = \"ckpt\"\nevery = \"10min\"\n\
         [output]\nmodel = \"model\"\nformats = [\"safetensors\"]\n",
        files * STEPS,
        program.display(),
    );
    std::fs::write(dir.join("job.toml"), text).expect("a job file");
}

/// The end of a counting job: every row is the number of passes, and no trainer had to be replaced.
fn ends_exactly(run: Run, dir: &Path, passes: u32) -> JobView {
    let (code, events, stderr) = run.finish(LIMIT).expect("it ends");
    assert_eq!(code, Some(0), "{stderr}");
    let counts = published_counts(&dir.join("model"));
    let wrong: Vec<_> = counts.iter().filter(|count| **count != passes as f32).collect();
    assert!(wrong.is_empty(), "{} of {} rows are wrong: {wrong:?}", wrong.len(), counts.len());
    let stays = |event: &JobEvent| {
        matches!(event, JobEvent::Warning { code: WarningCode::TrainerNotStopping, .. })
    };
    assert!(!events.iter().any(stays), "{events:?}");
    let view = end_of(events).expect("the end is reported");
    assert!(view.slots.iter().all(|slot| slot.incarnation == Incarnation(1)), "{:?}", view.slots);
    assert_eq!(view.recoveries, [], "no work is lost");
    let late = view.stragglers.expect("the loser of the first pass has stopped");
    assert!(late.stopped > 0, "{late:?}");
    println!("{}", late.text());
    view
}

/// Records that a trainer has computed.
fn computed(view: &JobView, slot: Slot) -> u64 {
    view.slots.iter().find(|one| one.slot == slot).expect("it is there").total
}

#[test]
fn late_task_is_computed_by_an_idle_trainer_and_counts_once() {
    let dir = tempfile::tempdir().expect("a folder");
    // One of four trainers computes 100 times slower: 40 s for a task. In each pass another one computes
    // its task, too.
    asp(dir.path(), 32, 2, "min = 4\nmax = 4");
    let points = "step-computed=sleep(20);step-slowed=return(sleep=1980,slot=3)";
    let run = Run::start_with(dir.path(), "job.toml", &[], &[("FAILPOINTS", points)]);
    let view = ends_exactly(run.expect("it starts"), dir.path(), 2);
    let rows = computed(&view, Slot::trainer(3));
    assert!(rows < 2 * u64::from(STEPS), "the slow trainer computed a whole task in each pass");
}

#[test]
fn late_task_is_computed_by_an_extra_trainer_and_counts_once() {
    let dir = tempfile::tempdir().expect("a folder");
    // When three of four tasks are done, the other trainer has ten more: it is not idle.
    asp(dir.path(), 48, 2, "min = 2\nmax = 2\nextra = 1");
    let points = "step-computed=sleep(20);step-slowed=return(sleep=1480,slot=1)";
    let run = Run::start_with(dir.path(), "job.toml", &[], &[("FAILPOINTS", points)]);
    let mut run = run.expect("it starts").expecting(SLOWNESS);
    let text = warning(&run, WarningCode::ExtraTrainerStarted);
    assert!(text.contains("trainer-2 is started for it (trainers.extra)"), "{text}");
    let extra = |view: &JobView| {
        view.slots.iter().any(|slot| slot.slot == Slot::trainer(2) && slot.total > 0)
    };
    run.wait_for("the extra trainer computes", LIMIT, extra).expect("it does");
    let view = ends_exactly(run, dir.path(), 2);
    let rows = computed(&view, Slot::trainer(1));
    assert!(rows < 2 * u64::from(STEPS), "the slow trainer computed a whole task in each pass");
}
