//! Finds the checkpoint that a job begins with (`model.init`), and checks whether it fits, before anything is claimed.
//!
//! `model.init` names one checkpoint, or the folder of a job's checkpoints, whose newest complete one counts, or that of its best
//! pass where the job keeps it. A damaged one is
//! passed over with a warning, by `checkpoint.on-corrupt`. The job then names the checkpoint that was found, so that each
//! later start from initial values takes the same one. Pservers read its files and check their sums.

use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::warm_start::{WarmStart, WarmStartError, job_of, warm_start};
use heddle_protocol::job_spec::{JobSpec, Location, OnCorrupt};
use heddle_storage::checkpoint::{
    CheckpointDir, CheckpointError, DamagePolicy, Depth, KeptCheckpoint, StoredCheckpoint,
};
use heddle_storage::{StorageError, StorageUrl, StorageUrlError, connect};

/// Name of a checkpoint's manifest.
const MANIFEST: &str = "MANIFEST.json";

/// The checkpoint that a job begins with.
#[derive(Clone, Debug)]
pub struct InitialCheckpoint {
    /// Its directory.
    pub location: Location,
    /// Its job.
    pub job: JobSpec,
    /// What the job takes over.
    pub start: WarmStart,
    /// Newer ones that are damaged, in words.
    pub damaged: Vec<String>,
}

/// Why a job cannot begin with what `model.init` names.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// No place of a storage.
    #[error("model.init")]
    Location(#[from] StorageUrlError),
    /// It cannot be read.
    #[error("model.init")]
    Storage(#[from] StorageError),
    /// It is damaged, or cannot be read.
    #[error("model.init")]
    Checkpoint(#[from] CheckpointError),
    /// Files without a manifest.
    #[error(
        "model.init: {0} is not a complete checkpoint: it has no {MANIFEST}; name a complete one, or the folder of all"
    )]
    Unfinished(Location),
    /// Neither of both kinds of folder.
    #[error(
        "model.init: {0} is neither a checkpoint (it has no {MANIFEST}) nor a folder of checkpoints (it has no file HEDDLE)"
    )]
    NoCheckpoint(Location),
    /// A folder without checkpoints.
    #[error("model.init: {0} has no complete checkpoint yet")]
    Empty(Location),
    /// The tables do not fit.
    #[error("model.init: cannot begin with {location}")]
    Tables {
        /// The checkpoint.
        location: Location,
        /// Why not.
        source: WarmStartError,
    },
}

impl FindError {
    /// The exit code of a job that ends with it.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Storage(error) => error.class().exit_code(),
            Self::Checkpoint(error) => error.class().exit_code(),
            Self::Unfinished(_) | Self::Tables { source: WarmStartError::Spec(_), .. } => {
                ExitCode::Checkpoint
            }
            Self::Location(_) | Self::NoCheckpoint(_) | Self::Empty(_) | Self::Tables { .. } => {
                ExitCode::Input
            }
        }
    }
}

/// The checkpoint that the job begins with; `None` without `model.init`.
///
/// # Errors
/// It cannot be used.
pub async fn find(spec: &JobSpec) -> Result<Option<InitialCheckpoint>, FindError> {
    let Some(named) = &spec.model.init else {
        return Ok(None);
    };
    let url = StorageUrl::parse(&named.url())?;
    let storage = connect(&url)?;
    let names: Vec<String> =
        storage.list(url.path()).await?.iter().map(|entry| entry.name().to_owned()).collect();
    let has = |name: &str| names.iter().any(|found| found == name);
    let (location, checkpoint, damaged) = if has(MANIFEST) {
        let checkpoint = match StoredCheckpoint::load(&*storage, url.path(), Depth::Shallow).await {
            // Pservers read the copies that are good.
            Err(error) if error.is_damage() => {
                StoredCheckpoint::readable(&url).await.map_err(|_| error)?.1
            }
            checkpoint => checkpoint?,
        };
        (named.clone(), checkpoint, Vec::new())
    } else if names.iter().any(|name| name.starts_with("shard-")) {
        return Err(FindError::Unfinished(named.clone()));
    } else {
        let dir = match CheckpointDir::open(storage, url.path().clone()).await {
            Err(CheckpointError::NotOurs { .. }) => {
                return Err(FindError::NoCheckpoint(named.clone()));
            }
            dir => dir?,
        };
        let on_corrupt = match spec.checkpoint.on_corrupt {
            OnCorrupt::Previous => DamagePolicy::Previous,
            OnCorrupt::Fail => DamagePolicy::Fail,
        };
        let newest = dir.newest(&dir.lineage().await?, Depth::Shallow, on_corrupt).await?;
        let checkpoint = newest.checkpoint.ok_or_else(|| FindError::Empty(named.clone()))?;
        let damaged = newest.damaged.iter().map(|skipped| heddle_storage::chain(&skipped.error));
        let mut damaged: Vec<String> = damaged.collect();
        let KeptCheckpoint { checkpoint, missing } = dir.kept(checkpoint).await?;
        damaged.extend(missing.map(|pass| {
            format!("pass {} was the best (training.keep), and has no whole checkpoint", pass + 1)
        }));
        (named.join(&checkpoint.manifest.cut.to_string()), checkpoint, damaged)
    };
    if checkpoint.manifest.initial {
        return Err(CheckpointError::Untrained { dir: location.to_string() }.into());
    }
    let start = job_of(&checkpoint.manifest.spec)
        .and_then(|before| Ok((warm_start(spec, &before)?, before)));
    match start {
        Ok((start, job)) => Ok(Some(InitialCheckpoint { location, job, start, damaged })),
        Err(source) => Err(FindError::Tables { location, source }),
    }
}
