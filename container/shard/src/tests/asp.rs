//! Tasks: each part applied once, in order.
use super::*;

/// Schedule 4: two parts of a step on one shard; the trainer dies between them.
#[test]
fn parts_of_a_step_are_applied_exactly_once() {
    let mut node = Node::asp();
    let (old, new) = (node.connect(0), node.connect(1));
    node.push(old, part(5, 50, 0, false), &[-1.0]);
    assert_eq!(node.value(0), 0.0, "step 50 without the ones before it");
    for step in 0..50 {
        node.push(old, whole(5, step), &[]);
    }
    node.push(old, part(5, 50, 0, false), &[-1.0]);
    assert_eq!(node.push(new, part(5, 50, 0, false), &[-1.0]), Some(Status::Already));
    assert_eq!(node.push(new, part(5, 50, 1, true), &[-1.0]), Some(Status::Ok));
    assert_eq!((node.value(0), node.query(new, 5).0), (2.0, 51));
}

/// Schedule 18: what was reported is what all shards acknowledged, so a shard may have more.
#[test]
fn overlap_after_a_takeover_is_acknowledged() {
    let mut node = Node::asp();
    let (old, new) = (node.connect(0), node.connect(1));
    for step in 0..4 {
        node.push(old, whole(0, step), &[-1.0]);
    }
    for step in 2..6 {
        let expected = if step < 4 { Status::Already } else { Status::Ok };
        assert_eq!(node.push(new, whole(0, step), &[-1.0]), Some(expected), "step {step}");
    }
    assert_eq!(node.value(0), 6.0);
    assert_eq!(node.push(new, whole(0, 9), &[-1.0]), Some(Status::OutOfOrder));
}

/// Schedule 19: done marks live until the phase is over, and earlier phases are refused.
#[test]
fn stale_frames_of_a_finished_task_are_rejected() {
    let mut node = Node::asp();
    let (first, second) = (node.connect(0), node.connect(1));
    node.push(first, whole(5, 0), &[-1.0]);
    assert_eq!(node.task_done(first, 5), Some(Status::Ok));
    assert_eq!(node.task_done(second, 5), Some(Status::Already));
    assert_eq!(node.push(second, whole(5, 0), &[-1.0]), Some(Status::Already));
    assert_eq!(node.push(second, whole(5, 1), &[-1.0]), Some(Status::Already));
    assert_eq!(node.query(second, 5).2, flags::DONE);
    let old_frame = node.header(Kind::TaskDone, whole(5, 0));
    node.begin(1, Sharing::Queue);
    let reply = node.send(second, &old_frame, &[], &[]).map(|reply| reply.status);
    assert_eq!(reply, Some(Status::WrongPhase));
    assert_eq!(
        node.push(second, whole(5, 0), &[-1.0]),
        Some(Status::Ok),
        "the task of the new phase"
    );
    assert_eq!(node.value(0), 2.0);
}

/// Schedules 45 and 46: the state of tasks for a new ApplicationMaster.
#[test]
fn state_has_incomplete_steps_and_finished_tasks() {
    let mut node = Node::asp();
    let conn = node.connect(0);
    node.push(conn, part(0, 0, 0, false), &[-1.0]);
    node.push(conn, whole(1, 0), &[-1.0]);
    node.push(conn, part(1, 1, 0, false), &[-1.0]);
    node.push(conn, whole(2, 0), &[-1.0]);
    node.task_done(conn, 2);
    let state = &node.host.states()[0];
    let tasks: Vec<_> = state.tasks.iter().map(|at| (at.task.0, at.step.0)).collect();
    assert_eq!(tasks, [(0, 0), (1, 1)]);
    assert!(state.done.iter().eq([heddle_protocol::ids::TaskId(2)]));
}

/// Only members are served; a trainer that is newer than the list has to wait for it.
#[test]
fn only_members_are_served() {
    let mut node = Node::asp();
    let stranger = Member { slot: Slot::trainer(9), incarnation: Incarnation(1) };
    let conn = node.act(|host, _, out| host.connect(stranger, out)).expect("nothing known of it");
    assert_eq!(node.push(conn, whole(0, 0), &[-1.0]), Some(Status::NotReady));
    node.members(&[member(0), stranger]);
    assert_eq!(node.push(conn, whole(0, 0), &[-1.0]), Some(Status::Ok));
    node.members(&[member(0)]);
    assert_eq!(node.closed, [conn]);
    assert!(node.act(|host, _, out| host.connect(stranger, out)).is_err());
    assert_eq!(node.value(0), 1.0);
}

#[test]
fn pserver_is_not_served_as_a_trainer() {
    let mut node = Node::asp();
    let other = Member { slot: Slot::pserver(1), incarnation: Incarnation(1) };
    let conn = node.act(|host, _, out| host.connect(other, out)).expect("it may have a stream");
    assert_eq!(node.push(conn, whole(0, 0), &[-1.0]), None);
    assert_eq!((&*node.closed, node.value(0)), (&[conn][..], 0.0), "it has no stream");
}
