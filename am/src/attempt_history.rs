//! History of earlier attempts of an ApplicationMaster on YARN: recoveries, losses, counters and events. It is kept in the
//! staging directory, so that the next attempt's pages and report show it.
//!
//! A file of about 500 KiB at most is written after a change, under a new name; the one before it is removed. A loss or the end
//! of a recovery is written at once, since the next ApplicationMaster may be lost within a second; anything else at most every
//! two seconds. No decision depends on it and no failure of it stops the job. Other events of the last two seconds of an attempt,
//! or during an outage of HDFS, may be missing. The journal has the records that decide about the job.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use heddle_protocol::ids::Attempt;
use heddle_protocol::view::{
    History, JobView, NumberedEvent, RECOVERIES_MAX, RecoveryView, readable_events,
};
use heddle_storage::{
    Mode, Storage, StorageError, StorePath, chain, make_dirs, publish_small, read_small,
};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::event_log::EventLog;

/// Interval of writes.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Timeout of reading it: the job continues without it.
const READ_LIMIT: Duration = Duration::from_secs(10);
/// Most bytes of a file that is read.
const READ_BYTES_MAX: usize = 16 << 20;

/// The content of a file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AttemptHistory {
    /// Recoveries that were over, oldest first; the newest [`RECOVERIES_MAX`].
    pub recoveries: Vec<RecoveryView>,
    /// How many there were.
    #[serde(default)]
    pub recoveries_total: u64,
    /// Recoveries under way, oldest first: the next attempt goes on with them, and counts them.
    #[serde(default)]
    pub unfinished: Vec<RecoveryView>,
    /// Checkpoints taken.
    pub checkpoints_taken: u32,
    /// Failures and waits that are over.
    pub history: History,
    /// The newest events, oldest first.
    #[serde(default, deserialize_with = "readable_events")]
    pub events: Vec<NumberedEvent>,
}

impl AttemptHistory {
    /// The history in a job's view.
    #[must_use]
    pub fn of(view: &JobView, events: Vec<NumberedEvent>) -> Self {
        let over = view.recoveries.iter().filter(|recovery| recovery.done);
        let mut recoveries: Vec<RecoveryView> = over.cloned().collect();
        recoveries.drain(..recoveries.len().saturating_sub(RECOVERIES_MAX));
        let under_way = view.recoveries.iter().filter(|recovery| !recovery.done);
        let unfinished: Vec<RecoveryView> = under_way.cloned().collect();
        Self {
            recoveries,
            recoveries_total: view.recoveries_total.saturating_sub(unfinished.len() as u64),
            unfinished,
            checkpoints_taken: view.checkpoints_taken,
            // Each attempt counts its own speed.
            history: History { first_figures: None, ..view.history.clone() },
            events,
        }
    }

    /// Hosts of the containers that have ended.
    #[must_use]
    pub fn hosts(&self) -> BTreeSet<String> {
        let placements = self.history.ended.iter().filter_map(|ended| ended.placement.as_ref());
        placements.map(|placement| placement.node.clone()).collect()
    }

    /// Puts recoveries and checkpoints of earlier attempts before its own.
    pub fn precede(&self, view: &mut JobView) {
        let room = RECOVERIES_MAX.saturating_sub(view.recoveries.len());
        let left_out = self.recoveries.len().saturating_sub(room);
        let kept = self.recoveries.iter().skip(left_out).cloned();
        view.recoveries.splice(0..0, kept);
        view.recoveries_total = view.recoveries_total.saturating_add(self.recoveries_total);
        view.checkpoints_taken = view.checkpoints_taken.saturating_add(self.checkpoints_taken);
    }
}

/// How many recoveries a view has, and how many of those it lists are over.
fn losses(view: &JobView) -> (u64, usize) {
    (view.recoveries_total, view.recoveries.iter().filter(|recovery| recovery.done).count())
}

/// The directory of the files.
#[derive(Clone, Debug)]
pub struct HistoryDir {
    /// The storage of the staging directory.
    pub storage: Arc<dyn Storage>,
    /// Its own directory there, created if it is missing.
    pub dir: StorePath,
}

impl HistoryDir {
    /// Reads the newest history; empty if it cannot be read in time.
    pub async fn read(&self) -> AttemptHistory {
        match timeout(READ_LIMIT, self.newest()).await {
            Ok(Ok(past)) => past.unwrap_or_default(),
            Ok(Err(error)) => {
                tracing::warn!(error = chain(&error), "history_not_read");
                AttemptHistory::default()
            }
            Err(_) => {
                tracing::warn!(error = "the storage does not answer", "history_not_read");
                AttemptHistory::default()
            }
        }
    }

    async fn newest(&self) -> Result<Option<AttemptHistory>, StorageError> {
        let mut files = match self.storage.list(&self.dir).await {
            Ok(entries) => entries,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error),
        };
        files.retain(|entry| entry.name().ends_with(".json"));
        // Attempt and number have leading zeros, so that names sort like them.
        files.sort_by(|a, b| b.name().cmp(a.name()));
        for entry in files {
            let bytes = match read_small(&*self.storage, &entry.path, READ_BYTES_MAX).await {
                Ok(bytes) => bytes,
                // It was removed when a newer one was written.
                Err(error) if error.is_not_found() => continue,
                Err(error) => return Err(error),
            };
            if let Ok(past) = serde_json::from_slice(&bytes) {
                return Ok(Some(past));
            }
        }
        Ok(None)
    }

    /// Writes the job's history after each change, until the view ends.
    pub async fn keep(
        self,
        attempt: Attempt,
        view: watch::Receiver<Arc<JobView>>,
        events: EventLog,
    ) {
        self.keep_every(LOOK_EVERY, attempt, view, events).await;
    }

    async fn keep_every(
        self,
        every: Duration,
        attempt: Attempt,
        mut changes: watch::Receiver<Arc<JobView>>,
        events: EventLog,
    ) {
        // The current view does not count as written: it may have entries that are in no file.
        let mut written = AttemptHistory::default();
        let (mut number, mut before) = (0u64, None);
        while changes.changed().await.is_ok() {
            let view = changes.borrow_and_update().clone();
            let now = AttemptHistory::of(&view, events.recent());
            if now != written {
                number += 1;
                match self.write(attempt, number, &now).await {
                    Ok(path) => {
                        written = now;
                        if let Some(before) = before.replace(path) {
                            // A file that stays is older than the newest and is never read.
                            let _leaks = self.storage.delete_file(&before).await;
                        }
                    }
                    Err(error) => {
                        tracing::debug!(error = chain(&error), "history_not_written");
                    }
                }
            }
            let shown = losses(&view);
            if let Ok(Err(_ended)) =
                timeout(every, changes.wait_for(|view| losses(view) != shown)).await
            {
                return;
            }
            changes.mark_changed();
        }
    }

    async fn write(
        &self,
        attempt: Attempt,
        number: u64,
        past: &AttemptHistory,
    ) -> Result<StorePath, StorageError> {
        let name = format!("{:06}-{number:08}.json", attempt.0);
        let path = self.dir.join(&name)?;
        let json = serde_json::to_vec(past).map_err(|error| {
            StorageError::new(
                heddle_storage::Op::Write,
                self.storage.show(&path),
                heddle_storage::Reason::Other,
            )
            .because(error)
        })?;
        make_dirs(&*self.storage, &self.dir, Mode::DIR).await?;
        publish_small(&*self.storage, &path, json.into()).await?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
    use heddle_storage::LocalStorage;

    use heddle_protocol::view::WarningCode;

    use super::*;
    use crate::event_log::EventOutput;
    use crate::report::samples;

    fn place(dir: &tempfile::TempDir) -> HistoryDir {
        HistoryDir {
            storage: Arc::new(LocalStorage),
            dir: StorePath::parse(dir.path().to_str().unwrap()).unwrap().join("past").unwrap(),
        }
    }

    fn log() -> EventLog {
        let log = EventLog::new(Attempt(1), EventOutput::LogOnly);
        log.warn(WarningCode::JournalDelayed, "the journal is 5 s late".to_owned());
        log
    }

    #[tokio::test]
    async fn next_attempt_continues_the_counters() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(&dir);
        assert_eq!(place.read().await, AttemptHistory::default());
        let view = samples::view();
        let past = AttemptHistory::of(&view, log().recent());
        assert_eq!(past.history.ended_total, 1);
        place.write(Attempt(9), 1, &AttemptHistory::default()).await.unwrap();
        place.write(Attempt(10), 2, &past).await.unwrap();
        assert_eq!(place.read().await, past);
        // A torn or foreign file is passed over.
        std::fs::write(dir.path().join("past/000011-00000001.json"), "{").unwrap();
        assert_eq!(place.read().await, past);
        let mut next = view.clone();
        past.precede(&mut next);
        let over = view.recoveries.iter().filter(|it| it.done).count();
        assert_eq!(next.recoveries.len(), view.recoveries.len() + over);
        assert_eq!(next.recoveries_total, next.recoveries.len() as u64);
        assert_eq!(next.checkpoints_taken, 2 * view.checkpoints_taken);
    }

    #[test]
    fn newest_recoveries_are_kept_and_all_are_counted() {
        let view = |count: usize, epoch_before: u32| {
            let mut view = samples::view();
            let mut one = view.recoveries.remove(0);
            one.epoch_before.count = epoch_before;
            view.recoveries = vec![one; count];
            view.recoveries_total = count as u64;
            view
        };
        let past = AttemptHistory::of(&view(RECOVERIES_MAX, 1), Vec::new());
        let mut next = view(3, 2);
        past.precede(&mut next);
        assert_eq!(next.recoveries.len(), RECOVERIES_MAX);
        assert_eq!(next.recoveries_total, RECOVERIES_MAX as u64 + 3);
        let epochs: Vec<u32> = next.recoveries.iter().map(|it| it.epoch_before.count).collect();
        assert_eq!(epochs[RECOVERIES_MAX - 4..], [1, 2, 2, 2]);
        let again = AttemptHistory::of(&next, Vec::new());
        assert_eq!(again.recoveries_total, RECOVERIES_MAX as u64 + 3);
        // One under way is counted by the attempt that sees its end.
        next.recoveries[RECOVERIES_MAX - 1].done = false;
        let again = AttemptHistory::of(&next, Vec::new());
        assert_eq!(again.recoveries_total, RECOVERIES_MAX as u64 + 2);
        assert_eq!(again.unfinished, next.recoveries[RECOVERIES_MAX - 1..]);
    }

    #[tokio::test]
    async fn loss_and_end_of_a_recovery_are_written_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(&dir);
        let (sender, view) = watch::channel(Arc::new(samples::view()));
        let hour = Duration::from_secs(3600);
        let keeping = tokio::spawn(place.clone().keep_every(hour, Attempt(1), view, log()));
        let mut view = samples::view();
        let mut recovery = view.recoveries[0].clone();
        for (recoveries, done) in [(1, true), (2, false), (2, true), (3, false)] {
            recovery.done = done;
            view.recoveries.truncate(recoveries - 1);
            view.recoveries.push(recovery.clone());
            view.recoveries_total = recoveries as u64;
            sender.send_replace(Arc::new(view.clone()));
            let began = tokio::time::Instant::now();
            let over = recoveries - usize::from(!done);
            let is_written = |past: &AttemptHistory| (past.recoveries.len(), past.unfinished.len());
            while is_written(&place.read().await) != (over, recoveries - over) {
                tokio::time::sleep(Duration::from_millis(1)).await;
                let limit = Duration::from_secs(30);
                assert!(began.elapsed() < limit, "{recoveries} recoveries are not written");
            }
        }
        drop(sender);
        keeping.await.unwrap();
    }

    #[tokio::test]
    async fn only_the_newest_file_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(&dir);
        let (sender, view) = watch::channel(Arc::new(samples::view()));
        let every = Duration::from_millis(1);
        let keeping = tokio::spawn(place.clone().keep_every(every, Attempt(1), view, log()));
        for n in 1..=3u32 {
            let mut view = samples::view();
            view.checkpoints_taken += n;
            let taken = view.checkpoints_taken;
            sender.send_replace(Arc::new(view));
            let written = async {
                while place.read().await.checkpoints_taken != taken {
                    tokio::time::sleep(every).await;
                }
            };
            let limit = Duration::from_secs(30);
            timeout(limit, written).await.unwrap();
        }
        drop(sender);
        keeping.await.unwrap();
        let names: Vec<_> = std::fs::read_dir(dir.path().join("past"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(names, ["000001-00000003.json"]);
        let taken = samples::view().checkpoints_taken;
        assert_eq!(place.read().await.checkpoints_taken, taken + 3);
    }
}
