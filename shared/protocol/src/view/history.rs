//! What went wrong and is over: containers that ended, checkpoints that were not taken.
//!
//! Kept from the events that are told anyway, by whoever tells them, so that the page and the report
//! can show it. Bounded: of a job of weeks the newest are kept, and all are counted.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::{Event, MasterView, Placement, StorageWaitView};
use crate::ids::{CutId, Incarnation, Slot};

/// Entries that are kept of each kind. A page of so many rows is still read; a job that lost more
/// containers has a story that their log tells better.
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
pub struct LateCheckpointView {
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

/// Where counting speed begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstFigures {
    /// Records that had been computed then: by earlier runs too, when it continues from their checkpoint.
    pub rows: u64,
    /// When.
    pub at_ms: u64,
}

/// What this attempt of the ApplicationMaster saw go wrong.
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
    pub checkpoints_late: VecDeque<LateCheckpointView>,
    /// How many there were.
    #[serde(default)]
    pub checkpoints_late_total: u64,
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
    /// The containers of this ApplicationMaster and of those before it, on YARN; the newest 500.
    #[serde(default)]
    pub masters: VecDeque<MasterView>,
    /// The first figures of this attempt.
    #[serde(default)]
    pub first_figures: Option<FirstFigures>,
}

impl History {
    /// Takes the container of an ApplicationMaster that begins.
    pub fn note_master(&mut self, master: MasterView) {
        push_bounded(&mut self.masters, master);
    }

    /// Takes an event that was told at `at_ms` (milliseconds since 1970). `placement` is the container of
    /// the event's slot and incarnation, where there is one and it is known.
    pub fn note(
        &mut self,
        event: &Event,
        at_ms: u64,
        placement: impl FnOnce(Slot, Incarnation) -> Option<Placement>,
    ) {
        match event {
            Event::Lost { slot, incarnation, cause } => {
                self.ended_total = self.ended_total.saturating_add(1);
                let ended = EndedView {
                    slot: *slot,
                    incarnation: *incarnation,
                    at_ms,
                    cause: cause.clone(),
                    placement: placement(*slot, *incarnation),
                };
                push_bounded(&mut self.ended, ended);
            }
            Event::CheckpointGivenUp { cut, reason } => {
                self.checkpoints_late_total = self.checkpoints_late_total.saturating_add(1);
                let late = LateCheckpointView { cut: *cut, at_ms, reason: reason.clone() };
                push_bounded(&mut self.checkpoints_late, late);
            }
            Event::StorageWait(wait) => {
                if let Some(ended_ms) = wait.ended_ms {
                    self.storage_waits_total = self.storage_waits_total.saturating_add(1);
                    let waited_ms = ended_ms.saturating_sub(wait.since_ms);
                    self.storage_waited_ms = self.storage_waited_ms.saturating_add(waited_ms);
                    push_bounded(&mut self.storage_waits, wait.clone());
                }
            }
            Event::CheckpointDamaged { cut, dir, error } => {
                self.checkpoints_damaged_total = self.checkpoints_damaged_total.saturating_add(1);
                let damaged = DamagedCheckpointView {
                    cut: *cut,
                    at_ms,
                    dir: dir.clone(),
                    error: error.clone(),
                };
                push_bounded(&mut self.checkpoints_damaged, damaged);
            }
            Event::Progress { rows, .. } => {
                self.first_figures.get_or_insert(FirstFigures { rows: *rows, at_ms });
            }
            Event::Started { .. }
            | Event::Registered { .. }
            | Event::PhaseBegun { .. }
            | Event::Evaluated(_)
            | Event::CheckpointCommitted(_)
            | Event::Recovered(_)
            | Event::Warning { .. }
            | Event::Ended { .. } => {}
        }
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

    #[test]
    fn the_newest_losses_are_kept_and_all_are_counted() {
        let mut history = History::default();
        for n in 0..=KEPT_MAX as u64 {
            let lost = Event::Lost {
                slot: Slot::trainer(0),
                incarnation: Incarnation(1),
                cause: n.to_string(),
            };
            history.note(&lost, n, |_, _| None);
        }
        assert_eq!(history.ended.len(), KEPT_MAX);
        assert_eq!(history.ended_total, KEPT_MAX as u64 + 1);
        assert_eq!(history.ended.front().map(|ended| ended.cause.as_str()), Some("1"));
    }

    #[test]
    fn a_view_without_a_history_is_still_read() {
        assert_eq!(serde_json::from_str::<History>("{}").ok(), Some(History::default()));
    }
}
