//! Prints a submission's id, in the forms that users and schedulers read.
//!
//! Schedulers find the application by one line of standard error: Oozie by `Submitted application application_…`, Azkaban by
//! an id at the beginning of a line, Airflow by an id anywhere. `--output properties` is for Oozie's `capture-output`,
//! which reads `key=value` lines of standard output, 2 KiB of them at most.

use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::RunId;
use heddle_yarn::ApplicationReport;

use super::flags::{Args, OutputFormat};
use crate::failure::{CommandFailure, CommandResult, OrFail};
use crate::output;

/// Longest tracking URL that is printed as a property, so that all properties fit into 2 KiB.
const URL_BYTES_MAX: usize = 1500;

/// Runs a submission, and prints its exit code as the last property if properties are requested.
pub fn with_format(
    args: &Args,
    json: bool,
    submit: impl FnOnce() -> CommandResult,
) -> CommandResult {
    if args.output != OutputFormat::Properties {
        return submit();
    }
    if json {
        let fact = "cannot print JSON and properties to the same output";
        return Err(CommandFailure::new(ExitCode::Usage, fact)
            .next("leave out --json or --output properties"));
    }
    output::reserve_stdout();
    let ended = submit();
    let exit = match &ended {
        Ok(exit) => *exit,
        Err(failure) => failure.exit,
    };
    output::property("exit", &exit.code().to_string())?;
    ended
}

/// Prints the application's id.
///
/// # Errors
/// The output or the file of `--app-id-file` cannot be written; the application runs.
pub fn submitted(
    args: &Args,
    report: &ApplicationReport,
    run: Option<RunId>,
    json: bool,
) -> Result<(), CommandFailure> {
    let id = report.id.to_string();
    output::note(&format!("Submitted application {id}"));
    if let Some(path) = &args.app_id_file {
        let fact = format!("cannot write --app-id-file {}", path.display());
        std::fs::write(path, format!("{id}\n"))
            .or_fail_with(CommandFailure::of_file, fact)
            .map_err(|failure| {
                failure.next(format!("{id} runs; `heddle attach {id}` follows it"))
            })?;
    }
    if args.output == OutputFormat::Properties {
        output::property("application", &id)?;
        if report.tracking_url.len() <= URL_BYTES_MAX {
            output::property("tracking-url", &report.tracking_url)?;
        }
    }
    if json {
        return output::json(&serde_json::json!({
            "event": "submitted",
            "application": id,
            "run": run,
            "queue": report.queue,
            "tracking_url": report.tracking_url,
        }));
    }
    if args.detach {
        return output::line(&id);
    }
    output::note(&format!("{id}: submitted to queue {}", report.queue));
    Ok(())
}
