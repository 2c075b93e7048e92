//! Trainers without work for `trainers.idle-timeout` leave, down to `trainers.min`, and come back when there is work.

use heddle_protocol::control::{Command, TrainerCommand, TrainerReport};
use heddle_protocol::ids::{Member, Slot};
use heddle_protocol::job_spec::{Consistency, JobSpec};
use heddle_protocol::view::{JobEvent, JobState};

use crate::harness::{Job, spec};

fn elastic(consistency: Consistency) -> JobSpec {
    let mut elastic = spec(consistency);
    (elastic.trainers.min, elastic.trainers.max) = (1, 3);
    elastic.data.passes = 2;
    elastic
}

fn wait(job: &mut Job, seconds: u64) {
    for _ in 0..seconds {
        job.pass(1_000);
        for trainer in job.trainers() {
            job.beat(trainer, |beat| beat.record_ns = 100);
        }
    }
}

/// The trainer finishes all that it has.
fn finish(job: &mut Job, index: u32) {
    let trainer = job.trainer(index);
    while let Some(grant) = job.process(trainer).tasks.first().copied() {
        job.finish(trainer, grant.task);
    }
}

/// ASP, three tasks: trainers 0 and 1 have finished theirs, and trainer 2 has one left.
fn two_are_idle(min: u32) -> Job {
    let mut spec = elastic(Consistency::Asp);
    spec.trainers.min = min;
    let mut job = Job::started(spec, 3, 0);
    wait(&mut job, 1);
    [0, 1].into_iter().for_each(|index| finish(&mut job, index));
    assert_eq!(job.process(job.trainer(2)).tasks.len(), 1);
    job
}

/// Those that were ordered to drain since then hand back what they have: not a thing.
fn drain(job: &mut Job, from: usize) -> Vec<Slot> {
    let drains = |(to, command): &(Member, Command)| {
        matches!(command, Command::Trainer(TrainerCommand::Drain)).then_some(*to)
    };
    let draining: Vec<Member> = job.sent[from..].iter().filter_map(drains).collect();
    for member in &draining {
        let (epoch, phase) = (job.process(*member).epoch, job.process(*member).phase.expect("one"));
        job.report(*member, TrainerReport::Drained { epoch, phase: phase.no, tasks: Vec::new() });
    }
    draining.into_iter().map(|member| member.slot).collect()
}

/// As [`two_are_idle`], after `trainers.idle-timeout`.
fn two_have_left() -> Job {
    let mut job = two_are_idle(1);
    let from = job.sent.len();
    wait(&mut job, 62);
    drain(&mut job, from);
    assert_eq!(job.trainers().len(), 1);
    job
}

fn released(job: &Job) -> Vec<u32> {
    let count = |event: &JobEvent| match event {
        JobEvent::TrainersReleased { trainers, .. } => Some(*trainers),
        _ => None,
    };
    job.notices.iter().filter_map(count).collect()
}

#[test]
fn idle_trainers_leave_and_return_with_the_next_pass() {
    let mut job = two_are_idle(1);
    let from = job.sent.len();
    wait(&mut job, 58);
    assert_eq!(drain(&mut job, from), [], "not before the timeout");
    wait(&mut job, 3);
    assert_eq!(drain(&mut job, from), [Slot::trainer(0), Slot::trainer(1)]);
    assert_eq!(released(&job), [2]);
    job.auto.cluster = false;
    wait(&mut job, 30);
    assert_eq!(job.trainers().len(), 1, "their slots stay empty");
    assert_eq!(job.asks, [].into());
    let shown =
        job.core.view().slots.iter().filter(|slot| slot.slot.role == Slot::trainer(0).role).count();
    assert_eq!(shown, 1);
    assert!(job.core.view().recoveries.is_empty(), "it is not a loss");

    let last = job.process(job.trainer(2)).tasks[0].task;
    job.auto.cluster = true;
    job.finish(job.trainer(2), last);
    assert_eq!(job.core.view().phase.0, 1);
    wait(&mut job, 2);
    assert_eq!(job.trainers().len(), 3, "there is work for all again");
    job.finish_all();
    assert_eq!(job.outcome.map(|outcome| outcome.state), Some(JobState::Finished));
}

#[test]
fn trainer_that_still_drains_is_not_counted_again() {
    let mut job = Job::started(elastic(Consistency::Asp), 3, 0);
    wait(&mut job, 1);
    finish(&mut job, 0);
    wait(&mut job, 10);
    finish(&mut job, 1);
    wait(&mut job, 62);
    assert_eq!(released(&job), [1, 1]);
}

#[test]
fn trainers_min_stays_however_long_it_is_idle() {
    let mut job = two_are_idle(2);
    let from = job.sent.len();
    wait(&mut job, 62);
    assert_eq!(drain(&mut job, from).len(), 1);
    wait(&mut job, 200);
    assert_eq!(job.trainers().len(), 2);
}

#[test]
fn trainers_without_lanes_leave_for_good() {
    let mut spec = elastic(Consistency::Bsp);
    spec.training.lanes = 2;
    let mut job = Job::started(spec, 4, 0);
    let from = job.sent.len();
    wait(&mut job, 62);
    assert_eq!(drain(&mut job, from).len(), 1);
    job.auto.cluster = false;
    job.end_phase(9);
    wait(&mut job, 3);
    assert_eq!(job.core.view().phase.0, 1);
    assert_eq!(job.asks, [].into(), "the next pass has two lanes as well");
    assert_eq!(job.trainers().len(), 2);
}

#[test]
fn operators_number_holds_for_idle_trainers_too() {
    use heddle_protocol::control::Operation;
    let mut job = two_have_left();
    job.operate(1, Operation::Scale { trainers: Some(3), pservers: None });
    wait(&mut job, 2);
    assert_eq!(job.trainers().len(), 3);
}

#[test]
fn late_task_recalls_a_released_trainer() {
    let mut job = two_have_left();
    let slow = job.trainer(2);
    for _ in 0..60 {
        job.pass(1_000);
        job.beat(slow, |beat| beat.record_ns = 10_000);
    }
    assert_eq!(job.trainers().len(), 2, "one of them computes it too");
}
