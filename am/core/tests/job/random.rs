//! Random faults, delays and repeats: what must hold after every single event, and that the end stays reachable.

use heddle_protocol::spec::Consistency;
use proptest::prelude::*;

use crate::world::{Deed, World};

fn deed() -> impl Strategy<Value = Deed> {
    let index = || 0usize..64;
    prop_oneof![
        6 => index().prop_map(Deed::Cluster),
        1 => index().prop_map(Deed::Repeat),
        6 => index().prop_map(Deed::Connect),
        30 => index().prop_map(Deed::Obey),
        12 => index().prop_map(Deed::Work),
        30 => index().prop_map(Deed::Hear),
        8 => Just(Deed::Durable),
        6 => (index(), 0u8..8).prop_map(|(index, outcome)| Deed::Store(index, outcome)),
        1 => index().prop_map(Deed::Kill),
        1 => index().prop_map(Deed::Cut),
        1 => index().prop_map(Deed::Vanish),
        3 => (0u8..3).prop_map(Deed::Probe),
        1 => (-7_200_000i64..7_200_000).prop_map(Deed::Wall),
        1 => (0u64..90_000).prop_map(Deed::Leap),
        3 => (1u64..3_000).prop_map(Deed::Pass),
        2 => Just(Deed::Order),
        1 => (index(), any::<u32>(), 0u32..6).prop_map(|(index, shard, number)| Deed::Forge(index, shard, number)),
        1 => any::<bool>().prop_map(Deed::Restart),
        8 => Just(Deed::Round),
    ]
}

fn live_through(consistency: Consistency, deeds: &[Deed]) {
    // Every other one begins in the middle: most faults of the others hit the start.
    let fresh = deeds.len().is_multiple_of(4);
    let mut world = if fresh { World::new(consistency) } else { World::started(consistency) };
    for deed in deeds {
        world.step(deed);
    }
    world.run_out();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 4, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn invariants_hold_and_the_end_stays_reachable_in_bsp(deeds in prop::collection::vec(deed(), 0..250)) {
        live_through(Consistency::Bsp, &deeds);
    }

    #[test]
    fn invariants_hold_and_the_end_stays_reachable_in_asp(deeds in prop::collection::vec(deed(), 0..250)) {
        live_through(Consistency::Asp, &deeds);
    }
}
