//! The rows of a sparse table on one shard: which row number has which position, and how rows begin.
//!
//! Rows are numbered in the order of their first pushes. Their cells lie in planes of the arena like those of a dense table,
//! with room for all rows that fit; memory of rows that do not exist is not touched. A pull of a missing row returns the
//! initial values and stores nothing. A push creates the row with these values first. They are a function of seed, table,
//! key and column alone, so neither the number of shards nor a rollback changes a bit.
//!
//! A snapshot notes the number of rows. A return to it removes the rows with higher numbers.

use std::cell::Cell;
use std::ops::{Range, RangeInclusive};

use heddle_optimizer::{Initialiser, Rule, prefetch, prefetch_cells};
use heddle_protocol::ids::{ShardId, TableId};
use heddle_protocol::job_spec::TableFull;
use heddle_protocol::job_spec::position::{key_of_position, shard_positions};

use crate::position_index::{PositionIndex, ROWS_MAX, SearchStart};

/// Positions that are searched together: while one waits for memory, the others' loads are on their way.
const SEARCH_BLOCK: usize = 64;
/// f32 cells of a position: its lower and its upper 32 bits.
pub(crate) const POSITION_CELLS: usize = 2;
/// Stands for the number of a row that does not exist.
const MISSING: u32 = u32::MAX;

/// Positions as frames carry them: lower and upper 32 bits.
pub(crate) type Positions<'a> = &'a [[u32; 2]];

/// The position of these two words.
#[inline]
pub(crate) fn joined([low, high]: [u32; 2]) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// There is no room for a new row, and the job is to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableIsFull;

/// How new rows begin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowStart {
    pub(crate) init: Initialiser,
    pub(crate) seed: u64,
    pub(crate) table: TableId,
}

/// What a shard needs for its sparse tables.
#[derive(Clone, Copy, Debug)]
pub struct SparseLimits {
    /// Rows for which each sparse table has room.
    pub rows_max: u32,
    /// What happens to rows without room.
    pub when_full: TableFull,
    /// A number for which data cannot be chosen. Nothing but the places of rows in the index follows from it.
    pub index_key: u64,
}

impl Default for SparseLimits {
    fn default() -> Self {
        Self { rows_max: 0, when_full: TableFull::Fail, index_key: 0x9e37_79b9_7f4a_7c15 }
    }
}

/// What the slices of all tables of a shard have in common.
#[derive(Clone, Copy, Default)]
pub(crate) struct SliceSetup {
    pub(crate) shard: ShardId,
    /// Shards of the job.
    pub(crate) shards: u32,
    pub(crate) limits: SparseLimits,
    /// Seed of initial values.
    pub(crate) seed: u64,
}

/// Places of positions in the index, which spreads rows by their leading bits.
///
/// Positions follow from keys alone, so chosen keys could share their leading bits, and with them one piece of the index.
/// Multiplication by an odd number is a bijection. If the number is random, any two positions have the same 32 bits in front
/// with a probability of 2⁻³¹ at the most (Dietzfelbinger, Hagerup, Katajainen, Penttonen 1997).
#[derive(Clone, Copy, Debug)]
struct IndexKey(u64);

impl IndexKey {
    fn of(number: u64) -> Self {
        Self(number | 1)
    }

    #[inline]
    fn place(self, position: u64) -> u64 {
        position.wrapping_mul(self.0)
    }

    /// The place of a row whose position is in this plane.
    #[inline]
    fn place_of(self, plane: &[f32], row: u32) -> u64 {
        self.place(position_of(plane, row))
    }
}

/// Where rows have their cells.
#[derive(Clone, Copy)]
pub(crate) struct RowPlanes<'a> {
    /// Name and cells of each plane.
    pub(crate) planes: &'a [(&'static str, Range<usize>)],
    /// Cells of a row in each.
    pub(crate) cols: usize,
}

impl RowPlanes<'_> {
    fn at(&self, plane: &Range<usize>, row: usize) -> Range<usize> {
        let first = plane.start + row * self.cols;
        first..first + self.cols
    }

    /// Starts to load a row's first cache line of each plane.
    #[inline]
    fn prefetch(&self, cells: &[f32], row: u32) {
        for (_, plane) in self.planes {
            prefetch(&cells[self.at(plane, row as usize).start]);
        }
    }
}

/// Row numbers by position.
pub(crate) struct SparseRows {
    /// Positions of the shard.
    positions: RangeInclusive<u64>,
    key: IndexKey,
    index: PositionIndex,
    /// Rows that exist.
    len: u32,
    limits: SparseLimits,
    start: RowStart,
    /// Cells of the positions, by row number.
    plane: Range<usize>,
    /// Pushed rows that found no room.
    dropped: u64,
    /// Row numbers of the request in progress, from request to request.
    found: Cell<Vec<u32>>,
}

impl SparseRows {
    pub(crate) fn new(setup: SliceSetup, start: RowStart, plane: Range<usize>) -> Self {
        let SliceSetup { shard, shards, limits, seed: _ } = setup;
        let positions = shard_positions(shard, shards);
        let limits = SparseLimits { rows_max: limits.rows_max.min(ROWS_MAX), ..limits };
        Self {
            positions,
            key: IndexKey::of(limits.index_key),
            index: PositionIndex::new(),
            len: 0,
            limits,
            start,
            plane,
            dropped: 0,
            found: Cell::default(),
        }
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Cells of the positions, with room for all rows.
    pub(crate) fn plane(&self) -> Range<usize> {
        self.plane.clone()
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Bytes of the index.
    pub(crate) fn index_bytes(&self) -> usize {
        self.index.bytes()
    }

    /// Whether these are positions of the shard, ascending, each once.
    pub(crate) fn are_valid(&self, positions: Positions<'_>) -> bool {
        let (Some(first), Some(last)) = (positions.first(), positions.last()) else { return true };
        joined(*first) >= *self.positions.start()
            && joined(*last) <= *self.positions.end()
            && positions.is_sorted_by(|a, b| joined(*a) < joined(*b))
    }

    /// Replaces `found` by the row number of each position, or [`MISSING`]. Starts to load the rows' cells in these planes.
    fn search(
        &self,
        cells: &[f32],
        positions: Positions<'_>,
        rows: RowPlanes<'_>,
        found: &mut Vec<u32>,
    ) {
        found.clear();
        let plane = &cells[self.plane.clone()];
        let place = |words: &[u32; 2]| self.key.place(joined(*words));
        let mut next = [SearchStart::default(); SEARCH_BLOCK];
        let request = |block: &[[u32; 2]], starts: &mut [SearchStart]| {
            for (start, position) in starts.iter_mut().zip(block) {
                *start = self.index.prefetch(place(position));
            }
        };
        let mut blocks = positions.chunks(SEARCH_BLOCK).peekable();
        blocks.peek().into_iter().for_each(|first| request(first, &mut next));
        while let Some(block) = blocks.next() {
            let starts = next;
            blocks.peek().into_iter().for_each(|block| request(block, &mut next));
            let first = found.len();
            found.extend(starts[..block.len()].iter().map(|start| {
                let candidate = self.index.candidate(*start);
                let row = candidate.inspect(|row| {
                    prefetch(&plane[*row as usize * POSITION_CELLS]);
                    rows.prefetch(cells, *row);
                });
                row.unwrap_or(MISSING)
            }));
            for (row, position) in found[first..].iter_mut().zip(block) {
                if *row != MISSING && position_of(plane, *row) != joined(*position) {
                    let place_of = |row| self.key.place_of(plane, row);
                    *row = self.index.find(place(position), place_of).unwrap_or(MISSING);
                }
            }
        }
    }

    /// The row numbers of a push, new ones for the positions that are missing and find room. Call [`Self::create`] before
    /// the rows are used. While the table is not whole, missing rows are left out: a later piece of it has them.
    ///
    /// # Errors
    /// There is no room for all, and the job is to fail.
    pub(crate) fn rows_for_push(
        &mut self,
        cells: &[f32],
        positions: Positions<'_>,
        rows: RowPlanes<'_>,
        sums: &[f32],
        is_whole: bool,
    ) -> Result<PushedRows, TableIsFull> {
        let mut found = self.found.take();
        self.search(cells, positions, rows, &mut found);
        let missing = found.iter().filter(|row| **row == MISSING).count();
        let room = if is_whole { (self.limits.rows_max - self.len) as usize } else { 0 };
        if missing > room && is_whole && self.limits.when_full == TableFull::Fail {
            self.found.set(found);
            return Err(TableIsFull);
        }
        let old_len = self.len;
        let mut created = Vec::with_capacity(missing.min(room));
        for (row, position) in found.iter_mut().zip(positions).filter(|(row, _)| **row == MISSING) {
            if created.len() < room {
                *row = old_len + created.len() as u32;
                created.push(joined(*position));
            }
        }
        let mut kept = None;
        if missing > room {
            let rows = sums.chunks_exact(sums.len() / positions.len());
            let rows = found.iter().zip(rows).filter(|(row, _)| **row != MISSING);
            kept = Some(rows.flat_map(|(_, sums)| sums).copied().collect());
            found.retain(|row| *row != MISSING);
        }
        let dropped = if is_whole { missing.saturating_sub(room) as u64 } else { 0 };
        Ok(PushedRows { rows: found, kept, old_len, created, dropped })
    }

    /// Creates the new rows of a push (positions, initial values, state) and counts the dropped ones.
    pub(crate) fn create(
        &mut self,
        cells: &mut [f32],
        pushed: &PushedRows,
        rows: RowPlanes<'_>,
        rule: &Rule,
    ) {
        debug_assert_eq!(self.len, pushed.old_len);
        self.dropped += pushed.dropped;
        for position in &pushed.created {
            let row = self.len as usize;
            let at = self.plane.start + row * POSITION_CELLS;
            cells[at] = f32::from_bits(*position as u32);
            cells[at + 1] = f32::from_bits((position >> 32) as u32);
            let own = |n: usize| rows.planes.get(n).map_or(0..0, |(_, plane)| rows.at(plane, row));
            let [values, first, second] = cells
                .get_disjoint_mut([own(0), own(1), own(2)])
                .expect("planes are consecutive in the arena");
            self.start.fill(*position, rows.cols, values);
            first.fill(0.0);
            second.fill(0.0);
            rule.begin(values, [first, second]);
            let (key, plane) = (self.key, &cells[self.plane.clone()]);
            let place_of = |row| key.place_of(plane, row);
            self.index.insert(key.place(*position), row as u32, place_of);
            self.len += 1;
        }
    }

    /// Takes the buffer of a push back.
    pub(crate) fn recycle(&mut self, pushed: PushedRows) {
        self.found.set(pushed.rows);
    }

    /// Appends the values of these positions, which are in the first plane.
    pub(crate) fn gather(
        &self,
        cells: &[f32],
        positions: Positions<'_>,
        values: RowPlanes<'_>,
        out: &mut Vec<f32>,
    ) {
        let cols = values.cols;
        let plane = &cells[values.planes[0].1.clone()];
        let mut found = self.found.take();
        self.search(cells, positions, values, &mut found);
        let mut blocks = found.chunks(SEARCH_BLOCK).zip(positions.chunks(SEARCH_BLOCK)).peekable();
        while let Some((rows, positions)) = blocks.next() {
            if let Some((next, _)) = blocks.peek() {
                next.iter().filter(|row| **row != MISSING).for_each(|row| {
                    let own = *row as usize * cols;
                    prefetch_cells(&plane[own..own + cols]);
                });
            }
            for (row, position) in rows.iter().zip(positions) {
                let at = out.len();
                if *row == MISSING {
                    out.resize(at + cols, 0.0);
                    self.start.fill(joined(*position), cols, &mut out[at..]);
                } else {
                    let own = *row as usize * cols;
                    out.extend_from_slice(&plane[own..own + cols]);
                }
            }
        }
        self.found.set(found);
    }

    /// Removes the rows from number `len` on: those that a snapshot does not have. Their cells are of no row any more.
    pub(crate) fn truncate(&mut self, cells: &[f32], len: u32) {
        debug_assert!(len <= self.len, "a snapshot has no rows that do not exist");
        let plane = &cells[self.plane.clone()];
        let removed = (len..self.len).map(|row| self.key.place_of(plane, row));
        self.index.remove(removed, |row| row >= len);
        self.len = len;
    }

    /// Builds the index of `len` rows that were read from a file.
    ///
    /// # Errors
    /// What is wrong with the positions.
    pub(crate) fn load(&mut self, cells: &[f32], len: u32) -> Result<(), String> {
        if len > self.limits.rows_max {
            return Err(format!("{len} rows, there is room for {}", self.limits.rows_max));
        }
        self.truncate(cells, 0);
        self.extend(cells, len)
    }

    /// Adds the rows up to number `len`, whose positions are in the plane.
    ///
    /// # Errors
    /// What is wrong with the positions.
    pub(crate) fn extend(&mut self, cells: &[f32], len: u32) -> Result<(), String> {
        if len > self.limits.rows_max {
            return Err(format!("{len} rows, there is room for {}", self.limits.rows_max));
        }
        let plane = &cells[self.plane.clone()];
        let key = self.key;
        let place_of = |row| key.place_of(plane, row);
        for row in self.len..len {
            let position = position_of(plane, row);
            if !self.positions.contains(&position) {
                return Err(format!("row {row} is at {position:#x}, outside the shard"));
            }
            if self.index.find(key.place(position), place_of).is_some() {
                return Err(format!("row {row} is at {position:#x}, as another one"));
            }
            self.index.insert(key.place(position), row, place_of);
            self.len = row + 1;
        }
        Ok(())
    }
}

/// The rows of a push.
pub(crate) struct PushedRows {
    /// By position: the number of its row; without those that were dropped.
    pub(crate) rows: Vec<u32>,
    /// The sums of these rows, if some rows were dropped; all sums otherwise.
    pub(crate) kept: Option<Vec<f32>>,
    /// Rows before the push; rows from this number on are new.
    old_len: u32,
    /// Positions of the new rows, in the order of their numbers.
    created: Vec<u64>,
    /// Rows that found no room.
    dropped: u64,
}

impl RowStart {
    /// Fills the initial values of the row at a position.
    fn fill(&self, position: u64, cols: usize, values: &mut [f32]) {
        self.init.fill(self.seed, self.table.0, key_of_position(position), cols, values);
    }
}

#[inline]
fn position_of(plane: &[f32], row: u32) -> u64 {
    let at = row as usize * POSITION_CELLS;
    joined([plane[at].to_bits(), plane[at + 1].to_bits()])
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use heddle_protocol::job_spec::position::position_of_key;

    use super::*;

    /// Bytes of an index of these positions, and rows that it compares while they are added and found.
    fn cost(key: IndexKey, positions: &[u64]) -> (usize, usize) {
        let (mut index, compared) = (PositionIndex::new(), Cell::new(0));
        let place_of = |row: u32| {
            compared.set(compared.get() + 1);
            key.place(positions[row as usize])
        };
        for (row, position) in (0..).zip(positions) {
            index.insert(key.place(*position), row, place_of);
        }
        for (row, position) in (0..).zip(positions) {
            assert_eq!(index.find(key.place(*position), place_of), Some(row));
        }
        (index.bytes(), compared.get())
    }

    #[test]
    fn chosen_positions_cost_no_more_than_random_ones() {
        const ROWS: u64 = 100_000;
        type Choice = fn(u64) -> u64;
        let chosen: [(&str, Choice); 4] = [
            ("at the end", |n| 0xffff_ffff_0000_0000 + n),
            ("in the middle", |n| 0x8000_0000_0000_0000 + n),
            ("with zeros behind", |n| n << 40),
            ("in groups", |n| n.rotate_right(3)),
        ];
        for number in [SparseLimits::default().index_key, 0xd1b5_4a32_d192_ed03] {
            let key = IndexKey::of(number);
            let random: Vec<u64> = (0..ROWS).map(position_of_key).collect();
            let (bytes_max, compared_max) = cost(key, &random);
            for (name, position) in chosen {
                let (bytes, compared) = cost(key, &(0..ROWS).map(position).collect::<Vec<_>>());
                assert!(bytes <= bytes_max * 2, "{name}: {bytes} bytes, {bytes_max}");
                assert!(compared <= compared_max * 2, "{name}: {compared} rows, {compared_max}");
            }
        }
    }
}
