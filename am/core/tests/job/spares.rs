//! Spares: registered and idle containers take the places of lost ones.

use std::collections::BTreeSet;

use heddle_am_core::{Event, Record};
use heddle_protocol::control::{
    Command, Operation, PserverCommand, Report, TrainerCommand, TrainerReport,
};
use heddle_protocol::ids::{Incarnation, Member, Slot};
use heddle_protocol::job_spec::{Consistency, JobSpec};
use heddle_protocol::view::{JobState, RecoveryKind, RecoveryView, SlotState, SpareCounts};

use crate::failover::{epoch, restores};
use crate::harness::{Job, spec};

fn with_spares(consistency: Consistency, pservers: u32, trainers: u32) -> JobSpec {
    let mut spec = spec(consistency);
    (spec.pservers.spares, spec.trainers.spares) = (pservers, trainers);
    spec
}

fn started(pservers: u32, trainers: u32) -> Job {
    Job::started(with_spares(Consistency::Bsp, pservers, trainers), 4, 0)
}

fn last_recovery(job: &Job) -> RecoveryView {
    job.core.view().recoveries.pop().unwrap()
}

fn steps(job: &mut Job) {
    let epoch = epoch(job);
    for trainer in job.trainers() {
        job.report(trainer, TrainerReport::Stepping { epoch });
    }
}

fn members(job: &Job) -> BTreeSet<Member> {
    job.process(job.pserver(0)).members.iter().copied().collect()
}

fn held(job: &Job) -> Vec<usize> {
    job.pservers().into_iter().map(|it| job.process(it).shards.len()).collect()
}

#[test]
fn the_job_begins_without_its_spares() {
    let mut job = Job::new(with_spares(Consistency::Bsp, 1, 1), 4, 0);
    job.auto.cluster = false;
    job.start();
    let first: BTreeSet<Slot> = job.asks.iter().map(|(slot, _)| *slot).collect();
    assert_eq!(
        first,
        [Slot::pserver(0), Slot::pserver(1), Slot::trainer(0), Slot::trainer(1)].into()
    );
    for slot in first {
        job.grant(slot, Incarnation(1));
    }
    job.on(Event::Timer);
    assert_eq!(job.core.view().state, JobState::Running);
    let asked: BTreeSet<Slot> = job.asks.iter().map(|(slot, _)| *slot).collect();
    assert_eq!(asked, [Slot::pserver(2), Slot::trainer(2)].into());
    let spares = job.core.view().spares.unwrap();
    assert_eq!(spares.pservers, SpareCounts { wanted: 1, ready: 0 });
    for slot in asked {
        job.grant(slot, Incarnation(1));
    }
    job.on(Event::Timer);
    let spares = job.core.view().spares.unwrap();
    assert_eq!(spares.pservers, SpareCounts { wanted: 1, ready: 1 });
    assert_eq!(spares.trainers, SpareCounts { wanted: 1, ready: 1 });
    assert_eq!(held(&job), [2, 2, 0]);
    let view = job.core.view();
    let idle = view.slots.iter().filter(|slot| slot.spare);
    assert_eq!(
        idle.map(|slot| (slot.slot, slot.state)).collect::<Vec<_>>(),
        [(Slot::pserver(2), SlotState::Running), (Slot::trainer(2), SlotState::Running)]
    );
}

#[test]
fn a_spare_takes_the_shards_of_a_lost_pserver_at_once() {
    let mut job = started(1, 0);
    job.auto.cluster = false;
    let spare = job.pserver(2);
    job.kill(job.pserver(1));
    assert_eq!(job.core.view().state, JobState::Running);
    assert_eq!(held(&job), [2, 2]);
    assert_eq!(job.process(spare).shards.len(), 2);
    let recovery = last_recovery(&job);
    assert_eq!((recovery.kind, recovery.restart_ms), (RecoveryKind::Spare, Some(0)));
    steps(&mut job);
    assert!(last_recovery(&job).done);
    assert_eq!(job.core.view().spares.unwrap().pservers, SpareCounts { wanted: 1, ready: 0 });
    // The container that follows is the next spare, and nothing moves for it.
    let (before, records) = (epoch(&job), restores(&job));
    job.grant(Slot::pserver(1), Incarnation(2));
    job.on(Event::Timer);
    assert_eq!(job.core.view().spares.unwrap().pservers, SpareCounts { wanted: 1, ready: 1 });
    job.operate(1, Operation::Checkpoint);
    let cut = job.cut();
    job.snap_all(cut, 5);
    job.save_all(cut);
    assert_eq!((epoch(&job), restores(&job)), (before, records), "shards stay at the spare");
    // It takes the place of the next one.
    job.kill(spare);
    assert_eq!(job.core.view().state, JobState::Running);
    assert_eq!(job.process(job.pserver(1)).shards.len(), 2);
}

#[test]
fn the_restart_row_ends_with_the_record_of_the_map() {
    let mut job = started(1, 0);
    job.auto.journal = false;
    job.kill(job.pserver(0));
    assert_eq!(last_recovery(&job).restart_ms, None);
    job.pass(70);
    // The slot's own replacement starts meanwhile: it is the next spare.
    assert_eq!(last_recovery(&job).restart_ms, None);
    job.all_durable();
    let recovery = last_recovery(&job);
    assert_eq!((recovery.kind, recovery.restart_ms), (RecoveryKind::Spare, Some(70)));
    assert!(recovery.load_ms.is_some());
}

#[test]
fn shards_beyond_the_spares_go_to_the_next_container() {
    let mut three = with_spares(Consistency::Bsp, 1, 0);
    (three.pservers.count, three.pservers.shards) = (3, 6);
    let mut job = Job::started(three, 4, 0);
    job.auto.cluster = false;
    job.kill(job.pserver(1));
    job.kill(job.pserver(2));
    assert_eq!(job.core.view().state, JobState::Recovering);
    assert_eq!(job.process(job.pserver(3)).shards.len(), 2);
    // Not the slot whose shards wait.
    job.grant(Slot::pserver(1), Incarnation(2));
    job.on(Event::Timer);
    assert_eq!(job.core.view().state, JobState::Running);
    assert_eq!(held(&job), [2, 2, 2]);
}

#[test]
fn s49_a_spare_that_dies_while_it_loads_is_replaced_by_the_next() {
    let mut job = started(2, 0);
    job.auto.cluster = false;
    job.auto.hold = false;
    let (first, second) = (job.pserver(2), job.pserver(3));
    job.kill(job.pserver(1));
    assert_eq!(job.core.view().state, JobState::Recovering);
    let from = job.sent.len();
    job.kill(first);
    let told = job.told(second, from);
    assert!(
        told.iter().any(|it| match it {
            Command::Pserver(PserverCommand::LoadShards(load)) => load.shards.len() == 2,
            _ => false,
        }),
        "{told:?}"
    );
    job.auto.hold = true;
    for pserver in [job.pserver(0), second] {
        job.disconnect(pserver);
        job.registers(pserver);
    }
    assert_eq!(job.core.view().state, JobState::Running);
    let asked: BTreeSet<Slot> = job.asks.iter().map(|(slot, _)| *slot).collect();
    assert_eq!(asked, [Slot::pserver(1), Slot::pserver(2)].into(), "both are asked for");
}

#[test]
fn survivors_give_the_shards_to_the_next_container() {
    let mut job = started(1, 0);
    job.auto.cluster = false;
    job.kill(job.pserver(2));
    job.kill(job.pserver(1));
    job.pass(31_000);
    assert_eq!(held(&job), [4]);
    // The spare's slot, not that of the shards.
    job.grant(Slot::pserver(2), Incarnation(2));
    job.on(Event::Timer);
    let cut = job.cut();
    job.snap_all(cut, 5);
    job.save_all(cut);
    assert_eq!(job.core.view().state, JobState::Running);
    assert_eq!(held(&job), [2, 2]);
}

#[test]
fn a_spare_trainer_joins_with_the_loss_of_another() {
    let mut job = started(0, 1);
    job.auto.cluster = false;
    let [first, second, spare] = [0, 1, 2].map(|index| job.trainer(index));
    assert_eq!(members(&job), [first, second].into());
    assert!(job.process(spare).lanes.is_empty());
    job.kill(second);
    assert_eq!(members(&job), [first, spare].into());
    assert!(!job.process(spare).lanes.is_empty());
    let recovery = last_recovery(&job);
    assert_eq!((recovery.kind, recovery.restart_ms), (RecoveryKind::Spare, Some(0)));
    let epoch = epoch(&job);
    job.report(spare, TrainerReport::Stepping { epoch });
    assert!(last_recovery(&job).done, "over with the first step of the spare");
    job.grant(Slot::trainer(1), Incarnation(2));
    job.on(Event::Timer);
    assert_eq!(members(&job), [first, spare].into(), "the next spare");
    assert_eq!(job.core.view().spares.unwrap().trainers, SpareCounts { wanted: 1, ready: 1 });
}

#[test]
fn scaling_changes_who_works_and_keeps_the_spares() {
    let mut more = with_spares(Consistency::Asp, 0, 1);
    (more.trainers.min, more.trainers.max) = (1, 3);
    let mut job = Job::started(more, 8, 0);
    assert_eq!(members(&job).len(), 3);
    job.operate(1, Operation::Scale { trainers: Some(1), pservers: None });
    for trainer in job.trainers() {
        if job
            .told(trainer, 0)
            .iter()
            .any(|it| matches!(it, Command::Trainer(TrainerCommand::Drain)))
        {
            let process = job.process(trainer);
            let (phase, tasks) = (process.phase.unwrap().no, process.positions());
            let report =
                Report::Trainer(TrainerReport::Drained { epoch: epoch(&job), phase, tasks });
            job.report(trainer, report);
            job.kill(trainer);
        }
    }
    job.pass(60_000);
    let view = job.core.view();
    assert_eq!(members(&job).len(), 1, "{:?}", view.slots);
    assert_eq!(view.spares.unwrap().trainers, SpareCounts { wanted: 1, ready: 1 });
    job.operate(2, Operation::Scale { trainers: Some(3), pservers: None });
    job.pass(60_000);
    assert_eq!(members(&job).len(), 3);
    assert_eq!(job.core.view().spares.unwrap().trainers, SpareCounts { wanted: 1, ready: 1 });
}

#[test]
fn the_next_attempt_finds_the_shards_at_the_spare() {
    let mut job = started(1, 1);
    job.kill(job.pserver(1));
    job.kill(job.trainer(0));
    let (places, record) = (held(&job), restores(&job));
    let map = |job: &Job| {
        job.records.iter().rev().find_map(|record| match record {
            Record::Restore { holders, .. } => Some(holders.clone()),
            _ => None,
        })
    };
    assert!(map(&job).unwrap().contains(&Slot::pserver(2)));
    let before = members(&job);
    crate::takeover::restart(&mut job, 2);
    for member in job.processes.keys().copied().collect::<Vec<_>>() {
        job.registers(member);
    }
    job.pass(1_000);
    assert_eq!(job.core.view().state, JobState::Running);
    assert_eq!((held(&job), restores(&job)), (places, record), "nothing moves");
    assert_eq!(members(&job), before);
    assert_eq!(job.core.view().spares.unwrap().pservers, SpareCounts { wanted: 1, ready: 1 });
}

#[test]
fn refills_go_to_the_spare_and_leave_the_next_one_idle() {
    let mut copied = with_spares(Consistency::Asp, 1, 0);
    (copied.pservers.count, copied.pservers.shards, copied.pservers.replicas) = (3, 6, 1);
    let mut job = Job::started(copied, 6, 0);
    assert_eq!(held(&job), [4, 4, 4, 0], "no copies on the spare");
    let before = epoch(&job);
    job.kill(job.pserver(0));
    crate::refills::fill_all(&mut job);
    assert_eq!(epoch(&job), before);
    let copies = job.process(job.pserver(3)).shards.len();
    assert!(copies >= 2, "{copies}: refills that wait for its thread go to others");
    let replication = job.core.view().replication.unwrap();
    assert_eq!(replication.under_replicated, 0);
    job.pass(60_000);
    assert_eq!(job.process(job.pserver(0)).shards.len(), 0);
    assert_eq!(job.core.view().spares.unwrap().pservers, SpareCounts { wanted: 1, ready: 1 });
}

#[test]
fn without_spares_the_view_has_none() {
    assert_eq!(Job::bsp().core.view().spares, None);
}
