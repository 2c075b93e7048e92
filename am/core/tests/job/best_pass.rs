//! `training.keep = "best"`: the model of the best pass comes out, through failures of the store, rollbacks and losses of
//! the ApplicationMaster.

use heddle_am_core::{StoreCall, Stored};
use heddle_protocol::control::{Command, ExportFailure, PserverReport, Report};
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::{CutId, Member, PhaseNo, SaveLease};
use heddle_protocol::job_spec::{Consistency, Every, KeptPass};
use heddle_protocol::view::JobState;

use crate::early_stop::{begins, evaluate};
use crate::harness::{Job, spec};

/// A job of four passes, with early stop of six, without periodic checkpoints.
fn job(early_stop: u32) -> Job {
    job_with(early_stop, Every::Passes(100))
}

fn job_with(early_stop: u32, every: Every) -> Job {
    let mut spec = spec(Consistency::Bsp);
    spec.data.test = spec.data.train.clone();
    spec.data.passes = if early_stop > 0 { 6 } else { 4 };
    spec.training.early_stop = early_stop;
    spec.training.keep = KeptPass::Best;
    spec.checkpoint.every = every;
    Job::started(spec, 4, 2)
}

fn pass_with(job: &mut Job, loss: f64) {
    job.end_phase(3);
    evaluate(job, loss);
}

/// Folder of the checkpoint that a trainer was ordered to export last.
fn exported(job: &Job) -> Option<String> {
    job.sent.iter().rev().find_map(|(_, command)| match command {
        Command::Export(order) => Some(order.checkpoint.clone()),
        _ => None,
    })
}

/// The trainer that was ordered to export last, and its lease.
fn writer(job: &Job) -> (Member, SaveLease) {
    let order = |(member, command): &(Member, Command)| match command {
        Command::Export(order) => Some((*member, order.lease)),
        _ => None,
    };
    job.sent.iter().rev().find_map(order).expect("ordered")
}

/// The checkpoint of the best pass.
fn best(job: &Job, pass: u32) -> (CutId, String) {
    let is_best = |manifest: &heddle_protocol::manifest::Manifest| manifest.best_pass == Some(pass);
    let found = job.checkpoints.iter().find(|checkpoint| is_best(&checkpoint.manifest));
    let found = found.unwrap_or_else(|| panic!("no checkpoint of pass {pass}"));
    (found.manifest.cut, found.dir.clone())
}

#[test]
fn model_is_that_of_the_pass_with_the_lowest_loss() {
    let mut job = job(0);
    for loss in [0.5, 0.4, 0.45, 0.41] {
        pass_with(&mut job, loss);
    }
    assert_eq!(job.outcome.as_ref().map(|outcome| outcome.state), Some(JobState::Finished));
    let (cut, dir) = best(&job, 1);
    assert_eq!(exported(&job), Some(dir));
    assert_eq!(job.core.view().kept_pass, Some(1));
    let marks: Vec<_> = job.checkpoints.iter().map(|one| one.manifest.best_pass).collect();
    assert_eq!(marks, [None, Some(0), Some(1), None], "the first step, two best passes, the end");
    let last_retain = job.calls.iter().rev().find_map(|(_, call)| match call {
        StoreCall::Retain { best, .. } => Some(*best),
        _ => None,
    });
    assert_eq!(last_retain, Some(Some(cut)), "it is not removed");
    let published = |call: &StoreCall| match call {
        StoreCall::PublishModel { checkpoint, .. } => Some(*checkpoint),
        _ => None,
    };
    assert_eq!(job.calls.iter().find_map(|(_, call)| published(call)), Some(cut));
}

#[test]
fn early_stop_names_the_kept_pass() {
    let mut job = job(2);
    for loss in [0.5, 0.4, 0.45, 0.41] {
        pass_with(&mut job, loss);
    }
    assert!(job.warned("the model is that of pass 2, with 0.4000"), "{:?}", job.notices);
    assert_eq!(exported(&job), Some(best(&job, 1).1));
}

#[test]
fn last_pass_that_is_best_needs_no_checkpoint_of_its_own() {
    let mut job = job(0);
    for loss in [0.5, 0.6, 0.6, 0.4] {
        pass_with(&mut job, loss);
    }
    let marks: Vec<_> = job.checkpoints.iter().map(|one| one.manifest.best_pass).collect();
    assert_eq!(marks, [None, Some(0), Some(3)]);
    assert_eq!(exported(&job), Some(best(&job, 3).1));
}

/// The values of the best pass are gone with the first step of the next one.
#[test]
fn next_pass_waits_until_the_best_one_is_saved() {
    let mut job = job(0);
    job.end_phase(3);
    job.auto.store = false;
    let from = job.sent.len();
    evaluate(&mut job, 0.5);
    job.answer_store(Stored::Staged("file:///staging".to_owned()));
    assert_eq!(begins(&job, from), [], "its commit is under way");
    for _ in 0..2 {
        let failure = Failure::new(ErrorClass::Unreachable, "safe mode");
        let Some((call, StoreCall::Commit { .. })) = job.calls.last().cloned() else {
            panic!("{:?}", job.calls.last())
        };
        job.on(heddle_am_core::Event::Stored { call, outcome: Stored::NotDone { failure } });
        job.pass(60_000);
        assert_eq!(begins(&job, from), []);
    }
    job.auto.store = true;
    let (call, _) = job.calls.last().expect("it is tried again").clone();
    job.store(call);
    job.pass(1_000);
    assert_eq!(begins(&job, from), [PhaseNo(2)]);
}

/// A periodic cut whose directory cannot be made holds the job up for some seconds only, but not if the best pass waits for it.
#[test]
fn staging_of_another_cut_does_not_release_the_best_pass() {
    let mut job = job_with(0, Every::Passes(1));
    job.auto.store = false;
    job.end_phase(3);
    job.pass(6_000);
    let from = job.sent.len();
    evaluate(&mut job, 0.5);
    job.pass(1_000);
    assert_eq!(begins(&job, from), []);
    job.auto.store = true;
    let (call, staging) = job.calls.last().expect("the directory").clone();
    assert!(matches!(staging, StoreCall::Stage { .. }), "{staging:?}");
    job.store(call);
    job.pass(1_000);
    assert_eq!(begins(&job, from), [PhaseNo(2)]);
    best(&job, 0);
}

#[test]
fn cut_of_the_best_pass_that_fails_is_taken_again() {
    let mut job = job(0);
    job.end_phase(3);
    job.auto.save = false;
    let from = job.sent.len();
    evaluate(&mut job, 0.5);
    let cut = job.cut();
    let member = job.pserver(0);
    let process = job.process(member).clone();
    job.report(
        member,
        PserverReport::SaveFailed {
            cut,
            epoch: process.epoch,
            shard: process.shards[0],
            failure: Failure::new(ErrorClass::Unreachable, "no DataNode"),
        },
    );
    assert_eq!(begins(&job, from), []);
    job.auto.save = true;
    job.pass(120_000);
    assert_eq!(begins(&job, from), [PhaseNo(2)]);
    assert!(best(&job, 0).0 > cut);
}

#[test]
fn rollback_and_takeover_keep_the_best_pass() {
    let mut job = job(0);
    pass_with(&mut job, 0.4);
    pass_with(&mut job, 0.5);
    job.kill(job.pserver(0));
    // The second pass is trained again.
    pass_with(&mut job, 0.5);
    let mut next = job.successor();
    next.recover(2, 2, Vec::new());
    assert_eq!(next.core.view().kept_pass, Some(0));
    for loss in [0.5, 0.45, 0.41] {
        pass_with(&mut next, loss);
    }
    assert!(next.outcome.is_some());
    assert_eq!(exported(&next), Some(best(&next, 0).1));
}

/// The checkpoint cannot be exported any more: a model that is worse is better than none.
#[test]
fn damaged_best_checkpoint_leads_to_the_last_model() {
    let mut job = job(0);
    job.auto.export = false;
    for loss in [0.4, 0.5, 0.5, 0.5] {
        pass_with(&mut job, loss);
    }
    let checkpoint = exported(&job).expect("ordered");
    assert_eq!(checkpoint, best(&job, 0).1);
    job.auto.export = true;
    let failure = Failure::new(ErrorClass::Corrupt, "wrong sum");
    let (writer, lease) = writer(&job);
    job.report(writer, Report::ExportFailed(ExportFailure { lease, failure }));
    assert!(job.warned("the model is that of the last pass"), "{:?}", job.notices);
    assert_eq!(exported(&job), job.checkpoints.last().map(|last| last.dir.clone()));
    assert_eq!(job.core.view().kept_pass, None);
    assert_eq!(job.outcome.as_ref().map(|outcome| outcome.state), Some(JobState::Finished));
}
