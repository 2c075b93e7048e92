//! The choice of the checkpoint to restore.
//!
//! A checkpoint that is **unavailable** is not damaged. An older one in its place would lose work because a DataNode was down
//! for a moment. Such an error is returned; the caller retries and then ends the attempt. An older checkpoint is used only if
//! the newer one is **damaged**, no other copy of its files is good ([`load_usable`]), and with an error in the log. If
//! checkpoints exist and none is usable, the result is an error, never a start from initial values.

use crate::error::chain;
use heddle_protocol::ids::CutId;
use heddle_protocol::job_spec::{JobSpec, KeptPass};
use heddle_protocol::view::EvaluationView;
use tracing::{error, warn};
use uuid::Uuid;

use super::CheckpointError;
use super::files::Depth;
use super::layout::{DAMAGED, damaged_name, damaged_of};
use super::lineage::Lineage;
use super::load::StoredCheckpoint;
use super::root::DirRoot;
use super::shard_group::{PassedOver, load_usable};
use crate::error::{Op, Reason, StorageError, WriteError};
use crate::path::StorePath;

/// Reaction to a damaged newest checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DamagePolicy {
    /// Use the next older one.
    Previous,
    /// Fail.
    Fail,
}

/// Result of a check.
#[derive(Debug)]
pub enum Health {
    /// Every check passed.
    Good(Box<StoredCheckpoint>),
    /// Damaged, of a later version, or unavailable.
    Bad(CheckpointError),
}

/// Attempts to read a listing that changes at the same time.
const LOOKS: u32 = 8;

/// A damaged checkpoint that was skipped.
#[derive(Debug)]
pub struct SkippedCheckpoint {
    /// Its name.
    pub cut: CutId,
    /// Its damage.
    pub error: CheckpointError,
}

/// Result of the search for the newest valid checkpoint.
#[derive(Debug, Default)]
pub struct Newest {
    /// The newest that passes the checks; none only where the lineage has never had one.
    pub checkpoint: Option<StoredCheckpoint>,
    /// Newer ones that are damaged, newest first. They stay in place; the owner of the directory moves them
    /// ([`set_aside`](super::CheckpointDir::set_aside)) and reports them.
    pub damaged: Vec<SkippedCheckpoint>,
    /// Files of the checkpoint that are damaged, and that other copies stand in for. Also only reported here.
    pub passed_over: Vec<PassedOver>,
}

/// Result of one pass over the checkpoints.
enum Look {
    Found(Box<Newest>),
    /// A checkpoint of the list no longer exists.
    Moved,
    None {
        damaged: usize,
    },
}

/// One checkpoint of a listing.
#[derive(Debug)]
pub struct Candidate {
    /// Its name.
    pub cut: CutId,
    /// Its directory.
    pub dir: StorePath,
    /// Whether it counts: see [`Lineage`].
    pub in_lineage: bool,
    /// Its state.
    pub health: Health,
}

/// The checkpoint whose model is published.
#[derive(Debug)]
pub struct KeptCheckpoint {
    /// It.
    pub checkpoint: StoredCheckpoint,
    /// The pass, from 0, that was better and has no whole checkpoint.
    pub missing: Option<u32>,
}

/// See [`CheckpointDir::kept`](super::CheckpointDir::kept).
pub(super) async fn kept(
    root: &DirRoot,
    newest: StoredCheckpoint,
) -> Result<KeptCheckpoint, CheckpointError> {
    let Some(best) = best_pass(&newest) else {
        return Ok(KeptCheckpoint { checkpoint: newest, missing: None });
    };
    for candidate in listing(root, Depth::Shallow).await? {
        if let (true, Health::Good(checkpoint)) = (candidate.in_lineage, candidate.health)
            && checkpoint.manifest.best_pass == Some(best)
        {
            return Ok(KeptCheckpoint { checkpoint: *checkpoint, missing: None });
        }
    }
    let is_best = newest.manifest.evaluations.last().is_some_and(|last| last.pass == best);
    Ok(KeptCheckpoint { checkpoint: newest, missing: (!is_best).then_some(best) })
}

/// The best pass so far of a run that keeps it.
fn best_pass(newest: &StoredCheckpoint) -> Option<u32> {
    let spec: JobSpec = serde_json::from_value(newest.manifest.spec.clone()).ok()?;
    if spec.training.keep != KeptPass::Best {
        return None;
    }
    EvaluationView::best(&newest.manifest.evaluations).map(|best| best.pass)
}

/// All checkpoints, oldest first, each with its state. The listing continues after one that cannot be read, and leaves out
/// one that is removed meanwhile.
///
/// # Errors
/// The directory itself or its claims cannot be read.
pub(super) async fn listing(
    root: &DirRoot,
    depth: Depth,
) -> Result<Vec<Candidate>, CheckpointError> {
    for _ in 0..LOOKS {
        let lineage = root.lineage().await?;
        let (names, mut found) = (root.names().await?, Vec::new());
        for &cut in &names {
            let health = match root.load(cut, depth).await {
                Ok(checkpoint) => Health::Good(Box::new(checkpoint)),
                Err(_) if !root.names().await?.contains(&cut) => continue,
                Err(error) => Health::Bad(error),
            };
            let (dir, in_lineage) = (root.checkpoint_dir(cut)?, lineage.holds(cut));
            found.push(Candidate { cut, dir, in_lineage, health });
        }
        // Where all are gone, newer ones are there.
        if names.is_empty() || !found.is_empty() {
            return Ok(found);
        }
    }
    Err(changing(root))
}

/// The error after [`LOOKS`] attempts.
fn changing(root: &DirRoot) -> CheckpointError {
    let error = StorageError::new(Op::List, root.show(&root.path), Reason::Unavailable);
    error.because("checkpoints change while they are listed").into()
}

/// The same among those older than `below`. In the order of the lineage: generation, then number, never by time.
///
/// # Errors
/// As newest.
pub(super) async fn newest_below(
    root: &DirRoot,
    lineage: &Lineage,
    below: Option<CutId>,
    depth: Depth,
    on_corrupt: DamagePolicy,
) -> Result<Newest, CheckpointError> {
    for _ in 0..LOOKS {
        match look(root, lineage, below, depth, on_corrupt).await? {
            Look::Found(found) => return Ok(*found),
            Look::Moved => {}
            Look::None { damaged } => {
                none_left(root, lineage, damaged).await?;
                return Ok(Newest::default());
            }
        }
    }
    Err(changing(root))
}

/// One pass over the checkpoints, from the newest.
async fn look(
    root: &DirRoot,
    lineage: &Lineage,
    below: Option<CutId>,
    depth: Depth,
    on_corrupt: DamagePolicy,
) -> Result<Look, CheckpointError> {
    let mut damaged = Vec::new();
    let names = root.names().await?;
    let counts = |cut: &&CutId| lineage.holds(**cut) && below.is_none_or(|below| **cut < below);
    for &cut in names.iter().rev().filter(counts) {
        match load_usable(root, cut, depth).await {
            Ok((checkpoint, passed_over)) => {
                if !damaged.is_empty() {
                    warn!(%cut, damaged = damaged.len(), "older_checkpoint_used");
                }
                for passed in &passed_over {
                    warn!(%cut, error = %chain(&passed.error), "copy_passed_over");
                }
                let checkpoint = Some(checkpoint);
                return Ok(Look::Found(Box::new(Newest { checkpoint, damaged, passed_over })));
            }
            Err(error) => {
                // A predecessor that is still alive deletes an old checkpoint only if newer ones exist: a missing
                // checkpoint means that this list is out of date.
                if !root.names().await?.contains(&cut) {
                    return Ok(Look::Moved);
                }
                if !error.is_damage() || on_corrupt == DamagePolicy::Fail {
                    return Err(error);
                }
                error!(%cut, error = %chain(&error), "checkpoint_damaged");
                damaged.push(SkippedCheckpoint { cut, error });
            }
        }
    }
    Ok(Look::None { damaged: damaged.len() })
}

/// The result if no checkpoint was found: an error unless there never was one.
async fn none_left(
    root: &DirRoot,
    lineage: &Lineage,
    mut damaged: usize,
) -> Result<(), CheckpointError> {
    damaged += set_aside_of(root, lineage).await?;
    if damaged > 0 {
        return Err(CheckpointError::NoneUsable { dir: root.show(&root.path), damaged });
    }
    match lineage.base() {
        Some(cut) => Err(CheckpointError::Lost { dir: root.show(&root.path), cut }),
        None => Ok(()),
    }
}

/// Number of checkpoints of the lineage that were moved to `damaged/`.
async fn set_aside_of(root: &DirRoot, lineage: &Lineage) -> Result<usize, CheckpointError> {
    let children = root.children(&root.at(DAMAGED)?).await?;
    let cuts = children.iter().filter_map(|entry| damaged_of(entry.name()));
    Ok(cuts.filter(|cut| lineage.holds(*cut)).count())
}

/// Moves a damaged checkpoint to `damaged/`. Deletes nothing: a user may still recover data from it. Returns its present
/// directory; a checkpoint that was moved before stays there.
///
/// # Errors
/// Errors of the storage; `Unknown` if it does not exist and was never moved.
pub(super) async fn set_aside(root: &DirRoot, cut: CutId) -> Result<StorePath, CheckpointError> {
    let from = root.checkpoint_dir(cut)?;
    let damaged = root.at(DAMAGED)?;
    root.make(&damaged).await?;
    let to = root.under(&[DAMAGED, &damaged_name(cut, Uuid::new_v4())])?;
    let error = match root.storage.rename(&from, &to).await {
        Ok(()) => return Ok(to),
        Err(error) => error,
    };
    // Moved by this call, whose response was lost, or by an earlier one.
    let earlier = root.children(&damaged).await?;
    if let Some(there) = earlier.into_iter().find(|entry| damaged_of(entry.name()) == Some(cut))
        && root.storage.stat(&from).await.is_err_and(|gone| gone.is_not_found())
    {
        return Ok(there.path);
    }
    Err(match error {
        WriteError::NotDone(error) if error.is_not_found() => {
            CheckpointError::Unknown { dir: root.show(&root.path), cut }
        }
        error => StorageError::from(error).into(),
    })
}
