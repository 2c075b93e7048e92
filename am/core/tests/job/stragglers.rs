//! Slow trainers: lanes and tasks move away from them.

use heddle_protocol::control::{Command, TaskGrant, TaskHandOut, TrainerCommand, TrainerReport};
use heddle_protocol::ids::{Member, Slot};
use heddle_protocol::job_spec::{Consistency, JobSpec};
use heddle_protocol::view::JobState;

use crate::harness::{Job, lanes_of, spec};
use crate::takeover::restart;

fn four_trainers() -> JobSpec {
    let mut four = spec(Consistency::Bsp);
    four.training.lanes = 8;
    (four.trainers.min, four.trainers.max) = (4, 4);
    four
}

fn started() -> Job {
    let mut job = Job::new(four_trainers(), 8, 0);
    job.node = |slot| format!("node-{}", slot.index);
    job.start();
    job
}

/// Seconds in which trainers report these times for a record.
fn pass(job: &mut Job, seconds: u64, record_ns: [u64; 4]) {
    for _ in 0..seconds {
        job.pass(1_000);
        for (index, ns) in (0..).zip(record_ns) {
            let trainer = job.trainer(index);
            job.beat(trainer, |beat| beat.record_ns = ns);
        }
    }
}

fn lanes(job: &Job) -> [usize; 4] {
    [0, 1, 2, 3].map(|index| lanes_of(job, job.trainer(index)).len())
}

/// The trainers that were sent lanes, in order.
fn sent_lanes(job: &Job, from: usize) -> Vec<Slot> {
    let lanes = |(to, command): &(Member, Command)| {
        matches!(command, Command::Trainer(TrainerCommand::Lanes { .. })).then_some(to.slot)
    };
    job.sent[from..].iter().filter_map(lanes).collect()
}

#[test]
fn lanes_move_away_from_a_slow_trainer_which_is_told_first() {
    let mut job = started();
    assert_eq!(lanes(&job), [2, 2, 2, 2]);
    pass(&mut job, 10, [100, 100, 100, 100]);
    let from = job.sent.len();
    pass(&mut job, 10, [100, 100, 250, 100]);
    assert_eq!(sent_lanes(&job, from), []);
    pass(&mut job, 3, [100, 100, 250, 100]);
    assert_eq!(lanes(&job), [3, 2, 1, 2]);
    assert_eq!(sent_lanes(&job, from), [Slot::trainer(2), Slot::trainer(0)]);
    assert!(job.warned("trainer-2 on node-2 needs 2.5 times as long for a record"));
    assert_eq!(job.stopped, [], "it works on");
    job.end_phase(9);
    assert_eq!(job.outcome.map(|outcome| outcome.state), Some(JobState::Finished));
}

#[test]
fn a_trainer_that_joins_gets_lanes_beside_a_slow_one() {
    let mut job = started();
    pass(&mut job, 13, [100, 100, 250, 100]);
    job.kill(job.trainer(0));
    assert_eq!(lanes(&job).iter().sum::<usize>(), 8);
    assert_eq!(lanes(&job)[2], 1, "the division by speed stays: {:?}", lanes(&job));
    assert!(lanes(&job)[0] >= 2);
}

#[test]
fn a_trainer_far_too_slow_is_replaced_on_another_node() {
    let mut job = started();
    let slow = job.trainer(3);
    let from = job.sent.len();
    pass(&mut job, 13, [100, 100, 100, 10_000]);
    assert!(job.warned("trainer-3 on node-3 needs 100.0 times as long for a record"));
    let drained = job.told(slow, from);
    assert!(
        drained.iter().any(|command| matches!(command, Command::Trainer(TrainerCommand::Drain))),
        "{drained:?}"
    );
    let [a, b, c] = [0, 1, 2].map(|index| lanes_of(&job, job.trainer(index)).len());
    assert_eq!(a + b + c, 8, "the others need not wait for its step");
    let (epoch, phase) = (job.process(slow).epoch, job.process(slow).phase.expect("it works").no);
    job.report(slow, TrainerReport::Drained { epoch, phase, tasks: Vec::new() });
    assert_eq!(job.stopped, [slow]);
    assert_ne!(job.trainer(3), slow);
    assert_eq!(lanes(&job), [2, 2, 2, 2]);
    assert!(job.avoided.contains(&vec!["node-3".to_owned()]), "{:?}", job.avoided);
    assert_eq!(job.core.view().recoveries, [], "no work is lost");
}

/// ASP, three trainers, three tasks: two trainers have finished theirs, and trainer-0 is slow.
fn with_a_slow_task() -> (Job, Member, TaskGrant) {
    let mut three = spec(Consistency::Asp);
    (three.trainers.min, three.trainers.max) = (3, 3);
    let mut job = Job::started(three, 3, 0);
    let [slow, one, two] = [0, 1, 2].map(|index| job.trainer(index));
    let late = job.process(slow).tasks[0];
    for fast in [one, two] {
        job.beat(fast, |beat| beat.record_ns = 100);
        let task = job.process(fast).tasks[0].task;
        job.finish(fast, task);
    }
    assert_eq!(job.core.view().tasks_done, 2);
    for _ in 0..13 {
        job.pass(1_000);
        job.beat(slow, |beat| beat.record_ns = 10_000);
    }
    (job, slow, late)
}

/// The idle trainer that computes the late task too.
fn second_holder(job: &Job, slow: Member, late: TaskGrant) -> (Member, TaskGrant) {
    let mut others = job.trainers().into_iter().filter(|member| *member != slow);
    let holds =
        |member: &Member| job.process(*member).tasks.iter().any(|grant| grant.task == late.task);
    let member = others.find(holds).expect("an idle trainer shares the task");
    (member, job.process(member).tasks[0])
}

#[test]
fn s41_the_loser_of_a_late_task_is_ordered_to_stop_once() {
    let (mut job, slow, late) = with_a_slow_task();
    let (helper, speculative) = second_holder(&job, slow, late);
    let from = job.sent.len();
    // Both finish within a millisecond.
    let second = job.process(slow).finished(late);
    job.finish(helper, late.task);
    job.report(slow, second);
    let orders: Vec<&Command> = job.told(slow, from);
    let hand_out = TaskHandOut { task: late.task, attempt: late.attempt };
    let stops = |command: &&&Command| match command {
        Command::Trainer(TrainerCommand::Withdraw { tasks, .. }) => tasks[..] == [hand_out],
        _ => false,
    };
    assert_eq!(orders.iter().filter(stops).count(), 1, "{orders:?}");
    assert_ne!(speculative.attempt, late.attempt);
    assert_eq!(job.outcome.map(|outcome| outcome.state), Some(JobState::Finished));
}

#[test]
fn a_loser_that_does_not_stop_is_drained_and_replaced() {
    for answers in [true, false] {
        let mut two = spec(Consistency::Asp);
        two.data.passes = 3;
        let mut job = Job::started(two, 2, 0);
        job.auto.withdraw = answers;
        let [slow, fast] = [0, 1].map(|index| job.trainer(index));
        let late = job.process(slow).tasks[0];
        job.beat(fast, |beat| beat.record_ns = 100);
        let task = job.process(fast).tasks[0].task;
        job.finish(fast, task);
        for _ in 0..13 {
            job.pass(1_000);
            job.beat(slow, |beat| beat.record_ns = 10_000);
        }
        job.finish(fast, late.task);
        assert_eq!(job.core.view().phase.0, 1, "the next pass begins with both");
        let from = job.sent.len();
        job.pass(12_000);
        let drained = job
            .told(slow, from)
            .iter()
            .any(|command| matches!(command, Command::Trainer(TrainerCommand::Drain)));
        assert_eq!(drained, !answers);
        assert_eq!(job.warned("trainer-0 does not stop work on a task"), !answers);
        if !answers {
            job.pass(31_000);
            assert_eq!(job.stopped, [slow], "it did not hand back its work either");
            assert_eq!(job.core.view().recoveries.len(), 1);
        }
    }
}

#[test]
fn a_loser_whose_order_was_lost_gets_it_when_it_registers_again() {
    let mut three = spec(Consistency::Asp);
    (three.trainers.min, three.trainers.max) = (3, 3);
    let mut job = Job::started(three, 4, 0);
    let [slow, one, two] = [0, 1, 2].map(|index| job.trainer(index));
    let late = job.process(slow).tasks[0];
    for fast in [one, two] {
        job.beat(fast, |beat| beat.record_ns = 100);
    }
    let task = job.process(one).tasks[0].task;
    job.finish(one, task);
    let task = job.process(one).tasks[0].task;
    job.finish(one, task);
    // Trainer 2 keeps the phase open.
    for _ in 0..13 {
        job.pass(1_000);
        job.beat(slow, |beat| beat.record_ns = 10_000);
    }
    let (helper, _) = second_holder(&job, slow, late);
    job.disconnect(slow);
    job.finish(helper, late.task);
    let from = job.sent.len();
    job.registers(slow);
    let hand_out = TaskHandOut { task: late.task, attempt: late.attempt };
    let orders = job.told(slow, from);
    let stops = |command: &&&Command| match command {
        Command::Trainer(TrainerCommand::Withdraw { tasks, .. }) => tasks[..] == [hand_out],
        _ => false,
    };
    assert_eq!(orders.iter().filter(stops).count(), 1, "{orders:?}");
}

#[test]
fn trainers_that_wait_are_not_slow() {
    let mut job = started();
    // Their times do not change while they wait.
    pass(&mut job, 600, [100, 100, 100, 150]);
    assert_eq!(lanes(&job), [2, 2, 2, 2]);
    assert!(!job.warned("times as long"));
}

/// ASP, two trainers and eight tasks in each of three passes: one trainer is slow with its own, the other one is busy with
/// those that are left when six are done.
fn with_a_late_task_and_no_idle_trainer(extra: u32) -> (Job, Member) {
    let mut two = spec(Consistency::Asp);
    (two.trainers.min, two.trainers.max, two.trainers.extra) = (2, 2, extra);
    two.data.passes = 3;
    let mut job = Job::started(two, 8, 0);
    let (slow, fast) = (job.trainer(0), job.trainer(1));
    job.beat(fast, |beat| beat.record_ns = 100);
    while job.core.view().tasks_done < 6 {
        let task = job.process(fast).tasks.last().expect("it has one").task;
        job.finish(fast, task);
    }
    slow_for(&mut job, slow, 13);
    (job, slow)
}

fn slow_for(job: &mut Job, slow: Member, seconds: u64) {
    for _ in 0..seconds {
        job.pass(1_000);
        job.beat(slow, |beat| beat.record_ns = 10_000);
    }
}

/// All tasks of the phase are finished.
fn finish_phase(job: &mut Job) {
    let phase = job.core.view().phase;
    while job.core.view().phase == phase && job.outcome.is_none() {
        let holds = |member: &Member| !job.process(*member).tasks.is_empty();
        let holder = job.trainers().into_iter().find(holds).expect("the phase is not over");
        let task = job.process(holder).tasks[0].task;
        job.finish(holder, task);
    }
}

/// Trainers in slots beyond those of `trainers.max`.
fn extra_trainers(job: &Job) -> Vec<Member> {
    job.trainers().into_iter().filter(|member| member.slot.index >= 2).collect()
}

/// Hands back what it has.
fn drains(job: &mut Job, extra: Member, from: usize) {
    let drained = job.told(extra, from);
    assert!(
        drained.iter().any(|command| matches!(command, Command::Trainer(TrainerCommand::Drain))),
        "{drained:?}"
    );
    let (epoch, phase) = (job.process(extra).epoch, job.process(extra).phase.expect("one").no);
    job.report(extra, TrainerReport::Drained { epoch, phase, tasks: Vec::new() });
    job.pass(1_000);
}

#[test]
fn late_task_without_an_idle_trainer_starts_an_extra_one() {
    let (mut job, slow) = with_a_late_task_and_no_idle_trainer(1);
    let [extra] = extra_trainers(&job)[..] else { panic!("{:?}", job.trainers()) };
    assert_eq!(extra.slot, Slot::trainer(2));
    assert!(job.warned("trainer-2 is started for it (trainers.extra)"), "{:?}", job.notices);
    let late = job.process(extra).tasks[0].task;
    let held: Vec<_> = job.process(slow).tasks.iter().map(|grant| grant.task).collect();
    assert_eq!(late, held[0], "the late task comes first");
    // The pass ends with its tasks. The extra trainer stays for the next one, in which no task is late, and leaves then.
    job.finish(extra, late);
    finish_phase(&mut job);
    assert_eq!(job.core.view().phase.0, 1);
    assert_eq!(extra_trainers(&job), [extra]);
    let from = job.sent.len();
    finish_phase(&mut job);
    drains(&mut job, extra, from);
    assert_eq!(extra_trainers(&job), [], "no other takes its place");
    assert!(job.core.view().slots.iter().all(|slot| slot.slot != Slot::trainer(2)));
    finish_phase(&mut job);
    assert_eq!(job.outcome.map(|outcome| outcome.state), Some(JobState::Finished));
}

#[test]
fn without_trainers_extra_a_late_task_waits_for_an_idle_one() {
    let (mut job, slow) = with_a_late_task_and_no_idle_trainer(0);
    assert_eq!(extra_trainers(&job), []);
    let late = job.process(slow).tasks[0].task;
    let fast = job.trainer(1);
    while let Some(grant) = job.process(fast).tasks.first().copied().filter(|it| it.task != late) {
        job.finish(fast, grant.task);
    }
    assert_eq!(job.process(fast).tasks.first().map(|grant| grant.task), Some(late));
}

#[test]
fn extra_trainers_are_asked_for_one_at_a_time() {
    let (mut job, slow) = with_a_late_task_and_no_idle_trainer(2);
    assert_eq!(extra_trainers(&job).len(), 1, "one late task is attempted again at a time");
    // It is lost: its slot asks again, and no other one does meanwhile.
    job.auto.cluster = false;
    job.kill(extra_trainers(&job)[0]);
    slow_for(&mut job, slow, 20);
    let asked: Vec<Slot> = job.asks.iter().map(|(slot, _)| *slot).collect();
    assert_eq!(asked, [Slot::trainer(2)]);
}

#[test]
fn extra_trainer_that_is_idle_leaves() {
    let (mut job, slow) = with_a_late_task_and_no_idle_trainer(1);
    let [extra] = extra_trainers(&job)[..] else { panic!("{:?}", job.trainers()) };
    // The other task of the slow trainer has two holders already.
    let late = job.process(extra).tasks[0].task;
    let from = job.sent.len();
    job.finish(extra, late);
    slow_for(&mut job, slow, 29);
    let drained = job
        .told(extra, from)
        .into_iter()
        .any(|it| matches!(it, Command::Trainer(TrainerCommand::Drain)));
    assert!(!drained);
    slow_for(&mut job, slow, 4);
    drains(&mut job, extra, from);
    assert_eq!(extra_trainers(&job), []);
}

#[test]
fn extra_trainer_stays_with_a_new_attempt_while_tasks_are_late() {
    let (mut job, slow) = with_a_late_task_and_no_idle_trainer(1);
    let [extra] = extra_trainers(&job)[..] else { panic!("{:?}", job.trainers()) };
    restart(&mut job, 2);
    let members: Vec<Member> = job.processes.keys().copied().collect();
    for member in members {
        job.registers(member);
    }
    assert_eq!((&job.refused[..], &job.stopped[..]), (&[][..], &[][..]));
    let from = job.sent.len();
    slow_for(&mut job, slow, 5);
    let late = job.process(extra).tasks[0].task;
    job.finish(extra, late);
    finish_phase(&mut job);
    assert_eq!(job.core.view().phase.0, 1);
    drains(&mut job, extra, from);
    assert_eq!(extra_trainers(&job), [], "this attempt has seen no late task");
}
