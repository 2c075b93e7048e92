//! `heddle run` and the commands on its runs, with real ApplicationMasters and parameter servers.
//!
//! The trainers are a program that does nothing, so a run makes no progress until it is stopped: the tests cover the life
//! of a run, not training.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

const IDLE: &str = "name = \"idle\"\n[data]\ntrain = \"d.libsvm\"\n[model]\n\
    algorithm = \"custom\"\n\
    [[model.table]]\nname = \"t\"\nrows = 10\n[trainers]\ncommand = [\"sleep\", \"600\"]\n";

/// A job that trains until it is stopped.
const TRAINING: &str = "name = \"long\"\n[data]\ntrain = \"d.libsvm\"\npasses = 1000000\n[model]\n\
    algorithm = \"logistic-regression\"\nfeatures = 10\n";

/// Longest wait for a condition; far above what an idle machine needs.
const LIMIT: Duration = Duration::from_secs(60);

struct Bench(TempDir);

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("job.toml"), IDLE).unwrap();
        std::fs::write(dir.path().join("d.libsvm"), "1 1:1\n").unwrap();
        Self(dir)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_heddle"));
        command
            .args(arguments)
            .current_dir(self.0.path())
            .env_remove("RUST_LOG")
            .env("XDG_STATE_HOME", self.0.path().join("state"));
        command
    }

    fn heddle(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Starts a run in the background and waits until its first checkpoint exists.
    fn start(&self, arguments: &[&str]) -> Running<'_> {
        let mut all = vec!["run", "job.toml", "--json"];
        all.extend(arguments);
        let stdout = self.0.path().join("stdout");
        let child = self
            .command(&all)
            .stdin(Stdio::null())
            .stdout(std::fs::File::create(&stdout).unwrap())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut running = Running { bench: self, child };
        let wanted = |event: &Value| {
            event["event"] == "checkpoint-committed" || !event["resumed_from"].is_null()
        };
        running.wait_for(|events| events.iter().any(wanted));
        running
    }

    fn events(&self) -> Vec<Value> {
        events(&self.0.path().join("stdout"))
    }

    fn list(&self) -> Vec<Value> {
        let output = self.heddle(&["list", "--json"]);
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn events(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

struct Running<'b> {
    bench: &'b Bench,
    child: Child,
}

impl Running<'_> {
    fn wait_for(&mut self, condition: impl Fn(&[Value]) -> bool) {
        let begun = Instant::now();
        while !condition(&self.bench.events()) {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "ended {ended:?}: {:?}", self.bench.events());
            assert!(begun.elapsed() < LIMIT, "waited in vain: {:?}", self.bench.events());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    /// The exit code, once it has ended by itself.
    fn end(mut self) -> Option<i32> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(begun.elapsed() < LIMIT, "does not end: {:?}", self.bench.events());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Running<'_> {
    /// A failed test leaves no run: the ApplicationMaster reads the end of the pipe.
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

#[test]
fn ctrl_c_ends_a_run_in_order_and_the_next_one_continues_it() {
    let bench = Bench::new();
    let running = bench.start(&[]);
    running.signal(Signal::SIGINT);
    assert_eq!(running.end(), Some(130));
    assert_eq!(bench.list()[0]["state"], "stopped");

    let running = bench.start(&[]);
    assert_eq!(bench.events()[0]["resumed_from"]["generation"], 1, "{:?}", bench.events()[0]);
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(143));
    assert_eq!(bench.list().len(), 2);
    let outs = std::fs::read_dir(bench.0.path().join("out")).unwrap().count();
    assert_eq!(outs, 1, "a continued run writes where the first one did");
}

#[test]
fn lost_checkpoint_directory_of_an_unfinished_run_is_a_warning() {
    for (sets, lost) in
        [(&["--set", "checkpoint.dir=ck"][..], "ck"), (&["--set", "trainers.max=2"][..], "out")]
    {
        let bench = Bench::new();
        let warnings = || -> Vec<String> {
            let events = bench.events().into_iter();
            let texts = events.filter(|event| event["event"] == "warning");
            let texts = texts.map(|event| event["text"].as_str().unwrap().to_owned());
            texts.filter(|text| text.contains("is gone")).collect()
        };
        let running = bench.start(sets);
        assert_eq!(warnings(), [""; 0]);
        running.signal(Signal::SIGINT);
        running.end();
        std::fs::remove_dir_all(bench.0.path().join(lost)).unwrap();

        let dry = bench.heddle(&[&["run", "job.toml", "--dry-run"], sets].concat());
        let dry = String::from_utf8(dry.stdout).unwrap();
        assert!(dry.contains("warning: training starts from the beginning: "), "{dry}");
        let running = bench.start(sets);
        let [warning] = &*warnings() else { panic!("{:?}", bench.events()) };
        let run = bench.list()[1]["run"].as_str().unwrap()[..8].to_owned();
        for part in [lost, &run, "which stopped unfinished, is gone"] {
            assert!(warning.contains(part), "{part} in {warning}");
        }
        running.signal(Signal::SIGINT);
        running.end();
        // The newer run has a directory, and is continued.
        let running = bench.start(sets);
        assert_eq!(warnings(), [""; 0]);
        running.signal(Signal::SIGINT);
        running.end();
    }
}

#[test]
fn another_job_in_the_same_file_is_refused_with_the_keys() {
    let bench = Bench::new();
    // A run that trained no step would give way; this one is in its second pass.
    std::fs::write(bench.0.path().join("job.toml"), TRAINING).unwrap();
    std::fs::write(bench.0.path().join("d.libsvm"), "1 1:1\n0 2:1\n".repeat(32)).unwrap();
    let mut running = bench.start(&[]);
    running.wait_for(|events| {
        let second = |event: &Value| event["event"] == "phase-begun" && event["phase"] == 1;
        events.iter().any(second)
    });
    running.signal(Signal::SIGINT);
    running.end();

    let refused = |arguments: &[&str]| {
        let output = bench.heddle(arguments);
        assert_eq!(output.status.code(), Some(7));
        String::from_utf8(output.stderr).unwrap()
    };
    let stderr = refused(&["run", "job.toml", "--set", "training.seed=1", "--resume"]);
    assert!(stderr.contains("training.seed: 42 before, 1 now\n"), "{stderr}");
    assert!(stderr.contains("--fresh to start over"), "{stderr}");
    let stderr = refused(&["run", "job.toml", "--set", "trainers.max=3"]);
    assert!(stderr.contains("trainers.max: 2 before, 3 now (--resume allows it)"), "{stderr}");

    let running = bench.start(&["--set", "trainers.max=3", "--resume"]);
    running.signal(Signal::SIGINT);
    running.end();
    let running = bench.start(&["--set", "training.seed=1", "--fresh"]);
    assert!(bench.events()[0]["resumed_from"].is_null());
    running.signal(Signal::SIGINT);
    running.end();
}

#[test]
fn status_logs_and_kill_take_the_first_digits_of_the_run() {
    let bench = Bench::new();
    let running = bench.start(&[]);
    let run = bench.list()[0]["run"].as_str().unwrap().to_owned();
    let short = &run[..6];

    let output = bench.heddle(&["status", short, "--json"]);
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(status["state"], "running", "{status}");
    assert_eq!(status["view"]["run"], run.as_str());

    let output = bench.heddle(&["logs", short, "--slot", "am"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("==> am/am.log <=="));

    let output = bench.heddle(&["checkpoint", "ls", short, "--json"]);
    let checkpoint: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(checkpoint["good"], true, "{checkpoint}");
    let removal = bench.heddle(&["checkpoint", "rm", short, "g1-c1"]);
    assert_eq!(removal.status.code(), Some(9), "a living run owns its checkpoints");

    assert_eq!(bench.heddle(&["kill", short]).status.code(), Some(0));
    assert_eq!(running.end(), Some(3));
    assert_eq!(bench.list()[0]["state"], "stopped");
}

#[test]
fn only_holders_of_the_secret_control_a_run() {
    let bench = Bench::new();
    let running = bench.start(&[]);
    let listed = bench.list();
    let run = listed[0]["run"].as_str().unwrap();
    let secret = Path::new(listed[0]["dir"].as_str().unwrap()).join("secret");
    let right = std::fs::read(&secret).unwrap();
    std::fs::write(&secret, "0".repeat(64)).unwrap();
    let output = bench.heddle(&["kill", run]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(5), "{stderr}");
    assert!(stderr.contains("secret"), "{stderr}");
    assert_eq!(bench.list()[0]["state"], "running");
    std::fs::write(&secret, right).unwrap();
    assert_eq!(bench.heddle(&["kill", run]).status.code(), Some(0));
    assert_eq!(running.end(), Some(3));
}

#[test]
fn followed_logs_end_with_the_run() {
    let bench = Bench::new();
    let running = bench.start(&[]);
    let run = bench.list()[0]["run"].as_str().unwrap().to_owned();
    let follow = bench
        .command(&["logs", "--follow", "--slot", "am", &run])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    assert_eq!(bench.heddle(&["kill", &run]).status.code(), Some(0));
    running.end();
    let output = follow.wait_with_output().unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("am.log"));
}

#[test]
fn next_run_continues_after_a_killed_applicationmaster() {
    let bench = Bench::new();
    let running = bench.start(&[]);
    let listed = bench.list();
    let dir = Path::new(listed[0]["dir"].as_str().unwrap());
    let am: Value = serde_json::from_slice(&std::fs::read(dir.join("am.json")).unwrap()).unwrap();
    let pservers = pserver_pids(&bench);

    kill(pid_of(am["pid"].as_i64().unwrap()), Signal::SIGKILL).unwrap();
    assert_eq!(running.end(), Some(3));
    assert_eq!(bench.list()[0]["state"], "died");
    let begun = Instant::now();
    while pservers.iter().any(|&pid| alive(pid)) {
        assert!(begun.elapsed() < LIMIT, "parameter servers outlive their ApplicationMaster");
        std::thread::sleep(Duration::from_millis(20));
    }

    let running = bench.start(&[]);
    assert!(!bench.events()[0]["resumed_from"].is_null());
    running.signal(Signal::SIGINT);
    assert_eq!(running.end(), Some(130));
}

/// Processes of both parameter servers, as soon as the view shows them: it is renewed now and then.
fn pserver_pids(bench: &Bench) -> Vec<i64> {
    let begun = Instant::now();
    loop {
        let output = bench.heddle(&["status", "--json"]);
        let status: Value = serde_json::from_slice(&output.stdout).unwrap();
        let slots = status["view"]["slots"].as_array().cloned().unwrap_or_default();
        let pids: Vec<i64> = slots
            .iter()
            .filter(|slot| slot["slot"].as_str().unwrap().starts_with("pserver"))
            .filter_map(|slot| slot["pid"].as_i64().filter(|&pid| pid > 0))
            .collect();
        if pids.len() == 2 {
            return pids;
        }
        assert!(begun.elapsed() < LIMIT, "no parameter servers in {status}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn pid_of(number: i64) -> Pid {
    Pid::from_raw(i32::try_from(number).unwrap())
}

/// Whether the process runs; one that waits to be reaped does not.
fn alive(number: i64) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{number}/status")).unwrap_or_default();
    status.contains("Name:\theddle") && !status.contains("State:\tZ")
}

#[test]
fn the_processes_of_a_run_end_with_its_command_line() {
    let bench = Bench::new();
    let mut running = bench.start(&[]);
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    let begun = Instant::now();
    while bench.list()[0]["state"] == "running" {
        assert!(begun.elapsed() < LIMIT, "the ApplicationMaster runs on alone");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn checkpoint_folder_with_foreign_files_is_refused() {
    let bench = Bench::new();
    let dir = bench.0.path().join("precious");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("thesis.txt"), "x").unwrap();
    let output = bench.heddle(&["run", "job.toml", "--set", "checkpoint.dir=precious"]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(7), "{stderr}");
    assert!(stderr.contains("thesis.txt"), "{stderr}");
    assert!(dir.join("thesis.txt").exists());
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
}

#[test]
fn a_port_in_use_is_exit_7() {
    let bench = Bench::new();
    // Three ports that follow each other, all of them taken.
    let listeners: Vec<_> = (20_000u16..60_000)
        .step_by(3)
        .find_map(|first| {
            let bind = |port| std::net::TcpListener::bind(("127.0.0.1", port)).ok();
            (first..first + 3).map(bind).collect::<Option<Vec<_>>>()
        })
        .unwrap();
    let first = listeners[0].local_addr().unwrap().port();
    let ports = format!("network.ports={first}-{}", first + 2);
    let output = bench.heddle(&["run", "job.toml", "--set", &ports]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(7), "{stderr}");
    assert!(stderr.contains("network.ports"), "{stderr}");
}

#[test]
fn files_beyond_the_size_limit_are_an_error_with_a_code() {
    let bench = Bench::new();
    std::fs::write(bench.0.path().join("job.toml"), TRAINING).unwrap();
    // Blocks of 512 bytes: the files of the run directory, then those of a checkpoint of a million features.
    for (blocks, more) in [("1", &[][..]), ("200", &["--set", "model.features=1000000"])] {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", "ulimit -f $0 && exec \"$@\"", blocks])
            .arg(env!("CARGO_BIN_EXE_heddle"))
            .args(["run", "job.toml", "--set", "data.passes=1"])
            .args(more)
            .current_dir(bench.0.path())
            .env("XDG_STATE_HOME", bench.0.path().join("state"));
        let output = shell.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(5), "{blocks}: {output:?}");
        assert!(stderr.contains("File too large"), "{blocks}: {stderr}");
    }
}

#[test]
fn operations_that_a_job_refuses_are_not_its_failure() {
    let bench = Bench::new();
    let running = bench.start(&[]);
    let run = bench.list()[0]["run"].as_str().unwrap().to_owned();
    for number in ["0", "99"] {
        let output = bench.heddle(&["scale", &run[..6], "trainers", number]);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(7), "{stderr}");
        assert!(stderr.contains("takes 1 to 2 trainers"), "{stderr}");
        assert!(stderr.contains("the bounds are trainers.min and trainers.max"), "{stderr}");
    }
    running.signal(Signal::SIGINT);
    running.end();
}

#[test]
fn home_that_does_not_exist_is_not_made() {
    let bench = Bench::new();
    let home = bench.0.path().join("nowhere/home");
    let run = |set: &dyn Fn(&mut Command)| {
        let mut command = bench.command(&["run", "job.toml"]);
        set(command.env_remove("XDG_STATE_HOME").env("HOME", &home));
        let output = command.output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(7), "{stderr}");
        stderr
    };
    let stderr = run(&|_| {});
    assert!(stderr.contains("nowhere/home: it is not a folder"), "{stderr}");
    assert!(stderr.contains("pass --work-dir"), "{stderr}");
    for unset in ["", "home"] {
        let stderr = run(&|command| {
            command.env("HOME", unset);
        });
        assert!(stderr.contains("neither XDG_STATE_HOME nor HOME"), "{stderr}");
    }
    assert!(!bench.0.path().join("nowhere").exists() && !bench.0.path().join("home").exists());
    let mut list = bench.command(&["list"]);
    let listed = list.env_remove("XDG_STATE_HOME").env("HOME", &home).output().unwrap();
    assert_eq!(listed.status.code(), Some(0), "{listed:?}");
}
