//! The last cut of this pserver, and the snapshots of backups that it may have to save for it.

use std::collections::{BTreeMap, BTreeSet};

use heddle_protocol::control::{PserverReport, ShardReport, TakeCut};
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::{CutId, Epoch, PhaseNo, ShardId, Step};

/// The last cut.
pub(crate) struct CurrentCut {
    pub(crate) cut: CutId,
    pub(crate) phase: PhaseNo,
    pub(crate) staging: String,
    /// See [`TakeCut::initial`].
    pub(crate) initial: bool,
    /// Reports from before all threads had answered; none afterwards.
    pub(crate) early: Option<Vec<(Epoch, ShardReport)>>,
    /// Copies that this pserver saves beside the shards that it serves.
    copies: BTreeSet<ShardId>,
}

/// A snapshot of a backup that is not being saved.
pub(crate) struct CopySnapshot {
    pub(crate) cut: CutId,
    pub(crate) epoch: Epoch,
    pub(crate) step: Step,
}

/// Snapshots of backups, by shard. The order to save one may come before it, after it, or after a promotion.
pub(crate) type CopySnapshots = BTreeMap<ShardId, CopySnapshot>;

impl CurrentCut {
    pub(crate) fn new(command: &TakeCut) -> Self {
        let &TakeCut { cut, phase, initial, .. } = command;
        let (staging, early) = (command.staging.clone(), Some(Vec::new()));
        Self { cut, phase, staging, initial, early, copies: BTreeSet::new() }
    }

    /// A repeated command may name further copies: this pserver serves their shards now.
    pub(crate) fn add_copies(&mut self, command: &TakeCut) {
        self.copies.extend(&command.copies);
    }

    /// Removes the snapshots that are to be saved, so that each is saved once.
    pub(crate) fn take_due(&self, snapshots: &mut CopySnapshots) -> Vec<(ShardId, CopySnapshot)> {
        let due = |shard: &ShardId, snapshot: &mut CopySnapshot| {
            snapshot.cut == self.cut && self.copies.contains(shard)
        };
        snapshots.extract_if(.., due).collect()
    }

    /// The report about a snapshot that was dropped before it was saved. That is a failure only while its cut is open.
    pub(crate) fn abandoned(
        &self,
        cut: CutId,
        epoch: Epoch,
        shard: ShardId,
    ) -> Option<PserverReport> {
        let text = "its snapshot was dropped: training needed the memory (checkpoint.memory)";
        let failure = Failure::new(ErrorClass::Unreachable, text);
        (self.cut == cut).then_some(PserverReport::SaveFailed { cut, epoch, shard, failure })
    }
}

#[cfg(test)]
mod tests {
    use heddle_protocol::control::CutAt;
    use heddle_protocol::ids::Generation;

    use super::*;

    fn cut(number: u32) -> CutId {
        CutId { generation: Generation(1), number }
    }

    fn command(copies: &[u32]) -> TakeCut {
        TakeCut {
            cut: cut(2),
            epoch: Epoch::first(Generation(1)),
            phase: PhaseNo(0),
            at: CutAt::Barriers(Vec::new()),
            staging: "/staging".to_owned(),
            copies: copies.iter().map(|&shard| ShardId(shard)).collect(),
            initial: false,
            last: false,
        }
    }

    fn snapshot(number: u32) -> CopySnapshot {
        CopySnapshot { cut: cut(number), epoch: Epoch::first(Generation(1)), step: Step(0) }
    }

    #[test]
    fn each_ordered_copy_is_saved_once() {
        let mut snapshots = CopySnapshots::new();
        let mut current = CurrentCut::new(&command(&[]));
        current.add_copies(&command(&[1, 2]));
        snapshots.insert(ShardId(1), snapshot(2));
        snapshots.insert(ShardId(2), snapshot(1));
        snapshots.insert(ShardId(3), snapshot(2));
        let due = current.take_due(&mut snapshots);
        assert_eq!(due.iter().map(|(shard, _)| *shard).collect::<Vec<_>>(), [ShardId(1)]);
        // The third shard is promoted.
        current.add_copies(&command(&[1, 3]));
        let due = current.take_due(&mut snapshots);
        assert_eq!(due.iter().map(|(shard, _)| *shard).collect::<Vec<_>>(), [ShardId(3)]);
        assert!(current.take_due(&mut snapshots).is_empty());
    }

    #[test]
    fn dropped_snapshot_is_a_failure_while_its_cut_is_open() {
        let current = CurrentCut::new(&command(&[]));
        let epoch = Epoch::first(Generation(1));
        assert!(current.abandoned(cut(2), epoch, ShardId(1)).is_some());
        assert!(current.abandoned(cut(1), epoch, ShardId(1)).is_none());
    }
}
