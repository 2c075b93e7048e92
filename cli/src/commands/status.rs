//! `heddle status`: prints the state of a run, from its ApplicationMaster or from its files.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use heddle_am::report::{JobReport, format};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::view::{JobState, JobView};

use heddle_yarn::{ApplicationId, ApplicationReport, ApplicationState};

use super::{RunArgs, WorkDirArgs, application};
use crate::am_client;
use crate::application::{Application, FILES_LIMIT, failed_attempts, state_word};
use crate::cluster::ClusterContext;
use crate::failure::{CommandFailure, CommandResult};
use crate::output;
use crate::runs::{self, LocalRun, RunState};
use crate::waiting;

/// After this time without a response of the ResourceManager, the ApplicationMaster is asked directly.
const RM_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run's id or its first digits, or an application's id [default: the newest run of this machine]
    #[arg(value_name = "RUN|APPLICATION")]
    run: Option<String>,
    #[command(flatten)]
    place: WorkDirArgs,
}

pub fn status(args: &Args, json: bool) -> CommandResult {
    let named = args.run.as_deref().map_or(Ok(None), application)?;
    if let Some(id) = named {
        return am_client::runtime()?.block_on(of_application(id, json));
    }
    let run = named_or_newest(args.run.as_deref(), &args.place)?;
    let mut state = run.state();
    let view = match state {
        RunState::Running => match am_client::runtime()?.block_on(am_client::view(&run)) {
            Ok(view) => Some(view),
            Err(failure) => {
                // The run may have ended since its state was read.
                state = run.state();
                if state == RunState::Running {
                    return Err(failure);
                }
                run.last_view()
            }
        },
        _ => run.last_view(),
    };
    if json {
        output::json(&serde_json::json!({
            "run": run.file.run,
            "name": run.file.name,
            "state": state,
            "outcome": run.outcome(),
            "view": view,
        }))?;
        return Ok(ExitCode::Ok);
    }
    let headline = format!("{} {}  {}", run.file.name, run.file.run, state.word());
    output::line(&headline)?;
    if let Some(outcome) = run.outcome() {
        for line in outcome.message.lines() {
            output::line(&format!("  {line}"))?;
        }
    }
    if state == RunState::Died {
        output::line(
            "  its ApplicationMaster died without an outcome; run the job again to continue it",
        )?;
    }
    if let Some(view) = view {
        details(&view)?;
    }
    output::line(&format!("logs  {}", run.dir.logs().display()))?;
    Ok(ExitCode::Ok)
}

/// From its ApplicationMaster, else from the report that it left, else from the ResourceManager's report.
///
/// Prints each part as soon as it arrives: the ResourceManager's first, and if that does not respond, the
/// ApplicationMaster's.
async fn of_application(id: ApplicationId, json: bool) -> CommandResult {
    let cluster = Arc::new(ClusterContext::load()?);
    let mut asked = pin!(Application::known(Arc::clone(&cluster), id));
    let (known, direct) = match tokio::time::timeout(RM_TIMEOUT, &mut asked).await {
        Ok(known) => (known, None),
        Err(_) => {
            let direct = Application::view_past_resource_manager(Arc::clone(&cluster), id);
            let direct = tokio::time::timeout(FILES_LIMIT, direct).await;
            let direct = direct.ok().flatten();
            if let (Some(view), false) = (&direct, json) {
                output::line(&format!("{} {id}  running", view.name))?;
                details(view)?;
            }
            (asked.await, direct)
        }
    };
    let application = match (known, direct.as_ref()) {
        (Ok(application), _) => application,
        (Err(failure), Some(view)) => return without_resource_manager(id, view, &failure, json),
        (Err(failure), None) => return Err(failure),
    };
    let known = &application.report;
    if !json && direct.is_none() {
        output::line(&format!("{} {id}  {}", known.name, state_word(known)))?;
    }
    let is_printed = direct.is_some();
    let (mut left, mut view, mut nodes) = (None, direct, None);
    if application.is_over() {
        left = report_of(&application).await;
        view = left.as_ref().map(|report| report.view.clone());
        if left.is_none() {
            nodes = failed_attempts::nodes_in_words(&application).await;
        }
    } else if known.state == Some(ApplicationState::Running) && !is_printed {
        // A replaced ApplicationMaster does not respond; the ResourceManager's facts are printed nevertheless.
        view = waiting::on("the ApplicationMaster", application.view()).await.ok();
    }
    if json {
        print_json(&application, left.as_ref(), view.as_ref(), nodes.as_deref())?;
        return Ok(ExitCode::Ok);
    }
    let message = left.as_ref().map_or(diagnostics(known), |report| &report.message);
    for line in message.lines().chain(nodes.iter().flat_map(|nodes| nodes.lines())) {
        output::line(&format!("  {line}"))?;
    }
    if let Some(view) = view.filter(|_| !is_printed) {
        details(&view)?;
    }
    let mut rows = vec![
        vec!["queue".to_owned(), known.queue.clone()],
        vec!["page".to_owned(), known.tracking_url.clone()],
        vec!["logs".to_owned(), format!("heddle logs {id}")],
    ];
    if left.is_some() {
        rows.push(vec!["report".to_owned(), application.reports()?.to_string()]);
    }
    output::line(&output::columns(&rows))?;
    Ok(ExitCode::Ok)
}

fn print_json(
    application: &Application,
    left: Option<&JobReport>,
    view: Option<&JobView>,
    nodes_of_failed_attempts: Option<&str>,
) -> Result<(), CommandFailure> {
    let known = &application.report;
    output::json(&serde_json::json!({
        "application": application.id().to_string(),
        "name": known.name,
        "state": state_word(known),
        "user": known.user,
        "queue": known.queue,
        "tracking_url": known.tracking_url,
        "diagnostics": diagnostics(known),
        "failed_attempts": nodes_of_failed_attempts,
        "containers": known.usage.containers,
        "exit_code": left.map(|report| report.exit_code),
        "reports": application.reports().ok().map(ToString::to_string),
        "view": view,
    }))
}

fn diagnostics(report: &ApplicationReport) -> &str {
    match report.diagnostics.trim() {
        "N/A" => "",
        text => text,
    }
}

/// The report that a job left; `None` with a warning if it cannot be read.
async fn report_of(application: &Application) -> Option<JobReport> {
    match on_hdfs(application).await {
        Ok(report) => report,
        Err(failure) => {
            eprintln!(
                "warning: {}: {}; the report is not shown",
                failure.fact,
                failure.causes.join(": ")
            );
            None
        }
    }
}

/// The report that a job left, if HDFS answers soon.
async fn on_hdfs(application: &Application) -> Result<Option<JobReport>, CommandFailure> {
    let read = async {
        application.cluster.reach().await?;
        application.remove_staging().await;
        application.last_report().await
    };
    tokio::time::timeout(FILES_LIMIT, read).await.unwrap_or_else(|_| {
        let seconds = FILES_LIMIT.as_secs();
        Err(CommandFailure::new(
            ExitCode::Unreachable,
            format!("HDFS did not respond within {seconds} s"),
        ))
    })
}

/// A job whose ApplicationMaster responds while the ResourceManager does not. Its view is printed already, except for
/// JSON.
fn without_resource_manager(
    id: ApplicationId,
    view: &JobView,
    failure: &CommandFailure,
    json: bool,
) -> CommandResult {
    if json {
        output::json(&serde_json::json!({
            "application": id.to_string(),
            "name": view.name,
            "state": "running",
            "view": view,
        }))?;
    }
    eprintln!(
        "warning: {}: {}; this is the ApplicationMaster's state",
        failure.fact,
        failure.causes.join(": ")
    );
    Ok(ExitCode::Ok)
}

/// The table of containers.
fn slots(view: &JobView) -> String {
    let mut rows = vec![
        ["slot", "state", "node", "pid", "per second", "memory", "last heartbeat"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for slot in &view.slots {
        rows.push(vec![
            slot.slot.to_string(),
            format::slot_state(slot),
            slot.host.clone(),
            slot.pid.to_string(),
            format::rate(slot.per_second),
            format::size(slot.rss_bytes),
            format::heartbeat_age(slot.heartbeat_age_ms),
        ]);
    }
    output::columns(&rows)
}

fn details(view: &JobView) -> Result<(), CommandFailure> {
    if !matches!(view.state, JobState::Finished | JobState::Failed | JobState::Stopped) {
        under_way(view)?;
    }
    for trained in &view.passes {
        output::line(&format::trained(trained))?;
    }
    for evaluation in &view.evaluations {
        output::line(&format::evaluation(evaluation))?;
    }
    for recovery in &view.recoveries {
        output::line(&format::recovery(recovery))?;
    }
    for damaged in &view.history.checkpoints_damaged {
        let text = format::checkpoint_damaged(damaged.cut, &damaged.dir, &damaged.error);
        output::line(&text)?;
    }
    for mirror in &view.mirrors {
        output::line(&format!("mirror       {} {}", mirror.dir, mirror.text()))?;
    }
    if let Some(last) = view.checkpoints.last() {
        output::line(&format!(
            "checkpoints  {} taken, newest {} in {}",
            view.checkpoints_taken, last.cut, last.dir
        ))?;
        for table in &last.tables {
            output::line(&format::table(table))?;
        }
    }
    Ok(())
}

/// What a job does that has not ended.
fn under_way(view: &JobView) -> Result<(), CommandFailure> {
    output::line(&format::progress(format::ProgressFigures {
        text: &view.phase_text,
        done: view.phase_done,
        rows: view.rows,
        rows_per_second: view.rows_per_second,
        loss: view.training_loss,
        left_ms: view.left_ms,
    }))?;
    for task in &view.set_aside {
        output::line(&format!("set aside: {task}"))?;
    }
    if let Some(late) = view.stragglers {
        output::line(&format!("late tasks: {}", late.text()))?;
    }
    if let Some(locality) = view.data_locality {
        output::line(&format::data_locality(locality))?;
    }
    if let Some(granted) = &view.granted_pulls {
        output::line(&format!("staleness: {}", format::granted_pulls(granted)))?;
    }
    if let Some(saved) = view.saved {
        output::line(&format!("saving: {}", format::saved_bytes(saved)))?;
    }
    if let Some(replication) = &view.replication {
        output::line(&format!("replication: {}", format::replication(replication)))?;
    }
    if let Some(updates) = view.updates_lost {
        output::line(&format!("updates lost: {}", format::thousands(updates)))?;
    }
    if let Some(spares) = view.spares {
        output::line(&format!("spares: {}", spares.text()))?;
    }
    if let Some(saves) = &view.model_saves {
        output::line(&format!("saves: {}", saves.text()))?;
    }
    if let Some(credentials) = &view.credentials {
        output::line(&format::plain(&format::credentials(credentials)))?;
    }
    if let Some(wait) = &view.storage_wait {
        output::line(&format::storage_wait(wait))?;
    }
    if !view.message.is_empty() {
        output::line(&view.message)?;
    }
    output::line(&slots(view))?;
    Ok(())
}

/// The named run, or the newest run.
///
/// # Errors
/// No run matches.
pub fn named_or_newest(
    named: Option<&str>,
    place: &WorkDirArgs,
) -> Result<LocalRun, CommandFailure> {
    match named {
        Some(named) => RunArgs { run: named.to_owned(), place: place.clone() }.find(),
        None => {
            let work_dir = runs::work_dir(place.work_dir.as_deref())?;
            runs::all(&work_dir).into_iter().next().ok_or_else(|| {
                CommandFailure::new(ExitCode::Input, format!("no runs in {}", work_dir.display()))
                    .next("`heddle run JOB` starts one")
            })
        }
    }
}
