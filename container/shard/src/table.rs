//! A shard's slice of a table: its rows, and the cells of their values and optimizer state in the arena.
//!
//! The rows of a sparse table are numbered as they are created ([`SparseRows`]); from there on they are as those of a dense
//! one.

use std::ops::Range;

use heddle_protocol::frame::{Header, Status, flags};
use heddle_protocol::job_spec::{TableKind, TableSpec, shard_rows};

use crate::arena::{Arena, units_of};
use crate::copy_on_write::{Full, UNIT};
use crate::sparse_rows::{
    POSITION_CELLS, Positions, RowPlanes, RowStart, SliceSetup, SparseRows, TableIsFull,
};
use heddle_optimizer::{Initialiser, Rule, prefetch_cells};

/// Most rows of a block of keyed rows, and about as many values: with state and sums at most 16 KiB, and enough loads at once
/// to hide the memory behind them.
const BLOCK_ROWS: usize = 64;
const BLOCK_VALUES: usize = 1024;

/// The slice of one table.
pub(crate) struct TableSlice {
    /// The table's name in the job.
    pub(crate) name: String,
    /// Rows of the whole table in this slice; of a sparse table the row numbers for which there is room.
    pub(crate) rows: Range<u64>,
    /// Values per row.
    pub(crate) cols: usize,
    /// The update rule, before the number of the step.
    pub(crate) rule: Rule,
    /// How the rows begin.
    pub(crate) init: Initialiser,
    /// Planes: name and cells. Values first, then the optimizer's state. All have the same length.
    pub(crate) planes: Vec<(&'static str, Range<usize>)>,
    /// Of a sparse table: the rows that exist.
    pub(crate) sparse: Option<Box<SparseRows>>,
    /// While the copy is filled: rows from this one on are not here yet, and changes of them are not applied.
    pub(crate) filled: Option<usize>,
    /// Of a block of keyed rows, from push to push: values and state.
    blocks: [Vec<f32>; 3],
    /// The first cell after the table, at the start of a unit.
    end: usize,
}

/// Why a gradient was not applied. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// Copies of a snapshot have no room: wait for the saver.
    Copies,
    /// The table has no room for new rows, and the job is to fail.
    Rows,
}

impl From<Full> for NoRoom {
    fn from(_: Full) -> Self {
        Self::Copies
    }
}

impl From<TableIsFull> for NoRoom {
    fn from(_: TableIsFull) -> Self {
        Self::Rows
    }
}

/// The checked rows of a frame: all are in the slice.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target<'a> {
    /// Rows of the slice, counted from its first.
    Rows { first: usize, count: usize },
    /// Row numbers of the whole table, ascending.
    Keys(&'a [u32]),
    /// Positions of a sparse table, ascending.
    Positions(Positions<'a>),
}

impl Target<'_> {
    /// Number of rows.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Rows { count, .. } => *count,
            Self::Keys(keys) => keys.len(),
            Self::Positions(positions) => positions.len(),
        }
    }
}

/// A gradient, summed over records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SummedGradient<'a> {
    /// `[target × cols]`, row-major.
    pub(crate) sums: &'a [f32],
    /// Number of records.
    pub(crate) records: u64,
}

impl TableSlice {
    /// The slice of a shard, with planes from cell `at` on.
    pub(crate) fn new(spec: &TableSpec, setup: SliceSetup, at: usize) -> Self {
        let SliceSetup { shard, shards, limits, seed } = setup;
        let rows = match spec.kind {
            TableKind::Dense => shard_rows(spec.rows, shard, shards),
            TableKind::Sparse => 0..u64::from(limits.rows_max),
        };
        let cols = spec.cols as usize;
        let len = (rows.end - rows.start) as usize * cols;
        let state = spec.optimizer.kind().state.iter().copied();
        let names = std::iter::once("values").chain(state);
        let mut next = at;
        let planes = names
            .map(|name| {
                let plane = next..next + len;
                next += len.next_multiple_of(UNIT);
                (name, plane)
            })
            .collect();
        let positions = next..next + (rows.end - rows.start) as usize * POSITION_CELLS;
        let sparse = (spec.kind == TableKind::Sparse).then(|| {
            next = positions.end.next_multiple_of(UNIT);
            let start = RowStart { init: spec.init, seed, table: spec.id };
            Box::new(SparseRows::new(setup, start, positions))
        });
        Self {
            name: spec.name.clone(),
            rows,
            cols,
            sparse,
            filled: None,
            blocks: Default::default(),
            end: next,
            rule: Rule::new(&spec.optimizer, spec.l2).with_schedule(spec.schedule).of_rows(cols),
            init: spec.init,
            planes,
        }
    }

    /// The first cell after the table's planes, at the start of a unit.
    pub(crate) fn end(&self) -> usize {
        self.end
    }

    /// Rows of the slice that exist.
    pub(crate) fn rows_len(&self) -> usize {
        match &self.sparse {
            Some(sparse) => sparse.len() as usize,
            None => (self.rows.end - self.rows.start) as usize,
        }
    }

    /// Values of the slice.
    pub(crate) fn values_len(&self) -> usize {
        self.planes[0].1.len()
    }

    /// Checks the rows of a frame.
    ///
    /// # Errors
    /// `BadRange` for rows outside the slice and for keys that are not sorted and unique, `BadLength` for a wrong number of
    /// keys.
    pub(crate) fn target<'a>(
        &self,
        header: &Header,
        keys: &'a [u32],
    ) -> Result<Target<'a>, Status> {
        if let Some(sparse) = &self.sparse {
            if !header.has(flags::POSITIONS) {
                return Err(Status::BadRange);
            }
            let (positions, rest) = keys.as_chunks::<2>();
            if positions.len() != header.count as usize || !rest.is_empty() {
                return Err(Status::BadLength);
            }
            let valid = sparse.are_valid(positions);
            return if valid { Ok(Target::Positions(positions)) } else { Err(Status::BadRange) };
        }
        if header.has(flags::POSITIONS) {
            return Err(Status::BadRange);
        }
        if !header.has(flags::KEYS) {
            let end = header.start.checked_add(u64::from(header.count)).ok_or(Status::BadRange)?;
            if header.start < self.rows.start || end > self.rows.end {
                return Err(Status::BadRange);
            }
            let first = (header.start - self.rows.start) as usize;
            return Ok(Target::Rows { first, count: header.count as usize });
        }
        if keys.len() != header.count as usize {
            return Err(Status::BadLength);
        }
        let (Some(&first), Some(&last)) = (keys.first(), keys.last()) else {
            return Ok(Target::Keys(keys));
        };
        let here = u64::from(first) >= self.rows.start && u64::from(last) < self.rows.end;
        if !here || !keys.is_sorted_by(|a, b| a < b) {
            return Err(Status::BadRange);
        }
        Ok(Target::Keys(keys))
    }

    /// Row `key` of the whole table, counted from the slice's first.
    pub(crate) fn row_of(&self, key: u32) -> usize {
        row_of(self.rows.start, key)
    }

    /// Updates the target rows by a gradient. `rule` is the slice's rule at this step. All or nothing. Rows of a sparse
    /// table from number `snapshot_rows` on are in no snapshot.
    ///
    /// # Errors
    /// There is no room for copies or for new rows.
    pub(crate) fn apply(
        &mut self,
        arena: &mut Arena,
        snapshot_rows: u32,
        rule: &Rule,
        target: Target<'_>,
        gradient: SummedGradient<'_>,
    ) -> Result<(), NoRoom> {
        let SummedGradient { sums, records } = gradient;
        debug_assert_eq!(sums.len(), target.len() * self.cols);
        let cols = self.cols;
        let (target, sums) = match self.filled {
            Some(filled) => self.clipped(target, sums, filled),
            None => (target, sums),
        };
        match target {
            Target::Rows { first, count } => {
                let own = first * cols..(first + count) * cols;
                let touched =
                    self.planes.iter().map(|(_, p)| p.start + own.start..p.start + own.end);
                let cells = arena.write(touched, self.planes.len() * units_of(own.len()))?;
                let [w, first, second] = self.split(cells);
                let [a, b] = [&first, &second]
                    .map(|plane| if plane.is_empty() { 0..0 } else { own.clone() });
                rule.apply(&mut w[own], [&mut first[a], &mut second[b]], sums, records);
            }
            Target::Keys(keys) => {
                let touched = self.planes.iter().flat_map(|(_, plane)| {
                    keys.iter().map(|&key| {
                        let at = plane.start + self.row_of(key) * cols;
                        at..at + cols
                    })
                });
                let units_max = self.planes.len() * keys.len() * units_of(cols);
                let cells = arena.write(touched, units_max)?;
                self.apply_keys(cells, rule, keys, SummedGradient { sums, records });
            }
            Target::Positions(positions) => {
                let Some(mut sparse) = self.sparse.take() else {
                    debug_assert!(false, "only a sparse table has positions");
                    return Ok(());
                };
                let applied = self.apply_positions(
                    arena,
                    snapshot_rows,
                    rule,
                    &mut sparse,
                    positions,
                    SummedGradient { sums, records },
                );
                self.sparse = Some(sparse);
                return applied;
            }
        }
        Ok(())
    }

    /// The part of a gradient that is of rows below `filled`. Rows of a sparse table that are not here are found missing.
    fn clipped<'a>(
        &self,
        target: Target<'a>,
        sums: &'a [f32],
        filled: usize,
    ) -> (Target<'a>, &'a [f32]) {
        let target = match target {
            Target::Rows { first, count } => {
                Target::Rows { first, count: filled.saturating_sub(first).min(count) }
            }
            Target::Keys(keys) => {
                let here = keys.partition_point(|key| self.row_of(*key) < filled);
                Target::Keys(&keys[..here])
            }
            Target::Positions(positions) => Target::Positions(positions),
        };
        (target, &sums[..target.len() * self.cols])
    }

    /// Updates rows by position; creates those that are missing.
    fn apply_positions(
        &mut self,
        arena: &mut Arena,
        snapshot_rows: u32,
        rule: &Rule,
        sparse: &mut SparseRows,
        positions: Positions<'_>,
        gradient: SummedGradient<'_>,
    ) -> Result<(), NoRoom> {
        if positions.is_empty() {
            return Ok(());
        }
        let cols = self.cols;
        let is_whole = self.filled.is_none();
        let rows = RowPlanes { planes: &self.planes, cols };
        let pushed =
            sparse.rows_for_push(arena.cells(), positions, rows, gradient.sums, is_whole)?;
        let touched = self.planes.iter().flat_map(|(_, plane)| {
            pushed.rows.iter().filter(|row| **row < snapshot_rows).map(|&row| {
                let at = plane.start + row as usize * cols;
                at..at + cols
            })
        });
        let cells = match arena.write_any_order(touched) {
            Ok(cells) => cells,
            Err(full) => {
                sparse.recycle(pushed);
                return Err(full.into());
            }
        };
        sparse.create(cells, &pushed, rows, &self.rule);
        let sums = pushed.kept.as_deref().unwrap_or(gradient.sums);
        self.apply_keys(cells, rule, &pushed.rows, SummedGradient { sums, ..gradient });
        sparse.recycle(pushed);
        Ok(())
    }

    /// The end of a training pass for at most `rows_max` rows from `at` on, counted from the slice's first. Returns where the
    /// next ones begin; `None` after the last one.
    ///
    /// # Errors
    /// [`Full`]: nothing was changed; wait for the saver.
    pub(crate) fn end_pass(
        &self,
        arena: &mut Arena,
        at: usize,
        rows_max: usize,
    ) -> Result<Option<usize>, Full> {
        let rows_len = self.filled.map_or(self.rows_len(), |filled| filled.min(self.rows_len()));
        let end = (at + rows_max).min(rows_len);
        if at == end || !self.rule.ends_passes() {
            return Ok(None);
        }
        let own = at * self.cols..end * self.cols;
        let touched = self.planes.iter().map(|(_, p)| p.start + own.start..p.start + own.end);
        let cells = arena.write(touched, self.planes.len() * units_of(own.len()))?;
        let [w, first, second] = self.split(cells);
        let [a, b] =
            [&first, &second].map(|plane| if plane.is_empty() { 0..0 } else { own.clone() });
        self.rule.end_pass(&mut w[own], [&mut first[a], &mut second[b]], self.cols);
        Ok(Some(end))
    }

    /// Updates rows by key, in blocks: the cells of a block are collected, computed together and written back, while the
    /// next block's cells are on their way from memory. A row alone waits for four loads that depend on each other.
    fn apply_keys(
        &mut self,
        cells: &mut [f32],
        rule: &Rule,
        keys: &[u32],
        gradient: SummedGradient<'_>,
    ) {
        let SummedGradient { sums, records } = gradient;
        let cols = self.cols;
        let per_block = (BLOCK_VALUES / cols).clamp(1, BLOCK_ROWS);
        let [w, first, second] = self.split(cells);
        let mut planes = [w, first, second];
        let mut blocks = std::mem::take(&mut self.blocks);
        let mut chunks = keys.chunks(per_block).zip(sums.chunks(per_block * cols)).peekable();
        while let Some((keys, sums)) = chunks.next() {
            if let Some((next, _)) = chunks.peek() {
                for plane in planes.iter().filter(|plane| !plane.is_empty()) {
                    for &key in *next {
                        let at = self.row_of(key) * cols;
                        prefetch_cells(&plane[at..at + cols]);
                    }
                }
            }
            for (block, plane) in blocks.iter_mut().zip(&planes) {
                block.clear();
                if !plane.is_empty() {
                    collect(plane, self.rows.start, cols, keys, block);
                }
            }
            let [values, first, second] = &mut blocks;
            rule.apply(values, [first, second], sums, records);
            for (block, plane) in
                blocks.iter().zip(&mut planes).filter(|(block, _)| !block.is_empty())
            {
                self.scatter(plane, keys, block);
            }
        }
        self.blocks = blocks;
    }

    /// Writes the rows of `block` to a plane, the inverse of [`collect`].
    fn scatter(&self, plane: &mut [f32], keys: &[u32], block: &[f32]) {
        if self.cols == 1 {
            for (&key, value) in keys.iter().zip(block) {
                plane[self.row_of(key)] = *value;
            }
            return;
        }
        for (&key, row) in keys.iter().zip(block.chunks_exact(self.cols)) {
            let at = self.row_of(key) * self.cols;
            plane[at..at + self.cols].copy_from_slice(row);
        }
    }

    /// The cells of its sections in a file: planes, then the positions of a sparse table.
    pub(crate) fn sections(&self) -> impl Iterator<Item = Range<usize>> {
        let planes = self.planes.iter().map(|(_, cells)| cells.clone());
        planes.chain(self.sparse.as_ref().map(|rows| rows.plane()))
    }

    /// The planes of values and state; those that the rule does not have are empty.
    pub(crate) fn split<'a>(&self, cells: &'a mut [f32]) -> [&'a mut [f32]; 3] {
        let plane = |i: usize| self.planes.get(i).map_or(0..0, |(_, plane)| plane.clone());
        cells
            .get_disjoint_mut([plane(0), plane(1), plane(2)])
            .expect("planes are consecutive in the arena")
    }

    /// The values of a range of rows.
    pub(crate) fn range<'a>(&self, arena: &'a Arena, first: usize, count: usize) -> &'a [f32] {
        let at = self.planes[0].1.start + first * self.cols;
        &arena.cells()[at..at + count * self.cols]
    }

    /// Appends the values of the keyed rows to `out`, one row after the other. Keys of a sparse table are two words each.
    pub(crate) fn gather(&self, arena: &Arena, keys: &[u32], out: &mut Vec<f32>) {
        if let Some(sparse) = &self.sparse {
            let values = RowPlanes { planes: &self.planes[..1], cols: self.cols };
            return sparse.gather(arena.cells(), keys.as_chunks().0, values, out);
        }
        let plane = &arena.cells()[self.planes[0].1.clone()];
        collect(plane, self.rows.start, self.cols, keys, out);
    }
}

/// Row `key` of a whole table, counted from the key of a slice's first.
pub(crate) fn row_of(first_key: u64, key: u32) -> usize {
    (u64::from(key) - first_key) as usize
}

/// Appends the keyed rows of a plane to `out`. Its first row has the key `first_key`.
pub(crate) fn collect(
    plane: &[f32],
    first_key: u64,
    cols: usize,
    keys: &[u32],
    out: &mut Vec<f32>,
) {
    if cols == 1 {
        out.extend(keys.iter().map(|&key| plane[row_of(first_key, key)]));
        return;
    }
    for &key in keys {
        let at = row_of(first_key, key) * cols;
        out.extend_from_slice(&plane[at..at + cols]);
    }
}
