//! How a shard takes a cut and gives its state to the saver.

use heddle_protocol::ids::{CutId, Step};

use super::{Mode, Shard, Snapshot};
use crate::content::SnapshotGone;
use crate::dedup::{DedupState, Seen};
use crate::effect::{Effect, ShardReport};

impl Shard {
    /// BSP: takes the cut right after `step` steps are applied, now if it stands exactly there, and at
    /// the end of the phase if that comes first.
    pub(crate) fn arm(&mut self, cut: CutId, step: Step, out: &mut Vec<Effect>) {
        self.armed = Some((cut, step));
        self.take_armed(out);
    }

    /// Gives the cut up that is still to be taken. Tells which.
    pub(crate) fn disarm(&mut self) -> Option<CutId> {
        self.armed.take().map(|(cut, _)| cut)
    }

    pub(super) fn take_armed(&mut self, out: &mut Vec<Effect>) {
        let (Some((cut, at)), Mode::Lanes(lanes)) = (self.armed, &self.mode) else {
            return;
        };
        if lanes.is_applying() {
            return;
        }
        let (step, ended) = (lanes.step(), lanes.all_ended());
        if step == at || (ended && step < at) {
            self.armed = None;
            self.snap(cut, out);
        } else if step > at {
            self.armed = None;
            let reason = format!("asked for job step {at}, stands at {step}");
            out.push(Effect::Report(ShardReport::CutAborted {
                shard: self.id,
                cut,
                step: Some(step),
                reason,
            }));
        }
    }

    /// Fixes the state as it is. Costs nothing whatever the size; a snapshot still being saved is dropped.
    pub(crate) fn snap(&mut self, cut: CutId, out: &mut Vec<Effect>) {
        let seen = match &self.mode {
            Mode::Lanes(lanes) => lanes.seen(),
            Mode::Queue(marks) => Seen::Queue(marks.clone()),
            Mode::ReadOnly => Seen::ReadOnly,
            Mode::Idle => return,
        };
        self.arena.snap();
        self.open = Some(Snapshot { cut, memory: DedupState { phase: self.phase, seen } });
        out.push(Effect::Report(ShardReport::SnapshotTaken {
            shard: self.id,
            cut,
            step: self.step(),
        }));
    }

    /// The cut is over. Committed: its snapshot is kept for a rollback, if it is still whole.
    pub(crate) fn end_cut(&mut self, cut: CutId, committed: bool) {
        if self.armed.is_some_and(|(armed, _)| armed == cut) {
            self.armed = None;
        }
        if self.open.as_ref().is_none_or(|snapshot| snapshot.cut != cut) {
            return;
        }
        let snapshot = self.open.take();
        if !committed {
            self.arena.drop_open();
        } else if self.arena.commit() {
            self.kept = snapshot;
        }
    }

    /// The once-only memory of the snapshot that is to be saved, as bytes.
    pub(crate) fn snapshot_memory(&self, cut: CutId) -> Result<Vec<u8>, SnapshotGone> {
        self.open_snapshot(cut).map(|snapshot| snapshot.memory.encode())
    }

    /// Fills `out` with the section's f32 from `at` on, as they were at the cut. Sections come in order and
    /// each in ascending pieces; a piece is a multiple of 256 f32 or ends its section.
    pub(crate) fn save(
        &mut self,
        cut: CutId,
        section: usize,
        at: usize,
        out: &mut [f32],
    ) -> Result<(), SnapshotGone> {
        self.open_snapshot(cut)?;
        let gone = SnapshotGone { shard: self.id, cut };
        let place = self.place(section).ok_or(gone)?;
        if at + out.len() > place.len() {
            return Err(gone);
        }
        if self.arena.save(place.start + at, out) { Ok(()) } else { Err(gone) }
    }

    fn open_snapshot(&self, cut: CutId) -> Result<&Snapshot, SnapshotGone> {
        let gone = SnapshotGone { shard: self.id, cut };
        self.open.as_ref().filter(|snapshot| snapshot.cut == cut).ok_or(gone)
    }
}
