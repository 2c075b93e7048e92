//! The values of a run of rows, by leaf.

use std::ops::Range;

/// Values of some rows.
#[derive(Debug)]
pub struct RowBlock {
    /// Number of rows.
    pub rows: usize,
    /// The needed leaves, in the order in which they were asked for.
    pub leaves: Vec<LeafBlock>,
}

/// The values of a leaf: those that are there, without gaps.
#[derive(Debug, PartialEq)]
pub enum LeafValues {
    /// Numbers.
    Numbers(Vec<f64>),
    /// Keys of features; [`NULL_KEY`] stands for a missing value.
    Keys(Vec<u64>),
    /// Indices of a vector; negative ones are above i64::MAX.
    Indices(Vec<u64>),
}

/// Stands for a text that means that the value is missing. (A text with this key would be missing too.)
pub const NULL_KEY: u64 = 0;

/// The values of a leaf for the rows of a block, and a row among them.
#[derive(Debug)]
pub struct LeafBlock {
    values: LeafValues,
    /// Empty where each row has a value. (Parquet: definition levels; `level_max` means that a value is there.)
    definitions: Vec<i16>,
    level_max: i16,
    /// Of lists: 0 begins a row. Empty of other leaves.
    repetitions: Vec<i16>,
    next_level: usize,
    /// The present row's values.
    row: Range<usize>,
}

impl LeafBlock {
    /// Before the first row. Lists have a definition and a repetition for each item, and a pair if they are empty.
    #[must_use]
    pub fn new(
        values: LeafValues,
        definitions: Vec<i16>,
        level_max: i16,
        repetitions: Vec<i16>,
    ) -> Self {
        Self { values, definitions, level_max, repetitions, next_level: 0, row: 0..0 }
    }

    /// Moves on to the next row; the first call begins the first one.
    #[inline]
    pub fn next_row(&mut self) {
        let start = self.row.end;
        let is_there = |level: usize| match self.definitions.get(level) {
            Some(definition) => *definition == self.level_max,
            None => self.definitions.is_empty(),
        };
        let mut there = usize::from(is_there(self.next_level));
        self.next_level += 1;
        while self.repetitions.get(self.next_level).is_some_and(|level| *level > 0) {
            there += usize::from(is_there(self.next_level));
            self.next_level += 1;
        }
        self.row = start..start + there;
    }

    /// The numbers of the row, if the leaf has numbers.
    #[inline]
    #[must_use]
    pub fn numbers(&self) -> &[f64] {
        match &self.values {
            LeafValues::Numbers(numbers) => numbers.get(self.row.clone()).unwrap_or_default(),
            LeafValues::Keys(_) | LeafValues::Indices(_) => &[],
        }
    }

    /// The keys of the row's values without those that are missing, or its indices.
    #[inline]
    pub fn keys(&self) -> impl Iterator<Item = u64> {
        let (keys, missing) = match &self.values {
            LeafValues::Keys(keys) => (&keys[..], Some(NULL_KEY)),
            LeafValues::Indices(indices) => (&indices[..], None),
            LeafValues::Numbers(_) => (&[][..], None),
        };
        let own = keys.get(self.row.clone()).unwrap_or_default().iter().copied();
        own.filter(move |key| Some(*key) != missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(leaf: &mut LeafBlock, rows: usize) -> Vec<Vec<u64>> {
        let row = |_| {
            leaf.next_row();
            leaf.keys().collect()
        };
        (0..rows).map(row).collect()
    }

    #[test]
    fn rows_have_their_values() {
        let keys = |keys: &[u64]| LeafValues::Keys(keys.to_vec());
        let mut all = LeafBlock::new(keys(&[7, 8]), vec![], 0, vec![]);
        assert_eq!(rows(&mut all, 2), [[7], [8]]);
        let mut some = LeafBlock::new(keys(&[7, NULL_KEY, 8]), vec![1, 0, 1, 1], 1, vec![]);
        assert_eq!(rows(&mut some, 4), [vec![7], vec![], vec![], vec![8]]);
        // [7, 8], null, [], [null, 9], [1]
        let (definitions, repetitions) = (vec![3, 3, 0, 1, 2, 3, 3], vec![0, 1, 0, 0, 0, 1, 0]);
        let mut lists = LeafBlock::new(keys(&[7, 8, 9, 1]), definitions, 3, repetitions);
        assert_eq!(rows(&mut lists, 5), [vec![7, 8], vec![], vec![], vec![9], vec![1]]);
    }
}
