//! The output of a local run: a reader that stops reading does not stop the job, and an end names its cause.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use heddle_protocol::view::{JobEvent, JobState};
use heddle_tests::hadoop::wait::wait_until;
use heddle_tests::local::{Run, am_pid, command, heddle, heddle_with, kill9, write_libsvm};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(240);
/// Each writes some 400 bytes; two pipes hold 128 KiB.
const PASSES: u32 = 700;

/// A folder with a job of many short passes.
fn folder(passes: u32, more: &str) -> TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    write_libsvm(&dir.path().join("data"), "train", 1, 8, 20, 3, 11).expect("data");
    let text = format!(
        "name = \"short\"\n\
         [data]\ntrain = \"data/*.libsvm\"\ntest = \"data/*.libsvm\"\npasses = {passes}\n\
         [model]\nalgorithm = \"logistic-regression\"\nfeatures = 20\nstandardise = false\n\
         [training]\nlanes = 1\nbatch = 8\n\
         [pservers]\ncount = 1\nshards = 1\n\
         [trainers]\nmin = 1\nmax = 1\n{more}\
         [checkpoint]\ndir = \"ckpt\"\nevery = \"10min\"\n\
         [output]\nmodel = \"model\"\n"
    );
    std::fs::write(dir.path().join("job.toml"), text).expect("a job file");
    dir
}

fn outcome(dir: &Path) -> anyhow::Result<PathBuf> {
    for entry in std::fs::read_dir(dir.join("state/heddle/runs"))? {
        let path = entry?.path().join("outcome.json");
        if path.exists() {
            return Ok(path);
        }
    }
    anyhow::bail!("no outcome yet")
}

/// `heddle run --json` whose output is a pipe that the test may leave unread.
fn unread(dir: &Path) -> Child {
    command(dir)
        .expect("built")
        .args(["run", "job.toml", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts")
}

/// Reads what is left, and how it ended.
fn rest(mut child: Child) -> (Vec<JobEvent>, Option<i32>) {
    let stdout = child.stdout.take().expect("piped");
    let events = BufReader::new(stdout)
        .lines()
        .map_while(Result::ok)
        .filter_map(|line| serde_json::from_str(&line).ok())
        .collect();
    (events, child.wait().expect("it ends").code())
}

fn assert_finished(events: &[JobEvent]) {
    assert!(matches!(events.first(), Some(JobEvent::Started { .. })), "{:?}", events.first());
    assert!(
        matches!(events.last(), Some(JobEvent::Ended { state: JobState::Finished, .. })),
        "{:?}",
        events.last()
    );
}

#[test]
fn unread_output_does_not_stop_a_job() {
    let dir = folder(PASSES, "");
    let child = unread(dir.path());
    wait_until("the job ends unread", LIMIT, || outcome(dir.path())).expect("it ends");
    let (events, code) = rest(child);
    assert_finished(&events);
    assert_eq!(code, Some(0));
}

#[test]
fn a_stopped_command_line_stops_no_job() {
    let dir = folder(PASSES, "");
    let child = unread(dir.path());
    let pid = Pid::from_raw(child.id().cast_signed());
    wait_until("it has begun", LIMIT, || am_pid(dir.path())).expect("it begins");
    kill(pid, Signal::SIGSTOP).expect("it lives");
    let ended = wait_until("the job ends unread", LIMIT, || outcome(dir.path()));
    kill(pid, Signal::SIGCONT).expect("it lives");
    ended.expect("it ends");
    let (events, code) = rest(child);
    assert_finished(&events);
    assert_eq!(code, Some(0));
}

#[test]
fn a_failed_run_ends_with_the_last_output_of_its_process() {
    let command =
        "command = [\"/bin/sh\", \"-c\", \"echo 'boom: cannot open /data/x' >&2; exit 3\"]\n";
    let dir = folder(2, command);
    let run = Run::start(dir.path(), "job.toml", &[]).expect("it starts");
    let (code, events, stderr) = run.finish(LIMIT).expect("it ends");
    assert_eq!(code, Some(1), "{stderr}");
    let Some(JobEvent::Ended { message, .. }) = events.last() else {
        panic!("{events:?}");
    };
    assert!(
        message.contains("exited with code 3; its final output:\nboom: cannot open /data/x"),
        "{message}"
    );
}

#[test]
fn a_killed_master_is_reported_as_killed() {
    let dir = folder(1_000_000, "");
    let run = Run::start(dir.path(), "job.toml", &[]).expect("it starts");
    run.wait_event("a pass", LIMIT, |event| matches!(event, JobEvent::Evaluated(_)).then_some(()))
        .expect("it trains");
    kill9(am_pid(dir.path()).expect("it runs")).expect("it was alive");
    let (code, _, stderr) = run.finish(LIMIT).expect("it ends");
    assert_eq!(code, Some(3), "{stderr}");
    assert!(
        stderr.contains("was killed by signal 9") && !stderr.contains("ExitStatus"),
        "{stderr}"
    );
    // The same command at once: the one before is just going.
    let again = Run::start(dir.path(), "job.toml", &[]).expect("it starts");
    again
        .wait_event("it goes on", LIMIT, |event| {
            matches!(event, JobEvent::Evaluated(_)).then_some(())
        })
        .expect("it trains again");
}

#[test]
fn manifests_and_status_have_the_figures_of_tables() {
    let dir = folder(2, "");
    let every_pass = ["run", "job.toml", "--set", "checkpoint.every=1 passes"];
    // Each pass takes longer than the save of a checkpoint: the next one would replace it.
    let slow = [("FAILPOINTS", "step-computed=sleep(400)")];
    let ended = heddle_with(dir.path(), &every_pass, &slow).expect("heddle starts");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let mut tables = Vec::new();
    for cut in 1..=3 {
        let path = dir.path().join(format!("ckpt/g1-c{cut}/MANIFEST.json"));
        let manifest = std::fs::read(path).expect("before the first step and after each pass");
        let manifest: serde_json::Value = serde_json::from_slice(&manifest).expect("JSON");
        tables.push(manifest["tables"].clone());
    }
    let of = |cut: usize, table: usize, field: &str| tables[cut][table][field].clone();
    assert!(tables[0].is_null(), "of initial values nothing is counted: {tables:?}");
    for (table, name, rows) in [(0, "weights", 20), (1, "bias", 1)] {
        assert_eq!((of(1, table, "name"), of(1, table, "rows")), (name.into(), rows.into()));
        assert_ne!(of(1, table, "norm"), of(2, table, "norm"), "{name} changed in pass 2");
    }
    let file = std::fs::read(dir.path().join("model/model.safetensors")).expect("a model");
    let header = 8 + u64::from_le_bytes(*file.first_chunk().expect("a length")) as usize;
    // The bias follows the weights.
    let weights: Vec<f64> = file[header..header + 80]
        .chunks_exact(4)
        .map(|bytes| f32::from_le_bytes(*bytes.first_chunk().expect("four")).into())
        .collect();
    let nonzero = weights.iter().filter(|weight| **weight != 0.0).count();
    assert_eq!(of(2, 0, "nonzero"), nonzero);
    let norm = weights.iter().map(|weight| weight * weight).sum::<f64>().sqrt();
    assert!((of(2, 0, "norm").as_f64().expect("finite") - norm).abs() < 1e-9, "{tables:?}");
    let status = heddle(dir.path(), &["status"]).expect("heddle starts");
    let line = format!("table weights  20 rows  {nonzero} non-zero  norm {norm:.4}");
    assert!(status.stdout.contains(&line), "{line} in {}", status.stdout);
}

/// The ApplicationMaster dies between the publication and its record, with folders of the user's and with default ones.
#[test]
fn model_in_place_is_finished_by_the_same_command() {
    for is_default in [false, true] {
        let dir = folder(2, "");
        let job = dir.path().join("job.toml");
        if is_default {
            let text = std::fs::read_to_string(&job).expect("written above");
            let text = text.replace("dir = \"ckpt\"\n", "").replace("model = \"model\"\n", "");
            std::fs::write(&job, text).expect("a job file");
        }
        let exits = [("FAILPOINTS", "after-published=return(exit)")];
        let killed = heddle_with(dir.path(), &["run", "job.toml"], &exits).expect("it starts");
        assert_ne!(killed.code, Some(0), "{}", killed.stderr);
        let models = || {
            let out = dir.path().join(if is_default { "out" } else { "." });
            let entries = std::fs::read_dir(out).expect("a folder").map(|entry| entry.expect("it"));
            let files = entries.flat_map(|entry| {
                ["MODEL.json", "model/MODEL.json"].map(|name| entry.path().join(name))
            });
            files.filter_map(|file| Some((std::fs::read(&file).ok()?, file))).collect::<Vec<_>>()
        };
        let published = models();
        assert_eq!(published.len(), 1, "{published:?}");
        for _ in 0..if is_default { 1 } else { 2 } {
            let again = heddle(dir.path(), &["run", "job.toml"]).expect("it starts");
            assert_eq!(again.code, Some(0), "{is_default}: {}", again.stderr);
            assert_eq!(models(), published);
        }
    }
}
