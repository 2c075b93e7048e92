//! Containers as child processes of this machine, for `heddle run`.
//!
//! All children are started by one thread that lives as long as the ApplicationMaster, because the
//! kernel's parent-death signal follows the thread that forked: the kernel kills the children when the
//! ApplicationMaster ends for any reason. Each child runs in a work directory of its own, in a process group
//! of its own: the terminal's Ctrl-C goes to the command line, which sends the ApplicationMaster a stop request.
//! One small thread per child waits for its end.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use heddle_am_core::{ContainerName, ContainerOrder, Event, Exit};
use heddle_fail_points::fail_value;
use heddle_protocol::environment;
use heddle_protocol::ids::{Member, Role};
use heddle_telemetry::descriptors::Limit;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use super::{ContainerSource, Events};

/// How local containers are started.
#[derive(Clone, Debug)]
pub struct LocalLaunch {
    /// This program.
    pub program: PathBuf,
    /// `trainers.command`: a program that replaces the built-in trainer; empty for none.
    pub trainer_command: Vec<String>,
    /// Directory of the job file: where a relative `trainers.command` is found.
    pub job_dir: PathBuf,
    /// Below it each container gets `containers/<slot>-<incarnation>` to work in and `logs/<slot>-<incarnation>`.
    pub run_dir: PathBuf,
    /// Variables that every container gets, besides slot, incarnation and log directory.
    pub variables: Vec<(String, String)>,
}

/// Bytes of a process's standard error that are kept, as `yarn.nodemanager.container.stderr.tail.bytes` of a NodeManager.
const FINAL_OUTPUT_BYTES: u64 = 4096;

/// The process of a container while it can be signalled.
type Alive = Arc<Mutex<ProcessState>>;

#[derive(Default)]
struct ProcessState {
    pid: Option<Pid>,
    /// A signal from before the process was started; it is sent right after.
    early: Option<Signal>,
}

/// Child processes as a cluster.
pub struct LocalCluster {
    launch: LocalLaunch,
    events: Events,
    launcher: mpsc::Sender<LaunchOrder>,
    alive: BTreeMap<ContainerName, Alive>,
    node: String,
}

struct LaunchOrder {
    container: ContainerName,
    command: Command,
    /// The file with its standard error.
    stderr: PathBuf,
    alive: Alive,
}

impl LocalCluster {
    /// Starts the launching thread.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(launch: LocalLaunch, events: Events) -> std::io::Result<Self> {
        let (launcher, orders) = mpsc::channel::<LaunchOrder>();
        let reports = events.clone();
        std::thread::Builder::new().name("launcher".into()).spawn(move || {
            for order in orders {
                launch_one(order, &reports);
            }
            // The children's parent-death signal fires if this thread ends before the process.
            loop {
                std::thread::park();
            }
        })?;
        Ok(Self { launch, events, launcher, alive: BTreeMap::new(), node: "localhost".into() })
    }

    fn send(&self, event: Event) {
        // The driver outlives the cluster's events except while the process ends.
        let _ending = self.events.send(event);
    }

    /// The directory of a member's logs.
    fn logs(&self, member: Member) -> PathBuf {
        let name = format!("{}-{}", member.slot, member.incarnation);
        self.launch.run_dir.join("logs").join(name)
    }

    fn command(&self, member: Member) -> std::io::Result<Command> {
        let name = format!("{}-{}", member.slot, member.incarnation);
        let work = self.launch.run_dir.join("containers").join(&name);
        let logs = self.logs(member);
        std::fs::create_dir_all(&work)?;
        std::fs::create_dir_all(&logs)?;
        let mut command = match (member.slot.role, self.launch.trainer_command.split_first()) {
            (Role::Trainer, Some((program, arguments))) => {
                let program = PathBuf::from(program);
                let program = if program.components().count() > 1 {
                    self.launch.job_dir.join(program)
                } else {
                    program
                };
                let mut command = Command::new(program);
                command.args(arguments);
                command
            }
            (role, _) => {
                let mut command = Command::new(&self.launch.program);
                command.arg(role.to_string());
                command
            }
        };
        let output = |name: &str| {
            std::fs::OpenOptions::new().create(true).append(true).open(logs.join(name))
        };
        command
            .current_dir(&work)
            .stdin(Stdio::null())
            .stdout(output("stdout")?)
            .stderr(output("stderr")?)
            .env(environment::SLOT, member.slot.to_string())
            .env(environment::INCARNATION, member.incarnation.to_string())
            .env(environment::LOG_DIR, &logs)
            .envs(self.launch.variables.iter().map(|(name, value)| (name, value)));
        Ok(command)
    }

    /// Starts the member's process in the container.
    fn start_member(&mut self, container: ContainerName, member: Member) {
        let not_started = |error: String| Event::Exited {
            container: container.clone(),
            exit: Exit::NotStarted { error },
            text: String::new(),
        };
        let command = match self.command(member) {
            Ok(command) => command,
            Err(error) => {
                self.send(not_started(format!("cannot make the directories of {member}: {error}")));
                return;
            }
        };
        let alive = Alive::default();
        self.alive.insert(container.clone(), Arc::clone(&alive));
        let order = LaunchOrder {
            container: container.clone(),
            command,
            stderr: self.logs(member).join("stderr"),
            alive,
        };
        if self.launcher.send(order).is_err() {
            self.send(not_started("cannot start a process: the launching thread has ended".into()));
        }
    }

    /// Ends the container's process.
    fn stop(&self, container: &ContainerName, grace_ms: u64) {
        let Some(alive) = self.alive.get(container).cloned() else {
            return;
        };
        // As a NodeManager that is lost: the process lives on.
        if fail_value!("container-stop", container = container.0).is_some() {
            return;
        }
        signal(&alive, if grace_ms == 0 { Signal::SIGKILL } else { Signal::SIGTERM });
        if grace_ms > 0 {
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(grace_ms)).await;
                signal(&alive, Signal::SIGKILL);
            });
        }
    }
}

impl ContainerSource for LocalCluster {
    fn order(&mut self, order: ContainerOrder) {
        match order {
            ContainerOrder::Ask(request) => {
                let Member { slot, incarnation } = request.member;
                let container = ContainerName(format!("{slot}-{incarnation}"));
                let node = self.node.clone();
                self.send(Event::Allocated { container, slot, incarnation, node });
            }
            ContainerOrder::Launch { container, member } => self.start_member(container, member),
            ContainerOrder::Stop { container, grace_ms, .. } => self.stop(&container, grace_ms),
            // A request is answered at once, and an unused container is only a name.
            ContainerOrder::CancelAsk(_) | ContainerOrder::Release(_) => {}
        }
    }
}

/// Signals a process. The id is never reused by another one: the waiting thread clears it before it reaps.
fn signal(alive: &Alive, signal: Signal) {
    let mut place = alive.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(pid) = place.pid else {
        place.early = Some(signal);
        return;
    };
    if let Err(error) = kill(pid, signal) {
        tracing::debug!(%pid, %signal, %error, "signal_not_delivered");
    }
}

fn launch_one(order: LaunchOrder, events: &Events) {
    let LaunchOrder { container, mut command, stderr, alive } = order;
    let parent = nix::unistd::getpid();
    command.process_group(0);
    let prepare = move || {
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
        // The parent may have ended between the fork and the line above.
        if nix::unistd::getppid() != parent {
            return Err(std::io::Error::other("the ApplicationMaster has ended"));
        }
        Limit::restore_in_child()
    };
    // SAFETY: between fork and exec the closure calls prctl, getppid and setrlimit only, which are
    // async-signal-safe, and allocates nothing on the way that succeeds.
    #[expect(unsafe_code, reason = "the parent-death signal can be set in the child alone")]
    unsafe {
        command.pre_exec(prepare);
    }
    let not_started = |error: String| {
        let exit = Exit::NotStarted { error };
        let _ending =
            events.send(Event::Exited { container: container.clone(), exit, text: String::new() });
    };
    let child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            let program = command.get_program().to_string_lossy().into_owned();
            return not_started(format!("cannot start {program}: {error}"));
        }
    };
    let pid = Pid::from_raw(child.id().cast_signed());
    let early = {
        let mut place = alive.lock().unwrap_or_else(PoisonError::into_inner);
        place.pid = Some(pid);
        place.early.take()
    };
    if let Some(early) = early {
        signal(&alive, early);
    }
    let reports = events.clone();
    let waiting = {
        let container = container.clone();
        let alive = Arc::clone(&alive);
        std::thread::Builder::new().name(format!("wait-{pid}")).stack_size(64 * 1024).spawn(
            move || {
                let exit = wait(child, pid, &alive);
                let text = final_output(&stderr);
                let _ending = reports.send(Event::Exited { container, exit, text });
            },
        )
    };
    if let Err(error) = waiting {
        signal(&alive, Signal::SIGKILL);
        not_started(format!("cannot watch the process: {error}"));
    }
}

fn wait(mut child: Child, pid: Pid, alive: &Alive) -> Exit {
    // WNOWAIT leaves the process unreaped, so its number cannot be given to another while it may still be signalled.
    while let Err(nix::errno::Errno::EINTR) =
        waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT)
    {}
    alive.lock().unwrap_or_else(PoisonError::into_inner).pid = None;
    match child.wait() {
        Ok(status) => exit_of(status),
        Err(error) => Exit::ByCluster { error: error.to_string() },
    }
}

/// The last bytes of a process's standard error, as a NodeManager adds them to a container's diagnostics.
/// Empty if the file cannot be read: the exit is reported in any case.
fn final_output(stderr: &Path) -> String {
    let read = || {
        let mut file = File::open(stderr)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(FINAL_OUTPUT_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(FINAL_OUTPUT_BYTES).read_to_end(&mut bytes)?;
        Ok::<_, std::io::Error>(bytes)
    };
    match read() {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => {
            tracing::debug!(path = %stderr.display(), %error, "final_output_not_read");
            String::new()
        }
    }
}

fn exit_of(status: ExitStatus) -> Exit {
    match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, Some(signal)) => Exit::Signal(signal),
        (None, None) => Exit::ByCluster { error: status.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn final_output_is_the_end_of_standard_error() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("stderr");
        assert_eq!(final_output(&file), "");
        let text = format!("{}boom: cannot open /data/x\n", "\u{e4}".repeat(9000));
        std::fs::write(&file, text).expect("written");
        let words = final_output(&file);
        assert!(words.ends_with("\u{e4}boom: cannot open /data/x\n"));
        assert!(words.len() < 5000, "{}", words.len());
    }
}
