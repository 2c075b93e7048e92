//! Saves of the model that a trainer's program asks for during training: whatever happens to the trainer that writes one, and
//! to the ApplicationMaster, each save has one valid model, and training goes on.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use heddle_protocol::ids::SaveNo;
use heddle_protocol::view::JobEvent;
use heddle_tests::counts::published_counts;
use heddle_tests::local::{Run, program};
use heddle_tests::logs::{KILLS, SILENCE};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const LIMIT: Duration = Duration::from_secs(240);
const ROWS: usize = 400;
const PASSES: usize = 3;

/// A counting job of 240 steps, whose program asks for a save after every `every` of a trainer's steps.
fn folder(every: u32, block_ms: u64) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    for file in 0..4 {
        let mut text = String::new();
        for row in 0..ROWS / 4 {
            writeln!(text, "1 {}", file * ROWS / 4 + row).expect("a string takes it");
        }
        std::fs::write(dir.path().join(format!("samples-{file}.dummy")), text).expect("data");
    }
    let trainer = program("counting-trainer").expect("built before");
    let text = format!(
        "name = \"saves\"\n\
         [data]\ntrain = \"samples-*.dummy\"\nformat = \"dummy\"\npasses = {PASSES}\n\
         [model]\nalgorithm = \"custom\"\n\
         [[model.table]]\nname = \"counts\"\nrows = {ROWS}\ncols = 1\noptimizer = {{ kind = \"add\" }}\n\
         [training]\nconsistency = \"asp\"\nbatch = 5\nseed = 3\n\
         [pservers]\ncount = 2\nshards = 2\n\
         [trainers]\nmin = 1\nmax = 2\ncommand = [\"{}\", \"--save-every\", \"{every}\", \"--block-ms\", \"{block_ms}\"]\n\
         [checkpoint]\ndir = \"ckpt\"\nevery = \"10min\"\n\
         [output]\nmodel = \"model\"\nformats = [\"safetensors\"]\nsave-lease = \"5s\"\n",
        trainer.display(),
    );
    std::fs::write(dir.path().join("job.toml"), text).expect("a job file");
    dir
}

/// Starts the job with slow steps and these fail points.
fn start(dir: &Path, points: &str) -> Run {
    let points = format!("step-computed=sleep(20);{points}");
    Run::start_with(dir, "job.toml", &[], &[("FAILPOINTS", &points)]).expect("it starts")
}

/// Each save in the output directory has one folder, which `MODEL.json` names, with a state of the job in it.
fn check_saves(dir: &Path) -> BTreeMap<u32, PathBuf> {
    check_saves_with(dir, 1)
}

/// As [`check_saves`], with at most this number of folders in each.
fn check_saves_with(dir: &Path, folders_max: usize) -> BTreeMap<u32, PathBuf> {
    let mut saves = BTreeMap::new();
    for entry in std::fs::read_dir(dir.join("model")).expect("an output directory") {
        let path = entry.expect("readable").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let Some(number) = name.strip_prefix("save-") else { continue };
        let counts = published_counts(&path);
        assert_eq!(counts.len(), ROWS, "{name}");
        let is_whole = |count: &f32| (0..=PASSES).any(|whole| *count == whole as f32);
        assert!(counts.iter().all(is_whole), "{name}: {counts:?}");
        let entries = std::fs::read_dir(&path).expect("readable").map(|it| it.expect("readable"));
        let mut names: Vec<_> =
            entries.map(|it| it.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        assert!(names[0] == "MODEL.json" && names.len() <= 1 + folders_max, "{name}: {names:?}");
        assert!(names[1..].iter().all(|it| it.starts_with("trainer-")), "{name}: {names:?}");
        saves.insert(number.parse().expect("a number"), path);
    }
    saves
}

/// Waits for the end of the job and checks its model. Returns the saves that were published.
fn finish(run: Run, dir: &Path) -> Vec<SaveNo> {
    let (code, events, stderr) = run.finish(LIMIT).expect("it ends");
    assert_eq!(code, Some(0), "{stderr}");
    assert!(published_counts(&dir.join("model")).iter().all(|count| *count == PASSES as f32));
    saved(&events)
}

fn saved(events: &[JobEvent]) -> Vec<SaveNo> {
    let saved = |event: &JobEvent| match event {
        JobEvent::ModelSaved { save, .. } => Some(*save),
        _ => None,
    };
    events.iter().filter_map(saved).collect()
}

#[test]
fn programs_save_while_training_goes_on() {
    let dir = folder(15, 100);
    let saved = finish(start(dir.path(), ""), dir.path());
    let found = check_saves(dir.path());
    assert!(found.len() >= 2, "{found:?}");
    assert!(found.keys().copied().eq(saved.iter().map(|save| save.0)), "{found:?} {saved:?}");
    // The first is of the middle of training.
    assert!(published_counts(&found[&1]).iter().any(|count| *count < PASSES as f32));
}

#[test]
fn bad_block_times_are_errors_of_the_asker_alone() {
    for block_ms in [0, 3_600_001] {
        let dir = folder(15, block_ms);
        let run = start(dir.path(), "");
        assert!(finish(run, dir.path()).is_empty());
        assert!(check_saves(dir.path()).is_empty());
        let refused = format!("must be from 1 ms to 1 h (got {block_ms} ms)");
        let output = texts_below(&dir.path().join("state"));
        assert!(output.iter().any(|text| text.contains(&refused)), "{output:?}");
    }
}

/// The content of all files below a folder, as text: logs and outputs of the processes are among them.
fn texts_below(dir: &Path) -> Vec<String> {
    let entries =
        std::fs::read_dir(dir).expect("a folder").map(|entry| entry.expect("readable").path());
    let texts = entries.flat_map(|path| match path.is_dir() {
        true => texts_below(&path),
        false => {
            vec![String::from_utf8_lossy(&std::fs::read(&path).unwrap_or_default()).into_owned()]
        }
    });
    texts.collect()
}

#[test]
fn saver_killed_twice_leaves_one_model() {
    let dir = folder(15, 100);
    // Both first trainers exit when they begin with the save.
    let run = start(dir.path(), "export-begun=return(exit,incarnation=1,save=1)");
    let lost = |run: &Run| {
        run.events().iter().filter(|event| matches!(event, JobEvent::Lost { .. })).count()
    };
    run.wait_event("save 1", LIMIT, |event| match event {
        JobEvent::ModelSaved { save: SaveNo(1), .. } => Some(()),
        _ => None,
    })
    .expect("it is published");
    assert_eq!(lost(&run), 2);
    finish(run.expecting(KILLS), dir.path());
    assert!(check_saves(dir.path()).contains_key(&1));
}

/// The trainer that is stopped.
fn stopped(run: &Run) -> Option<Pid> {
    let pids = run.view().ok()?.slots.into_iter().map(|place| place.pid).filter(|pid| *pid > 0);
    pids.map(|pid| Pid::from_raw(pid.cast_signed())).find(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
    })
}

#[test]
fn saver_stopped_past_its_lease_publishes_nothing() {
    let dir = folder(15, 100);
    let points = "export-begun=return(stop,save=1,lease=1);export-written=return(sleep=100,save=1)";
    let run = start(dir.path(), points);
    let pid = heddle_tests::hadoop::wait::wait_until("a saver is stopped", LIMIT, || {
        anyhow::Context::context(stopped(&run), "none")
    })
    .expect("the first election");
    let (dir_of, checkpoint) = run
        .wait_event("save 1", LIMIT, |event| match event {
            JobEvent::ModelSaved { save: SaveNo(1), dir, checkpoint } => {
                Some((dir.clone(), *checkpoint))
            }
            _ => None,
        })
        .expect("another trainer writes it");
    let path = dir.path().join("model/save-1/MODEL.json");
    let before = std::fs::read(&path).expect("published");
    // It wakes and writes what it was ordered.
    kill(pid, Signal::SIGCONT).expect("it is there");
    finish(run.expecting(SILENCE).expecting(&["export_retried"]), dir.path());
    assert_eq!(std::fs::read(&path).expect("still there"), before, "{dir_of} {checkpoint}");
    // Two folders, of which one is named.
    assert!(check_saves_with(dir.path(), 2).contains_key(&1));
}

#[test]
fn master_killed_while_it_publishes_leaves_one_model() {
    for point in ["before-publish=return(exit,save=1)", "after-save-published=return(exit)"] {
        let dir = folder(15, 100);
        let run = start(dir.path(), point);
        let (code, events, _) = run.finish(LIMIT).expect("its command line ends");
        assert_ne!(code, Some(0), "{point}");
        assert!(saved(&events).is_empty(), "{point}");
        let saved = finish(start(dir.path(), ""), dir.path());
        assert!(saved.contains(&SaveNo(1)), "{point}: {saved:?}");
        assert!(check_saves(dir.path()).contains_key(&1), "{point}");
    }
}
