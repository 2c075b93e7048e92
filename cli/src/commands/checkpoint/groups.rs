//! `heddle checkpoint groups`: the files of each shard, their state, and which of them stand in for each other.

use heddle_am::report::format;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::{CutId, ShardId, Slot};
use heddle_protocol::manifest::Manifest;
use heddle_storage::chain;
use heddle_storage::checkpoint::{
    CheckedCopy, CheckpointDir, CheckpointError, CopyState, Depth, ShardGroup,
};
use heddle_storage::shard_file::{ShardHeader, ShardRows};
use serde::Serialize;

use crate::commands::WorkDirArgs;
use crate::commands::checkpoint_source::{CheckpointSource, failure, parse_cut};
use crate::failure::{CommandFailure, CommandResult, OrFail};
use crate::output;
use crate::waiting;

/// The checkpoints of a folder, and the mirrors of it.
#[derive(Debug, clap::Args)]
pub struct GroupsArgs {
    #[command(flatten)]
    dir: CheckpointSource,
    /// Only this checkpoint, such as g1-c4 [default: all that count]
    #[arg(long, value_name = "CHECKPOINT")]
    cut: Option<String>,
    /// A mirror of the folder (checkpoint.mirrors); may be given several times
    #[arg(long, value_name = "DIR")]
    from: Vec<String>,
}

impl GroupsArgs {
    /// The folder with its mirrors.
    ///
    /// # Errors
    /// Exit code 7 if it does not hold checkpoints, 6 if a storage does not respond.
    pub async fn open(&self) -> Result<CheckpointDir, CommandFailure> {
        let mirrors = self.mirrors().await?;
        Ok(self.dir.open().await?.with_mirrors(mirrors))
    }

    /// The mirrors alone.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn mirrors(&self) -> Result<Vec<CheckpointDir>, CommandFailure> {
        let mut mirrors = Vec::new();
        for mirror in &self.from {
            mirrors.push(CheckpointSource::new(mirror, &no_work_dir()).open().await?);
        }
        Ok(mirrors)
    }

    /// The checkpoints that are meant, oldest first.
    ///
    /// # Errors
    /// Exit code 7 if there is none.
    pub async fn cuts(&self, dir: &CheckpointDir) -> Result<Vec<CutId>, CommandFailure> {
        let shown = dir.show(dir.root());
        if let Some(cut) = &self.cut {
            return Ok(vec![parse_cut(cut)?]);
        }
        let found = async {
            let lineage = dir.lineage().await?;
            let names = dir.names().await?;
            Ok(names.into_iter().filter(|cut| lineage.holds(*cut)).collect::<Vec<_>>())
        };
        let cuts = waiting::on(&shown, found)
            .await
            .or_fail_with(failure, "cannot list the checkpoints")?;
        match cuts.is_empty() {
            true => Err(CommandFailure::new(ExitCode::Input, format!("no checkpoints in {shown}"))),
            false => Ok(cuts),
        }
    }
}

fn no_work_dir() -> WorkDirArgs {
    WorkDirArgs { work_dir: None }
}

/// A shard as `--json` shows it.
#[derive(Serialize)]
struct ShardLine {
    checkpoint: CutId,
    shard: ShardId,
    restorable: bool,
    whole: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tables: Vec<TableLine>,
    copies: Vec<CopyLine>,
}

#[derive(Serialize)]
struct TableLine {
    table: String,
    /// First row of a dense table.
    #[serde(skip_serializing_if = "Option::is_none")]
    first: Option<u64>,
    rows: u64,
}

#[derive(Serialize)]
struct CopyLine {
    file: String,
    dir: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<Slot>,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    bytes: u64,
    md5: String,
}

/// A checkpoint without a readable manifest, as `--json` shows it.
#[derive(Serialize)]
struct UnreadLine {
    checkpoint: CutId,
    error: String,
}

pub async fn groups(args: &GroupsArgs, json: bool) -> CommandResult {
    let dir = args.open().await?;
    let mut rows =
        vec![["checkpoint", "shard", "rows", "copies", "files"].map(str::to_owned).to_vec()];
    let (mut notes, mut worst) = (Vec::new(), ExitCode::Ok);
    for cut in args.cuts(&dir).await? {
        let read = waiting::on(dir.show(dir.root()), dir.groups(cut, Depth::Full)).await;
        let (manifest, groups): (Manifest, Vec<ShardGroup>) = match read {
            Ok(read) => read,
            // Retention has removed it since it was listed.
            Err(CheckpointError::Unknown { .. }) if args.cut.is_none() => continue,
            Err(error @ CheckpointError::Unknown { .. }) => {
                return Err(failure("cannot read the checkpoint", &error));
            }
            Err(error) => {
                worst = worse(worst, exit_code_of(&error));
                let error = chain(&error);
                match json {
                    true => output::json(&UnreadLine { checkpoint: cut, error })?,
                    false => notes.push(format!("{cut}: {error}")),
                }
                continue;
            }
        };
        if manifest.initial {
            let [name, what] = [cut.to_string(), format::checkpoint_size(manifest.bytes())];
            match json {
                true => output::json(&serde_json::json!({ "checkpoint": name, "initial": true }))?,
                false => rows.push(vec![name, String::new(), String::new(), String::new(), what]),
            }
        }
        for group in &groups {
            worst = worse(worst, exit_of_group(group));
            let line = line(cut, group);
            if json {
                output::json(&line)?;
                continue;
            }
            let errors = line.copies.iter().filter_map(|copy| copy.error.as_ref());
            notes.extend(errors.map(|error| format!("{cut} shard {}: {error}", group.shard)));
            rows.push(row(&line));
        }
    }
    if !json {
        output::line(&output::columns(&rows))?;
        notes.iter().for_each(|note| output::note(note));
    }
    match worst {
        ExitCode::Ok => Ok(ExitCode::Ok),
        ExitCode::Unreachable => {
            Err(CommandFailure::new(worst, "a file cannot be read at the moment"))
        }
        _ => Err(CommandFailure::new(worst, "a shard has no good copy")
            .next("pass a mirror of the folder with --from, if there is one")),
    }
}

/// The exit code for a checkpoint that cannot be read.
pub fn exit_code_of(error: &CheckpointError) -> ExitCode {
    match error.is_retryable() {
        true => ExitCode::Unreachable,
        false => ExitCode::Checkpoint,
    }
}

/// A damaged checkpoint counts more than one that a later command may read.
pub fn worse(one: ExitCode, other: ExitCode) -> ExitCode {
    match (one, other) {
        (ExitCode::Checkpoint, _) | (_, ExitCode::Checkpoint) => ExitCode::Checkpoint,
        (ExitCode::Ok, other) => other,
        (one, _) => one,
    }
}

fn exit_of_group(group: &ShardGroup) -> ExitCode {
    let is_unread = |copy: &CheckedCopy| matches!(copy.state, CopyState::Unread(_));
    match () {
        () if group.is_restorable() => ExitCode::Ok,
        () if group.copies.iter().any(is_unread) => ExitCode::Unreachable,
        () => ExitCode::Checkpoint,
    }
}

fn line(cut: CutId, group: &ShardGroup) -> ShardLine {
    let header = group.copies.iter().find_map(|copy| match &copy.state {
        CopyState::Good(header) => header.as_deref(),
        _ => None,
    });
    ShardLine {
        checkpoint: cut,
        shard: group.shard,
        restorable: group.is_restorable(),
        whole: group.is_whole(),
        tables: header.map(tables).unwrap_or_default(),
        copies: group.copies.iter().map(copy_line).collect(),
    }
}

fn tables(header: &ShardHeader) -> Vec<TableLine> {
    let line = |table: &heddle_storage::shard_file::Table| {
        let (first, rows) = match table.rows {
            ShardRows::Dense { first, count } => (Some(first), count),
            ShardRows::Sparse { count } => (None, count),
        };
        TableLine { table: table.name.clone(), first, rows }
    };
    header.tables.iter().map(line).collect()
}

fn copy_line(copy: &CheckedCopy) -> CopyLine {
    CopyLine {
        file: copy.copy.file.clone(),
        dir: copy.dir.clone(),
        holder: copy.copy.holder,
        state: copy.state.word(),
        error: copy.state.error().map(|error| chain(error)),
        bytes: copy.copy.bytes,
        md5: copy.copy.md5.to_string(),
    }
}

fn row(line: &ShardLine) -> Vec<String> {
    let rows: Vec<String> = line
        .tables
        .iter()
        .map(|table| match table.first {
            Some(first) => format!("{} {first}..{}", table.table, first + table.rows),
            None => format!("{} {} keys", table.table, table.rows),
        })
        .collect();
    let good = line.copies.iter().filter(|copy| copy.state == "good").count();
    let files: Vec<String> = line
        .copies
        .iter()
        .map(|copy| {
            let holder = copy.holder.map(|holder| format!(", {holder}")).unwrap_or_default();
            let size = format::size(copy.bytes);
            format!("{} {}/{} ({size}{holder})", copy.state, copy.dir, copy.file)
        })
        .collect();
    vec![
        line.checkpoint.to_string(),
        line.shard.to_string(),
        rows.join(", "),
        format!("{good} of {} good", line.copies.len()),
        files.join("; "),
    ]
}
