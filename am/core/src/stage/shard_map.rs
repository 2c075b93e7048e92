//! Which pserver's slot holds which shard.

use std::collections::{BTreeMap, BTreeSet};

use heddle_protocol::ids::{ShardId, Slot};
use heddle_protocol::mutation::Mutation;

/// The slot of each shard, and the shards of each slot: asked for a slot with each order to it, so not searched for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ShardMap {
    holders: Vec<Slot>,
    of: BTreeMap<Slot, Vec<ShardId>>,
    /// With replicas: all copies that a slot loaded in this epoch, ascending; without them, or before it is known: empty.
    copies: BTreeMap<Slot, Vec<ShardId>>,
    /// Copies that refills brought, each with its data thread.
    filled: BTreeMap<(Slot, ShardId), u32>,
}

impl ShardMap {
    /// By shard: the slot that holds it.
    pub(crate) fn new(holders: Vec<Slot>) -> Self {
        let mut of: BTreeMap<Slot, Vec<ShardId>> = BTreeMap::new();
        for (shard, slot) in (0..).map(ShardId).zip(&holders) {
            of.entry(*slot).or_default().push(shard);
        }
        Self { holders, of, copies: BTreeMap::new(), filled: BTreeMap::new() }
    }

    /// Shards in turn over the pservers of a job.
    pub(crate) fn even(shards: u32, pservers: u32) -> Self {
        Self::new((0..shards).map(|shard| Slot::pserver(shard % pservers)).collect())
    }

    /// The map with the shards of each pserver together again, as far as pservers are `there`. `even`: the shards' first
    /// pservers.
    ///
    /// - Shards that have a pserver for themselves stay.
    /// - Else they return to their first pserver, unless it has others by now.
    /// - Else a pserver without shards takes them: those of a missing pserver first, then those that survivors hold.
    /// - Else they stay.
    pub(crate) fn returned(&self, even: &Self, there: &BTreeSet<Slot>) -> Self {
        self.placed(even, there, true)
    }

    /// As [`Self::returned`], for shards of missing pservers alone: no other shard moves.
    pub(crate) fn refilled(&self, even: &Self, there: &BTreeSet<Slot>) -> Self {
        self.placed(even, there, false)
    }

    fn placed(&self, even: &Self, there: &BTreeSet<Slot>, moves: bool) -> Self {
        let mut moving = Moving::new(self, there, moves);
        let mut away: Vec<&[ShardId]> = Vec::new();
        for (home, shards) in &even.of {
            if moving.is_apart(shards) {
                continue;
            }
            let has_own = shards.iter().any(|shard| self.holds(*home, *shard));
            if moving.idle.contains(home) || (there.contains(home) && has_own) {
                moving.place(shards, *home);
            } else {
                away.push(shards);
            }
        }
        away.sort_by_key(|shards| {
            let of: BTreeSet<Slot> =
                shards.iter().filter_map(|it| self.holders.get(it.0 as usize)).copied().collect();
            (of.iter().all(|slot| there.contains(slot)), of.len() == 1)
        });
        if !Mutation::SpareStaysIdle.is_on() {
            for shards in away {
                // A pserver whose shards have all returned is idle too.
                let idle = moving.idle.first().copied();
                if let Some(slot) = idle.filter(|_| !moving.is_apart(shards)) {
                    moving.place(shards, slot);
                }
            }
        }
        Self::new(moving.holders)
    }

    /// Slots that hold shards and are not `there`.
    pub(crate) fn missing<'a>(
        &'a self,
        there: &'a BTreeSet<Slot>,
    ) -> impl Iterator<Item = Slot> + 'a {
        self.slots().filter(|slot| !there.contains(slot))
    }

    /// The map with each shard of a missing pserver at the survivor that holds fewest. `room`: how many shards fit into
    /// each survivor's memory. `None` if they do not fit: a pserver that exceeds its memory costs another rollback and
    /// leads to the same end again.
    pub(crate) fn spread(&self, room: &BTreeMap<Slot, u32>) -> Option<Self> {
        let held = |(slot, fit): (&Slot, &u32)| (*slot, (self.of(*slot).len() as u32, *fit));
        let mut room: BTreeMap<Slot, (u32, u32)> = room.iter().map(held).collect();
        let mut map = self.holders.clone();
        let survivors: BTreeSet<Slot> = room.keys().copied().collect();
        for slot in map.iter_mut().filter(|slot| !survivors.contains(slot)) {
            let open = room.iter_mut().filter(|(_, (held, fit))| held < fit);
            let (taker, (held, _)) = open.min_by_key(|(slot, (held, _))| (*held, **slot))?;
            *slot = *taker;
            *held += 1;
        }
        Some(Self::new(map))
    }

    /// The map with these copies in each slot.
    pub(crate) fn with_copies(mut self, copies: BTreeMap<Slot, Vec<ShardId>>) -> Self {
        self.copies = copies;
        self
    }

    /// The map with other primaries, in the same copies. The slot `lost` has none any more.
    pub(crate) fn with_primaries(&self, holders: Vec<Slot>, lost: Option<Slot>) -> Self {
        let mut copies = self.copies.clone();
        if let Some(lost) = lost {
            copies.remove(&lost);
        }
        Self::new(holders).with_copies(copies)
    }

    /// The map with these data threads of copies that refills brought.
    pub(crate) fn with_filled(mut self, filled: BTreeMap<(Slot, ShardId), u32>) -> Self {
        self.filled = filled;
        self
    }

    /// All copies that a slot has loaded, ascending: its shards, and with replicas the backups of others.
    pub(crate) fn copies_of(&self, slot: Slot) -> &[ShardId] {
        match self.copies.is_empty() {
            true => self.of(slot),
            false => self.copies.get(&slot).map_or(&[], Vec::as_slice),
        }
    }

    /// The place of a shard in the order in which a pserver deals its copies to its data threads.
    pub(crate) fn turn(&self, slot: Slot, shard: ShardId) -> usize {
        if let Some(thread) = self.filled.get(&(slot, shard)) {
            return *thread as usize;
        }
        let copies = self.copies_of(slot);
        copies.binary_search(&shard).unwrap_or_default()
    }

    /// Whether every slot that has to load copies is among these.
    pub(crate) fn is_loaded_by(&self, slots: &BTreeSet<Slot>) -> bool {
        let backups = self.copies.keys().all(|slot| slots.contains(slot));
        self.is_covered_by(slots) && (backups || Mutation::BackupsNeedNotLoad.is_on())
    }

    /// By shard: the slot that holds it.
    pub(crate) fn holders(&self) -> &[Slot] {
        &self.holders
    }

    /// Shards of the job, with the slot of each.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ShardId, Slot)> + '_ {
        (0..).map(ShardId).zip(self.holders.iter().copied())
    }

    /// Number of shards.
    pub(crate) fn len(&self) -> usize {
        self.holders.len()
    }

    /// Whether the job has no shards yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.holders.is_empty()
    }

    /// Whether the slot holds the shard.
    pub(crate) fn holds(&self, slot: Slot, shard: ShardId) -> bool {
        self.holders.get(shard.0 as usize) == Some(&slot)
    }

    /// The shards of a slot, ascending.
    pub(crate) fn of(&self, slot: Slot) -> &[ShardId] {
        self.of.get(&slot).map_or(&[], Vec::as_slice)
    }

    /// Slots that hold shards, ascending.
    pub(crate) fn slots(&self) -> impl ExactSizeIterator<Item = Slot> + '_ {
        self.of.keys().copied()
    }

    /// Whether every slot that holds shards is among these. Asked with each answer, and a look at the number is enough until
    /// the last.
    pub(crate) fn is_covered_by(&self, slots: &BTreeSet<Slot>) -> bool {
        slots.len() >= self.of.len() && self.slots().all(|slot| slots.contains(&slot))
    }
}

/// Shards on their way to other pservers.
struct Moving<'a> {
    /// By shard.
    holders: Vec<Slot>,
    /// Number of shards of each slot.
    held: BTreeMap<Slot, usize>,
    there: &'a BTreeSet<Slot>,
    /// Whether shards leave pservers that are there.
    moves: bool,
    /// Slots that are there without shards.
    idle: BTreeSet<Slot>,
}

impl<'a> Moving<'a> {
    fn new(map: &ShardMap, there: &'a BTreeSet<Slot>, moves: bool) -> Self {
        let held = map.of.iter().map(|(slot, shards)| (*slot, shards.len())).collect();
        let idle = there.iter().copied().filter(|slot| map.of(*slot).is_empty()).collect();
        Self { holders: map.holders.clone(), held, there, moves, idle }
    }

    /// Whether these shards have a pserver for themselves.
    fn is_apart(&self, shards: &[ShardId]) -> bool {
        let mut holders = shards.iter().filter_map(|shard| self.holders.get(shard.0 as usize));
        let first = holders.next().filter(|slot| self.there.contains(slot));
        first.is_some_and(|first| {
            self.held.get(first) == Some(&shards.len()) && holders.all(|slot| slot == first)
        })
    }

    fn place(&mut self, shards: &[ShardId], slot: Slot) {
        for shard in shards {
            let Some(holder) = self.holders.get_mut(shard.0 as usize) else {
                continue;
            };
            if !self.moves && self.there.contains(holder) {
                continue;
            }
            let before = std::mem::replace(holder, slot);
            *self.held.entry(slot).or_default() += 1;
            self.idle.remove(&slot);
            let left = self.held.entry(before).or_default();
            *left = left.saturating_sub(1);
            if *left == 0 && self.there.contains(&before) {
                self.idle.insert(before);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_know_their_shards() {
        let map = ShardMap::new([1, 0, 1].map(Slot::pserver).to_vec());
        assert_eq!(map.of(Slot::pserver(1)), [ShardId(0), ShardId(2)]);
        assert_eq!(map.of(Slot::pserver(2)), []);
        assert!(map.holds(Slot::pserver(0), ShardId(1)));
        assert!(!map.holds(Slot::pserver(0), ShardId(3)));
        let mut answered: BTreeSet<Slot> = [0, 2].map(Slot::pserver).into();
        assert!(!map.is_covered_by(&answered));
        answered.insert(Slot::pserver(1));
        assert!(map.is_covered_by(&answered));
    }
    /// Shards 0, 1, … in these slots, and the slots that are there: the slots after they return.
    fn returned(holders: &[u32], there: &[u32], pservers: u32) -> Vec<u32> {
        let map = ShardMap::new(holders.iter().copied().map(Slot::pserver).collect());
        let there = there.iter().copied().map(Slot::pserver).collect();
        let even = ShardMap::even(holders.len() as u32, pservers);
        map.returned(&even, &there).holders().iter().map(|slot| slot.index).collect()
    }

    #[test]
    fn pserver_whose_shards_return_takes_those_of_a_lost_one() {
        // Slot 3 has the shards of slots 1 and 2, which are back, and slot 0 is lost. It keeps one of them.
        assert_eq!(returned(&[0, 3, 3], &[1, 2, 3], 3), [2, 1, 3]);
        assert_eq!(returned(&[0, 3, 3], &[1, 3, 4], 3), [4, 1, 3]);
        assert_eq!(returned(&[0, 3, 3], &[1, 3], 3), [0, 1, 3], "none is without shards");
    }

    /// All places of three groups of shards in five slots, with all sets of slots that are there.
    #[test]
    fn no_pserver_is_idle_while_shards_of_a_lost_one_wait() {
        for shards in [3, 4] {
            for places in 0..5_u32.pow(shards) {
                let holders: Vec<u32> = (0..shards).map(|at| places / 5_u32.pow(at) % 5).collect();
                for set in 0..32_u32 {
                    let there: Vec<u32> = (0..5).filter(|slot| set >> slot & 1 == 1).collect();
                    let map = returned(&holders, &there, 3);
                    let case = format!("{holders:?} with {there:?}: {map:?}");
                    let waits = map.iter().any(|slot| !there.contains(slot));
                    let idle = there.iter().any(|slot| !map.contains(slot));
                    assert!(!(waits && idle), "{case}");
                    let missing = |map: &[u32]| map.iter().filter(|it| !there.contains(it)).count();
                    assert!(missing(&map) <= missing(&holders), "{case}");
                    assert_eq!(returned(&map, &there, 3), map, "they would move again: {case}");
                }
            }
        }
    }
}
