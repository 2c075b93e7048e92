//! Copy-on-write for snapshots: a unit's content at a cut is copied before the first later write.
//!
//! Taking a snapshot copies nothing, for any size. A unit of 128 bytes without a mark still has its content of the cut. A
//! write copies the unit first, once, into a pool, and marks it; the pages of the pool were touched at the start, as far as rows
//! that exist then may need them. Larger units were rejected after measuring: the first push of 10,000 random rows after a cut
//! took 40 to 370 ms with units of 64 KiB, and 3 to 8 ms with 1 KiB. While the pool is full, a push waits until the saver has
//! made room for the copies of all its units, which takes a quarter of the time with 128 bytes instead of 512. Smaller units
//! cost more memory: each takes two slot numbers and two marks, 8.25 bytes, which are part of the memory for copies.
//!
//! At most two snapshots exist at once: the *open* one, which the saver reads, and the *kept* one, the last that became a
//! checkpoint, to which a rollback can return without reading a file. When the pool is full, the kept one is dropped first.
//! Then the open one is no longer kept for a rollback: copies of units that the saver has read are freed. Then writes have
//! to wait for the saver.
//!
//! Each snapshot has its own column of marks, so dropping one never touches the other.

use std::ops::Range;

use heddle_protocol::mutation::Mutation;

use crate::cells::Cells;

/// Values of a unit: 128 bytes of f32.
pub(crate) const UNIT: usize = 32;
/// Bytes of what both columns have for eight units.
const BOOKKEEPING_OF_EIGHT: usize = 2 * (8 * 4 + 1);

/// Flag in a slot number of the kept snapshot: the open snapshot owns the slot.
const SHARED: u32 = 1 << 31;
/// Units of a word of marks.
const WORD: usize = 64;

/// One of the two snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// The one that is being saved.
    Open,
    /// The one to which a rollback may return.
    Kept,
}

/// The units of which one snapshot has copies.
struct Column {
    /// A bit for each unit: it has a copy.
    marks: Vec<u64>,
    /// By unit: slot of its copy in the pool; valid if it is marked.
    slots: Cells<u32>,
    /// Units that have a copy, in the order of writing.
    copied: Vec<u32>,
}

impl Column {
    fn new(units: usize) -> Self {
        let marks = vec![0; units.div_ceil(WORD)];
        Self { marks, slots: Cells::zeros(units), copied: Vec::new() }
    }

    fn has(&self, unit: usize) -> bool {
        self.marks[unit / WORD] >> (unit % WORD) & 1 == 1
    }

    fn set(&mut self, unit: usize, slot: u32) {
        self.marks[unit / WORD] |= 1 << (unit % WORD);
        self.slots[unit] = slot;
        self.copied.push(unit as u32);
    }

    fn clear(&mut self, unit: usize) {
        self.marks[unit / WORD] &= !(1 << (unit % WORD));
    }
}

/// The pool and its two snapshots.
pub(crate) struct CopyOnWrite {
    /// `[slots × UNIT]`.
    pool: Cells,
    free: Vec<u32>,
    /// One for each of the two snapshots.
    columns: [Column; 2],
    units: usize,
    /// Column of the open snapshot, and of the kept one.
    open: Option<usize>,
    kept: Option<usize>,
    /// The saver has read the units below this one.
    saved: usize,
    /// Whether the open snapshot is complete for a rollback, not just for the saver.
    keep: bool,
}

/// The pool is full and no snapshot can be dropped: the write waits for the saver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl CopyOnWrite {
    /// A pool for copies of `units` units. With its bookkeeping it takes at most `bytes_max` bytes (or the bookkeeping alone),
    /// and has room for at most twice the units.
    pub(crate) fn new(units: usize, bytes_max: usize) -> Self {
        let room = bytes_max.saturating_sub(Self::bookkeeping(units));
        let slots = (room / (UNIT * 4)).min(units.saturating_mul(2)).min(SHARED as usize - 1);
        Self {
            pool: Cells::zeros(slots * UNIT),
            free: (0..slots as u32).rev().collect(),
            columns: [Column::new(units), Column::new(units)],
            units,
            open: None,
            kept: None,
            saved: 0,
            keep: false,
        }
    }

    /// Touches the pages for copies of this number of units, so that writes after a cut do not have to. Called before the first
    /// snapshot.
    pub(crate) fn touch(&mut self, units: usize) {
        let copies = self.pool.len().min(2 * units * UNIT);
        self.pool[..copies].fill(f32::NAN);
        for column in &mut self.columns {
            // Zeros would be read from untouched pages.
            column.slots[..units].fill(u32::MAX);
        }
    }

    /// Bytes that the marks and slots of `units` units take.
    pub(crate) fn bookkeeping(units: usize) -> usize {
        units.div_ceil(8) * BOOKKEEPING_OF_EIGHT
    }

    /// Whether there is no snapshot, so that writes need no copies.
    pub(crate) fn is_idle(&self) -> bool {
        self.open.is_none() && self.kept.is_none()
    }

    /// Whether some write may need a copy: there is a snapshot without copies of all units.
    pub(crate) fn needs_any(&self) -> bool {
        let lacks = |column: Option<usize>| {
            column.is_some_and(|column| self.columns[column].copied.len() < self.units)
        };
        lacks(self.open) || lacks(self.kept)
    }

    /// Takes a snapshot. An open one is dropped.
    pub(crate) fn open(&mut self) {
        self.drop_open();
        let column = match self.kept {
            Some(kept) => 1 - kept,
            None => 0,
        };
        self.open = Some(column);
        self.saved = 0;
        self.keep = true;
    }

    /// The open snapshot became a checkpoint. It is kept if it is still complete; returns whether it is.
    pub(crate) fn commit(&mut self) -> bool {
        if self.open.is_none() || !self.keep {
            self.drop_open();
            return false;
        }
        self.drop_kept();
        self.kept = self.open.take();
        true
    }

    /// Drops the open snapshot.
    pub(crate) fn drop_open(&mut self) {
        let Some(open) = self.open.take() else { return };
        let copied = std::mem::take(&mut self.columns[open].copied);
        for &unit in &copied {
            // Copies of units that the saver has read may be free already.
            if self.columns[open].has(unit as usize) {
                self.release(open, unit as usize);
            }
        }
        self.reuse(open, copied);
    }

    /// Drops the kept snapshot.
    pub(crate) fn drop_kept(&mut self) {
        let Some(kept) = self.kept.take() else { return };
        let copied = std::mem::take(&mut self.columns[kept].copied);
        for &unit in &copied {
            let column = &mut self.columns[kept];
            column.clear(unit as usize);
            let slot = column.slots[unit as usize];
            if slot & SHARED == 0 {
                self.free.push(slot);
            }
        }
        self.reuse(kept, copied);
    }

    /// Returns the list's memory to its column, none of whose units is marked.
    fn reuse(&mut self, column: usize, mut copied: Vec<u32>) {
        debug_assert!(self.columns[column].marks.iter().all(|marks| *marks == 0));
        copied.clear();
        self.columns[column].copied = copied;
    }

    /// Frees the open snapshot's copy of a unit, or passes it to the kept snapshot that shares it.
    fn release(&mut self, open: usize, unit: usize) {
        let slot = self.columns[open].slots[unit];
        self.columns[open].clear(unit);
        if let Some(kept) = self.kept {
            let kept = &mut self.columns[kept];
            if kept.has(unit) && kept.slots[unit] == slot | SHARED {
                kept.slots[unit] = slot;
                return;
            }
        }
        self.free.push(slot);
    }

    /// Whether a write to the unit has to copy it first.
    pub(crate) fn needs(&self, unit: usize) -> bool {
        self.open_needs(unit) || self.kept_needs(unit)
    }

    fn open_needs(&self, unit: usize) -> bool {
        !Mutation::TornSnapshot.is_on()
            && self.open.is_some_and(|open| {
                (self.keep || unit >= self.saved) && !self.columns[open].has(unit)
            })
    }

    fn kept_needs(&self, unit: usize) -> bool {
        self.kept.is_some_and(|kept| !self.columns[kept].has(unit))
    }

    /// Number of copies that fit.
    pub(crate) fn room(&self) -> usize {
        self.free.len()
    }

    /// Drops the next candidate to make room: the kept snapshot, then units that the saver has read.
    /// Fewer units may need a copy afterwards.
    ///
    /// # Errors
    /// [`Full`] when only the saver can help.
    pub(crate) fn make_room(&mut self) -> Result<(), Full> {
        if self.kept.is_some() {
            self.drop_kept();
            return Ok(());
        }
        if self.open.is_some() && self.keep {
            self.stop_keeping();
            return Ok(());
        }
        Err(Full)
    }

    /// From now on the open snapshot is for the saver only.
    fn stop_keeping(&mut self) {
        let Some(open) = self.open else { return };
        self.keep = false;
        let mut copied = std::mem::take(&mut self.columns[open].copied);
        copied.retain(|&unit| {
            let read = (unit as usize) < self.saved;
            if read {
                self.release(open, unit as usize);
            }
            !read
        });
        self.columns[open].copied = copied;
    }

    /// Copies the unit's `content` if a snapshot needs it.
    ///
    /// # Panics
    /// If there is no [`Self::room`].
    pub(crate) fn preserve(&mut self, unit: usize, content: &[f32]) {
        let (open, kept) = (self.open_needs(unit), self.kept_needs(unit));
        if !open && !kept {
            return;
        }
        let slot = self.free.pop().expect("the arena counts what it needs against the room first");
        let at = slot as usize * UNIT;
        self.pool[at..at + UNIT].copy_from_slice(content);
        if let (true, Some(column)) = (open, self.open) {
            self.columns[column].set(unit, slot);
        }
        if let (true, Some(column)) = (kept, self.kept) {
            self.columns[column].set(unit, if open { slot | SHARED } else { slot });
        }
    }

    /// Fills `out` with the content of units `first ..` at the snapshot. `cells` are the live ones, as many as `out` has.
    pub(crate) fn read(&self, which: Which, first: usize, cells: &[f32], out: &mut [f32]) {
        let column = self.column(which);
        debug_assert!(column.is_some(), "the caller has checked that the snapshot exists");
        let Some(column) = column else {
            return;
        };
        out.copy_from_slice(cells);
        for (i, piece) in out.chunks_mut(UNIT).enumerate() {
            if let Some(copy) = self.copy_of(column, first + i) {
                piece.copy_from_slice(&copy[..piece.len()]);
            }
        }
    }

    /// The saver continues at unit `first`; an earlier unit means that its file has to be written again, a later one that
    /// the units between have no rows. Returns whether it can: copies of units that it has read are kept only while the
    /// snapshot is complete for a rollback.
    pub(crate) fn seek(&mut self, first: usize) -> bool {
        if first < self.saved && !self.keep {
            return false;
        }
        self.saved = first;
        true
    }

    /// The saver has read these units of the open snapshot.
    pub(crate) fn mark_saved(&mut self, units: Range<usize>) {
        debug_assert!(units.start <= self.saved, "the saver reads in order");
        self.saved = self.saved.max(units.end).min(self.units);
        if let (false, Some(open)) = (self.keep, self.open) {
            // They stay in `copied` without their mark, and are not copied again.
            for unit in units {
                if self.columns[open].has(unit) {
                    self.release(open, unit);
                }
            }
        }
    }

    /// Writes the snapshot's units back into `cells`. Afterwards only that snapshot exists, as the kept one, as if just
    /// taken.
    pub(crate) fn restore(&mut self, which: Which, cells: &mut [f32]) -> bool {
        if which == Which::Open {
            if !self.keep || self.open.is_none() {
                return false;
            }
            self.drop_kept();
            self.kept = self.open.take();
        }
        self.drop_open();
        let Some(kept) = self.kept else { return false };
        let copied = std::mem::take(&mut self.columns[kept].copied);
        for &unit in &copied {
            let unit = unit as usize;
            let slot = self.columns[kept].slots[unit] & !SHARED;
            let from = slot as usize * UNIT;
            cells[unit * UNIT..(unit + 1) * UNIT].copy_from_slice(&self.pool[from..from + UNIT]);
            self.columns[kept].clear(unit);
            self.free.push(slot);
        }
        let mut copied = copied;
        copied.clear();
        self.columns[kept].copied = copied;
        true
    }

    /// Bytes of copies in use.
    #[cfg(test)]
    pub(crate) fn bytes_used(&self) -> usize {
        (self.pool.len() / UNIT - self.free.len()) * UNIT * 4
    }

    fn column(&self, which: Which) -> Option<&Column> {
        let index = match which {
            Which::Open => self.open,
            Which::Kept => self.kept,
        };
        index.map(|index| &self.columns[index])
    }

    fn copy_of(&self, column: &Column, unit: usize) -> Option<&[f32]> {
        column.has(unit).then(|| {
            let at = (column.slots[unit] & !SHARED) as usize * UNIT;
            &self.pool[at..at + UNIT]
        })
    }
}
