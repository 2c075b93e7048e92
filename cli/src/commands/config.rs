//! `heddle config`: prints the values of a job file, and the reference of all keys.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use heddle_hadoop::configuration::StatedValue;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::file::{KeyOverride, Shown, template};
use heddle_protocol::job_spec::{JobSpec, Location, SpecDigest};
use serde::Serialize;

use super::decisions::{self, effective_batch};
use super::submit::{self, Keys};
use crate::am_client;
use crate::cluster::{self, ClusterContext};
use crate::failure::{CommandFailure, CommandResult};
use crate::job_file::{JobArgs, key_value};
use crate::output;
use crate::runs;
use crate::site_defaults;

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Show each value of a job, its origin, and what it resolves to; without a job the site's defaults
    Show(Box<ShowArgs>),
    /// Print a job file with every key, its meaning and its default
    Template,
}

#[derive(Debug, clap::Args)]
pub struct ShowArgs {
    /// The job file (TOML)
    #[arg(value_name = "JOB")]
    file: Option<PathBuf>,
    /// Override a key, such as trainers.max=8; may be given several times
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value, requires = "file")]
    set: Vec<String>,
    /// Show what the same command line of `heddle submit` comes to
    #[arg(long, requires = "file")]
    submit: bool,
    #[command(flatten, next_help_heading = "Flags of `heddle submit`, with --submit")]
    pub keys: Keys,
}

pub fn config(command: ConfigCommand, json: bool) -> CommandResult {
    match command {
        ConfigCommand::Show(args) => {
            let ShowArgs { file, set, submit, keys } = *args;
            if !submit && !keys.is_empty() {
                let fact = "cannot show flags of `heddle submit` for another command";
                return Err(CommandFailure::new(ExitCode::Usage, fact).next("add --submit"));
            }
            match file {
                Some(file) => show(&JobArgs { file, set }, submit.then_some(&keys), json),
                None => show_site(json),
            }
        }
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
    /// Why the data has decided so.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    /// Whether it is a key of Hadoop's configuration.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    hadoop: bool,
}

/// Prints the keys that the site sets.
fn show_site(json: bool) -> CommandResult {
    let Some(rows) = site_defaults::shown()? else {
        let places: Vec<_> =
            site_defaults::places().iter().map(|path| path.display().to_string()).collect();
        output::note(&format!("there are no site defaults ({})", places.join(", ")));
        return Ok(ExitCode::Ok);
    };
    let mut columns = Vec::new();
    for shown in &rows {
        match json {
            true => output::json(&KeyView {
                key: shown.key,
                value: &shown.value,
                origin: shown.origin.to_string(),
                resolved: shown.resolved.clone(),
                reason: None,
                hadoop: false,
            })?,
            false => columns.push(row(shown, shown.resolved.as_deref(), None)),
        }
    }
    if !json {
        output::line(&output::columns(&columns))?;
    }
    Ok(ExitCode::Ok)
}

/// Key, value and origin as cells; `reason`: why the data has decided so.
fn row(shown: &Shown, resolved: Option<&str>, reason: Option<&str>) -> Vec<String> {
    let value = match resolved {
        Some(resolved) => format!("{} → {resolved}", shown.value),
        None => shown.value.clone(),
    };
    let reason = reason.map_or_else(String::new, |reason| format!("; {reason}"));
    vec![shown.key.to_owned(), value, format!("({}{reason})", shown.origin)]
}

/// Prints a job as `heddle run` would run it, or as `heddle submit` would with these flags.
fn show(args: &JobArgs, flags: Option<&Keys>, json: bool) -> CommandResult {
    let stated = flags.map(Keys::stated).transpose()?.unwrap_or_default();
    let outputs = outputs(args, flags.is_some(), &stated.job)?;
    let unknown_outputs = flags.is_some() && outputs.is_none();
    // The run's uuid is drawn when it starts.
    let mut job = args.read_with("<run>", outputs, &stated.job)?;
    let init = am_client::runtime()?.block_on(heddle_am::warm_start::find(&job.spec));
    let init = init.ok().flatten();
    // Data that is not there yet does not hide the rest.
    let decisions = am_client::runtime()?.block_on(async {
        if job.spec.undecided.is_empty() {
            return None;
        }
        let plan = heddle_am::input::plan(&job.spec, None).await.ok()?;
        decisions::resolve(&mut job.spec, &plan, init.as_ref(), &mut Vec::new()).await.ok()
    });
    let decisions = decisions.unwrap_or_default();
    let init = init.map(|init| init.location.to_string());
    let mut rows = Vec::new();
    for shown in &job.shown {
        let decided = decisions.iter().find(|decided| decided.key == shown.key);
        let reason = decided.map(|decided| decided.reason.as_str());
        let resolved = match (shown.key, &shown.resolved) {
            ("run.work-dir", None) => Some(work_dir(&job.spec)?),
            (_, None) if let Some(decided) = decided => Some(decided.value.clone()),
            ("model.init", _) if init.is_some() => init.clone(),
            // Without a cluster the home on HDFS is unknown.
            ("checkpoint.dir", _) if job.default_checkpoint_dir && unknown_outputs => None,
            ("output.model", _) if job.default_output && unknown_outputs => None,
            (_, resolved) => resolved.clone(),
        };
        if json {
            output::json(&KeyView {
                key: shown.key,
                value: &shown.value,
                origin: shown.origin.to_string(),
                resolved,
                reason,
                hadoop: false,
            })?;
            continue;
        }
        rows.push(row(shown, resolved.as_deref(), reason));
    }
    for StatedValue { key, value, from } in stated.hadoop {
        match json {
            true => output::json(&KeyView {
                key: &key,
                value: &value,
                origin: from,
                resolved: None,
                reason: None,
                hadoop: true,
            })?,
            false => rows.push(vec![key, value, format!("({from}, for Hadoop's configuration)")]),
        }
    }
    if json {
        output::json(&serde_json::json!({
            "effective_batch": job.spec.effective_batch(),
            "digest": SpecDigest::of(&job.spec),
        }))?;
        return Ok(ExitCode::Ok);
    }
    output::line(&output::columns(&rows))?;
    output::line("")?;
    output::line(&effective_batch(&job.spec))?;
    Ok(ExitCode::Ok)
}

/// The parent of default outputs on the cluster, if the job is for one and its configuration is there.
fn outputs(
    args: &JobArgs,
    is_submitted: bool,
    flags: &[KeyOverride],
) -> Result<Option<Location>, CommandFailure> {
    if !is_submitted || !cluster::is_named() {
        return Ok(None);
    }
    let staging = args.read_with("<run>", None, flags)?.spec.submit.staging;
    let outputs = async { submit::outputs(&ClusterContext::with_staging(staging)?) };
    am_client::runtime()?.block_on(outputs).map(Some)
}

fn work_dir(spec: &JobSpec) -> Result<String, CommandFailure> {
    let dir = match &spec.run.work_dir {
        Some(dir) => dir.clone(),
        None => runs::work_dir(None::<&Path>)?,
    };
    Ok(dir.display().to_string())
}
