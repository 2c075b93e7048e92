//! A backup is promoted: its shards have another address in the same epoch and phase, and nothing is dropped or asked again.

use super::*;

impl World {
    /// Shard 1 is served where shard 0 is, on a connection that is open.
    fn promote(&mut self) {
        let mut places = places(2, 0);
        (places[1].holder, places[1].endpoint) = (places[0].holder, places[0].endpoint);
        self.work(epoch(0), places);
    }

    fn reply_of_0(&mut self, request: &Header, kind: Kind, status: Status) {
        self.machine.frame(endpoint(0), &request.reply(kind, status), self.now_ms);
    }
}

#[test]
fn unacknowledged_pushes_go_to_the_promoted_backup_in_order() {
    let mut world = World::new();
    world.hold(TASK);
    for step in 0..3 {
        world.push(Unit::Task(TASK), step, gradient(), false);
    }
    let (to_0, to_1) = (world.sent(0), world.sent(1));
    world.acknowledge(&to_0);
    world.acknowledge(&to_1[..1]);
    // The backup has not its view yet: it waits for an answer that the new map makes useless.
    world.refuse(&to_1[1], Status::WrongShard);
    world.machine.closed(endpoint(1), Closed::Refused, world.now_ms);
    while world.event().is_some_and(|event| !matches!(event, ClientEvent::Outages { .. })) {}
    world.promote();
    let mut again = world.sent(0);
    assert_eq!(again.len(), to_1.len() - 1, "what was acknowledged is not repeated");
    again.sort_by_key(|header| header.request);
    assert_eq!(again, to_1[1..]);
    // The old primary still answers.
    world.reply(&again[0], Kind::Ack, Status::Ok);
    for (n, header) in again.iter().enumerate() {
        let status = if n == 0 { Status::Already } else { Status::Ok };
        world.reply_of_0(header, Kind::Ack, status);
    }
    let events: Vec<_> = std::iter::from_fn(|| world.event()).collect();
    let is_reached = |event: &&ClientEvent| matches!(event, ClientEvent::Reached { .. });
    let reached: Vec<_> = events.iter().filter(is_reached).collect();
    assert_eq!(reached.len(), 3, "{events:?}");
    assert!(events.iter().all(|event| !matches!(event, ClientEvent::Begun { .. })));
}

#[test]
fn s34_pull_is_completed_by_the_promoted_backup() {
    let mut world = World::new();
    world.pull(1, PullAt::Now, Rows::Range(0..8));
    let (to_0, to_1) = (world.sent(0), world.sent(1));
    assert_eq!((to_0.len(), to_1.len()), (1, 1));
    let values = |header: &Header, value: f32| {
        let mut reply = header.reply(Kind::Values, Status::Ok);
        reply.value_bytes = header.count * 2 * 4;
        (reply, vec![value; header.count as usize * 2])
    };
    let (reply, of_0) = values(&to_0[0], 1.0);
    world.machine.frame_with(endpoint(0), &reply, &of_0, 0);
    world.promote();
    assert_eq!(world.sent(0), to_1);
    let (reply, late) = values(&to_1[0], 9.0);
    world.machine.frame_with(endpoint(1), &reply, &late, 0);
    assert_eq!(world.machine.next_event(), None, "the old primary's values are dropped");
    let (reply, of_1) = values(&to_1[0], 2.0);
    world.machine.frame_with(endpoint(0), &reply, &of_1, 0);
    let Some(ClientEvent::Pulled { items, .. }) = world.event() else { panic!("not complete") };
    assert_eq!(items[0].values, [of_0, of_1].concat());
}

#[test]
fn lane_goes_on_at_the_promoted_backup() {
    let mut world = World::new();
    world.take_over([(0, 0, 0); 2]);
    assert_eq!(world.event(), Some(ClientEvent::Compute { lane: LANE, step: Step(0) }));
    world.push(Unit::Lane(LANE), 0, gradient(), false);
    let (to_0, to_1) = (world.sent(0), world.sent(1));
    world.acknowledge(&to_0);
    world.promote();
    let again = world.sent(0);
    assert_eq!(again, to_1);
    again.iter().for_each(|header| world.reply_of_0(header, Kind::Ack, Status::Already));
    let dones = world.sent(0);
    let kinds: Vec<_> = dones.iter().map(|header| (header.kind, header.shard)).collect();
    assert_eq!(kinds, [(Kind::Done, ShardId(0)), (Kind::Done, ShardId(1))]);
    dones.iter().for_each(|header| world.reply_of_0(header, Kind::Ack, Status::Ok));
    assert_eq!(reached(world.event()), (Unit::Lane(LANE), 0));
}
