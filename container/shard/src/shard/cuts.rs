//! The cuts of a shard: armed for a step, taken, saved, and over.

use std::sync::Arc;

use heddle_protocol::control::ShardReport;
use heddle_protocol::frame::Header;
use heddle_protocol::ids::{CutId, Epoch, Step};

use super::Shard;
use crate::change::ShardChange;
use crate::content::{SnapshotGone, SnapshotHead};
use crate::dedup::DedupState;
use crate::effect::ShardEffect;
use crate::snapshots::ArmedCut;

impl Shard {
    /// BSP: takes the cut right after `step` steps are applied, at once if the shard is exactly there, and at the end of the
    /// phase if that comes first.
    pub(crate) fn arm(&mut self, cut: CutId, step: Step, out: &mut Vec<ShardEffect>) {
        self.memory.snapshots.arm(cut, step);
        self.take_armed(out);
    }

    /// The job ends with this cut: between its snapshot and its end the shard takes no change.
    pub(crate) fn end_with(&mut self, cut: CutId) {
        self.memory.snapshots.end_with(cut);
    }

    /// Cancels a cut that is not taken yet, and returns it.
    pub(crate) fn disarm(&mut self) -> Option<CutId> {
        self.memory.snapshots.disarm()
    }

    pub(super) fn take_armed(&mut self, out: &mut Vec<ShardEffect>) {
        let Some(lanes) = self.progress.lanes().filter(|lanes| !lanes.is_applying()) else {
            return;
        };
        match self.memory.snapshots.take_armed(lanes.step(), lanes.all_ended()) {
            None => {}
            Some(ArmedCut::Take(cut)) => self.snap(cut, out),
            Some(ArmedCut::Missed(cut, at)) => {
                let (shard, step) = (self.id, self.step());
                let reason = format!("the cut is at job step {at}, the shard is at {step}");
                let step = Some(step);
                out.push(ShardEffect::Report(ShardReport::CutAborted { shard, cut, step, reason }));
            }
        }
    }

    /// Takes a snapshot of the current state, in constant time. One that is still being saved is dropped.
    pub(crate) fn snap(&mut self, cut: CutId, out: &mut Vec<ShardEffect>) {
        let Some(seen) = self.progress.seen() else { return };
        let state = DedupState { phase: self.phase, steps: self.steps.count(), seen };
        self.memory.take(cut, state);
        let (shard, step) = (self.id, self.step());
        if let Some(changes) = &mut self.changes {
            // The epoch is the set's.
            let header = Header { shard, ..Header::barrier(cut, Epoch::default()) };
            changes.push((out.len(), Arc::new(ShardChange::bare(header))));
        }
        out.push(ShardEffect::Report(ShardReport::SnapshotTaken { shard, cut, step }));
    }

    /// Whether the snapshot of the cut is there.
    pub(crate) fn has_snapshot(&self, cut: CutId) -> bool {
        self.memory.snapshots.is_open(cut)
    }

    /// The cut is over. A committed snapshot is kept for a rollback if it is still complete.
    pub(crate) fn end_cut(&mut self, cut: CutId, committed: bool) {
        self.memory.end_cut(cut, committed);
    }

    /// Returns to the snapshot of `cut`. False if it is not complete any more.
    pub(crate) fn restore(&mut self, cut: CutId) -> bool {
        self.memory.restore(cut).map(|state| self.loaded = Some(state)).is_some()
    }

    /// The head of the snapshot that is being saved.
    pub(crate) fn snapshot_head(&mut self, cut: CutId) -> Result<SnapshotHead, SnapshotGone> {
        self.memory.snapshots.open_head(cut).ok_or(SnapshotGone { shard: self.id, cut })
    }

    /// Fills `out` with the section's f32 from `at` on, as they were at the cut. Sections come in order and each in
    /// ascending pieces; a piece is a multiple of 256 f32 or ends its section.
    pub(crate) fn save(
        &mut self,
        cut: CutId,
        section: usize,
        at: usize,
        out: &mut [f32],
    ) -> Result<(), SnapshotGone> {
        let gone = SnapshotGone { shard: self.id, cut };
        self.memory.save(cut, section, at, out).then_some(()).ok_or(gone)
    }
}
