//! Placement of backups: which pserver holds a copy of which shard.
//!
//! **Rule.** The copies of a shard are on different hosts. The backups of one pserver's shards are spread over all others, so
//! that its loss makes a few shards each of them primary, not all of them one neighbour. Where hosts are lacking, a shard has
//! fewer backups: never are two copies of it on one host. A run on one machine takes pservers for hosts.

use std::collections::{BTreeMap, BTreeSet};

use heddle_protocol::ids::Slot;

use super::shard_map::ShardMap;

/// By shard: the slots of its backups, at most `replicas`. `hosts`: the registered pservers with their hosts; it has the
/// pservers of the map.
pub(crate) fn place_backups(
    map: &ShardMap,
    hosts: &BTreeMap<Slot, String>,
    replicas: u32,
) -> Vec<Vec<Slot>> {
    let mut copies: BTreeMap<Slot, usize> =
        hosts.keys().map(|slot| (*slot, map.of(*slot).len())).collect();
    // By primary and backup: shards that the two share.
    let mut shared: BTreeMap<(Slot, Slot), u32> = BTreeMap::new();
    // Neighbours last: what follows a pserver in the turn differs from pserver to pserver.
    let turn = |from: Slot, to: Slot| to.index.wrapping_sub(from.index);
    let mut placed = Vec::with_capacity(map.len());
    for (_, primary) in map.iter() {
        let mut taken: BTreeSet<&str> =
            hosts.get(&primary).map(String::as_str).into_iter().collect();
        let mut backups = Vec::new();
        for _ in 0..replicas {
            let open = hosts.iter().filter(|(_, host)| !taken.contains(host.as_str()));
            let rank = |slot: Slot| {
                let of_primary = shared.get(&(primary, slot)).copied().unwrap_or_default();
                (of_primary, copies.get(&slot).copied().unwrap_or_default(), turn(primary, slot))
            };
            let Some((slot, host)) = open.min_by_key(|(slot, _)| rank(**slot)) else {
                break;
            };
            taken.insert(host);
            backups.push(*slot);
            *shared.entry((primary, *slot)).or_default() += 1;
            *copies.entry(*slot).or_default() += 1;
        }
        placed.push(backups);
    }
    placed
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hosts(of: &[u32]) -> BTreeMap<Slot, String> {
        let slots = (0..).map(Slot::pserver);
        slots.zip(of).map(|(slot, host)| (slot, format!("host-{host}"))).collect()
    }

    proptest! {
        #[test]
        fn copies_of_a_shard_are_on_different_hosts(
            pservers in 1u32..8,
            per in 1u32..6,
            replicas in 0u32..3,
            of in prop::collection::vec(0u32..5, 8),
        ) {
            let map = ShardMap::even(pservers * per, pservers);
            let hosts = hosts(&of[..pservers as usize]);
            let distinct: BTreeSet<&String> = hosts.values().collect();
            let placed = place_backups(&map, &hosts, replicas);
            prop_assert_eq!(placed.len(), map.len());
            for ((_, primary), backups) in map.iter().zip(&placed) {
                let slots = backups.iter().chain([&primary]);
                let on: BTreeSet<&String> = slots.map(|slot| &hosts[slot]).collect();
                prop_assert_eq!(on.len(), backups.len() + 1);
                prop_assert_eq!(backups.len(), (replicas as usize).min(distinct.len() - 1));
            }
            // On hosts of their own no pserver holds much more than the others.
            if distinct.len() == pservers as usize {
                let copies = |slot: &Slot| {
                    map.of(*slot).len() + placed.iter().filter(|of| of.contains(slot)).count()
                };
                let most = hosts.keys().map(copies).max().unwrap_or(0);
                let share = per as usize * (1 + (replicas as usize).min(distinct.len() - 1));
                prop_assert!(most <= share + pservers as usize, "{most} of {share}");
            }
        }
    }
}
