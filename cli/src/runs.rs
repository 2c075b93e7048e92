//! The runs of this machine: folders named by the run's UUID, and the state of each.

mod job;
mod logs;

use std::path::{Path, PathBuf};

use heddle_am::run_dir::{RunDir, RunFile};
use heddle_am_core::Outcome as JobOutcome;
use heddle_protocol::control::Operation;
use heddle_protocol::environment::AmAddress;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::DurationMs;
use heddle_protocol::view::{JobState, JobView};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::am_client::Am;
use crate::failure::{CommandFailure, OrFail};
use crate::site_defaults;

/// The folder of run directories below the home directory, by the XDG base directory specification.
const STATE_OF_HOME: &str = ".local/state/heddle";
/// File of a run directory with the request that started the run.
const REQUEST_FILE: &str = "request.json";

/// The request that started a run. A later run finds by it the run that it continues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRequest {
    /// The job file, absolute.
    pub job_file: PathBuf,
    /// Label in the names of default output folders.
    pub label: String,
    /// Whether `checkpoint.dir` has its default value, which contains the label.
    pub default_checkpoint_dir: bool,
}

/// The folder of run directories: `--work-dir`, else `run.work-dir` of the job or the site, else the XDG state directory.
///
/// # Errors
/// The home directory is unknown too, or the site's defaults cannot be read.
pub fn work_dir(given: Option<&Path>) -> Result<PathBuf, CommandFailure> {
    if let Some(given) = given {
        return std::path::absolute(given)
            .or_fail(ExitCode::Input, "--work-dir is not a valid path");
    }
    if let Some(of_site) = site_defaults::work_dir()? {
        return Ok(of_site);
    }
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    // The XDG base directory specification: a relative path in the variable is to be ignored.
    match (absolute("XDG_STATE_HOME"), absolute("HOME")) {
        (Some(state), _) => Ok(state.join("heddle")),
        (None, Some(home)) => Ok(home.join(STATE_OF_HOME)),
        (None, None) => Err(CommandFailure::new(
            ExitCode::Input,
            "cannot determine the folder of run directories: neither XDG_STATE_HOME nor HOME is set",
        )
        .next("pass --work-dir")),
    }
}

/// As [`work_dir`], for a run that is created there. A home that does not exist is not made: system accounts have none, and
/// nothing finds files in its place again.
///
/// # Errors
/// As [`work_dir`]; the home does not exist.
pub fn work_dir_to_write(given: Option<&Path>) -> Result<PathBuf, CommandFailure> {
    let dir = work_dir(given)?;
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    if dir != home.join(STATE_OF_HOME) || home.is_dir() {
        return Ok(dir);
    }
    let fact =
        format!("cannot create run directories in HOME = {}: it is not a folder", home.display());
    Err(CommandFailure::new(ExitCode::Input, fact)
        .next("pass --work-dir, or set XDG_STATE_HOME or another HOME"))
}

/// The folder of a run.
#[must_use]
pub fn path_of(work_dir: &Path, run: Uuid) -> PathBuf {
    work_dir.join("runs").join(run.hyphenated().to_string())
}

/// A run of this machine.
#[derive(Clone, Debug)]
pub struct LocalRun {
    /// Its folder.
    pub dir: RunDir,
    /// Its options.
    pub file: RunFile,
}

/// The state of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunState {
    /// Its ApplicationMaster runs.
    Running,
    /// The model is published.
    Finished,
    /// It ended with an error.
    Failed,
    /// A user or a signal ended it; it can be continued.
    Stopped,
    /// Its ApplicationMaster died without an outcome; it can be continued.
    Died,
}

impl RunState {
    /// The state as text.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
            Self::Died => "died",
        }
    }
}

impl LocalRun {
    /// Its state.
    #[must_use]
    pub fn state(&self) -> RunState {
        match self.outcome() {
            Some(outcome) => match outcome.state {
                JobState::Finished => RunState::Finished,
                JobState::Stopped => RunState::Stopped,
                _ => RunState::Failed,
            },
            None if self.lives() => RunState::Running,
            None => RunState::Died,
        }
    }

    /// Whether the run has ended without a model, so that a later run may continue it.
    #[must_use]
    pub fn is_unfinished(&self) -> bool {
        match self.state() {
            RunState::Failed | RunState::Stopped | RunState::Died => true,
            RunState::Running | RunState::Finished => false,
        }
    }

    /// Its outcome, if it has ended.
    #[must_use]
    pub fn outcome(&self) -> Option<JobOutcome> {
        self.dir.read("outcome.json").ok()
    }

    /// When its outcome was written, milliseconds since 1970.
    fn ended_ms(&self) -> Option<u64> {
        let written =
            std::fs::metadata(self.dir.path().join("outcome.json")).ok()?.modified().ok()?;
        let since = written.duration_since(std::time::UNIX_EPOCH).ok()?;
        u64::try_from(since.as_millis()).ok()
    }

    /// The last view of the job.
    #[must_use]
    pub fn last_view(&self) -> Option<JobView> {
        self.dir.read("view.json").ok()
    }

    /// A client of its ApplicationMaster.
    fn client(&self) -> Am {
        let short = self.file.run.short();
        let timeout = self.dir.spec().map(|spec| spec.checkpoint.timeout);
        Am {
            addresses: self.am().map(|am| am.address).into_iter().collect(),
            peer: format!("the ApplicationMaster of run {short}"),
            next: format!("`heddle status {short}` shows its state"),
            checkpoint_timeout: timeout.unwrap_or(DurationMs::secs(300)).as_duration(),
        }
    }

    /// Reads the view of the job from its ApplicationMaster.
    ///
    /// # Errors
    /// Exit code 6 if it does not respond.
    pub async fn view(&self) -> Result<JobView, CommandFailure> {
        self.client().view().await
    }

    /// Sends an operation to its ApplicationMaster; returns when it is done.
    ///
    /// # Errors
    /// See [`Am::operate`]; exit code 5 if the secret cannot be read.
    pub async fn operate(&self, operation: &Operation) -> Result<(), CommandFailure> {
        let secret = self.dir.secret().or_fail(ExitCode::Denied, "cannot read the run's secret")?;
        self.client().operate(self.file.run, &secret, operation).await
    }

    /// The address of its ApplicationMaster, running or not.
    #[must_use]
    pub fn am(&self) -> Option<AmAddress> {
        self.dir.read("am.json").ok()
    }

    /// Whether the process of its ApplicationMaster exists.
    fn lives(&self) -> bool {
        self.am().is_some_and(|am| {
            let command = std::fs::read(format!("/proc/{}/cmdline", am.pid)).unwrap_or_default();
            let run = self.file.run.to_string();
            // The pid of an ended process may have been reused; the arguments of our process name the run directory.
            command
                .split(|&byte| byte == 0)
                .any(|argument| String::from_utf8_lossy(argument).contains(&run))
        })
    }

    /// The request that started it.
    #[must_use]
    pub fn request(&self) -> Option<RunRequest> {
        self.dir.read(REQUEST_FILE).ok()
    }

    /// Writes the request that started it.
    ///
    /// # Errors
    /// The run directory cannot be written.
    pub fn remember(&self, request: &RunRequest) -> Result<(), CommandFailure> {
        self.dir.write(REQUEST_FILE, request).or_fail_with(
            |fact, error| CommandFailure::caused(error.exit_code(), fact, error),
            "cannot write the run directory",
        )
    }
}

/// All runs of a work directory, newest first. Other folders are left out.
#[must_use]
pub fn all(work_dir: &Path) -> Vec<LocalRun> {
    let Ok(entries) = std::fs::read_dir(work_dir.join("runs")) else {
        return Vec::new();
    };
    let mut runs: Vec<LocalRun> = entries
        .filter_map(|entry| {
            let dir = RunDir::open(entry.ok()?.path());
            let file = dir.run_file().ok()?;
            Some(LocalRun { dir, file })
        })
        .collect();
    runs.sort_by_key(|run| std::cmp::Reverse((run.file.started_ms, run.file.run)));
    runs
}

/// The run whose UUID starts with `id`, if it is the only one.
///
/// # Errors
/// No run or several runs match.
pub fn find(work_dir: &Path, id: &str) -> Result<LocalRun, CommandFailure> {
    let wanted = id.to_ascii_lowercase();
    let plain = |run: &LocalRun| run.file.run.0.simple().to_string();
    let mut found: Vec<LocalRun> = all(work_dir)
        .into_iter()
        .filter(|run| {
            !wanted.is_empty()
                && (run.file.run.to_string().starts_with(&wanted)
                    || plain(run).starts_with(&wanted))
        })
        .collect();
    match (found.pop(), found.len()) {
        (Some(run), 0) => Ok(run),
        (None, _) => Err(CommandFailure::new(
            ExitCode::Input,
            format!("no run {id:?} in {}", work_dir.display()),
        )
        .next("`heddle list` shows all runs")),
        (Some(_), more) => Err(CommandFailure::new(
            ExitCode::Usage,
            format!("{} runs start with {id:?}", more + 1),
        )
        .next("give more digits; `heddle list` shows all runs")),
    }
}
