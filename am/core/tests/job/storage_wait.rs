//! Trainers that wait for the storage of their input.

use heddle_protocol::control::{HeartbeatStats, InputWait};
use heddle_protocol::view::{JobEvent as Notice, StorageWaitView};

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
