//! An operator's orderly stop ends with a checkpoint; and the choice of the step of a BSP cut.

use heddle_am_core::{ContainerName, Core, OperationId, StoreCall, Stored};
use heddle_protocol::control::{CutAt, Operation, PserverReport, Report, ShardReport};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::{Member, Step};
use heddle_protocol::job_spec::{Consistency, Every};
use heddle_protocol::view::{JobEvent as Notice, JobState};

use crate::harness::{Job, spec};

const STOP: Operation = Operation::Stop { checkpoint: true };

/// The step that the last cut names.
fn named(job: &Job) -> u64 {
    match job.cut_at() {
        CutAt::Steps(step) => step.0,
        CutAt::Barriers(_) => panic!("BSP names a step"),
    }
}

/// A shard is at `step`, beyond the step of the open cut.
fn passed(job: &mut Job, step: u64) {
    let (pserver, cut) = (job.pserver(0), job.cut());
    let process = job.process(pserver);
    let up = Report::Shard {
        epoch: process.epoch,
        report: ShardReport::CutAborted {
            cut,
            shard: process.shards[0],
            step: Some(Step(step)),
            reason: format!("asked for an earlier step, stands at {step}"),
        },
    };
    job.report(pserver, up);
}

/// All pservers take the snapshot of the open cut at its step and save it.
fn save(job: &mut Job) {
    let (cut, step) = (job.cut(), named(job));
    job.snap_all(cut, step);
    job.save_all(cut);
}

fn given_up(job: &Job) -> Vec<String> {
    let reason = |notice: &Notice| match notice {
        Notice::CheckpointGivenUp { reason, .. } => Some(reason.clone()),
        _ => None,
    };
    job.notices.iter().filter_map(reason).collect()
}

fn stopped_with_checkpoint(job: &Job, checkpoints: usize) {
    let outcome = job.outcome.clone().expect("the job stops");
    assert_eq!((outcome.state, outcome.exit_code), (JobState::Stopped, ExitCode::Killed));
    assert_eq!(job.answers[&OperationId(1)], Ok("checkpoint taken, stopping".to_owned()));
    assert_eq!(job.checkpoints.len(), checkpoints);
}

#[test]
fn stop_whose_step_was_passed_names_a_later_one() {
    let mut job = Job::bsp();
    job.operate(1, STOP);
    let first = job.cut();
    passed(&mut job, 505);
    assert!(job.outcome.is_none(), "the job still waits for its checkpoint");
    assert!(job.cut() > first && named(&job) > 505, "{}", named(&job));
    passed(&mut job, 9_000);
    assert!(named(&job) > 9_000);
    save(&mut job);
    stopped_with_checkpoint(&job, 2);
    assert!(given_up(&job).is_empty(), "a step named too late is not news");
}

#[test]
fn operators_cut_whose_steps_all_passed_is_given_up() {
    let mut job = Job::bsp();
    job.operate(1, Operation::Checkpoint);
    for step in 1..=7 {
        passed(&mut job, step * 100_000);
    }
    assert_eq!(given_up(&job).len(), 1);
    assert!(
        given_up(&job)[0].contains("training passed the step that was chosen for it, 7 times"),
        "{:?}",
        given_up(&job)
    );
    assert!(job.answers[&OperationId(1)].is_err());
}

#[test]
fn stop_retries_its_checkpoint_while_there_is_time() {
    let mut job = Job::bsp();
    job.auto.store = false;
    job.operate(1, STOP);
    job.answer_store(Stored::NotDone {
        failure: Failure::new(ErrorClass::Unreachable, "cannot reach the NameNode"),
    });
    assert!(job.outcome.is_none());
    job.auto.store = true;
    job.pass(5_000);
    save(&mut job);
    stopped_with_checkpoint(&job, 2);
}

#[test]
fn stop_without_storage_ends_within_one_checkpoint_timeout() {
    let mut job = Job::bsp();
    job.operate(1, STOP);
    job.auto.store = false;
    let timeout = job.config.spec.checkpoint.timeout.0;
    let begun = job.now;
    while job.outcome.is_none() {
        let (pserver, cut) = (job.pserver(0), job.cut());
        let process = job.process(pserver);
        let up = Report::Pserver(PserverReport::SaveFailed {
            cut,
            epoch: process.epoch,
            shard: process.shards[0],
            failure: Failure::new(ErrorClass::Unreachable, "cannot reach the NameNode"),
        });
        job.report(pserver, up);
        if let Some((call, StoreCall::Stage { .. })) = job.calls.last() {
            let call = *call;
            job.store(call);
        }
        job.pass(1_000);
        assert!(job.now - begun <= timeout + 40_000, "it stops in time");
    }
    let outcome = job.outcome.clone().expect("the job stops");
    assert_eq!((outcome.state, outcome.exit_code), (JobState::Stopped, ExitCode::Killed));
    assert!(
        outcome.message.contains("NameNode") && outcome.message.contains("checkpoint g1-c1"),
        "{}",
        outcome.message
    );
    assert!(job.answers[&OperationId(1)].is_err());
}

#[test]
fn pserver_lost_in_a_stop_ends_the_job_at_the_last_checkpoint() {
    let mut job = Job::bsp();
    job.operate(1, STOP);
    let pserver = job.pserver(0);
    job.kill(pserver);
    let outcome = job.outcome.clone().expect("nothing newer can be saved");
    assert_eq!((outcome.state, outcome.exit_code), (JobState::Stopped, ExitCode::Killed));
    assert!(outcome.message.contains("checkpoint g1-c1"), "{}", outcome.message);
}

#[test]
fn stop_in_a_takeover_saves_the_shards_of_kept_containers() {
    let mut job = Job::bsp();
    let everybody: Vec<Member> = job.processes.keys().copied().collect();
    let container = |process: &crate::harness::Process| process.container.clone();
    let kept: Vec<ContainerName> = job.processes.values().filter_map(container).collect();
    for process in job.processes.values_mut() {
        process.connection = None;
    }
    job.core = Core::new(job.config.clone());
    job.recover(2, 2, kept);
    job.operate(1, STOP);
    assert!(job.outcome.is_none());
    for member in everybody {
        job.registers(member);
    }
    save(&mut job);
    stopped_with_checkpoint(&job, 2);
}

fn every_steps(steps: u64, passes: u32) -> Job {
    let mut often = spec(Consistency::Bsp);
    often.checkpoint.every = Every::Steps(steps);
    often.data.passes = passes;
    Job::started(often, 4, 0)
}

fn beats(job: &mut Job, step: u64) {
    for member in job.pservers() {
        job.processes.get_mut(&member).expect("it is there").step = Step(step);
        job.beat(member, |_| {});
    }
}

fn cuts(job: &Job) -> usize {
    let staged = |call: &StoreCall| matches!(call, StoreCall::Stage { .. });
    job.calls.iter().filter(|(_, call)| staged(call)).count()
}

#[test]
fn distant_cut_step_is_not_awaited_with_an_open_cut() {
    let mut job = every_steps(100_000, 1);
    let before = cuts(&job);
    for second in 1..=120 {
        job.now += 1_000;
        beats(&mut job, second * 10);
    }
    assert_eq!(cuts(&job), before, "an hour away: nothing is open, nothing times out");
    for second in 1..=60 {
        job.now += 1_000;
        beats(&mut job, 99_400 + second * 10);
    }
    assert_eq!(cuts(&job), before + 1);
    assert!(named(&job) >= 100_000, "{}", named(&job));
}

#[test]
fn phases_shorter_than_a_heartbeat_are_cut_at_their_end() {
    let mut job = every_steps(50, 6);
    let before = job.checkpoints.len();
    for _ in 0..3 {
        job.now += 50;
        job.end_phase(20);
    }
    assert_eq!(job.checkpoints.len(), before + 1, "60 steps in three passes");
}
