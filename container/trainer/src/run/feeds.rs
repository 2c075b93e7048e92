//! Starts the parser threads of the training loop.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crossbeam::channel::Sender;
use heddle_backoff::Backoff;
use heddle_input::{RecordFormat, StorageWaits};
use heddle_protocol::ids::{PhaseNo, Step, TaskId};
use heddle_protocol::job_spec::{JobPhase, JobSpec, TaskShare};
use heddle_protocol::manifest::InputPlan;
use tokio::sync::OnceCell;

use crate::cache::TaskCache;
use crate::class_weights::ClassWeights;
use crate::feed::{Feed, FeedId, FeedItem, FeedSettings};

/// State that all feeds of this process share. Numbers them, and keeps the error of a feed that could not start.
pub(super) struct Feeds {
    plan: Arc<InputPlan>,
    quarantine: PathBuf,
    waits: StorageWaits,
    cache: Option<Arc<TaskCache>>,
    items: Sender<(FeedId, FeedItem)>,
    /// The first bad record of the test data and of the training data, once it is looked for.
    first_bad: [Arc<OnceCell<String>>; 2],
    started: u64,
    error: Option<io::Error>,
}

impl Feeds {
    /// Feeds of the tasks in `plan`, which send what they read to `items`. Malformed records go to the folder
    /// `quarantine`.
    pub(super) fn new(
        plan: InputPlan,
        quarantine: PathBuf,
        waits: StorageWaits,
        cache: Option<Arc<TaskCache>>,
        items: Sender<(FeedId, FeedItem)>,
    ) -> Self {
        let (plan, first_bad) = (Arc::new(plan), Default::default());
        Self { plan, quarantine, waits, cache, items, first_bad, started: 0, error: None }
    }

    /// Replaces the input plan.
    #[cfg(test)]
    pub(super) fn replace_plan(&mut self, plan: InputPlan) {
        self.plan = Arc::new(plan);
    }

    /// Settings of a phase's feeds. `index_features`: whether steps need their distinct features.
    pub(super) fn settings(
        &self,
        spec: &JobSpec,
        kind: JobPhase,
        phase: PhaseNo,
        features: u64,
        index_features: bool,
    ) -> FeedSettings {
        let training = kind.reads_training_data;
        let format = match kind.stage {
            Some(_) if spec.measured_columns() > 0 => RecordFormat::measuring(spec),
            Some(_) | None => RecordFormat::of(spec, features),
        };
        FeedSettings {
            plan: Arc::clone(&self.plan),
            training,
            phase,
            format: format.of_plan(&self.plan),
            index_features,
            rows: spec.training.batch as usize,
            batch_features: spec.batch_features,
            // The rest is for code and the buffers of lines and connections.
            ahead_bytes: usize::try_from(spec.working_memory().0 / 8 * 7).unwrap_or(usize::MAX),
            class_weights: ClassWeights::of(spec),
            bad_records: spec.data.bad_records,
            first_bad: (spec.data.failed_share == TaskShare(0))
                .then(|| Arc::clone(&self.first_bad[usize::from(training)])),
            quarantine: self.quarantine.clone(),
            waits: self.waits.clone(),
            cache: self.cache.clone(),
            measures: kind.stage.is_some() && spec.measured_columns() > 0,
        }
    }

    /// Starts a feed; `None` if the system provides no thread. [`take_error`](Self::take_error) then returns the error.
    pub(super) fn start(
        &mut self,
        settings: FeedSettings,
        tasks: Vec<TaskId>,
        first: Step,
        known_steps: BTreeMap<TaskId, u64>,
    ) -> Option<Feed> {
        self.started += 1;
        let id = FeedId(self.started);
        let items = &self.items;
        let start = || {
            let (settings, tasks, known) = (settings.clone(), tasks.clone(), known_steps.clone());
            Feed::start(id, settings, tasks, first.0, known, items.clone())
        };
        match retry_start(start) {
            Ok(feed) => Some(feed),
            Err(error) => {
                self.error = Some(error);
                None
            }
        }
    }

    /// The error of the feed that was not started.
    pub(super) fn take_error(&mut self) -> Option<io::Error> {
        self.error.take()
    }
}

/// Waits between attempts to start a thread.
const THREAD_RETRY: Backoff = Backoff::new(10, 320);
/// Attempts to start a thread after the first one: 0.6 s in all. The processes of a node share its limit of threads, and
/// readers of the phase before are about to end.
const THREAD_RETRIES: usize = 6;

/// Calls `start` until it succeeds, fails with another error than a lack of threads or memory, or has used its retries.
fn retry_start<T>(mut start: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut backoff = THREAD_RETRY;
    for _ in 0..THREAD_RETRIES {
        match start() {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory
                ) =>
            {
                std::thread::sleep(backoff.next_wait());
            }
            done => return done,
        }
    }
    start()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_threads_is_retried_and_then_reported() {
        let mut tries = 0;
        let third = retry_start(|| {
            tries += 1;
            match tries {
                3 => Ok(7),
                _ => Err(io::Error::from_raw_os_error(11)),
            }
        });
        assert_eq!(third.expect("the third try"), 7);
        let none = retry_start(|| Err::<(), _>(io::ErrorKind::WouldBlock.into()));
        assert_eq!(none.expect_err("none").kind(), io::ErrorKind::WouldBlock);
        let mut tries = 0;
        let denied = retry_start(|| {
            tries += 1;
            Err::<(), _>(io::ErrorKind::PermissionDenied.into())
        });
        assert!(denied.is_err() && tries == 1, "another error is not a lack of threads");
    }
}
