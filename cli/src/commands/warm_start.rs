//! `model.init` of a command: the checkpoint that a job begins with, and how it is shown.

use heddle_am::warm_start::{InitialCheckpoint, find};
use heddle_protocol::job_spec::{JobSpec, Location};
use heddle_storage::checkpoint::CheckpointDir;
use heddle_storage::{StorageUrl, connect};

use crate::failure::{CommandFailure, OrFail};

/// Replaces `model.init` by the checkpoint that it names, and returns it with notes about it. A job that continues its own
/// checkpoints does not read another job's, which may be gone by then.
///
/// # Errors
/// Exit code 7 for a checkpoint that does not fit the job, 8 for a damaged or incomplete one; 5 or 6 if it cannot be read.
pub async fn resolve(
    spec: &mut JobSpec,
    fresh: bool,
) -> Result<(Option<InitialCheckpoint>, Vec<String>), CommandFailure> {
    if spec.model.init.is_none() || (!fresh && has_checkpoints(&spec.checkpoint.dir).await) {
        return Ok((None, Vec::new()));
    }
    let found = find(spec).await;
    let found = found.or_fail_with(
        |fact, error| CommandFailure::caused(error.exit_code(), fact, error),
        "the job cannot begin with another job's values",
    )?;
    let Some(init) = found else {
        return Ok((None, Vec::new()));
    };
    let mut notes: Vec<String> = init
        .damaged
        .iter()
        .map(|error| format!("model.init: an older checkpoint is used, since {error}"))
        .collect();
    notes.push(in_words(spec, &init));
    spec.model.init = Some(init.location.clone());
    Ok((Some(init), notes))
}

/// Whether a checkpoint is there. The ApplicationMaster decides what the job does with it.
async fn has_checkpoints(dir: &Location) -> bool {
    let names = async {
        let location = StorageUrl::parse(&dir.url()).ok()?;
        let storage = connect(&location).ok()?;
        CheckpointDir::existing(storage, location.path().clone()).names().await.ok()
    };
    names.await.is_some_and(|names| !names.is_empty())
}

/// Checkpoint and tables as text.
fn in_words(spec: &JobSpec, init: &InitialCheckpoint) -> String {
    let tables = spec.tables();
    let named = |keeps_state: bool| {
        let pairs = tables.iter().zip(&init.start.tables);
        let kept = pairs
            .filter(|(_, from)| from.as_ref().is_some_and(|from| from.keeps_state == keeps_state));
        kept.map(|(table, _)| table.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let mut parts = Vec::new();
    for (names, what) in [(named(true), "with optimizer state"), (named(false), "values alone")] {
        if !names.is_empty() {
            parts.push(format!("{names} ({what})"));
        }
    }
    format!("begins with {} of {}", parts.join(" and "), init.location)
}
