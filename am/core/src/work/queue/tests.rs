//! The queue alone: what is dispatched, to which trainer, and which reports count.

use proptest::prelude::*;

use super::*;
use heddle_protocol::ids::{Incarnation, Slot};

fn trainer(index: u32) -> Member {
    Member { slot: Slot::trainer(index), incarnation: Incarnation(1) }
}

fn queue(count: u32) -> Queue {
    Queue::new(count, Vec::new(), Generation(1))
}

fn grant(queue: &mut Queue, index: u32) -> Vec<TaskGrant> {
    queue.grant(trainer(index), 2, TaskLocality::default(), MonotonicMs(0), &Limits::default())
}

fn position(grant: TaskGrant, step: u64) -> TaskPosition {
    TaskPosition { task: grant.task, attempt: grant.attempt, step: Step(step) }
}

#[test]
fn task_of_a_dead_trainer_restarts_at_the_unconfirmed_step() {
    let mut queue = queue(2);
    let first = grant(&mut queue, 0)[0];
    queue.progress(trainer(0), &[position(first, 7)]);
    queue.release(trainer(0));
    let again = grant(&mut queue, 1)[0];
    assert_eq!((again.task, again.start), (first.task, Step(7)));
    assert!(again.attempt > first.attempt, "a report of the first hand-out can be distinguished");
}

#[test]
fn a_queue_that_begins_again_is_as_a_new_one() {
    let order = vec![2, 0, 3, 1];
    let mut queue = Queue::new(4, order.clone(), Generation(1));
    let first = grant(&mut queue, 0);
    queue.measured(trainer(0), 5, MonotonicMs(0));
    queue.finished(trainer(0), first[0].task, first[0].attempt);
    queue.progress(trainer(0), &[position(first[1], 7)]);
    queue.failed(trainer(0), first[1].task, first[1].attempt);
    grant(&mut queue, 1);
    let mut queue_progress = QueueProgress::default();
    queue_progress.finished(TaskId(3));
    queue_progress.reached(TaskId(0), Step(4));
    queue.begin_again(Generation(2), &queue_progress);
    let mut new = Queue::new(4, order, Generation(2));
    new.restore(&queue_progress);
    assert_eq!(format!("{queue:?}"), format!("{new:?}"));
}

#[test]
fn a_report_of_a_hand_out_that_is_over_is_ignored() {
    let mut queue = queue(1);
    let first = grant(&mut queue, 0)[0];
    queue.release(trainer(0));
    queue.progress(trainer(0), &[position(first, 9)]);
    assert!(queue.finished(trainer(0), first.task, first.attempt).is_none());
    assert_eq!(queue.positions(), QueueProgress::default());
    let again = grant(&mut queue, 0)[0];
    assert!(queue.finished(trainer(0), again.task, first.attempt).is_none());
    assert!(queue.finished(trainer(0), again.task, again.attempt).is_some());
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
        Some(TaskErrors { errors: 1, trainers: 1 })
    );
    assert_eq!(
        queue.failed(trainer(1), granted.task, granted.attempt),
        None,
        "reported twice, counted once"
    );
}

#[test]
fn idle_trainer_takes_from_the_longest_queue() {
    let mut queue = queue(2);
    let held =
        queue.grant(trainer(0), 1, TaskLocality::default(), MonotonicMs(0), &Limits::default());
    assert_eq!(held.len(), 2);
    let speculative = grant(&mut queue, 1)[0];
    assert_eq!(speculative.task, held[1].task, "the one that its holder works on last");
    assert_ne!(speculative.attempt, held[1].attempt);
    assert!(queue.finished(trainer(0), held[1].task, held[1].attempt).is_some());
    assert!(queue.finished(trainer(1), speculative.task, speculative.attempt).is_none());
}

/// Tasks of trainers 1 to `others` that take 100 ns for a record and finish one each; trainer 0 holds the first.
fn one_left(count: u32, others: u32) -> Queue {
    let mut queue = queue(count);
    grant(&mut queue, 0);
    for index in 1..=others {
        let own = grant(&mut queue, index);
        queue.measured(trainer(index), 100, MonotonicMs(0));
        for task in own {
            assert!(queue.finished(trainer(index), task.task, task.attempt).is_some());
        }
    }
    queue
}

fn grant_at(queue: &mut Queue, index: u32, now: u64) -> Vec<TaskGrant> {
    queue.grant(trainer(index), 2, TaskLocality::default(), MonotonicMs(now), &Limits::default())
}

#[test]
fn task_of_a_trainer_slow_for_ten_seconds_is_late() {
    let mut queue = one_left(3, 2);
    let slow = queue.held_by(trainer(0));
    assert_eq!(slow.len(), 1);
    queue.measured(trainer(0), 200, MonotonicMs(0));
    assert_eq!(grant_at(&mut queue, 1, 60_000), [], "twice the median is not slow");
    queue.measured(trainer(0), 201, MonotonicMs(60_000));
    assert_eq!(grant_at(&mut queue, 1, 69_999), []);
    let speculative = grant_at(&mut queue, 1, 70_000);
    assert_eq!(speculative.len(), 1);
    assert_eq!(speculative[0].task, slow[0].task);
    assert_eq!(grant_at(&mut queue, 2, 70_000), [], "two holders at the most");
}

#[test]
fn a_trainer_that_was_slow_for_a_moment_holds_no_late_task() {
    let mut queue = one_left(3, 2);
    for second in 0..60 {
        let record_ns = if second % 9 == 8 { 100 } else { 900 };
        queue.measured(trainer(0), record_ns, MonotonicMs(second * 1_000));
        assert_eq!(grant_at(&mut queue, 1, second * 1_000), []);
    }
}

#[test]
fn no_task_is_late_before_three_of_four_are_done() {
    let mut queue = queue(8);
    let mut held = Vec::new();
    for index in 0..2 {
        held.extend(queue.grant(
            trainer(index),
            9,
            TaskLocality::default(),
            MonotonicMs(0),
            &Limits::default(),
        ));
    }
    assert!(!queue.may_be_overdue());
    for task in &held[1..] {
        let holder = if queue.holds(trainer(1)) { trainer(1) } else { trainer(0) };
        queue.finished(holder, task.task, task.attempt);
    }
    assert!(!queue.may_be_overdue(), "{:?}", queue.counts());
    for _ in 0..8 {
        for task in grant(&mut queue, 1) {
            queue.finished(trainer(1), task.task, task.attempt);
        }
    }
    assert!(queue.may_be_overdue(), "{:?}", queue.counts());
}

#[test]
fn one_late_task_of_ten_has_a_speculative_attempt() {
    for (holders, most) in [(2, 1), (19, 1), (20, 2), (35, 3)] {
        let mut queue = queue(holders + 1);
        for index in 0..holders {
            let own = queue.grant(
                trainer(index),
                90,
                TaskLocality::default(),
                MonotonicMs(0),
                &Limits::default(),
            );
            assert_eq!(own.len(), 1, "no more tasks than trainers");
        }
        let last = grant(&mut queue, 900);
        queue.measured(trainer(900), 100, MonotonicMs(0));
        assert!(queue.finished(trainer(900), last[0].task, last[0].attempt).is_some());
        for index in 0..holders {
            queue.measured(trainer(index), 1_000 + u64::from(index), MonotonicMs(0));
        }
        // Trainers without a task of their own.
        let idle = 1_000..1_100;
        let given: Vec<TaskGrant> =
            idle.flat_map(|index| grant_at(&mut queue, index, 10_000)).collect();
        assert_eq!(given.len(), most, "{holders}");
        let slowest = queue.held_by(trainer(holders - 1))[0];
        assert_eq!(given[0].task, slowest.task, "the slowest first");
        let (task, attempt) = (given[0].task, given[0].attempt);
        let hand_outs = queue.finished(trainer(1_000), task, attempt).expect("it counts");
        assert_eq!(hand_outs, [(trainer(holders - 1), slowest.attempt), (trainer(1_000), attempt)]);
        if most == 1 {
            let next = grant_at(&mut queue, 1_000, 10_000);
            assert_eq!(next.len(), 1, "another one may be attempted");
        }
    }
}

#[test]
fn s41_of_two_that_finish_at_once_one_counts() {
    let mut queue = one_left(3, 2);
    let first = queue.held_by(trainer(0))[0];
    queue.measured(trainer(0), 900, MonotonicMs(0));
    let second = grant_at(&mut queue, 1, 10_000)[0];
    assert_eq!(queue.counts(), (2, 3));
    let ended = queue.finished(trainer(1), second.task, second.attempt).expect("the first counts");
    assert_eq!(ended, [(trainer(0), first.attempt), (trainer(1), second.attempt)]);
    assert!(queue.finished(trainer(0), first.task, first.attempt).is_none());
    assert_eq!(queue.counts(), (3, 3));
}

#[test]
fn leases_last_for_the_trainers_own_pace() {
    let mut queue = queue(1000);
    let mut now = MonotonicMs(0);
    for _ in 0..10 {
        for grant in queue.grant(trainer(0), 2, TaskLocality::default(), now, &Limits::default()) {
            now = now + 1_000;
            assert!(queue.finished(trainer(0), grant.task, grant.attempt).is_some());
        }
    }
    let held = queue.grant(trainer(0), 2, TaskLocality::default(), now, &Limits::default()).len();
    assert_eq!(held, 30, "thirty seconds at a second each");
}

#[test]
fn fewer_tasks_than_trainers_leave_nobody_with_two() {
    let mut queue = queue(100);
    let mut most = 0;
    for index in 0..50 {
        most = most.max(
            queue
                .grant(
                    trainer(index),
                    50,
                    TaskLocality::default(),
                    MonotonicMs(0),
                    &Limits::default(),
                )
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

#[derive(Clone, Debug)]
enum Op {
    Grant(u32),
    Measured(u32, u64),
    Finish(u32, usize),
    TakeBack(u32, usize),
    Release(u32),
}

fn op() -> impl Strategy<Value = Op> {
    let trainers = 0u32..6;
    prop_oneof![
        4 => trainers.clone().prop_map(Op::Grant),
        3 => (trainers.clone(), 0u64..6).prop_map(|(index, ns)| Op::Measured(index, ns)),
        3 => (trainers.clone(), 0usize..3).prop_map(|(index, nth)| Op::Finish(index, nth)),
        1 => (trainers.clone(), 0usize..3).prop_map(|(index, nth)| Op::TakeBack(index, nth)),
        1 => trainers.prop_map(Op::Release),
    ]
}

proptest! {
    /// The indexes that speculative attempts are found by say what the hand-outs say.
    #[test]
    fn indexes_agree_with_the_hand_outs(ops in prop::collection::vec(op(), 1..60)) {
        let mut queue = queue(10);
        for (second, op) in (0..).zip(ops) {
            let now = MonotonicMs(second * 4_000);
            let nth = |queue: &Queue, index, nth: usize| {
                queue.held_by(trainer(index)).get(nth).copied()
            };
            match op {
                Op::Grant(index) => {
                    let limits = Limits::default();
                    queue.grant(trainer(index), 6, TaskLocality::default(), now, &limits);
                }
                Op::Measured(index, ns) => queue.measured(trainer(index), ns, now),
                Op::Finish(index, at) => if let Some(grant) = nth(&queue, index, at) {
                    let holders = queue.finished(trainer(index), grant.task, grant.attempt);
                    let own = (trainer(index), grant.attempt);
                    prop_assert!(holders.is_some_and(|holders| holders.contains(&own)));
                },
                Op::TakeBack(index, at) => if let Some(grant) = nth(&queue, index, at) {
                    queue.take_back(trainer(index), grant.task, grant.attempt);
                },
                Op::Release(index) => queue.release(trainer(index)),
            }
            let loads: BTreeSet<(usize, Member)> = queue
                .held
                .iter()
                .filter(|(_, held)| !held.is_empty())
                .map(|(member, held)| (held.len(), *member))
                .collect();
            prop_assert_eq!(&queue.by_load, &loads);
            let slow: BTreeSet<(u64, Member)> = queue
                .records
                .iter()
                .filter(|(_, record)| record.slow_since.is_some())
                .map(|(member, record)| (record.record_ns, *member))
                .collect();
            prop_assert_eq!(&queue.slow, &slow);
            for id in &queue.speculative {
                prop_assert_eq!(queue.task(*id).map(|task| task.grants.len()), Some(2));
            }
        }
    }
}
