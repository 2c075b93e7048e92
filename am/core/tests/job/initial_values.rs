//! The first checkpoint of a job has its initial values and no files, unless it has something to save.

use std::path::Path;

use heddle_am_core::Stored;
use heddle_protocol::control::{
    Base, Command, LoadShards, Operation, PserverCommand, PserverReport, TakeCut,
};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::{CutId, Generation, PhaseNo};
use heddle_protocol::job_spec::{Consistency, Location};
use heddle_protocol::manifest::Manifest;

use crate::failover::replicated;
use crate::harness::{Job, spec};
use crate::model_saves::{ask, commit, granted, orders};

/// Version, whether it has initial values, and the number of shards with files.
fn kind(manifest: &Manifest) -> (u32, bool, usize) {
    (manifest.format_version, manifest.initial, manifest.shards.len())
}

fn checkpoints(job: &Job) -> Vec<(u32, bool, usize)> {
    job.checkpoints.iter().map(|checkpoint| kind(&checkpoint.manifest)).collect()
}

/// The orders of a cut.
fn ordered(job: &Job, number: u32) -> Vec<TakeCut> {
    let order = |command: &Command| match command {
        Command::Pserver(PserverCommand::Cut(order)) if order.cut.number == number => {
            Some(order.clone())
        }
        _ => None,
    };
    job.sent.iter().filter_map(|(_, command)| order(command)).collect()
}

fn bases(job: &Job, from: usize) -> Vec<Base> {
    let base = |command: &Command| match command {
        Command::Pserver(PserverCommand::LoadShards(LoadShards { base, .. })) => base.clone(),
        _ => None,
    };
    job.sent[from..].iter().filter_map(|(_, command)| base(command)).collect()
}

fn checkpoint_now(job: &mut Job) {
    job.operate(1, Operation::Checkpoint);
    commit(job);
}

#[test]
fn the_first_checkpoint_has_no_files_and_a_later_one_has() {
    for consistency in [Consistency::Bsp, Consistency::Asp] {
        let mut job = Job::started(spec(consistency), 40, 0);
        assert_eq!(checkpoints(&job), [(3, true, 0)]);
        assert!(ordered(&job, 1).iter().all(|order| order.initial));
        if consistency == Consistency::Bsp {
            continue;
        }
        checkpoint_now(&mut job);
        assert_eq!(checkpoints(&job), [(3, true, 0), (2, false, 4)]);
        assert!(ordered(&job, 2).iter().all(|order| !order.initial));
    }
}

/// A quota, a permission, a full disk: what is found before the first step is not found at the end of all training.
#[test]
fn first_checkpoint_that_is_denied_ends_the_job() {
    for (class, expected) in [
        (ErrorClass::Denied, Some(ExitCode::Denied)),
        (ErrorClass::Unreachable, None),
        (ErrorClass::Internal, None),
    ] {
        for is_staged in [false, true] {
            let mut job = Job::new(spec(Consistency::Bsp), 4, 0);
            (job.auto.store, job.auto.save) = (is_staged, false);
            job.start();
            let failure = Failure::new(class, "quota exceeded; request a larger quota");
            if is_staged {
                let (cut, p0) = (job.cut(), job.pserver(0));
                let (epoch, shard) = (job.process(p0).epoch, job.process(p0).shards[0]);
                job.report(p0, PserverReport::SaveFailed { cut, epoch, shard, failure });
            } else {
                job.answer_store(Stored::NotDone { failure });
            }
            let outcome = job.outcome.as_ref().map(|outcome| outcome.exit_code);
            assert_eq!(outcome, expected, "{class:?}, {is_staged}");
            let message = job.core.view().message;
            assert_eq!(message.contains("request a larger quota"), expected.is_some(), "{message}");
        }
    }
}

#[test]
fn no_copy_of_initial_values_is_awaited() {
    let mut copied = replicated(Consistency::Bsp, 2, 1);
    copied.checkpoint.copies = 2;
    let job = Job::started(copied, 4, 0);
    assert_eq!(checkpoints(&job), [(3, true, 0)]);
    assert!(ordered(&job, 1).iter().all(|order| order.copies.is_empty()));
    assert!(!job.warned("fewer than"));
}

#[test]
fn inherited_and_measured_values_are_saved() {
    let mut inherits = spec(Consistency::Asp);
    inherits.model.init = Location::resolve("/other/g1-c4", Path::new("/")).ok();
    assert_eq!(checkpoints(&Job::started(inherits, 4, 0)), [(2, false, 4)]);

    let mut measures = spec(Consistency::Asp);
    measures.model.standardise = true;
    let mut job = Job::started(measures, 4, 0);
    assert_eq!(checkpoints(&job), [(3, true, 0)]);
    job.finish_all();
    let all: Vec<_> =
        job.checkpoints.iter().map(|it| (it.manifest.phase, kind(&it.manifest))).collect();
    assert_eq!(all[1], (PhaseNo(2), (2, false, 4)), "after both measurements");
}

#[test]
fn a_rollback_to_initial_values_names_no_file() {
    let mut job = Job::asp(40);
    let from = job.sent.len();
    job.kill(job.pserver(0));
    let loaded = bases(&job, from);
    assert_eq!(loaded.len(), 2);
    assert!(loaded.iter().all(|base| base.initial && base.files.is_empty()), "{loaded:?}");
    checkpoint_now(&mut job);
    let from = job.sent.len();
    job.kill(job.pserver(0));
    let loaded = bases(&job, from);
    assert!(loaded.iter().all(|base| !base.initial && base.files.len() == 2), "{loaded:?}");
}

/// An attempt that finds no checkpoint and a save that is not over saves the model after the first step.
#[test]
fn no_model_is_saved_from_initial_values() {
    let mut before = Job::asp(40);
    let trainer = before.trainer(0);
    assert_eq!(ask(&mut before, trainer, 1), granted(1));
    let mut job = before.successor();
    job.checkpoints.clear();
    job.recover(2, 2, Vec::new());
    let cut = |number| CutId { generation: Generation(2), number };
    assert_eq!(job.checkpoints[0].manifest.cut, cut(1));
    assert!(job.checkpoints[0].manifest.initial && orders(&job).is_empty());
    commit(&mut job);
    assert_eq!(job.checkpoints[1].manifest.cut, cut(2));
    let (_, order) = orders(&job).pop().expect("an order");
    assert!(order.checkpoint.ends_with(&cut(2).to_string()), "{}", order.checkpoint);
}
