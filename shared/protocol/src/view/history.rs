//! What failed and is over: containers that ended, checkpoints that were aborted, waits for storage.
//!
//! The ApplicationMaster records it from its events, so that the page and the report can show it. Bounded: the newest
//! entries are kept, and all are counted.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::placement::{AttemptView, Placement};
use super::warning::WarningCode;
use crate::ids::{CutId, Incarnation, Slot};

/// Entries that are kept of each kind. A page of 500 rows is still readable; of more losses the log gives a better
/// account.
const KEPT_MAX: usize = 500;

/// A container that ended before the job did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedView {
    /// Its place.
    pub slot: Slot,
    /// Which filling.
    pub incarnation: Incarnation,
    /// When it was noticed.
    pub at_ms: u64,
    /// In words: `was killed by signal 9 (by an operator or by the kernel)`.
    pub cause: String,
    /// Which container of the cluster it was; none locally, and when it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
}

/// A cut that did not become a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AbortedCheckpointView {
    /// Its name.
    pub cut: CutId,
    /// When it was given up.
    pub at_ms: u64,
    /// Why.
    pub reason: String,
}

/// A checkpoint that was found damaged and set aside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamagedCheckpointView {
    /// Its name.
    pub cut: CutId,
    /// When it was found.
    pub at_ms: u64,
    /// Where it is now.
    pub dir: String,
    /// What is wrong with it.
    pub error: String,
}

/// A time in which trainers waited for the storage of their input.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageWaitView {
    /// Since when, milliseconds since 1970.
    pub since_ms: u64,
    /// When the last trainer read again, milliseconds since 1970; none while one waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<u64>,
    /// Trainers that wait now; of a wait that is over, or has just begun, 1. 0: the ApplicationMaster itself waits, with
    /// checkpoints and the model.
    pub trainers: u32,
    /// A file that is waited for; of the ApplicationMaster the checkpoint directory.
    pub file: String,
    /// Why the last try failed; empty where the storage did not answer at all.
    pub error: String,
}

impl StorageWaitView {
    /// What is waited for, by the name that operators use.
    #[must_use]
    pub fn storage(&self) -> &'static str {
        match self.file.starts_with("hdfs://") {
            true => "HDFS",
            false => "storage",
        }
    }
}

/// A warning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarningView {
    /// When it was raised, milliseconds since 1970.
    pub at_ms: u64,
    /// Fact, cause and next step.
    pub text: String,
    /// Its kind.
    #[serde(default, skip_serializing_if = "WarningCode::is_unknown")]
    pub code: WarningCode,
}

/// The start of the measurement of speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstFigures {
    /// Records that had been computed then: by earlier runs too, when it continues from their checkpoint.
    pub rows: u64,
    /// When.
    pub at_ms: u64,
}

/// Failures that this attempt of the ApplicationMaster saw.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// Containers that ended before the job did, oldest first; the newest 500.
    #[serde(default)]
    pub ended: VecDeque<EndedView>,
    /// How many there were.
    #[serde(default)]
    pub ended_total: u64,
    /// Cuts that did not become checkpoints, oldest first; the newest 500.
    #[serde(default)]
    pub checkpoints_given_up: VecDeque<AbortedCheckpointView>,
    /// How many there were.
    #[serde(default)]
    pub checkpoints_given_up_total: u64,
    /// Times in which trainers waited for the storage of their input, oldest first; the newest 500.
    #[serde(default)]
    pub storage_waits: VecDeque<StorageWaitView>,
    /// How many there were.
    #[serde(default)]
    pub storage_waits_total: u64,
    /// How long they were together, ms.
    #[serde(default)]
    pub storage_waited_ms: u64,
    /// Checkpoints that were found damaged and set aside, oldest finding first; the newest 500.
    #[serde(default)]
    pub checkpoints_damaged: VecDeque<DamagedCheckpointView>,
    /// How many there were.
    #[serde(default)]
    pub checkpoints_damaged_total: u64,
    /// Warnings, oldest first; the newest 500.
    #[serde(default)]
    pub warnings: VecDeque<WarningView>,
    /// How many there were.
    #[serde(default)]
    pub warnings_total: u64,
    /// How many there were of each kind.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub warnings_by_code: BTreeMap<WarningCode, u64>,
    /// The containers of this ApplicationMaster and of those before it, on YARN; the newest 500.
    #[serde(default)]
    pub attempts: VecDeque<AttemptView>,
    /// The first figures of this attempt.
    #[serde(default)]
    pub first_figures: Option<FirstFigures>,
}

impl History {
    /// The container of an ApplicationMaster that starts.
    pub fn add_attempt(&mut self, attempt: AttemptView) {
        push_bounded(&mut self.attempts, attempt);
    }

    /// A container that ended before the job did.
    pub(super) fn add_ended(&mut self, ended: EndedView) {
        self.ended_total = self.ended_total.saturating_add(1);
        push_bounded(&mut self.ended, ended);
    }

    /// A cut that did not become a checkpoint.
    pub(super) fn add_aborted(&mut self, aborted: AbortedCheckpointView) {
        self.checkpoints_given_up_total = self.checkpoints_given_up_total.saturating_add(1);
        push_bounded(&mut self.checkpoints_given_up, aborted);
    }

    /// A wait for storage; one that has not ended is not counted.
    pub(super) fn add_storage_wait(&mut self, wait: &StorageWaitView) {
        if let Some(ended_ms) = wait.ended_ms {
            self.storage_waits_total = self.storage_waits_total.saturating_add(1);
            // It is about input.
            if wait.trainers > 0 {
                let waited_ms = ended_ms.saturating_sub(wait.since_ms);
                self.storage_waited_ms = self.storage_waited_ms.saturating_add(waited_ms);
            }
            push_bounded(&mut self.storage_waits, wait.clone());
        }
    }

    /// A warning.
    pub(super) fn add_warning(&mut self, warning: WarningView) {
        self.warnings_total = self.warnings_total.saturating_add(1);
        *self.warnings_by_code.entry(warning.code).or_default() += 1;
        push_bounded(&mut self.warnings, warning);
    }

    /// A checkpoint that was found damaged.
    pub(super) fn add_damaged(&mut self, damaged: DamagedCheckpointView) {
        self.checkpoints_damaged_total = self.checkpoints_damaged_total.saturating_add(1);
        push_bounded(&mut self.checkpoints_damaged, damaged);
    }
}

fn push_bounded<T>(kept: &mut VecDeque<T>, one: T) {
    if kept.len() >= KEPT_MAX {
        kept.pop_front();
    }
    kept.push_back(one);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::JobEvent;

    #[test]
    fn the_newest_losses_are_kept_and_all_are_counted() {
        let mut history = History::default();
        for n in 0..=KEPT_MAX as u64 {
            history.add_ended(EndedView {
                slot: Slot::trainer(0),
                incarnation: Incarnation(1),
                at_ms: n,
                cause: n.to_string(),
                placement: None,
            });
        }
        assert_eq!(history.ended.len(), KEPT_MAX);
        assert_eq!(history.ended_total, KEPT_MAX as u64 + 1);
        assert_eq!(history.ended.front().map(|ended| ended.cause.as_str()), Some("1"));
    }

    #[test]
    fn warnings_are_kept_with_their_time() {
        let mut history = History::default();
        let code = WarningCode::JournalDelayed;
        let event = JobEvent::warning(code, "the journal is 5 s late");
        event.record(&mut history, 7, |_, _| None);
        assert_eq!(history.warnings_total, 1);
        assert_eq!(history.warnings_by_code, [(code, 1)].into());
        let text = "the journal is 5 s late".into();
        assert_eq!(history.warnings.front(), Some(&WarningView { at_ms: 7, text, code }));
        let json = serde_json::to_string(&history).expect("it is JSON");
        assert_eq!(serde_json::from_str(&json).ok(), Some(history));
    }

    #[test]
    fn a_warning_of_an_earlier_version_has_no_code() {
        let warning: WarningView =
            serde_json::from_str(r#"{"at_ms":7,"text":"late"}"#).expect("it is read");
        assert_eq!(warning.code, WarningCode::Unknown);
        let json = serde_json::to_string(&warning).expect("it is JSON");
        assert_eq!(json, r#"{"at_ms":7,"text":"late"}"#);
    }

    #[test]
    fn a_view_without_a_history_is_still_read() {
        assert_eq!(serde_json::from_str::<History>("{}").ok(), Some(History::default()));
    }
}
