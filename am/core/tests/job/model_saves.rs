//! Saves of the model that a trainer's program asks for: the election, the lease, losses.

use heddle_am_core::{Record, StoreCall, Stored};
use heddle_protocol::control::{
    Command, ExportFailure, ExportOrder, ExportProgress, ExportedModel, Report, SaveAnswer,
    SaveRequest, TrainerReport,
};
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::{CutId, Generation, Incarnation, Member, SaveLease, SaveNo, Slot};
use heddle_protocol::job_spec::Consistency;
use heddle_protocol::view::{JobEvent, JobState};

use crate::harness::{Job, spec};
use crate::takeover::{held, registers_with, restart};

const BLOCK_MS: u64 = 5_000;
const LEASE_MS: u64 = 60_000;

/// An ASP job of three trainers whose exports are reported by the test.
fn job() -> Job {
    let mut spec = spec(Consistency::Asp);
    spec.trainers.max = 3;
    let mut job = Job::started(spec, 40, 0);
    job.auto.export = false;
    assert_eq!(job.trainers().len(), 3);
    job
}

fn ask_for(job: &mut Job, member: Member, request: u64, block_ms: u64) -> Option<SaveAnswer> {
    let from = job.sent.len();
    job.report(member, Report::SaveModel(SaveRequest { request, block_ms }));
    answer_to(job, from, request)
}

fn answer_to(job: &Job, from: usize, of: u64) -> Option<SaveAnswer> {
    job.sent[from..].iter().find_map(|(_, command)| match command {
        Command::SaveAnswer { request, outcome } if *request == of => Some(outcome.clone()),
        _ => None,
    })
}

pub fn ask(job: &mut Job, member: Member, request: u64) -> SaveAnswer {
    ask_for(job, member, request, BLOCK_MS).expect("an answer")
}

/// Asks, is granted, and the cut becomes a checkpoint.
fn begin(job: &mut Job, member: Member) -> (Member, ExportOrder) {
    let answer = ask(job, member, 1);
    assert_eq!(answer, granted(1));
    commit(job);
    last_order(job)
}

/// The open cut becomes a checkpoint.
pub fn commit(job: &mut Job) {
    let cut = job.cut();
    job.snap_all(cut, 0);
    job.save_all(cut);
    assert_eq!(job.checkpoints.last().map(|last| last.manifest.cut), Some(cut));
}

pub fn granted(save: u32) -> SaveAnswer {
    SaveAnswer::Granted { save: SaveNo(save) }
}

/// All orders to export so far.
pub fn orders(job: &Job) -> Vec<(Member, ExportOrder)> {
    let order = |(member, command): &(Member, Command)| match command {
        Command::Export(order) => Some((*member, order.clone())),
        _ => None,
    };
    job.sent.iter().filter_map(order).collect()
}

fn last_order(job: &Job) -> (Member, ExportOrder) {
    orders(job).pop().expect("an order")
}

fn exported(job: &mut Job, member: Member, lease: SaveLease) {
    let dir = format!("{member}-{lease}");
    job.report(member, Report::Exported(ExportedModel { lease, dir, files: Vec::new() }));
}

/// What the store was asked to publish: the save, and the folder.
fn published(job: &Job) -> Vec<(SaveNo, String)> {
    let publish = |(_, call): &(_, StoreCall)| match call {
        StoreCall::PublishModel { save, model, .. } => Some((*save, model.clone())),
        _ => None,
    };
    job.calls.iter().filter_map(publish).collect()
}

fn saved(job: &Job) -> Vec<SaveNo> {
    let saved = |notice: &JobEvent| match notice {
        JobEvent::ModelSaved { save, .. } => Some(*save),
        _ => None,
    };
    job.notices.iter().filter_map(saved).collect()
}

/// The saves as `heddle status` shows them.
fn shown(job: &Job) -> String {
    job.core.view().model_saves.map(|saves| saves.text()).unwrap_or_default()
}

#[test]
fn granted_save_is_made_from_a_later_cut_and_published_once() {
    let mut job = job();
    let (t0, t1) = (job.trainer(0), job.trainer(1));
    let before = job.checkpoints.last().map(|last| last.manifest.cut).unwrap_or_default();
    assert_eq!(ask(&mut job, t1, 1), granted(1));
    assert_eq!(ask(&mut job, t1, 1), granted(1), "the answer was lost");
    assert_eq!(ask(&mut job, t1, 2), granted(1), "the same trainer");
    let SaveAnswer::Wait { holder, wait_ms } = ask(&mut job, t0, 1) else { panic!("granted") };
    assert_eq!((holder, wait_ms), (t1, BLOCK_MS));
    commit(&mut job);
    let (writer, order) = last_order(&job);
    assert_eq!((writer, order.save), (t1, SaveNo(1)), "the trainer that asked writes it");
    let source = job.checkpoints.last().expect("a checkpoint of its own");
    assert!(source.manifest.cut > before && order.checkpoint == source.dir);
    assert_eq!(shown(&job), "save 1 is written by trainer-1");
    exported(&mut job, t1, order.lease);
    assert_eq!(published(&job).len(), 1);
    assert_eq!(saved(&job), [SaveNo(1)]);
    assert!(shown(&job).starts_with("last published: save 1, "), "{}", shown(&job));
    exported(&mut job, t1, order.lease);
    assert_eq!(published(&job).len(), 1, "once");
    // The block time is over: another trainer is granted the next one.
    job.pass(BLOCK_MS);
    assert_eq!(ask(&mut job, t0, 2), granted(2));
}

#[test]
fn grant_is_sent_when_its_record_is_durable() {
    let mut job = job();
    job.auto.journal = false;
    let t0 = job.trainer(0);
    let from = job.sent.len();
    assert_eq!(ask_for(&mut job, t0, 1, BLOCK_MS), None);
    assert!(matches!(job.records.last(), Some(Record::SaveGranted(_) | Record::Commit { .. })));
    job.all_durable();
    assert_eq!(answer_to(&job, from, 1), Some(granted(1)));
}

#[test]
fn bad_requests_are_refused_and_the_job_goes_on() {
    let mut job = job();
    let t0 = job.trainer(0);
    let refused = |answer: Option<SaveAnswer>, words: &str| match answer {
        Some(SaveAnswer::Refused { reason }) => assert!(reason.contains(words), "{reason}"),
        other => panic!("{words}: {other:?}"),
    };
    refused(ask_for(&mut job, t0, 1, 0), "must be from 1 ms to 1 h (got 0 ms)");
    refused(ask_for(&mut job, t0, 2, 3_600_001), "must be from 1 ms to 1 h");
    let p0 = job.pserver(0);
    refused(ask_for(&mut job, p0, 3, BLOCK_MS), "is not a member of the job");
    // A trainer that leaves.
    job.operate(
        1,
        heddle_protocol::control::Operation::Scale { trainers: Some(2), pservers: None },
    );
    let t2 = job.trainer(2);
    refused(ask_for(&mut job, t2, 1, BLOCK_MS), "is not a member of the job");
    assert_eq!(job.core.view().state, JobState::Running);
    assert!(orders(&job).is_empty());
    // Reports on a connection of a container that was given up are ignored.
    job.kill(t0);
    assert_eq!(ask_for(&mut job, t0, 9, BLOCK_MS), None);
}

#[test]
fn job_without_output_refuses_saves() {
    let mut config = job().config;
    config.output = None;
    let mut job = Job::with(config);
    job.start();
    let t0 = job.trainer(0);
    let SaveAnswer::Refused { reason } = ask(&mut job, t0, 1) else { panic!("granted") };
    assert!(reason.contains("output.model"), "{reason}");
}

#[test]
fn s44_stopped_saver_that_wakes_publishes_nothing() {
    let mut job = job();
    let t1 = job.trainer(1);
    let (first, order) = begin(&mut job, t1);
    assert_eq!(first, t1);
    job.pass(LEASE_MS - 1);
    assert_eq!(orders(&job).len(), 1, "the lease holds");
    job.pass(3_000);
    let (second, next) = last_order(&job);
    assert_ne!(second, first);
    assert!(next.lease > order.lease);
    assert!(job.warned("has made no progress with it for 1min"), "{:?}", job.notices);
    // It wakes.
    exported(&mut job, first, order.lease);
    assert!(published(&job).is_empty(), "its lease is over");
    exported(&mut job, second, next.lease);
    let folder = format!("{second}-{}", next.lease);
    assert_eq!(published(&job), [(SaveNo(1), folder)]);
    exported(&mut job, first, order.lease);
    assert_eq!((published(&job).len(), saved(&job)), (1, vec![SaveNo(1)]));
}

#[test]
fn s44_next_attempt_elects_when_saver_and_master_end_together() {
    let mut job = job();
    let t1 = job.trainer(1);
    let (_, order) = begin(&mut job, t1);
    let mut next = job.successor();
    next.auto.export = false;
    next.recover(2, 2, Vec::new());
    let (second, anew) = last_order(&next);
    assert_eq!(anew.save, SaveNo(1));
    assert!(anew.lease > order.lease, "a lease of a later generation");
    // A report of the first writer, which the new attempt has never ordered.
    exported(&mut next, second, order.lease);
    assert!(published(&next).is_empty());
    exported(&mut next, second, anew.lease);
    assert_eq!(saved(&next), [SaveNo(1)]);
    let before = shown(&next);
    // And once more, after it is over: nothing is written again.
    let mut third = next.successor();
    third.auto.export = false;
    third.recover(3, 3, Vec::new());
    assert!(orders(&third).is_empty());
    assert_eq!((before.is_empty(), shown(&third)), (false, before));
}

#[test]
fn save_of_an_earlier_attempt_needs_an_output_directory() {
    let mut job = job();
    let t1 = job.trainer(1);
    begin(&mut job, t1);
    job.config.output = None;
    let mut next = job.successor();
    next.recover(2, 2, Vec::new());
    assert!(next.warned("no output.model any more"), "{:?}", next.notices);
    assert!(orders(&next).is_empty());
}

#[test]
fn s45_save_goes_on_when_the_granted_trainer_ends_first() {
    let mut job = job();
    // Its cut stays open.
    job.auto.barrier = false;
    let (t0, t1, t2) = (job.trainer(0), job.trainer(1), job.trainer(2));
    assert_eq!(ask(&mut job, t0, 1), granted(1));
    assert!(matches!(ask(&mut job, t1, 1), SaveAnswer::Wait { .. }), "in the same millisecond");
    job.auto.barrier = true;
    job.kill(t0);
    assert!(matches!(ask(&mut job, t2, 1), SaveAnswer::Wait { .. }), "within the block time");
    // The cut without the lost trainer is committed: another one writes.
    for member in [t1, t2] {
        let (cut, epoch, tasks) = (job.cut(), job.process(member).epoch, Vec::new());
        job.report(member, TrainerReport::AtBarrier { cut, epoch, tasks });
    }
    commit(&mut job);
    let (writer, order) = last_order(&job);
    assert_ne!(writer, t0);
    exported(&mut job, writer, order.lease);
    assert_eq!(saved(&job), [SaveNo(1)]);
    job.pass(BLOCK_MS);
    assert_eq!(ask(&mut job, t2, 2), granted(2));
}

#[test]
fn lost_saver_is_replaced_twice() {
    let mut job = job();
    let t0 = job.trainer(0);
    begin(&mut job, t0);
    let mut leases = Vec::new();
    for _ in 0..2 {
        let (writer, order) = last_order(&job);
        leases.push(order.lease);
        job.kill(writer);
    }
    let (writer, order) = last_order(&job);
    leases.push(order.lease);
    assert!(leases.is_sorted() && leases.len() == 3);
    exported(&mut job, writer, order.lease);
    assert_eq!(saved(&job), [SaveNo(1)]);
}

#[test]
fn lease_is_renewed_while_bytes_grow() {
    let mut job = job();
    let t0 = job.trainer(0);
    let (writer, order) = begin(&mut job, t0);
    for bytes in 1..5 {
        job.pass(LEASE_MS - 5_000);
        let progress = ExportProgress { lease: order.lease, bytes };
        job.beat(writer, |beat| beat.export = Some(Box::new(progress)));
    }
    assert_eq!(orders(&job).len(), 1);
    // It stands still: heartbeats with the same number of bytes renew nothing.
    for _ in 0..4 {
        job.pass(LEASE_MS / 4);
        let progress = ExportProgress { lease: order.lease, bytes: 4 };
        job.beat(writer, |beat| beat.export = Some(Box::new(progress)));
    }
    job.pass(3_000);
    assert_eq!(orders(&job).len(), 2);
}

#[test]
fn saver_that_reconnects_is_ordered_again() {
    let mut job = job();
    let t0 = job.trainer(0);
    let (writer, order) = begin(&mut job, t0);
    job.disconnect(writer);
    job.registers(writer);
    assert_eq!(last_order(&job), (writer, order));
    assert_eq!(orders(&job).len(), 2);
}

#[test]
fn save_that_keeps_failing_is_given_up_and_the_job_goes_on() {
    let mut job = job();
    let t0 = job.trainer(0);
    begin(&mut job, t0);
    for _ in 0..5 {
        let (writer, order) = last_order(&job);
        let failure = Failure::new(ErrorClass::Denied, "no space left");
        let failed = ExportFailure { lease: order.lease, failure };
        job.report(writer, Report::ExportFailed(failed));
        job.pass(64_000);
    }
    assert!(job.warned("save 1 of the model is given up"), "{:?}", job.notices);
    assert_eq!(job.core.view().state, JobState::Running);
    assert!(matches!(job.records.last(), Some(Record::SaveEnded { model: None, .. })));
    let t1 = job.trainer(1);
    assert_eq!(ask(&mut job, t1, 1), granted(2));
}

#[test]
fn name_that_is_taken_gives_the_save_up() {
    let mut job = job();
    let t0 = job.trainer(0);
    let (writer, order) = begin(&mut job, t0);
    job.auto.store = false;
    exported(&mut job, writer, order.lease);
    job.answer_store(Stored::Taken { error: "/out/save-1/MODEL.json exists already".to_owned() });
    assert!(job.warned("save-1/MODEL.json exists already"), "{:?}", job.notices);
    assert_eq!(job.core.view().state, JobState::Running);
}

#[test]
fn damaged_checkpoint_of_a_save_is_followed_by_another_cut() {
    let mut job = job();
    let t0 = job.trainer(0);
    let (writer, order) = begin(&mut job, t0);
    let failure = Failure::new(ErrorClass::Corrupt, "wrong sum");
    job.report(writer, Report::ExportFailed(ExportFailure { lease: order.lease, failure }));
    job.pass(2_000);
    commit(&mut job);
    let (writer, next) = last_order(&job);
    assert_ne!(next.checkpoint, order.checkpoint);
    exported(&mut job, writer, next.lease);
    assert_eq!(saved(&job), [SaveNo(1)]);
}

#[test]
fn rollback_while_the_cut_is_open_only_delays_the_save() {
    let mut job = job();
    job.auto.barrier = false;
    let t0 = job.trainer(0);
    ask(&mut job, t0, 1);
    job.auto.barrier = true;
    let p0 = job.pserver(0);
    job.kill(p0);
    job.pass(3_000);
    commit(&mut job);
    let (writer, order) = last_order(&job);
    exported(&mut job, writer, order.lease);
    assert_eq!(saved(&job), [SaveNo(1)]);
    assert!(!job.warned("given up: no checkpoint"), "{:?}", job.notices);
}

#[test]
fn checkpoint_of_a_save_is_not_removed_meanwhile() {
    let mut job = job();
    let t0 = job.trainer(0);
    begin(&mut job, t0);
    let source = job.checkpoints.last().expect("committed").manifest.cut;
    let held = |job: &Job| {
        job.calls.iter().rev().find_map(|(_, call)| match call {
            StoreCall::Retain { held, .. } => Some(*held),
            _ => None,
        })
    };
    for id in 1..6 {
        job.operate(id, heddle_protocol::control::Operation::Checkpoint);
        commit(&mut job);
    }
    assert_eq!(held(&job), Some(Some(source)));
    let (writer, order) = last_order(&job);
    exported(&mut job, writer, order.lease);
    job.operate(9, heddle_protocol::control::Operation::Checkpoint);
    commit(&mut job);
    assert_eq!(held(&job), Some(None));
}

#[test]
fn end_of_the_job_waits_for_its_save_and_refuses_others() {
    let mut job = job();
    let (t0, t1) = (job.trainer(0), job.trainer(1));
    ask(&mut job, t0, 1);
    job.finish_all();
    assert_eq!(job.core.view().state, JobState::Finishing);
    let save = last_order(&job);
    assert_eq!(save.1.save, SaveNo(1), "the save first");
    job.pass(BLOCK_MS);
    let refused = ask(&mut job, t1, 1);
    assert!(matches!(refused, SaveAnswer::Wait { .. }), "{refused:?}");
    exported(&mut job, save.0, save.1.lease);
    let (writer, order) = last_order(&job);
    assert_eq!(order.save, SaveNo(0));
    assert!(matches!(ask(&mut job, t1, 2), SaveAnswer::Refused { .. }), "training is over");
    exported(&mut job, writer, order.lease);
    let saves: Vec<SaveNo> = published(&job).into_iter().map(|(save, _)| save).collect();
    assert_eq!(saves, [SaveNo(1), SaveNo(0)]);
    assert_eq!(job.outcome.as_ref().map(|outcome| outcome.state), Some(JobState::Finished));
}

#[test]
fn lease_of_the_last_model_lapses_as_well() {
    let mut job = job();
    job.finish_all();
    let (first, order) = last_order(&job);
    assert_eq!(order.save, SaveNo(0));
    job.pass(LEASE_MS + 3_000);
    let (second, next) = last_order(&job);
    assert!(second != first && next.lease > order.lease);
    exported(&mut job, first, order.lease);
    assert!(job.outcome.is_none());
    exported(&mut job, second, next.lease);
    assert_eq!(job.outcome.as_ref().map(|outcome| outcome.state), Some(JobState::Finished));
}

/// A request of a trainer whose successor has its slot.
#[test]
fn successor_of_the_asker_is_another_trainer() {
    let mut job = job();
    let t0 = job.trainer(0);
    ask(&mut job, t0, 1);
    job.kill(t0);
    job.pass(3_000);
    let successor = job.trainer(0);
    assert_eq!(successor.slot, Slot::trainer(0));
    assert!(successor.incarnation > Incarnation(1));
    assert!(matches!(ask(&mut job, successor, 1), SaveAnswer::Wait { .. }));
    assert_ne!(job.checkpoints.last().expect("one").manifest.cut, CutId::default());
}

/// The shards are where they ended, before the phase of the checkpoint. Another cut would hold the same again.
#[test]
fn save_that_is_asked_for_during_the_last_cut_is_made_from_it() {
    let mut job = Job::bsp();
    (job.auto.export, job.auto.save) = (false, false);
    let phase = job.core.view().phase;
    job.end_phase(9);
    let t0 = job.trainer(0);
    assert_eq!(ask(&mut job, t0, 1), granted(1));
    let last = job.cut();
    job.save_all(last);
    assert_eq!(job.checkpoints.last().map(|it| it.manifest.cut), Some(last));
    let (epoch, members) = (job.core.view().epoch, [job.pserver(0), job.pserver(1)]);
    restart(&mut job, 2);
    for member in members {
        let shards: Vec<u32> = job.process(member).shards.iter().map(|it| it.0).collect();
        let state = held(epoch, phase.0, &shards, |_| (9, true, Vec::new()));
        registers_with(&mut job, member, Some(state), None);
    }
    for member in [job.trainer(0), job.trainer(1)] {
        job.registers(member);
    }
    let (_, order) = last_order(&job);
    assert_eq!((order.save, order.lease.generation), (SaveNo(1), Generation(2)));
    assert_eq!(order.checkpoint, job.checkpoints.last().expect("the last").dir);
    assert!(!job.calls.iter().any(|(_, call)| matches!(call, StoreCall::Stage { .. })));
}
