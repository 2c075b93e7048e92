//! Pservers are lost, the journal hangs, files are damaged: the job returns to the last checkpoint.

use heddle_am_core::{Event, Exit, Record, RecordId, StoreCall, Stored};
use heddle_protocol::control::{
    Command, CutAt, LoadShards, Operation, PserverCommand, PserverReport, Report, ShardCommand,
    ShardReport, TrainerCommand, TrainerReport,
};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::{
    CutId, Epoch, Generation, Incarnation, Lane, ShardId, Slot, Step, TaskId,
};
use heddle_protocol::job_spec::{BadRecords, Consistency, DurationMs, Every, OnCorrupt};
use heddle_protocol::view::{JobEvent as Notice, JobState};

use crate::harness::{Job, lanes_of, position, spec};

fn epoch(count: u32) -> Epoch {
    Epoch { generation: Generation(1), count }
}

fn holds(job: &Job, from: usize) -> Vec<Epoch> {
    let epochs = job.sent[from..].iter().filter_map(|(_, command)| match command {
        Command::Pserver(PserverCommand::LoadShards(LoadShards { epoch, .. })) => Some(*epoch),
        _ => None,
    });
    epochs.collect()
}

/// A BSP job with a checkpoint at step 5 and the shards at step 9.
fn bsp_beyond_a_checkpoint() -> Job {
    let mut job = Job::bsp();
    job.operate(1, Operation::Checkpoint);
    let cut = job.cut();
    job.snap_all(cut, 5);
    job.save_all(cut);
    for member in job.pservers() {
        job.processes.get_mut(&member).unwrap().step = Step(9);
        job.beat(member, |_| {});
    }
    job
}

#[test]
fn lost_pserver_rolls_all_shards_back_to_the_last_checkpoint() {
    let mut job = bsp_beyond_a_checkpoint();
    let (survivors, base) = (job.pserver(1), job.checkpoints[1].manifest.cut);
    let (from, trainers) = (job.sent.len(), job.trainers());
    job.kill(job.pserver(0));
    assert_eq!(holds(&job, from), [epoch(1), epoch(1)], "the survivor and the replacement");
    assert_eq!(job.pserver(1), survivors, "no other container restarts");
    assert_eq!(job.trainers(), trainers);
    let Some((
        _,
        Command::Pserver(PserverCommand::LoadShards(LoadShards {
            base: Some(told),
            phase,
            step,
            ..
        })),
    )) = job.sent[from..]
        .iter()
        .find(|(_, command)| matches!(command, Command::Pserver(PserverCommand::LoadShards(_))))
    else {
        panic!("no trainer was ordered to return")
    };
    assert_eq!((told.cut, phase.no.0, *step), (base, 0, Step(5)));
    assert_eq!(told.files.len(), 2, "the files of its own shards");
    let works = job.sent[from..].iter().filter(|(_, command)| match command {
        Command::Trainer(TrainerCommand::Work { epoch: e, .. }) => *e == epoch(1),
        _ => false,
    });
    assert_eq!(works.count(), 2);
    let view = job.core.view();
    assert_eq!(view.state, JobState::Running);
    let recovery = &view.recoveries[0];
    assert_eq!((recovery.epoch_before, recovery.epoch_after), (epoch(0), epoch(1)));
    assert_eq!(
        (recovery.base, recovery.base_step, recovery.step),
        (Some(base), Some(Step(5)), Step(9))
    );
    assert!(!recovery.done, "until trainers have taken a step");
    for member in job.trainers() {
        job.report(member, TrainerReport::Stepping { epoch: epoch(1) });
    }
    let recovery = &job.core.view().recoveries[0];
    assert!(recovery.done);
    assert!(recovery.checkpoint_ms.is_some() && recovery.notice_ms.is_some());
    assert!(
        recovery.restart_ms.is_some() && recovery.load_ms.is_some() && recovery.resume_ms.is_some()
    );
    assert!(matches!(job.notices.last(), Some(Notice::Recovered(_))));
    let rollback = |notice: &&Notice| {
        matches!(notice, Notice::RollbackStarted { .. } | Notice::RollbackFinished { .. })
    };
    let rollbacks: Vec<&Notice> = job.notices.iter().filter(rollback).collect();
    let [Notice::RollbackStarted { epoch: begun, base: from, shards: 4, .. }, finished] =
        rollbacks[..]
    else {
        panic!("{rollbacks:?}")
    };
    assert_eq!((*begun, *from), (epoch(1), Some(base)));
    let Notice::RollbackFinished { epoch: ended, from_memory, from_storage, .. } = finished else {
        panic!("{finished:?}")
    };
    assert_eq!((*ended, from_memory + from_storage), (epoch(1), 4));
}

#[test]
fn trainers_get_the_epoch_after_all_shards_are_loaded() {
    let mut job = Job::bsp();
    job.auto.hold = false;
    let from = job.sent.len();
    job.kill(job.pserver(0));
    let worked = |job: &Job| {
        job.sent[from..]
            .iter()
            .any(|(_, command)| matches!(command, Command::Trainer(TrainerCommand::Work { .. })))
    };
    let (p0, p1) = (job.pserver(0), job.pserver(1));
    let holding = Report::Pserver(PserverReport::ShardsReady {
        epoch: epoch(1),
        from_memory: 0,
        from_storage: 2,
        loaded: Vec::new(),
    });
    job.report(p1, holding.clone());
    assert!(!worked(&job));
    job.report(
        p0,
        PserverReport::ShardsReady {
            epoch: epoch(0),
            from_memory: 0,
            from_storage: 2,
            loaded: Vec::new(),
        },
    );
    assert!(!worked(&job), "an answer for another epoch is none");
    job.report(p0, holding);
    assert!(worked(&job));
}

#[test]
fn epoch_is_sent_only_after_its_record_is_durable() {
    let mut job = Job::bsp();
    job.auto.journal = false;
    let from = job.sent.len();
    job.kill(job.pserver(0));
    assert!(matches!(job.records.last(), Some(Record::Restore { epoch: e, .. }) if *e == epoch(1)));
    job.pass(30_000);
    assert_eq!(holds(&job, from), [], "the record hangs, so the command waits");
    assert_eq!(job.pserver(0).incarnation, Incarnation(2), "containers may start meanwhile");
    job.all_durable();
    assert_eq!(holds(&job, from), [epoch(1), epoch(1)]);
}

#[test]
fn second_loss_starts_again_with_the_next_epoch() {
    let mut job = Job::bsp();
    job.auto.hold = false;
    job.kill(job.pserver(0));
    let from = job.sent.len();
    job.kill(job.pserver(1));
    assert_eq!(
        holds(&job, from),
        [epoch(2), epoch(2)],
        "the first one's record is not driven again"
    );
    job.auto.hold = true;
    job.kill(job.pserver(0));
    job.pass(1_000);
    assert_eq!(job.core.view().epoch, epoch(3));
    assert_eq!(job.core.view().state, JobState::Running);
    let recorded: Vec<Epoch> = job
        .records
        .iter()
        .filter_map(|record| match record {
            Record::Restore { epoch, .. } => Some(*epoch),
            _ => None,
        })
        .collect();
    assert_eq!(recorded, [epoch(0), epoch(1), epoch(2), epoch(3)]);
}

#[test]
fn rollback_without_a_checkpoint_returns_to_initial_values() {
    let mut job = Job::new(spec(Consistency::Bsp), 4, 0);
    job.auto.store = false;
    job.start();
    job.answer_store(Stored::NotDone {
        failure: Failure::new(ErrorClass::Unreachable, "no space left"),
    });
    let from = job.sent.len();
    job.kill(job.pserver(0));
    let base = job.sent[from..].iter().find_map(|(_, command)| match command {
        Command::Pserver(PserverCommand::LoadShards(LoadShards { base, step, .. })) => {
            Some((base.clone(), *step))
        }
        _ => None,
    });
    assert_eq!(base, Some((None, Step(0))));
}

#[test]
fn reports_of_the_epoch_before_a_rollback_are_ignored() {
    let mut job = Job::asp(6);
    let t0 = job.trainer(0);
    let (process, grant) = (job.process(t0).clone(), job.process(t0).tasks[0]);
    let late = process.finished(grant);
    job.kill(job.pserver(0));
    let now_held = job.process(t0).tasks.iter().find(|held| held.task == grant.task).copied();
    job.report(t0, late);
    let view = job.core.view();
    assert_eq!(view.tasks_done, 0, "finished in epoch 0, which is forgotten: {now_held:?}");
    job.finish_all();
    assert_eq!(job.outcome.as_ref().unwrap().state, JobState::Finished, "so it is done again");
}

#[test]
fn phase_end_of_the_epoch_before_is_ignored() {
    let mut job = Job::bsp();
    let p1 = job.pserver(1);
    let shards = job.process(p1).shards.clone();
    job.kill(job.pserver(0));
    let from = job.sent.len();
    for shard in shards {
        job.report(
            p1,
            Report::Shard {
                epoch: epoch(0),
                report: ShardReport::PhaseEnded {
                    phase: job.core.view().phase,
                    shard,
                    step: Step(3),
                    sums: None,
                },
            },
        );
    }
    let p0 = job.pserver(0);
    for shard in job.process(p0).shards.clone() {
        job.report(
            p0,
            Report::Shard {
                epoch: epoch(1),
                report: ShardReport::PhaseEnded {
                    phase: job.core.view().phase,
                    shard,
                    step: Step(3),
                    sums: None,
                },
            },
        );
    }
    let ordered = job.sent[from..]
        .iter()
        .any(|(_, command)| matches!(command, Command::Pserver(PserverCommand::Cut(_))));
    assert!(!ordered, "the phase is not over, so no final cut is due");
}

#[test]
fn rollback_repeats_only_tasks_done_after_the_checkpoint() {
    let mut job = Job::asp(12);
    let t0 = job.trainer(0);
    let before = job.process(t0).tasks[0].task;
    job.finish(t0, before);
    job.operate(1, Operation::Checkpoint);
    let cut = job.cut();
    job.snap_all(cut, 0);
    job.save_all(cut);
    assert_eq!(job.checkpoints.len(), 2);
    let after = job.process(t0).tasks[0].task;
    job.finish(t0, after);
    let from = job.sent.len();
    job.kill(job.pserver(1));
    let handed: Vec<TaskId> = job.sent[from..]
        .iter()
        .filter_map(|(_, command)| match command {
            Command::Trainer(TrainerCommand::Tasks { tasks, .. }) => {
                Some(tasks.iter().map(|grant| grant.task))
            }
            _ => None,
        })
        .flatten()
        .collect();
    assert!(handed.contains(&after) && !handed.contains(&before), "{handed:?}");
    assert_eq!(job.core.view().tasks_done, 1);
}

#[test]
fn bad_records_before_the_checkpoint_count_after_a_rollback() {
    let mut tolerant = spec(Consistency::Asp);
    tolerant.data.bad_records = BadRecords::Skip(3);
    let mut job = Job::started(tolerant, 12, 0);
    let t0 = job.trainer(0);
    let first = |job: &Job| job.process(t0).tasks[0].task;
    let before = first(&job);
    job.finish_with(t0, before, 2);
    job.operate(1, Operation::Checkpoint);
    let cut = job.cut();
    job.snap_all(cut, 0);
    job.save_all(cut);
    let after = first(&job);
    job.finish_with(t0, after, 1);
    assert_eq!(job.core.view().bad_records, 3);
    job.kill(job.pserver(1));
    assert!(job.outcome.is_none(), "three are allowed");
    assert!(job.process(t0).tasks.iter().any(|held| held.task == after), "done again");
    job.finish_with(t0, after, 1);
    assert!(job.outcome.is_none(), "the same record is counted once");
    let next = first(&job);
    job.finish_with(t0, next, 1);
    assert_eq!(
        job.outcome.as_ref().map(|outcome| outcome.exit_code),
        Some(ExitCode::Input),
        "two before the checkpoint and two after it"
    );
}

#[test]
fn survivors_take_the_shards_of_a_pserver_without_replacement() {
    let mut job = Job::bsp();
    job.auto.cluster = false;
    job.kill(job.pserver(0));
    job.pass(30_000);
    let p1 = job.pserver(1);
    assert_eq!(job.process(p1).shards.len(), 4);
    assert_eq!(job.core.view().epoch, epoch(2), "another map is another epoch");
    assert_eq!(job.core.view().state, JobState::Running);
    job.auto.snap = false;
    job.grant(Slot::pserver(0), Incarnation(2));
    job.on(Event::Timer);
    let late = job.pserver(0);
    assert_eq!(job.process(late).shards, [], "its shards are elsewhere");
    job.kill(late);
    assert_eq!(job.core.view().epoch, epoch(2), "losing one without shards is no rollback");
    job.auto.snap = true;
    job.end_phase(4);
    assert!(job.outcome.is_some());
}

#[test]
fn damaged_checkpoint_is_reported_and_the_one_before_restored() {
    let mut job = bsp_beyond_a_checkpoint();
    job.auto.hold = false;
    let (older, damaged) = (job.checkpoints[0].manifest.cut, job.checkpoints[1].manifest.cut);
    job.kill(job.pserver(0));
    let p0 = job.pserver(0);
    job.auto.hold = true;
    job.report(
        p0,
        PserverReport::LoadFailed {
            epoch: epoch(1),
            failure: Failure::new(ErrorClass::Corrupt, "md5 of shard-0"),
        },
    );
    assert!(
        job.calls.iter().any(
            |(_, call)| matches!(call, StoreCall::OlderBase { below, .. } if *below == damaged)
        )
    );
    assert!(job.warned("CheckpointDamaged"));
    let last = job.records.iter().rev().find_map(|record| match record {
        Record::Restore { base, epoch, .. } => Some((*base, *epoch)),
        _ => None,
    });
    assert_eq!(last, Some((Some(older), epoch(2))));
    assert_eq!(job.core.view().state, JobState::Running);
}

/// A pserver finds the checkpoint damaged that a job continues from: it begins with another one.
#[test]
fn start_names_the_checkpoint_that_is_used() {
    let before = bsp_beyond_a_checkpoint();
    let cuts: Vec<CutId> = before.checkpoints.iter().map(|found| found.manifest.cut).collect();
    let [older, damaged] = cuts[..] else { panic!("{cuts:?}") };
    let mut job = Job::with(before.config.clone());
    job.checkpoints = before.checkpoints.clone();
    job.auto.hold = false;
    job.start();
    job.auto.hold = true;
    let (member, epoch) = (job.pserver(0), job.core.view().epoch);
    let failure = Failure::new(ErrorClass::Corrupt, "md5 of shard-0");
    job.report(member, PserverReport::LoadFailed { epoch, failure });
    let told = job.notices.iter().filter_map(|event| match event {
        Notice::Started { resumed_from, .. } => resumed_from.map(|cut| (cut, None)),
        Notice::CheckpointDamaged { cut, dir, .. } => Some((*cut, Some(dir.clone()))),
        _ => None,
    });
    let aside = format!("file:///ck/damaged/{damaged}-0");
    let expected = [(damaged, None), (damaged, Some(aside)), (older, None)];
    assert_eq!(told.collect::<Vec<_>>(), expected);
    // Once work has begun, a rollback names its checkpoint.
    job.auto.hold = false;
    job.kill(job.pserver(0));
    let (member, epoch) = (job.pserver(0), job.core.view().epoch);
    let failure = Failure::new(ErrorClass::Corrupt, "md5 of shard-0");
    job.report(member, PserverReport::LoadFailed { epoch, failure });
    let starts = |event: &&Notice| matches!(event, Notice::Started { .. });
    assert_eq!(job.notices.iter().filter(starts).count(), 2);
}

#[test]
fn damaged_checkpoint_fails_the_job_by_spec_or_without_an_older() {
    for (on_corrupt, words) in
        [(OnCorrupt::Fail, "damaged"), (OnCorrupt::Previous, "no earlier valid checkpoint")]
    {
        let mut strict = spec(Consistency::Bsp);
        strict.checkpoint.on_corrupt = on_corrupt;
        let mut job = Job::started(strict, 4, 0);
        job.auto.hold = false;
        job.kill(job.pserver(0));
        let p0 = job.pserver(0);
        job.report(
            p0,
            PserverReport::LoadFailed {
                epoch: epoch(1),
                failure: Failure::new(ErrorClass::Corrupt, "md5"),
            },
        );
        let outcome = job.outcome.clone().unwrap();
        assert_eq!(outcome.exit_code, ExitCode::Checkpoint);
        assert!(outcome.message.contains(words), "{}", outcome.message);
    }
}

/// Initial values are never read from an older checkpoint: the job would begin with other values than at first.
#[test]
fn damaged_file_of_another_job_ends_this_one() {
    let mut job = Job::new(spec(Consistency::Bsp), 4, 0);
    job.auto.hold = false;
    job.start();
    let p0 = job.pserver(0);
    let failure = Failure::new(ErrorClass::Corrupt, "/other/g1-c4/shard-0: MD5");
    job.report(p0, PserverReport::LoadFailed { epoch: epoch(0), failure });
    let outcome = job.outcome.clone().unwrap();
    assert_eq!(outcome.exit_code, ExitCode::Checkpoint);
    assert_eq!(outcome.message, "model.init: /other/g1-c4/shard-0: MD5; name another checkpoint");
}

#[test]
fn unreadable_checkpoint_is_retried_and_never_replaced() {
    let mut job = bsp_beyond_a_checkpoint();
    let base = job.checkpoints[1].manifest.cut;
    job.auto.hold = false;
    job.kill(job.pserver(0));
    let p0 = job.pserver(0);
    let mut tries = 0;
    while job.outcome.is_none() {
        tries += 1;
        assert!(tries < 20);
        let current = job.core.view().epoch;
        job.report(
            p0,
            PserverReport::LoadFailed {
                epoch: current,
                failure: Failure::new(ErrorClass::Unreachable, "connection refused"),
            },
        );
        job.pass(64_000);
    }
    assert_eq!(job.outcome.as_ref().unwrap().exit_code, ExitCode::Unreachable);
    for record in &job.records {
        if let Record::Restore { base: Some(cut), epoch: e, .. } = record {
            assert!(*e == epoch(0) || *cut == base, "{record:?}");
        }
    }
    assert!(job.calls.iter().all(|(_, call)| !matches!(call, StoreCall::OlderBase { .. })));
}

#[test]
fn rollback_waits_for_the_commit_that_decides_its_base() {
    let mut job = Job::bsp();
    job.operate(1, Operation::Checkpoint);
    let cut = job.cut();
    job.snap_all(cut, 5);
    job.auto.store = false;
    job.save_all(cut);
    let from = job.sent.len();
    job.kill(job.pserver(0));
    assert_eq!(holds(&job, from), []);
    let (commit, _) =
        *job.calls.iter().map(|(id, call)| (*id, call)).collect::<Vec<_>>().last().unwrap();
    job.store(commit);
    job.on(Event::Timer);
    let Some(Record::Restore { base, .. }) =
        job.records.iter().rev().find(|record| matches!(record, Record::Restore { .. }))
    else {
        panic!("no rollback")
    };
    assert_eq!(*base, Some(cut), "all was saved: the rollback goes there");
    assert_eq!(job.core.view().state, JobState::Running);
}

#[test]
fn three_losses_at_once_are_three_recoveries() {
    let mut job = bsp_beyond_a_checkpoint();
    job.kill(job.pserver(0));
    job.kill(job.trainer(1));
    job.kill(job.pserver(1));
    assert_eq!(job.core.view().state, JobState::Running);
    assert_eq!(
        job.process(job.trainer(0)).lanes.len() + job.process(job.trainer(1)).lanes.len(),
        2
    );
    job.end_phase(12);
    assert_eq!(job.outcome.as_ref().unwrap().state, JobState::Finished);
    assert!(job.core.view().recoveries.iter().all(|recovery| recovery.done));
}

#[test]
fn loss_between_phases_returns_to_the_checkpoint() {
    let mut two = spec(Consistency::Bsp);
    two.data.passes = 2;
    let mut job = Job::started(two, 4, 0);
    job.auto.begin = false;
    job.end_phase(3);
    assert_eq!(job.core.view().phase.0, 1);
    job.auto.begin = true;
    job.kill(job.pserver(0));
    assert_eq!(job.core.view().phase.0, 0);
    job.end_phase(3);
    job.end_phase(3);
    assert!(job.outcome.is_some());
}

#[test]
fn lanes_of_a_lost_trainer_are_shared_with_its_replacement() {
    let mut job = Job::bsp();
    job.auto.register = false;
    let (t0, t1) = (job.trainer(0), job.trainer(1));
    let from = job.sent.len();
    job.kill(t0);
    assert_eq!(lanes_of(&job, t1), [Lane(0), Lane(1)]);
    let fence = job.sent[from..].iter().position(|(_, command)| match command {
        Command::Shards(ShardCommand::Members { trainers }) => *trainers == [t1],
        _ => false,
    });
    let handed = job.sent[from..]
        .iter()
        .position(|(_, command)| matches!(command, Command::Trainer(TrainerCommand::Lanes { .. })));
    assert!(fence < handed, "fenced first");
    assert_eq!(job.core.view().epoch, epoch(0), "no rollback");
    let replacement = job.trainer(0);
    job.registers(replacement);
    assert_eq!((job.process(replacement).lanes.len(), job.process(t1).lanes.len()), (1, 1));
    job.report(replacement, TrainerReport::Stepping { epoch: epoch(0) });
    let recovery = &job.core.view().recoveries[0];
    assert!(recovery.done && recovery.restart_ms.is_some());
}

#[test]
fn asp_tasks_continue_at_the_step_that_all_shards_acknowledged() {
    let mut job = Job::asp(3);
    job.auto.register = false;
    let (t0, t1) = (job.trainer(0), job.trainer(1));
    let grant = job.process(t0).tasks[0];
    let (current, phase) = (job.process(t0).epoch, job.process(t0).phase.unwrap().no);
    job.report(
        t0,
        TrainerReport::Progress {
            epoch: current,
            phase,
            cut: Default::default(),
            tasks: vec![position(grant, 50)],
        },
    );
    job.kill(t0);
    while job.process(t1).tasks.iter().all(|held| held.task != grant.task) {
        let task = job.process(t1).tasks[0].task;
        job.finish(t1, task);
    }
    let handed = job.process(t1).tasks.iter().find(|held| held.task == grant.task).unwrap();
    assert_eq!(handed.start, Step(50));
}

#[test]
fn trainer_that_reconnects_gets_its_tasks_and_lost_ones_move() {
    let mut job = Job::asp(4);
    let t0 = job.trainer(0);
    let lost = job.processes.get_mut(&t0).unwrap().tasks.remove(0);
    job.disconnect(t0);
    job.registers(t0);
    assert!(
        job.process(t0).tasks.iter().all(|grant| grant.task != lost.task),
        "its report may be on the way"
    );
    job.beat(t0, |_| {});
    job.finish_all();
    assert!(job.outcome.is_some(), "task {} was not lost", lost.task);
}

#[test]
fn journal_that_fails_ends_the_job_before_further_commands() {
    let mut job = Job::bsp();
    job.auto.journal = false;
    job.kill(job.pserver(0));
    let from = job.sent.len();
    job.on(Event::JournalFailed {
        error: "disk full".to_owned(),
        fenced: false,
        exit_code: ExitCode::Denied,
    });
    assert_eq!(job.outcome.as_ref().unwrap().exit_code, ExitCode::Denied);
    assert_eq!(job.sent.len(), from);
    job.on(Event::RecordDurable { record: RecordId(99) });
    assert_eq!(job.sent.len(), from);
}

/// Cuts that began after call `from`.
fn staged(job: &Job, from: usize) -> usize {
    let calls = job.calls[from..].iter();
    calls.filter(|(_, call)| matches!(call, StoreCall::Stage { .. })).count()
}

#[test]
fn frequent_losses_do_not_delay_periodic_checkpoints() {
    for consistency in [Consistency::Asp, Consistency::Bsp] {
        let mut often = spec(consistency);
        often.checkpoint.every = Every::Time(DurationMs::secs(4));
        let mut job = Job::started(often, 40, 0);
        job.auto.save = false;
        let lose = |job: &mut Job| {
            let pserver = job.pserver(0);
            job.exit(pserver, Exit::NodeLost);
        };
        let from = job.calls.len();
        for _ in 0..2 {
            job.pass(1_800);
            lose(&mut job);
        }
        assert_eq!(staged(&job, from), 0);
        job.pass(1_000);
        assert_eq!(staged(&job, from), 1, "four seconds after the last one");
        // It is lost with a pserver: the next one does not wait for a whole period, and the state that all shards
        // returned to is not saved again.
        lose(&mut job);
        assert_eq!(staged(&job, from), 1);
        job.pass(1_000);
        assert_eq!(staged(&job, from), 2);
        // The same holds if its deadline passes while shards are loading.
        lose(&mut job);
        job.auto.hold = false;
        lose(&mut job);
        job.pass(5_000);
        assert_eq!(staged(&job, from), 2);
        job.auto.hold = true;
        lose(&mut job);
        assert_eq!(staged(&job, from), 2);
        job.pass(1_000);
        assert_eq!(staged(&job, from), 3, "{consistency:?}");
    }
}

/// Schedule 50 on the job: Young's period before and after six rollbacks.
#[test]
fn s50_auto_period_follows_the_rollbacks() {
    let mut spec = spec(Consistency::Asp);
    spec.checkpoint.every = Every::Auto;
    let mut job = Job::started(spec, 4_000, 0);
    job.auto.save = false;
    // Checkpoints of milliseconds cost 50 ms, and one rollback in a day is assumed: 93 s.
    let from = job.calls.len();
    job.pass(92_000);
    assert_eq!(staged(&job, from), 0);
    job.pass(2_000);
    assert_eq!(staged(&job, from), 1);
    job.auto.save = true;
    let cut = job.cut();
    job.save_all(cut);
    for _ in 0..6 {
        let pserver = job.pserver(0);
        job.exit(pserver, Exit::NodeLost);
        job.pass(1_000);
    }
    let said = job.notices.iter().rev().find_map(|notice| match notice {
        Notice::CheckpointPeriod(period) => Some(period.clone()),
        _ => None,
    });
    let period = said.expect("the new period is reported");
    // Six rollbacks in 100 s: one in 24 min; 12 s, and 30 s are the least.
    assert_eq!((period.period_ms, period.cost_ms), (30_000, 50));
}

/// Schedule 46 in the core: a pserver has used another copy of a file.
#[test]
fn s46_a_copy_that_was_passed_over_is_replaced() {
    let mut job = bsp_beyond_a_checkpoint();
    let pserver = job.pserver(0);
    let passed_over = |count| {
        Report::Pserver(PserverReport::CopiesPassedOver {
            epoch: epoch(count),
            shard: ShardId(0),
            passed: vec!["shard-00000 is damaged".to_owned()],
        })
    };
    let replaced = |job: &Job| {
        let calls = job.calls.iter().filter_map(|(_, call)| match call {
            StoreCall::ReplaceCopies { cut, shard } => Some((*cut, *shard)),
            _ => None,
        });
        calls.collect::<Vec<_>>()
    };
    job.report(pserver, passed_over(7));
    assert!(replaced(&job).is_empty(), "of another epoch");
    job.report(pserver, passed_over(0));
    let base = job.checkpoints.last().expect("one was committed").manifest.cut;
    assert_eq!(replaced(&job), [(base, ShardId(0))]);
    assert!(job.warned("from another copy: shard-00000 is damaged"));
}

/// The cost of a checkpoint is measured whatever decides when the next one is due.
#[test]
fn training_that_a_save_slows_is_warned_of_at_fixed_periods_too() {
    for every in [Every::Time(DurationMs::secs(20)), Every::Steps(200)] {
        let mut spec = spec(Consistency::Bsp);
        spec.checkpoint.every = every;
        let mut job = Job::started(spec, 400, 0);
        job.auto.save = false;
        let from = job.calls.len();
        let mut step = 0;
        let reach = |job: &mut Job, step: u64| {
            for member in job.pservers() {
                job.processes.get_mut(&member).unwrap().step = Step(step);
            }
            job.pass(1_000);
        };
        while staged(&job, from) == 0 {
            step += 10;
            assert!(step < 1_000, "{every:?}: no checkpoint is due");
            reach(&mut job, step);
        }
        for _ in 0..12 {
            reach(&mut job, step);
        }
        assert!(!job.warned("slower while a checkpoint was saved"), "{every:?}: not saved yet");
        let CutAt::Steps(at) = job.cut_at() else { panic!("a BSP cut names a step") };
        let cut = job.cut();
        job.snap_all(cut, at.0);
        job.save_all(cut);
        assert!(job.warned("slower while a checkpoint was saved"), "{every:?}");
    }
}

/// Processes are killed at random. The same task ran each time, and that proves no fault of the task.
#[test]
fn kills_do_not_count_against_the_task_that_ran() {
    let mut job = Job::asp(3);
    let task = TaskId(0);
    for _ in 0..6 {
        let holder = job
            .processes
            .iter()
            .find(|(_, process)| process.tasks.iter().any(|grant| grant.task == task))
            .map(|(member, _)| *member);
        job.kill(holder.expect("a trainer has it"));
        job.pass(5_000);
        assert!(job.outcome.is_none(), "{:?}", job.outcome);
    }
    job.finish_all();
    assert_eq!(job.outcome.as_ref().map(|outcome| outcome.state), Some(JobState::Finished));
}
