//! `heddle checkpoint`: looking at checkpoints, checking them, taking one, removing one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Subcommand;
use heddle_am::report::format;
use heddle_am::store::exit_code_of;
use heddle_protocol::control::Operation;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::{CutId, Generation};
use heddle_storage::checkpoint::{Candidate, CheckpointDir, CheckpointError, Depth, Health};
use heddle_storage::{Location, Reason, Storage, StorageError, chain, connect};
use serde::Serialize;

use super::{JobRef, RunArgs, WorkDirArgs, application};
use crate::am_client;
use crate::application::Application;
use crate::failure::{CommandResult, Failure, not_yet};
use crate::output;
use crate::runs::{self, RunState};
use crate::waiting;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the checkpoints of a folder or a run
    Ls(CheckpointSource),
    /// Read every byte of the checkpoints of a folder or a run and compare sums
    Verify(CheckpointSource),
    /// Let a running job take a checkpoint now
    Now(RunArgs),
    /// Remove one checkpoint; the newest two complete ones stay
    Rm(Remove),
    /// Redundancy groups of shards (not available yet)
    Groups,
    /// Mend a damaged checkpoint from redundant files (not available yet)
    Repair,
}

/// A folder of checkpoints, or the run that wrote it.
#[derive(Clone, Debug, clap::Args)]
pub struct CheckpointSource {
    /// The folder (checkpoint.dir), or the id of a run or an application
    #[arg(value_name = "DIR|RUN|APPLICATION")]
    what: String,
    #[command(flatten)]
    place: WorkDirArgs,
}

#[derive(Debug, clap::Args)]
pub struct Remove {
    #[command(flatten)]
    dir: CheckpointSource,
    /// The checkpoint, such as g1-c4; may also be the last part of the folder: ckpt/g1-c4
    #[arg(value_name = "CHECKPOINT")]
    cut: Option<String>,
}

pub fn checkpoint(command: Command, json: bool) -> CommandResult {
    let runtime = am_client::runtime()?;
    match command {
        Command::Ls(dir) => runtime.block_on(list(&dir, Depth::Shallow, json)),
        Command::Verify(dir) => runtime.block_on(list(&dir, Depth::Full, json)),
        Command::Now(run) => runtime.block_on(now(&run, json)),
        Command::Rm(remove) => runtime.block_on(self::remove(&remove, json)),
        Command::Groups => Err(not_yet("checkpoint groups")),
        Command::Repair => Err(not_yet("checkpoint repair")),
    }
}

async fn now(run: &RunArgs, json: bool) -> CommandResult {
    let id = match run.named()? {
        JobRef::Run(run) => {
            am_client::operate(&run, &Operation::Checkpoint).await?;
            run.file.run.to_string()
        }
        JobRef::Application(id) => {
            let application = Application::find(id).await?;
            application.operate(&Operation::Checkpoint).await?;
            id.to_string()
        }
    };
    if json {
        output::json(&serde_json::json!({ "run": id, "taken": true }))?;
    } else {
        eprintln!("{id} has taken a checkpoint");
    }
    Ok(ExitCode::Ok)
}

impl CheckpointSource {
    /// What was typed, and where runs are.
    pub fn new(what: &str, place: &WorkDirArgs) -> Self {
        Self { what: what.to_owned(), place: place.clone() }
    }

    /// The folder: a path or URL as it is, else that of the run or application called so.
    ///
    /// # Errors
    /// It is no place, and no run is called so.
    pub async fn location(&self) -> Result<Location, Failure> {
        if let Some(id) = application(&self.what)?
            && !Path::new(&self.what).exists()
        {
            let spec = Application::find(id).await?.spec;
            let spec = spec.ok_or_else(|| {
                Failure::new(ExitCode::Input, format!("{id}: its job cannot be read any more"))
                    .next("name the folder, checkpoint.dir of its job file")
            })?;
            return location(&spec.checkpoint.dir.url());
        }
        let text = match self.what.contains("://") || Path::new(&self.what).is_dir() {
            true => self.what.clone(),
            false if self.what.contains('/') => self.what.clone(),
            false => {
                let run = runs::find(&runs::work_dir(self.place.work_dir.as_deref())?, &self.what)?;
                let spec = run.dir.spec().map_err(|error| {
                    Failure::caused(ExitCode::Input, "the run's job cannot be read", &error)
                })?;
                spec.checkpoint.dir.url()
            }
        };
        location(&text)
    }

    /// The folder, which must be one of checkpoints.
    ///
    /// # Errors
    /// It is not, or cannot be read.
    pub async fn open(&self) -> Result<CheckpointDir, Failure> {
        let location = self.location().await?;
        let storage = reached(&location).await?;
        waiting::on(&location, CheckpointDir::open(storage, location.path().clone()))
            .await
            .map_err(|error| failure("the folder cannot be opened", &error))
    }
}

/// The storage of a place, if anybody is there: a person who waits hears within seconds that nobody is.
///
/// # Errors
/// Exit code 6 when nobody is; 5 or 7 when the configuration leads nowhere.
pub async fn reached(location: &Location) -> Result<Arc<dyn Storage>, Failure> {
    let found = async {
        let storage = connect(location)?;
        storage.reach().await?;
        Ok(storage)
    };
    waiting::on(location, found)
        .await
        .map_err(|error| unusable(&format!("{location} cannot be used"), &error))
}

/// A storage that does not do what it should: exit code and next step by its reason.
pub fn unusable(fact: &str, error: &StorageError) -> Failure {
    let failure = Failure::caused(exit_code_of(error), fact, error);
    match &error.reason {
        Reason::Denied => {
            failure.next("HADOOP_USER_NAME says who you are to a cluster without security")
        }
        Reason::Quota(_) => failure.next("ask for more room, or name another directory"),
        Reason::Unavailable => failure.next("try again when the file system can be used"),
        _ => failure,
    }
}

/// A location from the command line: a path is relative to the working directory.
///
/// # Errors
/// Exit code 7 when it is none.
pub fn location(text: &str) -> Result<Location, Failure> {
    let absolute = match text.contains("://") {
        true => text.to_owned(),
        false => std::path::absolute(PathBuf::from(text))
            .map_err(|error| {
                Failure::caused(ExitCode::Input, format!("{text:?} is no path"), &error)
            })?
            .to_string_lossy()
            .into_owned(),
    };
    Location::parse(&absolute)
        .map_err(|error| Failure::caused(ExitCode::Input, format!("{text:?} is no place"), &error))
}

/// The exit code of what went wrong with checkpoints.
pub fn failure(fact: &str, error: &CheckpointError) -> Failure {
    let exit = match error {
        CheckpointError::Storage(error) => return unusable(fact, error),
        CheckpointError::Foreign { .. }
        | CheckpointError::NotOurs { .. }
        | CheckpointError::Unknown { .. }
        | CheckpointError::Kept { .. } => ExitCode::Input,
        error if error.is_fenced() => ExitCode::Fenced,
        _ => ExitCode::Checkpoint,
    };
    Failure::caused(exit, fact, error)
}

/// A checkpoint as `--json` shows it.
#[derive(Serialize)]
struct CheckpointLine {
    cut: CutId,
    dir: String,
    counts: bool,
    good: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(flatten)]
    content: Option<CheckpointContent>,
}

#[derive(Serialize)]
struct CheckpointContent {
    job: String,
    run: String,
    phase: u32,
    step: u64,
    shards: usize,
    bytes: u64,
    at_ms: u64,
}

async fn list(dir: &CheckpointSource, depth: Depth, json: bool) -> CommandResult {
    let dir = dir.open().await?;
    let found = waiting::on(dir.show(dir.root()), dir.listing(depth))
        .await
        .map_err(|error| failure("the checkpoints cannot be listed", &error))?;
    let mut rows = vec![
        ["checkpoint", "phase", "step", "shards", "size", "written", "state"]
            .map(str::to_owned)
            .to_vec(),
    ];
    let (mut damaged, mut unread) = (0, 0);
    for candidate in &found {
        let line = line(&dir, candidate);
        match &candidate.health {
            Health::Good(_) => {}
            Health::Bad(error) if error.is_retryable() => unread += 1,
            Health::Bad(_) => damaged += 1,
        }
        if json {
            output::json(&line)?;
        } else {
            rows.push(row(&line, depth));
        }
    }
    if !json {
        match found.is_empty() {
            true => eprintln!("no checkpoints in {}", dir.show(dir.root())),
            false => output::line(&output::columns(&rows))?,
        }
    }
    match (damaged, unread) {
        (0, 0) => Ok(ExitCode::Ok),
        // Nothing is proven against them: the same command may find them whole later.
        (0, unread) => Err(Failure::new(
            ExitCode::Unreachable,
            format!("{unread} of {} checkpoints cannot be read just now", found.len()),
        )),
        (damaged, unread) => Err(Failure::new(
            ExitCode::Checkpoint,
            format!("{} of {} checkpoints cannot be used", damaged + unread, found.len()),
        )),
    }
}

fn line(dir: &CheckpointDir, candidate: &Candidate) -> CheckpointLine {
    let (error, content) = match &candidate.health {
        Health::Good(checkpoint) => {
            let manifest = &checkpoint.manifest;
            let content = CheckpointContent {
                job: manifest.job.clone(),
                run: manifest.run.to_string(),
                phase: manifest.phase.0,
                step: manifest.step().0,
                shards: manifest.shards.len(),
                bytes: manifest.bytes(),
                at_ms: manifest.at_ms,
            };
            (None, Some(content))
        }
        Health::Bad(error) => (Some(chain(error)), None),
    };
    CheckpointLine {
        cut: candidate.cut,
        dir: dir.show(&candidate.dir),
        counts: candidate.in_lineage,
        good: error.is_none(),
        error,
        content,
    }
}

fn row(line: &CheckpointLine, depth: Depth) -> Vec<String> {
    let state = match (&line.error, line.counts, depth) {
        (Some(error), _, _) => error.clone(),
        (None, false, _) => "superseded".to_owned(),
        (None, true, Depth::Full) => "verified".to_owned(),
        (None, true, Depth::Shallow) => "complete".to_owned(),
    };
    let Some(content) = &line.content else {
        let mut row = vec![line.cut.to_string()];
        row.extend(std::iter::repeat_n(String::new(), 5));
        row.push(state);
        return row;
    };
    vec![
        line.cut.to_string(),
        content.phase.to_string(),
        content.step.to_string(),
        content.shards.to_string(),
        format::size(content.bytes),
        format::time(content.at_ms),
        state,
    ]
}

async fn remove(remove: &Remove, json: bool) -> CommandResult {
    let (remove, cut) = remove.meant()?;
    let place = runs::work_dir(remove.place.work_dir.as_deref())?;
    let location = remove.location().await?;
    let user = runs::all(&place).into_iter().find(|run| {
        run.state() == RunState::Running
            && run
                .dir
                .spec()
                .is_ok_and(|spec| spec.checkpoint.dir.path() == location.path().as_str())
    });
    if let Some(run) = user {
        return Err(Failure::new(
            ExitCode::Fenced,
            format!("run {} is working in that folder", run.file.run.short()),
        )
        .next("it removes old checkpoints by itself, see checkpoint.keep"));
    }
    let dir = remove.open().await?;
    waiting::on(dir.show(dir.root()), dir.remove(cut))
        .await
        .map_err(|error| failure("the checkpoint was not removed", &error))?;
    if json {
        output::json(&serde_json::json!({ "removed": cut.to_string() }))?;
    } else {
        eprintln!("removed {cut}");
    }
    Ok(ExitCode::Ok)
}

impl Remove {
    /// The folder and the checkpoint in it: two words, or one path.
    fn meant(&self) -> Result<(CheckpointSource, CutId), Failure> {
        if let Some(cut) = &self.cut {
            return Ok((self.dir.clone(), parse_cut(cut)?));
        }
        let path = self.dir.what.trim_end_matches('/');
        let (dir, cut) = path.rsplit_once('/').unwrap_or((".", path));
        let cut = parse_cut(cut).map_err(|failure| {
            failure.next("`heddle checkpoint rm DIR|RUN g1-c4`, or the path of one: ckpt/g1-c4")
        })?;
        let dir = if dir.is_empty() { "/" } else { dir };
        Ok((CheckpointSource::new(dir, &self.dir.place), cut))
    }
}

/// `g1-c4` as a checkpoint's name.
///
/// # Errors
/// It is another text.
pub fn parse_cut(text: &str) -> Result<CutId, Failure> {
    let parts = text.strip_prefix('g').and_then(|rest| rest.split_once("-c"));
    let numbers = parts
        .and_then(|(generation, number)| Some((generation.parse().ok()?, number.parse().ok()?)));
    match numbers {
        Some((generation, number)) => Ok(CutId { generation: Generation(generation), number }),
        None => Err(Failure::new(
            ExitCode::Usage,
            format!("{text:?} is no checkpoint's name; expected one such as g1-c4"),
        )),
    }
}
