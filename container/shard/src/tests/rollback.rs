//! Returning to a cut, from memory and from a file.

use super::*;

const LANES: Sharing = Sharing::Lanes { lanes: 1 };

/// Values, optimizer state and marks come back together, and what follows is what followed before.
#[test]
fn rollback_restores_values_state_and_dedup_state() {
    let adam = r#"{"kind":"adam","rate":0.1,"beta1":0.9,"beta2":0.99,"epsilon":1e-8}"#;
    let adam = serde_json::from_str(adam).expect("an optimizer");
    for optimizer in [Optimizer::ftrl(0.5, 1.0, 0.0, 0.0), adam] {
        rollback_restores_the_state_of(optimizer);
    }
}

/// Adam's steps depend on the number of those before.
fn rollback_restores_the_state_of(optimizer: Optimizer) {
    let mut node = Node::with(Sharing::Queue, config(optimizer));
    let conn = node.connect(0);
    node.push(conn, whole(0, 0), &[-1.0, 2.0]);
    node.push(conn, part(1, 0, 0, false), &[3.0]);
    node.cut(1, CutAt::Barriers(vec![]));
    let saved = node.saved(1);
    node.cut_end(1, true);
    let further = |node: &mut Node, conn| {
        node.push(conn, whole(0, 1), &[5.0]);
        node.push(conn, part(1, 0, 1, true), &[-7.0]);
        node.values()
    };
    let expected = further(&mut node, conn);
    assert!(!node.load(2, Sharing::Queue, 0, Some(cut(1))), "from memory");
    assert_eq!(further(&mut node, conn), expected);
    let mut other = Node::from_saved(saved, Sharing::Queue, 0);
    other.config = node.config.clone();
    let conn = other.connect(0);
    assert_eq!(further(&mut other, conn), expected);
}

/// Schedule 24: a snapshot that never became a checkpoint is not returned to, nor one of another cut.
#[test]
fn only_the_snapshot_of_the_base_is_restored() {
    let mut node = Node::asp();
    let conn = node.connect(0);
    node.cut(1, CutAt::Barriers(vec![]));
    node.cut_end(1, true);
    node.push(conn, whole(0, 0), &[-1.0]);
    node.cut(2, CutAt::Barriers(vec![]));
    node.push(conn, whole(0, 1), &[-1.0]);
    assert!(!node.load(2, Sharing::Queue, 0, Some(cut(1))));
    assert_eq!(node.value(0), 0.0);
    assert!(node.load(3, Sharing::Queue, 0, Some(cut(2))), "cut 2 was dropped by the rollback");
}

/// The ApplicationMaster may die between committing a cut and saying so.
#[test]
fn uncommitted_snapshot_of_the_base_is_restored() {
    let mut node = Node::asp();
    let conn = node.connect(0);
    node.cut(1, CutAt::Barriers(vec![]));
    node.push(conn, whole(0, 0), &[-1.0]);
    assert!(!node.load(2, Sharing::Queue, 0, Some(cut(1))));
    assert_eq!((node.value(0), node.query(conn, 0).0), (0.0, 0));
    node.push(conn, whole(0, 0), &[-1.0]);
    assert!(!node.load(3, Sharing::Queue, 0, Some(cut(1))), "again");
    assert_eq!(node.value(0), 0.0);
}

/// A snapshot in memory at another step than the checkpoint's manifest cannot be used. The file is loaded instead: only
/// what is found there may call the checkpoint damaged.
#[test]
fn snapshot_at_another_step_is_dropped_for_the_file() {
    let mut node = Node::bsp(1);
    let conn = node.connect(0);
    node.step(conn, 0, 0, &[-1.0]);
    node.cut(1, CutAt::Steps(Step(1)));
    node.cut_end(1, true);
    let load = load(2, (0, LANES), 2, Some(cut(1)));
    let missing = node.act(|host, _, out| host.load(&load, &load.shards, out));
    assert_eq!(missing, Ok(vec![ShardId(0)]));
    assert!(!node.host.is_whole());
    assert_eq!(node.host.epoch(), epoch(2), "the host is in the epoch");
    let shard = Shard::new(&node.config);
    let installed = node.act(|host, _, out| host.install(epoch(2), shard, out));
    assert!(installed.is_err(), "initial values do not stand at step 2 either");
}

/// Schedule 40: frames of another epoch are refused and change nothing.
#[test]
fn frames_of_another_epoch_are_rejected() {
    let mut node = Node::bsp(1);
    let conn = node.connect(0);
    let old = node.header(Kind::Done, whole(0, 0));
    node.push(conn, whole(0, 0), &[-1.0]);
    node.load(2, LANES, 0, None);
    assert_eq!(node.send(conn, &old, &[], &[]).map(|reply| reply.status), Some(Status::WrongEpoch));
    assert_eq!(node.query(conn, 0), (0, 0, 0), "what was staged is dropped");
}

/// Schedule 37: an epoch is entered once.
#[test]
fn epoch_is_entered_once() {
    let mut node = Node::bsp(2);
    let conn = node.connect(0);
    node.push(conn, whole(0, 0), &[-1.0]);
    let load = load(1, (0, Sharing::Lanes { lanes: 2 }), 0, None);
    let again = node.act(|host, _, out| host.load(&load, &load.shards, out));
    assert!(again.is_err());
    assert_eq!(node.query(conn, 0), (0, 1, flags::STAGED), "nothing was dropped");
}

/// Parked and held requests of the old epoch are dropped; parked ones get a reply.
#[test]
fn rollback_drops_parked_and_held_frames() {
    let mut node = Node::bsp(1);
    let conn = node.connect(0);
    assert_eq!(node.pull(conn, 1), None);
    node.load(2, LANES, 0, None);
    assert_eq!(node.later, [(conn, Kind::Refused, Status::WrongEpoch)]);
    let mut node = Node::asp();
    let conn = node.connect(0);
    node.cut(1, CutAt::Barriers(vec![member(0), member(1)]));
    node.barrier(conn, 1);
    node.push(conn, whole(0, 0), &[-1.0]);
    node.load(2, Sharing::Queue, 0, None);
    assert_eq!((node.value(0), node.snapped()), (0.0, vec![]));
    assert_eq!(node.push(conn, whole(0, 0), &[-1.0]), Some(Status::Ok), "no cut holds it back");
}

/// Lanes that had ended before the cut have ended after the return, and a phase that was over is over.
#[test]
fn ended_lanes_stay_ended() {
    let mut node = Node::bsp(2);
    let conn = node.connect(0);
    node.done_with(conn, 1, 0, flags::EMPTY | flags::END);
    node.step(conn, 0, 0, &[-1.0]);
    node.cut(1, CutAt::Steps(Step(1)));
    let mut back = Node::from_saved(node.saved(1), Sharing::Lanes { lanes: 2 }, 1);
    let conn = back.connect(0);
    assert_eq!(back.query(conn, 1), (1, 0, flags::END));
    back.push(conn, whole(0, 1), &[-1.0]);
    back.done_with(conn, 0, 1, flags::END);
    assert_eq!((back.value(0), back.ended()), (2.0, Some(2)));
    back.cut(1000, CutAt::Steps(Step(2)));
    let over = Node::from_saved(back.saved(1000), Sharing::Lanes { lanes: 2 }, 2);
    assert_eq!(over.ended(), Some(2), "reported again");
}

/// A cut at the end of a phase is the start of the next; a snapshot of another kind of phase cannot be used.
#[test]
fn cut_of_an_earlier_phase_starts_the_next_one() {
    let mut node = Node::asp();
    let conn = node.connect(0);
    node.push(conn, whole(0, 0), &[-1.0]);
    node.task_done(conn, 0);
    node.cut(1, CutAt::Barriers(vec![]));
    node.cut_end(1, true);
    let load_from = |node: &mut Node, count, no, sharing, step| {
        let load = load(count, (no, sharing), step, Some(cut(1)));
        node.act(|host, _, out| host.load(&load, &load.shards, out))
    };
    assert_eq!(load_from(&mut node, 2, 1, Sharing::Queue, 0), Ok(vec![]));
    assert_eq!((node.value(0), node.query(conn, 0)), (1.0, (0, 0, 0)));
    let missing = Ok(vec![ShardId(0)]);
    assert_eq!(
        load_from(&mut node, 3, 0, LANES, 0),
        missing,
        "saved as a queue: the file is asked for"
    );
}

#[test]
fn frames_get_not_ready_until_the_shard_is_installed() {
    let mut node = Node::asp();
    let conn = node.connect(0);
    let load = load(2, (0, Sharing::Queue), 0, None);
    let missing = node.act(|host, _, out| host.load(&load, &load.shards, out));
    assert_eq!(missing, Ok(vec![ShardId(0)]));
    assert_eq!(node.push(conn, whole(0, 0), &[-1.0]), Some(Status::NotReady));
    let shard = Shard::new(&node.config);
    assert!(
        node.act(|host, _, out| host.install(epoch(1), shard, out)).is_err(),
        "of an old epoch"
    );
}
