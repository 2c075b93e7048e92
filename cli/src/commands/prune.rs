//! `heddle prune`: removes the run directories of old runs.
//!
//! A run directory contains logs and small state, never checkpoints or models. A later run finds an unfinished run with
//! default folders by its run directory, so those stay unless requested.

use std::fs;
use std::path::Path;

use heddle_am::report::format;
use heddle_am::wall_clock::wall_ms;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::spec::value::DurationMs;
use serde::Serialize;

use super::{WorkDirArgs, prune_cluster};
use crate::failure::{CommandFailure, CommandResult};
use crate::output;
use crate::runs::{self, LocalRun, RunState};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Remove runs that were started longer ago than this
    #[arg(long, value_name = "DURATION", default_value = "30d")]
    older_than: DurationMs,
    /// Also remove runs that failed, were stopped or died, and could be continued
    #[arg(long)]
    unfinished: bool,
    /// Show what would be removed; remove nothing
    #[arg(long)]
    dry_run: bool,
    /// Remove files of ended applications below ~/.heddle on the cluster instead: reports, uploaded data, programs
    #[arg(long, conflicts_with_all = ["unfinished", "work_dir"])]
    yarn: bool,
    #[command(flatten)]
    place: WorkDirArgs,
}

/// A removed run as `--json` shows it.
#[derive(Serialize)]
struct Removed<'a> {
    run: String,
    name: &'a str,
    state: RunState,
    bytes: u64,
    dir: String,
}

pub fn prune(args: &Args, json: bool) -> CommandResult {
    if args.yarn {
        return prune_cluster::prune(args.older_than, args.dry_run, json);
    }
    let work_dir = runs::work_dir(args.place.work_dir.as_deref())?;
    let before_ms = wall_ms().saturating_sub(args.older_than.0);
    let (mut count, mut bytes) = (0, 0);
    for run in runs::all(&work_dir) {
        let state = run.state();
        if run.file.started_ms >= before_ms || !is_removable(state, args.unfinished) {
            continue;
        }
        let size = size_of(run.dir.path());
        if !args.dry_run {
            remove(&run)?;
        }
        if json {
            output::json(&Removed {
                run: run.file.run.to_string(),
                name: &run.file.name,
                state,
                bytes: size,
                dir: run.dir.path().display().to_string(),
            })?;
        } else {
            let line = format!("{}  {}  {}", run.file.run.short(), run.file.name, state.word());
            output::line(&line)?;
        }
        count += 1;
        bytes += size;
    }
    if !json {
        let what = if args.dry_run { "would be removed" } else { "removed" };
        let runs = if count == 1 { "run" } else { "runs" };
        eprintln!("{count} {runs}, {}, {what}", format::size(bytes));
    }
    Ok(ExitCode::Ok)
}

fn is_removable(state: RunState, unfinished: bool) -> bool {
    match state {
        RunState::Running => false,
        RunState::Finished => true,
        RunState::Failed | RunState::Stopped | RunState::Died => unfinished,
    }
}

fn remove(run: &LocalRun) -> Result<(), CommandFailure> {
    let dir = run.dir.path();
    fs::remove_dir_all(dir).map_err(|error| {
        CommandFailure::caused(
            ExitCode::Denied,
            format!("cannot remove the run directory {}", dir.display()),
            &error,
        )
    })
}

/// Bytes of all files below a directory; links are not followed.
fn size_of(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else {
        return 0;
    };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => size_of(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    });
    sizes.sum()
}
