//! The distinct features of a batch, sorted, and the position of each feature of the batch among them.

/// Tables with at most this many features have a bitmap and an array of positions (at most 8 MiB and 256 MiB); for
/// larger ones the keys are sorted.
const MAPPED_MAX: u64 = 1 << 26;
const WORD: u32 = u64::BITS;

/// Finds the sorted distinct keys of a batch. Its memory is reused from batch to batch.
#[derive(Debug)]
pub struct KeyIndex {
    /// One bit per feature, all zero between calls; empty for large tables.
    seen: Vec<u64>,
    /// Position of each feature in the last list of keys; valid only for the features of that list.
    place: Vec<u32>,
}

impl KeyIndex {
    /// An index of features below `features`.
    #[must_use]
    pub fn new(features: u64) -> Self {
        let mapped = if features <= MAPPED_MAX { features as usize } else { 0 };
        Self { seen: vec![0; mapped.div_ceil(WORD as usize)], place: vec![0; mapped] }
    }

    /// Replaces `keys` by the distinct `indices`, sorted, and `local` by the position in `keys` of
    /// each of `indices`.
    ///
    /// # Panics
    /// If an index is not below `features`.
    pub fn index(&mut self, indices: &[u32], keys: &mut Vec<u32>, local: &mut Vec<u32>) {
        keys.clear();
        local.clear();
        if self.seen.is_empty() {
            keys.extend_from_slice(indices);
            keys.sort_unstable();
            keys.dedup();
            let find = |index: &u32| keys.partition_point(|key| key < index) as u32;
            local.extend(indices.iter().map(find));
            return;
        }
        for index in indices {
            let (word, bit) = ((index / WORD) as usize, 1 << (index % WORD));
            if self.seen[word] & bit == 0 {
                self.seen[word] |= bit;
                keys.push(*index);
            }
        }
        // Scanning the bitmap costs a word per 64 features, sorting some twenty times as much per key.
        if self.seen.len() / 16 <= keys.len() {
            keys.clear();
            for (at, word) in self.seen.iter_mut().enumerate() {
                let mut bits = std::mem::take(word);
                while bits != 0 {
                    keys.push(at as u32 * WORD + bits.trailing_zeros());
                    bits &= bits - 1;
                }
            }
        } else {
            keys.sort_unstable();
            for key in keys.iter() {
                self.seen[(key / WORD) as usize] = 0;
            }
        }
        for (position, key) in keys.iter().enumerate() {
            self.place[*key as usize] = position as u32;
        }
        local.extend(indices.iter().map(|index| self.place[*index as usize]));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn keys_are_sorted_and_distinct_and_every_feature_finds_its_own(
            indices in proptest::collection::vec(0u32..2000, 0..300),
            features in prop_oneof![Just(2000u64), Just(100_000), Just(MAPPED_MAX + 1)],
        ) {
            let mut index = KeyIndex::new(features);
            let (mut keys, mut local) = (vec![7], vec![7]);
            for _ in 0..2 {
                index.index(&indices, &mut keys, &mut local);
                let mut expected = indices.clone();
                expected.sort_unstable();
                expected.dedup();
                prop_assert_eq!(&keys, &expected);
                let found: Vec<u32> = local.iter().map(|at| keys[*at as usize]).collect();
                prop_assert_eq!(&found, &indices);
            }
            prop_assert!(index.seen.iter().all(|word| *word == 0));
        }
    }
}
