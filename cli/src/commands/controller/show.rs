//! `heddle controller plan` and `heddle controller status`.

use std::sync::Arc;

use heddle_am::report::format;
use heddle_controller::status::{ControllerStatus, JobStatus};
use heddle_controller_core::{ContainerCounts, plan as plan_of};
use heddle_protocol::exit_code::ExitCode;
use heddle_storage::read_small;

use super::observer::Observer;
use super::place::Place;
use crate::cluster::{ClusterContext, storage_failure};
use crate::failure::{CommandFailure, CommandResult, OrFail};
use crate::output;

/// A status of some thousand jobs.
const STATUS_BYTES_MAX: usize = 64 << 20;

pub async fn plan(place: &Place, json: bool) -> CommandResult {
    let cluster = Arc::new(ClusterContext::load()?);
    cluster.reach().await?;
    let dir = place.open(&cluster).await?;
    let mut observer = Observer::new(cluster, dir);
    let found = observer.look().await?;
    let plan = plan_of(&found.input.cluster, &found.input.jobs, observer.now_ms());
    for problem in &found.problems {
        output::note(problem);
    }
    if json {
        output::json(&plan)?;
        return Ok(ExitCode::Ok);
    }
    for decision in &plan.decisions {
        output::line(&decision.to_string())?;
    }
    for waiting in &plan.waiting {
        output::line(&waiting.to_string())?;
    }
    if plan.decisions.is_empty() {
        output::note(&format!("{} jobs take part, and keep their sizes", found.input.jobs.len()));
    }
    Ok(ExitCode::Ok)
}

pub async fn status(place: &Place, json: bool) -> CommandResult {
    let cluster = ClusterContext::load()?;
    cluster.reach().await?;
    let dir = place.open(&cluster).await?;
    let bytes = match read_small(dir.storage(), &dir.status(), STATUS_BYTES_MAX).await {
        Ok(bytes) => bytes,
        Err(error) if error.is_not_found() => {
            return Err(CommandFailure::new(ExitCode::Input, "a controller has not led here yet")
                .next("start one with `heddle controller`"));
        }
        Err(error) => return Err(storage_failure("cannot read the controller's status", &error)),
    };
    let status: ControllerStatus = serde_json::from_slice(&bytes)
        .or_fail(ExitCode::Input, "the controller's status is damaged")?;
    if json {
        output::json(&status)?;
        return Ok(ExitCode::Ok);
    }
    let at = format::time(status.at_ms);
    output::note(&format!("{}; {} nodes; round of {at}", status.leader.text(), status.nodes));
    status.problems.iter().for_each(|problem| output::note(problem));
    if status.jobs.is_empty() {
        output::note("no job takes part");
        return Ok(ExitCode::Ok);
    }
    let head = ["job", "user", "queue", "min", "wanted", "present", "max", "score", "waits for"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(status.jobs.iter().map(row));
    output::line(&output::columns(&rows))?;
    let changes = status.jobs.iter().filter(|job| !job.last_change.is_empty());
    for job in changes {
        output::line(&job.last_change)?;
    }
    Ok(ExitCode::Ok)
}

fn row(job: &JobStatus) -> Vec<String> {
    let size = |counts: ContainerCounts| format!("{}+{}", counts.trainers, counts.pservers);
    vec![
        job.job.clone(),
        job.user.clone(),
        job.queue.clone(),
        size(job.min),
        size(job.wanted),
        size(job.present),
        size(job.max),
        format!("{:.2}", job.score),
        job.waits_for.clone(),
    ]
}
