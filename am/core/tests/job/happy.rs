//! Jobs without a failure.

use heddle_am_core::{Event, Record, RecordId, StoreCall};
use heddle_protocol::control::{Command, CutAt, Operation, ShardCommand, TrainerCommand};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::{Epoch, Generation, Lane, PhaseNo, Step, TaskId};
use heddle_protocol::job_spec::{Consistency, DurationMs, Every};
use heddle_protocol::view::{JobEvent as Notice, JobState};

use crate::harness::{Job, lanes_of, spec};

#[test]
fn bsp_job_runs_from_the_first_request_to_the_model() {
    let mut job = Job::bsp();
    assert_eq!(job.core.view().state, JobState::Running);
    assert_eq!(job.checkpoints.len(), 1, "checkpoint 0 precedes the first step");
    assert_eq!(lanes_of(&job, job.trainer(0)), [Lane(0)]);
    assert_eq!(lanes_of(&job, job.trainer(1)), [Lane(1)]);
    job.end_phase(7);
    assert_eq!(
        job.cut_at(),
        CutAt::Steps(Step(7)),
        "the final cut is taken where all shards stand"
    );
    let outcome = job.outcome.clone().unwrap();
    assert_eq!((outcome.state, outcome.exit_code), (JobState::Finished, ExitCode::Ok));
    assert_eq!(outcome.model.as_deref(), Some("file:///out"));
    let last = &job.checkpoints.last().unwrap().manifest;
    assert_eq!(last.phase, PhaseNo(1), "it stands behind the last phase");
    assert!(matches!(job.records.last(), Some(Record::Outcome(_))));
    assert!(matches!(job.notices.last(), Some(Notice::Ended { .. })));
}

#[test]
fn asp_job_dispatches_every_task_once_and_ends() {
    let mut job = Job::asp(7);
    job.finish_all();
    assert_eq!(job.outcome.as_ref().unwrap().state, JobState::Finished);
    let mut tasks: Vec<TaskId> = job
        .sent
        .iter()
        .filter_map(|(_, command)| match command {
            Command::Trainer(TrainerCommand::Tasks { tasks, .. }) => {
                Some(tasks.iter().map(|grant| grant.task))
            }
            _ => None,
        })
        .flatten()
        .collect();
    tasks.sort();
    tasks.dedup();
    assert_eq!(tasks, (0..7).map(TaskId).collect::<Vec<_>>());
}

#[test]
fn phases_follow_each_other_through_begin_and_begun() {
    let mut spec = spec(Consistency::Bsp);
    spec.data.passes = 2;
    spec.model.standardise = true;
    spec.data.test = spec.data.train.clone();
    let mut job = Job::started(spec, 4, 3);
    let mut phases = Vec::new();
    while job.outcome.is_none() {
        let phase = job.core.view().phase.0;
        phases.push(phase);
        assert!(phases.len() < 10, "{phases:?}");
        if matches!(phase, 3 | 5) {
            job.finish_all();
        } else {
            job.end_phase(3);
        }
    }
    assert_eq!(phases, [0, 1, 2, 3, 4, 5], "two measurements, then pass and evaluation, twice");
    let view = job.core.view();
    assert_eq!(view.evaluations.len(), 2);
    assert_eq!((view.evaluations[1].pass, view.evaluations[1].rows), (1, 30));
    let cuts: Vec<PhaseNo> =
        job.checkpoints.iter().map(|checkpoint| checkpoint.manifest.phase).collect();
    assert_eq!(
        cuts,
        [PhaseNo(0), PhaseNo(2), PhaseNo(6)],
        "before measuring, before training, at the end"
    );
    assert_eq!(job.checkpoints[2].manifest.evaluations.len(), 2);
}

#[test]
fn checkpoint_of_every_second_pass_is_cut_between_phases() {
    let mut spec = spec(Consistency::Bsp);
    spec.data.passes = 4;
    spec.checkpoint.every = Every::Passes(2);
    let mut job = Job::started(spec, 4, 0);
    for _ in 0..4 {
        job.end_phase(3);
    }
    let phases: Vec<PhaseNo> =
        job.checkpoints.iter().map(|checkpoint| checkpoint.manifest.phase).collect();
    assert_eq!(phases, [PhaseNo(0), PhaseNo(2), PhaseNo(4)]);
    assert_eq!(job.core.view().checkpoints_taken, 3);
    assert!(job.outcome.is_some());
}

#[test]
fn timed_cut_of_a_bsp_job_names_a_step_ahead() {
    let mut spec = spec(Consistency::Bsp);
    spec.checkpoint.every = Every::Time(DurationMs::secs(10));
    let mut job = Job::started(spec, 4, 0);
    for member in job.pservers() {
        job.processes.get_mut(&member).unwrap().step = Step(50);
    }
    job.pass(10_000);
    let CutAt::Steps(step) = job.cut_at() else { panic!("a BSP cut names a step") };
    assert!(step > Step(50), "{step}");
    let cut = job.cut();
    job.snap_all(cut, step.0);
    job.save_all(cut);
    assert_eq!(job.checkpoints.last().unwrap().manifest.step(), step);
    assert!(job.calls.iter().any(|(_, call)| matches!(call, StoreCall::Retain { keep: 3, .. })));
    let committed = |(_, command): &&(_, Command)| match command {
        Command::Shards(ShardCommand::CutEnd(end)) => end.cut == cut && end.committed,
        _ => false,
    };
    assert_eq!(job.sent.iter().filter(committed).count(), 2, "both pservers may keep the snapshot");
}

#[test]
fn cut_of_an_asp_job_holds_the_queue_of_the_barriers() {
    let mut job = Job::asp(20);
    let (t0, t1) = (job.trainer(0), job.trainer(1));
    let first = job.process(t0).tasks[0];
    job.finish(t0, first.task);
    job.auto.barrier = false;
    job.operate(1, Operation::Checkpoint);
    let cut = job.cut();
    assert_eq!(job.cut_at(), CutAt::Barriers(vec![t0, t1]));
    let second = job.process(t0).tasks[0];
    job.finish(t0, second.task);
    assert!(job.checkpoints.len() == 1);
    for member in [t0, t1] {
        let process = job.processes.get_mut(&member).unwrap();
        process.cut = cut;
        let (epoch, tasks) = (process.epoch, process.positions());
        job.report(
            member,
            heddle_protocol::control::Report::Trainer(
                heddle_protocol::control::TrainerReport::AtBarrier { cut, epoch, tasks },
            ),
        );
    }
    let third = job.process(t0).tasks[0];
    job.finish(t0, third.task);
    job.snap_all(cut, 0);
    job.save_all(cut);
    let manifest = &job.checkpoints.last().unwrap().manifest;
    let heddle_protocol::manifest::Work::Queue { tasks } = &manifest.work else {
        panic!("ASP has a queue")
    };
    let done: Vec<TaskId> = tasks.iter().map(|queued| queued.task).collect();
    assert_eq!(
        done,
        [first.task, second.task],
        "finished before the barrier, not what came after it"
    );
    assert!(job.answers[&heddle_am_core::OperationId(1)].is_ok());
}

#[test]
fn first_epoch_is_the_first_of_the_generation() {
    let job = Job::bsp();
    assert_eq!(job.core.view().epoch, Epoch::first(Generation(1)));
}

#[test]
fn evaluations_without_progress_end_the_job_early() {
    let mut spec = spec(Consistency::Bsp);
    spec.data.passes = 10;
    spec.data.test = spec.data.train.clone();
    spec.training.early_stop = 2;
    let mut job = Job::started(spec, 4, 3);
    for pass in 0..3 {
        assert!(job.outcome.is_none(), "pass {pass}");
        job.end_phase(3);
        job.finish_all();
    }
    assert_eq!(
        job.outcome.as_ref().unwrap().state,
        JobState::Finished,
        "two in a row were not better"
    );
}

#[test]
fn no_periodic_checkpoint_is_taken_right_before_the_final_one() {
    let mut spec = spec(Consistency::Bsp);
    spec.data.passes = 2;
    spec.data.test = spec.data.train.clone();
    spec.checkpoint.every = Every::Passes(1);
    let mut job = Job::started(spec, 4, 3);
    for _ in 0..2 {
        job.end_phase(3);
        job.finish_all();
    }
    let phases: Vec<u32> =
        job.checkpoints.iter().map(|checkpoint| checkpoint.manifest.phase.0).collect();
    assert_eq!(phases, [0, 1, 4], "at the start, after the first pass, at the end");
}

/// A pass that takes less time than a write of the journal: one is always under way.
#[test]
fn commit_waits_for_the_records_before_it_alone() {
    let mut spec = spec(Consistency::Bsp);
    spec.data.passes = 9;
    let mut job = Job::started(spec, 4, 3);
    job.operate(1, Operation::Checkpoint);
    let cut = job.cut();
    job.auto.journal = false;
    job.end_phase(5);
    job.snap_all(cut, 5);
    let before = job.records.len() as u64;
    job.save_all(cut);
    assert_ne!(job.checkpoints.last().unwrap().manifest.cut, cut, "the pass is not recorded");
    job.end_phase(5);
    assert!(job.records.len() as u64 > before, "another one has ended");
    job.on(Event::RecordDurable { record: RecordId(before) });
    assert_eq!(job.checkpoints.last().unwrap().manifest.cut, cut);
}
