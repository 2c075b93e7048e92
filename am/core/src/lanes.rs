//! BSP: which trainer runs which lane.
//!
//! The number of lanes and the data of each are fixed, so it does not matter for the result who runs one; it
//! matters only that somebody does. Two trainers that run the same lane for a moment (one was believed dead, or has
//! not read yet that the lane moved) do no harm either: they compute the same gradient from the same values, and
//! shards keep the first copy of each part. So a lane moves without waiting for an answer: the one who gives
//! it up is told first, and one who is dead has been fenced by `Members` before that.

use std::collections::{BTreeMap, BTreeSet};

use heddle_protocol::ids::{Lane, Member};

/// Owners by lane.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lanes {
    owners: Vec<Option<Member>>,
}

impl Lanes {
    /// `count` lanes that nobody runs.
    pub(crate) fn new(count: u32) -> Self {
        Self {
            owners: vec![None; count as usize],
        }
    }

    /// The lanes of a trainer, ascending.
    pub(crate) fn of(&self, member: Member) -> Vec<Lane> {
        self.numbered()
            .filter(|(_, owner)| *owner == Some(member))
            .map(|(lane, _)| lane)
            .collect()
    }

    fn numbered(&self) -> impl Iterator<Item = (Lane, Option<Member>)> {
        (0..).map(Lane).zip(self.owners.iter().copied())
    }

    /// A trainer that an earlier attempt gave these lanes keeps those that nobody else has.
    pub(crate) fn adopt(&mut self, member: Member, lanes: &[Lane]) {
        for lane in lanes {
            if let Some(owner @ None) = self.owners.get_mut(lane.0 as usize) {
                *owner = Some(member);
            }
        }
    }

    /// Shares all lanes out over `members` and moves as few as possible: first those without an owner, then
    /// one by one from who has most to who has fewest, until nobody has two more than another.
    ///
    /// Returns whose set has changed, those who lost a lane first.
    pub(crate) fn share(&mut self, members: &BTreeSet<Member>) -> Vec<Member> {
        let before: BTreeMap<Member, Vec<Lane>> = members
            .iter()
            .map(|&member| (member, self.of(member)))
            .collect();
        for owner in &mut self.owners {
            *owner = owner.filter(|owner| members.contains(owner));
        }
        let mut counts: BTreeMap<Member, usize> = before
            .iter()
            .map(|(&member, lanes)| (member, lanes.len()))
            .collect();
        let fewest = |counts: &BTreeMap<Member, usize>| {
            counts
                .iter()
                .min_by_key(|(member, count)| (**count, **member))
                .map(|(&member, &count)| (member, count))
        };
        for owner in self.owners.iter_mut().filter(|owner| owner.is_none()) {
            let Some((member, _)) = fewest(&counts) else {
                return Vec::new();
            };
            *owner = Some(member);
            *counts.entry(member).or_default() += 1;
        }
        while let Some((poorest, few)) = fewest(&counts)
            && let Some((&richest, &many)) = counts.iter().max_by_key(|(_, count)| **count)
            && many > few + 1
        {
            // The highest lane moves; any would do.
            if let Some(owner) = self
                .owners
                .iter_mut()
                .rev()
                .find(|owner| **owner == Some(richest))
            {
                *owner = Some(poorest);
            }
            counts.insert(richest, many - 1);
            counts.insert(poorest, few + 1);
        }
        let lost = |member: &Member| {
            before[member]
                .iter()
                .any(|lane| !self.of(*member).contains(lane))
        };
        let (losers, others): (Vec<_>, Vec<_>) = members.iter().copied().partition(lost);
        let changed = |member: &Member| self.of(*member) != before[member];
        losers
            .into_iter()
            .chain(others.into_iter().filter(changed))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_protocol::ids::{Incarnation, Slot};
    use proptest::prelude::*;

    fn trainer(index: u32) -> Member {
        Member {
            slot: Slot::trainer(index),
            incarnation: Incarnation(1),
        }
    }

    fn members(indices: impl IntoIterator<Item = u32>) -> BTreeSet<Member> {
        indices.into_iter().map(trainer).collect()
    }

    #[test]
    fn lanes_are_dealt_in_turn() {
        let mut lanes = Lanes::new(5);
        lanes.share(&members([0, 1]));
        assert_eq!(lanes.of(trainer(0)), [Lane(0), Lane(2), Lane(4)]);
        assert_eq!(lanes.of(trainer(1)), [Lane(1), Lane(3)]);
    }

    #[test]
    fn a_dead_trainers_lanes_move_and_the_others_keep_theirs() {
        let mut lanes = Lanes::new(4);
        lanes.share(&members([0, 1]));
        assert_eq!(lanes.share(&members([0])), [trainer(0)]);
        assert_eq!(lanes.of(trainer(0)).len(), 4);
        assert_eq!(lanes.of(trainer(1)), []);
    }

    #[test]
    fn a_joiner_gets_its_share_and_who_gives_it_up_is_told_first() {
        let mut lanes = Lanes::new(4);
        lanes.share(&members([1]));
        assert_eq!(lanes.share(&members([0, 1])), [trainer(1), trainer(0)]);
        assert_eq!(lanes.of(trainer(0)), [Lane(2), Lane(3)]);
    }

    #[test]
    fn without_trainers_lanes_wait() {
        let mut lanes = Lanes::new(2);
        lanes.share(&members([0]));
        assert_eq!(lanes.share(&members([])), []);
        assert_eq!(lanes.share(&members([1])), [trainer(1)]);
        assert_eq!(lanes.of(trainer(1)).len(), 2);
    }

    proptest! {
        #[test]
        fn every_lane_has_one_owner_and_the_load_is_even(
            count in 1u32..40,
            sets in prop::collection::vec(prop::collection::btree_set(0u32..12, 1..12), 1..10),
        ) {
            let mut lanes = Lanes::new(count);
            for set in sets {
                let members = members(set);
                lanes.share(&members);
                let loads: Vec<usize> = members.iter().map(|member| lanes.of(*member).len()).collect();
                prop_assert_eq!(loads.iter().sum::<usize>(), count as usize);
                let (most, fewest) = (loads.iter().max().copied(), loads.iter().min().copied());
                prop_assert!(most.unwrap_or(0) <= fewest.unwrap_or(0) + 1);
                prop_assert!(lanes.share(&members).is_empty(), "a second time nothing moves");
            }
        }
    }
}
