//! Peers that reach the ports of a job and do not know its secret neither end the job nor hold up its recovery.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use heddle_protocol::environment::AmAddress;
use heddle_protocol::ids::{Role, Slot};
use heddle_protocol::view::{JobEvent, JobState, JobView, SlotState};
use heddle_tests::local::{Run, kill9, pid_of, write_libsvm};
use heddle_tests::ports::listening;
use heddle_tests::strangers::{Kind, Strangers};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::Pid;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(240);

/// The tests with thousands of connections run one after the other: they share this process's limit of open files.
static CONNECTIONS: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    CONNECTIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A folder with a job that goes on until it is stopped.
fn folder() -> TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    write_libsvm(&dir.path().join("data"), "train", 4, 600, 300, 12, 11).expect("data");
    let text = "name = \"exposed\"\n\
         [data]\ntrain = \"data/*.libsvm\"\npasses = 1000000\n\
         [model]\nalgorithm = \"logistic-regression\"\nfeatures = 300\n\
         [training]\nlanes = 4\nbatch = 8\n\
         [pservers]\ncount = 2\nshards = 4\n\
         [trainers]\nmin = 1\nmax = 2\n\
         [checkpoint]\ndir = \"ckpt\"\nevery = \"500 steps\"\n\
         [output]\nmodel = \"model\"\n";
    std::fs::write(dir.path().join("job.toml"), text).expect("a job file");
    // Thousands of connections have an end in this process each.
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("limits");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("raised");
    assert!(hard >= 20_000, "a test holds 17,500 connections: ulimit -Hn is {hard}");
    dir
}

fn am(dir: &Path) -> AmAddress {
    let runs = dir.join("state/heddle/runs");
    std::fs::read_dir(runs)
        .expect("runs")
        .flatten()
        .find_map(|entry| {
            let text = std::fs::read(entry.path().join("am.json")).ok()?;
            serde_json::from_slice(&text).ok()
        })
        .expect("an address")
}

fn training(run: &mut Run) -> JobView {
    run.wait_for("it trains", LIMIT, |view| {
        view.state == JobState::Running
            && view.rows > 5_000
            && view.checkpoints_taken > 0
            // On a busy machine all may be suspected for a moment.
            && view.slots.iter().all(|place| place.state == SlotState::Running)
            && view.recoveries.iter().all(|recovery| recovery.done)
    })
    .expect("it trains")
}

/// A figure of `/proc/<pid>/status`, in MiB.
fn memory_mib(pid: u32, key: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix(key)).expect("a figure");
    let kib: u64 =
        line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().expect("a number");
    kib / 1024
}

/// Kills the process in a slot; how long its loss held the job up.
fn recovery(run: &mut Run, slot: Slot) -> Duration {
    let view = training(run);
    let known = view.recoveries.len();
    kill9(pid_of(&view, slot).expect("it runs")).expect("it was alive");
    let after = run
        .wait_for("it recovers", LIMIT, |view| {
            view.recoveries.len() > known && view.recoveries.iter().all(|recovery| recovery.done)
        })
        .expect("it recovers");
    let last = after.recoveries.last().expect("one more");
    assert_eq!(last.slot, Some(slot));
    let parts = [last.notice_ms, last.restart_ms, last.load_ms, last.resume_ms];
    Duration::from_millis(parts.into_iter().flatten().sum())
}

/// The median of three losses of each role, in turns.
fn recoveries(run: &mut Run) -> [Duration; 2] {
    let slots = [Slot::trainer(1), Slot::pserver(1)];
    let mut all = [Vec::new(), Vec::new()];
    for _ in 0..3 {
        for (n, slot) in slots.into_iter().enumerate() {
            all[n].push(recovery(run, slot));
        }
    }
    all.map(|mut times| {
        times.sort();
        times[1]
    })
}

#[test]
fn unproven_connections_delay_no_recovery() {
    let _turn = turn();
    let dir = folder();
    let mut run = Run::start(dir.path(), "job.toml", &[]).expect("it starts");
    training(&mut run);
    let am = am(dir.path());
    let quiet = recoveries(&mut run);
    let before = memory_mib(am.pid, "VmRSS");

    let ports = data_ports(&training(&mut run));
    let mut strangers = vec![
        Strangers::hold(am.address, 2000, Kind::HalfHead(60_000)).expect("connections"),
        Strangers::hold(am.address, 2000, Kind::Reader).expect("connections"),
    ];
    for port in ports {
        strangers.push(Strangers::hold(port, 1000, Kind::Silent).expect("connections"));
    }
    let disturbed = recoveries(&mut run);
    let after = memory_mib(am.pid, "VmHWM");
    let opened: Vec<u64> = strangers.iter().map(Strangers::opened).collect();
    eprintln!(
        "recovery of a trainer, a pserver: {quiet:?} quiet, {disturbed:?} with strangers ({opened:?} connections); \
         the ApplicationMaster: {before} MiB before, {after} MiB at most"
    );
    assert!(after < before + 64, "{before} MiB before, {after} MiB at most");
    for (quiet, disturbed) in quiet.into_iter().zip(disturbed) {
        // 1.5 times, and what a busy machine adds to three short processes' starts.
        let bound = quiet.mul_f64(1.5) + Duration::from_secs(2);
        assert!(disturbed < bound, "{disturbed:?} against {quiet:?}");
    }
    let view = training(&mut run);
    assert_eq!(view.history.ended_total, 12, "no other container was lost");
}

/// The listening ports of the parameter servers.
fn data_ports(view: &JobView) -> Vec<SocketAddr> {
    let mut found = Vec::new();
    for place in &view.slots {
        if place.slot.role == Role::Pserver {
            found.extend(listening(Pid::from_raw(place.pid.cast_signed())));
        }
    }
    assert_eq!(found.len(), 2, "one data thread each");
    found
}

/// The numbers of a scanner that has found the port: the ApplicationMaster keeps a fixed number of strangers, whatever they
/// send or do not read, and has room for a container and a checkpoint all the while.
#[test]
fn thousands_of_strangers_take_no_memory_and_no_place() {
    let _turn = turn();
    let dir = folder();
    let mut run = Run::start(dir.path(), "job.toml", &[]).expect("it starts");
    training(&mut run);
    let am = am(dir.path());
    let before = memory_mib(am.pid, "VmRSS");
    let strangers = [
        Strangers::hold(am.address, 5_000, Kind::HalfHead(8_000)).expect("connections"),
        Strangers::hold(am.address, 12_000, Kind::Reader).expect("connections"),
        Strangers::hold(am.address, 500, Kind::Deaf).expect("connections"),
    ];
    let stop = Arc::new(AtomicBool::new(false));
    let flood = {
        let (stop, address) = (Arc::clone(&stop), am.address);
        std::thread::spawn(move || {
            let mut asked = 0;
            while !stop.load(Ordering::Relaxed) {
                asked += usize::from(metrics(address).is_ok_and(|text| text.contains("heddle_")));
            }
            asked
        })
    };
    let taken = training(&mut run).checkpoints_taken;
    recovery(&mut run, Slot::trainer(0));
    run.wait_for("a checkpoint", LIMIT, |view| view.checkpoints_taken > taken).expect("one more");
    stop.store(true, Ordering::Relaxed);
    let asked = flood.join().expect("it ends");
    let after = memory_mib(am.pid, "VmHWM");
    let opened: Vec<u64> = strangers.iter().map(Strangers::opened).collect();
    eprintln!("{before} MiB before, {after} MiB at most; {opened:?} connections, {asked} answers");
    assert!(opened.iter().sum::<u64>() > 17_000, "{opened:?}");
    assert!(asked > 0, "no answer to an honest client");
    assert!(after <= before + 20, "{before} MiB before, {after} MiB at most");
}

/// One request for the metrics on a connection of its own.
fn metrics(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

#[test]
fn idle_connections_at_a_low_file_limit_do_not_end_a_job() {
    let _turn = turn();
    let dir = folder();
    let mut run = Run::start_limited(dir.path(), "job.toml", &[], 1024).expect("it starts");
    training(&mut run);
    let am = am(dir.path());
    let strangers = Strangers::hold(am.address, 1100, Kind::Silent).expect("connections");
    // Journal and checkpoints need descriptors: several are written meanwhile.
    let begun = Instant::now();
    let taken = training(&mut run).checkpoints_taken;
    run.wait_for("three more checkpoints", LIMIT, |view| {
        view.checkpoints_taken >= taken + 3 && begun.elapsed() > Duration::from_secs(3)
    })
    .expect("checkpoints are taken");
    recovery(&mut run, Slot::pserver(0));
    drop(strangers);
    let late = run
        .events()
        .into_iter()
        .filter(|event| matches!(event, JobEvent::CheckpointGivenUp { .. }))
        .count();
    assert!(late <= 1, "the checkpoint under way at a loss, not {late}");
}

#[test]
fn a_job_too_large_for_the_limit_of_files_is_refused() {
    let dir = folder();
    for (files, needed) in [(64, 94), (10, 94)] {
        let arguments = ["--set", "trainers.max=60"];
        let run = Run::start_limited(dir.path(), "job.toml", &arguments, files).expect("it starts");
        let (code, _, stderr) = run.finish(LIMIT).expect("it ends");
        assert_eq!(code, Some(7), "{stderr}");
        let needs = format!("needs {needed} open files, but the hard limit here is {files}");
        assert!(stderr.contains("raise nofile") && stderr.contains(&needs), "{stderr}");
    }
}
