//! `heddle report`: prints the report of an ended job.

use heddle_am::report::format;
use heddle_am_core::Outcome;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::view::JobView;
use heddle_yarn::ApplicationId;

use super::status::named_or_newest;
use super::{WorkDirArgs, application};
use crate::am_client;
use crate::application::Application;
use crate::failure::{CommandFailure, CommandResult};
use crate::output;
use crate::runs::LocalRun;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run's id or its first digits, or an application's id [default: the newest run of this machine]
    #[arg(value_name = "RUN|APPLICATION")]
    run: Option<String>,
    #[command(flatten)]
    place: WorkDirArgs,
}

pub fn report(args: &Args, json: bool) -> CommandResult {
    if let Some(id) = args.run.as_deref().map_or(Ok(None), application)? {
        return am_client::runtime()?.block_on(of_application(id, json));
    }
    let run = named_or_newest(args.run.as_deref(), &args.place)?;
    let (Some(outcome), Some(view)) = (run.outcome(), run.last_view()) else {
        let short = run.file.run.short();
        return Err(CommandFailure::new(
            ExitCode::Input,
            format!("run {short} has not left a report"),
        )
        .next(format!("`heddle status {short}` shows its state")));
    };
    if json {
        output::json(&serde_json::json!({
            "run": run.file.run,
            "name": run.file.name,
            "outcome": outcome,
            "view": view,
        }))?;
        return Ok(ExitCode::Ok);
    }
    print(&run, &outcome, &view)?;
    Ok(ExitCode::Ok)
}

async fn of_application(id: ApplicationId, json: bool) -> CommandResult {
    let application = Application::find(id).await?;
    let Some(report) = application.last_report().await? else {
        let failure = CommandFailure::new(ExitCode::Input, format!("{id} has not left a report"));
        return Err(match application.is_over() {
            true => failure.next(format!("`heddle status {id}` and `heddle logs {id}` show more")),
            false => failure.next(format!("`heddle status {id}` shows its state")),
        });
    };
    match json {
        true => output::json(&report)?,
        false => output::line(report.to_string().trim_end())?,
    }
    Ok(ExitCode::Ok)
}

fn print(run: &LocalRun, outcome: &Outcome, view: &JobView) -> Result<(), CommandFailure> {
    output::line(&format!(
        "{} {} (exit code {})",
        run.file.name,
        format::word(&outcome.state),
        outcome.exit_code
    ))?;
    for line in outcome.message.lines() {
        output::line(&format!("  {}", format::plain(line)))?;
    }
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    let mut rows = vec![
        row("run", run.file.run.to_string()),
        row("started", format::time(view.started_ms)),
        row("rows", format::thousands(view.rows)),
        row(
            "checkpoints",
            format!(
                "{} taken, {} given up",
                view.checkpoints_taken, view.history.checkpoints_given_up_total
            ),
        ),
    ];
    if let Some(updates) = view.updates_lost {
        rows.push(row("updates lost", format::thousands(updates)));
    }
    if let Some(model) = &outcome.model {
        rows.push(row("model", model.clone()));
    }
    rows.push(row("logs", run.dir.logs().display().to_string()));
    output::line(&output::columns(&rows))?;
    for trained in &view.passes {
        output::line(&format::trained(trained))?;
    }
    for evaluation in &view.evaluations {
        output::line(&format::evaluation(evaluation))?;
    }
    for recovery in &view.recoveries {
        output::line(&format::plain(&format::recovery(recovery)))?;
    }
    for wait in &view.history.storage_waits {
        output::line(&format::plain(&format::storage_wait(wait)))?;
    }
    Ok(())
}
