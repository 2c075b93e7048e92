//! The runs of this machine: folders named by the run's uuid, and what state each is in.

use std::path::{Path, PathBuf};

use heddle_am::run_dir::{RunDir, RunFile};
use heddle_am_core::Outcome as JobOutcome;
use heddle_protocol::environment::AmAddress;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::view::{JobState, JobView};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::failure::Failure;

/// File of a run directory in which the command line remembers what it was asked for.
const REQUEST_FILE: &str = "request.json";

/// What a run was asked for: by this a later one finds the run that it continues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRequest {
    /// The job file, absolute.
    pub job_file: PathBuf,
    /// What default output folders carry.
    pub label: String,
    /// Whether `checkpoint.dir` was left to its default, which carries the label.
    pub default_checkpoint_dir: bool,
}

/// Where run directories are: `--work-dir`, else `run.work-dir` of the job, else the XDG state directory.
///
/// # Errors
/// There is no home directory either.
pub fn work_dir(given: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(given) = given {
        return std::path::absolute(given)
            .map_err(|error| Failure::caused(ExitCode::Input, "--work-dir is no path", &error));
    }
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    // The XDG base directory specification: a relative path in the variable is to be ignored.
    match (absolute("XDG_STATE_HOME"), absolute("HOME")) {
        (Some(state), _) => Ok(state.join("heddle")),
        (None, Some(home)) => Ok(home.join(".local/state/heddle")),
        (None, None) => Err(Failure::new(
            ExitCode::Input,
            "neither XDG_STATE_HOME nor HOME is set, so there is no place for run directories",
        )
        .next("give one with --work-dir")),
    }
}

/// The folder of a run.
#[must_use]
pub fn path_of(work_dir: &Path, run: Uuid) -> PathBuf {
    work_dir.join("runs").join(run.hyphenated().to_string())
}

/// A run that was found.
#[derive(Clone, Debug)]
pub struct LocalRun {
    /// Its folder.
    pub dir: RunDir,
    /// What the command line decided about it.
    pub file: RunFile,
}

/// How a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunState {
    /// Its ApplicationMaster lives.
    Running,
    /// The model is published.
    Finished,
    /// It ended with an error.
    Failed,
    /// It was ended by somebody; can be continued.
    Stopped,
    /// Its ApplicationMaster died without a word; can be continued.
    Died,
}

impl RunState {
    /// The word for people.
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
    /// How it stands.
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

    /// How it ended, if it did.
    #[must_use]
    pub fn outcome(&self) -> Option<JobOutcome> {
        self.dir.read("outcome.json").ok()
    }

    /// The job as it stood at its end.
    #[must_use]
    pub fn last_view(&self) -> Option<JobView> {
        self.dir.read("view.json").ok()
    }

    /// Where its ApplicationMaster listens or listened.
    #[must_use]
    pub fn am(&self) -> Option<AmAddress> {
        self.dir.read("am.json").ok()
    }

    /// Whether the process of its ApplicationMaster exists.
    fn lives(&self) -> bool {
        self.am().is_some_and(|am| {
            let command = std::fs::read(format!("/proc/{}/cmdline", am.pid)).unwrap_or_default();
            let run = self.file.run.to_string();
            // A number of an ended process may be another's by now; ours names the run directory.
            command
                .split(|&byte| byte == 0)
                .any(|argument| String::from_utf8_lossy(argument).contains(&run))
        })
    }

    /// What it was asked for.
    #[must_use]
    pub fn request(&self) -> Option<RunRequest> {
        self.dir.read(REQUEST_FILE).ok()
    }

    /// Remembers what it was asked for.
    ///
    /// # Errors
    /// The run directory cannot be written.
    pub fn remember(&self, request: &RunRequest) -> Result<(), Failure> {
        self.dir.write(REQUEST_FILE, request).map_err(|error| {
            Failure::caused(ExitCode::Denied, "the run directory cannot be written", &error)
        })
    }
}

/// All runs of a work directory, newest first. Folders that are no runs are left out.
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

/// The run with that uuid or with the only uuid that begins so.
///
/// # Errors
/// None or several do.
pub fn find(work_dir: &Path, id: &str) -> Result<LocalRun, Failure> {
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
        (None, _) => {
            Err(Failure::new(ExitCode::Input, format!("no run {id:?} in {}", work_dir.display()))
                .next("`heddle list` shows all runs"))
        }
        (Some(_), more) => {
            Err(Failure::new(ExitCode::Usage, format!("{} runs begin with {id:?}", more + 1))
                .next("give more digits; `heddle list` shows all runs"))
        }
    }
}
