//! Which pserver's slot holds which shard.

use std::collections::{BTreeMap, BTreeSet};

use heddle_protocol::ids::{ShardId, Slot};

/// The slot of each shard, and the shards of each slot: asked for a slot with each order to it, so not searched for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ShardMap {
    holders: Vec<Slot>,
    of: BTreeMap<Slot, Vec<ShardId>>,
}

impl ShardMap {
    /// By shard: the slot that holds it.
    pub(crate) fn new(holders: Vec<Slot>) -> Self {
        let mut of: BTreeMap<Slot, Vec<ShardId>> = BTreeMap::new();
        for (shard, slot) in (0..).map(ShardId).zip(&holders) {
            of.entry(*slot).or_default().push(shard);
        }
        Self { holders, of }
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
}
