//! Storage that hangs: trainers wait for their input, a promotion for its record.

use heddle_protocol::control::{Command, HeartbeatStats, InputWait, ShardCommand};
use heddle_protocol::ids::TaskId;
use heddle_protocol::job_spec::Consistency;
use heddle_protocol::view::{JobEvent as Notice, JobState, StorageWaitView};

use crate::failover::{epoch, last_places, replicated, restores};
use crate::harness::Job;

fn waits(for_ms: u64, error: &str) -> impl FnOnce(&mut HeartbeatStats) {
    let wait = InputWait { for_ms, file: "hdfs://nn/in".to_owned(), error: error.to_owned() };
    move |beat| beat.input_wait = Some(wait)
}

fn notices(job: &Job) -> Vec<StorageWaitView> {
    let waits = job.notices.iter().filter_map(|notice| match notice {
        Notice::StorageWait(wait) => Some(wait.clone()),
        _ => None,
    });
    waits.collect()
}

#[test]
fn wait_lasts_from_the_first_trainer_to_the_last() {
    let mut job = Job::bsp();
    let (one, other) = (job.trainer(0), job.trainer(1));
    job.beat(one, waits(4_000, ""));
    let first = job.core.view().storage_wait.unwrap();
    assert_eq!((first.trainers, first.error.as_str()), (1, ""));
    assert_eq!(first.file, "hdfs://nn/in");
    // The other trainer has waited longer and reads again.
    job.beat(other, waits(5_000, "connection refused"));
    let both = job.core.view().storage_wait.unwrap();
    assert_eq!((both.trainers, both.error.as_str()), (2, "connection refused"));
    assert_eq!(both.since_ms + 1_000, first.since_ms);
    assert_eq!(notices(&job).len(), 1, "one wait is one notice");
    job.beat(one, |_| {});
    assert_eq!(job.core.view().storage_wait.unwrap().trainers, 1);
    job.beat(other, |_| {});
    assert_eq!(job.core.view().storage_wait, None);
    let over = notices(&job).pop().unwrap();
    assert_eq!(over.since_ms, both.since_ms);
    assert!(over.ended_ms.is_some_and(|ended| ended >= over.since_ms));
    // The next one is another wait.
    job.beat(one, waits(3_000, ""));
    assert_eq!(notices(&job).len(), 3);
}

#[test]
fn short_wait_is_not_reported() {
    let mut job = Job::bsp();
    let one = job.trainer(0);
    job.beat(one, waits(2_999, "connection refused"));
    assert_eq!(job.core.view().storage_wait, None);
    assert!(notices(&job).is_empty());
}

#[test]
fn wait_ends_with_the_container_that_waits() {
    let mut job = Job::bsp();
    let one = job.trainer(0);
    job.beat(one, waits(10_000, ""));
    assert!(job.core.view().storage_wait.is_some());
    job.kill(one);
    assert_eq!(job.core.view().storage_wait, None);
    assert_eq!(notices(&job).len(), 2);
}

/// The journal's file system hangs for a while: the promotion waits, and nothing returns to a checkpoint meanwhile. Trainers
/// that finish tasks get others, and a trainer that is lost is replaced.
#[test]
fn s53_promotion_waits_for_a_journal_that_hangs() {
    let mut job = Job::started(replicated(Consistency::Asp, 3, 1), 40, 0);
    let (before, lost) = (epoch(&job), job.pserver(0));
    job.auto.journal = false;
    job.sent.clear();
    job.kill(lost);
    job.pass(8_000);
    assert!(
        !job.sent
            .iter()
            .any(|(_, command)| matches!(command, Command::Shards(ShardCommand::Views(_))))
    );
    assert_eq!((restores(&job), job.core.view().state), (1, JobState::Running));
    let trainer = job.trainer(0);
    let done = job.process(trainer).tasks[0].task;
    job.finish(trainer, done);
    let next: Vec<TaskId> = job.process(trainer).tasks.iter().map(|grant| grant.task).collect();
    assert!(!next.is_empty() && !next.contains(&done), "{next:?} after {done}");
    job.kill(job.trainer(1));
    let replacement = job.trainer(1);
    assert_eq!(replacement.incarnation.0, 2, "its container is there");
    job.auto.journal = true;
    job.all_durable();
    assert_eq!((restores(&job), epoch(&job)), (1, before), "no rollback");
    for member in [trainer, replacement] {
        let places = last_places(&job, member);
        assert!(places.len() == 6 && places.iter().all(|it| it.holder != lost), "{places:?}");
    }
}
