//! Cuts that fail, and what a manifest must not contain.

use heddle_am_core::{Event, OperationId, StoreCall, Stored};
use heddle_protocol::control::{
    Command, CutAt, Operation, PserverCommand, PserverReport, Report, ShardCommand, ShardReport,
    TrainerCommand, TrainerReport,
};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::{CutId, Generation, Incarnation, Member, Slot, Step, TaskId};
use heddle_protocol::job_spec::{Consistency, Every};
use heddle_protocol::manifest::{TaskState, Work};
use heddle_protocol::view::JobState;

use crate::harness::{Job, position, saves, snaps, spec};

/// An ASP job with a cut whose barriers are sent and not answered yet.
fn asp_with_open_cut() -> (Job, CutId) {
    let mut job = Job::asp(40);
    job.auto.barrier = false;
    job.operate(1, Operation::Checkpoint);
    let cut = job.cut();
    (job, cut)
}

fn barrier(job: &mut Job, member: Member, cut: CutId, step: u64) {
    let process = job.processes.get_mut(&member).unwrap();
    process.cut = cut;
    let (epoch, tasks) =
        (process.epoch, process.tasks.iter().map(|grant| position(*grant, step)).collect());
    job.report(member, TrainerReport::AtBarrier { cut, epoch, tasks });
}

fn queue_of(job: &Job) -> Vec<(TaskId, TaskState)> {
    match &job.checkpoints.last().unwrap().manifest.work {
        Work::Queue { tasks } => tasks.iter().map(|queued| (queued.task, queued.state)).collect(),
        Work::Lanes { .. } => panic!("ASP has a queue"),
    }
}

fn ended(job: &Job, cut: CutId) -> bool {
    job.sent.iter().any(|(_, command)| match command {
        Command::Shards(ShardCommand::CutEnd(end)) => end.cut == cut && !end.committed,
        _ => false,
    })
}

#[test]
fn trainers_are_notified_after_all_pservers_answered() {
    let mut job = Job::asp(40);
    job.auto.arm = false;
    job.operate(1, Operation::Checkpoint);
    let cut = job.cut();
    let barriers = |job: &Job| {
        job.sent
            .iter()
            .filter(|(_, command)| {
                matches!(command, Command::Trainer(TrainerCommand::Barrier { .. }))
            })
            .count()
    };
    let (p0, p1) = (job.pserver(0), job.pserver(1));
    let epoch = job.process(p0).epoch;
    job.report(p0, PserverReport::CutArmed { cut, epoch });
    assert_eq!(barriers(&job), 0);
    job.report(p1, PserverReport::CutArmed { cut, epoch });
    assert_eq!(barriers(&job), 2);
}

#[test]
fn task_done_after_the_barrier_is_not_done_in_the_manifest() {
    let (mut job, cut) = asp_with_open_cut();
    let (t0, t1) = (job.trainer(0), job.trainer(1));
    let task = job.process(t0).tasks[0].task;
    barrier(&mut job, t0, cut, 10);
    job.finish(t0, task);
    barrier(&mut job, t1, cut, 0);
    job.snap_all(cut, 0);
    job.save_all(cut);
    let state = queue_of(&job).into_iter().find(|(of, _)| *of == task).unwrap().1;
    assert!(matches!(state, TaskState::Open { step: Step(10), .. }), "{state:?}");
}

#[test]
fn lost_trainer_counts_with_its_last_step_on_all_shards() {
    let (mut job, cut) = asp_with_open_cut();
    let (t0, t1) = (job.trainer(0), job.trainer(1));
    let grant = job.process(t0).tasks[0];
    let (epoch, phase) = (job.process(t0).epoch, job.process(t0).phase.unwrap().no);
    let old = job.process(t0).cut;
    job.report(
        t0,
        TrainerReport::Progress { epoch, phase, cut: old, tasks: vec![position(grant, 33)] },
    );
    let from = job.sent.len();
    job.kill(t0);
    let fenced = |(_, command): &(Member, Command)| match command {
        Command::Shards(ShardCommand::Members { trainers }) => !trainers.contains(&t0),
        _ => false,
    };
    assert!(job.sent[from..].iter().any(fenced), "pservers close its connections");
    barrier(&mut job, t1, cut, 0);
    job.snap_all(cut, 0);
    job.save_all(cut);
    let state = queue_of(&job).into_iter().find(|(of, _)| *of == grant.task).unwrap().1;
    assert!(matches!(state, TaskState::Open { step: Step(33), .. }), "{state:?}");
}

#[test]
fn losses_of_trainers_shrink_the_cut_and_it_continues() {
    let (mut job, cut) = asp_with_open_cut();
    job.auto.register = false;
    job.kill(job.trainer(0));
    job.kill(job.trainer(1));
    job.snap_all(cut, 0);
    job.save_all(cut);
    assert_eq!(job.checkpoints.last().unwrap().manifest.cut, cut);
}

#[test]
fn no_trainer_joins_between_the_cut_order_and_the_last_snapshot() {
    let (mut job, cut) = asp_with_open_cut();
    job.kill(job.trainer(0));
    let joiner = job.trainer(0);
    assert_eq!(joiner.incarnation, Incarnation(2));
    assert!(job.process(joiner).tasks.is_empty());
    let t1 = job.trainer(1);
    barrier(&mut job, t1, cut, 0);
    job.snap_all(cut, 0);
    assert!(
        !job.process(joiner).tasks.is_empty(),
        "all have snapped: it joins, whatever is still being saved"
    );
    assert_eq!(job.checkpoints.len(), 1);
}

#[test]
fn joiners_report_with_an_older_cut_is_not_part_of_the_cut() {
    let (mut job, cut) = asp_with_open_cut();
    job.kill(job.trainer(0));
    let joiner = job.trainer(0);
    let t1 = job.trainer(1);
    barrier(&mut job, t1, cut, 0);
    job.snap_all(cut, 0);
    let task = job.process(joiner).tasks[0].task;
    assert_eq!(job.process(joiner).cut, CutId::default(), "it never heard of a cut");
    job.finish(joiner, task);
    job.save_all(cut);
    assert!(queue_of(&job).iter().all(|(of, _)| *of != task));
}

#[test]
fn shard_that_aborts_ends_the_cut_and_lets_trainers_join() {
    let (mut job, cut) = asp_with_open_cut();
    job.kill(job.trainer(0));
    job.kill(job.trainer(1));
    let p0 = job.pserver(0);
    let (epoch, shard) = (job.process(p0).epoch, job.process(p0).shards[0]);
    assert!(job.process(job.trainer(0)).tasks.is_empty());
    job.report(
        p0,
        Report::Shard {
            epoch,
            report: ShardReport::CutAborted {
                cut,
                shard,
                step: None,
                reason: "waited too long".to_owned(),
            },
        },
    );
    assert!(ended(&job, cut));
    assert!(!job.process(job.trainer(0)).tasks.is_empty());
    assert!(job.answers[&OperationId(1)].is_err());
    assert!(
        job.calls
            .iter()
            .any(|(_, call)| matches!(call, StoreCall::Discard { cut: c, .. } if *c == cut))
    );
}

#[test]
fn cut_that_exceeds_its_timeout_is_given_up_and_the_job_runs_on() {
    let (mut job, cut) = asp_with_open_cut();
    job.pass(60_000);
    assert!(ended(&job, cut));
    job.auto.barrier = true;
    job.finish_all();
    assert!(job.outcome.is_some() || job.core.view().state == JobState::Finishing);
}

#[test]
fn pserver_lost_before_it_saved_aborts_the_cut() {
    let (mut job, cut) = asp_with_open_cut();
    for member in job.trainers() {
        barrier(&mut job, member, cut, 0);
    }
    job.snap_all(cut, 0);
    job.kill(job.pserver(0));
    assert!(ended(&job, cut));
    assert_eq!(job.checkpoints.len(), 1);
    assert_eq!(job.core.view().recoveries.len(), 1);
}

#[test]
fn no_cut_name_is_used_twice() {
    let (mut job, first) = asp_with_open_cut();
    job.pass(60_000);
    job.operate(2, Operation::Checkpoint);
    let second = job.cut();
    assert!(second > first);
    // Late reports of the first do not count for the second.
    for member in job.pservers() {
        let epoch = job.process(member).epoch;
        for up in snaps(&job.process(member).clone(), first, epoch, Step(0))
            .into_iter()
            .chain(saves(&job.process(member).clone(), first, epoch))
        {
            job.report(member, up);
        }
    }
    assert_eq!(job.checkpoints.len(), 1);
    assert_eq!(second.generation, Generation(1));
}

#[test]
fn shards_at_different_steps_never_become_one_checkpoint() {
    let mut job = Job::bsp();
    job.operate(1, Operation::Checkpoint);
    let cut = job.cut();
    let (p0, p1) = (job.pserver(0), job.pserver(1));
    let epoch = job.process(p0).epoch;
    for (member, step) in [(p0, 5), (p1, 6)] {
        let process = job.process(member).clone();
        for up in
            snaps(&process, cut, epoch, Step(step)).into_iter().chain(saves(&process, cut, epoch))
        {
            job.report(member, up);
        }
    }
    assert!(ended(&job, cut));
    assert_eq!(job.checkpoints.len(), 1);
}

#[test]
fn cut_step_named_too_late_is_named_again_further_ahead() {
    let mut job = Job::bsp();
    job.operate(1, Operation::Checkpoint);
    let (first, CutAt::Steps(named)) = (job.cut(), job.cut_at()) else {
        panic!("BSP names a step")
    };
    let p0 = job.pserver(0);
    let (epoch, shard) = (job.process(p0).epoch, job.process(p0).shards[0]);
    job.report(
        p0,
        Report::Shard {
            epoch,
            report: ShardReport::CutAborted {
                cut: first,
                shard,
                step: Some(Step(50)),
                reason: "beyond it".to_owned(),
            },
        },
    );
    let (second, CutAt::Steps(again)) = (job.cut(), job.cut_at()) else {
        panic!("BSP names a step")
    };
    assert!(second > first && again > named);
    job.snap_all(second, again.0);
    job.save_all(second);
    assert!(job.answers[&OperationId(1)].is_ok(), "the operator's order outlives the first try");
}

#[test]
fn phase_that_ends_before_the_cut_step_is_cut_at_its_end() {
    let mut job = Job::bsp();
    job.operate(1, Operation::Checkpoint);
    let (cut, CutAt::Steps(named)) = (job.cut(), job.cut_at()) else { panic!("BSP names a step") };
    assert!(named > Step(1));
    job.snap_all(cut, 1);
    job.end_phase(1);
    job.save_all(cut);
    let manifest = &job.checkpoints[1].manifest;
    assert_eq!(
        (manifest.cut, manifest.phase.0, manifest.step()),
        (cut, 1, Step(0)),
        "the phase is over in it"
    );
    assert_eq!(job.checkpoints.len(), 2, "no second one of the same state");
    assert!(job.outcome.is_some());
}

#[test]
fn final_cut_replaces_an_open_one() {
    let mut job = Job::bsp();
    job.auto.snap = false;
    job.operate(1, Operation::Checkpoint);
    let open = job.cut();
    job.auto.snap = true;
    job.end_phase(9);
    assert!(
        ended(&job, open)
            || job.checkpoints.iter().any(|checkpoint| checkpoint.manifest.cut == open)
    );
    assert!(job.outcome.is_some(), "the run ends at 9, below the step that was named");
}

#[test]
fn final_cut_is_retried_and_then_fails_the_job() {
    for (class, cause, exit_code) in [
        (ErrorClass::Denied, "cannot create /c/.staging/g1: no space left", ExitCode::Denied),
        (
            ErrorClass::Unreachable,
            "cannot create /c/.staging/g1: cannot be reached or read just now",
            ExitCode::Unreachable,
        ),
    ] {
        let mut job = Job::bsp();
        job.auto.store = false;
        job.end_phase(3);
        for _ in 0..10 {
            if job.outcome.is_some() {
                break;
            }
            job.answer_store(Stored::NotDone { failure: Failure::new(class, cause) });
            job.pass(60_000);
        }
        let outcome = job.outcome.clone().unwrap();
        assert_eq!(outcome.exit_code, exit_code);
        assert!(outcome.message.contains(cause), "{}", outcome.message);
    }
}

/// It is followed by a rollback, after which the storage has all its tries again.
#[test]
fn loss_of_a_pserver_is_no_failed_try_of_the_final_cut() {
    let mut job = Job::bsp();
    job.auto.store = false;
    job.end_phase(3);
    job.fail_final_cuts_but_the_last();
    job.kill(job.pserver(0));
    assert_eq!(job.outcome, None);
    assert_eq!(job.core.view().state, JobState::Recovering);
}

#[test]
fn unknown_outcome_of_a_commit_is_queried_and_nothing_deleted() {
    let mut job = Job::bsp();
    job.auto.store = false;
    job.end_phase(3);
    job.answer_store(Stored::Staged("file:///ck/.staging/x".to_owned()));
    for _ in 0..4 {
        assert!(matches!(job.calls.last().unwrap().1, StoreCall::Commit { .. }));
        job.answer_store(Stored::Unknown {
            failure: Failure::new(ErrorClass::Unreachable, "lost reply"),
        });
        job.pass(64_000);
    }
    let commits =
        job.calls.iter().filter(|(_, call)| matches!(call, StoreCall::Commit { .. })).count();
    assert_eq!(commits, 6, "the first one, of checkpoint 0, and five of this");
    job.answer_store(Stored::Unknown {
        failure: Failure::new(ErrorClass::Unreachable, "lost reply"),
    });
    assert!(job.calls.iter().all(|(_, call)| !matches!(call, StoreCall::Discard { .. })));
    let last = job.calls.last().unwrap().0;
    job.store(last);
    job.on(Event::Timer);
}

#[test]
fn nothing_is_committed_while_the_resource_manager_is_silent() {
    let mut job = Job::new(spec(Consistency::Bsp), 4, 0);
    job.config.cluster_lease_ms = Some(10_000);
    let mut job = Job::with(job.config);
    job.start();
    job.on(Event::ClusterHeard);
    job.pass(11_000);
    job.end_phase(3);
    assert_eq!(job.checkpoints.len(), 1, "all is saved, and waits");
    job.pass(5_000);
    assert_eq!(job.checkpoints.len(), 1);
    job.on(Event::ClusterHeard);
    assert_eq!(job.checkpoints.len(), 2);
    assert!(job.outcome.is_some());
}

#[test]
fn failed_save_aborts_the_cut_and_it_is_retried_later() {
    let mut job = Job::bsp();
    job.operate(1, Operation::Checkpoint);
    let cut = job.cut();
    job.snap_all(cut, 5);
    let p0 = job.pserver(0);
    let (epoch, shard) = (job.process(p0).epoch, job.process(p0).shards[0]);
    job.report(
        p0,
        PserverReport::SaveFailed {
            cut,
            epoch,
            shard,
            failure: Failure::new(ErrorClass::Unreachable, "disk full"),
        },
    );
    assert!(ended(&job, cut));
    job.pass(31_000);
    assert!(job.cut() > cut);
}

#[test]
fn evaluation_starts_again_after_a_checkpoint_in_it() {
    let mut with_test = spec(Consistency::Bsp);
    with_test.data.test = with_test.data.train.clone();
    let mut job = Job::started(with_test, 4, 5);
    job.end_phase(3);
    let t0 = job.trainer(0);
    let task = job.process(t0).tasks[0].task;
    job.finish(t0, task);
    job.operate(1, Operation::Checkpoint);
    assert_eq!(job.cut_at(), CutAt::Barriers(Vec::new()));
    assert!(job.answers[&OperationId(1)].is_ok());
    assert_eq!(job.checkpoints.last().unwrap().manifest.work, Work::Queue { tasks: Vec::new() });
    job.kill(job.pserver(0));
    job.finish_all();
    assert_eq!(
        job.core.view().evaluations[0].rows,
        50,
        "every task once, with the values returned to"
    );
}

#[test]
fn pserver_that_reconnects_gets_the_open_cut_again() {
    let mut job = Job::bsp();
    job.operate(1, Operation::Checkpoint);
    let p0 = job.pserver(0);
    job.disconnect(p0);
    let from = job.sent.len();
    job.registers(p0);
    assert!(
        job.told(p0, from)
            .iter()
            .any(|command| matches!(command, Command::Pserver(PserverCommand::Cut(_))))
    );
    assert_eq!(job.at(Slot::pserver(0)), p0);
}

/// Otherwise the pserver keeps the copies of the snapshot, until no memory for them is left and it applies no step.
#[test]
fn pserver_that_was_away_at_the_end_of_a_cut_is_sent_the_end() {
    for committed in [false, true] {
        let mut job = Job::bsp();
        job.operate(1, Operation::Checkpoint);
        let (cut, p0, p1) = (job.cut(), job.pserver(0), job.pserver(1));
        job.snap_all(cut, 5);
        if committed {
            job.save_all(cut);
            job.disconnect(p0);
        } else {
            job.disconnect(p0);
            let (epoch, shard) = (job.process(p1).epoch, job.process(p1).shards[0]);
            let failure = Failure::new(ErrorClass::Unreachable, "disk full");
            job.report(p1, PserverReport::SaveFailed { cut, epoch, shard, failure });
            assert!(ended(&job, cut));
        }
        let from = job.sent.len();
        job.registers(p0);
        let is_end = |command: &Command| {
            matches!(
                command,
                Command::Shards(ShardCommand::CutEnd(end))
                    if (end.cut, end.committed) == (cut, committed)
            )
        };
        assert!(job.told(p0, from).into_iter().any(is_end), "committed: {committed}");
    }
}

#[test]
fn cut_without_a_directory_does_not_stop_the_next_pass() {
    let mut spec = spec(Consistency::Asp);
    spec.data.passes = 3;
    spec.checkpoint.every = Every::Passes(1);
    let mut job = Job::started(spec, 8, 0);
    let phase = |job: &Job| job.process(job.pserver(0)).phase.expect("it serves one").no;
    let first = phase(&job);
    job.auto.store = false;
    job.finish_all();
    assert_eq!(phase(&job), first, "the cut belongs between the passes");
    job.pass(6_000);
    assert_eq!(phase(&job).0, first.0 + 1, "training goes on");
    let before = job.checkpoints.len();
    job.auto.store = true;
    let staging = job.calls.iter().rev().find(|(_, call)| matches!(call, StoreCall::Stage { .. }));
    let call = staging.expect("its directory was asked for").0;
    job.store(call);
    job.pass(1_000);
    let cut = job.cut();
    job.snap_all(cut, 0);
    job.save_all(cut);
    assert_eq!(job.checkpoints.len(), before + 1, "taken as soon as it can be");
}

#[test]
fn shard_without_disk_space_fails_the_final_cut_as_denied() {
    for (class, exit_code) in [
        (ErrorClass::Denied, ExitCode::Denied),
        (ErrorClass::Unreachable, ExitCode::Unreachable),
        (ErrorClass::Internal, ExitCode::Unreachable),
    ] {
        let mut job = Job::bsp();
        job.auto.save = false;
        job.end_phase(3);
        for _ in 0..10 {
            if job.outcome.is_some() {
                break;
            }
            let (cut, p0) = (job.cut(), job.pserver(0));
            let (epoch, shard) = (job.process(p0).epoch, job.process(p0).shards[0]);
            let failure = Failure::new(class, "cannot write shard-00000.ckpt");
            job.report(p0, PserverReport::SaveFailed { cut, epoch, shard, failure });
            job.pass(60_000);
        }
        assert_eq!(job.outcome.clone().unwrap().exit_code, exit_code);
    }
}
