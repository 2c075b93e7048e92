//! Slow trainers: lanes and tasks move away from them.

use heddle_protocol::control::Command;
use heddle_protocol::ids::{Member, Slot};
use heddle_protocol::spec::{Consistency, JobSpec};
use heddle_protocol::view::JobState;

use crate::harness::{Job, lanes_of, spec};

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
        matches!(command, Command::Lanes { .. }).then_some(to.slot)
    };
    job.sent[from..].iter().filter_map(lanes).collect()
}

#[test]
fn lanes_move_away_from_a_slow_trainer_which_is_told_first() {
    let mut job = started();
    assert_eq!(lanes(&job), [2, 2, 2, 2]);
    pass(&mut job, 10, [100, 100, 100, 100]);
    let from = job.sent.len();
    pass(&mut job, 10, [100, 100, 400, 100]);
    assert_eq!(sent_lanes(&job, from), []);
    pass(&mut job, 3, [100, 100, 400, 100]);
    assert_eq!(lanes(&job), [3, 2, 1, 2]);
    assert_eq!(sent_lanes(&job, from), [Slot::trainer(2), Slot::trainer(0)]);
    assert!(job.warned("trainer-2 on node-2 needs 4.0 times as long for a record"));
    assert_eq!(job.stopped, [], "it works on");
    job.end_phase(9);
    assert_eq!(job.outcome.map(|outcome| outcome.state), Some(JobState::Finished));
}

#[test]
fn a_trainer_that_joins_gets_lanes_beside_a_slow_one() {
    let mut job = started();
    pass(&mut job, 13, [100, 100, 400, 100]);
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
    assert!(drained.iter().any(|command| matches!(command, Command::Drain)), "{drained:?}");
    let [a, b, c] = [0, 1, 2].map(|index| lanes_of(&job, job.trainer(index)).len());
    assert_eq!(a + b + c, 8, "the others need not wait for its step");
    let (epoch, phase) = (job.process(slow).epoch, job.process(slow).phase.expect("it works").no);
    job.report(slow, heddle_protocol::control::Report::Drained { epoch, phase, tasks: Vec::new() });
    assert_eq!(job.stopped, [slow]);
    assert_ne!(job.trainer(3), slow);
    assert_eq!(lanes(&job), [2, 2, 2, 2]);
    assert!(job.avoided.contains(&vec!["node-3".to_owned()]), "{:?}", job.avoided);
    assert_eq!(job.core.view().recoveries, [], "no work is lost");
}

#[test]
fn trainers_that_wait_are_not_slow() {
    let mut job = started();
    // Their times do not change while they wait.
    pass(&mut job, 600, [100, 100, 100, 150]);
    assert_eq!(lanes(&job), [2, 2, 2, 2]);
    assert!(!job.warned("times as long"));
}
