//! The snapshots of a shard: one armed for a later step, one open for the saver, one kept for a rollback.

use heddle_protocol::ids::{CutId, Step};

use crate::arena::Arena;
use crate::content::SnapshotHead;
use crate::copy_on_write::Which;
use crate::dedup::DedupState;

/// A snapshot. Its cells are copies in the arena.
struct Snapshot {
    cut: CutId,
    state: DedupState,
    /// Rows of each sparse table, by table id; 0 for dense ones.
    rows: Vec<u32>,
    /// A saver reads it.
    is_read: bool,
}

/// All snapshots of a shard.
#[derive(Default)]
pub(crate) struct Snapshots {
    /// BSP: the cut to take, and after how many steps.
    armed: Option<(CutId, Step)>,
    open: Option<Snapshot>,
    kept: Option<Snapshot>,
    /// The cut with which the job ends.
    last: Option<CutId>,
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

    /// The job ends with this cut.
    pub(crate) fn end_with(&mut self, cut: CutId) {
        self.last = Some(cut);
    }

    /// Whether the snapshot with which the job ends is open: a change would be lost.
    pub(crate) fn is_last_open(&self) -> bool {
        self.last.is_some_and(|last| self.is_open(last))
    }

    /// Cancels the armed cut, and returns it.
    pub(crate) fn disarm(&mut self) -> Option<CutId> {
        self.armed.take().map(|(cut, _)| cut)
    }

    /// Removes the armed cut if its step has come or passed: the shard is at `step`, and none follows if all lanes have
    /// ended.
    pub(crate) fn take_armed(&mut self, step: Step, all_ended: bool) -> Option<ArmedCut> {
        let (cut, at) = self.armed?;
        if step == at || (all_ended && step < at) {
            self.armed = None;
            Some(ArmedCut::Take(cut))
        } else if step > at {
            self.armed = None;
            Some(ArmedCut::Missed(cut, at))
        } else {
            None
        }
    }

    /// Takes the snapshot of a cut. One that is still being saved is dropped. `rows`: of each sparse table, by table id; 0 for
    /// dense ones.
    pub(crate) fn take(
        &mut self,
        cut: CutId,
        state: DedupState,
        rows: Vec<u32>,
        arena: &mut Arena,
    ) {
        arena.snap();
        self.open = Some(Snapshot { cut, state, rows, is_read: false });
    }

    /// Rows of a sparse table from this number on are in no snapshot.
    pub(crate) fn rows_of(&self, table: usize) -> u32 {
        let rows = |snapshot: &Option<Snapshot>| {
            snapshot.as_ref().and_then(|s| s.rows.get(table).copied()).unwrap_or(0)
        };
        rows(&self.open).max(rows(&self.kept))
    }

    /// The cut is over. A committed snapshot is kept for a rollback if it is still complete.
    pub(crate) fn end(&mut self, cut: CutId, committed: bool, arena: &mut Arena) {
        if self.armed.is_some_and(|(armed, _)| armed == cut) {
            self.armed = None;
        }
        if !self.is_open(cut) {
            // One cut is open at a time: an older one has ended too, and the command that ended it was lost.
            if self.open.as_ref().is_some_and(|snapshot| snapshot.cut < cut) {
                self.drop_open(arena);
            }
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

    /// Whether a saver reads the open snapshot.
    pub(crate) fn is_read(&self) -> bool {
        self.open.as_ref().is_some_and(|snapshot| snapshot.is_read)
    }

    /// The head of the snapshot that is being saved.
    pub(crate) fn open_head(&mut self, cut: CutId) -> Option<SnapshotHead> {
        let open = self.open.as_mut().filter(|snapshot| snapshot.cut == cut)?;
        open.is_read = true;
        Some(SnapshotHead { dedup_state: open.state.encode(), sparse_rows: open.rows.clone() })
    }

    /// Returns the cells to the snapshot of `cut`, and returns its dedup state and numbers of rows. None if it is not
    /// complete any more.
    pub(crate) fn restore(
        &mut self,
        cut: CutId,
        arena: &mut Arena,
    ) -> Option<(DedupState, Vec<u32>)> {
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
        self.kept.as_ref().map(|snapshot| (snapshot.state.clone(), snapshot.rows.clone()))
    }

    /// Drops the open snapshot.
    pub(crate) fn drop_open(&mut self, arena: &mut Arena) {
        arena.drop_open();
        self.open = None;
    }

    /// Drops both snapshots.
    pub(crate) fn drop_all(&mut self, arena: &mut Arena) {
        arena.drop_open();
        arena.drop_kept();
        (self.open, self.kept) = (None, None);
    }
}
