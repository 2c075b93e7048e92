//! Hand-outs of lanes: what frames carry, and what a client does that a shard fences.

use super::*;

/// S1: the successor's number goes into every frame by which a shard fences or is fenced.
#[test]
fn lane_frames_carry_the_hand_out() {
    let mut world = World::new();
    let era = world.era();
    let given = grant(LANE, 7);
    world.on(DataRequest::TakeOver { era, grant: given });
    let asked = [world.sent(0), world.sent(1)].concat();
    asked.iter().for_each(|query| world.stand(query, 0, 0, 0));
    world.event();
    world.push(Unit::Lane(LANE), 0, gradient(), false);
    let pushes = [world.sent(0), world.sent(1)].concat();
    world.acknowledge(&pushes);
    let dones = [world.sent(0), world.sent(1)].concat();
    assert!(dones.iter().all(|frame| frame.kind == Kind::Done));
    let frames = [asked, pushes, dones].concat();
    assert_eq!(frames.len(), 2 + 3 + 2);
    assert!(frames.iter().all(|frame| frame.hand_out == given.hand_out));
}

#[test]
fn fenced_lane_is_dropped_in_any_state() {
    let refused = |of: fn(&mut World) -> Vec<Header>| {
        let mut world = World::new();
        let frames = of(&mut world);
        world.refuse(&frames[0], Status::Fenced);
        let fenced = ClientEvent::LaneFenced { grant: grant(LANE, 1) };
        assert_eq!(world.event(), Some(fenced));
        frames[1..].iter().for_each(|other| {
            world.reply(other, Kind::Ack, Status::Ok);
            world.refuse(other, Status::Fenced);
        });
        assert_eq!(world.event(), None, "reported once, and nothing else follows");
        assert_eq!(world.kinds(0), [] as [Kind; 0]);
        assert_eq!(world.kinds(1), [] as [Kind; 0]);
        world.push(Unit::Lane(LANE), 1, gradient(), false);
        assert_eq!(world.kinds(0), [] as [Kind; 0], "the lane is not run here");
        world.take_over([(1, 0, 0); 2]);
        assert!(matches!(world.event(), Some(ClientEvent::Compute { .. })));
    };
    refused(|world| {
        let era = world.era();
        world.on(DataRequest::TakeOver { era, grant: grant(LANE, 1) });
        [world.sent(0), world.sent(1)].concat()
    });
    refused(pushed);
    refused(|world| {
        let pushes = pushed(world);
        world.acknowledge(&pushes);
        [world.sent(0), world.sent(1)].concat()
    });
}

fn pushed(world: &mut World) -> Vec<Header> {
    world.take_over([(0, 0, 0); 2]);
    world.event();
    world.push(Unit::Lane(LANE), 0, gradient(), false);
    [world.sent(0), world.sent(1)].concat()
}

#[test]
fn newer_hand_out_asks_again_and_older_one_is_ignored() {
    let mut world = World::new();
    let old = pushed(&mut world);
    let era = world.era();
    world.on(DataRequest::TakeOver { era, grant: grant(LANE, 1) });
    assert_eq!(world.kinds(0), [] as [Kind; 0], "it is run here already");
    world.on(DataRequest::TakeOver { era, grant: grant(LANE, 2) });
    world.acknowledge(&old);
    world.refuse(&old[0], Status::Fenced);
    assert_eq!(world.event(), None, "what was sent under the first hand-out is forgotten");
    world.on(DataRequest::TakeOver { era, grant: grant(LANE, 1) });
    for n in 0..2 {
        let asked = world.sent(n);
        assert_eq!(asked.len(), 1);
        assert_eq!(asked[0].hand_out, grant(LANE, 2).hand_out);
        world.stand(&asked[0], 0, 0, 0);
    }
    assert!(matches!(world.event(), Some(ClientEvent::Compute { .. })));
}
