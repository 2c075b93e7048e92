//! `heddle list`: the runs of this machine and the applications of the cluster, newest first.

use heddle_am::report::words;
use heddle_yarn::ApplicationReport;
use heddle_yarn::client::ApplicationFilter;
use serde::Serialize;

use super::PlaceArgs;
use super::submit::KIND;
use crate::am_client;
use crate::application::standing;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output;
use crate::runs::{self, Standing};
use crate::site::{self, Site, client_failure};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only the runs of this machine
    #[arg(long, conflicts_with = "yarn")]
    local: bool,
    /// Only the applications of the cluster
    #[arg(long)]
    yarn: bool,
    /// Applications of all users
    #[arg(long)]
    all_users: bool,
    #[command(flatten)]
    place: PlaceArgs,
}

/// A run as `--json` shows it.
#[derive(Serialize)]
struct RunView {
    run: String,
    name: String,
    state: Standing,
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

pub fn list(args: &Args, json: bool) -> Outcome {
    let mut rows = Vec::new();
    let mut nowhere = Vec::new();
    if args.yarn || (!args.local && site::is_named()) {
        match am_client::runtime()?.block_on(applications(args.all_users)) {
            Ok(found) => {
                for report in &found {
                    rows.push(of_cluster(report, json)?);
                }
                nowhere.push("on the cluster".to_owned());
            }
            Err(failure) if args.yarn => return Err(failure),
            // The runs of this machine are worth telling all the same.
            Err(failure) => eprintln!("warning: {}: {}", failure.fact, failure.causes.join(": ")),
        }
    }
    if !args.yarn {
        let work_dir = runs::work_dir(args.place.work_dir.as_deref())?;
        nowhere.push(format!("in {}", work_dir.display()));
        for run in runs::all(&work_dir) {
            rows.push(of_machine(&run, json)?);
        }
    }
    if json {
        return Ok(Exit::Ok);
    }
    if rows.is_empty() {
        eprintln!("no runs {}", nowhere.join(" or "));
        return Ok(Exit::Ok);
    }
    let head = ["run", "name", "state", "started", ""];
    rows.insert(0, head.map(str::to_owned).to_vec());
    output::line(&output::columns(&rows))?;
    Ok(Exit::Ok)
}

/// Ours, or all users', newest first.
async fn applications(all_users: bool) -> Result<Vec<ApplicationReport>, Failure> {
    let site = Site::load()?;
    let mut filter = ApplicationFilter {
        kinds: vec![KIND.to_owned()],
        ..ApplicationFilter::default()
    };
    if !all_users {
        filter.users.push(site.user.short_name().to_owned());
    }
    let mut found = site
        .client
        .applications(&filter)
        .await
        .map_err(|error| client_failure("applications cannot be listed", &error))?;
    found.sort_by_key(|report| std::cmp::Reverse((report.start_time_ms, report.id)));
    Ok(found)
}

fn of_cluster(report: &ApplicationReport, json: bool) -> Result<Vec<String>, Failure> {
    let started_ms = u64::try_from(report.start_time_ms).unwrap_or(0);
    let message = match report.diagnostics.as_str() {
        "N/A" => "",
        text => text.trim().lines().next().unwrap_or_default(),
    };
    let line = ApplicationLine {
        application: report.id.to_string(),
        name: report.name.clone(),
        state: standing(report),
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
    Ok(vec![
        line.application,
        line.name,
        state,
        words::time(started_ms),
        short,
    ])
}

fn of_machine(run: &runs::Run, json: bool) -> Result<Vec<String>, Failure> {
    let state = run.standing();
    let message = run
        .outcome()
        .map(|outcome| outcome.message)
        .unwrap_or_default();
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
        words::time(run.file.started_ms),
        message.lines().next().unwrap_or_default().to_owned(),
    ])
}
