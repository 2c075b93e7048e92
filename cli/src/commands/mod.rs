//! One file per sub-command.

pub mod attach;
pub mod bench;
pub mod chaos;
pub mod checkpoint;
pub mod checkpoint_source;
pub mod clean;
pub mod completions;
pub mod config;
pub mod containers;
mod decisions;
pub mod export;
pub mod install;
pub mod kill;
pub mod list;
pub mod logs;
pub mod move_queue;
pub mod predict;
pub mod report;
pub mod run;
pub mod scale;
pub mod status;
pub mod submit;
mod warm_start;

use std::path::PathBuf;

use heddle_protocol::exit_code::ExitCode;
use heddle_yarn::ApplicationId;

use crate::failure::{CommandFailure, OrFail};
use crate::runs::{self, LocalRun};

/// A job that was started before, on this machine or on a cluster.
#[derive(Clone, Debug)]
pub enum JobRef {
    /// A run of this machine.
    Run(Box<LocalRun>),
    /// An application of the cluster that `HADOOP_CONF_DIR` names.
    Application(ApplicationId),
}

/// Parses an application's id; `None` if the text is the id of a run.
///
/// # Errors
/// Exit code 2 if it starts like an application's id and is malformed.
pub fn application(text: &str) -> Result<Option<ApplicationId>, CommandFailure> {
    if !text.starts_with("application_") {
        return Ok(None);
    }
    text.parse()
        .map(Some)
        .or_fail(ExitCode::Usage, format_args!("{text:?} is not an application's id"))
        .map_err(|failure| failure.next("`heddle list --yarn` shows all applications"))
}

/// A run of this machine, named by its uuid, or an application, named by its id.
#[derive(Clone, Debug, clap::Args)]
pub struct RunArgs {
    /// The run's id or its first digits, or an application's id
    #[arg(value_name = "RUN|APPLICATION")]
    pub run: String,
    #[command(flatten)]
    pub place: WorkDirArgs,
}

/// The folder of run directories.
#[derive(Clone, Debug, clap::Args)]
pub struct WorkDirArgs {
    /// Folder of run directories [default: heddle in the XDG state directory]
    #[arg(long, value_name = "DIR")]
    pub work_dir: Option<PathBuf>,
}

impl RunArgs {
    /// Finds the run.
    ///
    /// # Errors
    /// No run or several runs match.
    pub fn find(&self) -> Result<LocalRun, CommandFailure> {
        runs::find(&runs::work_dir(self.place.work_dir.as_deref())?, &self.run)
    }

    /// The run or application; the cluster checks later whether the application exists.
    ///
    /// # Errors
    /// No run or several runs match.
    pub fn named(&self) -> Result<JobRef, CommandFailure> {
        match application(&self.run)? {
            Some(id) => Ok(JobRef::Application(id)),
            None => Ok(JobRef::Run(Box::new(self.find()?))),
        }
    }
}
