//! Local recovery: lost shards alone go back, and what is lost with them is counted.

use heddle_am_core::{Event, LostUpdates, Record};
use heddle_protocol::control::{
    Command, LoadShards, LostShards, Operation, PserverCommand, PserverReport, ReplicaState,
    Report, ShardState, TaskPosition, TrainerReport,
};
use heddle_protocol::ids::{Incarnation, Member, Role, ShardId, Slot, Step, TaskAttempt, TaskId};
use heddle_protocol::job_spec::{Consistency, JobSpec, RecoveryScope};
use heddle_protocol::task_set::TaskSet;
use heddle_protocol::view::{JobState, RecoveryKind};

use crate::failover::epoch;
use crate::harness::{Job, position, spec};
use crate::takeover::{held, registers_with, restart, task};

fn local() -> JobSpec {
    let mut spec = spec(Consistency::Asp);
    spec.pservers.recovery = RecoveryScope::Local;
    spec
}

/// The last order to load that a pserver got.
fn last_load(job: &Job, to: Member) -> LoadShards {
    let of = |(member, command): &(Member, Command)| match command {
        Command::Pserver(PserverCommand::LoadShards(load)) if *member == to => Some(load.clone()),
        _ => None,
    };
    job.sent.iter().rev().find_map(of).unwrap()
}

/// The shards that the last epoch took back alone.
fn taken_back(job: &Job) -> Vec<ShardId> {
    let of = |record: &Record| match record {
        Record::Restore { lost, .. } => Some(lost.clone()),
        _ => None,
    };
    job.records.iter().rev().find_map(of).unwrap()
}

/// The last record of lost updates.
fn last_loss(job: &Job) -> Option<LostUpdates> {
    let of = |record: &Record| match record {
        Record::UpdatesLost(lost) => Some(lost.clone()),
        _ => None,
    };
    job.records.iter().rev().find_map(of)
}

/// A trainer has reached this step of its first task.
fn reach(job: &mut Job, trainer: u32, step: u64) -> TaskId {
    let trainer = job.trainer(trainer);
    let process = job.process(trainer);
    let (grant, phase) = (process.tasks[0], process.phase.unwrap().no);
    let (epoch, cut) = (epoch(job), process.cut);
    let tasks = vec![position(grant, step)];
    job.report(trainer, TrainerReport::Progress { epoch, phase, cut, tasks });
    grant.task
}

/// A trainer finishes its first task, which has this number of steps.
fn finish(job: &mut Job, trainer: u32, steps: u64) {
    let trainer = job.trainer(trainer);
    let mut up = job.process(trainer).finished(job.process(trainer).tasks[0]);
    if let Report::Trainer(TrainerReport::TaskFinished { metrics, .. }) = &mut up {
        metrics.steps = Some(steps);
    }
    job.processes.get_mut(&trainer).unwrap().tasks.remove(0);
    job.report(trainer, up);
}

fn save(job: &mut Job) {
    job.operate(1, Operation::Checkpoint);
    let cut = job.cut();
    job.snap_all(cut, 0);
    job.save_all(cut);
    assert_eq!(job.core.view().checkpoints_taken, 2);
}

/// What was measured of the columns is nowhere else until a checkpoint has it.
#[test]
fn all_shards_go_back_until_a_checkpoint_has_the_measurements() {
    let mut measures = local();
    measures.model.standardise = true;
    for kill_in in [0, 1, 2] {
        let mut job = Job::started(measures.clone(), 8, 0);
        job.auto.save = false;
        for phase in 0..kill_in {
            assert_eq!(job.core.view().phase.0, phase);
            while job.core.view().phase.0 == phase {
                let has_task = |n: &u32| !job.process(job.trainer(*n)).tasks.is_empty();
                let busy = [0, 1].into_iter().find(has_task).expect("a task is left");
                finish(&mut job, busy, 5);
            }
        }
        job.kill(job.pserver(1));
        assert_eq!(taken_back(&job), [], "in phase {kill_in}");
        assert!(job.warned("what was measured of the data"), "in phase {kill_in}");
    }
}

#[test]
fn s51_lost_shards_alone_go_back_and_what_they_lack_is_counted() {
    let mut job = Job::started(local(), 8, 0);
    let task = reach(&mut job, 0, 10);
    save(&mut job);
    assert_eq!(reach(&mut job, 0, 51), task);
    finish(&mut job, 1, 7);
    let (before, kept) = (epoch(&job), job.pserver(0));
    job.kill(job.pserver(1));
    assert_eq!(job.core.view().state, JobState::Running);
    assert_eq!(epoch(&job), before.next(), "frames of the lost process are refused");
    let lost = job.process(job.pserver(1)).shards.clone();
    assert_eq!(lost.len(), 2);
    for pserver in [kept, job.pserver(1)] {
        let LoadShards { lost: named, .. } = last_load(&job, pserver);
        let LostShards { shards, tasks, done, steps } = named.unwrap();
        assert_eq!((shards, done.len(), steps), (lost.clone(), 1, 41 + 7));
        assert_eq!(tasks, [(task, Step(51))]);
    }
    // Of each of the two shards.
    let updates = 2 * (41 + 7);
    let by_shard: Vec<_> = lost.iter().map(|shard| (*shard, 48)).collect();
    assert_eq!(taken_back(&job), lost);
    let record = last_loss(&job).unwrap();
    assert_eq!((record.epoch, record.updates), (epoch(&job), updates));
    assert_eq!(record.by_shard, by_shard);
    let view = job.core.view();
    assert_eq!(view.updates_lost, Some(updates));
    let recovery = view.recoveries.last().unwrap();
    assert_eq!((recovery.kind, recovery.updates_lost), (RecoveryKind::Local, Some(updates)));
    assert!(job.warned("shards 1 and 3 returned to "));
    assert!(job.warned("96 updates are lost. To lose fewer, shorten checkpoint.every"));
    // The task goes on where it was.
    let grants = job.trainers().into_iter().flat_map(|it| job.process(it).tasks.clone());
    let again: Vec<Step> = grants.filter(|it| it.task == task).map(|it| it.start).collect();
    assert_eq!(again, [Step(51)]);
}

#[test]
fn second_loss_counts_from_the_checkpoint_again() {
    let mut job = Job::started(local(), 8, 0);
    save(&mut job);
    reach(&mut job, 0, 5);
    job.kill(job.pserver(1));
    assert_eq!(job.core.view().updates_lost, Some(10));
    reach(&mut job, 0, 8);
    job.kill(job.pserver(0));
    assert_eq!(job.core.view().updates_lost, Some(10 + 16), "of its own checkpoint");
}

#[test]
fn updates_that_a_shard_loses_twice_count_once() {
    let mut job = Job::started(local(), 8, 0);
    save(&mut job);
    reach(&mut job, 0, 5);
    job.kill(job.pserver(1));
    reach(&mut job, 0, 8);
    job.kill(job.pserver(1));
    // The slot waits a moment after its second failure.
    job.pass(5_000);
    assert_eq!(job.core.view().updates_lost, Some(2 * 8));
    assert_eq!(job.core.view().recoveries.last().unwrap().updates_lost, Some(2 * 3));
}

#[test]
fn loss_while_shards_load_adds_to_them() {
    let mut job = Job::started(local(), 8, 0);
    save(&mut job);
    reach(&mut job, 0, 5);
    job.auto.cluster = false;
    job.kill(job.pserver(1));
    assert_eq!(job.core.view().updates_lost, None, "not over");
    job.kill(job.pserver(0));
    assert_eq!(taken_back(&job), [0, 1, 2, 3].map(ShardId));
    assert_eq!(last_loss(&job), None);
    for index in [0, 1] {
        job.grant(Slot::pserver(index), Incarnation(2));
    }
    job.on(Event::Timer);
    assert_eq!(job.core.view().state, JobState::Running);
    assert_eq!(job.core.view().updates_lost, Some(4 * 5), "each shard once");
}

#[test]
fn survivors_take_over_with_a_rollback_of_all() {
    let mut job = Job::started(local(), 8, 0);
    save(&mut job);
    reach(&mut job, 0, 5);
    job.auto.cluster = false;
    job.kill(job.pserver(1));
    job.pass(31_000);
    assert_eq!(job.core.view().state, JobState::Running);
    assert_eq!(job.process(job.pserver(0)).shards.len(), 4);
    assert_eq!((last_loss(&job), job.core.view().updates_lost), (None, None));
    assert_eq!(taken_back(&job), []);
    assert!(last_load(&job, job.pserver(0)).lost.is_none());
}

#[test]
fn the_number_of_lost_updates_outlives_the_applicationmaster() {
    let mut job = Job::started(local(), 8, 0);
    save(&mut job);
    reach(&mut job, 0, 5);
    job.kill(job.pserver(1));
    restart(&mut job, 2);
    for member in job.processes.keys().copied().collect::<Vec<_>>() {
        job.registers(member);
    }
    job.pass(1_000);
    assert_eq!(job.core.view().updates_lost, Some(10));
    let cut = job.cut();
    job.snap_all(cut, 0);
    job.save_all(cut);
    let last = job.checkpoints.last().unwrap();
    assert_eq!(
        last.manifest.progress.updates_lost.values().sum::<u64>(),
        10,
        "it is in the next checkpoint"
    );
}

/// The file of a shard has steps that were acknowledged after the barrier of their trainer.
#[test]
fn steps_that_the_file_has_beyond_its_positions_are_not_lost() {
    let mut job = Job::started(local(), 8, 0);
    save(&mut job);
    let task = reach(&mut job, 0, 8);
    job.auto.hold = false;
    job.kill(job.pserver(1));
    let epoch = epoch(&job);
    let state = |(shard, step): (&ShardId, u64)| ShardState {
        shard: *shard,
        phase: job.process(job.trainer(0)).phase.unwrap().no,
        step: Step(40),
        ended: false,
        counted: None,
        tasks: vec![TaskPosition { task, attempt: TaskAttempt(1), step: Step(step) }],
        done: TaskSet::default(),
        replica: ReplicaState::ALONE,
    };
    let LoadShards { shards, .. } = last_load(&job, job.pserver(1));
    let loaded = shards.iter().zip([2, 1]).map(state).collect();
    let none = Vec::new();
    for (pserver, loaded) in [(job.pserver(0), none), (job.pserver(1), loaded)] {
        job.report(
            pserver,
            PserverReport::ShardsReady { epoch, from_memory: 0, from_storage: 2, loaded },
        );
    }
    assert_eq!(last_loss(&job).unwrap().updates, 6 + 7);
    assert!(
        job.warned("shards 1 and 3 returned to step 40 (checkpoint g1-c2): 13 updates are lost")
    );
    assert_eq!(job.core.view().updates_lost, Some(6 + 7));
    assert_eq!(job.core.view().recoveries.last().unwrap().updates_lost, Some(6 + 7));
}

/// The shards may have gone back; what they lost would be unknown.
#[test]
fn attempt_that_ends_in_a_local_recovery_leaves_a_rollback() {
    let mut job = Job::started(local(), 8, 0);
    save(&mut job);
    reach(&mut job, 0, 5);
    job.auto.hold = false;
    job.kill(job.pserver(1));
    assert_eq!((taken_back(&job).len(), last_loss(&job)), (2, None));
    job.auto.hold = true;
    restart(&mut job, 2);
    for member in job.processes.keys().copied().collect::<Vec<_>>() {
        job.registers(member);
    }
    job.pass(31_000);
    assert_eq!(job.core.view().state, JobState::Running);
    assert_eq!((taken_back(&job), job.core.view().updates_lost), (Vec::new(), None));
}

/// The number of steps of a task that finished first before a takeover is known to nobody until the next checkpoint.
#[test]
fn loss_of_an_unknown_number_returns_all_shards() {
    let mut job = Job::started(local(), 8, 0);
    save(&mut job);
    let finished = job.process(job.trainer(1)).tasks[0].task;
    finish(&mut job, 1, 7);
    let (epoch, pservers) = (epoch(&job), [job.pserver(0), job.pserver(1)]);
    restart(&mut job, 2);
    for (pserver, shards) in pservers.into_iter().zip([[0, 2], [1, 3]]) {
        let state = held(epoch, 0, &shards, |_| (0, false, vec![task(finished.0, 7, true)]));
        registers_with(&mut job, pserver, Some(state), None);
    }
    for trainer in
        job.processes.keys().copied().filter(|it| it.slot.role == Role::Trainer).collect::<Vec<_>>()
    {
        job.registers(trainer);
    }
    job.pass(1_000);
    assert_eq!(job.core.view().tasks_done, 1);
    job.kill(job.pserver(1));
    job.pass(5_000);
    assert!(job.warned("the number of updates that shards 1 and 3 would lose is unknown"));
    assert_eq!((taken_back(&job), job.core.view().updates_lost), (Vec::new(), None));
    assert_eq!(job.core.view().recoveries.last().unwrap().kind, RecoveryKind::Rollback);
}
