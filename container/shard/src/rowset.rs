//! The rows of a table that a step updates: a set of row numbers, iterated in order.

/// A set of numbers below a bound: one bit for each, and one summary bit for each 64 of those, so that iterating over a few
/// rows of a large table is cheap.
#[derive(Default)]
pub(crate) struct RowSet {
    words: Vec<u64>,
    /// Bit `i`: `words[i]` is not zero.
    summary: Vec<u64>,
}

impl RowSet {
    /// An empty set of numbers below `rows`.
    pub(crate) fn new(rows: usize) -> Self {
        let words = rows.div_ceil(64);
        Self { words: vec![0; words], summary: vec![0; words.div_ceil(64)] }
    }

    /// Adds one number.
    pub(crate) fn insert(&mut self, row: usize) {
        self.words[row / 64] |= 1 << (row % 64);
        self.summary[row / 4096] |= 1 << (row / 64 % 64);
    }

    /// Whether a number is in the set.
    pub(crate) fn contains(&self, row: usize) -> bool {
        self.words[row / 64] >> (row % 64) & 1 == 1
    }

    /// Adds all of `from .. to`.
    pub(crate) fn insert_range(&mut self, from: usize, to: usize) {
        let mut row = from;
        while row < to {
            let word = row / 64;
            let end = to.min((word + 1) * 64);
            let bits = (u64::MAX >> (64 - (end - row))) << (row % 64);
            self.words[word] |= bits;
            self.summary[word / 64] |= 1 << (word % 64);
            row = end;
        }
    }

    /// Removes all.
    pub(crate) fn clear(&mut self) {
        for (summary, words) in self.summary.iter_mut().zip(self.words.chunks_mut(64)) {
            if std::mem::take(summary) != 0 {
                words.fill(0);
            }
        }
    }

    /// The lowest number not below `row`.
    fn next(&self, row: usize) -> Option<usize> {
        let word = row / 64;
        let rest = self.words.get(word)? & (u64::MAX << (row % 64));
        if rest != 0 {
            return Some(word * 64 + rest.trailing_zeros() as usize);
        }
        // The rest of this group of 64 words is empty: find the next group that is not.
        let mut group = (word + 1) / 64;
        let mut mask = u64::MAX << ((word + 1) % 64);
        while let Some(&summary) = self.summary.get(group) {
            let rest = summary & mask;
            if rest != 0 {
                let word = group * 64 + rest.trailing_zeros() as usize;
                return Some(word * 64 + self.words[word].trailing_zeros() as usize);
            }
            group += 1;
            mask = u64::MAX;
        }
        None
    }

    /// The numbers from `row` on, ascending.
    pub(crate) fn rows(&self, row: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(self.next(row), |row| self.next(row + 1))
    }

    /// The first run of consecutive numbers not below `row`, at most `len_max` long: its first number and the one after its
    /// last.
    pub(crate) fn run(&self, row: usize, len_max: usize) -> Option<(usize, usize)> {
        let first = self.next(row)?;
        let mut end = first + 1;
        while end - first < len_max {
            let Some(&word) = self.words.get(end / 64) else {
                break;
            };
            let ones = (!(word >> (end % 64))).trailing_zeros() as usize;
            let ones = ones.min(64 - end % 64);
            end += ones;
            if ones == 0 || end % 64 != 0 {
                break;
            }
        }
        Some((first, end.min(first + len_max)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn rows_of(set: &RowSet, len_max: usize) -> Vec<usize> {
        let mut rows = Vec::new();
        let mut at = 0;
        while let Some((from, to)) = set.run(at, len_max) {
            rows.extend(from..to);
            at = to;
        }
        rows
    }

    proptest! {
        #[test]
        fn iteration_returns_inserted_rows_in_order(
            single in prop::collection::vec(0usize..20_000, 0..50),
            ranges in prop::collection::vec((0usize..20_000, 0usize..300), 0..10),
            len_max in 1usize..500,
        ) {
            let mut set = RowSet::new(20_000);
            let mut model = BTreeSet::new();
            for row in single {
                set.insert(row);
                model.insert(row);
            }
            for (from, len) in ranges {
                let to = (from + len).min(20_000);
                set.insert_range(from, to);
                model.extend(from..to);
            }
            prop_assert_eq!(rows_of(&set, len_max), model.into_iter().collect::<Vec<_>>());
            set.clear();
            prop_assert_eq!(set.run(0, 1), None);
        }
    }
}
