//! `heddle clean`: removes what ended jobs left, by age.
//!
//! | place | leftovers |
//! | --- | --- |
//! | this machine | run directories below the work directory |
//! | the cluster, below `~/.heddle` | staging directories, reports, uploaded data, programs |
//!
//! `decision` has the rules. Checkpoints and models are never touched. If the ResourceManager does not respond, nothing
//! on the cluster is removed.

mod decision;
mod inventory;
mod removal;
mod run_dirs;

use std::collections::BTreeMap;

use heddle_am::report::format;
use heddle_am::wall_clock::wall_ms;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::value::DurationMs;
use serde::Serialize;

use super::WorkDirArgs;
use crate::am_client;
use crate::cluster::{self, ClusterContext};
use crate::failure::{CommandFailure, CommandResult};
use crate::output;
use crate::runs::{self, RunState};
use decision::{Age, KeptReason, RemovalVerdict};
use inventory::HomeEntry;
use run_dirs::RunEntry;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Remove what was last used longer ago than this
    #[arg(long, value_name = "DURATION", default_value = "30d")]
    older_than: DurationMs,
    /// Show what would be removed; remove nothing
    #[arg(long)]
    dry_run: bool,
    /// Remove only run directories of this machine
    #[arg(long, conflicts_with = "yarn")]
    local: bool,
    /// Remove only files below ~/.heddle on the cluster
    #[arg(long, conflicts_with_all = ["unfinished", "work_dir"])]
    yarn: bool,
    /// Also remove run directories of runs that failed, were stopped or died, and could be continued
    #[arg(long)]
    unfinished: bool,
    #[command(flatten)]
    place: WorkDirArgs,
}

/// A removed entry as `--json` shows it.
#[derive(Serialize)]
struct RemovedEntry<'a> {
    kind: &'a str,
    path: String,
    bytes: u64,
    modified_ms: u64,
    removed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<RunState>,
}

/// Removes leftovers of this machine, and of the cluster if the environment names one.
pub fn clean(args: &Args, json: bool) -> CommandResult {
    let age = Age { now_ms: wall_ms(), min_ms: args.older_than.0 };
    let mut tally = Tally { dry_run: args.dry_run, json, ..Tally::default() };
    if !args.yarn {
        of_machine(args, age, &mut tally)?;
    }
    let mut ended = Ok(());
    if args.yarn || (!args.local && cluster::is_named()) {
        ended = am_client::runtime()?.block_on(of_cluster(age, &mut tally));
    }
    tally.print();
    match (ended, tally.failed.into_iter().next()) {
        (Err(failure), _) => Err(failure),
        (Ok(()), Some(failure)) => Err(failure),
        (Ok(()), None) => Ok(ExitCode::Ok),
    }
}

/// The command by its earlier name, which meant this machine unless `--yarn` is given.
pub fn prune(args: Args, json: bool) -> CommandResult {
    clean(&Args { local: !args.yarn, ..args }, json)
}

fn of_machine(args: &Args, age: Age, tally: &mut Tally) -> Result<(), CommandFailure> {
    let work_dir = runs::work_dir(args.place.work_dir.as_deref())?;
    for run in run_dirs::read(&work_dir) {
        let verdict = decision::of_run(run.found, args.unfinished, age);
        if tally.note(verdict) {
            let removed = if args.dry_run { Ok(()) } else { run_dirs::remove(&run) };
            tally.removed(removed, &of_run(&run))?;
        }
    }
    Ok(())
}

fn of_run(run: &RunEntry) -> RemovedEntry<'_> {
    RemovedEntry {
        kind: "run",
        path: run.path.display().to_string(),
        bytes: run.bytes,
        modified_ms: run.found.modified_ms,
        removed: false,
        run: Some(run.run.to_string()),
        name: Some(&run.name),
        state: run.found.state,
    }
}

async fn of_cluster(age: Age, tally: &mut Tally) -> Result<(), CommandFailure> {
    let nothing = |mut failure: CommandFailure| {
        failure.fact.push_str("; nothing on the cluster was removed");
        failure
    };
    let cluster = ClusterContext::load()?;
    cluster.reach().await.map_err(nothing)?;
    let found = inventory::read(&cluster, age).await.map_err(nothing)?;
    let verdicts = decision::of_cluster(&found.facts, age);

    let of_applications = found.staging.iter().zip(&verdicts.staging);
    for (entry, verdict) in of_applications.chain(found.reports.iter().zip(&verdicts.reports)) {
        if tally.note(*verdict) {
            let removed = match tally.dry_run {
                true => Ok(()),
                false => removal::of_application(&cluster, entry).await,
            };
            tally.removed(removed, &of_home(&cluster, entry))?;
        }
    }
    let mut shared = Vec::new();
    for (entry, verdict) in found.shared.iter().zip(&verdicts.shared) {
        if tally.note(*verdict) {
            shared.push(entry);
        }
    }
    if shared.is_empty() {
        return Ok(());
    }
    if !tally.dry_run {
        let staged: Vec<String> =
            found.staging.iter().map(|dir| dir.entry.name().to_owned()).collect();
        if !removal::of_shared(&cluster, &shared, &staged).await? {
            tally.kept(KeptReason::InUse, shared.len());
            return Ok(());
        }
    }
    for entry in shared {
        tally.removed(Ok(()), &of_home(&cluster, entry))?;
    }
    Ok(())
}

fn of_home(cluster: &ClusterContext, found: &HomeEntry) -> RemovedEntry<'static> {
    RemovedEntry {
        kind: found.folder.entry_word(),
        path: cluster.show(&found.entry.path),
        bytes: found.bytes,
        modified_ms: found.modified_ms,
        removed: false,
        run: None,
        name: None,
        state: None,
    }
}

/// What was removed and what was kept, for the summary.
#[derive(Default)]
struct Tally {
    dry_run: bool,
    json: bool,
    entries: u64,
    bytes: u64,
    kept: BTreeMap<KeptReason, usize>,
    /// The entries that could not be removed.
    failed: Vec<CommandFailure>,
}

impl Tally {
    /// Counts a kept entry; whether the entry is to be removed.
    fn note(&mut self, verdict: RemovalVerdict) -> bool {
        if let Some(reason) = verdict {
            self.kept(reason, 1);
        }
        verdict.is_none()
    }

    fn kept(&mut self, reason: KeptReason, count: usize) {
        *self.kept.entry(reason).or_default() += count;
    }

    /// Prints a removed entry, or keeps its failure for the end: the others are removed nevertheless.
    fn removed(
        &mut self,
        removed: Result<(), CommandFailure>,
        entry: &RemovedEntry<'_>,
    ) -> Result<(), CommandFailure> {
        if let Err(failure) = removed {
            output::failure(&failure, self.json);
            self.failed.push(failure);
            return Ok(());
        }
        self.entries += 1;
        self.bytes = self.bytes.saturating_add(entry.bytes);
        if self.json {
            return output::json(&RemovedEntry {
                removed: !self.dry_run,
                path: entry.path.clone(),
                run: entry.run.clone(),
                ..*entry
            });
        }
        let (time, size) = (format::time(entry.modified_ms), format::size(entry.bytes));
        output::line(&format!("{time}  {:<8} {size:>10}  {}", entry.kind, entry.path))
    }

    /// Prints the sum, and why entries stay that a user may expect to go.
    fn print(&self) {
        for (reason, count) in &self.kept {
            let why = match reason {
                KeptReason::Young => continue,
                KeptReason::InUse => "in use by a job that runs or waits, or may be",
                KeptReason::Starting => "of jobs that may be starting",
                KeptReason::OtherCluster => {
                    "of applications that this ResourceManager does not have, submitted to another one"
                }
                KeptReason::Unfinished => {
                    "of runs that can be continued (--unfinished removes them)"
                }
                KeptReason::HoldsOutput => "with the checkpoints or the model of their job",
            };
            output::note(&format!("{count} kept: {why}"));
        }
        let entries = if self.entries == 1 { "entry" } else { "entries" };
        let what = if self.dry_run { "would be removed" } else { "removed" };
        let size = format::size(self.bytes);
        output::note(&format!("{} {entries}, {size}, {what}", self.entries));
    }
}
