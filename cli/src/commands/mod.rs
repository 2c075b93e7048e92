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
pub mod controller;
pub mod data;
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
pub mod shards;
pub mod status;
pub mod submit;
mod warm_start;

use std::path::PathBuf;

use heddle_protocol::exit_code::ExitCode;
use heddle_yarn::ApplicationId;

use crate::application::NamedApplication;
use crate::failure::{CommandFailure, OrFail};
use crate::job::NamedJob;
use crate::runs;

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

/// A run of this machine or an application; the newest run if none is named.
#[derive(Clone, Debug, clap::Args)]
pub struct NamedJobArgs {
    /// The run's id or its first digits, or an application's id [default: the newest run of this machine]
    #[arg(value_name = "RUN|APPLICATION")]
    run: Option<String>,
    #[command(flatten)]
    place: WorkDirArgs,
}

impl RunArgs {
    /// Finds the job.
    ///
    /// # Errors
    /// The name must match exactly one run.
    pub fn named(&self) -> Result<Box<dyn NamedJob>, CommandFailure> {
        named_or_newest(Some(&self.run), &self.place)
    }
}

impl NamedJobArgs {
    /// Finds the job.
    ///
    /// # Errors
    /// No run or several runs match.
    pub fn named(&self) -> Result<Box<dyn NamedJob>, CommandFailure> {
        named_or_newest(self.run.as_deref(), &self.place)
    }
}

/// The named run or application, or the newest run. The cluster checks later whether the application exists.
///
/// # Errors
/// No run or several runs match.
pub fn named_or_newest(
    named: Option<&str>,
    place: &WorkDirArgs,
) -> Result<Box<dyn NamedJob>, CommandFailure> {
    if let Some(id) = named.map_or(Ok(None), application)? {
        return Ok(Box::new(NamedApplication::new(id)));
    }
    let work_dir = runs::work_dir(place.work_dir.as_deref())?;
    if let Some(named) = named {
        return Ok(Box::new(runs::find(&work_dir, named)?));
    }
    let newest = runs::all(&work_dir).into_iter().next().ok_or_else(|| {
        CommandFailure::new(ExitCode::Input, format!("no runs in {}", work_dir.display()))
            .next("`heddle run JOB` starts one")
    })?;
    Ok(Box::new(newest))
}
