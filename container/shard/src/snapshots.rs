//! The snapshots of a shard: one armed for a later step, one open for the saver, one kept for a rollback.

use heddle_protocol::ids::{CutId, Step};

use crate::arena::Arena;
use crate::copy_on_write::Which;
use crate::dedup::DedupState;
use crate::lanes::StagedLanes;

/// A snapshot. Its cells are copies in the arena.
struct Snapshot {
    cut: CutId,
    state: DedupState,
}

/// All snapshots of a shard.
#[derive(Default)]
pub(crate) struct Snapshots {
    /// BSP: the cut to take, and after how many steps.
    armed: Option<(CutId, Step)>,
    open: Option<Snapshot>,
    kept: Option<Snapshot>,
}

/// What becomes of the armed cut.
pub(crate) enum ArmedCut {
    /// Its step has come.
    Take(CutId),
    /// The shard is beyond its step.
    Missed(CutId, Step),
}

impl Snapshots {
    pub(crate) fn arm(&mut self, cut: CutId, step: Step) {
        self.armed = Some((cut, step));
    }

    /// Cancels the armed cut, and returns it.
    pub(crate) fn disarm(&mut self) -> Option<CutId> {
        self.armed.take().map(|(cut, _)| cut)
    }

    /// Removes the armed cut if its step has come or passed.
    pub(crate) fn take_armed(&mut self, lanes: &StagedLanes) -> Option<ArmedCut> {
        let (cut, at) = self.armed?;
        if lanes.is_applying() {
            return None;
        }
        let step = lanes.step();
        if step == at || (lanes.all_ended() && step < at) {
            self.armed = None;
            Some(ArmedCut::Take(cut))
        } else if step > at {
            self.armed = None;
            Some(ArmedCut::Missed(cut, at))
        } else {
            None
        }
    }

    /// Takes the snapshot of a cut. One that is still being saved is dropped.
    pub(crate) fn take(&mut self, cut: CutId, state: DedupState, arena: &mut Arena) {
        arena.snap();
        self.open = Some(Snapshot { cut, state });
    }

    /// The cut is over. A committed snapshot is kept for a rollback if it is still complete.
    pub(crate) fn end(&mut self, cut: CutId, committed: bool, arena: &mut Arena) {
        if self.armed.is_some_and(|(armed, _)| armed == cut) {
            self.armed = None;
        }
        if !self.is_open(cut) {
            return;
        }
        let snapshot = self.open.take();
        if !committed {
            arena.drop_open();
        } else if arena.commit() {
            self.kept = snapshot;
        }
    }

    pub(crate) fn is_open(&self, cut: CutId) -> bool {
        self.open.as_ref().is_some_and(|snapshot| snapshot.cut == cut)
    }

    /// The dedup state of the snapshot that is being saved.
    pub(crate) fn open_state(&self, cut: CutId) -> Option<&DedupState> {
        self.open.as_ref().filter(|snapshot| snapshot.cut == cut).map(|snapshot| &snapshot.state)
    }

    /// Returns the cells to the snapshot of `cut`. None if it is not complete any more.
    pub(crate) fn restore(&mut self, cut: CutId, arena: &mut Arena) -> Option<DedupState> {
        let is = |snapshot: &Option<Snapshot>| snapshot.as_ref().is_some_and(|s| s.cut == cut);
        let which = match (is(&self.kept), is(&self.open)) {
            (true, _) => Which::Kept,
            (false, true) => Which::Open,
            (false, false) => return None,
        };
        if which == Which::Open {
            self.kept = self.open.take();
        }
        self.open = None;
        if !arena.restore(which) {
            self.drop_all(arena);
            return None;
        }
        self.kept.as_ref().map(|snapshot| snapshot.state.clone())
    }

    /// Drops both snapshots.
    pub(crate) fn drop_all(&mut self, arena: &mut Arena) {
        arena.drop_open();
        arena.drop_kept();
        (self.open, self.kept) = (None, None);
    }
}
