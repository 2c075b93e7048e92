//! Checks of `checkpoint.mirrors` before a job starts: a mirror is a folder of its own that can be written, and it holds no
//! checkpoints of another run.
//!
//! After the start a mirror that fails is only reported.

use std::path::{Path, PathBuf};

use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::{CheckpointSpec, Location};
use heddle_storage::checkpoint::{CheckpointDir, CheckpointError};
use heddle_storage::{StorageUrl, connect};

use crate::commands::checkpoint_source::{self, unusable};
use crate::failure::{CommandFailure, OrFail};

/// Checks each mirror. `trying`: by making a few small files beside it and removing them again.
///
/// # Errors
/// Exit code 7 for a folder that cannot be a mirror of the checkpoint directory, 5 if access is denied or a quota is used up, 6
/// if its storage does not respond.
pub(super) async fn mirrors(spec: &CheckpointSpec, trying: bool) -> Result<(), CommandFailure> {
    for mirror in &spec.mirrors {
        let fact = format!("checkpoint.mirrors = {mirror} cannot be used");
        if is_linked(mirror, &spec.dir) {
            return Err(CommandFailure::new(
                ExitCode::Input,
                format!("{fact}: it is checkpoint.dir = {}, or lies in it", spec.dir),
            ));
        }
        let location = StorageUrl::parse(&mirror.url()).or_fail(ExitCode::Input, &fact)?;
        let storage = connect(&location).or_fail_with(unusable, &fact)?;
        if !location.is_local() {
            storage.reach().await.or_fail_with(unusable, &fact)?;
        }
        let path = location.path().clone();
        CheckpointDir::rehearse(storage.clone(), path.clone(), trying)
            .await
            .or_fail_with(checkpoint_source::failure, &fact)?;
        is_of_this_job(&CheckpointDir::existing(storage, path), &spec.dir)
            .await
            .or_fail_with(checkpoint_source::failure, &fact)?;
    }
    Ok(())
}

/// Fails if the mirror and the checkpoint directory have claims of one generation by different processes.
async fn is_of_this_job(mirror: &CheckpointDir, dir: &Location) -> Result<(), CheckpointError> {
    let Ok(location) = StorageUrl::parse(&dir.url()) else {
        // Its own check reports it.
        return Ok(());
    };
    let own = CheckpointDir::existing(connect(&location)?, location.path().clone());
    let claimed = own.claimed().await?;
    for generation in mirror.claimed().await?.into_iter().rev() {
        if !claimed.contains(&generation) {
            continue;
        }
        let (own, there) = (own.claim(generation).await?, mirror.claim(generation).await?);
        if own.salt != there.salt {
            let dir = mirror.show(mirror.root());
            let (expected, found) = (own.run, there.run);
            return Err(CheckpointError::OtherRun { dir, generation, expected, found });
        }
        return Ok(());
    }
    Ok(())
}

/// Whether links make one local folder a part of another one.
fn is_linked(one: &Location, other: &Location) -> bool {
    let (Some(one), Some(other)) = (one.as_local(), other.as_local()) else {
        return false;
    };
    resolved(one).starts_with(resolved(other)) || resolved(other).starts_with(resolved(one))
}

/// The path without links, as far as it exists.
fn resolved(path: &Path) -> PathBuf {
    for existing in path.ancestors() {
        if let Ok(real) = existing.canonicalize() {
            return match path.strip_prefix(existing) {
                Ok(rest) => real.join(rest),
                Err(_) => real,
            };
        }
    }
    path.to_owned()
}
