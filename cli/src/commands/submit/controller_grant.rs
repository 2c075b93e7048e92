//! The grant of a job whose numbers of containers the cluster's controller sets (`run.elastic`).

use heddle_am::grant::{self, WriteGrantError};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::grant::{ControllerGrant, GRANTS_DIR};
use heddle_protocol::job_spec::{Elasticity, JobSpec, Location};
use heddle_storage::{StorageUrl, connect};

use super::checked::CheckedJob;
use crate::cluster::storage_failure;
use crate::failure::{CommandFailure, OrFail};
use crate::waiting::{self, HDFS};

const NO_FOLDER: &str =
    "start heddle controller once: it makes the folder, or prints what the administrator has to do";

/// The folder of the controller that the job takes part in, if it does.
///
/// # Errors
/// Exit code 7 without `controller.dir`, and with a node label: the controller counts the nodes without one.
fn folder(spec: &JobSpec) -> Result<Option<&Location>, CommandFailure> {
    if spec.run.elastic == Elasticity::Off {
        return Ok(None);
    }
    let refused = |what: &str, next: &str| {
        let fact = format!("run.elastic = \"controller\" {what}");
        Err(CommandFailure::new(ExitCode::Input, fact).next(next))
    };
    if let Some(label) = &spec.yarn.node_label {
        return refused(
            &format!(
                "and yarn.node-label = {label:?} exclude each other: a controller counts the nodes without a label"
            ),
            "leave one of the two keys out",
        );
    }
    match &spec.controller.dir {
        Some(dir) if dir.as_local().is_none() => Ok(Some(dir)),
        Some(dir) => refused(
            &format!("needs controller.dir on HDFS (got {dir})"),
            "the administrator of the cluster makes that folder (docs/elastic.md)",
        ),
        None => refused(
            "needs controller.dir, and it is empty: this cluster has no controller",
            "ask the administrator for the controller's folder, or leave run.elastic out",
        ),
    }
}

/// Checks that there is a controller to take part in.
///
/// # Errors
/// Exit code 7 as of [`folder`], 5 if the folder of grants is missing.
pub async fn check(spec: &JobSpec) -> Result<(), CommandFailure> {
    let Some(dir) = folder(spec)? else { return Ok(()) };
    let grants = dir.join(GRANTS_DIR);
    let url = StorageUrl::parse(&grants.url()).or_fail(ExitCode::Input, "controller.dir")?;
    let storage = connect(&url).or_fail_with(storage_failure, "controller.dir")?;
    match waiting::on(HDFS, storage.stat(url.path())).await {
        Ok(_) => Ok(()),
        Err(error) if error.is_not_found() => {
            let fact = format!("there is no {grants} (controller.dir)");
            Err(CommandFailure::new(ExitCode::Denied, fact).next(NO_FOLDER))
        }
        Err(error) => Err(storage_failure("cannot read controller.dir", &error)),
    }
}

/// Writes the grant of a job that is about to be submitted.
///
/// # Errors
/// Exit code 5 without the right to write there, 6 if HDFS does not respond.
pub async fn write(job: &CheckedJob) -> Result<(), CommandFailure> {
    let Some(dir) = folder(&job.spec)? else { return Ok(()) };
    let application = job.application.to_string();
    let grant = ControllerGrant::new(&job.spec, &application, job.run.run, &job.secret, None);
    let written = waiting::on(HDFS, grant::write(&grant, dir)).await;
    written.map_err(|error| failed(dir, &error))
}

fn failed(dir: &Location, error: &WriteGrantError) -> CommandFailure {
    let fact = format!("cannot write the job's grant in {dir} (controller.dir)");
    match error {
        WriteGrantError::Storage(error) => storage_failure(&fact, error),
        error => CommandFailure::caused(ExitCode::Input, fact, error),
    }
}

/// Removes the grant of a job that was not submitted.
pub async fn remove(job: &CheckedJob) {
    if let Ok(Some(dir)) = folder(&job.spec) {
        let removed = grant::remove(&job.application.to_string(), dir).await;
        if let Err(error) = removed {
            eprintln!("warning: {}", failed(dir, &error).fact);
        }
    }
}
