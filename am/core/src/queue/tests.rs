//! The queue alone: what is handed out, to whom, and whose word counts.

use super::*;
use heddle_protocol::ids::{Incarnation, Slot};

fn trainer(index: u32) -> Member {
    Member {
        slot: Slot::trainer(index),
        incarnation: Incarnation(1),
    }
}

fn queue(count: u32) -> Queue {
    Queue::new(count, Vec::new(), Generation(1))
}

fn grant(queue: &mut Queue, index: u32) -> Vec<TaskGrant> {
    queue.grant(trainer(index), 2, &[], Mono(0), &Limits::default())
}

fn position(grant: TaskGrant, step: u64) -> TaskPosition {
    TaskPosition {
        task: grant.task,
        attempt: grant.attempt,
        step: Step(step),
        done: false,
    }
}

#[test]
fn a_dead_trainers_task_starts_again_at_the_first_step_not_acknowledged() {
    let mut queue = queue(2);
    let first = grant(&mut queue, 0)[0];
    queue.progress(trainer(0), &[position(first, 7)]);
    queue.release(trainer(0));
    let again = grant(&mut queue, 1)[0];
    assert_eq!((again.task, again.start), (first.task, Step(7)));
    assert!(
        again.attempt > first.attempt,
        "a report of the first hand-out can be told apart"
    );
}

#[test]
fn a_report_of_a_hand_out_that_is_over_is_ignored() {
    let mut queue = queue(1);
    let first = grant(&mut queue, 0)[0];
    queue.release(trainer(0));
    queue.progress(trainer(0), &[position(first, 9)]);
    assert!(!queue.finished(trainer(0), first.task, first.attempt));
    assert_eq!(queue.standing(), Standing::default());
    let again = grant(&mut queue, 0)[0];
    assert!(!queue.finished(trainer(0), again.task, first.attempt));
    assert!(queue.finished(trainer(0), again.task, again.attempt));
    assert!(queue.is_done());
}

#[test]
fn three_kills_do_not_blame_a_task() {
    let mut queue = queue(1);
    for _ in 0..3 {
        grant(&mut queue, 0);
        queue.release(trainer(0));
    }
    let granted = grant(&mut queue, 1)[0];
    assert_eq!(
        queue.failed(trainer(1), granted.task, granted.attempt),
        Some(1)
    );
    assert_eq!(
        queue.failed(trainer(1), granted.task, granted.attempt),
        None,
        "told twice, counted once"
    );
}

#[test]
fn an_idle_trainer_takes_from_the_longest_queue_and_the_first_who_finishes_ends_the_task() {
    let mut queue = queue(2);
    let held = queue.grant(trainer(0), 1, &[], Mono(0), &Limits::default());
    assert_eq!(held.len(), 2);
    let twin = grant(&mut queue, 1)[0];
    assert_eq!(
        twin.task, held[1].task,
        "the one that its holder works on last"
    );
    assert_ne!(twin.attempt, held[1].attempt);
    assert!(queue.finished(trainer(0), held[1].task, held[1].attempt));
    assert!(!queue.finished(trainer(1), twin.task, twin.attempt));
}

#[test]
fn a_slow_task_gets_a_twin_once_it_is_late_by_own_computing_time() {
    let mut queue = queue(1);
    let slow = grant(&mut queue, 0)[0];
    queue.computed(trainer(0), 100);
    queue.computed(trainer(0), 9_000);
    assert_eq!(grant(&mut queue, 1), [], "not late yet");
    queue.computed(trainer(0), 20_000);
    let twin = grant(&mut queue, 1);
    assert_eq!(twin.len(), 1);
    assert_eq!(twin[0].task, slow.task);
    assert_eq!(
        queue.grant(trainer(2), 3, &[], Mono(0), &Limits::default()),
        [],
        "two holders at the most"
    );
}

#[test]
fn leases_last_for_the_trainers_own_pace() {
    let mut queue = queue(1000);
    let mut now = Mono(0);
    for _ in 0..10 {
        for grant in queue.grant(trainer(0), 2, &[], now, &Limits::default()) {
            now = now + 1_000;
            assert!(queue.finished(trainer(0), grant.task, grant.attempt));
        }
    }
    let held = queue
        .grant(trainer(0), 2, &[], now, &Limits::default())
        .len();
    assert_eq!(held, 30, "thirty seconds at a second each");
}

#[test]
fn fewer_tasks_than_trainers_leave_nobody_with_two() {
    let mut queue = queue(100);
    let mut most = 0;
    for index in 0..50 {
        most = most.max(
            queue
                .grant(trainer(index), 50, &[], Mono(0), &Limits::default())
                .len(),
        );
    }
    assert_eq!(most, 2, "one in work, one ahead");
}

#[test]
fn attempts_of_a_new_generation_are_new() {
    let mut old = Queue::new(1, Vec::new(), Generation(1));
    let mut new = Queue::new(1, Vec::new(), Generation(2));
    assert!(grant(&mut new, 0)[0].attempt > grant(&mut old, 0)[0].attempt);
}
