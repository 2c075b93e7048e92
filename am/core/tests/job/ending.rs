//! The model, the outcome, stops and fences.

use heddle_am_core::{Action, Event, MonotonicMs, Now, OperationId, Record, StoreCall, Stored};
use heddle_protocol::control::{
    Command, ExportFailure, ExportOrder, ExportedModel, Operation, PserverCommand, Report, TakeCut,
    TrainerReport,
};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::{Member, SaveLease};
use heddle_protocol::job_spec::{BadRecords, Consistency};
use heddle_protocol::view::JobState;

use crate::harness::{Job, Process, spec};

fn exporting() -> Job {
    let mut job = Job::bsp();
    job.auto.export = false;
    job.end_phase(5);
    assert_eq!(job.core.view().state, JobState::Finishing);
    job
}

fn exporter(job: &Job) -> Member {
    last_order(job).0
}

fn last_order(job: &Job) -> (Member, ExportOrder) {
    let order = |(member, command): &(_, Command)| match command {
        Command::Export(order) => Some((*member, order.clone())),
        _ => None,
    };
    job.sent.iter().rev().find_map(order).unwrap()
}

/// The trainer that was ordered to export last has written the model.
fn exports(job: &mut Job) {
    let (member, order) = last_order(job);
    job.report(member, exported(order.lease, "d"));
}

fn exported(lease: SaveLease, dir: &str) -> Report {
    Report::Exported(ExportedModel { lease, dir: dir.to_owned(), files: Vec::new() })
}

fn export_failed(job: &mut Job, failure: Failure) {
    let (member, order) = last_order(job);
    job.report(member, Report::ExportFailed(ExportFailure { lease: order.lease, failure }));
}

#[test]
fn trainer_lost_during_the_export_is_followed_by_another() {
    let mut job = exporting();
    let first = exporter(&job);
    job.kill(first);
    let second = exporter(&job);
    assert_ne!(first, second);
    let up = exported(last_order(&job).1.lease, "second");
    job.report(second, up);
    let published = job.calls.iter().find_map(|(_, call)| match call {
        StoreCall::PublishModel { model, .. } => Some(model.clone()),
        _ => None,
    });
    assert_eq!(published.as_deref(), Some("second"));
    assert_eq!(job.outcome.as_ref().unwrap().state, JobState::Finished);
}

#[test]
fn exporter_that_reconnects_is_ordered_again_and_no_other() {
    let mut job = exporting();
    let first = exporter(&job);
    let from = job.sent.len();
    job.disconnect(first);
    job.registers(first);
    let ordered: Vec<_> = job.sent[from..]
        .iter()
        .filter(|(_, command)| matches!(command, Command::Export(_)))
        .map(|(member, _)| *member)
        .collect();
    assert_eq!(ordered, [first], "its order may be lost");
    for trainer in job.trainers() {
        if trainer != first {
            job.disconnect(trainer);
            job.registers(trainer);
        }
    }
    assert_eq!(exporter(&job), first);
    exports(&mut job);
    assert_eq!(job.outcome.as_ref().unwrap().state, JobState::Finished);
}

#[test]
fn only_the_elected_trainer_and_the_last_lease_count() {
    let mut job = exporting();
    let (elected, order) = last_order(&job);
    let other = job.trainers().into_iter().find(|member| *member != elected).unwrap();
    job.report(other, exported(order.lease, "x"));
    let before = SaveLease { count: order.lease.count - 1, ..order.lease };
    job.report(elected, exported(before, "x"));
    assert!(job.outcome.is_none());
    exports(&mut job);
    assert_eq!(job.outcome.as_ref().unwrap().state, JobState::Finished);
}

#[test]
fn export_that_keeps_failing_fails_the_job_with_the_next_step() {
    for (class, cause, exit_code) in [
        (ErrorClass::Denied, "no space left", ExitCode::Denied),
        (ErrorClass::Unreachable, "cannot be reached or read just now", ExitCode::Unreachable),
        (ErrorClass::Internal, "cannot write the model: failed", ExitCode::Unreachable),
    ] {
        let mut job = exporting();
        for _ in 0..5 {
            export_failed(&mut job, Failure::new(class, cause));
            job.pass(64_000);
        }
        let outcome = job.outcome.clone().unwrap();
        assert_eq!(outcome.exit_code, exit_code);
        for words in [cause, "heddle export"] {
            assert!(outcome.message.contains(words), "{}", outcome.message);
        }
    }
}

#[test]
fn export_that_no_trainer_can_write_fails_the_job_at_once() {
    for (class, cause, exit_code, has_hint) in [
        (ErrorClass::Training, "row 0 of table bias holds -inf", ExitCode::JobFailed, false),
        (ErrorClass::Input, "not a directory", ExitCode::Input, true),
    ] {
        let mut job = exporting();
        export_failed(&mut job, Failure::new(class, cause));
        let outcome = job.outcome.clone().expect("no other trainer tries");
        assert_eq!((outcome.state, outcome.exit_code), (JobState::Failed, exit_code));
        assert!(outcome.message.contains(cause), "{}", outcome.message);
        assert_eq!(outcome.message.contains("heddle export"), has_hint, "{}", outcome.message);
    }
}

#[test]
fn pserver_lost_during_the_export_changes_nothing() {
    let mut job = exporting();
    let epoch = job.core.view().epoch;
    job.kill(job.pserver(0));
    assert_eq!(job.core.view().epoch, epoch);
    exports(&mut job);
    assert_eq!(job.outcome.as_ref().unwrap().state, JobState::Finished);
}

#[test]
fn outcome_is_recorded_before_containers_are_stopped() {
    let mut job = exporting();
    job.auto.journal = false;
    job.auto.exit = false;
    let from = job.sent.len();
    exports(&mut job);
    assert!(matches!(job.records.last(), Some(Record::Outcome(_))));
    let stops = |job: &Job| {
        job.sent[from..]
            .iter()
            .filter(|(_, command)| matches!(command, Command::Stop { .. }))
            .count()
    };
    assert_eq!(stops(&job), 0);
    assert!(job.outcome.is_none());
    job.all_durable();
    assert_eq!(stops(&job), 4);
    assert!(job.outcome.is_none(), "containers still end");
    job.pass(35_000);
    assert!(job.outcome.is_some(), "but the wait is bounded");
}

#[test]
fn stop_takes_a_checkpoint_that_the_job_can_continue_from() {
    let mut job = Job::bsp();
    job.operate(1, Operation::Stop { checkpoint: true });
    assert!(job.outcome.is_none());
    let cut = job.cut();
    let is_last = |command: &Command| {
        matches!(command, Command::Pserver(PserverCommand::Cut(TakeCut { last: true, .. })))
    };
    assert!(
        job.sent.iter().any(|(_, command)| is_last(command)),
        "shards take no change after their snapshots"
    );
    job.snap_all(cut, 4);
    job.save_all(cut);
    let outcome = job.outcome.clone().unwrap();
    assert_eq!((outcome.state, outcome.exit_code), (JobState::Stopped, ExitCode::Killed));
    assert_eq!(job.checkpoints.last().unwrap().manifest.cut, cut);
    assert!(job.answers[&OperationId(1)].is_ok());
}

#[test]
fn stop_that_comes_again_waits_for_the_checkpoint_of_the_first() {
    let mut job = Job::bsp();
    job.operate(1, Operation::Stop { checkpoint: true });
    job.operate(2, Operation::Stop { checkpoint: true });
    assert!(job.outcome.is_none() && job.answers[&OperationId(2)].is_ok());
    let cut = job.cut();
    job.snap_all(cut, 4);
    job.save_all(cut);
    assert_eq!(job.outcome.as_ref().unwrap().state, JobState::Stopped);
    assert_eq!(job.checkpoints.last().unwrap().manifest.cut, cut);
}

#[test]
fn stop_at_once_does_not_wait_for_the_checkpoint() {
    let mut job = Job::bsp();
    job.operate(1, Operation::Stop { checkpoint: true });
    job.operate(2, Operation::Stop { checkpoint: false });
    assert_eq!(job.outcome.as_ref().unwrap().state, JobState::Stopped);
    assert_eq!(job.checkpoints.len(), 1);
}

#[test]
fn stop_with_a_failed_checkpoint_ends_and_reports_it() {
    let mut job = Job::bsp();
    job.operate(1, Operation::Stop { checkpoint: true });
    job.pass(60_000);
    let outcome = job.outcome.clone().unwrap();
    assert_eq!(outcome.state, JobState::Stopped);
    assert!(outcome.message.contains("without a new checkpoint"), "{}", outcome.message);
}

#[test]
fn kill_saves_no_checkpoint() {
    let mut job = Job::bsp();
    job.operate(1, Operation::Kill);
    let outcome = job.outcome.clone().unwrap();
    assert_eq!((outcome.state, outcome.exit_code), (JobState::Stopped, ExitCode::Killed));
    assert_eq!(job.checkpoints.len(), 1);
}

#[test]
fn fenced_attempt_writes_deletes_and_commands_nothing() {
    let mut job = Job::bsp();
    job.operate(1, Operation::Checkpoint);
    let (calls, records, sent) = (job.calls.len(), job.records.len(), job.sent.len());
    job.on(Event::Fenced { reason: "claim g2 by application_1_2".to_owned() });
    let outcome = job.outcome.clone().unwrap();
    assert_eq!((outcome.state, outcome.exit_code), (JobState::Failed, ExitCode::Fenced));
    assert_eq!((job.calls.len(), job.records.len(), job.sent.len()), (calls, records, sent));
    assert!(job.stopped.is_empty(), "they are the successor's");
}

#[test]
fn over_application_dismisses_its_containers_and_writes_nothing() {
    let mut job = Job::bsp();
    job.operate(1, Operation::Checkpoint);
    let (calls, records, sent) = (job.calls.len(), job.records.len(), job.sent.len());
    job.auto.exit = false;
    job.on(Event::ApplicationOver { reason: "it was killed".to_owned() });
    let stops = job.sent[sent..].iter().filter(|(_, it)| matches!(it, Command::Stop { .. }));
    assert_eq!(stops.count(), job.processes.len(), "each container");
    assert!(job.outcome.is_none(), "the orders have time to arrive");
    job.pass(5_000);
    let outcome = job.outcome.clone().unwrap();
    assert_eq!((outcome.state, outcome.exit_code), (JobState::Failed, ExitCode::Fenced));
    assert!(outcome.message.contains("it was killed"), "{}", outcome.message);
    assert_eq!((job.calls.len(), job.records.len()), (calls, records));
}

#[test]
fn fenced_store_ends_the_attempt() {
    let mut job = Job::bsp();
    job.auto.store = false;
    job.operate(1, Operation::Checkpoint);
    job.answer_store(Stored::Fenced { error: "g2".to_owned() });
    assert_eq!(job.outcome.as_ref().unwrap().exit_code, ExitCode::Fenced);
}

#[test]
fn model_published_by_another_job_fails_the_job_unfenced() {
    let mut job = exporting();
    job.auto.store = false;
    exports(&mut job);
    job.answer_store(Stored::Taken { error: "/out/MODEL.json exists already".to_owned() });
    let outcome = job.outcome.clone().unwrap();
    assert_eq!((outcome.state, outcome.exit_code), (JobState::Failed, ExitCode::Input));
    assert!(matches!(job.records.last(), Some(Record::Outcome(_))));
}

#[test]
fn publication_without_disk_space_is_retried_then_denied() {
    let mut job = exporting();
    job.auto.store = false;
    exports(&mut job);
    for _ in 0..5 {
        assert!(job.outcome.is_none(), "room may be made");
        let text = "cannot create /out/MODEL.json: no space left";
        job.answer_store(Stored::NotDone { failure: Failure::new(ErrorClass::Denied, text) });
        job.pass(64_000);
    }
    let outcome = job.outcome.clone().unwrap();
    assert_eq!((outcome.state, outcome.exit_code), (JobState::Failed, ExitCode::Denied));
    let message = &outcome.message;
    assert!(message.contains("no space left"), "{message}");
}

#[test]
fn fatal_report_ends_the_job_with_its_exit_code() {
    let mut job = Job::bsp();
    let trainer = job.trainer(0);
    job.report(
        trainer,
        Report::Fatal {
            failure: Failure::new(ErrorClass::Input, "train.libsvm:3:5: index 99 above 10"),
        },
    );
    let outcome = job.outcome.clone().unwrap();
    assert_eq!(outcome.exit_code, ExitCode::Input);
    assert!(outcome.message.contains("train.libsvm:3:5"), "{}", outcome.message);
}

#[test]
fn task_that_keeps_failing_ends_the_job_and_bad_data_at_once() {
    /// The holder of the first task reports that it cannot compute it.
    fn fail(job: &mut Job, retryable: bool, failure: Failure) {
        let holds = |(member, process): (&Member, &Process)| {
            Some((*member, *process.tasks.iter().find(|grant| grant.task.0 == 0)?))
        };
        let (member, grant) = job.processes.iter().find_map(holds).expect("it is held");
        let process = job.processes.get_mut(&member).expect("it is there");
        process.tasks.retain(|held| *held != grant);
        let (epoch, phase) = (process.epoch, process.phase.expect("it works").no);
        let (task, attempt) = (grant.task, grant.attempt);
        job.report(
            member,
            TrainerReport::TaskFailed { epoch, phase, task, attempt, retryable, failure },
        );
    }
    for (retryable, class, exit_code) in [
        (true, ErrorClass::Unreachable, ExitCode::Unreachable),
        (true, ErrorClass::Denied, ExitCode::Denied),
        (false, ErrorClass::Input, ExitCode::Input),
        (false, ErrorClass::Denied, ExitCode::Denied),
    ] {
        let mut job = Job::asp(4);
        // After its first error the other trainer gets it.
        for _ in 0..if retryable { 4 } else { 1 } {
            assert!(job.outcome.is_none(), "{class:?}");
            fail(&mut job, retryable, Failure::new(class, "cannot read x.libsvm"));
        }
        assert_eq!(job.outcome.as_ref().unwrap().exit_code, exit_code, "{class:?}");
    }
}

#[test]
fn bad_records_count_once_per_task_and_too_many_end_the_job() {
    let mut tolerant = spec(Consistency::Bsp);
    tolerant.data.bad_records = BadRecords::Skip(3);
    let mut job = Job::started(tolerant, 4, 0);
    let t0 = job.trainer(0);
    let phase = job.core.view().phase;
    let steps = |task: u32, bad: u64| {
        Report::Trainer(TrainerReport::TaskSteps {
            phase,
            task: heddle_protocol::ids::TaskId(task),
            steps: 3,
            metrics: Box::new(heddle_protocol::metrics::TaskMetrics {
                bad_records: bad,
                bad_examples: vec![format!("x.libsvm:{task}:1: bad")],
                ..Default::default()
            }),
        })
    };
    job.report(t0, steps(3, 2));
    job.report(t0, steps(3, 2));
    assert!(job.outcome.is_none(), "the same task reported again");
    assert_eq!(job.core.view().bad_records, 2);
    job.report(t0, steps(1, 2));
    let outcome = job.outcome.as_ref().unwrap();
    assert_eq!(outcome.exit_code, ExitCode::Input);
    let first = "data.bad-records allows (3), the first: x.libsvm:1:1: bad;";
    assert!(outcome.message.contains(first), "{}", outcome.message);
}

#[test]
fn job_refused_by_the_cluster_ends_with_its_diagnostics() {
    let mut job = Job::new(spec(Consistency::Bsp), 4, 0);
    job.auto.cluster = false;
    job.start();
    job.on(Event::Rejected { reason: "queue root.x does not exist".to_owned() });
    let outcome = job.outcome.clone().unwrap();
    assert_eq!(outcome.exit_code, ExitCode::Refused);
    assert!(outcome.message.contains("root.x"));
}

#[test]
fn without_an_output_directory_no_model_is_written() {
    let mut config = Job::new(spec(Consistency::Bsp), 4, 0).config;
    config.output = None;
    let mut job = Job::with(config);
    job.start();
    job.end_phase(3);
    let outcome = job.outcome.clone().unwrap();
    assert_eq!((outcome.state, outcome.model), (JobState::Finished, None));
}

#[test]
fn clock_that_goes_back_counts_as_stopped() {
    let mut job = Job::bsp();
    let now = Now { mono: MonotonicMs(0), wall_ms: 0 };
    let actions: Vec<Action> = job.core.on(Event::Timer, now);
    assert!(actions.is_empty());
    assert_eq!(job.core.view().state, JobState::Running);
}
