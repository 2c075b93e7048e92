//! A job that continues from a mirror, since its checkpoint directory is lost (`--resume --from MIRROR`).
//!
//! The newest checkpoint of the mirror is copied into the job's new checkpoint directory, with the claims of its lineage.
//! The job then continues as from a directory of its own. Nothing is written to the mirror.

use heddle_protocol::view::WarningCode;
use heddle_storage::checkpoint::{
    CheckpointDir, CheckpointError, CommitError, DamagePolicy, Depth, Newest,
};
use heddle_storage::{StorageUrl, StorageUrlError, chain, connect};

use crate::claim::{self, ClaimError, ClaimRequest, LivenessCheck};
use crate::event_log::EventLog;

/// Why a job cannot continue from a mirror.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The mirror is not a location.
    #[error("--from {from} is not a valid location")]
    Location {
        /// The mirror.
        from: String,
        /// Why.
        source: StorageUrlError,
    },
    /// The mirror has no checkpoint.
    #[error("--from {from}: it has no checkpoint to continue from")]
    Empty {
        /// The mirror.
        from: String,
    },
    /// The checkpoint directory is in use by another job or has gone on.
    #[error(
        "checkpoint.dir = {dir} must be a new folder with --from; leave --from out to continue the job in it"
    )]
    NotNew {
        /// The checkpoint directory.
        dir: String,
    },
    /// The owner of the mirror may run.
    #[error(transparent)]
    Owner(#[from] ClaimError),
    /// The mirror or the checkpoint directory cannot be used.
    #[error("--from {from}")]
    Checkpoint {
        /// The mirror.
        from: String,
        /// Why.
        source: CheckpointError,
    },
    /// The copy could not be completed.
    #[error("cannot copy a checkpoint of {from} to checkpoint.dir")]
    Copy {
        /// The mirror.
        from: String,
        /// Why.
        source: CommitError,
    },
}

/// Copies the newest checkpoint of the mirror `from` into `to`, unless there is none or an earlier attempt has done so.
///
/// # Errors
/// See [`ImportError`].
pub async fn import(
    from: Option<&str>,
    to: &CheckpointDir,
    request: &ClaimRequest,
    judge: &impl LivenessCheck,
    events: &EventLog,
) -> Result<(), ImportError> {
    let Some(from) = from else {
        return Ok(());
    };
    let failed = |source| ImportError::Checkpoint { from: from.to_owned(), source };
    let location = StorageUrl::parse(from)
        .map_err(|source| ImportError::Location { from: from.to_owned(), source })?;
    let storage = connect(&location).map_err(CheckpointError::from).map_err(failed)?;
    let mirror = CheckpointDir::open(storage, location.path().clone()).await.map_err(failed)?;
    let Some(highest) = mirror.claimed().await.map_err(failed)?.last().copied() else {
        return Err(ImportError::Empty { from: from.to_owned() });
    };
    if let Some(own) = to.claimed().await.map_err(failed)?.last() {
        let own = to.claim(*own).await.map_err(failed)?;
        if claim::same_application(&own.owner, &request.owner) {
            return Ok(());
        }
        // An import that was interrupted has left claims of the mirror.
        let is_copy = match own.generation <= highest {
            true => mirror.claim(own.generation).await.map_err(failed)?.salt == own.salt,
            false => false,
        };
        if !is_copy {
            return Err(ImportError::NotNew { dir: to.show(to.root()) });
        }
    }
    let owner = mirror.claim(highest).await.map_err(failed)?;
    claim::may_follow(&mirror, &owner, request, judge).await?;
    copy_newest(from, &mirror, to, request.on_corrupt, events).await
}

async fn copy_newest(
    from: &str,
    mirror: &CheckpointDir,
    to: &CheckpointDir,
    on_corrupt: DamagePolicy,
    events: &EventLog,
) -> Result<(), ImportError> {
    let failed = |source| ImportError::Checkpoint { from: from.to_owned(), source };
    let lineage = mirror.lineage().await.map_err(failed)?;
    let mut below = None;
    loop {
        let newest = mirror.newest_below(&lineage, below, Depth::Shallow, on_corrupt).await;
        let Newest { checkpoint, damaged, .. } = newest.map_err(failed)?;
        for skipped in damaged {
            events.warn(
                WarningCode::ImportDamaged,
                format!("--from {from}: {} is damaged: {}", skipped.cut, chain(&skipped.error)),
            );
        }
        let Some(checkpoint) = checkpoint else {
            return Err(ImportError::Empty { from: from.to_owned() });
        };
        let cut = checkpoint.manifest.cut;
        match mirror.copy_to(cut, to, &|| Ok(())).await {
            Ok(()) => {
                tracing::info!(%cut, from, "checkpoint_imported");
                return Ok(());
            }
            // The sums are compared while the files are copied.
            Err(CommitError::NotDone(error))
                if error.is_damage() && on_corrupt == DamagePolicy::Previous =>
            {
                events.warn(
                    WarningCode::ImportDamaged,
                    format!("--from {from}: {cut} is damaged: {}", chain(&error)),
                );
                below = Some(cut);
            }
            Err(source) => return Err(ImportError::Copy { from: from.to_owned(), source }),
        }
    }
}
