//! The memory of a shard: one flat array of f32 in units of 128 bytes, with snapshots.
//!
//! Every plane of every table (its values, each array of optimizer state) begins at a unit, so a unit belongs to one plane.
//! The array is flat, so a range of rows is one slice that is sent without a copy.

use std::ops::Range;

use crate::cells::Cells;
use crate::copy_on_write::{CopyOnWrite, Full, UNIT, Which};

/// Cells, and the copies of their snapshots.
pub(crate) struct Arena {
    cells: Cells,
    copies: CopyOnWrite,
}

impl Arena {
    /// `cells_len` zeros (a multiple of the unit) and room for copies of `copy_bytes_max` bytes.
    pub(crate) fn new(cells_len: usize, copy_bytes_max: usize) -> Self {
        debug_assert_eq!(cells_len % UNIT, 0);
        Self {
            cells: Cells::zeros(cells_len),
            copies: CopyOnWrite::new(cells_len / UNIT, copy_bytes_max),
        }
    }

    /// Touches the memory for copies of this number of cells.
    pub(crate) fn touch_copies(&mut self, cells_len: usize) {
        self.copies.touch(cells_len / UNIT);
    }

    /// All cells.
    pub(crate) fn cells(&self) -> &[f32] {
        &self.cells
    }

    /// Cells for loading. There must be no snapshot.
    pub(crate) fn cells_for_loading(&mut self) -> &mut [f32] {
        debug_assert!(self.copies.is_idle());
        &mut self.cells
    }

    /// Cells for writing, after the snapshots have their copies of all of `ranges` (in ascending order), which touch at most
    /// `units_max` units. All or nothing: a failure changes nothing.
    ///
    /// # Errors
    /// [`Full`]: wait for the saver.
    pub(crate) fn write<R>(&mut self, ranges: R, units_max: usize) -> Result<&mut [f32], Full>
    where
        R: Iterator<Item = Range<usize>> + Clone,
    {
        if self.copies.needs_any() {
            // Counting takes a walk of its own over all ranges, so it is done only where room may be short.
            if self.copies.room() < units_max {
                while self.missing(ranges.clone()).count() > self.copies.room() {
                    self.copies.make_room()?;
                }
            }
            for unit in units(ranges) {
                self.copies.preserve(unit, &self.cells[unit * UNIT..(unit + 1) * UNIT]);
            }
        }
        Ok(&mut self.cells)
    }

    /// As [`Self::write`], for ranges in any order that may touch a unit many times.
    ///
    /// # Errors
    /// [`Full`]: wait for the saver.
    pub(crate) fn write_any_order<R>(&mut self, ranges: R) -> Result<&mut [f32], Full>
    where
        R: Iterator<Item = Range<usize>> + Clone,
    {
        if self.copies.needs_any() {
            let touched =
                || ranges.clone().flat_map(|range| range.start / UNIT..range.end.div_ceil(UNIT));
            let missing = |arena: &Self| touched().filter(|&unit| arena.copies.needs(unit)).count();
            // A unit that is touched twice is counted twice: exact numbers matter only where room is short.
            while missing(self) > self.copies.room() {
                let mut units: Vec<usize> =
                    touched().filter(|&unit| self.copies.needs(unit)).collect();
                units.sort_unstable();
                units.dedup();
                if units.len() <= self.copies.room() {
                    break;
                }
                self.copies.make_room()?;
            }
            for unit in touched() {
                self.copies.preserve(unit, &self.cells[unit * UNIT..(unit + 1) * UNIT]);
            }
        }
        Ok(&mut self.cells)
    }

    fn missing(&self, ranges: impl Iterator<Item = Range<usize>>) -> impl Iterator<Item = usize> {
        units(ranges).filter(|&unit| self.copies.needs(unit))
    }

    /// Takes a snapshot of all cells.
    pub(crate) fn snap(&mut self) {
        self.copies.open();
    }

    /// Fills `out` with the content of cells `at ..` at the snapshot that is being saved, and counts them as saved. Pieces
    /// come in ascending order; the saver may start again at an earlier one. `at` is the start of a unit. Returns whether the
    /// snapshot still has them: cells that were read before may be gone.
    #[must_use]
    pub(crate) fn save(&mut self, at: usize, out: &mut [f32]) -> bool {
        if !self.copies.seek(at / UNIT) {
            return false;
        }
        let end = at + out.len();
        self.copies.read(Which::Open, at / UNIT, &self.cells[at..end], out);
        // A partial last unit counts as read: padding follows, or the next piece starts there.
        self.copies.mark_saved(at / UNIT..end.div_ceil(UNIT));
        true
    }

    /// See [`CopyOnWrite::commit`].
    pub(crate) fn commit(&mut self) -> bool {
        self.copies.commit()
    }

    /// Drops the snapshot that is being saved.
    pub(crate) fn drop_open(&mut self) {
        self.copies.drop_open();
    }

    /// Drops the snapshot that is kept for a rollback.
    pub(crate) fn drop_kept(&mut self) {
        self.copies.drop_kept();
    }

    /// Returns to a snapshot, if it is still complete.
    pub(crate) fn restore(&mut self, which: Which) -> bool {
        self.copies.restore(which, &mut self.cells)
    }

    /// Bytes of copies.
    #[cfg(test)]
    pub(crate) fn copy_bytes(&self) -> usize {
        self.copies.bytes_used()
    }
}

/// Most units that a range of this length touches.
pub(crate) fn units_of(len: usize) -> usize {
    if len == 0 { 0 } else { (len - 1).div_ceil(UNIT) + 1 }
}

/// The units that ascending ranges touch, each once.
fn units(ranges: impl Iterator<Item = Range<usize>>) -> impl Iterator<Item = usize> {
    let mut next = 0;
    ranges.filter(|range| !range.is_empty()).flat_map(move |range| {
        let first = (range.start / UNIT).max(next);
        let end = range.end.div_ceil(UNIT);
        next = next.max(end);
        first..end
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Memory for copies with room for `slots` units.
    fn memory(units: usize, slots: usize) -> usize {
        CopyOnWrite::bookkeeping(units) + slots * UNIT * 4
    }

    fn write(arena: &mut Arena, at: usize, value: f32) -> Result<(), Full> {
        arena.write(std::iter::once(at..at + 1), 1)?[at] = value;
        Ok(())
    }

    fn saved(arena: &mut Arena) -> Vec<f32> {
        let mut out = vec![0.0; arena.cells().len()];
        for (i, piece) in out.chunks_mut(2 * UNIT).enumerate() {
            assert!(arena.save(i * 2 * UNIT, piece));
        }
        out
    }

    #[test]
    fn later_writes_do_not_change_a_snapshot() {
        let mut arena = Arena::new(8 * UNIT, 1 << 20);
        write(&mut arena, 5, 1.0).expect("no snapshot");
        arena.snap();
        write(&mut arena, 5, 2.0).expect("room");
        write(&mut arena, 7 * UNIT, 3.0).expect("room");
        let saved = saved(&mut arena);
        assert_eq!((saved[5], saved[7 * UNIT]), (1.0, 0.0));
        assert_eq!((arena.cells()[5], arena.cells()[7 * UNIT]), (2.0, 3.0));
    }

    #[test]
    fn full_pool_drops_the_kept_snapshot_then_blocks_writes() {
        let mut arena = Arena::new(8 * UNIT, memory(8, 3));
        arena.snap();
        saved(&mut arena);
        assert!(arena.commit());
        write(&mut arena, 0, 1.0).expect("room");
        arena.snap();
        write(&mut arena, 0, 2.0).expect("room");
        write(&mut arena, UNIT, 2.0).expect("room");
        write(&mut arena, 2 * UNIT, 2.0).expect("dropping the kept one makes room");
        assert_eq!(arena.copy_bytes(), 3 * UNIT * 4, "the kept one is gone");
        assert_eq!(write(&mut arena, 3 * UNIT, 2.0), Err(Full));
        assert_eq!(arena.cells()[3 * UNIT], 0.0, "nothing was written");
        let mut out = vec![0.0; 2 * UNIT];
        assert!(arena.save(0, &mut out));
        assert_eq!((out[0], out[UNIT]), (1.0, 0.0));
        write(&mut arena, 3 * UNIT, 2.0).expect("the saver has read more");
        write(&mut arena, 0, 3.0).expect("units that were read need no copy");
        assert!(
            !arena.save(0, &mut out),
            "units that were read are gone: no second file can be written from them"
        );
        assert!(!arena.commit(), "not complete any more");
    }

    #[test]
    fn restored_snapshot_can_be_restored_again() {
        let mut arena = Arena::new(4 * UNIT, 1 << 20);
        write(&mut arena, 9, 1.0).expect("no snapshot");
        arena.snap();
        saved(&mut arena);
        arena.commit();
        for _ in 0..3 {
            write(&mut arena, 9, 5.0).expect("room");
            arena.snap();
            write(&mut arena, 9, 6.0).expect("room");
            assert!(arena.restore(Which::Kept));
            assert_eq!(arena.cells()[9], 1.0);
        }
        assert_eq!(arena.copy_bytes(), 0);
    }

    #[derive(Clone, Debug)]
    enum Op {
        Write(usize, usize, f32),
        Snap,
        Save(usize),
        SaveAgain,
        Commit,
        DropOpen,
        DropKept,
        RestoreKept,
        RestoreOpen,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            8 => (0usize..16 * UNIT, 1usize..600, -1.0f32..1.0)
                .prop_map(|(a, n, v)| Op::Write(a, n, v)),
            2 => Just(Op::Snap),
            3 => (1usize..5).prop_map(Op::Save),
            1 => Just(Op::SaveAgain),
            1 => Just(Op::Commit),
            1 => Just(Op::DropOpen),
            1 => Just(Op::DropKept),
            1 => Just(Op::RestoreKept),
            1 => Just(Op::RestoreOpen),
        ]
    }

    proptest! {
        /// Compared with whole copies: saved and restored content is that of the cut, and no copy leaks.
        #[test]
        fn snapshots_agree_with_whole_copies(
            ops in prop::collection::vec(op(), 1..80),
            slots in 0usize..24,
        ) {
            const LEN: usize = 16 * UNIT;
            let mut arena = Arena::new(LEN, memory(16, slots));
            let mut cells = vec![0.0f32; LEN];
            let mut open: Option<(Vec<f32>, usize)> = None;
            let mut kept: Option<Vec<f32>> = None;
            let mut again = false;
            for op in ops {
                match op {
                    Op::Write(at, len, value) => {
                        let range = at..(at + len).min(LEN);
                        let units = units_of(range.len());
                        if let Ok(live) = arena.write(std::iter::once(range.clone()), units) {
                            live[range.clone()].fill(value);
                            cells[range].fill(value);
                        } else {
                            prop_assert!(open.is_some(), "only an unsaved snapshot blocks a write");
                        }
                    }
                    Op::Snap => {
                        arena.snap();
                        open = Some((cells.clone(), 0));
                    }
                    Op::Save(units) => if let Some((then, at)) = &mut open {
                        let end = (*at + units * UNIT).min(LEN);
                        let mut out = vec![0.0; end - *at];
                        if end > *at && !arena.save(*at, &mut out) {
                            prop_assert_eq!(*at, 0, "only a saver that starts again finds nothing");
                            prop_assert!(again);
                            arena.drop_open();
                            open = None;
                            continue;
                        }
                        prop_assert_eq!(&out, &then[*at..end]);
                        *at = end;
                    },
                    Op::SaveAgain => if let Some((_, at)) = &mut open {
                        again |= *at > 0;
                        *at = 0;
                    },
                    Op::Commit => {
                        let was = open.take();
                        if arena.commit() {
                            kept = was.map(|(then, _)| then);
                        }
                    }
                    Op::DropOpen => {
                        arena.drop_open();
                        open = None;
                    }
                    Op::DropKept => {
                        arena.drop_kept();
                        kept = None;
                    }
                    Op::RestoreKept => if arena.restore(Which::Kept) {
                        cells = kept.clone().expect("one was kept");
                        open = None;
                    } else {
                        // Dropped for room.
                        kept = None;
                        open = None;
                    },
                    Op::RestoreOpen => if arena.restore(Which::Open) {
                        cells = open.take().expect("one was open").0;
                        kept = Some(cells.clone());
                    },
                }
                prop_assert_eq!(arena.cells(), &cells[..]);
            }
            arena.drop_open();
            arena.drop_kept();
            prop_assert_eq!(arena.copy_bytes(), 0);
            prop_assert!(arena.write(std::iter::once(0..LEN), LEN / UNIT).is_ok());
        }
    }
}
