//! BSP: which trainer runs which lane.
//!
//! The number of lanes and the data of each are fixed, so it does not matter for the result who runs one; it
//! matters only that somebody does. Two trainers that run the same lane for a moment (one was believed dead, or has
//! not read yet that the lane moved) do no harm either: they compute the same gradient from the same values, shards
//! keep the first copy of each part, and refuse the old trainer once the new one has asked them. So a lane moves
//! without waiting for an answer: the one who gives it up is told first, and one who is dead has been fenced by `Members`
//! before that.
//!
//! **Hand-outs.** Each time a lane gets a trainer the hand-out has a new number, above all before it in the phase and above all
//! of earlier generations. Shards fence by it (`heddle-shard`, `lanes.rs`). After a takeover trainers keep the lanes and numbers
//! that they have. The predecessor may have given such a lane to a trainer that asked the shards and died with it: then
//! the shards refuse the trainer that is believed to run it, it reports that, and gets the lane again under a new number.

use std::collections::{BTreeMap, BTreeSet};

use heddle_protocol::control::LaneGrant;
use heddle_protocol::ids::{Generation, HandOut, Lane, Member};

/// Owners by lane.
#[derive(Clone, Debug)]
pub(crate) struct Lanes {
    owners: Vec<Option<Owner>>,
    /// The last number given in this phase by this attempt.
    last: HandOut,
}

/// Which trainer runs a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner {
    member: Member,
    hand_out: HandOut,
}

impl Lanes {
    /// `count` lanes that nobody runs.
    pub(crate) fn new(count: u32, generation: Generation) -> Self {
        Self {
            owners: vec![None; count as usize],
            last: HandOut {
                generation,
                count: 0,
            },
        }
    }

    /// The lanes of a trainer, ascending.
    pub(crate) fn of(&self, member: Member) -> Vec<LaneGrant> {
        let grant = |(lane, owner): (Lane, &Option<Owner>)| {
            let Owner { hand_out, .. } = owner.filter(|owner| owner.member == member)?;
            Some(LaneGrant { lane, hand_out })
        };
        (0..)
            .map(Lane)
            .zip(&self.owners)
            .filter_map(grant)
            .collect()
    }

    /// The trainers that run lanes, once for each lane.
    pub(crate) fn owners(&self) -> impl Iterator<Item = Member> {
        self.owners.iter().flatten().map(|owner| owner.member)
    }

    /// A trainer that an earlier attempt gave these lanes keeps them. Of two trainers that claim a lane the later hand-out
    /// counts: the shards may have been asked by it.
    pub(crate) fn adopt(&mut self, member: Member, lanes: &[LaneGrant]) {
        for &LaneGrant { lane, hand_out } in lanes {
            if let Some(owner) = self.owners.get_mut(lane.0 as usize)
                && owner.is_none_or(|owner| owner.hand_out < hand_out)
            {
                *owner = Some(Owner { member, hand_out });
            }
        }
    }

    /// A shard refused a trainer this lane. If it is the trainer that should run the lane, it gets it again under a new
    /// number; tells whether it did.
    pub(crate) fn fenced(&mut self, member: Member, refused: LaneGrant) -> bool {
        let index = refused.lane.0 as usize;
        let is_current = self.owners.get(index).is_some_and(|owner| {
            // A lower number was refused: the order with the present one is on its way.
            owner.is_some_and(|owner| owner.member == member && owner.hand_out <= refused.hand_out)
        });
        if is_current {
            self.hand_out(index, member);
        }
        is_current
    }

    fn hand_out(&mut self, index: usize, member: Member) {
        self.last.count = self.last.count.saturating_add(1);
        let hand_out = self.last;
        if let Some(owner) = self.owners.get_mut(index) {
            *owner = Some(Owner { member, hand_out });
        }
    }

    /// Shares all lanes out over `members` and moves as few as possible: first those without an owner, then
    /// one by one from who has most to who has fewest, until nobody has two more than another.
    ///
    /// Returns whose set has changed, those who lost a lane first.
    pub(crate) fn share(&mut self, members: &BTreeSet<Member>) -> Vec<Member> {
        let before: BTreeMap<Member, Vec<LaneGrant>> = members
            .iter()
            .map(|&member| (member, self.of(member)))
            .collect();
        for owner in &mut self.owners {
            *owner = owner.filter(|owner| members.contains(&owner.member));
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
        for index in 0..self.owners.len() {
            if self.owners[index].is_some() {
                continue;
            }
            let Some((member, _)) = fewest(&counts) else {
                return Vec::new();
            };
            self.hand_out(index, member);
            *counts.entry(member).or_default() += 1;
        }
        while let Some((poorest, few)) = fewest(&counts)
            && let Some((&richest, &many)) = counts.iter().max_by_key(|(_, count)| **count)
            && many > few + 1
        {
            // The highest lane moves; any would do.
            let is_richest = |owner: &Option<Owner>| owner.is_some_and(|o| o.member == richest);
            if let Some(index) = self.owners.iter().rposition(is_richest) {
                self.hand_out(index, poorest);
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

    fn numbers(lanes: &Lanes, index: u32) -> Vec<u32> {
        let grants = lanes.of(trainer(index));
        grants.iter().map(|grant| grant.lane.0).collect()
    }

    fn grant(lane: u32, generation: u32, count: u32) -> LaneGrant {
        LaneGrant {
            lane: Lane(lane),
            hand_out: HandOut {
                generation: Generation(generation),
                count,
            },
        }
    }

    #[test]
    fn a_lane_that_moves_gets_a_higher_number_and_one_that_stays_keeps_its_own() {
        let mut lanes = Lanes::new(2, Generation(3));
        lanes.share(&members([0]));
        assert_eq!(lanes.of(trainer(0)), [grant(0, 3, 1), grant(1, 3, 2)]);
        lanes.share(&members([0, 1]));
        assert_eq!(lanes.of(trainer(0)), [grant(0, 3, 1)]);
        assert_eq!(lanes.of(trainer(1)), [grant(1, 3, 3)]);
    }

    #[test]
    fn numbers_of_a_later_generation_are_above_all_that_it_adopted() {
        let mut lanes = Lanes::new(2, Generation(2));
        lanes.adopt(trainer(0), &[grant(0, 1, 70), grant(1, 1, 71)]);
        assert!(lanes.share(&members([0])).is_empty(), "kept as they are");
        lanes.share(&members([1]));
        assert_eq!(lanes.of(trainer(1)), [grant(0, 2, 1), grant(1, 2, 2)]);
        assert!(grant(0, 2, 1).hand_out > grant(0, 1, 71).hand_out);
    }

    #[test]
    fn of_two_trainers_that_claim_a_lane_the_later_hand_out_counts() {
        for order in [[0, 1], [1, 0]] {
            let mut lanes = Lanes::new(1, Generation(2));
            for index in order {
                lanes.adopt(trainer(index), &[grant(0, 1, 5 + index)]);
            }
            assert_eq!(lanes.of(trainer(1)), [grant(0, 1, 6)]);
            assert_eq!(lanes.of(trainer(0)), []);
        }
    }

    #[test]
    fn the_owner_that_shards_refuse_gets_its_lane_again() {
        let mut lanes = Lanes::new(1, Generation(2));
        lanes.adopt(trainer(0), &[grant(0, 1, 3)]);
        assert!(!lanes.fenced(trainer(1), grant(0, 1, 2)), "not its lane");
        assert!(lanes.fenced(trainer(0), grant(0, 1, 3)));
        assert_eq!(lanes.of(trainer(0)), [grant(0, 2, 1)]);
        assert!(
            !lanes.fenced(trainer(0), grant(0, 1, 3)),
            "the order with the new number is on its way"
        );
        assert!(!lanes.fenced(trainer(0), grant(9, 1, 3)), "no such lane");
    }

    #[test]
    fn lanes_are_dealt_in_turn() {
        let mut lanes = Lanes::new(5, Generation(1));
        lanes.share(&members([0, 1]));
        assert_eq!(numbers(&lanes, 0), [0, 2, 4]);
        assert_eq!(numbers(&lanes, 1), [1, 3]);
    }

    #[test]
    fn a_dead_trainers_lanes_move_and_the_others_keep_theirs() {
        let mut lanes = Lanes::new(4, Generation(1));
        lanes.share(&members([0, 1]));
        assert_eq!(lanes.share(&members([0])), [trainer(0)]);
        assert_eq!(lanes.of(trainer(0)).len(), 4);
        assert_eq!(lanes.of(trainer(1)), []);
    }

    #[test]
    fn a_joiner_gets_its_share_and_who_gives_it_up_is_told_first() {
        let mut lanes = Lanes::new(4, Generation(1));
        lanes.share(&members([1]));
        assert_eq!(lanes.share(&members([0, 1])), [trainer(1), trainer(0)]);
        assert_eq!(numbers(&lanes, 0), [2, 3]);
    }

    #[test]
    fn without_trainers_lanes_wait() {
        let mut lanes = Lanes::new(2, Generation(1));
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
            let mut lanes = Lanes::new(count, Generation(1));
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
