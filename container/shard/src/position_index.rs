//! Which row of a sparse table holds which position: a hash table that grows in pieces and computes no hash itself.
//!
//! The caller spreads positions evenly by a bijection (the positions here are its results), so leading bits are a row's place.
//! Segments hold the rows whose positions share a prefix; the directory has the segment of each prefix (extendible hashing:
//! Fagin, Nievergelt, Pippenger, Strong 1979). A full segment is split in two, so that no insertion moves more than one
//! segment. Within a segment a slot's place follows from the next bits, collisions move to the next slots, and all slots are
//! in the order of their positions: a search ends at the first greater one.
//!
//! A slot has 32 bits of the position. The caller compares the whole position, which it keeps with the row.

use heddle_optimizer::prefetch;

use crate::cells::Cells;

/// Slots of a new segment, and of a segment at which it is split rather than doubled: 32 KiB.
const SLOTS_MIN: usize = 64;
const SLOTS_MAX: usize = 4096;
/// Slots behind the last place, for rows that collide near the end.
const OVERFLOW: usize = 32;
/// Segments of [`SLOTS_MAX`] that share a chunk of memory: few in the first one, so that a small table stays small; then as
/// many as fill some huge pages, since a search of random positions waits for the translation of addresses.
const FIRST_CHUNK: usize = 32;
const CHUNK: usize = 512;
/// Most bits of a prefix. Beyond it segments grow instead: a directory of four million entries.
const DEPTH_MAX: u32 = 22;
/// A slot without a row.
const EMPTY: u32 = u32::MAX;
/// Most rows of an index.
pub(crate) const ROWS_MAX: u32 = EMPTY - 1;

/// Rows by position.
pub(crate) struct PositionIndex {
    /// Bits of the prefixes in `directory`.
    depth: u32,
    /// `[2^depth]`: indexes of `segments`.
    directory: Vec<u32>,
    segments: Vec<Segment>,
    /// The slots of the segments. Those of [`SLOTS_MAX`] share chunks, all others have one of their own.
    chunks: Vec<Cells<IndexSlot>>,
    /// The shared chunk with room, and its next segment.
    open: Option<(usize, usize)>,
    /// Slots of all segments.
    slots: usize,
}

struct Segment {
    /// Bits of the prefix that its positions share.
    depth: u32,
    used: u32,
    /// Slots at which a search may begin; [`OVERFLOW`] more follow.
    places: u32,
    /// Where its slots are.
    chunk: u32,
    first: u32,
}

/// The first 32 bits of the position in the upper half, the row in the lower one.
type IndexSlot = u64;

const FREE: IndexSlot = EMPTY as IndexSlot;

/// Where the search for a position begins.
#[derive(Clone, Copy, Default)]
pub(crate) struct SearchStart {
    tag: u32,
    chunk: u32,
    slot: u32,
}

/// Where a position is, or belongs.
enum Found {
    Row(u32),
    /// The slot before which it belongs.
    Before(usize),
}

impl PositionIndex {
    pub(crate) fn new() -> Self {
        let mut index = Self {
            depth: 0,
            directory: vec![0],
            segments: Vec::new(),
            chunks: Vec::new(),
            open: None,
            slots: 0,
        };
        let first = index.new_segment(0, SLOTS_MIN);
        index.segments.push(first);
        index.refill(0, SLOTS_MIN, &[]);
        index
    }

    /// The row at `position`. `position_of` returns the position of a row.
    #[inline]
    pub(crate) fn find(&self, position: u64, position_of: impl Fn(u32) -> u64) -> Option<u32> {
        let segment = self.segment(position);
        match segment.search(self.slots_of(segment), position, position_of) {
            Found::Row(row) => Some(row),
            Found::Before(_) => None,
        }
    }

    /// Starts to load the slots of a position that is searched soon.
    #[inline]
    pub(crate) fn prefetch(&self, position: u64) -> SearchStart {
        /// Most searches end before this many slots, which may lie in the next cache line.
        const SEARCHED: usize = 4;
        let (segment, tag) = (self.segment(position), tag_of(position));
        let slot = segment.first as usize + segment.place(tag);
        let slots = &self.chunks[segment.chunk as usize];
        prefetch(&slots[slot]);
        prefetch(&slots[slot + SEARCHED]);
        SearchStart { tag, chunk: segment.chunk, slot: slot as u32 }
    }

    /// The first row whose position has the same leading bits: most often the one at the position, if there is a row at it.
    /// Slots behind the segment have other leading bits.
    #[inline]
    pub(crate) fn candidate(&self, start: SearchStart) -> Option<u32> {
        let SearchStart { tag, chunk, slot } = start;
        let mut slots = self.chunks[chunk as usize][slot as usize..].iter();
        let slot = slots.find(|slot| row_in(**slot) == EMPTY || tag_of(**slot) >= tag)?;
        let row = row_in(*slot);
        (row != EMPTY && tag_of(*slot) == tag).then_some(row)
    }

    /// Adds a row at a position that is not there.
    pub(crate) fn insert(&mut self, position: u64, row: u32, position_of: impl Fn(u32) -> u64) {
        loop {
            let index = self.directory[self.entry(position)] as usize;
            let segment = &self.segments[index];
            if segment.used * 4 < segment.places * 3 {
                let slots = self.slots_of(segment);
                let Found::Before(at) = segment.search(slots, position, &position_of) else {
                    debug_assert!(false, "the position is new");
                    return;
                };
                if self.insert_slot(index, at, slot(tag_of(position), row)) {
                    return;
                }
            }
            let segment = &self.segments[index];
            if (segment.places as usize) < SLOTS_MAX || segment.depth == DEPTH_MAX {
                let places = segment.places as usize * 2;
                let rows: Vec<IndexSlot> = self.rows(segment).collect();
                self.refill(index, places, &rows);
            } else {
                self.split(index, position);
            }
        }
    }

    /// Removes the rows of these positions: those for which `is_removed`.
    pub(crate) fn remove(
        &mut self,
        positions: impl Iterator<Item = u64>,
        is_removed: impl Fn(u32) -> bool,
    ) {
        let mut cleaned = vec![false; self.segments.len()];
        for position in positions {
            let index = self.directory[self.entry(position)] as usize;
            if !std::mem::replace(&mut cleaned[index], true) {
                let segment = &self.segments[index];
                let kept = self.rows(segment).filter(|slot| !is_removed(row_in(*slot)));
                let (kept, places) = (kept.collect::<Vec<_>>(), segment.places as usize);
                self.refill(index, places, &kept);
            }
        }
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        self.slots * size_of::<IndexSlot>() + self.directory.len() * 4
    }

    #[inline]
    fn entry(&self, position: u64) -> usize {
        // In two steps: a shift by 64 bits is not defined.
        (position >> 1 >> (63 - self.depth)) as usize
    }

    #[inline]
    fn segment(&self, position: u64) -> &Segment {
        &self.segments[self.directory[self.entry(position)] as usize]
    }

    #[inline]
    fn slots_of(&self, segment: &Segment) -> &[IndexSlot] {
        &self.chunks[segment.chunk as usize][segment.range()]
    }

    /// The slots with rows of a segment, in the order of their positions.
    fn rows(&self, segment: &Segment) -> impl Iterator<Item = IndexSlot> {
        self.slots_of(segment).iter().copied().filter(|slot| row_in(*slot) != EMPTY)
    }

    /// A segment whose slots have any content until [`Self::refill`].
    fn new_segment(&mut self, depth: u32, places: usize) -> Segment {
        let (chunk, first) = self.allocate(places);
        let (places, chunk, first) = (places as u32, chunk as u32, first as u32);
        let segment = Segment { depth, used: 0, places, chunk, first };
        self.slots += segment.range().len();
        segment
    }

    /// A chunk with this number of places and the slots behind them, and the first of these slots.
    fn allocate(&mut self, places: usize) -> (usize, usize) {
        let len = places + OVERFLOW;
        if places != SLOTS_MAX {
            self.chunks.push(Cells::zeros(len));
            return (self.chunks.len() - 1, 0);
        }
        let room = self.open.filter(|(chunk, next)| next + len <= self.chunks[*chunk].len());
        let (chunk, next) = room.unwrap_or_else(|| {
            let segments = if self.open.is_none() { FIRST_CHUNK } else { CHUNK };
            self.chunks.push(Cells::zeros(segments * len));
            (self.chunks.len() - 1, 0)
        });
        self.open = Some((chunk, next + len));
        (chunk, next)
    }

    /// Inserts a row before slot `at` of a segment, and moves those up to the next free slot. False without such a slot.
    fn insert_slot(&mut self, index: usize, at: usize, new: IndexSlot) -> bool {
        let segment = &mut self.segments[index];
        let slots = &mut self.chunks[segment.chunk as usize][segment.range()];
        let free = slots[at..].iter().position(|slot| row_in(*slot) == EMPTY);
        let Some(free) = free else { return false };
        slots.copy_within(at..at + free, at + 1);
        slots[at] = new;
        segment.used += 1;
        true
    }

    /// Replaces the content of a segment by `rows`, in the order of their positions; doubles `places` until they fit.
    fn refill(&mut self, index: usize, mut places: usize, rows: &[IndexSlot]) {
        while !self.fill(index, places, rows) {
            places *= 2;
        }
    }

    /// Replaces the content of a segment. False, with any content, where the rows do not fit.
    fn fill(&mut self, index: usize, places: usize, rows: &[IndexSlot]) -> bool {
        let before = &self.segments[index];
        if before.places as usize != places {
            let depth = before.depth;
            self.slots -= before.range().len();
            if before.places as usize != SLOTS_MAX {
                self.chunks[before.chunk as usize] = Cells::zeros(0);
            }
            self.segments[index] = self.new_segment(depth, places);
        }
        let segment = &mut self.segments[index];
        let slots = &mut self.chunks[segment.chunk as usize][segment.range()];
        slots.fill(FREE);
        let mut next = 0;
        for row in rows {
            let at = segment.place(tag_of(*row)).max(next);
            let Some(slot) = slots.get_mut(at) else { return false };
            *slot = *row;
            next = at + 1;
        }
        segment.used = rows.len() as u32;
        true
    }

    /// Replaces a segment, which holds this position, by two with a longer prefix.
    fn split(&mut self, index: usize, position: u64) {
        let depth = self.segments[index].depth;
        if depth == self.depth {
            self.directory = self.directory.iter().flat_map(|&segment| [segment; 2]).collect();
            self.depth += 1;
        }
        let rows: Vec<IndexSlot> = self.rows(&self.segments[index]).collect();
        let middle = rows.partition_point(|slot| tag_of(*slot) >> (31 - depth) & 1 == 0);
        let (low, high) = rows.split_at(middle);
        let new = self.segments.len();
        let segment = self.new_segment(depth + 1, SLOTS_MAX);
        self.segments.push(segment);
        self.refill(new, SLOTS_MAX, high);
        self.segments[index].depth = depth + 1;
        self.refill(index, SLOTS_MAX, low);
        // The entries whose prefix is that of the segment and a one.
        let first =
            (self.entry(position) >> (self.depth - depth) << 1 | 1) << (self.depth - depth - 1);
        self.directory[first..first + (1 << (self.depth - depth - 1))].fill(new as u32);
    }
}

impl Segment {
    /// Its slots in the chunk.
    #[inline]
    fn range(&self) -> std::ops::Range<usize> {
        let first = self.first as usize;
        first..first + self.places as usize + OVERFLOW
    }

    /// The slot at which the search for a position begins: by the bits after the prefix.
    #[inline]
    fn place(&self, tag: u32) -> usize {
        ((u64::from(tag << self.depth) * u64::from(self.places)) >> 32) as usize
    }

    #[inline]
    fn search(
        &self,
        slots: &[IndexSlot],
        position: u64,
        position_of: impl Fn(u32) -> u64,
    ) -> Found {
        let tag = tag_of(position);
        let mut at = self.place(tag);
        while let Some(slot) = slots.get(at).filter(|slot| row_in(**slot) != EMPTY) {
            if tag_of(*slot) >= tag {
                if tag_of(*slot) > tag {
                    break;
                }
                match position_of(row_in(*slot)).cmp(&position) {
                    std::cmp::Ordering::Less => {}
                    std::cmp::Ordering::Equal => return Found::Row(row_in(*slot)),
                    std::cmp::Ordering::Greater => break,
                }
            }
            at += 1;
        }
        Found::Before(at)
    }
}

/// The first 32 bits of a position, also of that in a slot.
#[inline]
fn tag_of(position: u64) -> u32 {
    (position >> 32) as u32
}

#[inline]
fn slot(tag: u32, row: u32) -> IndexSlot {
    u64::from(tag) << 32 | u64::from(row)
}

#[inline]
fn row_in(slot: IndexSlot) -> u32 {
    slot as u32
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Positions that collide in their first 32 bits, in their first bits only, and not at all.
    fn position() -> impl Strategy<Value = u64> {
        prop_oneof![
            any::<u64>(),
            (0u64..4, 0u64..8).prop_map(|(tag, rest)| tag << 32 | rest),
            (0u64..6000).prop_map(|n| 0xabcd_0000_0000_0000 | n << 30),
        ]
    }

    fn check(index: &PositionIndex, rows: &[u64], expected: &BTreeMap<u64, u32>) {
        for (position, row) in expected {
            assert_eq!(index.find(*position, |row| rows[row as usize]), Some(*row));
        }
        let used: u32 = index.segments.iter().map(|segment| segment.used).sum();
        assert_eq!(used as usize, expected.len());
        let mut seen = Vec::new();
        for (entry, segment) in index.directory.iter().enumerate() {
            if entry == 0 || index.directory[entry - 1] != *segment {
                seen.extend(
                    index
                        .rows(&index.segments[*segment as usize])
                        .map(|slot| rows[row_in(slot) as usize]),
                );
            }
        }
        assert!(seen.is_sorted(), "segments and slots are in the order of the positions");
    }

    #[test]
    fn many_rows_split_segments_and_equal_prefixes_grow_them() {
        for (shift, count) in [(0, 40_000u64), (33, 3_000)] {
            let mut index = PositionIndex::new();
            let mut rows: Vec<u64> = Vec::new();
            for n in 0..count {
                let position = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> shift;
                index
                    .insert(position, n as u32, |row| rows.get(row as usize).copied().unwrap_or(0));
                rows.push(position);
            }
            let expected = (0..).zip(&rows).map(|(row, position)| (*position, row)).collect();
            check(&index, &rows, &expected);
            assert!(index.segments.len() > 10 || shift > 0);
            assert!(index.bytes() < count as usize * 32 || shift > 0, "{}", index.bytes());
        }
    }

    proptest! {
        #[test]
        fn it_agrees_with_an_ordered_map(
            positions in prop::collection::vec(position(), 0..5000),
            removed_from in 0usize..5000,
        ) {
            let mut index = PositionIndex::new();
            let mut rows: Vec<u64> = Vec::new();
            let mut expected = BTreeMap::new();
            for position in &positions {
                let found = index.find(*position, |row| rows[row as usize]);
                prop_assert_eq!(found, expected.get(position).copied());
                if found.is_none() {
                    let row = rows.len() as u32;
                    rows.push(*position);
                    index.insert(*position, row, |row| rows[row as usize]);
                    expected.insert(*position, row);
                }
            }
            check(&index, &rows, &expected);
            let first = removed_from.min(rows.len());
            index.remove(rows[first..].iter().copied(), |row| row as usize >= first);
            expected.retain(|_, row| (*row as usize) < first);
            check(&index, &rows, &expected);
            let is_found = |p: &_| index.find(*p, |row| rows[row as usize]).is_some();
            prop_assert!(!rows[first..].iter().any(is_found));
        }
    }
}
