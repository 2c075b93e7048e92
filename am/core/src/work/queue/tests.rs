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
    queue.grant(trainer(index), 2, NearTasks::default(), MonotonicMs(0), &Limits::default())
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
    queue.computed(trainer(0), 5);
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
    let held = queue.grant(trainer(0), 1, NearTasks::default(), MonotonicMs(0), &Limits::default());
    assert_eq!(held.len(), 2);
    let speculative = grant(&mut queue, 1)[0];
    assert_eq!(speculative.task, held[1].task, "the one that its holder works on last");
    assert_ne!(speculative.attempt, held[1].attempt);
    assert!(queue.finished(trainer(0), held[1].task, held[1].attempt).is_some());
    assert!(queue.finished(trainer(1), speculative.task, speculative.attempt).is_none());
}

#[test]
fn late_task_gets_a_speculative_attempt() {
    let mut queue = queue(1);
    let slow = grant(&mut queue, 0)[0];
    queue.computed(trainer(0), 100);
    queue.computed(trainer(0), 9_000);
    assert_eq!(grant(&mut queue, 1), [], "not late yet");
    queue.computed(trainer(0), 20_000);
    let speculative = grant(&mut queue, 1);
    assert_eq!(speculative.len(), 1);
    assert_eq!(speculative[0].task, slow.task);
    assert_eq!(
        queue.grant(trainer(2), 3, NearTasks::default(), MonotonicMs(0), &Limits::default()),
        [],
        "two holders at the most"
    );
}

#[test]
fn leases_last_for_the_trainers_own_pace() {
    let mut queue = queue(1000);
    let mut now = MonotonicMs(0);
    for _ in 0..10 {
        for grant in queue.grant(trainer(0), 2, NearTasks::default(), now, &Limits::default()) {
            now = now + 1_000;
            assert!(queue.finished(trainer(0), grant.task, grant.attempt).is_some());
        }
    }
    let held = queue.grant(trainer(0), 2, NearTasks::default(), now, &Limits::default()).len();
    assert_eq!(held, 30, "thirty seconds at a second each");
}

#[test]
fn fewer_tasks_than_trainers_leave_nobody_with_two() {
    let mut queue = queue(100);
    let mut most = 0;
    for index in 0..50 {
        most = most.max(
            queue
                .grant(trainer(index), 50, NearTasks::default(), MonotonicMs(0), &Limits::default())
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

#[test]
fn later_of_two_late_tasks_is_attempted_again_first() {
    let mut queue = queue(2);
    let tasks: Vec<TaskId> = (0..2).map(|index| grant(&mut queue, index)[0].task).collect();
    for (index, computed) in [(0, 40_000), (1, 90_000)] {
        queue.computed(trainer(index), 0);
        queue.computed(trainer(index), computed);
    }
    assert_eq!(grant(&mut queue, 2)[0].task, tasks[1]);
    assert_eq!(grant(&mut queue, 3)[0].task, tasks[0]);
    assert_eq!(grant(&mut queue, 4), [], "two holders at the most");
}

#[test]
fn late_is_three_times_what_nine_of_ten_tasks_took() {
    let mut queue = queue(12);
    let mut computed = 0;
    for _ in 0..10 {
        queue.grant(trainer(0), 1, NearTasks::default(), MonotonicMs(0), &Limits::default());
        let task = queue.held_by(trainer(0))[0];
        queue.computed(trainer(0), computed);
        computed += 10_000;
        queue.computed(trainer(0), computed);
        assert!(queue.finished(trainer(0), task.task, task.attempt).is_some());
    }
    // What is ahead of the last one must not be counted as waiting in a queue.
    let ahead: Vec<TaskGrant> = queue.held_by(trainer(0));
    for task in &ahead[1..] {
        queue.take_back(trainer(0), task.task, task.attempt);
    }
    let other = grant(&mut queue, 1);
    queue.computed(trainer(0), computed);
    queue.computed(trainer(0), computed + 29_000);
    assert_eq!(other.len(), 1);
    assert_eq!(grant(&mut queue, 2), [], "not late yet");
    queue.computed(trainer(0), computed + 31_000);
    assert_eq!(grant(&mut queue, 2)[0].task, ahead[0].task);
}

#[derive(Clone, Debug)]
enum Op {
    Grant(u32),
    Computed(u32, u64),
    Finish(u32, usize),
    TakeBack(u32, usize),
    Release(u32),
}

fn op() -> impl Strategy<Value = Op> {
    let trainers = 0u32..6;
    prop_oneof![
        4 => trainers.clone().prop_map(Op::Grant),
        3 => (trainers.clone(), 0u64..60_000).prop_map(|(index, ms)| Op::Computed(index, ms)),
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
        let mut computed = [0u64; 6];
        for op in ops {
            let nth = |queue: &Queue, index, nth: usize| queue.held_by(trainer(index)).get(nth).copied();
            match op {
                Op::Grant(index) => {
                    queue.grant(trainer(index), 6, NearTasks::default(), MonotonicMs(0), &Limits::default());
                }
                Op::Computed(index, ms) => {
                    computed[index as usize] += ms;
                    queue.computed(trainer(index), computed[index as usize]);
                }
                Op::Finish(index, at) => if let Some(grant) = nth(&queue, index, at) {
                    let holders = queue.finished(trainer(index), grant.task, grant.attempt);
                    prop_assert!(holders.is_some_and(|holders| holders.contains(&trainer(index))));
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
            let at_work: BTreeSet<(u64, Member)> = queue
                .held
                .iter()
                .filter_map(|(member, held)| {
                    let task = queue.task(*held.first()?)?;
                    let [only] = task.grants.as_slice() else { return None };
                    let ms = queue.records[member].compute_ms.saturating_sub(only.begun_compute_ms?);
                    Some((ms, *member))
                })
                .collect();
            prop_assert_eq!(&queue.at_work, &at_work);
        }
    }
}
