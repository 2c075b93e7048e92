//! Shards that go back alone, beside others that keep their state.

use heddle_protocol::control::LostShards;
use heddle_protocol::ids::TaskId;

use super::*;

/// The command to hold shard 0 in epoch 2, with these shards going back to cut 1.
fn load_lost(shards: &[u32]) -> LoadShards {
    let lost = LostShards {
        shards: shards.iter().copied().map(ShardId).collect(),
        tasks: vec![(TaskId(5), Step(51))],
        done: [TaskId(7)].into_iter().collect(),
        steps: 44,
    };
    LoadShards { lost: Some(lost), ..load(2, (0, Sharing::Queue), 0, Some(cut(1))) }
}

#[test]
fn other_shards_keep_values_and_dedup_state_in_the_new_epoch() {
    let mut node = Node::asp();
    let conn = node.connect(0);
    node.cut(1, CutAt::Barriers(vec![]));
    node.cut_end(1, true);
    node.push(conn, whole(5, 0), &[-1.0]);
    let old_frame = node.header(Kind::TaskDone, whole(5, 0));
    let load = load_lost(&[3]);
    let missing = node.act(|host, _, out| host.load(&load, &load.shards, out));
    assert_eq!(missing.expect("a later epoch"), []);
    assert_eq!(node.value(0), 1.0, "a snapshot of the base is not returned to");
    assert_eq!(node.push(conn, whole(5, 0), &[-1.0]), Some(Status::Already));
    assert_eq!(node.push(conn, whole(5, 1), &[-1.0]), Some(Status::Ok));
    let reply = node.send(conn, &old_frame, &[], &[]).map(|reply| reply.status);
    assert_eq!(reply, Some(Status::WrongEpoch), "of a trainer that is behind");
}

/// The schedule S51: what was jumped over is not taken later, and what follows is taken once.
#[test]
fn s51_a_lost_shard_takes_nothing_before_the_tasks_go_on() {
    let mut node = Node::asp();
    let conn = node.connect(0);
    for step in 0..10 {
        node.push(conn, whole(5, step), &[-1.0]);
    }
    node.cut(1, CutAt::Barriers(vec![]));
    let saved = node.saved(1);
    node.cut_end(1, true);
    node.push(conn, whole(5, 10), &[-1.0]);
    let load = load_lost(&[0]);
    let missing = node.act(|host, _, out| host.load(&load, &load.shards, out));
    assert_eq!(missing.expect("a later epoch"), [ShardId(0)]);
    let loaded = saved.loaded_state().expect("of a file");
    assert_eq!((loaded.phase, loaded.step, loaded.done.len()), (PhaseNo(0), Step(10), 0));
    let at: Vec<_> = loaded.tasks.iter().map(|at| (at.task, at.step)).collect();
    assert_eq!(at, [(TaskId(5), Step(10))]);
    node.act(|host, _, out| host.install(epoch(2), saved, out)).expect("it fits");
    assert_eq!(node.value(0), 10.0);
    assert_eq!(node.push(conn, whole(5, 10), &[-1.0]), Some(Status::Already), "lost");
    assert_eq!(node.push(conn, whole(5, 51), &[-1.0]), Some(Status::Ok));
    assert_eq!(node.push(conn, whole(5, 51), &[-1.0]), Some(Status::Already));
    assert_eq!(node.push(conn, whole(7, 0), &[-1.0]), Some(Status::Already), "it is done");
    assert_eq!(node.push(conn, whole(8, 0), &[-1.0]), Some(Status::Ok), "not begun before");
    assert_eq!(node.value(0), 12.0);
}
