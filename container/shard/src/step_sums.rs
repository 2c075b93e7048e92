//! The gradients of a BSP step, added up: for each table the sums of the rows that the step's lanes named. Of a table whose
//! rule keeps the least row, they are the least of the pushed rows instead.
//!
//! Sums are added in the order of the calls, so they have the same bits whatever parts come together.

use std::ops::Range;

use heddle_optimizer::{is_less, prefetch};

use crate::cells::Cells;
use crate::rowset::RowSet;
use crate::sparse_rows::{Positions, joined};
use crate::table::{NoRoom, TableSlice, Target, collect, row_of};

/// Marks an empty slot of the hash table.
const EMPTY: u32 = u32::MAX;

/// The sums of one table.
#[derive(Default)]
pub(crate) struct StepSums {
    /// Of a dense table, from its first gradient on.
    dense: Option<Box<DenseSums>>,
    /// Of a sparse table.
    positions: PositionSums,
}

/// A sum for each row of the slice. Memory is touched where a step has named a row.
struct DenseSums {
    /// The key of the slice's first row.
    first_key: u64,
    /// `[rows × cols]`: zeros, but for the named rows.
    sums: Cells,
    named: RowSet,
    /// A gradient of the step named a range of rows.
    ranged: bool,
    /// Rows that are taken together by key, and their sums.
    keys: Vec<u32>,
    gathered: Vec<f32>,
}

/// Rows by position: an open-addressing table of indexes into lists.
#[derive(Default)]
struct PositionSums {
    /// Index into `keys`; [`EMPTY`] where there is none. A power of two, at least twice the keys.
    slots: Vec<u32>,
    /// Positions, in the order in which they were first named.
    keys: Vec<u64>,
    /// `[keys × cols]`.
    sums: Vec<f32>,
}

impl StepSums {
    /// Adds a gradient: `sums: [target × cols]`.
    pub(crate) fn add(&mut self, table: &TableSlice, target: Target<'_>, sums: &[f32]) {
        if let Target::Positions(positions) = target {
            return self.positions.add(table, positions, sums);
        }
        let dense = self.dense.get_or_insert_with(|| Box::new(DenseSums::new(table)));
        dense.add(table, target, sums);
    }

    /// Brings the rows into ascending order: [`Self::take`] may be called from then on.
    pub(crate) fn seal(&mut self, cols: usize) {
        self.positions.sort(cols);
    }

    /// Passes the sums of at most `rows_max` rows from `at` on to `apply`, and counts them as taken. Returns where the next
    /// ones begin; `None` if there are no more.
    ///
    /// # Errors
    /// That of `apply`; its rows are not taken.
    pub(crate) fn take(
        &mut self,
        cols: usize,
        at: usize,
        rows_max: usize,
        apply: impl FnOnce(Target<'_>, &[f32]) -> Result<(), NoRoom>,
    ) -> Result<Option<usize>, NoRoom> {
        if let Some(dense) = &mut self.dense {
            return dense.take(cols, at, rows_max, apply);
        }
        let Some((own, sums)) = self.positions.run(at, rows_max, cols) else {
            return Ok(None);
        };
        let positions = bytemuck::cast_slice(&self.positions.keys[own.clone()]);
        apply(Target::Positions(positions), sums)?;
        Ok(Some(own.end))
    }

    /// Forgets the step: all sums were taken.
    pub(crate) fn clear(&mut self) {
        self.positions.clear();
        if let Some(dense) = &mut self.dense {
            dense.named.clear();
            dense.ranged = false;
        }
    }
}

/// Keeps the lesser row.
fn keep_less(own: &mut [f32], pushed: &[f32]) {
    if is_less(pushed, own) {
        own.copy_from_slice(pushed);
    }
}

impl DenseSums {
    fn new(table: &TableSlice) -> Self {
        Self {
            first_key: table.rows.start,
            sums: Cells::zeros(table.values_len()),
            named: RowSet::new(table.rows_len()),
            ranged: false,
            keys: Vec::new(),
            gathered: Vec::new(),
        }
    }

    fn add(&mut self, table: &TableSlice, target: Target<'_>, sums: &[f32]) {
        let cols = table.cols;
        self.ranged |= matches!(target, Target::Rows { .. });
        if table.rule.keeps_least() {
            return self.keep_least(table, target, sums);
        }
        match target {
            Target::Rows { first, count } => {
                self.named.insert_range(first, first + count);
                for (sum, g) in self.sums[first * cols..].iter_mut().zip(sums) {
                    *sum += g;
                }
            }
            Target::Positions(_) => {
                debug_assert!(false, "the sums of a sparse table are by position")
            }
            Target::Keys(keys) if cols == 1 => {
                for (&key, g) in keys.iter().zip(sums) {
                    let row = table.row_of(key);
                    self.named.insert(row);
                    self.sums[row] += g;
                }
            }
            Target::Keys(keys) => {
                for (&key, sums) in keys.iter().zip(sums.chunks_exact(cols)) {
                    let row = table.row_of(key);
                    self.named.insert(row);
                    for (sum, g) in self.sums[row * cols..].iter_mut().zip(sums) {
                        *sum += g;
                    }
                }
            }
        }
    }

    /// Keeps the least row of each of the target.
    fn keep_least(&mut self, table: &TableSlice, target: Target<'_>, pushed: &[f32]) {
        let cols = table.cols;
        for (n, pushed) in pushed.chunks_exact(cols).enumerate() {
            let row = match target {
                Target::Rows { first, .. } => first + n,
                Target::Keys(keys) => table.row_of(keys[n]),
                Target::Positions(_) => return,
            };
            let own = &mut self.sums[row * cols..(row + 1) * cols];
            if self.named.contains(row) {
                keep_less(own, pushed);
            } else {
                // As a sum that begins at zero: −0.0 becomes 0.0.
                own.iter_mut().zip(pushed).for_each(|(own, pushed)| *own = 0.0 + pushed);
                self.named.insert(row);
            }
        }
    }

    /// See [`StepSums::take`].
    fn take(
        &mut self,
        cols: usize,
        at: usize,
        rows_max: usize,
        apply: impl FnOnce(Target<'_>, &[f32]) -> Result<(), NoRoom>,
    ) -> Result<Option<usize>, NoRoom> {
        if self.ranged {
            let Some((first, end)) = self.named.run(at, rows_max) else {
                return Ok(None);
            };
            let own = first * cols..end * cols;
            apply(Target::Rows { first, count: end - first }, &self.sums[own.clone()])?;
            self.sums[own].fill(0.0);
            return Ok(Some(end));
        }
        let first_key = self.first_key;
        let row_of = |key: &u32| row_of(first_key, *key);
        self.keys.clear();
        self.keys
            .extend(self.named.rows(at).take(rows_max).map(|row| (first_key + row as u64) as u32));
        let Some(last) = self.keys.last().map(row_of) else {
            return Ok(None);
        };
        // The cells of all rows are loaded at once, which does not wait for each in turn.
        self.gathered.clear();
        collect(&self.sums, first_key, cols, &self.keys, &mut self.gathered);
        apply(Target::Keys(&self.keys), &self.gathered)?;
        for key in &self.keys {
            let at = row_of(key) * cols;
            self.sums[at..at + cols].fill(0.0);
        }
        Ok(Some(last + 1))
    }
}

impl PositionSums {
    /// At most `rows_max` positions from number `at` on, and their sums.
    fn run(&self, at: usize, rows_max: usize, cols: usize) -> Option<(Range<usize>, &[f32])> {
        let end = (at + rows_max).min(self.keys.len());
        (at < end).then(|| (at..end, &self.sums[at * cols..end * cols]))
    }

    fn add(&mut self, table: &TableSlice, positions: Positions<'_>, sums: &[f32]) {
        /// Positions whose slots are loaded ahead.
        const AHEAD: usize = 16;
        let (cols, least) = (table.cols, table.rule.keeps_least());
        self.reserve(positions.len());
        for (n, (position, sums)) in positions.iter().zip(sums.chunks_exact(cols)).enumerate() {
            if let Some(next) = positions.get(n + AHEAD) {
                prefetch(&self.slots[self.first_slot(joined(*next))]);
            }
            let key = joined(*position);
            let mut slot = self.first_slot(key);
            loop {
                let index = self.slots[slot];
                if index == EMPTY {
                    self.slots[slot] = self.keys.len() as u32;
                    self.keys.push(key);
                    // As a sum that begins at zero: −0.0 becomes 0.0.
                    self.sums.extend(sums.iter().map(|g| 0.0 + g));
                    break;
                }
                if self.keys[index as usize] == key {
                    let at = index as usize * cols;
                    let own = &mut self.sums[at..at + cols];
                    if least {
                        keep_less(own, sums);
                        break;
                    }
                    for (sum, g) in own.iter_mut().zip(sums) {
                        *sum += g;
                    }
                    break;
                }
                slot = (slot + 1) & (self.slots.len() - 1);
            }
        }
    }

    /// Spreads positions, which come in ascending runs, over the slots (multiplicative hashing, Knuth vol. 3, 6.4).
    fn first_slot(&self, position: u64) -> usize {
        (position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (self.slots.len() - 1)
    }

    /// Room for this number of new positions.
    fn reserve(&mut self, new: usize) {
        let wanted = ((self.keys.len() + new) * 2).next_power_of_two().max(64);
        if wanted <= self.slots.len() {
            return;
        }
        self.slots.clear();
        self.slots.resize(wanted, EMPTY);
        for (index, &key) in self.keys.iter().enumerate() {
            let mut slot = self.first_slot(key);
            while self.slots[slot] != EMPTY {
                slot = (slot + 1) & (wanted - 1);
            }
            self.slots[slot] = index as u32;
        }
    }

    /// Sorts the positions, and the sums with them. The slots are of no use afterwards.
    fn sort(&mut self, cols: usize) {
        self.slots.fill(EMPTY);
        if self.keys.is_sorted() {
            return;
        }
        // Each lane's positions are ascending, so the new ones of each are a run, which a merge sort finds.
        let mut order: Vec<(u64, u32)> = self.keys.iter().copied().zip(0..).collect();
        order.sort();
        let mut sums = Vec::with_capacity(self.sums.len());
        for &(_, index) in &order {
            let at = index as usize * cols;
            sums.extend_from_slice(&self.sums[at..at + cols]);
        }
        for (key, (sorted, _)) in self.keys.iter_mut().zip(order) {
            *key = sorted;
        }
        self.sums = sums;
    }

    fn clear(&mut self) {
        self.slots.fill(EMPTY);
        self.keys.clear();
        self.sums.clear();
    }
}

#[cfg(test)]
mod tests {
    use heddle_protocol::job_spec::{Optimizer, table::dense_table};
    use proptest::prelude::*;

    use super::*;
    use crate::sparse_rows::SliceSetup;

    const ROWS: u64 = 4000;

    fn table(cols: u32) -> TableSlice {
        let spec = dense_table(0, "t", ROWS, cols, Optimizer::add());
        TableSlice::new(&spec, SliceSetup { shards: 1, ..SliceSetup::default() }, 0)
    }

    /// All sums in order, taken `rows_max` at a time.
    fn taken(sums: &mut StepSums, table: &TableSlice, rows_max: usize) -> Vec<(u32, Vec<u32>)> {
        sums.seal(table.cols);
        let mut all = Vec::new();
        let mut at = 0;
        let cols = table.cols;
        while let Some(next) = sums
            .take(cols, at, rows_max, |target, sums| {
                let keys: Vec<u32> = match target {
                    Target::Rows { first, count } => {
                        (first as u32..(first + count) as u32).collect()
                    }
                    Target::Keys(keys) => keys.to_vec(),
                    Target::Positions(_) => panic!("the table is dense"),
                };
                let bits = |row: &[f32]| row.iter().map(|sum| sum.to_bits()).collect();
                all.extend(keys.into_iter().zip(sums.chunks(cols).map(bits)));
                Ok(())
            })
            .expect("nothing is full")
        {
            at = next;
        }
        sums.clear();
        all
    }

    #[test]
    fn rows_come_by_key_until_a_range_is_named() {
        let table = table(1);
        let mut sums = StepSums::default();
        let (one, two) = (1f32.to_bits(), 2f32.to_bits());
        for ranged in [false, true, false] {
            sums.add(&table, Target::Keys(&[7, 3999]), &[1.0, 2.0]);
            let mut expected = vec![(7, vec![one]), (3999, vec![two])];
            if ranged {
                sums.add(&table, Target::Rows { first: 6, count: 2 }, &[1.0, 1.0]);
                expected = vec![(6, vec![one]), (7, vec![two]), (3999, vec![two])];
            }
            assert_eq!(taken(&mut sums, &table, 2), expected, "{ranged}");
        }
    }

    #[test]
    fn least_rows_are_kept_by_key_and_by_range() {
        let spec = dense_table(0, "t", 8, 2, Optimizer::least());
        let table = TableSlice::new(&spec, SliceSetup { shards: 1, ..SliceSetup::default() }, 0);
        let bits = |row: [f32; 2]| row.map(f32::to_bits).to_vec();
        for ranged in [false, true] {
            let mut sums = StepSums::default();
            sums.add(&table, Target::Keys(&[3]), &[5.0, 1.0]);
            let second =
                if ranged { Target::Rows { first: 3, count: 1 } } else { Target::Keys(&[3]) };
            sums.add(&table, second, &[4.0, 9.0]);
            sums.add(&table, Target::Keys(&[3]), &[4.0, 8.0]);
            sums.add(&table, Target::Keys(&[5]), &[7.0, 7.0]);
            let expected = [(3, bits([4.0, 8.0])), (5, bits([7.0, 7.0]))];
            assert_eq!(taken(&mut sums, &table, 1), expected, "{ranged}");
            sums.add(&table, Target::Keys(&[3]), &[6.0, 0.0]);
            assert_eq!(taken(&mut sums, &table, 9), [(3, bits([6.0, 0.0]))], "a new step");
        }
    }

    #[test]
    fn rows_that_found_no_room_are_taken_again() {
        let table = table(1);
        let mut sums = StepSums::default();
        sums.add(&table, Target::Keys(&[9, 11]), &[1.0, 2.0]);
        sums.add(&table, Target::Keys(&[2]), &[4.0]);
        sums.seal(1);
        assert_eq!(sums.take(1, 0, 8, |_, _| Err(NoRoom::Copies)), Err(NoRoom::Copies));
        let mut seen = Vec::new();
        let next = sums.take(1, 0, 8, |target, sums| {
            let Target::Keys(keys) = target else { panic!("keyed") };
            seen.push((keys.to_vec(), sums.to_vec()));
            Ok(())
        });
        assert_eq!((next, seen), (Ok(Some(12)), vec![(vec![2, 9, 11], vec![4.0, 1.0, 2.0])]));
    }

    proptest! {
        /// As a plain array, step after step.
        #[test]
        fn sums_agree_with_a_plain_array(
            steps in prop::collection::vec(prop::collection::vec((
                prop::collection::btree_set(0u32..ROWS as u32, 0..200),
                prop::bool::weighted(0.1),
            ), 1..6), 1..4),
            cols in 1u32..4,
            rows_max in 1usize..300,
        ) {
            let table = table(cols);
            let mut sums = StepSums::default();
            for lanes in steps {
                let mut plain = vec![0.0f32; ROWS as usize * cols as usize];
                let mut named = std::collections::BTreeSet::new();
                for (n, (keys, range)) in lanes.iter().enumerate() {
                    let keys: Vec<u32> = match range {
                        true => (10 * n as u32..10 * n as u32 + keys.len() as u32).collect(),
                        false => keys.iter().copied().collect(),
                    };
                    let len = keys.len() * cols as usize;
                    let gradient: Vec<f32> =
                        (0..len).map(|i| 0.1 * (i + n) as f32 - 3.0).collect();
                    for (key, row) in keys.iter().zip(gradient.chunks(cols as usize)) {
                        named.insert(*key);
                        for (sum, g) in plain[*key as usize * cols as usize..].iter_mut().zip(row) {
                            *sum += g;
                        }
                    }
                    let target = match range {
                        true => Target::Rows { first: 10 * n, count: keys.len() },
                        false => Target::Keys(&keys),
                    };
                    sums.add(&table, target, &gradient);
                }
                let expected: Vec<(u32, Vec<u32>)> = named.into_iter().map(|key| {
                    let at = key as usize * cols as usize;
                    (key, plain[at..at + cols as usize].iter().map(|sum| sum.to_bits()).collect())
                }).collect();
                prop_assert_eq!(taken(&mut sums, &table, rows_max), expected);
            }
        }
    }
}
