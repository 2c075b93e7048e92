//! `heddle list`: the runs of this machine and the applications of the cluster, newest first.

use heddle_am::report::format;
use heddle_protocol::exit_code::ExitCode;
use heddle_yarn::ApplicationReport;
use heddle_yarn::client::ApplicationFilter;
use serde::Serialize;

use super::WorkDirArgs;
use crate::am_client;
use crate::application::state_word;
use crate::cluster::{self, APPLICATION_TYPE, ClusterContext, client_failure};
use crate::failure::{CommandFailure, CommandResult, OrFail};
use crate::output;
use crate::runs::{self, RunState};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// List only the runs of this machine
    #[arg(long, conflicts_with = "yarn")]
    local: bool,
    /// List only the applications of the cluster
    #[arg(long)]
    yarn: bool,
    /// List applications of all users
    #[arg(long)]
    all_users: bool,
    /// List the newest N of each kind; 0 lists all
    #[arg(long, short = 'n', value_name = "N", default_value_t = 50)]
    limit: usize,
    /// List only this state; may be repeated
    #[arg(long, value_name = "STATE", value_parser = STATES)]
    state: Vec<String>,
    /// List only jobs with this name
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// List only applications of the cluster with this tag
    #[arg(long, value_name = "TAG", conflicts_with = "local")]
    tag: Option<String>,
    #[command(flatten)]
    place: WorkDirArgs,
}

/// All states of runs and applications.
const STATES: [&str; 7] =
    ["waiting", "running", "finished", "failed", "stopped", "died", "unknown"];

impl Args {
    fn wants(&self, name: &str, state: &str) -> bool {
        (self.state.is_empty() || self.state.iter().any(|wanted| wanted == state))
            && self.name.as_deref().is_none_or(|wanted| wanted == name)
    }

    /// The newest entries up to the limit; adds the number of the others to `left_out`.
    fn newest<T>(&self, mut found: Vec<T>, left_out: &mut usize) -> Vec<T> {
        if self.limit > 0 && found.len() > self.limit {
            *left_out += found.len() - self.limit;
            found.truncate(self.limit);
        }
        found
    }
}

/// A run as `--json` shows it.
#[derive(Serialize)]
struct RunView {
    run: String,
    name: String,
    state: RunState,
    started_ms: u64,
    dir: String,
    message: String,
}

/// An application as `--json` shows it.
#[derive(Serialize)]
struct ApplicationLine {
    application: String,
    name: String,
    state: &'static str,
    started_ms: u64,
    user: String,
    queue: String,
    tracking_url: String,
    message: String,
}

pub fn list(args: &Args, json: bool) -> CommandResult {
    let mut rows = Vec::new();
    let mut nowhere = Vec::new();
    let mut left_out = 0;
    if args.yarn || args.tag.is_some() || (!args.local && cluster::is_named()) {
        match am_client::runtime()?.block_on(applications(args)) {
            Ok(mut found) => {
                found.retain(|report| args.wants(&report.name, state_word(report)));
                for report in &args.newest(found, &mut left_out) {
                    rows.push(of_cluster(report, json)?);
                }
                nowhere.push("on the cluster".to_owned());
            }
            Err(failure) if args.yarn || args.tag.is_some() => return Err(failure),
            // The runs of this machine are listed nevertheless.
            Err(failure) => output::note(&format!("warning: {}", failure.in_words())),
        }
    }
    if !args.yarn && args.tag.is_none() {
        let work_dir = runs::work_dir(args.place.work_dir.as_deref())?;
        nowhere.push(format!("in {}", work_dir.display()));
        let mut found = runs::all(&work_dir);
        found.retain(|run| args.wants(&run.file.name, run.state().word()));
        for run in args.newest(found, &mut left_out) {
            rows.push(of_machine(&run, json)?);
        }
    }
    if left_out > 0 {
        eprintln!(
            "{left_out} older entries are not shown: --limit 0 shows all, `heddle clean` removes old runs"
        );
    }
    if json {
        return Ok(ExitCode::Ok);
    }
    if rows.is_empty() {
        eprintln!("no runs {}", nowhere.join(" or "));
        return Ok(ExitCode::Ok);
    }
    let head = ["run", "name", "state", "started", ""];
    rows.insert(0, head.map(str::to_owned).to_vec());
    output::line(&output::columns(&rows))?;
    Ok(ExitCode::Ok)
}

/// The user's applications, or those of all users, with the tag if one is given; newest first.
async fn applications(args: &Args) -> Result<Vec<ApplicationReport>, CommandFailure> {
    let cluster = ClusterContext::load()?;
    let mut filter = ApplicationFilter {
        kinds: vec![APPLICATION_TYPE.to_owned()],
        tags: args.tag.iter().map(|tag| tag.to_ascii_lowercase()).collect(),
        ..ApplicationFilter::default()
    };
    if !args.all_users {
        filter.users.push(cluster.user.short_name().to_owned());
    }
    let mut found = cluster
        .client
        .applications(&filter)
        .await
        .or_fail_with(client_failure, "cannot list applications")?;
    found.sort_by_key(|report| std::cmp::Reverse((report.start_time_ms, report.id)));
    Ok(found)
}

fn of_cluster(report: &ApplicationReport, json: bool) -> Result<Vec<String>, CommandFailure> {
    let started_ms = u64::try_from(report.start_time_ms).unwrap_or(0);
    let message = match report.diagnostics.as_str() {
        "N/A" => "",
        text => text.trim().lines().next().unwrap_or_default(),
    };
    let line = ApplicationLine {
        application: report.id.to_string(),
        name: report.name.clone(),
        state: state_word(report),
        started_ms,
        user: report.user.clone(),
        queue: report.queue.clone(),
        tracking_url: report.tracking_url.clone(),
        message: message.to_owned(),
    };
    if json {
        output::json(&line)?;
    }
    let short: String = line.message.chars().take(100).collect();
    let state = line.state.to_owned();
    Ok(vec![line.application, line.name, state, format::time(started_ms), short])
}

fn of_machine(run: &runs::LocalRun, json: bool) -> Result<Vec<String>, CommandFailure> {
    let state = run.state();
    let message = run.outcome().map(|outcome| outcome.message).unwrap_or_default();
    if json {
        output::json(&RunView {
            run: run.file.run.to_string(),
            name: run.file.name.clone(),
            state,
            started_ms: run.file.started_ms,
            dir: run.dir.path().display().to_string(),
            message: message.clone(),
        })?;
    }
    Ok(vec![
        run.file.run.short(),
        run.file.name.clone(),
        state.word().to_owned(),
        format::time(run.file.started_ms),
        message.lines().next().unwrap_or_default().to_owned(),
    ])
}
