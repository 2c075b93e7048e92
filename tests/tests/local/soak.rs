//! Jobs that are disturbed all the time: a trainer that joins, leaves, stops or dies each second, and pservers that die while
//! checkpoints are saved each second. No byte of the model changes, and each checkpoint is whole.
//!
//! CI runs seconds of each; `scripts/nightly.sh` runs minutes (`--ignored`).

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use heddle_protocol::ids::{Role, Slot};
use heddle_protocol::view::{JobState, JobView};
use heddle_tests::checkpointed_job::{checkpoints_in, copy_tree};
use heddle_tests::local::{Lot, Run, heddle, heddle_with, kill9, pid_of, write_libsvm};
use heddle_tests::logs::KILLS;
use nix::sys::signal::{Signal, kill};

const LIMIT: Duration = Duration::from_secs(240);

/// A job that takes its steps slowly while the file `slow` exists.
struct SoakJob {
    dir: tempfile::TempDir,
    passes: u64,
    lanes: u32,
    pservers: &'static str,
    trainers: u32,
}

impl SoakJob {
    /// Data and the job file `name`.
    fn write(&self, name: &str) -> String {
        let file = format!("{name}.toml");
        let (passes, lanes, pservers, trainers) =
            (self.passes, self.lanes, self.pservers, self.trainers);
        let text = format!(
            "name = \"soak\"\n[data]\ntrain = \"data/train-*.libsvm\"\npasses = {passes}\n\
             [model]\nalgorithm = \"logistic-regression\"\nfeatures = 300\nl2 = 1e-4\nstandardise = true\n\
             optimizer = {{ kind = \"ftrl\", alpha = 0.1 }}\n\
             [training]\nconsistency = \"bsp\"\nlanes = {lanes}\nbatch = 8\nseed = 7\n\
             [pservers]\n{pservers}\n[trainers]\nmin = 1\nmax = {trainers}\n\
             [checkpoint]\ndir = \"ckpt-{name}\"\nevery = \"1s\"\nkeep = 1000\n\
             [output]\nmodel = \"model-{name}\"\n"
        );
        std::fs::write(self.dir.path().join(&file), text).expect("a job file");
        file
    }

    fn data(&self) {
        write_libsvm(&self.dir.path().join("data"), "train", 4, 800, 300, 12, 11).expect("data");
    }

    /// The model of an undisturbed run.
    fn undisturbed(&self) -> Vec<u8> {
        let file = self.write("calm");
        let ended =
            heddle(self.dir.path(), &["run", &file, "--set", "checkpoint.every=\"1 pass\""]);
        let ended = ended.expect("heddle starts");
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        model(self.dir.path(), "calm")
    }

    fn switch(&self) -> PathBuf {
        self.dir.path().join("slow")
    }

    /// Starts the job with slow steps, and waits until it trains.
    fn start(&self, name: &str, step_ms: u32) -> Run {
        std::fs::write(self.switch(), "").expect("written");
        let file = self.write(name);
        let slow =
            format!("step-computed=return(sleep={step_ms},while={})", self.switch().display());
        let run = Run::start_with(self.dir.path(), &file, &[], &[("FAILPOINTS", &slow)]);
        let mut run = run.expect("it starts").expecting(KILLS);
        run.wait_for("training", LIMIT, trains).expect("it trains");
        run
    }

    /// The rest of the job goes on at full speed.
    fn finished(&self, run: Run) -> JobView {
        std::fs::remove_file(self.switch()).expect("removed");
        let (code, events, stderr) = run.finish(LIMIT).expect("the run ends");
        let view = heddle_tests::standstill::end_of(events).expect("an end");
        assert_eq!((code, view.state), (Some(0), JobState::Finished), "{stderr}");
        view
    }
}

fn trains(view: &JobView) -> bool {
    view.state == JobState::Running && view.phase_text.starts_with("pass")
}

fn model(dir: &Path, name: &str) -> Vec<u8> {
    std::fs::read(dir.join(format!("model-{name}/model.safetensors"))).expect("a model")
}

/// One trainer is stopped for a while, killed, asked for or sent away each second.
fn trainers_come_and_go(seconds: u64) {
    let job = SoakJob {
        dir: tempfile::tempdir().expect("a folder"),
        // A pass of 50 steps takes 2.5 s at least.
        passes: 3 + seconds / 2,
        lanes: 8,
        pservers: "count = 2\nvcores = 2\nshards = 8",
        trainers: 4,
    };
    job.data();
    let expected = job.undisturbed();
    let mut run = job.start("unrest", 25);
    let run_id = run.view().expect("a view").run.to_string();
    let (mut lot, begun, mut stopped) = (Lot(7), Instant::now(), Vec::new());
    let mut counts = [0_u32; 4];
    for second in 1..=seconds {
        for pid in std::mem::take(&mut stopped) {
            // It may have been given up meanwhile.
            let _woken = kill(pid, Signal::SIGCONT);
        }
        let view = run.wait_for("training", LIMIT, trains).expect("it trains");
        let running: Vec<Slot> = view
            .slots
            .iter()
            .filter(|it| it.slot.role == Role::Trainer && it.pid > 0)
            .map(|it| it.slot)
            .collect();
        let change = usize::try_from(lot.below(4)).expect("small");
        let any =
            running.get(usize::try_from(lot.below(running.len().max(1) as u64)).expect("small"));
        let pid = any.and_then(|slot| pid_of(&view, *slot).ok());
        match (change, pid) {
            (0, Some(pid)) => {
                stopped.extend(kill(pid, Signal::SIGSTOP).is_ok().then_some(pid));
            }
            (1, Some(pid)) => kill9(pid).expect("it was alive"),
            _ => {
                let wanted = (1 + lot.below(4)).to_string();
                let scaled = heddle(job.dir.path(), &["scale", &run_id, "trainers", &wanted]);
                let scaled = scaled.expect("heddle starts");
                assert_eq!(scaled.code, Some(0), "{scaled:?}");
            }
        }
        counts[change] += 1;
        let due = begun + Duration::from_secs(second);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    for pid in stopped {
        let _woken = kill(pid, Signal::SIGCONT);
    }
    let view = run.view().expect("a view");
    assert!(trains(&view), "it ended too early to be disturbed: {}", view.phase_text);
    println!("stopped, killed, scaled: {counts:?}; {}, step {}", view.phase_text, view.step.0);
    let view = job.finished(run);
    assert_eq!(view.epoch.count, 0, "the loss of a trainer is no rollback");
    assert!(model(job.dir.path(), "unrest") == expected, "other bytes");
}

#[test]
#[ignore = "nightly: half a minute of all cores"]
fn trainers_that_come_and_go_each_second_change_no_byte() {
    trainers_come_and_go(10);
}

#[test]
#[ignore = "nightly: two minutes"]
fn trainers_that_come_and_go_for_two_minutes_change_no_byte() {
    trainers_come_and_go(120);
}

/// Every five seconds the primary of some shards dies; a checkpoint is saved every second.
fn primaries_die_while_checkpoints_are_saved(kills: u32) {
    let job = SoakJob {
        dir: tempfile::tempdir().expect("a folder"),
        // A pass of 100 steps takes 2.5 s at least.
        passes: 3 + u64::from(kills) * 2,
        lanes: 4,
        pservers: "count = 3\nvcores = 2\nshards = 12\nreplicas = 1",
        trainers: 2,
    };
    job.data();
    let expected = job.undisturbed();
    let dir = job.dir.path();
    let mut run = job.start("killed", 25);
    for number in 0..kills {
        let killed = Instant::now();
        let view = run
            .wait_for("all copies", LIMIT, |view| {
                trains(view) && view.replication.as_ref().is_some_and(|it| it.under_replicated == 0)
            })
            .expect("copies come in the background");
        kill9(pid_of(&view, Slot::pserver(number % 3)).expect("it runs")).expect("it was alive");
        std::thread::sleep(
            (killed + Duration::from_secs(5)).saturating_duration_since(Instant::now()),
        );
    }
    let view = run.view().expect("a view");
    assert!(trains(&view), "it ended too early to be disturbed: {}", view.phase_text);
    let view = job.finished(run);
    assert_eq!(view.epoch.count, 0, "no rollback");
    assert!(
        view.replication.is_some_and(|it| it.promotions >= u64::from(kills)),
        "each kill is a failover"
    );
    assert!(model(dir, "killed") == expected, "other bytes");
    let verified = heddle(dir, &["checkpoint", "verify", "ckpt-killed"]).expect("heddle starts");
    assert_eq!(verified.code, Some(0), "{verified:?}");
    let saved = checkpoints_in(&dir.join("ckpt-killed"));
    println!("{} checkpoints, {kills} kills", saved.len());
    assert!(saved.len() as u32 > 2 * kills, "{} checkpoints beside {kills} kills", saved.len());
    // Some of them, the first and the last one included.
    for number in 0..3 {
        continues_from(&job, &saved, (saved.len() - 1) * number / 2, &expected);
    }
}

/// The job continued from a checkpoint, as if it were the newest one, ends with the same model.
fn continues_from(job: &SoakJob, saved: &[PathBuf], position: usize, expected: &[u8]) {
    let dir = job.dir.path();
    let name = format!("from-{position}");
    let file = job.write(&name);
    copy_tree(&dir.join("ckpt-killed"), &dir.join(format!("ckpt-{name}")));
    for later in &saved[position + 1..] {
        let folder = later.file_name().expect("a name");
        std::fs::remove_dir_all(dir.join(format!("ckpt-{name}")).join(folder)).expect("removed");
    }
    let ended = heddle_with(dir, &["run", &file, "--resume"], &[]).expect("heddle starts");
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let cut = saved[position].file_name().and_then(|name| name.to_str()).expect("a name");
    assert!(ended.stderr.contains(cut), "{cut}: {}", ended.stderr);
    assert!(model(dir, &name) == expected, "other bytes from {cut}");
}

#[test]
#[ignore = "nightly: half a minute of all cores"]
fn each_checkpoint_is_whole_while_primaries_die() {
    primaries_die_while_checkpoints_are_saved(2);
}

#[test]
#[ignore = "nightly: three minutes"]
fn checkpoints_are_whole_while_primaries_die_for_three_minutes() {
    primaries_die_while_checkpoints_are_saved(36);
}
