//! A folder of checkpoints as commands name it, its storage, and the failures of both.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use heddle_am::store::exit_code_of;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::{CutId, Generation};
use heddle_storage::checkpoint::{CheckpointDir, CheckpointError};
use heddle_storage::{Reason, Storage, StorageError, StorageUrl, connect};

use super::{WorkDirArgs, application};
use crate::application::Application;
use crate::failure::{CommandFailure, OrFail};
use crate::file_systems;
use crate::runs;
use crate::waiting;

/// A folder of checkpoints, or the run that wrote it.
#[derive(Clone, Debug, clap::Args)]
pub struct CheckpointSource {
    /// The folder (checkpoint.dir), or the id of a run or an application
    #[arg(value_name = "DIR|RUN|APPLICATION")]
    pub what: String,
    #[command(flatten)]
    pub place: WorkDirArgs,
}

impl CheckpointSource {
    /// A source from the command line.
    pub fn new(what: &str, place: &WorkDirArgs) -> Self {
        Self { what: what.to_owned(), place: place.clone() }
    }

    /// The folder: a path or URL, else the folder of the run or application with that id.
    ///
    /// # Errors
    /// The text is neither a path or URL nor the id of a run.
    pub async fn location(&self) -> Result<StorageUrl, CommandFailure> {
        if let Some(id) = application(&self.what)?
            && !Path::new(&self.what).exists()
        {
            let spec = Application::find(id).await?.spec;
            let spec = spec.ok_or_else(|| {
                CommandFailure::new(ExitCode::Input, format!("cannot read the job of {id}"))
                    .next("pass the folder, checkpoint.dir of its job file")
            })?;
            return location(&spec.checkpoint.dir.url());
        }
        let text = match self.what.contains("://") || Path::new(&self.what).exists() {
            true => self.what.clone(),
            false if self.what.contains('/') => self.what.clone(),
            false => {
                let run = runs::find(&runs::work_dir(self.place.work_dir.as_deref())?, &self.what)?;
                let spec = run.dir.spec().or_fail(ExitCode::Input, "cannot read the run's job")?;
                spec.checkpoint.dir.url()
            }
        };
        location(&text)
    }

    /// Opens the folder of checkpoints.
    ///
    /// # Errors
    /// The folder does not hold checkpoints or cannot be read.
    pub async fn open(&self) -> Result<CheckpointDir, CommandFailure> {
        let location = self.location().await?;
        let storage = reached(&location).await?;
        waiting::on(&location, CheckpointDir::open(storage, location.path().clone()))
            .await
            .or_fail_with(failure, "cannot open the folder")
    }
}

/// Connects to the storage of a location, and checks within seconds that it responds.
///
/// # Errors
/// Exit code 6 if it does not respond; 5 or 7 if the configuration is wrong.
pub async fn reached(location: &StorageUrl) -> Result<Arc<dyn Storage>, CommandFailure> {
    let found = async {
        let storage = connect(location)?;
        storage.reach().await?;
        Ok(storage)
    };
    waiting::on(location, found).await.or_fail_with(unusable, format_args!("cannot use {location}"))
}

/// The failure for an error of a storage: exit code and next step follow from its reason.
pub fn unusable(fact: &str, error: &StorageError) -> CommandFailure {
    let failure = CommandFailure::caused(exit_code_of(error), fact, error);
    match &error.reason {
        Reason::Denied if error.place.starts_with("hdfs:") => {
            failure.next("on a cluster without security, HADOOP_USER_NAME sets the user")
        }
        Reason::Unavailable => failure.next("try again when the file system is available"),
        reason => match reason.next_step() {
            Some(next) => failure.next(next),
            None => failure,
        },
    }
}

/// Parses a location from the command line; a path is relative to the working directory.
///
/// # Errors
/// Exit code 7 if it is not a path or URL.
pub fn location(text: &str) -> Result<StorageUrl, CommandFailure> {
    let absolute = match text {
        // As Hadoop writes it.
        text if text.starts_with("file:/") && !text.starts_with("file://") => text.to_owned(),
        text if text.contains("://") => file_systems::resolve_url(text)?,
        text => std::path::absolute(PathBuf::from(text))
            .or_fail(ExitCode::Input, format_args!("{text:?} is not a valid path"))?
            .to_string_lossy()
            .into_owned(),
    };
    StorageUrl::parse(&absolute)
        .or_fail(ExitCode::Input, format_args!("{text:?} is not a valid path or URL"))
}

/// The failure for an error of a checkpoint directory.
pub fn failure(fact: &str, error: &CheckpointError) -> CommandFailure {
    let exit = match error {
        CheckpointError::Storage(error) => return unusable(fact, error),
        CheckpointError::Foreign { .. }
        | CheckpointError::NotOurs { .. }
        | CheckpointError::Unknown { .. }
        | CheckpointError::Removed { .. }
        | CheckpointError::Kept { .. }
        | CheckpointError::OtherRun { .. }
        | CheckpointError::MirrorOfItself { .. } => ExitCode::Input,
        error if error.is_fenced() => ExitCode::Fenced,
        _ => ExitCode::Checkpoint,
    };
    CommandFailure::caused(exit, fact, error)
}

/// Parses a checkpoint's name such as `g1-c4`.
///
/// # Errors
/// The text has another form.
pub fn parse_cut(text: &str) -> Result<CutId, CommandFailure> {
    let parts = text.strip_prefix('g').and_then(|rest| rest.split_once("-c"));
    let numbers = parts
        .and_then(|(generation, number)| Some((generation.parse().ok()?, number.parse().ok()?)));
    match numbers {
        Some((generation, number)) => Ok(CutId { generation: Generation(generation), number }),
        None => Err(CommandFailure::new(
            ExitCode::Usage,
            format!("a checkpoint must be named like g1-c4 (got {text:?})"),
        )),
    }
}
