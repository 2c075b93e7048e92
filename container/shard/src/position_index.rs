//! Which row of a sparse table holds which position: a hash table that grows in pieces and needs no second hash.
//!
//! Positions are spread evenly already ([`heddle_protocol::spec::position`]), so their leading bits say where a row is.
//! Segments hold the rows whose positions share a prefix; the directory has the segment of each prefix (extendible hashing:
//! Fagin, Nievergelt, Pippenger, Strong 1979). A full segment is split in two, so that no insertion moves more than one
//! segment. Within a segment a slot's place follows from the next bits, collisions move to the next slots, and all slots are
//! in the order of their positions: a search ends at the first greater one.
//!
//! A slot has 32 bits of the position. The caller compares the whole position, which it keeps with the row.

use heddle_optimizer::prefetch;

/// Slots of a new segment, and of a segment at which it is split rather than doubled: 32 KiB.
const SLOTS_MIN: usize = 64;
const SLOTS_MAX: usize = 4096;
/// Slots behind the last place, for rows that collide near the end.
const OVERFLOW: usize = 32;
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
    /// Slots of all segments.
    slots: usize,
}

struct Segment {
    /// Bits of the prefix that its positions share.
    depth: u32,
    used: u32,
    slots: Box<[IndexSlot]>,
}

#[derive(Clone, Copy)]
struct IndexSlot {
    /// The first 32 bits of the position.
    tag: u32,
    row: u32,
}

const FREE: IndexSlot = IndexSlot { tag: 0, row: EMPTY };

/// Where a position is, or belongs.
enum Found {
    Row(u32),
    /// The slot before which it belongs.
    Before(usize),
}

impl PositionIndex {
    pub(crate) fn new() -> Self {
        let first = Segment::new(0, SLOTS_MIN);
        Self { depth: 0, directory: vec![0], slots: first.slots.len(), segments: vec![first] }
    }

    /// The row at `position`. `position_of` returns the position of a row.
    #[inline]
    pub(crate) fn find(&self, position: u64, position_of: impl Fn(u32) -> u64) -> Option<u32> {
        match self.segment(position).search(position, position_of) {
            Found::Row(row) => Some(row),
            Found::Before(_) => None,
        }
    }

    /// The first row whose position has the same leading bits: most often that at the position, if there is one.
    #[inline]
    pub(crate) fn candidate(&self, position: u64) -> Option<u32> {
        let (segment, tag) = (self.segment(position), tag_of(position));
        let slots = &segment.slots[segment.place(tag)..];
        let slot = slots.iter().find(|slot| slot.row == EMPTY || slot.tag >= tag)?;
        (slot.row != EMPTY && slot.tag == tag).then_some(slot.row)
    }

    /// Starts to load the slots of a position that is searched soon.
    #[inline]
    pub(crate) fn prefetch(&self, position: u64) {
        let segment = self.segment(position);
        prefetch(&segment.slots[segment.place(tag_of(position))]);
    }

    /// Adds a row at a position that is not there.
    pub(crate) fn insert(&mut self, position: u64, row: u32, position_of: impl Fn(u32) -> u64) {
        loop {
            let index = self.directory[self.entry(position)] as usize;
            let segment = &mut self.segments[index];
            if segment.used as usize * 4 < segment.places() * 3 {
                let Found::Before(slot) = segment.search(position, &position_of) else {
                    debug_assert!(false, "the position is new");
                    return;
                };
                if segment.insert(slot, IndexSlot { tag: tag_of(position), row }) {
                    return;
                }
            }
            if segment.places() < SLOTS_MAX || segment.depth == DEPTH_MAX {
                self.slots -= segment.slots.len();
                segment.resize(segment.places() * 2);
                self.slots += segment.slots.len();
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
                let segment = &mut self.segments[index];
                let kept: Vec<IndexSlot> =
                    segment.rows().filter(|slot| !is_removed(slot.row)).collect();
                self.slots -= segment.slots.len();
                segment.refill(segment.places(), &kept);
                self.slots += segment.slots.len();
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

    /// Replaces a segment, which holds this position, by two with a longer prefix.
    fn split(&mut self, index: usize, position: u64) {
        let depth = self.segments[index].depth;
        if depth == self.depth {
            self.directory = self.directory.iter().flat_map(|&segment| [segment; 2]).collect();
            self.depth += 1;
        }
        let rows: Vec<IndexSlot> = self.segments[index].rows().collect();
        let middle = rows.partition_point(|slot| slot.tag >> (31 - depth) & 1 == 0);
        let halves = [&rows[..middle], &rows[middle..]].map(|rows| {
            let mut segment = Segment::new(depth + 1, SLOTS_MAX);
            segment.refill(SLOTS_MAX, rows);
            segment
        });
        let new = self.segments.len() as u32;
        let [low, high] = halves;
        self.slots += low.slots.len() + high.slots.len() - self.segments[index].slots.len();
        self.segments[index] = low;
        self.segments.push(high);
        // The entries whose prefix is that of the segment and a one.
        let first =
            (self.entry(position) >> (self.depth - depth) << 1 | 1) << (self.depth - depth - 1);
        self.directory[first..first + (1 << (self.depth - depth - 1))].fill(new);
    }
}

impl Segment {
    fn new(depth: u32, places: usize) -> Self {
        Self { depth, used: 0, slots: vec![FREE; places + OVERFLOW].into() }
    }

    /// Slots at which a search may begin.
    fn places(&self) -> usize {
        self.slots.len() - OVERFLOW
    }

    /// The slot at which the search for a position begins: by the bits after the prefix.
    #[inline]
    fn place(&self, tag: u32) -> usize {
        ((u64::from(tag << self.depth) * self.places() as u64) >> 32) as usize
    }

    #[inline]
    fn search(&self, position: u64, position_of: impl Fn(u32) -> u64) -> Found {
        let tag = tag_of(position);
        let mut at = self.place(tag);
        while let Some(slot) = self.slots.get(at).filter(|slot| slot.row != EMPTY) {
            if slot.tag >= tag {
                if slot.tag > tag {
                    break;
                }
                match position_of(slot.row).cmp(&position) {
                    std::cmp::Ordering::Less => {}
                    std::cmp::Ordering::Equal => return Found::Row(slot.row),
                    std::cmp::Ordering::Greater => break,
                }
            }
            at += 1;
        }
        Found::Before(at)
    }

    /// Inserts a row before slot `at`, and moves those up to the next free slot. False without such a slot.
    fn insert(&mut self, at: usize, new: IndexSlot) -> bool {
        let free = self.slots[at..].iter().position(|slot| slot.row == EMPTY);
        let Some(free) = free else { return false };
        self.slots.copy_within(at..at + free, at + 1);
        self.slots[at] = new;
        self.used += 1;
        true
    }

    /// The rows in the order of their positions.
    fn rows(&self) -> impl Iterator<Item = IndexSlot> {
        self.slots.iter().copied().filter(|slot| slot.row != EMPTY)
    }

    fn resize(&mut self, places: usize) {
        let rows: Vec<IndexSlot> = self.rows().collect();
        self.refill(places, &rows);
    }

    /// Replaces the content by `rows`, in the order of their positions; doubles `places` until they fit.
    fn refill(&mut self, mut places: usize, rows: &[IndexSlot]) {
        'fit: loop {
            if self.places() == places {
                self.slots.fill(FREE);
            } else {
                self.slots = vec![FREE; places + OVERFLOW].into();
            }
            let mut next = 0;
            for row in rows {
                let at = self.place(row.tag).max(next);
                let Some(slot) = self.slots.get_mut(at) else {
                    places *= 2;
                    continue 'fit;
                };
                *slot = *row;
                next = at + 1;
            }
            self.used = rows.len() as u32;
            return;
        }
    }
}

#[inline]
fn tag_of(position: u64) -> u32 {
    (position >> 32) as u32
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
                    index.segments[*segment as usize].rows().map(|slot| rows[slot.row as usize]),
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
            prop_assert!(rows[first..].iter().all(|p| index.find(*p, |row| rows[row as usize]).is_none()));
        }
    }
}
