//! The run that a job with default folders continues.
//!
//! With `checkpoint.dir` in the job file the directory itself says what was done before, and the
//! ApplicationMaster reads it there. Default folders carry the run's uuid, so that the run has to be
//! found first: the newest one of the same job file and name that is over and unfinished.

use std::path::Path;

use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::spec::{Difference, JobSpec};
use heddle_storage::checkpoint::{CheckpointDir, Depth, OnCorrupt};
use heddle_storage::{Location, connect};

use super::unfinished;
use crate::commands::checkpoint::parse_cut;
use crate::failure::Failure;
use crate::runs::{self, LocalRun};

/// A run to be continued.
pub struct UnfinishedRun {
    /// The run.
    pub run: LocalRun,
    /// What its default folders carry.
    pub label: String,
}

/// The newest unfinished run of that job file and name that has left checkpoints in default folders.
/// Nothing when a later one has finished: what came before that is history.
pub fn find(work_dir: &Path, job_file: &Path, name: &str) -> Option<UnfinishedRun> {
    for run in runs::all(work_dir) {
        let Some(request) = run.request() else {
            continue;
        };
        if request.job_file != job_file || run.file.name != name || !request.default_checkpoint_dir
        {
            continue;
        }
        if !unfinished(&run) {
            return None;
        }
        let left = run
            .dir
            .spec()
            .ok()
            .and_then(|spec| spec.checkpoint.dir.as_local().map(has_checkpoint))
            .unwrap_or(false);
        if left {
            return Some(UnfinishedRun { run, label: request.label });
        }
    }
    None
}

/// Whether a checkpoint exists: a run that failed before its first one has nothing to continue from,
/// and whoever mends its job file shall not be told that the file has changed.
fn has_checkpoint(dir: &Path) -> bool {
    std::fs::read_dir(dir).is_ok_and(|mut entries| {
        entries.any(|entry| {
            entry.is_ok_and(|entry| parse_cut(&entry.file_name().to_string_lossy()).is_ok())
        })
    })
}

/// Whether the run has trained no step, so that nothing is lost when training starts anew. What cannot be read counts as
/// trained.
pub async fn is_untrained(found: &UnfinishedRun) -> bool {
    let newest = async {
        let spec = found.run.dir.spec().ok()?;
        let location = Location::parse(&spec.checkpoint.dir.url()).ok()?;
        let storage = connect(&location).ok()?;
        let dir = CheckpointDir::existing(storage, location.path().clone());
        let lineage = dir.lineage().await.ok()?;
        let newest = dir.newest(&lineage, Depth::Shallow, OnCorrupt::Fail);
        newest.await.ok()?.checkpoint
    };
    newest.await.is_some_and(|checkpoint| checkpoint.manifest.is_untrained())
}

/// Refuses a job that means something else than the run it would continue.
///
/// # Errors
/// Exit code 7 with the keys that differ.
pub fn check(found: &UnfinishedRun, spec: &JobSpec, resume: bool) -> Result<(), Failure> {
    let short = found.run.file.run.short();
    let before = found.run.dir.spec().map_err(|error| {
        Failure::caused(
            ExitCode::Input,
            format!("the job of the unfinished run {short} cannot be read"),
            &error,
        )
        .next("--fresh trains anew")
    })?;
    let differences = spec.differences(&before.keys());
    let told = |difference: &&Difference| {
        let Difference { key, before, now, .. } = difference;
        let allowed = match difference.allowed_on_resume {
            true => " (--resume allows it)",
            false => "",
        };
        format!("{key}: {before} before, {now} now{allowed}")
    };
    let refused: Vec<String> = differences
        .iter()
        .filter(|difference| !(resume && difference.allowed_on_resume))
        .map(|difference| told(&difference))
        .collect();
    if refused.is_empty() {
        return Ok(());
    }
    let all_allowed = differences.iter().all(|difference| difference.allowed_on_resume);
    let next = match all_allowed {
        true => "--resume continues it with the new values, --fresh trains anew",
        false => "set back what changes the meaning of its checkpoints, or --fresh trains anew",
    };
    let mut failure = Failure::new(
        ExitCode::Input,
        format!("the unfinished run {short} of this job has other values"),
    )
    .next(next);
    failure.causes = refused;
    Err(failure)
}
