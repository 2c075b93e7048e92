//! Jobs whose phases read: they take checkpoints as little as they push, and work without pservers.

use heddle_am_core::{ContainerName, OperationId};
use heddle_protocol::control::{Command, Operation, PserverCommand};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::Role;
use heddle_protocol::job_spec::{Consistency, JobKind, JobSpec};
use heddle_protocol::view::JobState;

use crate::harness::{Job, spec};

/// An evaluation by two trainers, with this number of pservers.
fn evaluation(pservers: u32) -> JobSpec {
    let mut spec = spec(Consistency::Bsp);
    (spec.kind, spec.pservers.count) = (JobKind::Evaluate, pservers);
    spec.data.test = spec.data.train.clone();
    spec
}

/// The job ends with the figures of five tasks of ten records each, and without a checkpoint.
fn ends_with_figures_alone(job: &mut Job) {
    job.finish_all();
    let outcome = job.outcome.clone().expect("all tasks are done");
    assert_eq!((outcome.state, outcome.exit_code), (JobState::Finished, ExitCode::Ok));
    assert_eq!(outcome.model, None);
    let evaluations = job.core.view().evaluations;
    assert_eq!(evaluations.iter().map(|scores| scores.rows).collect::<Vec<_>>(), [50]);
    assert!(job.checkpoints.is_empty() && job.calls.is_empty(), "{:?}", job.calls);
    let cut = |command: &Command| matches!(command, Command::Pserver(PserverCommand::Cut(_)));
    assert!(!job.sent.iter().any(|(_, command)| cut(command)));
}

#[test]
fn job_without_tables_asks_for_trainers_alone_and_ends() {
    let mut job = Job::started(evaluation(0), 4, 5);
    assert_eq!(job.core.view().state, JobState::Running);
    assert!(job.processes.keys().all(|member| member.slot.role == Role::Trainer));
    // Time for a checkpoint that would be due.
    job.pass(700_000);
    job.operate(1, Operation::Checkpoint);
    let refused = "no training is under way: there is nothing new to save";
    assert_eq!(job.answers[&OperationId(1)], Err(refused.to_owned()));
    ends_with_figures_alone(&mut job);
}

#[test]
fn job_that_reads_tables_begins_again_after_a_lost_pserver() {
    let mut job = Job::started(evaluation(2), 4, 5);
    let (trainer, first) = (job.trainer(0), job.process(job.trainer(0)).tasks[0]);
    job.finish(trainer, first.task);
    job.kill(job.pserver(1));
    ends_with_figures_alone(&mut job);
}

#[test]
fn stop_with_a_checkpoint_ends_a_job_that_only_reads() {
    for pservers in [0, 2] {
        let mut job = Job::started(evaluation(pservers), 4, 5);
        job.operate(1, Operation::Stop { checkpoint: true });
        let outcome = job.outcome.clone().expect("the job stops at once");
        assert_eq!((outcome.state, outcome.exit_code), (JobState::Stopped, ExitCode::Killed));
        assert_eq!(job.answers[&OperationId(1)], Ok("stopping".to_owned()));
    }
}

#[test]
fn successor_begins_again_where_no_shard_knows_the_phase() {
    let mut job = Job::started(evaluation(0), 4, 5);
    let (trainer, first) = (job.trainer(0), job.process(job.trainer(0)).tasks[0]);
    job.finish(trainer, first.task);
    let kept: Vec<ContainerName> =
        job.processes.values().filter_map(|process| process.container.clone()).collect();
    let mut next = job.successor();
    next.recover(2, 2, kept.clone());
    assert_eq!(next.released, kept, "a process without shards has no state to go on with");
    assert_eq!(next.core.view().tasks_done, 0);
    ends_with_figures_alone(&mut next);
}
