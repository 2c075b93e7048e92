//! The state of an application, from its ApplicationMaster, the report that it left, or the ResourceManager.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use heddle_am::report::JobReport;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::view::JobView;
use heddle_yarn::{ApplicationId, ApplicationReport, ApplicationState};

use super::{Application, FILES_LIMIT, failed_attempts, state_word};
use crate::cluster::ClusterContext;
use crate::failure::{CommandFailure, CommandResult};
use crate::{output, view_printer, waiting};

/// After this time without a response of the ResourceManager, the ApplicationMaster is asked directly.
const RM_TIMEOUT: Duration = Duration::from_secs(2);

/// From its ApplicationMaster, else from the report that it left, else from the ResourceManager's report.
///
/// Prints each part as soon as it arrives: the ResourceManager's first, and if that does not respond, the
/// ApplicationMaster's.
///
/// # Errors
/// The cluster does not have the application, or both are silent.
pub async fn print(id: ApplicationId, json: bool) -> CommandResult {
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
                view_printer::print(view)?;
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
        view_printer::print(&view)?;
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
            eprintln!("warning: {}; the report is not shown", failure.in_words());
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
    eprintln!("warning: {}; this is the ApplicationMaster's state", failure.in_words());
    Ok(ExitCode::Ok)
}
