//! Events between two views of a job, as a local run prints them.

use std::collections::{BTreeSet, VecDeque};

use heddle_protocol::ids::{CutId, Incarnation, Slot};
use heddle_protocol::view::{JobEvent, JobState, JobView, SlotState};

/// What was reported already.
#[derive(Default)]
pub struct ViewDiff {
    begun: bool,
    attempt: u32,
    phase: Option<u32>,
    evaluated: BTreeSet<u32>,
    checkpoints: BTreeSet<CutId>,
    recovered: BTreeSet<(u64, Option<Slot>)>,
    running: BTreeSet<(Slot, Incarnation)>,
    /// Losses and late checkpoints.
    lost: u64,
    late: u64,
    /// Start of the trainers' wait for storage, if it was reported.
    storage_wait: Option<u64>,
    damaged: u64,
    warnings: u64,
}

impl ViewDiff {
    /// The events that lead to this view, oldest first. `address` is that of the job's pages.
    pub fn to(&mut self, view: &JobView, address: &str) -> Vec<JobEvent> {
        let mut events = Vec::new();
        // Before its core has started, an ApplicationMaster's view does not name the checkpoint that the job continues
        // from.
        if !self.begun && view.state == JobState::Starting && view.slots.is_empty() {
            return events;
        }
        if !self.begun {
            self.begun = true;
            // Checkpoints that are there before one was taken are another run's.
            let resumed = view.checkpoints.iter().rfind(|it| it.at_ms < view.started_ms);
            events.push(JobEvent::Started {
                run: view.run,
                name: view.name.clone(),
                attempt: view.attempt,
                address: address.to_owned(),
                resumed_from: resumed.map(|checkpoint| checkpoint.cut),
            });
        } else if view.attempt.0 > self.attempt {
            events.push(JobEvent::Warning {
                text: format!(
                    "the ApplicationMaster was started again, attempt {}",
                    view.attempt.0
                ),
            });
            // The new one counts on from what the old one had written down.
            let history = &view.history;
            self.lost = self.lost.min(history.ended_total);
            self.late = self.late.min(history.checkpoints_given_up_total);
            self.damaged = self.damaged.min(history.checkpoints_damaged_total);
            self.warnings = self.warnings.min(history.warnings_total);
        }
        self.attempt = view.attempt.0;
        self.losses(view, &mut events);
        self.slots(view, &mut events);
        if self.phase != Some(view.phase.0) && !view.phase_text.is_empty() {
            self.phase = Some(view.phase.0);
            events.push(JobEvent::PhaseBegun { phase: view.phase, text: view.phase_text.clone() });
        }
        for scores in &view.evaluations {
            if self.evaluated.insert(scores.pass) {
                events.push(JobEvent::Evaluated(scores.clone()));
            }
        }
        for taken in &view.checkpoints {
            if self.checkpoints.insert(taken.cut) && taken.at_ms >= view.started_ms {
                events.push(JobEvent::CheckpointCommitted(taken.clone()));
            }
        }
        for recovery in view.recoveries.iter().filter(|recovery| recovery.done) {
            if self.recovered.insert((recovery.at_ms, recovery.slot)) {
                events.push(JobEvent::Recovered(recovery.clone()));
            }
        }
        self.storage_wait(view, &mut events);
        events.push(JobEvent::Progress {
            text: view.phase_text.clone(),
            rows: view.rows,
            rows_per_second: view.rows_per_second,
            training_loss: view.training_loss,
        });
        events
    }

    /// A wait is reported when it begins and when it ends.
    fn storage_wait(&mut self, view: &JobView, events: &mut Vec<JobEvent>) {
        if let Some(wait) = &view.storage_wait {
            if self.storage_wait.is_none() {
                events.push(JobEvent::StorageWait(wait.clone()));
            }
            self.storage_wait = Some(wait.since_ms);
        } else if self.storage_wait.take().is_some()
            && let Some(over) = view.history.storage_waits.back()
        {
            events.push(JobEvent::StorageWait(over.clone()));
        }
    }

    /// The view keeps the newest entries and counts all, so the unreported ones are the last.
    fn losses(&mut self, view: &JobView, events: &mut Vec<JobEvent>) {
        let history = &view.history;
        for ended in unreported(&history.ended, history.ended_total, &mut self.lost) {
            events.push(JobEvent::Lost {
                slot: ended.slot,
                incarnation: ended.incarnation,
                cause: ended.cause.clone(),
            });
        }
        let late = (&history.checkpoints_given_up, history.checkpoints_given_up_total);
        for given_up in unreported(late.0, late.1, &mut self.late) {
            events.push(JobEvent::CheckpointGivenUp {
                cut: given_up.cut,
                reason: given_up.reason.clone(),
            });
        }
        let damaged = (&history.checkpoints_damaged, history.checkpoints_damaged_total);
        for damaged in unreported(damaged.0, damaged.1, &mut self.damaged) {
            events.push(JobEvent::CheckpointDamaged {
                cut: damaged.cut,
                dir: damaged.dir.clone(),
                error: damaged.error.clone(),
            });
        }
        for warning in unreported(&history.warnings, history.warnings_total, &mut self.warnings) {
            events.push(JobEvent::Warning { text: warning.text.clone() });
        }
    }

    fn slots(&mut self, view: &JobView, events: &mut Vec<JobEvent>) {
        for slot in &view.slots {
            let up = matches!(slot.state, SlotState::Running | SlotState::Draining);
            if up && self.running.insert((slot.slot, slot.incarnation)) {
                events.push(JobEvent::Registered {
                    slot: slot.slot,
                    incarnation: slot.incarnation,
                    pid: slot.pid,
                    host: slot.host.clone(),
                });
            }
        }
    }
}

/// The entries of a list that were not reported yet; they are the last of those that are kept. All count as reported
/// afterwards.
fn unreported<'v, T>(
    kept: &'v VecDeque<T>,
    total: u64,
    reported: &mut u64,
) -> impl Iterator<Item = &'v T> {
    let new = usize::try_from(total.saturating_sub(*reported)).unwrap_or(usize::MAX);
    *reported = total;
    kept.iter().skip(kept.len().saturating_sub(new))
}

#[cfg(test)]
mod tests {
    use heddle_protocol::ids::{Attempt, RunId};
    use heddle_protocol::view::{EvaluationView, History, SlotView, StorageWaitView};

    use super::*;

    fn view() -> JobView {
        JobView {
            state: JobState::Running,
            ..JobView::starting(RunId(uuid::Uuid::nil()), "ctr", Attempt(1), 1000)
        }
    }

    /// The events without the progress that ends every poll.
    fn reported(changes: &mut ViewDiff, view: &JobView) -> Vec<String> {
        let events = changes.to(view, "http://am/");
        let word = |event: &JobEvent| {
            let json = serde_json::to_value(event).unwrap_or_default();
            json["event"].as_str().unwrap_or_default().to_owned()
        };
        let mut words: Vec<String> = events.iter().map(word).collect();
        assert_eq!(words.pop().as_deref(), Some("progress"));
        words
    }

    fn evaluation(pass: u32) -> EvaluationView {
        EvaluationView { pass, rows: 1, log_loss: 0.5, auc: 0.5, auc_error: 0.0, accuracy: 0.5 }
    }

    #[test]
    fn each_event_is_reported_once() {
        let (mut changes, mut view) = (ViewDiff::default(), view());
        assert_eq!(reported(&mut changes, &view), ["started"]);
        view.evaluations.push(evaluation(0));
        view.slots.push(SlotView {
            slot: Slot::trainer(0),
            incarnation: Incarnation(1),
            state: SlotState::Running,
            host: "n1".to_owned(),
            pid: 7,
            per_second: 0.0,
            rss_bytes: 0,
            total: 0,
            placement: None,
        });
        assert_eq!(reported(&mut changes, &view), ["registered", "evaluated"]);
        assert_eq!(reported(&mut changes, &view), [""; 0]);
    }

    #[test]
    fn job_without_a_core_has_not_started() {
        let mut changes = ViewDiff::default();
        let bare = JobView { state: JobState::Starting, ..view() };
        assert!(changes.to(&bare, "http://am/").is_empty());
        assert_eq!(reported(&mut changes, &view()), ["started"]);
    }

    #[test]
    fn losses_beyond_the_kept_ones_are_reported_once() {
        let (mut changes, mut view) = (ViewDiff::default(), view());
        reported(&mut changes, &view);
        let lose = |history: &mut History| {
            let lost = JobEvent::Lost {
                slot: Slot::trainer(0),
                incarnation: Incarnation(1),
                cause: "exited".to_owned(),
            };
            lost.record(history, 1, |_, _| None);
        };
        lose(&mut view.history);
        lose(&mut view.history);
        assert_eq!(reported(&mut changes, &view), ["lost", "lost"]);
        lose(&mut view.history);
        assert_eq!(reported(&mut changes, &view), ["lost"]);
    }

    #[test]
    fn wait_for_storage_is_reported_at_its_begin_and_end() {
        let (mut changes, mut view) = (ViewDiff::default(), view());
        reported(&mut changes, &view);
        let mut wait = StorageWaitView {
            since_ms: 5_000,
            trainers: 1,
            file: "hdfs://nn/in".to_owned(),
            ..StorageWaitView::default()
        };
        view.storage_wait = Some(wait.clone());
        assert_eq!(reported(&mut changes, &view), ["storage-wait"]);
        assert_eq!(reported(&mut changes, &view), [""; 0]);
        view.storage_wait = None;
        wait.ended_ms = Some(9_000);
        JobEvent::StorageWait(wait).record(&mut view.history, 9_000, |_, _| None);
        assert_eq!(view.history.storage_waited_ms, 4_000);
        assert_eq!(reported(&mut changes, &view), ["storage-wait"]);
        assert_eq!(reported(&mut changes, &view), [""; 0]);
    }

    #[test]
    fn next_attempt_continues_the_counters() {
        let (mut changes, mut view) = (ViewDiff::default(), view());
        reported(&mut changes, &view);
        let lost = |n: u64| JobEvent::Lost {
            slot: Slot::trainer(0),
            incarnation: Incarnation(1),
            cause: n.to_string(),
        };
        for n in 0..3 {
            lost(n).record(&mut view.history, n, |_, _| None);
        }
        assert_eq!(reported(&mut changes, &view), ["lost", "lost", "lost"]);
        // The third was not journaled before the first attempt died.
        view.attempt = Attempt(2);
        view.history.ended.pop_back();
        view.history.ended_total = 2;
        view.evaluations.push(evaluation(0));
        assert_eq!(reported(&mut changes, &view), ["warning", "evaluated"]);
        lost(4).record(&mut view.history, 4, |_, _| None);
        assert_eq!(reported(&mut changes, &view), ["lost"]);
    }
}
