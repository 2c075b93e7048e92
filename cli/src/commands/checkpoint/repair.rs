//! `heddle checkpoint repair`: puts good copies in the place of missing and damaged files.

use heddle_am::claim::{self, Liveness};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::{CutId, Generation};
use heddle_storage::chain;
use heddle_storage::checkpoint::{CheckpointDir, CheckpointError, Owner, Repair, RepairMode};
use heddle_yarn::{ApplicationId, ApplicationState, ClientError};
use serde::Serialize;

use super::groups::{GroupsArgs, exit_code_of, worse};
use crate::cluster::ClusterContext;
use crate::commands::checkpoint_source::failure;
use crate::failure::{CommandFailure, CommandResult, OrFail};
use crate::output;
use crate::waiting;

#[derive(Debug, clap::Args)]
pub struct RepairArgs {
    #[command(flatten)]
    groups: GroupsArgs,
    /// Show what would be replaced; replace nothing
    #[arg(long)]
    dry_run: bool,
    /// Repair although it is unknown whether the owner of the folder, or of a mirror, runs
    #[arg(long)]
    take_over: bool,
}

/// A repaired checkpoint as `--json` shows it.
#[derive(Serialize)]
struct RepairLine {
    checkpoint: CutId,
    dry_run: bool,
    replaced: Vec<ReplacedLine>,
    lost: Vec<LostLine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    set_aside: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Serialize)]
struct ReplacedLine {
    file: String,
    was: String,
    source: String,
}

#[derive(Serialize)]
struct LostLine {
    shard: u32,
    copies: Vec<String>,
}

pub async fn repair(args: &RepairArgs, json: bool) -> CommandResult {
    let dir = args.groups.open().await?;
    let own = check_owner(&dir, args.take_over).await?;
    for mirror in args.groups.mirrors().await? {
        // Its files may be deleted while they are copied.
        check_owner(&mirror, args.take_over).await?;
    }
    let mode = match args.dry_run {
        true => RepairMode::DryRun,
        false => RepairMode::Replace { own },
    };
    let (mut worst, mut replaced) = (ExitCode::Ok, 0);
    for cut in args.groups.cuts(&dir).await? {
        match waiting::on(dir.show(dir.root()), dir.repair(cut, None, mode)).await {
            Ok(repair) => {
                if !repair.lost.is_empty() {
                    worst = worse(worst, ExitCode::Checkpoint);
                }
                replaced += repair.replaced.len();
                show(&repair, args.dry_run, json)?;
            }
            Err(
                error @ (CheckpointError::Unknown { .. }
                | CheckpointError::NotOurs { .. }
                | CheckpointError::Fenced { .. }),
            ) => return Err(failure("cannot repair the checkpoint", &error)),
            Err(error) => {
                worst = worse(worst, exit_code_of(&error));
                let error = chain(&error);
                match json {
                    true => output::json(&unread(cut, args.dry_run, error))?,
                    false => output::note(&format!("{cut}: {error}")),
                }
            }
        }
    }
    match worst {
        ExitCode::Ok => {
            if !json && replaced == 0 {
                output::note("every file is good");
            }
            Ok(ExitCode::Ok)
        }
        ExitCode::Unreachable => {
            Err(CommandFailure::new(worst, "a file cannot be read at the moment")
                .next("try again when the file system is available"))
        }
        _ => Err(CommandFailure::new(worst, "not all files can be repaired")
            .next("pass a mirror of the folder with --from, if there is one")),
    }
}

fn show(repair: &Repair, dry_run: bool, json: bool) -> Result<(), CommandFailure> {
    if !json {
        for text in repair.texts() {
            output::note(&match dry_run {
                true => format!("would repair: {text}"),
                false => text,
            });
        }
        return Ok(());
    }
    let replaced = repair.replaced.iter().map(|file| ReplacedLine {
        file: file.file.clone(),
        was: file.was.clone(),
        source: file.source.clone(),
    });
    let lost = repair
        .lost
        .iter()
        .map(|lost| LostLine { shard: lost.shard.0, copies: lost.copies.clone() });
    output::json(&RepairLine {
        checkpoint: repair.cut,
        dry_run,
        replaced: replaced.collect(),
        lost: lost.collect(),
        set_aside: repair.set_aside.clone(),
        error: None,
    })
}

fn unread(checkpoint: CutId, dry_run: bool, error: String) -> RepairLine {
    let (replaced, lost) = (Vec::new(), Vec::new());
    RepairLine { checkpoint, dry_run, replaced, lost, set_aside: None, error: Some(error) }
}

/// Fails while the owner of a checkpoint directory runs, which writes and deletes there itself. Returns the highest claim.
///
/// # Errors
/// Exit code 9 if it runs, or if that cannot be determined and `take_over` is not given.
pub async fn check_owner(
    dir: &CheckpointDir,
    take_over: bool,
) -> Result<Option<Generation>, CommandFailure> {
    let shown = dir.show(dir.root());
    let claim = async {
        match dir.claimed().await?.last() {
            Some(highest) => dir.claim(*highest).await.map(Some),
            None => Ok(None),
        }
    };
    let claim = waiting::on(&shown, claim)
        .await
        .or_fail_with(failure, "cannot read the owner of the folder")?;
    let Some(claim) = claim else {
        return Ok(None);
    };
    let liveness = match &claim.owner {
        Owner::Local { .. } => claim::liveness(&claim.owner),
        Owner::Application { application, .. } => of_application(application).await,
    };
    let (run, owner) = (claim.run, &claim.owner);
    match liveness {
        Liveness::Gone => Ok(Some(claim.generation)),
        Liveness::Alive => Err(CommandFailure::new(
            ExitCode::Fenced,
            format!("{shown} belongs to run {run} ({owner}), which is running"),
        )
        .next(
            "it writes and deletes files there, and replaces damaged ones itself when it restores \
             them; stop it first",
        )),
        Liveness::Unknown | Liveness::NoAnswer if take_over => Ok(Some(claim.generation)),
        Liveness::Unknown | Liveness::NoAnswer => Err(CommandFailure::new(
            ExitCode::Fenced,
            format!(
                "{shown} is claimed by run {run} ({owner}), whose state cannot be determined from \
                 here"
            ),
        )
        .next("if it does not run, pass --take-over")),
    }
}

async fn of_application(application: &str) -> Liveness {
    let Ok(id) = application.parse::<ApplicationId>() else {
        return Liveness::Unknown;
    };
    let Ok(cluster) = ClusterContext::load() else {
        return Liveness::Unknown;
    };
    match cluster.client.report(id).await {
        Ok(report) if report.state.is_some_and(ApplicationState::is_final) => Liveness::Gone,
        Ok(_) => Liveness::Alive,
        // Another ResourceManager may have it.
        Err(ClientError::NotFound(_)) => Liveness::Unknown,
        Err(_) => Liveness::NoAnswer,
    }
}
