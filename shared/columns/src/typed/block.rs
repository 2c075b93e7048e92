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
    /// Where the values of each row end. Empty where each row has one value.
    ends: Vec<u32>,
    next_row: usize,
    /// The present row's values.
    row: Range<usize>,
}

impl LeafBlock {
    /// Before the first row. `ends`: where the values of each row end; may be empty if each row has one value.
    #[must_use]
    pub fn new(values: LeafValues, ends: Vec<u32>) -> Self {
        Self { values, ends, next_row: 0, row: 0..0 }
    }

    /// Of Parquet's levels. A definition of `level_max` means that a value is there; a repetition of 0 begins a row.
    /// Without definitions all values are there; without repetitions each row has at most one.
    #[must_use]
    pub fn from_levels(
        values: LeafValues,
        definitions: &[i16],
        level_max: i16,
        repetitions: &[i16],
    ) -> Self {
        let mut ends = Vec::new();
        let mut end = 0;
        if repetitions.is_empty() {
            if definitions.iter().any(|definition| *definition != level_max) {
                ends.extend(definitions.iter().map(|definition| {
                    end += u32::from(*definition == level_max);
                    end
                }));
            }
        } else {
            for (at, repetition) in repetitions.iter().enumerate() {
                if *repetition == 0 && at > 0 {
                    ends.push(end);
                }
                let definition = definitions.get(at);
                end += u32::from(definition.is_none_or(|definition| *definition == level_max));
            }
            ends.push(end);
        }
        Self::new(values, ends)
    }

    /// Reads the memory of all rows in its order, into the caches of this processor. Another one has written it, and the rows of
    /// many leaves would wait for it (a twelfth of the time for 39 columns).
    pub fn read_all(&self) {
        // One number of each 64 bytes.
        let ends = self.ends.iter().step_by(16).fold(0, |all, end| all ^ end);
        let values = match &self.values {
            LeafValues::Numbers(numbers) => {
                numbers.iter().step_by(8).fold(0, |all, number| all ^ number.to_bits())
            }
            LeafValues::Keys(keys) | LeafValues::Indices(keys) => {
                keys.iter().step_by(8).fold(0, |all, key| all ^ key)
            }
        };
        std::hint::black_box((ends, values));
    }

    /// Moves on to the next row; the first call begins the first one.
    #[inline]
    pub fn next_row(&mut self) {
        let start = self.row.end;
        let end = match self.ends.get(self.next_row) {
            Some(end) => *end as usize,
            None if self.ends.is_empty() => start + 1,
            None => start,
        };
        self.next_row += 1;
        self.row = start..end;
    }

    /// Number of values of the row.
    #[must_use]
    pub fn row_len(&self) -> usize {
        self.row.len()
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

    /// The indices of the row, if the leaf has indices.
    #[inline]
    #[must_use]
    pub fn indices(&self) -> &[u64] {
        match &self.values {
            LeafValues::Indices(indices) => indices.get(self.row.clone()).unwrap_or_default(),
            LeafValues::Numbers(_) | LeafValues::Keys(_) => &[],
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
        let mut all = LeafBlock::from_levels(keys(&[7, 8]), &[], 0, &[]);
        assert_eq!(rows(&mut all, 2), [[7], [8]]);
        let mut some = LeafBlock::from_levels(keys(&[7, NULL_KEY, 8]), &[1, 0, 1, 1], 1, &[]);
        assert_eq!(rows(&mut some, 4), [vec![7], vec![], vec![], vec![8]]);
        // [7, 8], null, [], [null, 9], [1]
        let (definitions, repetitions) = ([3, 3, 0, 1, 2, 3, 3], [0, 1, 0, 0, 0, 1, 0]);
        let mut lists = LeafBlock::from_levels(keys(&[7, 8, 9, 1]), &definitions, 3, &repetitions);
        assert_eq!(rows(&mut lists, 5), [vec![7, 8], vec![], vec![], vec![9], vec![1]]);
    }
}
