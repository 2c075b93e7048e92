//! Shards move among pservers between `pservers.min` and `max`, without a rollback.

use std::collections::BTreeMap;

use heddle_am_core::{Event, Record};
use heddle_protocol::control::Operation;
use heddle_protocol::ids::{Incarnation, Member, Slot};
use heddle_protocol::job_spec::Consistency;
use heddle_protocol::view::JobEvent;

use crate::failover::{epoch, restores};
use crate::harness::{self, Job};
use crate::refills::{fill_all, last_views};

/// A started job with six shards on two pservers of one to four.
fn elastic(replicas: u32) -> Job {
    let mut spec = harness::spec(Consistency::Asp);
    (spec.pservers.shards, spec.pservers.replicas) = (6, replicas);
    [spec.pservers.min, spec.pservers.max] = [Some(1 + replicas), Some(4)];
    Job::started(spec, 40, 0)
}

fn scale(job: &mut Job, pservers: u32) {
    job.operate(9, Operation::Scale { trainers: None, pservers: Some(pservers) });
}

/// Shards served, by pserver.
fn served(job: &Job) -> BTreeMap<Slot, usize> {
    let mut served = BTreeMap::new();
    for view in last_views(job) {
        *served.entry(view.primary.slot).or_default() += 1;
    }
    served
}

fn each(pservers: u32, shards: usize) -> BTreeMap<Slot, usize> {
    (0..pservers).map(|index| (Slot::pserver(index), shards)).collect()
}

/// Each shard has this number of copies, and the epoch began once.
fn check(job: &Job, copies: usize) {
    for view in last_views(job) {
        assert_eq!((view.in_sync.len(), view.open_fills().count()), (copies, 0), "{view:?}");
    }
    assert_eq!((restores(job), job.outcome.as_ref()), (1, None));
}

#[test]
fn growth_spreads_and_a_shrink_drains() {
    let mut job = elastic(0);
    let before = epoch(&job);
    assert_eq!(served(&job), each(2, 3));
    scale(&mut job, 3);
    assert_eq!(job.answers.last_key_value().map(|(_, answer)| answer.is_ok()), Some(true));
    fill_all(&mut job);
    assert_eq!(served(&job), each(3, 2));
    check(&job, 1);
    let moved = job.notices.iter().filter_map(|event| match event {
        JobEvent::Moved { slot, shards, to, .. } => Some((slot.index, *shards, to.clone())),
        _ => None,
    });
    let moved: Vec<_> = moved.collect();
    assert_eq!(moved.iter().map(|(_, shards, _)| shards).sum::<u32>(), 2);
    assert!(moved.iter().all(|(from, _, to)| *from < 2 && *to == [Slot::pserver(2)]), "{moved:?}");
    for (pservers, shards) in [(1, 6), (3, 2), (2, 3)] {
        scale(&mut job, pservers);
        fill_all(&mut job);
        assert_eq!(served(&job), each(pservers, shards), "{pservers} pservers");
        check(&job, 1);
    }
    assert_eq!(epoch(&job), before);
    let failed = |event: &JobEvent| {
        matches!(event, JobEvent::FailedOver { .. } | JobEvent::Lost { .. })
            || matches!(event, JobEvent::Recovered(_) | JobEvent::RollbackStarted { .. })
    };
    assert!(!job.notices.iter().any(failed), "{:?}", job.notices);
    assert_eq!(job.pservers().len(), 2, "the others have ended");
}

/// It is stopped when its last shard is served elsewhere, and not before.
#[test]
fn pserver_that_is_not_wanted_waits_for_its_shards() {
    let mut job = elastic(0);
    job.auto.hand_over = false;
    let leaves = job.pserver(1);
    scale(&mut job, 1);
    fill_all(&mut job);
    assert_eq!(served(&job), each(2, 3));
    assert!(!job.stopped.contains(&leaves));
    // Its control connection breaks: it is not refused.
    job.disconnect(leaves);
    job.register(leaves);
    assert!(!job.refused.contains(&leaves));
    job.kill(leaves);
    assert_eq!(served(&job), each(1, 6));
    check(&job, 1);
}

#[test]
fn view_names_what_moves_wait_for() {
    let mut job = elastic(0);
    let waits_for = |job: &Job| job.core.view().pservers.expect("it is elastic").waits_for;
    assert_eq!(waits_for(&job), "");
    job.auto.cluster = false;
    scale(&mut job, 3);
    assert_eq!(waits_for(&job), "a container for pserver-2");
    scale(&mut job, 1);
    assert_eq!(waits_for(&job), "", "a copy is being filled");
    job.auto.snap = false;
    job.operate(8, Operation::Checkpoint);
    assert_eq!(waits_for(&job), format!("checkpoint {}", job.cut()));
}

/// The attempt ends while a departing pserver's shards wait for a checkpoint that saves.
#[test]
fn departure_outlives_an_attempt_that_saves() {
    let mut job = elastic(0);
    (job.auto.snap, job.auto.save) = (false, false);
    job.operate(8, Operation::Checkpoint);
    scale(&mut job, 1);
    fill_all(&mut job);
    assert_eq!(served(&job), each(2, 3), "shards do not move while a cut is open");
    let mut next = crate::failover::taken_over(&job);
    fill_all(&mut next);
    assert_eq!(served(&next), each(1, 6));
    check(&next, 1);
}

/// Survivors take the shards of a lost pserver, and give them back by spreading when its container comes.
#[test]
fn shards_of_a_lost_pserver_come_back_by_spreading() {
    let mut job = elastic(0);
    job.auto.cluster = false;
    job.kill(job.pserver(1));
    job.pass(31_000);
    assert_eq!(served(&job), each(1, 6));
    let restored = restores(&job);
    job.auto.cluster = true;
    job.grant(Slot::pserver(1), Incarnation(2));
    job.pass(1_000);
    fill_all(&mut job);
    assert_eq!((served(&job), restores(&job)), (each(2, 3), restored));
}

#[test]
fn job_with_backups_spreads_them_and_its_primaries() {
    let mut job = elastic(1);
    for (pservers, shards) in [(3, 2), (2, 3)] {
        scale(&mut job, pservers);
        fill_all(&mut job);
        assert_eq!(served(&job), each(pservers, shards), "{pservers} pservers");
        check(&job, 2);
    }
}

#[test]
fn number_outside_the_bounds_is_refused_with_them() {
    let mut job = elastic(0);
    for pservers in [0, 5] {
        scale(&mut job, pservers);
        let answer = job.answers.last_key_value().map(|(_, answer)| answer.clone());
        let text = format!(
            "the job takes 1 to 4 pservers, not {pservers}: the bounds are pservers.min and pservers.max"
        );
        assert_eq!(answer, Some(Err(text)));
    }
    assert!(!job.records.iter().any(|record| matches!(record, Record::Scaled { .. })));
}

/// The number that an operator ordered holds in the next attempt, which finds the shards where they have moved.
#[test]
fn next_attempt_keeps_the_number_and_the_places() {
    let mut job = elastic(0);
    scale(&mut job, 3);
    fill_all(&mut job);
    let before = epoch(&job);
    let next = crate::failover::taken_over(&job);
    assert_eq!((epoch(&next), served(&next)), (before, each(3, 2)));
    check(&next, 1);
}

/// A rollback places the shards on as many pservers as are wanted.
#[test]
fn rollback_reaches_the_number_by_itself() {
    let mut job = elastic(0);
    job.auto.hand_over = false;
    scale(&mut job, 3);
    job.kill(job.pserver(0));
    assert_eq!(restores(&job), 2);
    let Some(Record::Restore { holders, .. }) =
        job.records.iter().rfind(|record| matches!(record, Record::Restore { .. }))
    else {
        panic!("a rollback")
    };
    assert!(holders.contains(&Slot::pserver(2)), "{holders:?}");
}

/// The pserver of a node that leaves gives its shards away, without a checkpoint.
#[test]
fn node_that_leaves_costs_no_checkpoint() {
    let mut job = elastic(0);
    job.node = |slot| format!("node-of-{slot}");
    job.kill(job.pserver(1));
    let (restored, cuts) = (restores(&job), job.calls.len());
    let leaves: Member = job.pserver(1);
    job.node = |slot| format!("other-{slot}");
    job.on(Event::NodeLeaving { node: "node-of-pserver-1".to_owned() });
    fill_all(&mut job);
    assert_ne!(job.pserver(1), leaves, "it is replaced");
    assert_eq!((restores(&job), job.calls.len()), (restored, cuts));
    assert_eq!(served(&job), each(2, 3));
}

/// The notice comes while a hand-over is under way.
#[test]
fn node_that_leaves_during_a_move_costs_no_checkpoint() {
    let mut job = elastic(0);
    job.node = |slot| format!("node-of-{slot}");
    job.kill(job.pserver(1));
    let (restored, cuts) = (restores(&job), job.calls.len());
    job.auto.hand_over = false;
    scale(&mut job, 3);
    fill_all(&mut job);
    job.on(Event::NodeLeaving { node: "node-of-pserver-1".to_owned() });
    assert_eq!((restores(&job), job.calls.len()), (restored, cuts));
}
