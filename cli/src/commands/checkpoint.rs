//! `heddle checkpoint`: lists, verifies, repairs, takes and removes checkpoints.

mod groups;
mod repair;

use clap::Subcommand;
use heddle_am::report::format;
use heddle_protocol::control::Operation;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::CutId;
use heddle_storage::chain;
use heddle_storage::checkpoint::{Candidate, CheckpointDir, Depth, Health};
use serde::Serialize;

use super::checkpoint_source::{CheckpointSource, failure, parse_cut};
use super::{RunArgs, WorkDirArgs};
use crate::am_client;
use crate::failure::{CommandFailure, CommandResult, OrFail};
use crate::output;
use crate::runs::{self, RunState};
use crate::waiting;

#[derive(Debug, Subcommand)]
pub enum CheckpointCommand {
    /// List the checkpoints of a folder or a run
    Ls(CheckpointSource),
    /// Read all bytes of the checkpoints of a folder or a run and compare checksums
    Verify(CheckpointSource),
    /// Show the files of each shard, their state, and which of them stand in for each other
    Groups(groups::GroupsArgs),
    /// Put good copies in the place of missing and damaged files
    Repair(repair::RepairArgs),
    /// Take a checkpoint of a running job now
    Now(RunArgs),
    /// Remove one checkpoint; the newest two complete ones are kept
    Rm(Remove),
}

#[derive(Debug, clap::Args)]
pub struct Remove {
    #[command(flatten)]
    dir: CheckpointSource,
    /// The checkpoint, such as g1-c4; may also be the last part of the folder: ckpt/g1-c4
    #[arg(value_name = "CHECKPOINT")]
    cut: Option<String>,
}

pub fn checkpoint(command: CheckpointCommand, json: bool) -> CommandResult {
    let runtime = am_client::runtime()?;
    match command {
        CheckpointCommand::Ls(dir) => runtime.block_on(list(&dir, Depth::Shallow, json)),
        CheckpointCommand::Verify(dir) => runtime.block_on(list(&dir, Depth::Full, json)),
        CheckpointCommand::Groups(args) => runtime.block_on(groups::groups(&args, json)),
        CheckpointCommand::Repair(args) => runtime.block_on(repair::repair(&args, json)),
        CheckpointCommand::Now(run) => runtime.block_on(now(&run, json)),
        CheckpointCommand::Rm(remove) => runtime.block_on(self::remove(&remove, json)),
    }
}

async fn now(run: &RunArgs, json: bool) -> CommandResult {
    let mut job = run.named()?;
    job.operate(&Operation::Checkpoint).await?;
    let id = job.full_id();
    let text = format!("{id} has taken a checkpoint");
    output::done(&serde_json::json!({ "run": id, "taken": true }), &text, json)
}

/// The URL of the mirror `what` that a run continues from (`--from`), if its owner has ended.
///
/// # Errors
/// Exit code 7 if it does not hold checkpoints, 9 if its owner runs.
pub async fn mirror_to_continue(
    what: Option<&str>,
    take_over: bool,
) -> Result<Option<String>, CommandFailure> {
    let Some(what) = what else {
        return Ok(None);
    };
    let source = CheckpointSource::new(what, &WorkDirArgs { work_dir: None });
    let mirror = source.open().await?;
    match repair::check_owner(&mirror, take_over).await? {
        Some(_) => Ok(Some(source.location().await?.to_string())),
        None => Err(CommandFailure::new(
            ExitCode::Input,
            format!("--from {what}: it has no checkpoint to continue from"),
        )),
    }
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
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    initial: bool,
    at_ms: u64,
}

async fn list(dir: &CheckpointSource, depth: Depth, json: bool) -> CommandResult {
    let dir = dir.open().await?;
    let found = waiting::on(dir.show(dir.root()), dir.listing(depth))
        .await
        .or_fail_with(failure, "cannot list the checkpoints")?;
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
        // They are not known to be damaged: a later command may read them.
        (0, unread) => Err(CommandFailure::new(
            ExitCode::Unreachable,
            format!("{unread} of {} checkpoints cannot be read at the moment", found.len()),
        )),
        (damaged, unread) => Err(CommandFailure::new(
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
                initial: manifest.initial,
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
        format::checkpoint_size(content.bytes),
        format::time(content.at_ms),
        state,
    ]
}

async fn remove(remove: &Remove, json: bool) -> CommandResult {
    let (remove, cut) = remove.parse()?;
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
        return Err(CommandFailure::new(
            ExitCode::Fenced,
            format!("run {} uses that folder", run.file.run.short()),
        )
        .next("the run removes old checkpoints itself, see checkpoint.keep"));
    }
    let dir = remove.open().await?;
    let removed = waiting::on(dir.show(dir.root()), dir.remove(cut)).await;
    removed.or_fail_with(failure, "cannot remove the checkpoint")?;
    let object = serde_json::json!({ "removed": cut.to_string() });
    output::done(&object, &format!("removed {cut}"), json)
}

impl Remove {
    /// The folder and the checkpoint in it, from two words or one path.
    fn parse(&self) -> Result<(CheckpointSource, CutId), CommandFailure> {
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
