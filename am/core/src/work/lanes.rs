//! BSP: which trainer runs which lane.
//!
//! The number of lanes and the data of each are fixed, so the result does not depend on which trainer runs a lane,
//! only on every lane having one. Two trainers may run the same lane for a moment: one was considered lost, or has
//! not yet read that the lane moved. Both compute the same gradient from the same values. Shards keep the first copy of
//! each part, and reject the old trainer after the first request of the new one. So a lane moves without waiting for a
//! reply: the trainer that loses it gets its order first, and `Members` fences a lost trainer before that.
//!
//! **Hand-outs.** Each time a lane gets a trainer the hand-out has a new number, above all before it in the phase and above all
//! of earlier generations. Shards fence by it (`heddle-shard`, `lanes.rs`). After a takeover trainers keep the lanes and numbers
//! that they have. The predecessor may have given such a lane to a trainer that asked the shards and died with it: then
//! the shards refuse the trainer that is believed to run it, it reports that, and gets the lane again under a new number.

use std::collections::{BTreeMap, BTreeSet};

use heddle_protocol::control::LaneGrant;
use heddle_protocol::ids::{Generation, HandOut, Lane, Member};

/// The owner of each lane.
#[derive(Clone, Debug)]
pub(crate) struct Lanes {
    owners: Vec<Option<LaneOwner>>,
    /// The lanes of each owner, as indices into `owners`.
    of: BTreeMap<Member, BTreeSet<usize>>,
    /// Lanes that no trainer runs.
    free: BTreeSet<usize>,
    /// The last number given in this phase by this attempt.
    last: HandOut,
}

/// Which trainer runs a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LaneOwner {
    member: Member,
    hand_out: HandOut,
}

impl Lanes {
    /// `count` lanes without an owner.
    pub(crate) fn new(count: u32, generation: Generation) -> Self {
        Self {
            owners: vec![None; count as usize],
            of: BTreeMap::new(),
            free: (0..count as usize).collect(),
            last: HandOut { generation, count: 0 },
        }
    }

    /// Number of lanes.
    pub(crate) fn count(&self) -> u32 {
        self.owners.len() as u32
    }

    /// The lanes of a trainer, ascending.
    pub(crate) fn of(&self, member: Member) -> Vec<LaneGrant> {
        let grant = |&index: &usize| {
            let LaneOwner { hand_out, .. } = (*self.owners.get(index)?)?;
            let lane = Lane(index as u32);
            Some(LaneGrant { lane, hand_out })
        };
        self.of.get(&member).into_iter().flatten().filter_map(grant).collect()
    }

    /// The trainers that run lanes, once for each lane.
    pub(crate) fn owners(&self) -> impl Iterator<Item = Member> {
        self.owners.iter().flatten().map(|owner| owner.member)
    }

    /// A trainer that an earlier attempt gave these lanes keeps them. Of two trainers that claim a lane the later hand-out
    /// counts: the shards may have been asked by it.
    pub(crate) fn adopt(&mut self, member: Member, lanes: &[LaneGrant]) {
        for &LaneGrant { lane, hand_out } in lanes {
            let index = lane.0 as usize;
            if let Some(owner) = self.owners.get(index)
                && owner.is_none_or(|owner| owner.hand_out < hand_out)
            {
                self.assign(index, Some(LaneOwner { member, hand_out }));
            }
        }
    }

    /// A shard refused a trainer this lane. If it is the trainer that should run the lane, it gets it again under a new
    /// number. Returns whether it did.
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
        self.assign(index, Some(LaneOwner { member, hand_out }));
    }

    /// The one place that changes a lane's owner.
    fn assign(&mut self, index: usize, owner: Option<LaneOwner>) {
        let Some(entry) = self.owners.get_mut(index) else {
            debug_assert!(false, "lane {index} is a lane of the job");
            return;
        };
        match std::mem::replace(entry, owner) {
            Some(LaneOwner { member, .. }) => {
                if let Some(lanes) = self.of.get_mut(&member) {
                    lanes.remove(&index);
                    if lanes.is_empty() {
                        self.of.remove(&member);
                    }
                }
            }
            None => {
                self.free.remove(&index);
            }
        }
        match owner {
            Some(LaneOwner { member, .. }) => {
                self.of.entry(member).or_default().insert(index);
            }
            None => {
                self.free.insert(index);
            }
        }
    }

    /// How many lanes each of `members` has.
    pub(crate) fn loads(&self, members: &BTreeSet<Member>) -> BTreeMap<Member, usize> {
        let load = |member: &Member| (*member, self.of.get(member).map_or(0, BTreeSet::len));
        members.iter().map(load).collect()
    }

    /// Gives each trainer this number of lanes, which add up to all lanes, and moves as few as possible.
    ///
    /// Returns the trainers whose set has changed, those that lost a lane first.
    pub(crate) fn share_as(&mut self, divided: &BTreeMap<Member, usize>) -> Vec<Member> {
        debug_assert_eq!(divided.values().sum::<usize>(), self.owners.len(), "a place for each");
        self.take_from_all_but(|member| divided.contains_key(member));
        let mut losers = Vec::new();
        for (member, lanes) in divided {
            let has = self.of.get(member).into_iter().flatten().copied();
            let surplus: Vec<usize> = has.skip(*lanes).collect();
            if !surplus.is_empty() {
                losers.push(*member);
            }
            for index in surplus {
                self.assign(index, None);
            }
        }
        let mut winners = Vec::new();
        for (member, lanes) in divided {
            let has = self.of.get(member).map_or(0, BTreeSet::len);
            let missing: Vec<usize> =
                self.free.iter().copied().take(lanes.saturating_sub(has)).collect();
            if !missing.is_empty() {
                winners.push(*member);
            }
            for index in missing {
                self.hand_out(index, *member);
            }
        }
        losers.extend(winners);
        losers
    }

    /// Takes the lanes of all other trainers.
    fn take_from_all_but(&mut self, stays: impl Fn(&Member) -> bool) {
        let gone: Vec<Member> = self.of.keys().filter(|member| !stays(member)).copied().collect();
        for member in gone {
            for index in self.of.remove(&member).unwrap_or_default() {
                self.assign(index, None);
            }
        }
    }

    /// Shares all lanes out over `members` and moves as few as possible: first those without an owner, then
    /// one by one from the trainer with most to the trainer with fewest, until no trainer has two more than another. Each move costs logarithms,
    /// and so does each member.
    ///
    /// Returns the trainers whose set has changed, those that lost a lane first.
    pub(crate) fn share(&mut self, members: &BTreeSet<Member>) -> Vec<Member> {
        self.take_from_all_but(|member| members.contains(member));
        let count = |member: &Member| self.of.get(member).map_or(0, BTreeSet::len);
        let mut loads: BTreeSet<(usize, Member)> =
            members.iter().map(|member| (count(member), *member)).collect();
        let (mut losers, mut winners) = (BTreeSet::new(), BTreeSet::new());
        while let Some(&index) = self.free.first()
            && let Some((load, member)) = loads.pop_first()
        {
            self.hand_out(index, member);
            loads.insert((load + 1, member));
            winners.insert(member);
        }
        while let (Some(&(few, poorest)), Some(&(many, richest))) = (loads.first(), loads.last())
            && many > few + 1
            // The highest lane moves; any would do.
            && let Some(&index) = self.of.get(&richest).and_then(BTreeSet::last)
        {
            self.hand_out(index, poorest);
            for (before, after, member) in [(few, few + 1, poorest), (many, many - 1, richest)] {
                loads.remove(&(before, member));
                loads.insert((after, member));
            }
            losers.insert(richest);
            winners.insert(poorest);
        }
        debug_assert!(losers.is_disjoint(&winners), "the trainer with most lanes never had fewest");
        losers.into_iter().chain(winners).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_protocol::ids::{Incarnation, Slot};
    use proptest::prelude::*;

    fn trainer(index: u32) -> Member {
        Member { slot: Slot::trainer(index), incarnation: Incarnation(1) }
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
            hand_out: HandOut { generation: Generation(generation), count },
        }
    }

    #[test]
    fn only_a_lane_that_moves_gets_a_higher_number() {
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

    #[test]
    fn a_division_by_speed_moves_only_what_differs() {
        let mut lanes = Lanes::new(8, Generation(1));
        lanes.share(&members(0..4));
        let divided = |counts: [usize; 4]| (0..).map(trainer).zip(counts).collect();
        assert_eq!(lanes.share_as(&divided([3, 3, 2, 0])), [trainer(3), trainer(0), trainer(1)]);
        assert_eq!(numbers(&lanes, 0), [0, 3, 4]);
        assert_eq!(numbers(&lanes, 1), [1, 5, 7]);
        assert_eq!(numbers(&lanes, 2), [2, 6]);
        assert_eq!(lanes.last.count, 10, "two lanes were handed out again");
        assert!(lanes.share_as(&divided([3, 3, 2, 0])).is_empty());
        assert!(indices_hold(&lanes));
        let two: BTreeMap<Member, usize> = [(trainer(1), 8), (trainer(3), 0)].into();
        assert_eq!(lanes.share_as(&two), [trainer(1)]);
        assert_eq!(lanes.loads(&members([0, 1])), [(trainer(0), 0), (trainer(1), 8)].into());
        assert!(indices_hold(&lanes));
    }

    /// The rule of [`Lanes::share`] without its indices: each move compares all members and lanes.
    fn share_step_by_step(lanes: &Lanes, members: &BTreeSet<Member>) -> (Lanes, Vec<Member>) {
        let mut after = lanes.clone();
        let loads = |lanes: &Lanes| -> Vec<(usize, Member)> {
            let load = |member: &Member| (lanes.of(*member).len(), *member);
            members.iter().map(load).collect()
        };
        for index in 0..after.owners.len() {
            if after.owners[index].is_some_and(|owner| !members.contains(&owner.member)) {
                after.assign(index, None);
            }
        }
        for index in 0..after.owners.len() {
            if after.owners[index].is_none()
                && let Some((_, poorest)) = loads(&after).into_iter().min()
            {
                after.hand_out(index, poorest);
            }
        }
        while let (Some((few, poorest)), Some((many, richest))) = {
            let loads = loads(&after);
            (loads.iter().min().copied(), loads.into_iter().max())
        } && many > few + 1
        {
            let highest = after.of(richest).last().copied();
            after.hand_out(highest.expect("more than one").lane.0 as usize, poorest);
        }
        let lost = |member: &Member| {
            let has = after.of(*member);
            lanes.of(*member).iter().any(|lane| !has.contains(lane))
        };
        let (losers, others): (Vec<Member>, Vec<Member>) = members.iter().partition(|m| lost(m));
        let won = |member: &Member| lanes.of(*member) != after.of(*member);
        let told = losers.into_iter().chain(others.into_iter().filter(won));
        (after.clone(), told.collect())
    }

    fn grants(lanes: &Lanes) -> Vec<Option<(Member, HandOut)>> {
        let grant = |owner: &Option<LaneOwner>| owner.map(|owner| (owner.member, owner.hand_out));
        lanes.owners.iter().map(grant).collect()
    }

    /// That both indices are what the owners say.
    fn indices_hold(lanes: &Lanes) -> bool {
        let mut of: BTreeMap<Member, BTreeSet<usize>> = BTreeMap::new();
        let mut free = BTreeSet::new();
        for (index, owner) in lanes.owners.iter().enumerate() {
            match owner {
                Some(owner) => of.entry(owner.member).or_default().insert(index),
                None => free.insert(index),
            };
        }
        lanes.of == of && lanes.free == free
    }

    #[test]
    fn a_trainer_lost_among_thousands_moves_its_own_lanes_only() {
        let mut lanes = Lanes::new(20_000, Generation(1));
        assert_eq!(lanes.share(&members(0..10_000)).len(), 10_000);
        assert_eq!(lanes.last.count, 20_000, "each lane was handed out once");
        assert_eq!(numbers(&lanes, 7), [7, 10_007]);
        let all = members(0..10_000);
        let others: BTreeSet<Member> = all.iter().copied().filter(|m| *m != trainer(7)).collect();
        assert_eq!(lanes.share(&others), [trainer(0), trainer(1)]);
        assert_eq!(lanes.last.count, 20_002);
        assert_eq!(lanes.share(&all), [trainer(0), trainer(1), trainer(7)]);
        assert_eq!(numbers(&lanes, 7), [10_000, 10_007]);
        assert_eq!(lanes.last.count, 20_004);
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
                let loads = members.iter().map(|member| lanes.of(*member).len());
                let loads: Vec<usize> = loads.collect();
                prop_assert_eq!(loads.iter().sum::<usize>(), count as usize);
                let (most, fewest) = (loads.iter().max().copied(), loads.iter().min().copied());
                prop_assert!(most.unwrap_or(0) <= fewest.unwrap_or(0) + 1);
                prop_assert!(lanes.share(&members).is_empty(), "a second time nothing moves");
            }
        }

        #[test]
        fn shared_as_if_each_move_looked_at_all_members_and_lanes(
            count in 0u32..40,
            rounds in prop::collection::vec(
                (
                    prop::collection::btree_set(0u32..12, 0..12),
                    prop::collection::vec((0u32..12, 0u32..42, 1u32..4, 0u32..50), 0..6),
                    prop::collection::vec(0u32..40, 0..3),
                ),
                1..10,
            ),
        ) {
            let mut lanes = Lanes::new(count, Generation(3));
            for (set, adopted, fenced) in rounds {
                for (index, lane, generation, number) in adopted {
                    lanes.adopt(trainer(index), &[grant(lane, generation, number)]);
                }
                for lane in fenced {
                    if let Some(Some(owner)) = lanes.owners.get(lane as usize).copied() {
                        let refused = LaneGrant { lane: Lane(lane), hand_out: owner.hand_out };
                        prop_assert!(lanes.fenced(owner.member, refused));
                    }
                }
                prop_assert!(indices_hold(&lanes));
                let members = members(set);
                let (expected, told) = share_step_by_step(&lanes, &members);
                prop_assert_eq!(lanes.share(&members), told);
                prop_assert_eq!(grants(&lanes), grants(&expected));
                prop_assert!(indices_hold(&lanes));
            }
        }
    }
}
