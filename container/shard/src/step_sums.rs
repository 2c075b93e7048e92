//! The gradients of a BSP step, added up: for each table the sums of the rows that the step's lanes named. Of a table whose
//! rule keeps the least row, they are the least of the pushed rows instead.
//!
//! What is held follows from the rows of the step, not from the length of the table, until a step names that share of rows at which a
//! plain array is smaller. Sums are added in the order of the calls, whatever holds them, so they have the same bits.

use std::ops::Range;

use crate::rowset::RowSet;
use crate::sparse_rows::joined;
use crate::table::{NoRoom, TableSlice, Target};
use heddle_optimizer::is_less;

/// Marks an empty slot of the hash table.
const EMPTY: u32 = u32::MAX;

/// The sums of one table.
#[derive(Default)]
pub(crate) struct StepSums {
    keyed: KeyedSums<u32>,
    /// Those of a sparse table.
    positions: KeyedSums<u64>,
    /// In use once a range was named, or more rows than the keyed form is good for.
    dense: Option<Box<DenseSums>>,
}

/// Rows by key: an open-addressing table of indexes into lists.
#[derive(Default)]
struct KeyedSums<K> {
    /// Index into `keys`; [`EMPTY`] where there is none. A power of two, at least twice the keys.
    slots: Vec<u32>,
    /// Row numbers of the whole table or positions, in the order in which they were first named.
    keys: Vec<K>,
    /// `[keys × cols]`.
    sums: Vec<f32>,
}

/// All rows of the slice.
struct DenseSums {
    sums: Vec<f32>,
    named: RowSet,
}

impl StepSums {
    /// Adds a gradient: `sums: [target × cols]`.
    pub(crate) fn add(&mut self, table: &TableSlice, target: Target<'_>, sums: &[f32]) {
        let dense = match target {
            Target::Positions(positions) => {
                let positions = positions.iter().map(|position| joined(*position));
                return self.positions.add(table, positions, sums);
            }
            Target::Rows { .. } => true,
            // A key takes its number, two slots and its sums; the plain array a sum and a bit for each row.
            Target::Keys(keys) => {
                (self.keyed.keys.len() + keys.len()) * (3 + table.cols) > table.values_len()
            }
        };
        if dense && self.dense.is_none() {
            let mut dense = DenseSums::new(table);
            dense.add(table, Target::Keys(&self.keyed.keys), &self.keyed.sums);
            self.keyed.clear();
            self.dense = Some(Box::new(dense));
        }
        match (&mut self.dense, target) {
            (Some(dense), _) => dense.add(table, target, sums),
            (None, Target::Keys(keys)) => self.keyed.add(table, keys.iter().copied(), sums),
            (None, Target::Rows { .. } | Target::Positions(_)) => {
                debug_assert!(false, "a range makes the sums dense, positions are added above");
            }
        }
    }

    /// Brings the rows into ascending order: [`Self::take`] may be called from then on.
    pub(crate) fn seal(&mut self, cols: usize) {
        self.keyed.sort(cols);
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
            let Some((first, end)) = dense.named.run(at, rows_max) else {
                return Ok(None);
            };
            let own = first * cols..end * cols;
            apply(Target::Rows { first, count: end - first }, &dense.sums[own.clone()])?;
            dense.sums[own].fill(0.0);
            return Ok(Some(end));
        }
        if let Some((own, sums)) = self.positions.run(at, rows_max, cols) {
            apply(
                Target::Positions(bytemuck::cast_slice(&self.positions.keys[own.clone()])),
                sums,
            )?;
            return Ok(Some(own.end));
        }
        let Some((own, sums)) = self.keyed.run(at, rows_max, cols) else {
            return Ok(None);
        };
        apply(Target::Keys(&self.keyed.keys[own.clone()]), sums)?;
        Ok(Some(own.end))
    }

    /// Forgets the step: all sums were taken.
    pub(crate) fn clear(&mut self) {
        self.keyed.clear();
        self.positions.clear();
        if let Some(dense) = &mut self.dense {
            dense.named.clear();
        }
    }
}

/// Keeps the lesser row.
fn keep_less(own: &mut [f32], pushed: &[f32]) {
    if is_less(pushed, own) {
        own.copy_from_slice(pushed);
    }
}

impl<K: SumKey> KeyedSums<K> {
    /// At most `rows_max` keys from number `at` on, and their sums.
    fn run(&self, at: usize, rows_max: usize, cols: usize) -> Option<(Range<usize>, &[f32])> {
        let end = (at + rows_max).min(self.keys.len());
        (at < end).then(|| (at..end, &self.sums[at * cols..end * cols]))
    }

    fn add(&mut self, table: &TableSlice, keys: impl ExactSizeIterator<Item = K>, sums: &[f32]) {
        let (cols, least) = (table.cols, table.rule.keeps_least());
        self.reserve(keys.len());
        let mask = self.slots.len() - 1;
        for (key, sums) in keys.zip(sums.chunks_exact(cols)) {
            let mut slot = key.hash() & mask;
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
                slot = (slot + 1) & mask;
            }
        }
    }

    /// Room for this number of new keys.
    fn reserve(&mut self, new: usize) {
        let wanted = ((self.keys.len() + new) * 2).next_power_of_two().max(64);
        if wanted <= self.slots.len() {
            return;
        }
        self.slots.clear();
        self.slots.resize(wanted, EMPTY);
        for (index, &key) in self.keys.iter().enumerate() {
            let mut slot = key.hash() & (wanted - 1);
            while self.slots[slot] != EMPTY {
                slot = (slot + 1) & (wanted - 1);
            }
            self.slots[slot] = index as u32;
        }
    }

    /// Sorts the keys, and the sums with them. The slots are of no use afterwards.
    fn sort(&mut self, cols: usize) {
        self.slots.fill(EMPTY);
        if self.keys.is_sorted() {
            return;
        }
        // Each lane's keys are ascending, so the new ones of each are a run, which a merge sort finds.
        let mut order: Vec<(K, u32)> = self.keys.iter().copied().zip(0..).collect();
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

impl DenseSums {
    fn new(table: &TableSlice) -> Self {
        Self { sums: vec![0.0; table.values_len()], named: RowSet::new(table.rows_len()) }
    }

    fn add(&mut self, table: &TableSlice, target: Target<'_>, sums: &[f32]) {
        let cols = table.cols;
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
}

/// A key of a row: a row number, or a position.
trait SumKey: Copy + Ord {
    /// Spreads keys, which come in ascending runs, over the slots (multiplicative hashing, Knuth vol. 3, 6.4).
    fn hash(self) -> usize;
}

impl SumKey for u32 {
    fn hash(self) -> usize {
        u64::from(self).hash()
    }
}

impl SumKey for u64 {
    fn hash(self) -> usize {
        (self.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize
    }
}

impl DenseSums {
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
                // As a keyed row: −0.0 becomes 0.0.
                own.iter_mut().zip(pushed).for_each(|(own, pushed)| *own = 0.0 + pushed);
                self.named.insert(row);
            }
        }
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
    fn few_keys_of_a_large_table_take_little() {
        let table = table(1);
        let mut sums = StepSums::default();
        sums.add(&table, Target::Keys(&[7, 3999]), &[1.0, 2.0]);
        assert!(sums.dense.is_none() && sums.keyed.slots.len() <= 64);
        sums.add(&table, Target::Rows { first: 5, count: 3 }, &[1.0, 1.0, 1.0]);
        assert!(sums.dense.is_some());
        let (one, two) = (1f32.to_bits(), 2f32.to_bits());
        let expected =
            [(5, one), (6, one), (7, two), (3999, two)].map(|(key, sum)| (key, vec![sum]));
        assert_eq!(taken(&mut sums, &table, 2), expected);
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
        assert_eq!((next, seen), (Ok(Some(3)), vec![(vec![2, 9, 11], vec![4.0, 1.0, 2.0])]));
    }

    proptest! {
        /// Keyed and dense sums have the same bits, step after step.
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
