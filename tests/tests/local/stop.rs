//! Ctrl-C, SIGTERM and `heddle kill --checkpoint` end a run with a last checkpoint, at whatever moment they come and
//! however busy the machine is, and the next run goes on from it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use heddle_protocol::ids::CutId;
use heddle_protocol::view::{JobEvent, JobState};
use heddle_tests::local::{Lot, Run, am_pid, heddle, is_alive, write_libsvm};
use nix::sys::signal::{Signal, kill};

const LIMIT: Duration = Duration::from_secs(120);

/// Steps of well under a millisecond: a step that is named ahead is passed soon.
fn job(dir: &Path) {
    write_libsvm(&dir.join("data"), "train", 4, 3_000, 100, 5, 3).expect("data");
    let text = "name = \"stop\"\n\
         [data]\ntrain = \"data/train-*.libsvm\"\npasses = 1000000\n\
         [model]\nalgorithm = \"logistic-regression\"\nfeatures = 100\n\
         [training]\nconsistency = \"bsp\"\nlanes = 2\nbatch = 8\n\
         [pservers]\ncount = 2\nshards = 4\n\
         [trainers]\nmin = 2\nmax = 2\n\
         [checkpoint]\nevery = \"10min\"\n";
    std::fs::write(dir.join("job.toml"), text).expect("a job file");
}

/// Threads that keep every core busy until this is dropped.
struct Load(Arc<AtomicBool>);

impl Load {
    fn new(threads: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        for seed in 0..threads {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                let mut lot = Lot(seed as u64);
                while !stop.load(Ordering::Relaxed) {
                    std::hint::black_box(lot.below(1_000));
                }
            });
        }
        Self(stop)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn committed(events: &[JobEvent]) -> Vec<CutId> {
    let cut = |event: &JobEvent| match event {
        JobEvent::CheckpointCommitted(view) => Some(view.cut),
        _ => None,
    };
    events.iter().filter_map(cut).collect()
}

/// Stops a run that trains, by `how` after `wait`. Returns what it started from and its last checkpoint.
fn stop(dir: &Path, wait: Duration, how: &dyn Fn(&Run)) -> (Option<CutId>, CutId) {
    let mut run = Run::start(dir, "job.toml", &[]).expect("it starts");
    run.wait_for("training", LIMIT, |view| view.state == JobState::Running && view.step.0 > 0)
        .expect("it trains");
    // A moment by lot: the stop must work at all of them.
    std::thread::sleep(wait);
    let am = am_pid(dir).expect("it has an ApplicationMaster");
    let before = committed(&run.events()).len();
    how(&run);
    let (_, events, stderr) = run.finish(LIMIT).expect("it stops");
    let ended = events.iter().find_map(|event| match event {
        JobEvent::Ended { state, message, .. } => Some((*state, message.clone())),
        _ => None,
    });
    let (state, message) = ended.unwrap_or_else(|| panic!("no end was reported: {stderr}"));
    assert_eq!(state, JobState::Stopped, "{message}; {stderr}");
    assert!(committed(&events).len() > before, "no last checkpoint: {message}; {stderr}");
    assert!(!stderr.contains("without a new checkpoint"), "{stderr}");
    assert!(!is_alive(am), "its ApplicationMaster is gone");
    let from = events.iter().find_map(|event| match event {
        JobEvent::Started { resumed_from, .. } => Some(*resumed_from),
        _ => None,
    });
    let last = committed(&events).pop().expect("there is one");
    (from.expect("it started"), last)
}

#[test]
fn every_stop_under_load_leaves_a_checkpoint_to_resume() {
    stops(6);
}

#[test]
#[ignore = "nightly: a minute of all cores"]
fn twenty_stops_under_load_leave_checkpoints_to_resume() {
    stops(20);
}

/// Stops a job this many times while all cores are busy.
fn stops(count: u64) {
    let dir = tempfile::tempdir().expect("a folder");
    job(dir.path());
    let _load = Load::new(4);
    let mut lot = Lot(20);
    let mut last = None;
    for n in 0..count {
        let wait = Duration::from_millis(lot.below(1_500));
        let signal = match n % 2 {
            0 => Signal::SIGINT,
            _ => Signal::SIGTERM,
        };
        let (from, saved) = stop(dir.path(), wait, &|run| {
            kill(run.pid(), signal).expect("it runs");
        });
        assert_eq!(from, last, "stop {n}: it continues the run before");
        assert!(Some(saved) > last, "stop {n}");
        last = Some(saved);
    }
}

#[test]
fn a_kill_with_a_checkpoint_ends_with_it() {
    let dir = tempfile::tempdir().expect("a folder");
    job(dir.path());
    let _load = Load::new(4);
    let mut last = None;
    for n in 0..4 {
        let (from, saved) = stop(dir.path(), Duration::from_millis(300 * n), &|run| {
            let events = run.events();
            let id = events.iter().find_map(|event| match event {
                JobEvent::Started { run, .. } => Some(run.to_string()),
                _ => None,
            });
            let id = id.expect("it started");
            let killed = heddle(dir.path(), &["kill", &id, "--checkpoint"]).expect("it ends");
            assert_eq!(killed.code, Some(0), "{}", killed.stderr);
        });
        assert_eq!(from, last);
        last = Some(saved);
    }
}

#[test]
fn clean_spares_a_live_run_and_one_that_can_be_continued() {
    let dir = tempfile::tempdir().expect("a folder");
    job(dir.path());
    let all = ["clean", "--local", "--older-than", "0s"];
    let clean = |more: &[&str]| {
        let ended = heddle(dir.path(), &[&all, more].concat()).expect("it ends");
        assert_eq!(ended.code, Some(0), "{ended:?}");
        (ended.stdout.lines().count(), ended.stderr)
    };
    let mut run = Run::start(dir.path(), "job.toml", &[]).expect("it starts");
    run.wait_for("training", LIMIT, |view| view.state == JobState::Running && view.step.0 > 0)
        .expect("it trains");
    // A directory of a run that is being created, and one whose creation was interrupted long ago.
    let runs = dir.path().join("state/heddle/runs");
    let (new, old) = (runs.join(uuid(1)), runs.join(uuid(2)));
    std::fs::create_dir(&new).expect("made");
    std::fs::create_dir(&old).expect("made");
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(3600);
    let folder = std::fs::File::open(&old).expect("opened");
    folder.set_modified(long_ago).expect("its time is set");

    let (removed, kept) = clean(&["--unfinished"]);
    assert_eq!(removed, 1, "{kept}");
    assert!(!old.exists() && new.exists());
    assert!(
        kept.contains("1 kept: in use") && kept.contains("1 kept: of jobs that may be"),
        "{kept}"
    );
    run.wait_for("training on", LIMIT, |view| view.state == JobState::Running).expect("it lives");
    kill(run.pid(), Signal::SIGTERM).expect("it runs");
    let (_, events, _) = run.finish(LIMIT).expect("it stops");
    let last = committed(&events).pop().expect("a checkpoint").to_string();

    let (removed, kept) = clean(&[]);
    assert!(removed == 0 && kept.contains("can be continued"), "{kept}");
    assert_eq!(clean(&["--unfinished", "--dry-run"]).0, 1);
    assert_eq!(clean(&["--unfinished"]).0, 1);
    let checkpoints = std::fs::read_dir(dir.path().join("out")).expect("outputs").flatten();
    let stay =
        checkpoints.filter(|out| out.path().join("checkpoints").join(&last).is_dir()).count();
    assert_eq!(stay, 1, "checkpoints are never removed");
}

fn uuid(n: u32) -> String {
    format!("00000000-0000-4000-8000-{n:012}")
}
