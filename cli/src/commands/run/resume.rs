//! The run that a job with default folders continues.
//!
//! With `checkpoint.dir` in the job file the ApplicationMaster reads the earlier state from that directory. Default
//! folders contain the run's UUID, so the run must be found first: the newest ended, unfinished run of the same job
//! file and name.

use std::path::Path;

use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::{Difference, JobSpec, identity};
use heddle_storage::checkpoint::{CheckpointDir, DamagePolicy, Depth};
use heddle_storage::{StorageUrl, connect};

use crate::commands::checkpoint_source::parse_cut;
use crate::failure::{CommandFailure, OrFail};
use crate::runs::{self, LocalRun, RunRequest};

/// A run that can be continued.
pub struct UnfinishedRun {
    /// The run.
    pub run: LocalRun,
    /// The label in its default folders.
    pub label: String,
}

/// The newest unfinished run of that job file and name with checkpoints in default folders. `None` if a later run has
/// finished.
pub fn find(work_dir: &Path, job_file: &Path, name: &str) -> Option<UnfinishedRun> {
    for run in runs::all(work_dir) {
        let Some(request) = run.request() else {
            continue;
        };
        if request.job_file != job_file || run.file.name != name || !request.default_checkpoint_dir
        {
            continue;
        }
        if !run.is_unfinished() {
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

/// What a run begins its events with: a warning if the newest unfinished run of the job had a checkpoint directory that is gone, so that
/// this one cannot continue it. Runs that ended before their first checkpoint do not count. `request`: of the run that starts;
/// `may_continue`: whether it would continue another one that it found.
pub async fn warnings(
    may_continue: bool,
    work_dir: &Path,
    request: &RunRequest,
    spec: &JobSpec,
) -> Vec<String> {
    match may_continue {
        true => lost_dir(work_dir, request, spec).await.into_iter().collect(),
        false => Vec::new(),
    }
}

async fn lost_dir(work_dir: &Path, request: &RunRequest, spec: &JobSpec) -> Option<String> {
    for run in runs::all(work_dir) {
        let (Some(before), Ok(its)) = (run.request(), run.dir.spec()) else {
            continue;
        };
        let same = match request.default_checkpoint_dir {
            true => {
                before.default_checkpoint_dir
                    && before.job_file == request.job_file
                    && run.file.name == spec.name
            }
            false => its.checkpoint.dir == spec.checkpoint.dir,
        };
        if !same || run.last_view().is_some_and(|view| view.checkpoints.is_empty()) {
            continue;
        }
        if !run.is_unfinished() || !is_gone(&its.checkpoint.dir.url()).await {
            return None;
        }
        let (short, was, dir) = (run.file.run.short(), run.state().word(), &its.checkpoint.dir);
        let next = match its.checkpoint.mirrors.first() {
            Some(mirror) => format!("; --resume --from {mirror} continues from a mirror"),
            None => String::new(),
        };
        return Some(format!(
            "training starts from the beginning: the checkpoint directory {dir} of run {short}, which {was} unfinished, \
             is gone{next}"
        ));
    }
    None
}

/// Whether a directory (a URL) does not exist or is empty. One that cannot be read is there.
async fn is_gone(url: &str) -> bool {
    let listed = async {
        let location = StorageUrl::parse(url).ok()?;
        Some(connect(&location).ok()?.list(location.path()).await)
    };
    match listed.await {
        Some(Ok(entries)) => entries.is_empty(),
        Some(Err(error)) => error.is_not_found(),
        None => false,
    }
}

/// Whether a checkpoint exists. A run that failed before its first checkpoint cannot be continued, and its corrected
/// job file must not be rejected as changed.
fn has_checkpoint(dir: &Path) -> bool {
    std::fs::read_dir(dir).is_ok_and(|mut entries| {
        entries.any(|entry| {
            entry.is_ok_and(|entry| parse_cut(&entry.file_name().to_string_lossy()).is_ok())
        })
    })
}

/// Whether the run has not trained a step, so that nothing is lost when training starts over. An unreadable run counts
/// as trained.
pub async fn is_untrained(found: &UnfinishedRun) -> bool {
    let newest = async {
        let spec = found.run.dir.spec().ok()?;
        let location = StorageUrl::parse(&spec.checkpoint.dir.url()).ok()?;
        let storage = connect(&location).ok()?;
        let dir = CheckpointDir::existing(storage, location.path().clone());
        let lineage = dir.lineage().await.ok()?;
        let newest = dir.newest(&lineage, Depth::Shallow, DamagePolicy::Fail);
        newest.await.ok()?.checkpoint
    };
    newest.await.is_some_and(|checkpoint| checkpoint.manifest.is_untrained())
}

/// Rejects a job with other values than the run that it would continue.
///
/// # Errors
/// Exit code 7 with the keys that differ.
pub fn check(found: &UnfinishedRun, spec: &JobSpec, resume: bool) -> Result<(), CommandFailure> {
    let short = found.run.file.run.short();
    let fact = format!("cannot read the job of the unfinished run {short}");
    let before = found.run.dir.spec().or_fail(ExitCode::Input, fact);
    let before = before.map_err(|failure| failure.next("pass --fresh to start over"))?;
    let differences = identity::differences(spec, &before);
    let describe = |difference: &&Difference| {
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
        .map(|difference| describe(&difference))
        .collect();
    if refused.is_empty() {
        return Ok(());
    }
    let all_allowed = differences.iter().all(|difference| difference.allowed_on_resume);
    let next = match all_allowed {
        true => "pass --resume to continue it with the new values, or --fresh to start over",
        false => "restore the values that may not change on resume, or pass --fresh to start over",
    };
    let mut failure = CommandFailure::new(
        ExitCode::Input,
        format!("the unfinished run {short} of this job has other values"),
    )
    .next(next);
    failure.causes = refused;
    Err(failure)
}
