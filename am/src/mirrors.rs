//! Mirrors: each checkpoint is copied to other directories after its commit (`checkpoint.mirrors`).
//!
//! Each mirror has a task of its own, so a mirror that hangs delays neither checkpoints nor other mirrors. A failed copy is
//! tried again until it succeeds or a newer checkpoint exists, which is copied instead. A failure never fails a checkpoint:
//! it is in the view, and a warning is printed when it lasts.
//!
//! A mirror is a checkpoint directory with the same claims (`heddle_storage::checkpoint`). It has no journal: a job that
//! continues from it begins with the figures of the manifest.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use heddle_backoff::Backoff;
use heddle_protocol::ids::{CutId, Generation};
use heddle_protocol::job_spec::Location;
use heddle_protocol::view::{JobEvent, MirrorView, WarningCode};
use heddle_storage::checkpoint::{CheckpointDir, CheckpointError, CommitError, PassedOver};
use heddle_storage::{StorageUrl, chain, connect};
use tokio::sync::{mpsc, watch};
use tracing::{Instrument as _, info_span};

use crate::delay_warning::DelayWarning;
use crate::event_log::EventLog;
use crate::wall_clock::wall_ms;

/// Waits between two attempts to copy.
const RETRY: Backoff = Backoff::new(1_000, 30_000);
/// How long the end of a job waits for copies under way.
const FINISH_LIMIT: Duration = Duration::from_secs(60);
/// Time between two looks at copies under way.
const FINISH_POLL: Duration = Duration::from_millis(50);

/// The checkpoint that mirrors should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorTarget {
    /// The newest checkpoint.
    pub cut: CutId,
    /// Checkpoints that a mirror must keep beyond `keep`.
    pub held: Vec<CutId>,
    /// Complete checkpoints that a mirror keeps.
    pub keep: usize,
    /// The generation of this process.
    pub generation: Generation,
}

/// The mirrors of a job.
#[derive(Clone, Debug, Default)]
pub struct Mirrors {
    targets: watch::Sender<Option<MirrorTarget>>,
    states: Arc<Mutex<Vec<MirrorState>>>,
}

/// The state of one mirror.
#[derive(Debug)]
struct MirrorState {
    dir: String,
    /// The newest checkpoint that this process has copied to it.
    checkpoint: Option<CutId>,
    /// Checkpoints committed since, and when the first of them was, ms since 1970.
    behind: u32,
    behind_since_ms: Option<u64>,
    error: Option<String>,
    failures: u64,
}

/// One mirror and its source.
struct Mirror {
    index: usize,
    source: CheckpointDir,
    location: Location,
    states: Arc<Mutex<Vec<MirrorState>>>,
}

/// The mirrors of a job file as directories to read from. One whose location cannot be used is left out: the task of the
/// mirror reports it.
pub fn sources(mirrors: &[Location]) -> Vec<CheckpointDir> {
    let open = |mirror: &Location| {
        let location = StorageUrl::parse(&mirror.url()).ok()?;
        let storage = connect(&location).ok()?;
        Some(CheckpointDir::existing(storage, location.path().clone()))
    };
    mirrors.iter().filter_map(open).collect()
}

/// Reports files of the base that are damaged, and that other copies stand in for.
pub fn report_passed_over(passed_over: &[PassedOver], events: &EventLog) {
    for PassedOver { cut, error } in passed_over {
        let error = chain(error);
        events.warn(
            WarningCode::CopyUsed,
            format!("checkpoint {cut}: another copy stands in for a file, since {error}"),
        );
    }
}

impl Mirrors {
    /// Starts a task for each mirror. Warnings go to `notices`.
    pub fn start(
        source: &CheckpointDir,
        mirrors: &[Location],
        notices: &mpsc::UnboundedSender<JobEvent>,
    ) -> Self {
        let (targets, _) = watch::channel(None);
        let state = |mirror: &Location| MirrorState {
            dir: mirror.to_string(),
            checkpoint: None,
            behind: 0,
            behind_since_ms: None,
            error: None,
            failures: 0,
        };
        let states = Arc::new(Mutex::new(mirrors.iter().map(state).collect()));
        for (index, location) in mirrors.iter().enumerate() {
            let mirror = Mirror {
                index,
                source: source.clone(),
                location: location.clone(),
                states: Arc::clone(&states),
            };
            let span = info_span!("mirror", dir = %location);
            tokio::spawn(mirror.run(targets.subscribe(), notices.clone()).instrument(span));
        }
        Self { targets, states }
    }

    /// A checkpoint was committed.
    pub fn committed(&self, target: MirrorTarget) {
        // Both under one lock: a copy that ends now compares its target with the newest one.
        let mut states = lock(&self.states);
        for state in &mut *states {
            if state.checkpoint != Some(target.cut) {
                state.behind = state.behind.saturating_add(1);
                state.behind_since_ms.get_or_insert_with(wall_ms);
            }
        }
        self.targets.send_replace(Some(target));
    }

    /// The states of all mirrors.
    #[must_use]
    pub fn views(&self) -> Vec<MirrorView> {
        let now = wall_ms();
        let view = |state: &MirrorState| MirrorView {
            dir: state.dir.clone(),
            checkpoint: state.checkpoint,
            behind: state.behind,
            late_ms: state.behind_since_ms.map_or(0, |since| now.saturating_sub(since)),
            failures: state.failures,
            error: state.error.clone(),
        };
        lock(&self.states).iter().map(view).collect()
    }

    /// Waits until each mirror has the newest checkpoint or fails, for at most a minute.
    pub async fn finish(&self) {
        let begun = Instant::now();
        let waits = |state: &MirrorState| state.behind > 0 && state.error.is_none();
        while lock(&self.states).iter().any(waits) && begun.elapsed() < FINISH_LIMIT {
            tokio::time::sleep(FINISH_POLL).await;
        }
    }
}

fn lock(states: &Mutex<Vec<MirrorState>>) -> std::sync::MutexGuard<'_, Vec<MirrorState>> {
    states.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mirror {
    async fn run(
        self,
        mut targets: watch::Receiver<Option<MirrorTarget>>,
        notices: mpsc::UnboundedSender<JobEvent>,
    ) {
        let mut delay = DelayWarning::new("a mirror of the checkpoints");
        let (mut opened, mut backoff) = (None, RETRY);
        while targets.changed().await.is_ok() {
            loop {
                let Some(target) = targets.borrow_and_update().clone() else {
                    break;
                };
                let warning = match self.copy(&mut opened, &target).await {
                    Ok(()) => {
                        backoff = RETRY;
                        self.copied(&target, &targets);
                        delay.over(Instant::now())
                    }
                    Err(error) => {
                        let text = format!("{}: {}", self.location, chain(&error));
                        tracing::warn!(cut = %target.cut, error = text, "checkpoint_not_mirrored");
                        self.failed(&text);
                        delay.failed(Instant::now(), &text)
                    }
                };
                if let Some(text) = warning {
                    let _driver_is_gone =
                        notices.send(JobEvent::warning(WarningCode::MirrorDelayed, text));
                }
                if !self.is_behind() {
                    break;
                }
                // A newer checkpoint is copied at once; the same one is tried again later.
                tokio::select! {
                    changed = targets.changed() => if changed.is_err() { return },
                    () = tokio::time::sleep(backoff.next_wait()) => {}
                }
                targets.mark_changed();
            }
        }
    }

    fn is_behind(&self) -> bool {
        lock(&self.states).get(self.index).is_some_and(|state| state.behind > 0)
    }

    fn copied(&self, target: &MirrorTarget, targets: &watch::Receiver<Option<MirrorTarget>>) {
        let mut states = lock(&self.states);
        let is_newest = targets.borrow().as_ref() == Some(target);
        if let Some(state) = states.get_mut(self.index) {
            state.checkpoint = Some(target.cut);
            state.error = None;
            if is_newest {
                (state.behind, state.behind_since_ms) = (0, None);
            }
        }
        tracing::info!(cut = %target.cut, "checkpoint_mirrored");
    }

    fn failed(&self, text: &str) {
        if let Some(state) = lock(&self.states).get_mut(self.index) {
            state.error = Some(text.to_owned());
            state.failures += 1;
        }
    }

    /// Copies one checkpoint, and removes old ones of the mirror.
    async fn copy(
        &self,
        opened: &mut Option<CheckpointDir>,
        target: &MirrorTarget,
    ) -> Result<(), CommitError> {
        if opened.is_none() {
            *opened = Some(self.open().await.map_err(CommitError::NotDone)?);
        }
        let Some(mirror) = opened else {
            return Ok(());
        };
        self.source.copy_to(target.cut, mirror, &|| Ok(())).await?;
        let kept = mirror.retain(target.keep, target.generation, &target.held).await;
        if let Err(error) = kept {
            tracing::warn!(error = chain(&error), "old_checkpoints_of_mirror_not_removed");
        }
        Ok(())
    }

    async fn open(&self) -> Result<CheckpointDir, CheckpointError> {
        let location = StorageUrl::parse(&self.location.url()).map_err(|error| {
            let reason = heddle_storage::Reason::Unsupported(error.to_string());
            let place = self.location.to_string();
            heddle_storage::StorageError::new(heddle_storage::Op::Open, place, reason)
        })?;
        let storage = connect(&location)?;
        let mirror = CheckpointDir::open_or_create(storage, location.path().clone()).await?;
        if self.source.is_same_as(&mirror).await? {
            return Err(CheckpointError::MirrorOfItself { dir: mirror.show(mirror.root()) });
        }
        Ok(mirror)
    }
}
