//! `heddle config`: prints the values of a job file, and the reference of all keys.

use std::path::Path;

use clap::Subcommand;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::spec::{BatchSize, Consistency, JobSpec, SpecDigest, file::template};
use serde::Serialize;

use crate::am_client;
use crate::failure::{CommandFailure, CommandResult};
use crate::job_file::JobArgs;
use crate::output;
use crate::runs;

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Show each value of a job, its origin, and what it resolves to
    Show(JobArgs),
    /// Print a job file with every key, its meaning and its default
    Template,
}

pub fn config(command: ConfigCommand, json: bool) -> CommandResult {
    match command {
        ConfigCommand::Show(job) => show(&job, json),
        ConfigCommand::Template => {
            output::line(template().trim_end())?;
            Ok(ExitCode::Ok)
        }
    }
}

/// A key as `--json` shows it.
#[derive(Serialize)]
struct KeyView<'a> {
    key: &'a str,
    value: &'a str,
    origin: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    resolved: Option<String>,
}

fn show(args: &JobArgs, json: bool) -> CommandResult {
    // The run's uuid is drawn when it starts.
    let mut job = args.read("<run>")?;
    let given = job.spec.training.batch;
    if given == BatchSize::Auto {
        // Data that is not there yet does not hide the rest.
        let _unresolved = am_client::runtime()?.block_on(async {
            let plan = heddle_am::input::plan(&job.spec).await?;
            heddle_am::input::resolve_batch(&mut job.spec, &plan).await
        });
    }
    let mut rows = Vec::new();
    for shown in &job.shown {
        let resolved = match (shown.key, &shown.resolved) {
            ("run.work-dir", None) => Some(work_dir(&job.spec)?),
            ("training.batch", None) if given == BatchSize::Auto => {
                job.spec.training.batch.rows().map(|rows| rows.to_string())
            }
            (_, resolved) => resolved.clone(),
        };
        if json {
            output::json(&KeyView {
                key: shown.key,
                value: &shown.value,
                origin: shown.origin.to_string(),
                resolved,
            })?;
            continue;
        }
        let value = match resolved {
            Some(resolved) => format!("{} → {resolved}", shown.value),
            None => shown.value.clone(),
        };
        rows.push(vec![shown.key.to_owned(), value, format!("({})", shown.origin)]);
    }
    if json {
        output::json(&serde_json::json!({
            "effective_batch": job.spec.training.effective_batch(),
            "digest": SpecDigest::of(&job.spec),
        }))?;
        return Ok(ExitCode::Ok);
    }
    output::line(&output::columns(&rows))?;
    output::line("")?;
    output::line(&effective_batch(&job.spec))?;
    Ok(ExitCode::Ok)
}

/// The number of rows of one update, as text.
#[must_use]
pub fn effective_batch(spec: &JobSpec) -> String {
    let training = &spec.training;
    let (Some(batch), Some(rows)) = (training.batch.rows(), training.effective_batch()) else {
        return "effective batch: by the number of records, when the job starts".to_owned();
    };
    match training.consistency {
        Consistency::Bsp => {
            format!("effective batch: {rows} rows an update ({} lanes × {})", training.lanes, batch)
        }
        Consistency::Asp => format!("effective batch: {rows} rows an update"),
    }
}

fn work_dir(spec: &JobSpec) -> Result<String, CommandFailure> {
    let dir = match &spec.run.work_dir {
        Some(dir) => dir.clone(),
        None => runs::work_dir(None::<&Path>)?,
    };
    Ok(dir.display().to_string())
}
