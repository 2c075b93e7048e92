//! A lost pserver is not replaced in time: survivors take its shards and return them. And loads that fail together.

use heddle_am_core::{Event, Record};
use heddle_protocol::control::{
    Command, Operation, PserverCommand, PserverReport, ShardCommand, TrainerCommand,
};
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::{Incarnation, Slot, Term};
use heddle_protocol::job_spec::{Bytes, Consistency, DurationMs, JobSpec, PserverMemory};
use heddle_protocol::view::{JobState, WarningCode};

use crate::failover::{replicated, views_of};
use crate::harness::{Job, spec};

/// Two pservers with just the memory that their own shards need: one cannot hold all of them.
fn full() -> JobSpec {
    let mut full = spec(Consistency::Bsp);
    full.model.features = 15 << 20;
    with_room_for(2, full)
}

/// With the least memory into which this number of shards fits.
fn with_room_for(shards: u32, mut spec: JobSpec) -> JobSpec {
    while PserverMemory::shards_that_fit(&spec, spec.pservers.memory) < shards {
        spec.pservers.memory = Bytes(spec.pservers.memory.0 + (1 << 20));
    }
    assert_eq!(PserverMemory::shards_that_fit(&spec, spec.pservers.memory), shards);
    spec
}

fn save(job: &mut Job) {
    let cut = job.cut();
    job.snap_all(cut, 5);
    job.save_all(cut);
}

#[test]
fn shards_that_exceed_survivors_memory_await_the_replacement() {
    let mut job = Job::started(full(), 4, 0);
    job.auto.cluster = false;
    job.kill(job.pserver(0));
    let epoch = job.core.view().epoch;
    job.pass(600_000);
    let view = job.core.view();
    assert_eq!(view.epoch, epoch, "the map stays");
    assert!(
        view.message.contains("waiting for a container for pserver-0")
            && view.message.contains("pservers.memory"),
        "{}",
        view.message
    );
    assert_eq!(job.process(job.pserver(1)).shards.len(), 2);
    job.grant(Slot::pserver(0), Incarnation(2));
    job.on(Event::Timer);
    assert_eq!(job.core.view().state, JobState::Running);
    assert_eq!(job.process(job.pserver(0)).shards.len(), 2);
}

/// The schedule S52: what is missing is named, and nothing is moved.
#[test]
fn s52_survivors_without_room_take_nothing_without_a_wait() {
    let mut at_once = full();
    at_once.pservers.replacement = DurationMs(0);
    let mut job = Job::started(at_once, 4, 0);
    job.auto.cluster = false;
    job.kill(job.pserver(0));
    let (epoch, records) = (job.core.view().epoch, job.records.len());
    job.pass(60_000);
    assert_eq!((job.core.view().epoch, job.records.len()), (epoch, records), "the map stays");
    let message = job.core.view().message;
    assert!(
        message.contains("waiting for a container for pserver-0")
            && message
                .contains("no room for 2 of its shards; 81 MiB are missing (pservers.memory)"),
        "{message}"
    );
    let warnings = job.warnings(WarningCode::NoRoomForShards);
    assert_eq!(warnings.len(), 1, "once, however often it is looked at");
    job.grant(Slot::pserver(0), Incarnation(2));
    job.on(Event::Timer);
    assert_eq!(job.core.view().state, JobState::Running);
}

#[test]
fn survivors_take_shards_at_once_without_a_wait() {
    let mut at_once = spec(Consistency::Bsp);
    at_once.pservers.replacement = DurationMs(0);
    let mut job = Job::started(at_once, 4, 0);
    job.auto.cluster = false;
    job.kill(job.pserver(0));
    assert_eq!(job.core.view().state, JobState::Running);
    assert_eq!(job.process(job.pserver(1)).shards.len(), 4);
}

/// A node with a pserver and all trainers is lost, and the others have no room for a pserver: its request would get reservations, which
/// keep trainers from the room that there is.
#[test]
fn request_for_a_pserver_without_shards_awaits_the_trainers() {
    let mut job = Job::bsp();
    job.auto.cluster = false;
    for member in [vec![job.pserver(0)], job.trainers()].concat() {
        job.kill(member);
    }
    let asked = |job: &Job, slot: Slot| job.asks.iter().any(|(asked, _)| *asked == slot);
    job.pass(20_000);
    assert!(asked(&job, Slot::pserver(0)), "the job needs it: {:?}", job.asks);
    job.pass(15_000);
    assert_eq!(job.process(job.pserver(1)).shards.len(), 4, "the other one has taken over");
    assert!(!asked(&job, Slot::pserver(0)), "{:?}", job.asks);
    assert!(asked(&job, Slot::trainer(0)) && asked(&job, Slot::trainer(1)), "{:?}", job.asks);
    job.pass(60_000);
    assert!(!asked(&job, Slot::pserver(0)), "{:?}", job.asks);
    for slot in [Slot::trainer(0), Slot::trainer(1)] {
        let asks: Vec<_> = job.asks.iter().filter(|(asked, _)| *asked == slot).copied().collect();
        job.grant(slot, asks[0].1);
        job.on(Event::Timer);
    }
    job.pass(6_000);
    assert!(asked(&job, Slot::pserver(0)), "{:?}", job.asks);
}

/// The schedule S54: one record, one order of work for each trainer, and all survivors take a share.
#[test]
fn s54_hundred_shards_of_a_pserver_are_one_record_and_one_list() {
    let mut many = spec(Consistency::Bsp);
    (many.pservers.count, many.pservers.shards) = (4, 400);
    let mut job = Job::started(many, 4, 0);
    job.auto.cluster = false;
    let is_restore = |record: &&Record| matches!(record, Record::Restore { .. });
    job.kill(job.pserver(3));
    let (from, before) = (job.sent.len(), job.records.iter().filter(is_restore).count());
    job.pass(31_000);
    assert_eq!(job.records.iter().filter(is_restore).count(), before + 1, "one record");
    let mut held: Vec<usize> =
        (0..3).map(|index| job.process(job.pserver(index)).shards.len()).collect();
    held.sort_unstable();
    assert_eq!(held, [133, 133, 134]);
    for trainer in job.trainers() {
        let is_map =
            |command: &&&Command| matches!(command, Command::Trainer(TrainerCommand::Work { .. }));
        let told = job.told(trainer, from);
        assert_eq!(told.iter().filter(is_map).count(), 1, "one list for {trainer}");
    }
    for pserver in (0..3).map(|index| job.pserver(index)) {
        let is_load = |command: &&&Command| {
            matches!(command, Command::Pserver(PserverCommand::LoadShards(_)))
        };
        assert_eq!(job.told(pserver, from).iter().filter(is_load).count(), 1);
    }
}

/// The same with backups: a hundred promotions are one record, their refills another, and each is one list for each receiver.
#[test]
fn s54_hundred_promotions_are_one_record_and_one_list() {
    let mut many = replicated(Consistency::Bsp, 4, 1);
    many.pservers.shards = 400;
    let mut job = Job::started(many, 4, 0);
    job.auto.cluster = false;
    let (from, before) = (job.sent.len(), views_of(&job).len());
    let lost = job.pserver(3);
    job.kill(lost);
    let records = views_of(&job);
    let [promotions, refills] = &records[before..] else { panic!("{} records", records.len()) };
    assert!(refills.iter().all(|view| !view.fills.is_empty()), "the second one orders refills");
    let promoted = promotions.iter().filter(|view| view.term == Term(2));
    assert_eq!(promoted.clone().count(), 100);
    for pserver in (0..3).map(|index| job.pserver(index)) {
        let new = promoted.clone().filter(|view| view.primary == pserver).count();
        assert!((33..=34).contains(&new), "{pserver} serves {new} more");
        let is_list =
            |command: &&&Command| matches!(command, Command::Shards(ShardCommand::Views(_)));
        let lists = job.told(pserver, from).iter().filter(is_list).count();
        assert_eq!(lists, 2, "one for each record");
    }
    for trainer in job.trainers() {
        let is_map =
            |command: &&&Command| matches!(command, Command::Trainer(TrainerCommand::Work { .. }));
        assert_eq!(job.told(trainer, from).iter().filter(is_map).count(), 1, "for {trainer}");
    }
}

#[test]
fn survivors_take_at_most_the_shards_that_fit() {
    let mut three = full();
    three.pservers.count = 3;
    three.pservers.shards = 6;
    // Two of its own and one more.
    let mut job = Job::started(with_room_for(3, three), 4, 0);
    job.auto.cluster = false;
    job.kill(job.pserver(2));
    job.pass(31_000);
    assert_eq!(job.core.view().state, JobState::Running);
    for index in [0, 1] {
        assert_eq!(job.process(job.pserver(index)).shards.len(), 3);
    }
    job.kill(job.pserver(1));
    job.pass(120_000);
    assert_eq!(job.process(job.pserver(0)).shards.len(), 3, "the last one has room for no more");
    assert_eq!(job.core.view().state, JobState::Recovering);
}

#[test]
fn shards_return_to_a_late_replacement_after_a_checkpoint() {
    let mut job = Job::bsp();
    job.auto.cluster = false;
    job.kill(job.pserver(0));
    job.pass(31_000);
    assert_eq!(job.process(job.pserver(1)).shards.len(), 4);
    let before = job.core.view().epoch;
    job.grant(Slot::pserver(0), Incarnation(2));
    job.on(Event::Timer);
    assert_eq!(job.core.view().epoch, before, "nothing is thrown away for it");
    save(&mut job);
    let view = job.core.view();
    assert_eq!(view.epoch, before.next());
    assert_eq!(view.state, JobState::Running);
    for index in [0, 1] {
        assert_eq!(job.process(job.pserver(index)).shards.len(), 2);
    }
    let last = job.records.iter().rev().find_map(|record| match record {
        Record::Restore { base, .. } => Some(*base),
        _ => None,
    });
    assert_eq!(
        last.flatten(),
        job.checkpoints.last().map(|last| last.manifest.cut),
        "from the checkpoint that was just taken"
    );
    job.end_phase(9);
    assert_eq!(job.outcome.map(|outcome| outcome.state), Some(JobState::Finished));
}

#[test]
fn rollback_returns_shards_without_a_checkpoint_of_its_own() {
    let mut three = spec(Consistency::Bsp);
    three.pservers.count = 3;
    three.pservers.shards = 6;
    let mut job = Job::started(three, 4, 0);
    job.auto.cluster = false;
    job.kill(job.pserver(0));
    job.pass(31_000);
    job.auto.store = false;
    job.grant(Slot::pserver(0), Incarnation(2));
    job.on(Event::Timer);
    assert_eq!(job.process(job.pserver(0)).shards.len(), 0);
    job.auto.cluster = true;
    job.kill(job.pserver(1));
    job.pass(1_000);
    for index in 0..3 {
        assert_eq!(job.process(job.pserver(index)).shards.len(), 2);
    }
}

/// One outage of the storage fails the loads of all pservers of an epoch in the same second.
#[test]
fn loads_that_fail_together_are_one_try() {
    let mut many = spec(Consistency::Bsp);
    many.pservers.count = 8;
    many.pservers.shards = 8;
    let mut job = Job::started(many, 4, 0);
    job.operate(1, Operation::Checkpoint);
    save(&mut job);
    job.auto.hold = false;
    job.kill(job.pserver(0));
    for round in 0..5 {
        let epoch = job.core.view().epoch;
        for pserver in job.pservers() {
            job.report(
                pserver,
                PserverReport::LoadFailed {
                    epoch,
                    failure: Failure::new(ErrorClass::Unreachable, "cannot reach the NameNode"),
                },
            );
        }
        assert!(job.outcome.is_none(), "round {round} of five");
        let from = job.sent.len();
        job.pass(64_000);
        let again =
            |command: &Command| matches!(command, Command::Pserver(PserverCommand::LoadShards(_)));
        assert!(job.sent[from..].iter().any(|(_, command)| again(command)));
    }
    job.auto.hold = true;
    for pserver in job.pservers() {
        job.disconnect(pserver);
        job.registers(pserver);
    }
    assert_eq!(job.core.view().state, JobState::Running);
}

#[test]
fn memory_that_a_retry_gave_counts_for_the_shards_that_fit() {
    let spec = full();
    let needed = spec.pservers.memory;
    assert_eq!(PserverMemory::shards_that_fit(&spec, needed), 2);
    assert_eq!(PserverMemory::shards_that_fit(&spec, Bytes(3 * needed.0)), 4);
    assert_eq!(PserverMemory::shards_that_fit(&spec, Bytes::mib(16)), 0);
}
