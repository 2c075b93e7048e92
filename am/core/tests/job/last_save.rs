//! A job that fails saves the state of its shards first, where they are whole.

use heddle_am_core::{Exit, StoreCall, Stored};
use heddle_protocol::control::{CutAt, Operation, Report, ShardReport, TrainerReport};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::{Role, Step, TaskAttempt, TaskId};
use heddle_protocol::job_spec::{Consistency, DurationMs};
use heddle_protocol::manifest::Work;
use heddle_protocol::view::JobState;

use crate::harness::{Job, lanes_of, position, spec};

/// All shards have applied this number of steps, and the ApplicationMaster has their heartbeats.
fn steps(job: &mut Job, step: u64) {
    for member in job.pservers().into_iter().chain(job.trainers()) {
        job.processes.get_mut(&member).expect("it is there").step = Step(step);
        job.beat(member, |_| {});
    }
}

/// A BSP job whose shards have applied ten steps since its checkpoint, with `checkpoint.last-save`.
fn trained(last_save: DurationMs) -> Job {
    let mut patient = spec(Consistency::Bsp);
    patient.checkpoint.last_save = last_save;
    let mut job = Job::started(patient, 4, 0);
    steps(&mut job, 10);
    job
}

/// A trainer that cannot run uses up its failures.
fn gives_up(job: &mut Job) {
    for _ in 0..3 {
        job.exit(job.trainer(1), Exit::Code(77));
        job.pass(5_000);
        assert!(job.outcome.is_none(), "it is replaced");
    }
    job.exit(job.trainer(1), Exit::Code(77));
}

/// The message of a job that failed because of that trainer.
fn message(job: &Job) -> String {
    let outcome = job.outcome.clone().expect("the job has ended");
    assert_eq!((outcome.state, outcome.exit_code), (JobState::Failed, ExitCode::JobFailed));
    let cause = "trainer-1 failed too often: it last exited with code 77";
    assert!(outcome.message.starts_with(cause), "{}", outcome.message);
    outcome.message
}

fn is_unsaved(job: &Job, cause: &str) {
    let message = message(job);
    for words in ["no last checkpoint was saved", cause, "continues from checkpoint g1-c1"] {
        assert!(message.contains(words), "{words}: {message}");
    }
    assert_eq!(job.checkpoints.len(), 1);
}

fn keeps(job: &Job) -> Vec<u32> {
    let keep = |call: &StoreCall| match call {
        StoreCall::Retain { keep, .. } => Some(*keep),
        _ => None,
    };
    job.calls.iter().filter_map(|(_, call)| keep(call)).collect()
}

#[test]
fn job_that_gives_up_saves_and_keeps_its_exit_code() {
    let mut job = trained(DurationMs::secs(30));
    job.auto.save = false;
    gives_up(&mut job);
    assert!(job.outcome.is_none(), "it saves first");
    assert_eq!(job.cut_at(), CutAt::Steps(Step(10)), "where the shards stand");
    assert!(job.core.view().message.contains("saves its state"), "{}", job.core.view().message);
    let others = lanes_of(&job, job.trainer(0)).len();
    job.pass(5_000);
    assert_eq!(lanes_of(&job, job.trainer(0)).len(), others, "no step may follow");
    assert!(job.asks.iter().all(|(slot, _)| slot.role != Role::Trainer), "{:?}", job.asks);
    job.save_all(job.cut());
    let message = message(&job);
    let kept = format!("saved checkpoint {} (pass 1 of 1) before the end", job.cut());
    assert!(message.contains(&kept), "{message}");
    let last = &job.checkpoints.last().expect("it is committed").manifest;
    assert_eq!((last.cut, last.work.clone()), (job.cut(), Work::Lanes { step: Step(10) }));
    assert_eq!(keeps(&job), [3, 4], "no other one is removed for it");
}

#[test]
fn shards_beyond_the_last_heartbeat_are_cut_where_they_are() {
    let mut job = trained(DurationMs::secs(30));
    job.auto.snap = false;
    gives_up(&mut job);
    let (pserver, cut) = (job.pserver(0), job.cut());
    let process = job.process(pserver);
    let (epoch, shard) = (process.epoch, process.shards[0]);
    let (step, reason) = (Some(Step(12)), "stands at 12".to_owned());
    job.report(
        pserver,
        Report::Shard { epoch, report: ShardReport::CutAborted { cut, shard, step, reason } },
    );
    assert_eq!(job.cut_at(), CutAt::Steps(Step(12)), "no margin: no step follows");
    job.snap_all(job.cut(), 12);
    job.save_all(job.cut());
    assert!(message(&job).contains("saved checkpoint"));
}

#[test]
fn periodic_cut_that_waits_for_steps_is_replaced() {
    let mut job = trained(DurationMs::secs(30));
    job.operate(1, Operation::Checkpoint);
    let waits = job.cut();
    gives_up(&mut job);
    assert!(job.answers[&heddle_am_core::OperationId(1)].is_err());
    assert!(job.cut() > waits);
    assert!(message(&job).contains(&format!("saved checkpoint {}", job.cut())));
}

#[test]
fn commit_under_way_when_the_time_is_over_is_awaited() {
    for committed in [true, false] {
        let mut job = trained(DurationMs::secs(30));
        job.auto.save = false;
        gives_up(&mut job);
        job.auto.store = false;
        job.save_all(job.cut());
        let (call, commit) = job.calls.last().expect("its commit").clone();
        assert!(matches!(commit, StoreCall::Commit { .. }), "{commit:?}");
        job.pass(40_000);
        assert!(job.outcome.is_none(), "it may succeed");
        if committed {
            job.store(call);
            job.pass(60_000);
            assert!(job.outcome.is_some(), "{:?}", (&job.calls, job.core.view().message));
            assert!(message(&job).contains("saved checkpoint"));
        }
        for _ in 0..20 {
            if job.outcome.is_none() {
                let failure = Failure::new(ErrorClass::Unreachable, "safe mode");
                job.answer_store(Stored::NotDone { failure });
                job.pass(60_000);
            }
        }
        if !committed {
            is_unsaved(&job, "safe mode");
        }
    }
}

#[test]
fn job_whose_last_save_takes_too_long_ends_without_it() {
    let mut job = trained(DurationMs::secs(30));
    job.auto.snap = false;
    gives_up(&mut job);
    job.pass(29_000);
    assert!(job.outcome.is_none());
    job.pass(1_000);
    is_unsaved(&job, "it took longer than checkpoint.last-save (30s)");
}

#[test]
fn second_failure_ends_the_wait_at_once() {
    type Second = fn(&mut Job);
    let kills: Second = |job| job.kill(job.pserver(0));
    let killed_by_operator: Second = |job| job.operate(2, Operation::Kill);
    for (second, cause) in
        [(kills, "a pserver was lost"), (killed_by_operator, "killed by an operator")]
    {
        let mut job = trained(DurationMs::secs(30));
        job.auto.snap = false;
        gives_up(&mut job);
        second(&mut job);
        is_unsaved(&job, cause);
    }
}

#[test]
fn further_lost_trainers_do_not_end_the_wait() {
    let mut job = trained(DurationMs::secs(30));
    job.auto.save = false;
    gives_up(&mut job);
    job.exit(job.trainer(0), Exit::Code(77));
    job.pass(1_000);
    assert!(job.outcome.is_none());
    job.save_all(job.cut());
    assert!(message(&job).contains("saved checkpoint"));
}

#[test]
fn nothing_is_saved_where_nothing_can_be_or_may_be() {
    type Ends = fn(&mut Job);
    let task_fails = |job: &mut Job, retryable, class| {
        let trainer = job.trainer(0);
        let process = job.process(trainer);
        let (epoch, phase) = (process.epoch, process.phase.expect("it works").no);
        let (task, attempt) = (TaskId(0), TaskAttempt(0));
        let failure = Failure::new(class, "what failed");
        job.report(
            trainer,
            TrainerReport::TaskFailed { epoch, phase, task, attempt, retryable, failure },
        );
    };
    let retries: Ends = |job| gives_up(job);
    let lost: Ends = |job| {
        job.auto.cluster = false;
        job.exit(job.pserver(0), Exit::Code(1));
        gives_up_without_replacement(job);
    };
    let nan = |job: &mut Job| task_fails(job, false, ErrorClass::Training);
    let data = |job: &mut Job| task_fails(job, false, ErrorClass::Input);
    let storage = |job: &mut Job| task_fails(job, true, ErrorClass::Unreachable);
    let (on, off) = (DurationMs::secs(30), DurationMs(0));
    type Case<'a> = (&'a str, DurationMs, u64, &'a dyn Fn(&mut Job), usize);
    let cases: [Case<'_>; 7] = [
        ("retries used up", on, 10, &retries, 2),
        ("the storage of a task", on, 10, &storage, 2),
        ("the key is 0s", off, 10, &retries, 1),
        ("nothing is newer than the checkpoint", on, 0, &retries, 1),
        ("a shard is lost", on, 10, &lost, 1),
        ("values that are not numbers", on, 10, &nan, 1),
        ("bad data", on, 10, &data, 1),
    ];
    for (case, last_save, step, ends, checkpoints) in cases {
        let mut job = trained(last_save);
        if step == 0 {
            job = Job::started(spec(Consistency::Bsp), 4, 0);
        }
        ends(&mut job);
        let outcome = job.outcome.clone().unwrap_or_else(|| panic!("{case}: it ends at once"));
        assert_eq!(outcome.state, JobState::Failed, "{case}");
        assert_eq!(job.checkpoints.len(), checkpoints, "{case}: {}", outcome.message);
        assert!(!outcome.message.contains("no last checkpoint"), "{case}: {}", outcome.message);
    }
}

/// As [`gives_up`], while a pserver is missing.
fn gives_up_without_replacement(job: &mut Job) {
    job.auto.cluster = true;
    for _ in 0..4 {
        job.exit(job.trainer(1), Exit::Code(77));
        if job.outcome.is_none() {
            job.auto.hold = false;
            job.pass(5_000);
        }
    }
}

#[test]
fn asp_saves_with_the_trainers_that_are_left() {
    let mut job = Job::asp(40);
    let trainer = job.trainer(0);
    let process = job.process(trainer);
    let (epoch, phase) = (process.epoch, process.phase.expect("it works").no);
    let tasks = vec![position(process.tasks[0], 7)];
    let cut = process.cut;
    job.report(trainer, TrainerReport::Progress { epoch, phase, cut, tasks });
    gives_up(&mut job);
    assert_eq!(job.cut_at(), CutAt::Barriers(vec![trainer]));
    if job.outcome.is_none() {
        job.snap_all(job.cut(), 0);
        job.save_all(job.cut());
    }
    assert!(message(&job).contains("saved checkpoint"));
}
