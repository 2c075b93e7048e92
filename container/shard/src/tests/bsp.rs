//! Lanes: staging, order, ends.

use super::*;

/// Schedule 1: a trainer dies between its push to A and its push to B.
#[test]
fn step_that_one_shard_lacks_is_applied_by_none() {
    let (mut a, mut b) = (Node::bsp(2), Node::bsp(2));
    let (a0, b0, a1) = (a.connect(0), b.connect(0), a.connect(1));
    a.push(a0, whole(0, 0), &[-1.0]);
    b.push(b0, whole(0, 0), &[-1.0]);
    a.push(a1, whole(1, 0), &[-3.0]);
    // All of lane 0 is acknowledged: it is done. Lane 1 never gets as far.
    a.done(a0, 0, 0);
    b.done(b0, 0, 0);
    assert_eq!(
        (a.value(0), b.value(0)),
        (0.0, 0.0),
        "the values that lane 1 needs again are still there"
    );
    assert_eq!(a.query(a0, 1), (0, 1, flags::STAGED));
    assert_eq!(b.query(b0, 1), (0, 0, 0), "not staged on all: compute again");
    assert_eq!(a.push(a0, whole(1, 0), &[-3.0]), Some(Status::Already));
    assert_eq!(b.push(b0, whole(1, 0), &[-3.0]), Some(Status::Ok));
    a.done(a0, 1, 0);
    b.done(b0, 1, 0);
    assert_eq!((a.value(0), b.value(0)), (2.0, 2.0));
}

/// Schedule 1, the other half: one shard has applied, so all hold all gradients.
#[test]
fn step_applied_by_one_shard_needs_only_missing_dones() {
    let (mut a, mut b) = (Node::bsp(2), Node::bsp(2));
    let (a0, b0, a1, b1) = (a.connect(0), b.connect(0), a.connect(1), b.connect(1));
    a.step(a0, 0, 0, &[-1.0]);
    b.step(b0, 0, 0, &[-1.0]);
    a.step(a1, 1, 0, &[-3.0]);
    b.push(b1, whole(1, 0), &[-3.0]);
    // T1 dies here. Its successor asks: the steps differ.
    assert_eq!((a.query(a0, 1).0, b.query(b0, 1)), (1, (0, 1, flags::STAGED)));
    assert_eq!(a.done(a0, 1, 0), Some(Status::Already));
    assert_eq!(b.done(b0, 1, 0), Some(Status::Ok));
    assert_eq!((a.value(0), b.value(0)), (2.0, 2.0));
}

/// Schedule 3: one lane's data ends before the others', another never has any.
#[test]
fn phase_ends_with_its_last_lane() {
    let mut node = Node::bsp(3);
    let conn = node.connect(0);
    assert_eq!(node.done_with(conn, 2, 0, flags::EMPTY | flags::END), Some(Status::Ok));
    node.push(conn, whole(1, 0), &[-2.0]);
    node.done_with(conn, 1, 0, flags::END);
    node.step(conn, 0, 0, &[-4.0]);
    assert_eq!((node.value(0), node.ended()), (3.0, None), "the mean over both records");
    assert_eq!(node.query(conn, 1).2 & flags::END, flags::END);
    node.push(conn, whole(0, 1), &[-1.0]);
    node.done_with(conn, 0, 1, flags::END);
    assert_eq!((node.value(0), node.ended()), (4.0, Some(2)));
    assert_eq!(node.push(conn, whole(0, 2), &[-1.0]), Some(Status::OutOfOrder));
}

/// Sums are in lane order for any order of arrival: floating-point sums depend on it.
#[test]
fn sums_are_in_lane_order_for_any_arrival_order() {
    // 1 + 2^-24 + 2^-24 is 1 from the left and more than 1 from the right.
    let gradients = [1.0f32, f32::EPSILON / 2.0, f32::EPSILON / 2.0];
    let run = |order: [u32; 3]| {
        let mut node = Node::bsp(3);
        let conn = node.connect(0);
        for lane in order {
            node.step(conn, lane, 0, &[gradients[lane as usize] * 3.0]);
        }
        node.value(0).to_bits()
    };
    let expected = run([0, 1, 2]);
    for order in [[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        assert_eq!(run(order), expected, "{order:?}");
    }
}

/// A lane that becomes the lowest in the middle of its parts is added on from there.
#[test]
fn partially_staged_lane_continues_as_the_front() {
    let mut node = Node::bsp(2);
    let conn = node.connect(0);
    node.push(conn, part(1, 0, 0, false), &[-2.0]);
    node.step(conn, 0, 0, &[-4.0]);
    node.push_keys(conn, part(1, 0, 1, true), &[1], &[-6.0]);
    node.done(conn, 1, 0);
    assert_eq!(node.values()[..2], [3.0, 3.0]);
}

/// Schedule 20: early gradients have a budget, and the lane whose turn it is is always accepted.
#[test]
fn lane_beyond_the_budget_does_not_block_others() {
    let mut small = config(SGD);
    small.tables[0].rows = 1 << 17;
    small.early_bytes_max = 0;
    let mut node = Node::with(Sharing::Lanes { lanes: 3 }, small);
    let conn = node.connect(0);
    let part_values = vec![-1.0; 1 << 16];
    assert_eq!(node.push(conn, part(2, 0, 0, false), &part_values), Some(Status::Ok));
    assert_eq!(node.push(conn, part(2, 0, 1, false), &part_values), Some(Status::Later));
    assert_eq!(
        node.push(conn, part(2, 0, 2, true), &[-1.0]),
        Some(Status::Later),
        "sent before it knew"
    );
    assert_eq!(node.push(conn, whole(1, 0), &part_values), Some(Status::Later));
    assert_eq!(node.push(conn, part(0, 0, 0, false), &part_values), Some(Status::Ok));
    assert_eq!(node.push(conn, part(0, 0, 1, true), &part_values), Some(Status::Ok));
    assert_eq!(node.done(conn, 0, 0), Some(Status::Ok));
    assert_eq!(node.push(conn, whole(1, 0), &part_values), Some(Status::Ok), "its turn has come");
    assert_eq!(node.done(conn, 1, 0), Some(Status::Ok));
    assert_eq!(node.push(conn, part(2, 0, 1, false), &part_values), Some(Status::Ok));
    assert_eq!(node.push(conn, part(2, 0, 2, true), &[-1.0]), Some(Status::Ok));
    assert_eq!(node.done(conn, 2, 0), Some(Status::Ok));
    assert_eq!((node.query(conn, 0).0, node.value(0)), (1, 6.0 / 3.0));
}

/// Schedule 31: a lane whose last `Done` was lost is still open for a successor.
#[test]
fn fully_staged_step_waits_for_its_done() {
    let mut node = Node::bsp(1);
    let (old, new) = (node.connect(0), node.connect(1));
    node.push(old, whole(0, 0), &[-1.0]);
    node.disconnect(old);
    assert_eq!(node.query(new, 0), (0, 1, flags::STAGED));
    assert_eq!(node.done_with(new, 0, 0, flags::END), Some(Status::Ok));
    assert_eq!((node.value(0), node.ended()), (1.0, Some(1)));
}

/// Schedule 41: the first copy of a part is kept; a second one changes nothing.
#[test]
fn first_copy_of_a_part_is_kept() {
    let mut node = Node::bsp(2);
    let (stale, successor) = (node.connect(0), node.connect(1));
    node.push(stale, part(0, 0, 0, false), &[-1.0]);
    assert_eq!(node.push(successor, part(0, 0, 0, false), &[-100.0]), Some(Status::Already));
    assert_eq!(node.push(successor, part(0, 0, 1, true), &[-1.0]), Some(Status::Ok));
    assert_eq!(node.push(stale, part(0, 0, 1, true), &[-100.0]), Some(Status::Already));
    node.done(successor, 0, 0);
    assert_eq!(node.done(stale, 0, 0), Some(Status::Already));
    node.step(successor, 1, 0, &[0.0]);
    assert_eq!(node.value(0), 1.0);
    assert_eq!(
        node.push(stale, whole(0, 0), &[-100.0]),
        Some(Status::Already),
        "a step that is over"
    );
}

/// A pull of the next step is parked, served when the step is applied, and stops nothing meanwhile.
#[test]
fn parked_pull_does_not_block_later_frames() {
    let mut node = Node::bsp(2);
    let conn = node.connect(0);
    node.step(conn, 0, 0, &[-1.0]);
    assert_eq!(node.pull(conn, 1), None, "parked");
    assert_eq!(node.pull(conn, 0), Some(Status::Ok), "of the step that is");
    node.step(conn, 1, 0, &[-1.0]);
    assert_eq!(node.later, [(conn, Kind::Values, Status::Ok)]);
    assert_eq!(node.pull(conn, 0), Some(Status::Stale));
}

#[test]
fn free_pull_does_not_wait_for_a_step() {
    let mut node = Node::bsp(2);
    let conn = node.connect(0);
    let mut header = node.header(Kind::Pull, whole(0, 77));
    (header.flags, header.count) = (flags::FREE, 1);
    assert_eq!(node.send(conn, &header, &[], &[]).map(|reply| reply.status), Some(Status::Ok));
}

/// A lane that pulls no value of this shard learns from other shards that the step is over.
#[test]
fn push_of_the_next_step_may_come_early() {
    let mut node = Node::bsp(2);
    let conn = node.connect(0);
    assert_eq!(
        node.push(conn, whole(0, 1), &[-9.0]),
        Some(Status::OutOfOrder),
        "not done with this one"
    );
    node.step(conn, 0, 0, &[-2.0]);
    assert_eq!(node.push(conn, whole(0, 1), &[-4.0]), None, "kept");
    assert_eq!(node.pull(conn, 2), None, "it asks for what comes after it, too");
    node.step(conn, 1, 0, &[0.0]);
    assert_eq!(node.later, [(conn, Kind::Ack, Status::Ok)]);
    assert_eq!(node.value(0), 1.0, "only the first is applied");
    node.done(conn, 0, 1);
    node.step(conn, 1, 1, &[0.0]);
    assert_eq!(node.value(0), 3.0);
    assert_eq!(node.later[1..], [(conn, Kind::Values, Status::Ok)]);
}

#[test]
fn done_without_the_gradient_is_rejected() {
    let mut node = Node::bsp(1);
    let conn = node.connect(0);
    assert_eq!(node.done(conn, 0, 0), Some(Status::OutOfOrder));
    node.push(conn, part(0, 0, 0, false), &[-1.0]);
    assert_eq!(node.done(conn, 0, 0), Some(Status::OutOfOrder));
    assert_eq!(node.done_with(conn, 0, 0, flags::EMPTY), Some(Status::OutOfOrder), "it has a part");
    assert_eq!(node.done(conn, 7, 0), Some(Status::BadRange));
}

/// S1: a lane moves to another trainer, and frames of the old one arrive after the new one has asked.
#[test]
fn asked_shard_rejects_lower_hand_outs() {
    let mut node = Node::bsp(2);
    let (old, new) = (node.connect(0), node.connect(1));
    node.hand_out = hand_out(1, 1);
    assert_eq!(node.query(old, 1), (0, 0, 0));
    assert_eq!(node.push(old, part(1, 0, 0, false), &[-1.0]), Some(Status::Ok));
    node.hand_out = hand_out(1, 2);
    assert_eq!(node.query(new, 1), (0, 1, 0));

    node.hand_out = hand_out(1, 1);
    let last = part(1, 0, 1, true);
    assert_eq!(node.push(old, last, &[-1.0]), Some(Status::Fenced));
    assert_eq!(
        node.push(old, part(1, 0, 0, false), &[-1.0]),
        Some(Status::Fenced),
        "also what is there already: the sender is to drop the lane"
    );
    assert_eq!(node.done_with(old, 1, 0, flags::EMPTY), Some(Status::Fenced));
    assert_eq!(node.query_refused(old, 1), Some(Status::Fenced));
    assert_eq!(node.push(old, whole(0, 0), &[-4.0]), Some(Status::Ok), "another lane");

    node.hand_out = hand_out(1, 2);
    assert_eq!(
        node.query(new, 1),
        (0, 1, 0),
        "nothing of it was taken, and a lower query lowered nothing"
    );
    assert_eq!(node.push(new, last, &[-2.0]), Some(Status::Ok));
    assert_eq!(node.done(new, 1, 0), Some(Status::Ok));
    assert_eq!(node.done(new, 0, 0), Some(Status::Ok));
    assert_eq!(node.query(new, 1).0, 1);
    node.hand_out = hand_out(1, 1);
    assert_eq!(
        node.push(old, whole(1, 1), &[-1.0]),
        Some(Status::Fenced),
        "the number outlives the step"
    );
    node.hand_out = hand_out(2, 1);
    assert_eq!(node.query(old, 1), (1, 0, 0), "a later generation is above");
    node.hand_out = hand_out(1, 9);
    assert_eq!(node.push(new, whole(1, 1), &[-1.0]), Some(Status::Fenced));
}

/// What a fenced trainer had sent ahead of the shard's step is not staged when its turn comes.
#[test]
fn push_of_the_next_step_is_fenced_too() {
    let mut node = Node::bsp(2);
    let (old, new) = (node.connect(0), node.connect(1));
    node.step(old, 1, 0, &[-1.0]);
    assert_eq!(node.push(old, whole(1, 1), &[-1.0]), None, "kept: lane 0 is not done with step 0");
    node.hand_out = hand_out(1, 1);
    assert_eq!(node.query(new, 1), (0, 1, flags::STAGED | flags::DONE));
    node.step(new, 0, 0, &[-3.0]);
    assert_eq!(node.later, [(old, Kind::Refused, Status::Fenced)]);
    assert_eq!(node.query(new, 1), (1, 0, 0));
}

#[test]
fn rollback_and_new_phase_reset_hand_outs() {
    let lanes = Sharing::Lanes { lanes: 1 };
    let mut node = Node::with(lanes, config(SGD));
    let conn = node.connect(0);
    node.hand_out = hand_out(1, 5);
    node.query(conn, 0);
    node.hand_out = hand_out(1, 1);
    assert_eq!(node.query_refused(conn, 0), Some(Status::Fenced));
    node.load(2, lanes, 0, None);
    assert_eq!(node.query(conn, 0), (0, 0, 0));
    node.hand_out = hand_out(1, 5);
    node.query(conn, 0);
    node.begin(1, lanes);
    node.hand_out = hand_out(1, 1);
    assert_eq!(node.query(conn, 0), (0, 0, 0));
}
