//! How often a client sends frames that a shard does not serve.

use super::*;

/// Frames of a step with [`gradient`], on both shards.
const PARTS: usize = 3;

/// Frames that leave within a time when every one of them is refused.
fn sent_within(status: Status, ms: u64) -> usize {
    let mut world = World::new();
    world.hold(TASK);
    world.push(Unit::Task(TASK), 0, gradient(), false);
    let mut sent = 0;
    loop {
        for frame in [world.sent(0), world.sent(1)].concat() {
            sent += 1;
            world.refuse(&frame, status);
        }
        let due = world.machine.next_deadline().expect("it is sent again");
        if due > ms {
            return sent;
        }
        world.now_ms = due;
        world.machine.timer(due);
    }
}

/// A rollback takes as long as the slowest pserver loads. Trainers get its epoch afterwards; until then every pserver rejects
/// their frames.
#[test]
fn rejected_frames_are_resent_rarely_during_a_rollback() {
    for status in [Status::WrongEpoch, Status::NotReady, Status::NotMember, Status::WrongPhase] {
        let sent = sent_within(status, 60_000);
        assert!(sent <= PARTS * 40, "{sent} frames");
    }
    assert!(
        sent_within(Status::Later, 1_000) > PARTS * 20,
        "a full budget frees itself within milliseconds"
    );
}

#[test]
fn work_command_ends_the_wait_of_rejected_frames() {
    let mut world = World::new();
    world.hold(TASK);
    world.push(Unit::Task(TASK), 0, gradient(), false);
    for _ in 0..12 {
        for frame in [world.sent(0), world.sent(1)].concat() {
            world.refuse(&frame, Status::NotReady);
        }
        world.now_ms = world.machine.next_deadline().expect("it is sent again");
        world.machine.timer(world.now_ms);
    }
    let last = [world.sent(0), world.sent(1)].concat();
    assert_eq!(last.len(), PARTS);
    last.iter().for_each(|frame| world.refuse(frame, Status::NotReady));
    assert!(world.machine.next_deadline().is_some_and(|due| due >= world.now_ms + 2_000));
    world.work(epoch(0), places(2, 0));
    let again = [world.sent(0), world.sent(1)].concat();
    assert_eq!(again.len(), PARTS, "the same epoch: sent at once");
    again.iter().for_each(|frame| world.refuse(frame, Status::WrongEpoch));
    world.work(epoch(1), places(2, 0));
    assert_eq!(world.kinds(0), [] as [Kind; 0], "a later epoch: dropped");
    assert_eq!(world.machine.next_deadline(), None);
}

/// A pserver in another epoch refuses a barrier; that of the next cut takes its place while it waits.
#[test]
fn refused_barrier_gives_way_to_the_next_one() {
    let mut world = World::new();
    world.on(DataRequest::Barrier { cut: cut(1), epoch: epoch(0) });
    let first = world.sent(0);
    assert_eq!(first.len(), 1);
    world.refuse(&first[0], Status::WrongEpoch);
    assert!(world.machine.next_deadline().is_some(), "it is sent again");
    world.on(DataRequest::Barrier { cut: cut(2), epoch: epoch(0) });
    assert_eq!(world.kinds(0), [Kind::Barrier]);
    assert_eq!(world.machine.next_deadline(), None, "the first one is gone");
}
