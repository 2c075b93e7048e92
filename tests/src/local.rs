//! Local runs under test: `heddle run` as a real process, watched through its own events and pages.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use heddle_protocol::ids::Slot;
use heddle_protocol::view::{JobEvent, JobView, SlotState};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::hadoop::http::request_ok;
use crate::hadoop::wait::wait_until;
use crate::logs;

/// How often a job is asked for its state: each answer costs milliseconds of the processors in a debug build.
pub const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long the output of a process that has ended may take to be read, on a busy machine.
const READ_LIMIT: Duration = Duration::from_secs(5);

/// A program of this workspace, built before the tests run (`cargo build --workspace --bins`). `heddle` is the file of the
/// variable `HEDDLE_PROGRAM` where that is set: figures of docs/performance.md that need no fail points are those of the
/// program that clusters get.
///
/// # Errors
/// When it is not there.
pub fn program(name: &str) -> Result<PathBuf> {
    if name == "heddle"
        && let Some(file) = std::env::var_os("HEDDLE_PROGRAM")
    {
        return Path::new(&file).canonicalize().with_context(|| format!("{}", file.display()));
    }
    let here = std::env::current_exe()?;
    // <target>/<profile>/deps/<test> → <target>/<profile>/<name>
    let path = here
        .parent()
        .and_then(Path::parent)
        .context("a test binary lies two folders deep")?
        .join(name);
    ensure!(
        path.exists(),
        "{} is not there: run `cargo build --workspace --bins` first",
        path.display()
    );
    Ok(path)
}

/// What a program printed and how it ended.
#[derive(Debug)]
pub struct Ended {
    /// Exit code; none when a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// Runs `heddle` with these arguments to its end.
///
/// # Errors
/// When it cannot be started.
pub fn heddle(dir: &Path, arguments: &[&str]) -> Result<Ended> {
    heddle_with(dir, arguments, &[])
}

/// As [`heddle`], with variables.
///
/// # Errors
/// When it cannot be started.
pub fn heddle_with(dir: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Result<Ended> {
    let output = command(dir)?.args(arguments).envs(variables.iter().copied()).output()?;
    Ok(Ended {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// `heddle` with its state below `dir`.
///
/// # Errors
/// When it is not built.
pub fn command(dir: &Path) -> Result<Command> {
    Ok(in_state_of(Command::new(program("heddle")?), dir, None))
}

/// A command in `dir` with Heddle's state below it, and with this program as its next argument.
fn in_state_of(mut command: Command, dir: &Path, argument: Option<PathBuf>) -> Command {
    command
        .args(argument)
        .current_dir(dir)
        .env("XDG_STATE_HOME", dir.join("state"))
        .env_remove("HADOOP_CONF_DIR")
        .stdin(Stdio::null());
    command
}

/// The values of the model in `dir/model`: its safetensors file without the header, which names the data's format. Panics when it
/// is not there.
#[must_use]
pub fn model_values(dir: &Path) -> Vec<u8> {
    let file = std::fs::read(dir.join("model/model.safetensors")).expect("a model");
    let (length, rest) = file.split_first_chunk::<8>().expect("a length");
    rest[u64::from_le_bytes(*length) as usize..].to_vec()
}

/// A running `heddle run --json`.
#[derive(Debug)]
pub struct Run {
    child: Child,
    /// Folder of the run directories.
    runs: PathBuf,
    /// Texts of WARN and ERROR lines that the logs may have.
    expected: Vec<String>,
    events: Arc<Mutex<Vec<JobEvent>>>,
    stderr: Arc<Mutex<String>>,
    /// The threads that read its output.
    readers: [JoinHandle<()>; 2],
}

impl Run {
    /// Starts `heddle run <job> --json <arguments>` in `dir`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(dir: &Path, job: &str, arguments: &[&str]) -> Result<Self> {
        Self::start_with(dir, job, arguments, &[])
    }

    /// As [`Run::start`], with variables that the containers inherit.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_with(
        dir: &Path,
        job: &str,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<Self> {
        Self::watch(dir, command(dir)?, job, arguments, variables)
    }

    /// As [`Run::start`], with a hard limit of open files for the command line and all that it starts.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_limited(dir: &Path, job: &str, arguments: &[&str], files: u32) -> Result<Self> {
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -n \"$0\" && exec \"$@\""]).arg(files.to_string());
        Self::watch(dir, in_state_of(shell, dir, Some(program("heddle")?)), job, arguments, &[])
    }

    /// As [`Run::start_with`], in a network namespace of its own, which has loopback alone. [`Run::view`] does not reach it;
    /// [`Run::in_namespace`] does. Needs root.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_in_namespace(
        dir: &Path,
        job: &str,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<Self> {
        let mut shell = Command::new("unshare");
        shell.args(["--net", "sh", "-c", "ip link set lo up && exec \"$0\" \"$@\""]);
        let command = in_state_of(shell, dir, Some(program("heddle")?));
        Self::watch(dir, command, job, arguments, variables)
    }

    /// Runs a command in the network namespace of the run to its end. Returns what it printed.
    ///
    /// # Errors
    /// When it cannot be started or fails.
    pub fn in_namespace(&self, command: &[&str]) -> Result<String> {
        let namespace = format!("--net=/proc/{}/ns/net", self.child.id());
        let output = Command::new("nsenter").arg(namespace).args(command).output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{command:?}: {errors}");
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn watch(
        dir: &Path,
        mut command: Command,
        job: &str,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<Self> {
        let mut child = command
            .args(["run", job, "--json"])
            .args(arguments)
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let events = Arc::new(Mutex::new(Vec::new()));
        let stderr = Arc::new(Mutex::new(String::new()));
        let stdout = child.stdout.take().context("stdout is piped")?;
        let into = Arc::clone(&events);
        let event_reader = std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Ok(event) = serde_json::from_str::<JobEvent>(&line) {
                    into.lock().unwrap_or_else(PoisonError::into_inner).push(event);
                }
            }
        });
        let mut errors = child.stderr.take().context("stderr is piped")?;
        let into = Arc::clone(&stderr);
        let error_reader = std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(read) = errors.read(&mut chunk) {
                if read == 0 {
                    break;
                }
                into.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push_str(&String::from_utf8_lossy(&chunk[..read]));
            }
        });
        let runs = dir.join("state/heddle/runs");
        let readers = [event_reader, error_reader];
        Ok(Self { child, runs, expected: Vec::new(), events, stderr, readers })
    }

    /// Accepts WARN and ERROR lines that contain one of these texts; see [`logs`].
    #[must_use]
    pub fn expecting(mut self, texts: &[&str]) -> Self {
        self.expected.extend(texts.iter().map(|&text| text.to_owned()));
        self
    }

    /// What has happened so far.
    #[must_use]
    pub fn events(&self) -> Vec<JobEvent> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Its standard error so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        self.stderr.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Process id of the command line.
    #[must_use]
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// The job as it stands, from the ApplicationMaster's own interface.
    ///
    /// # Errors
    /// When it has not started or does not answer.
    pub fn view(&self) -> Result<JobView> {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let started = events.iter().find_map(|event| match event {
            JobEvent::Started { address, .. } => Some(address.clone()),
            _ => None,
        });
        drop(events);
        let address: SocketAddr = started
            .with_context(|| format!("the job has not started: {}", self.stderr()))?
            .trim_start_matches("http://")
            .trim_end_matches('/')
            .parse()?;
        Ok(serde_json::from_str(&request_ok(address, "GET", "/api/v1/status")?)?)
    }

    /// Waits until the job is in a state.
    ///
    /// # Errors
    /// When it is not within `limit`, with the last state seen; when the command line ends before.
    pub fn wait_for(
        &mut self,
        what: &str,
        limit: Duration,
        mut wanted: impl FnMut(&JobView) -> bool,
    ) -> Result<JobView> {
        let end = Instant::now() + limit;
        let mut last = None;
        loop {
            if let Ok(view) = self.view() {
                if wanted(&view) {
                    return Ok(view);
                }
                last = Some(view);
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("{what}: the run ended ({status}) before; {}", self.stderr());
            }
            if Instant::now() >= end {
                bail!("{what}: not within {limit:?}; last seen {last:#?}; {}", self.stderr());
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Waits for an event.
    ///
    /// # Errors
    /// When it does not come within `limit`.
    pub fn wait_event<T>(
        &self,
        what: &str,
        limit: Duration,
        mut wanted: impl FnMut(&JobEvent) -> Option<T>,
    ) -> Result<T> {
        wait_until(what, limit, || self.events().iter().find_map(&mut wanted).context("none"))
            .with_context(|| format!("events so far: {:?}; {}", self.events(), self.stderr()))
    }

    /// Kills the command line, and waits until the ApplicationMaster of the newest run in `dir` has ended: the next run may
    /// have the same directories.
    ///
    /// # Errors
    /// It has not started, or does not end within `limit`.
    pub fn end(self, dir: &Path, limit: Duration) -> Result<()> {
        let am = am_pid(dir)?;
        drop(self);
        wait_until("the ApplicationMaster has ended", limit, || {
            ensure!(!is_alive(am), "it runs");
            Ok(())
        })
    }

    /// Waits for the end and returns the exit code and the last event.
    ///
    /// # Errors
    /// When it does not end within `limit`, or ends with code 0 and a WARN or ERROR line that is not
    /// [expected](Self::expecting).
    pub fn finish(mut self, limit: Duration) -> Result<(Option<i32>, Vec<JobEvent>, String)> {
        let end = Instant::now() + limit;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if Instant::now() >= end {
                let view = self.view();
                bail!("the run did not end within {limit:?}: {view:#?}; {}", self.stderr());
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        // The readers end with the pipes, unless a process that is left holds these.
        let read = || {
            let all = self.readers.iter().all(JoinHandle::is_finished);
            all.then_some(()).context("a pipe is open")
        };
        let _held = wait_until("all output is read", READ_LIMIT, read);
        if status.success() {
            self.check_logs()?;
        }
        Ok((status.code(), self.events(), self.stderr()))
    }

    fn check_logs(&self) -> Result<()> {
        let events = self.events();
        for event in &events {
            if let JobEvent::Started { run, .. } = event {
                let logs = logs::logs_below(&self.runs.join(run.to_string()).join("logs"));
                ensure!(!logs.is_empty(), "run {run} has no logs below {}", self.runs.display());
                logs::check(logs, &self.expected)?;
            }
        }
        Ok(())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // The ApplicationMaster ends when its command line is gone, and its children with it.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// The process in a slot.
///
/// # Errors
/// When none runs there.
pub fn pid_of(view: &JobView, slot: Slot) -> Result<Pid> {
    let place = view
        .slots
        .iter()
        .find(|place| place.slot == slot && place.state == SlotState::Running && place.pid > 0)
        .with_context(|| format!("no process runs in {slot}: {:?}", view.slots))?;
    Ok(Pid::from_raw(place.pid.cast_signed()))
}

/// Kills a process of a run with SIGKILL.
///
/// # Errors
/// When it is gone already.
pub fn kill9(pid: Pid) -> Result<()> {
    kill(pid, Signal::SIGKILL).with_context(|| format!("kill -9 {pid}"))
}

/// Whether a process runs (a zombie does not).
#[must_use]
pub fn is_alive(pid: Pid) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
    })
}

/// Numbers that look drawn by lot and are the same for the same seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct Lot(pub u64);

impl Lot {
    /// The next number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound.max(1)
    }
}

/// Writes libsvm records of 40 features each, all distinct and anywhere in the 64 bits.
///
/// # Errors
/// The file cannot be written.
pub fn write_distinct_keys(path: &Path, keys: u64) -> Result<()> {
    use std::io::Write as _;
    let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
    for (record, first) in (0..keys).step_by(40).enumerate() {
        // An odd factor: no two products are equal.
        let features =
            (first..keys.min(first + 40)).map(|n| (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut features: Vec<u64> = features.collect();
        features.sort_unstable();
        write!(file, "{}", u8::from(record % 3 == 0))?;
        for feature in features {
            write!(file, " {feature}:0.5")?;
        }
        writeln!(file)?;
    }
    Ok(file.flush()?)
}

/// Writes `files` libsvm files of `rows` rows each over `features` features, `nonzero` of them set in a row,
/// whose labels follow a hidden weight vector.
///
/// # Errors
/// When they cannot be written.
pub fn write_libsvm(
    dir: &Path,
    name: &str,
    files: u32,
    rows: u32,
    features: u32,
    nonzero: u32,
    seed: u64,
) -> Result<()> {
    use std::fmt::Write as _;
    std::fs::create_dir_all(dir)?;
    for file in 0..files {
        let mut lot = Lot(seed.wrapping_mul(1_000_003).wrapping_add(u64::from(file)));
        let mut text = String::new();
        for _ in 0..rows {
            let mut indices: Vec<u64> =
                (0..nonzero).map(|_| lot.below(u64::from(features)) + 1).collect();
            indices.sort_unstable();
            indices.dedup();
            let score: i64 =
                indices.iter().map(|index| if Lot(*index).below(2) == 0 { 1 } else { -1 }).sum();
            let noise = lot.below(100) < 10;
            let label = u8::from((score > 0) != noise);
            write!(text, "{label}")?;
            for index in indices {
                write!(text, " {index}:{}", 0.25 * (1 + lot.below(4)) as f64)?;
            }
            text.push('\n');
        }
        std::fs::write(dir.join(format!("{name}-{file:03}.libsvm")), text)?;
    }
    Ok(())
}

/// Process id of the newest ApplicationMaster of the runs below `dir` (see [`heddle`]).
///
/// # Errors
/// When there is none.
pub fn am_pid(dir: &Path) -> Result<Pid> {
    let mut newest = None;
    for entry in std::fs::read_dir(dir.join("state/heddle/runs"))? {
        let path = entry?.path().join("am.json");
        let Ok(modified) = std::fs::metadata(&path).and_then(|data| data.modified()) else {
            continue;
        };
        if newest.as_ref().is_none_or(|(time, _)| modified > *time) {
            newest = Some((modified, path));
        }
    }
    let (_, path) = newest.context("no run directory has an am.json")?;
    let address: heddle_protocol::environment::AmAddress =
        serde_json::from_slice(&std::fs::read(path)?)?;
    Ok(Pid::from_raw(address.pid.cast_signed()))
}
