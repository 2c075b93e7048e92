//! Cuts by barriers and by job steps.

use super::*;

fn barriers(members: &[u32]) -> CutAt {
    CutAt::Barriers(members.iter().map(|&index| member(index)).collect())
}

/// Schedule 2: after a barrier pushes wait and pulls do not; nothing waits for a parked request.
#[test]
fn pushes_wait_after_a_barrier_and_pulls_do_not() {
    let mut node = Node::asp();
    let (first, second) = (node.connect(0), node.connect(1));
    node.push(first, whole(0, 0), &[-1.0]);
    node.cut(1, barriers(&[0, 1]));
    node.barrier(first, 1);
    assert_eq!(node.push(first, whole(0, 1), &[-10.0]), None, "held back");
    assert_eq!(node.pull(first, 0), Some(Status::Ok));
    assert_eq!(
        node.push(second, whole(1, 0), &[-1.0]),
        Some(Status::Ok),
        "its barrier has not come"
    );
    node.barrier(second, 1);
    assert_eq!(node.snapped(), [(1, 0)]);
    assert_eq!(node.value(0), 12.0, "what was held is applied now");
    assert_eq!(node.later, [(first, Kind::Ack, Status::Ok)]);
    assert_eq!(node.saved(1).table_values(TableId(0)).map(|values| values[0]), Some(2.0));
}

/// Schedules 6 and 14: a lost trainer shrinks the set, and the cut continues.
#[test]
fn cut_does_not_wait_for_a_trainer_that_left() {
    let mut node = Node::asp();
    let (first, second) = (node.connect(0), node.connect(1));
    node.cut(1, barriers(&[0, 1]));
    node.barrier(first, 1);
    assert_eq!(node.snapped(), []);
    node.members(&[member(0)]);
    assert_eq!((node.snapped(), node.closed.clone()), (vec![(1, 0)], vec![second]));
}

/// A broken connection does not remove its trainer: the barrier comes on the next one.
#[test]
fn broken_connection_keeps_its_trainer_in_the_cut() {
    let mut node = Node::asp();
    let first = node.connect(0);
    node.cut(1, barriers(&[0]));
    node.disconnect(first);
    assert_eq!(node.snapped(), []);
    let again = node.connect(0);
    node.barrier(again, 1);
    assert_eq!(node.snapped(), [(1, 0)]);
}

/// Schedules 15 and 48: a cut that waits too long is aborted and reported.
#[test]
fn shard_aborts_the_cut_after_ten_seconds() {
    let mut node = Node::asp();
    let first = node.connect(0);
    node.cut(1, barriers(&[0, 1]));
    node.barrier(first, 1);
    node.push(first, whole(0, 0), &[-1.0]);
    node.now = crate::WAIT_MAX - Duration::from_millis(1);
    node.act(|host, now, out| host.tick(now, out));
    assert_eq!((node.aborted(), node.value(0)), (vec![], 0.0));
    node.now = crate::WAIT_MAX;
    node.act(|host, now, out| host.tick(now, out));
    assert_eq!((node.aborted(), node.value(0)), (vec![1], 1.0), "training continues");
    let second = node.connect(1);
    node.barrier(second, 1);
    assert_eq!(node.snapped(), [], "too late");
}

/// Schedules 33 and 44: each cut is taken once, and a higher one aborts the previous one.
#[test]
fn cut_is_taken_once_and_superseded_by_a_higher_one() {
    let mut node = Node::asp();
    let (first, second) = (node.connect(0), node.connect(1));
    node.cut(1, barriers(&[0, 1]));
    node.barrier(first, 1);
    node.push(first, whole(0, 0), &[-1.0]);
    node.cut(2, barriers(&[0, 1]));
    assert_eq!((node.aborted(), node.value(0)), (vec![1], 1.0));
    node.barrier(second, 1);
    node.barrier(second, 2);
    assert_eq!(node.snapped(), [], "the barrier of cut 1 counts for cut 1");
    node.barrier(first, 2);
    assert_eq!(node.snapped(), [(2, 0)]);
    node.cut(2, barriers(&[]));
    node.cut(1, barriers(&[]));
    assert_eq!(node.snapped(), [(2, 0)], "an earlier command");
    node.cut(3, barriers(&[]));
    assert_eq!(node.snapped(), [(2, 0), (3, 0)], "the set is empty: at once");
}

#[test]
fn cut_end_releases_held_frames() {
    let mut node = Node::asp();
    let first = node.connect(0);
    node.cut(1, barriers(&[0, 1]));
    node.barrier(first, 1);
    node.push(first, whole(0, 0), &[-1.0]);
    node.cut_end(1, false);
    assert_eq!((node.value(0), node.snapped()), (1.0, vec![]));
}

/// What would be trained between the snapshot with which the job ends and the end of its cut would be lost.
#[test]
fn nothing_is_trained_while_the_last_snapshot_is_saved() {
    for lanes in [false, true] {
        let mut node = if lanes { Node::bsp(1) } else { Node::asp() };
        let conn = node.connect(0);
        node.push(conn, whole(0, 0), &[-1.0]);
        if lanes {
            node.done(conn, 0, 0);
        }
        node.last_cut(1, if lanes { CutAt::Steps(Step(1)) } else { barriers(&[]) });
        assert_eq!(node.snapped().len(), 1);
        assert_eq!(node.push(conn, whole(0, 1), &[-1.0]), Some(Status::NotReady));
        assert_eq!(node.pull(conn, 1), Some(Status::Ok));
        node.cut_end(1, false);
        assert_eq!(node.push(conn, whole(0, 1), &[-1.0]), Some(Status::Ok), "it is repeated");
        node.cut(2, if lanes { CutAt::Steps(Step(1)) } else { barriers(&[]) });
        let repeated = whole(0, if lanes { 1 } else { 2 });
        assert_ne!(
            node.push(conn, repeated, &[-1.0]),
            Some(Status::NotReady),
            "a cut as any other"
        );
    }
}

/// Schedule 17: BSP is cut at a job step named ahead, right after it is applied.
#[test]
fn bsp_cut_is_taken_right_after_its_step() {
    let mut node = Node::bsp(1);
    let conn = node.connect(0);
    node.cut(1, CutAt::Steps(Step(2)));
    for step in 0..3 {
        node.step(conn, 0, step, &[-1.0]);
    }
    assert_eq!(node.snapped(), [(1, 2)]);
    assert_eq!(node.saved(1).table_values(TableId(0)).map(|values| values[0]), Some(2.0));
}

/// Schedule 34: a shard exactly at the step snaps at once; one beyond it reports that.
#[test]
fn shard_at_the_step_snaps_and_one_beyond_aborts() {
    let mut node = Node::bsp(1);
    let conn = node.connect(0);
    node.step(conn, 0, 0, &[-1.0]);
    node.cut(1, CutAt::Steps(Step(1)));
    assert_eq!(node.snapped(), [(1, 1)]);
    node.cut(2, CutAt::Steps(Step(0)));
    assert_eq!(node.aborted(), [2]);
}

/// Schedule 36: a phase that ends before the step of the cut is cut at its end, whichever comes first.
#[test]
fn cut_beyond_the_end_is_taken_at_the_end() {
    let end = |node: &mut Node| {
        let conn = node.connect(0);
        node.push(conn, whole(0, 0), &[-1.0]);
        node.done_with(conn, 0, 0, flags::END);
    };
    let mut before = Node::bsp(1);
    before.cut(1, CutAt::Steps(Step(9)));
    end(&mut before);
    assert_eq!((before.snapped(), before.ended()), (vec![(1, 1)], Some(1)));
    let mut after = Node::bsp(1);
    end(&mut after);
    after.cut(1, CutAt::Steps(Step(9)));
    assert_eq!(after.snapped(), [(1, 1)]);
}

/// Schedule 35: a snapshot holds no staged part, and its marks stand at the cut's step.
#[test]
fn bsp_snapshot_contains_no_staged_part() {
    let mut node = Node::bsp(2);
    let conn = node.connect(0);
    node.step(conn, 1, 0, &[-4.0]);
    node.cut(1, CutAt::Steps(Step(0)));
    assert_eq!(node.snapped(), [(1, 0)]);
    let mut back = Node::from_saved(node.saved(1), Sharing::Lanes { lanes: 2 }, 0);
    let conn = back.connect(0);
    assert_eq!(back.query(conn, 1), (0, 0, 0));
    back.step(conn, 1, 0, &[-4.0]);
    back.step(conn, 0, 0, &[0.0]);
    assert_eq!(back.value(0), 2.0, "the gradient that comes again is taken");
}

/// Schedule 12: without room for copies, a partially applied step waits for the saver, then continues.
#[test]
fn step_without_room_for_copies_waits_for_the_saver() {
    let mut small = config(SGD);
    small.tables[0].rows = 100_000;
    small.copy_bytes_max = 70_000;
    let mut node = Node::with(Sharing::Lanes { lanes: 1 }, small);
    let conn = node.connect(0);
    node.cut(1, CutAt::Steps(Step(0)));
    node.step(conn, 0, 0, &vec![-1.0; 60_000]);
    assert_eq!(node.pull(conn, 1), None, "half applied");
    assert_eq!(node.pull(conn, 0), Some(Status::Stale));
    let mut saved = Vec::new();
    for at in (0..100_000).step_by(4096) {
        let mut piece = vec![0.0; 4096.min(100_000 - at)];
        node.act(|host, _, out| {
            host.save(ShardId(0), cut(1), 0, at, &mut piece).expect("open");
            host.pump(out);
        });
        saved.extend(piece);
    }
    assert!(saved.iter().all(|&value| value == 0.0), "the snapshot shows the cut");
    assert_eq!(node.later, [(conn, Kind::Values, Status::Ok)]);
    assert_eq!((node.value(0), node.value(59_999), node.value(60_000)), (1.0, 1.0, 0.0));
}

/// The same in ASP: the push is held, later pulls are served, later pushes wait after it.
#[test]
fn push_without_room_for_copies_does_not_block_pulls() {
    let mut small = config(SGD);
    small.tables[0].rows = 2048;
    small.copy_bytes_max = 0;
    let mut node = Node::with(Sharing::Queue, small);
    let conn = node.connect(0);
    node.cut(1, CutAt::Barriers(vec![]));
    assert_eq!(node.push(conn, whole(0, 0), &[-1.0]), None);
    assert_eq!(node.push(conn, whole(0, 1), &[-2.0]), None);
    assert_eq!(node.pull(conn, 0), Some(Status::Ok));
    let saved = node.saved(1);
    node.act(|host, _, out| host.pump(out));
    assert_eq!((node.value(0), node.later.len()), (3.0, 2));
    assert_eq!(saved.table_values(TableId(0)).map(|values| values[0]), Some(0.0));
}

/// Schedule 11: what is copied after a cut is the unit of 128 bytes around a row, once.
#[test]
fn write_after_a_cut_copies_one_unit_once() {
    let mut large = config(SGD);
    large.tables[0].rows = 100_000;
    let mut node = Node::with(Sharing::Queue, large);
    let conn = node.connect(0);
    let copied = |node: &Node| node.host.shard(ShardId(0)).map(Shard::copy_bytes);
    node.push_keys(conn, whole(0, 0), &[5, 50_000], &[1.0, 1.0]);
    assert_eq!(copied(&node), Some(0));
    node.cut(1, CutAt::Barriers(vec![]));
    assert_eq!(copied(&node), Some(0), "the cut itself copies nothing");
    for step in 1..4 {
        node.push_keys(conn, whole(0, step), &[5, 6, 50_000], &[1.0; 3]);
        assert_eq!(copied(&node), Some(2 * 128));
    }
    node.cut_end(1, false);
    assert_eq!(copied(&node), Some(0));
}

/// Schedules 33 and 44 on the data line: cuts are counted from 1 in every generation, and a trainer whose connection was
/// down sends the barrier of the ApplicationMaster before late.
#[test]
fn barrier_of_an_earlier_generation_is_of_another_cut() {
    let mut node = Node::asp();
    let (t0, t1) = (node.connect(0), node.connect(1));
    let later = CutId { generation: Generation(2), ..cut(1) };
    let set = CutAt::Barriers(vec![member(0), member(1)]);
    node.cut(1, set.clone());
    node.cut_end(1, false);
    let command = take(later, node.host.epoch(), set);
    let result = node.act(|host, now, out| host.cut(&command, now, out));
    assert_eq!(result, Ok(()));
    node.barrier(t0, 1);
    let barrier = Header::barrier(later, node.host.epoch());
    assert_eq!(node.send(t1, &barrier, &[], &[]), None);
    assert_eq!(node.snapped(), [], "the first trainer has not sent its barrier");
    node.push(t0, whole(0, 0), &[-1.0]);
    assert_eq!(node.send(t0, &barrier, &[], &[]), None);
    assert_eq!(node.snapped().len(), 1);
}
