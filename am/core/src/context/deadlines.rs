//! Time as a table: one entry per purpose.

use std::collections::BTreeMap;

use crate::time::MonotonicMs;

/// What a deadline is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Purpose {
    /// A container may have been silent, starting or draining for too long.
    Liveness,
    /// A slot's pause before it is filled again is over.
    Reconcile,
    /// All pservers and enough trainers should run by now.
    Allocation,
    /// Containers of an earlier attempt should have registered by now.
    Takeover,
    /// The replacement of a lost pserver should have registered by now.
    Replacement,
    /// A checkpoint is due.
    CutDue,
    /// A job that failed ends without its last checkpoint. Before the timeout of the cut: its message names the key.
    LastSave,
    /// The open cut has taken too long.
    CutTimeout,
    /// Work goes on without the open cut, whose directory is still not made.
    CutStaging,
    /// The open cut waits no longer for further files of its shards.
    CutCopies,
    /// A hand-over of shards has taken too long.
    HandOver,
    /// Shards have had too few backups for a while, and no host for another one.
    Backups,
    /// The controller should have given its first order by now.
    Controller,
    /// A trainer has not reached a pserver for a while.
    Outage,
    /// Trainers that registered meanwhile may join.
    Join,
    /// The trainer that writes a model has made no progress for the lease.
    ExportLease,
    /// What has failed can be tried again.
    Retry(Retried),
    /// A pass ends without the figures that were not reported.
    Figures,
    /// Trainers are compared: a slow one may lose lanes, or share its task.
    Straggler,
    /// The last checkpoint before the job's tokens end begins.
    TokensSave,
    /// The job's tokens are of no use from now on.
    TokensEnd,
    /// Everything should have stopped by now.
    Stopped,
}

/// What is tried again after a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Retried {
    /// A load of shards.
    Load,
    /// A hand-over of shards.
    HandOver,
    /// A commit.
    Commit,
    /// The final cut.
    FinalCut,
    /// The cut of the best pass.
    BestCut,
    /// The cut of an orderly stop.
    StopCut,
    /// The cut that a save of the model waits for.
    SaveCut,
    /// To write the model, or to publish it.
    Export,
}

/// The deadlines that are set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deadlines(BTreeMap<Purpose, MonotonicMs>);

impl Deadlines {
    /// Sets or moves one.
    pub(crate) fn set(&mut self, purpose: Purpose, at: MonotonicMs) {
        self.0.insert(purpose, at);
    }

    /// Sets one, unless an earlier one stands.
    pub(crate) fn at_latest(&mut self, purpose: Purpose, at: MonotonicMs) {
        let entry = self.0.entry(purpose).or_insert(at);
        *entry = at.min(*entry);
    }

    /// When one is due, if it is set.
    pub(crate) fn at(&self, purpose: Purpose) -> Option<MonotonicMs> {
        self.0.get(&purpose).copied()
    }

    /// Moves those that end a wait for containers: while this process stood still, none could come.
    pub(crate) fn forgive_standstill(&mut self, ms: u64) {
        use Purpose::{Allocation, CutCopies, CutTimeout, ExportLease, Replacement, Takeover};
        for purpose in [Allocation, CutCopies, CutTimeout, ExportLease, Replacement, Takeover] {
            if let Some(at) = self.0.get_mut(&purpose) {
                *at = *at + ms;
            }
        }
    }

    /// Takes one away.
    pub(crate) fn clear(&mut self, purpose: Purpose) {
        self.0.remove(&purpose);
    }

    /// Takes all away.
    pub(crate) fn clear_all(&mut self) {
        self.0.clear();
    }

    /// The earliest.
    pub(crate) fn next(&self) -> Option<MonotonicMs> {
        self.0.values().min().copied()
    }

    /// Takes out one that has come, the earliest first.
    pub(crate) fn due(&mut self, now: MonotonicMs) -> Option<Purpose> {
        let (&purpose, _) =
            self.0.iter().filter(|(_, at)| **at <= now).min_by_key(|(_, at)| **at)?;
        self.0.remove(&purpose);
        Some(purpose)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_come_once_the_earliest_first() {
        let mut deadlines = Deadlines::default();
        deadlines.set(Purpose::CutDue, MonotonicMs(20));
        deadlines.set(Purpose::Liveness, MonotonicMs(10));
        deadlines.at_latest(Purpose::Liveness, MonotonicMs(15));
        deadlines.at_latest(Purpose::CutDue, MonotonicMs(12));
        assert_eq!(deadlines.next(), Some(MonotonicMs(10)));
        assert_eq!(deadlines.due(MonotonicMs(9)), None);
        assert_eq!(deadlines.due(MonotonicMs(30)), Some(Purpose::Liveness));
        assert_eq!(deadlines.due(MonotonicMs(30)), Some(Purpose::CutDue));
        assert_eq!(deadlines.due(MonotonicMs(30)), None);
    }

    #[test]
    fn waits_for_containers_last_longer_by_a_standstill() {
        let mut deadlines = Deadlines::default();
        deadlines.set(Purpose::Allocation, MonotonicMs(20));
        deadlines.set(Purpose::CutDue, MonotonicMs(20));
        deadlines.forgive_standstill(100);
        assert_eq!(deadlines.due(MonotonicMs(30)), Some(Purpose::CutDue));
        assert_eq!(deadlines.due(MonotonicMs(119)), None);
        assert_eq!(deadlines.due(MonotonicMs(120)), Some(Purpose::Allocation));
    }
}
