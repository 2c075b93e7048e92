//! The distinct features of a batch, sorted, and the position of each feature of the batch among them.

use heddle_optimizer::prefetch;
use heddle_protocol::job_spec::limits::ANY_FEATURES;

/// Tables with at most this many features have a bitmap (at most 16 MiB with its counts); for larger ones the keys are
/// sorted.
const MAPPED_MAX: u64 = 1 << 26;
const WORD: u32 = u64::BITS;
/// Slots for positions at first.
const SLOTS_MIN: usize = 1024;

/// Finds the sorted distinct keys or positions of a batch. Its memory is reused from batch to batch.
///
/// The features of a batch are bits of a map. The position of a feature is the number of bits below it: a count for each
/// word, which is beside the word, and the bits of its own word. All of that stays in the cache where an array of
/// positions, which has 32 bits for each feature, does not.
#[derive(Debug)]
pub struct KeyIndex {
    /// One bit per feature, all zero between calls; empty for large tables.
    seen: Vec<SeenWord>,
    /// Bit `i`: `seen[i]` is not zero. All zero between calls.
    used: Vec<u64>,
    /// Features are any u64.
    any: bool,
    /// An open-addressing table of a power of two slots; all free between calls.
    slots: Vec<KeySlot>,
}

/// 64 features.
#[derive(Clone, Copy, Debug, Default)]
struct SeenWord {
    bits: u64,
    /// Bits of all words before this one; valid only if this one is not zero.
    before: u32,
}

/// A position and its number, from 1; 0 in a free slot.
#[derive(Clone, Copy, Debug, Default)]
struct KeySlot {
    position: u64,
    number: u32,
}

impl KeyIndex {
    /// An index of features below `features`.
    #[must_use]
    pub fn new(features: u64) -> Self {
        let any = features == ANY_FEATURES;
        let mapped = if features <= MAPPED_MAX { features as usize } else { 0 };
        let words = mapped.div_ceil(WORD as usize);
        Self {
            seen: vec![SeenWord::default(); words],
            used: vec![0; words.div_ceil(WORD as usize)],
            any,
            slots: Vec::new(),
        }
    }

    /// Whether features are any u64, so that [`Self::index_positions`] is the method to call.
    #[must_use]
    pub fn is_of_positions(&self) -> bool {
        self.any
    }

    /// Returns the distinct `positions`, sorted; replaces `local` by the place among them of each of `positions`.
    pub fn index_positions(&mut self, positions: &[u64], local: &mut Vec<u32>) -> Vec<u64> {
        /// Positions whose slots are loaded ahead: a slot is most often not in the cache.
        const AHEAD: usize = 16;
        local.clear();
        let mut distinct: Vec<(u64, u32)> = Vec::new();
        for (n, &position) in positions.iter().enumerate() {
            if distinct.len() * 2 >= self.slots.len() {
                self.double(&distinct);
            }
            if let Some(next) = positions.get(n + AHEAD) {
                prefetch(&self.slots[self.first_slot(*next)]);
            }
            let slot = self.slot_of(position);
            if slot.number == 0 {
                distinct.push((position, distinct.len() as u32));
                *slot = KeySlot { position, number: distinct.len() as u32 };
            }
            local.push(slot.number - 1);
        }
        self.slots.fill(KeySlot::default());
        let distinct = sorted(&distinct);
        let mut places = vec![0u32; distinct.len()];
        for (place, (_, number)) in (0..).zip(&distinct) {
            places[*number as usize] = place;
        }
        local.iter_mut().for_each(|number| *number = places[*number as usize]);
        distinct.into_iter().map(|(position, _)| position).collect()
    }

    /// Positions are spread evenly, so that their low bits are a hash.
    #[inline]
    fn first_slot(&self, position: u64) -> usize {
        position as usize & (self.slots.len() - 1)
    }

    /// The slot of a position, or the free one where it belongs.
    #[inline]
    fn slot_of(&mut self, position: u64) -> &mut KeySlot {
        let mut at = self.first_slot(position);
        while self.slots[at].number != 0 && self.slots[at].position != position {
            at = (at + 1) & (self.slots.len() - 1);
        }
        &mut self.slots[at]
    }

    /// Twice as many slots, with these positions.
    #[cold]
    fn double(&mut self, distinct: &[(u64, u32)]) {
        self.slots = vec![KeySlot::default(); (self.slots.len() * 2).max(SLOTS_MIN)];
        for (position, number) in distinct {
            *self.slot_of(*position) = KeySlot { position: *position, number: number + 1 };
        }
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
        for &index in indices {
            let word = index / WORD;
            self.seen[word as usize].bits |= 1 << (index % WORD);
            self.used[(word / WORD) as usize] |= 1 << (word % WORD);
        }
        for (group, used) in self.used.iter().enumerate() {
            for bit in ones(*used) {
                let word = group as u32 * WORD + bit;
                let seen = &mut self.seen[word as usize];
                seen.before = keys.len() as u32;
                keys.extend(ones(seen.bits).map(|bit| word * WORD + bit));
            }
        }
        positions(indices, &self.seen, local);
        for (group, used) in self.used.iter_mut().enumerate() {
            for bit in ones(std::mem::take(used)) {
                self.seen[group * WORD as usize + bit as usize].bits = 0;
            }
        }
    }
}

/// Sorts positions, each with its number. They are spread evenly, so that their leading bits divide them into small groups;
/// chosen positions in one group are sorted as any others.
fn sorted(distinct: &[(u64, u32)]) -> Vec<(u64, u32)> {
    const GROUP: usize = 8;
    let bits = (distinct.len() / GROUP).max(1).ilog2();
    // In two steps: a shift by 64 bits is not defined.
    let group = |position: u64| (position >> 1 >> (63 - bits)) as usize;
    let mut ends = vec![0; 1 << bits];
    distinct.iter().for_each(|(position, _)| ends[group(*position)] += 1);
    let mut start = 0;
    for end in &mut ends {
        start += std::mem::replace(end, start);
    }
    let mut sorted = vec![(0, 0); distinct.len()];
    for one in distinct {
        let end = &mut ends[group(one.0)];
        sorted[*end] = *one;
        *end += 1;
    }
    let mut start = 0;
    for end in ends {
        sorted[start..end].sort_unstable();
        start = end;
    }
    sorted
}

/// The numbers of the bits that are set, ascending.
fn ones(mut bits: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = (bits != 0).then(|| bits.trailing_zeros());
        bits &= bits.wrapping_sub(1);
        bit
    })
}

/// Appends the number of bits below each of `indices`.
fn positions(indices: &[u32], seen: &[SeenWord], local: &mut Vec<u32>) {
    #[cfg(target_arch = "x86_64")]
    #[expect(
        unsafe_code,
        reason = "calls a function that is compiled for processors that count bits"
    )]
    {
        /// The same code, with one instruction that counts the bits of a word instead of twelve.
        #[target_feature(enable = "popcnt")]
        fn counted(indices: &[u32], seen: &[SeenWord], local: &mut Vec<u32>) {
            extend_positions(indices, seen, local);
        }
        if std::is_x86_feature_detected!("popcnt") {
            // SAFETY: the processor has the instruction.
            unsafe { counted(indices, seen, local) };
            return;
        }
    }
    extend_positions(indices, seen, local);
}

#[inline(always)]
fn extend_positions(indices: &[u32], seen: &[SeenWord], local: &mut Vec<u32>) {
    local.extend(indices.iter().map(|index| {
        let word = seen[(index / WORD) as usize];
        let below = word.bits & ((1 << (index % WORD)) - 1);
        word.before + below.count_ones()
    }));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn positions_are_sorted_and_distinct(
            positions in proptest::collection::vec(
                prop_oneof![any::<u64>(), 0u64..50, (0u64..50).prop_map(|n| n << 40)],
                0..2000,
            ),
        ) {
            let mut index = KeyIndex::new(ANY_FEATURES);
            prop_assert!(index.is_of_positions());
            for _ in 0..2 {
                let mut local = vec![9];
                let distinct = index.index_positions(&positions, &mut local);
                let mut expected = positions.clone();
                expected.sort_unstable();
                expected.dedup();
                prop_assert_eq!(&distinct, &expected);
                let found: Vec<u64> = local.iter().map(|at| distinct[*at as usize]).collect();
                prop_assert_eq!(&found, &positions);
            }
        }

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
            prop_assert!(index.seen.iter().all(|word| word.bits == 0));
            prop_assert!(index.used.iter().all(|used| *used == 0));
        }
    }
}
