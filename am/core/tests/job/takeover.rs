//! A new attempt starts: with surviving containers, without any, and after the job is complete.

use heddle_am_core::{ContainerName, Core, Event, Exit, Record};
use heddle_protocol::control::{
    Command, LaneGrant, LoadShards, PserverCommand, PserverState, Registration, ReplicaState,
    Report, ShardState, TaskPosition, TrainerCommand, TrainerReport, TrainerState,
};
use heddle_protocol::ids::{
    CutId, Epoch, Generation, Incarnation, Member, PhaseNo, Role, ShardId, Slot, Step, TaskAttempt,
    TaskId,
};
use heddle_protocol::job_spec::Consistency;
use heddle_protocol::view::{JobEvent as Notice, JobState};

use crate::harness::{Job, Process, spec};

/// The ApplicationMaster is lost; a new attempt starts with the surviving containers.
pub fn restart(job: &mut Job, generation: u32) {
    let kept: Vec<ContainerName> =
        job.processes.values().filter_map(|process| process.container.clone()).collect();
    for process in job.processes.values_mut() {
        process.connection = None;
    }
    job.core = Core::new(job.config.clone());
    job.now += 5_000;
    job.asks.clear();
    job.calls.clear();
    job.recover(generation, generation, kept);
}

/// Registers with the state of the test, not with that of the harness.
pub fn registers_with(
    job: &mut Job,
    member: Member,
    pserver_state: Option<PserverState>,
    trainer_state: Option<TrainerState>,
) {
    let process = job.processes.get_mut(&member).unwrap();
    let container = process.container.clone();
    let connection = heddle_am_core::ConnectionId(
        1_000_000 + u64::from(member.slot.index) + if pserver_state.is_some() { 500 } else { 0 },
    );
    process.connection = Some(connection);
    let endpoints = if member.slot.role == Role::Pserver {
        vec![([127, 0, 0, 1], 1).into()]
    } else {
        Vec::new()
    };
    let registration = Box::new(Registration {
        member,
        container: container.map(|container| container.0),
        pid: 1,
        host: "localhost".to_owned(),
        endpoints,
        pserver_state,
        trainer_state,
    });
    job.on(Event::Registered { connection, registration });
}

pub fn held(
    epoch: Epoch,
    phase: u32,
    shards: &[u32],
    state: impl Fn(u32) -> (u64, bool, Vec<Mark>),
) -> PserverState {
    let shards = shards.iter().map(|shard| {
        let (step, ended, marks) = state(*shard);
        let tasks = marks.iter().filter_map(|(task, step)| {
            Some(TaskPosition { task: *task, attempt: TaskAttempt(0), step: (*step)? })
        });
        let done = marks.iter().filter(|(_, step)| step.is_none());
        ShardState {
            shard: ShardId(*shard),
            phase: PhaseNo(phase),
            step: Step(step),
            ended,
            counted: None,
            tasks: tasks.collect(),
            done: done.map(|(task, _)| *task).collect(),
            replica: ReplicaState::ALONE,
        }
    });
    PserverState::new(epoch, CutId::default(), shards.collect())
}

/// A shard's progress of a task: the next step, or none if it is marked done.
pub type Mark = (TaskId, Option<Step>);

pub fn task(task: u32, step: u64, done: bool) -> Mark {
    (TaskId(task), (!done).then_some(Step(step)))
}

/// The tasks that a restarted attempt dispatches, with their first steps.
fn grants(job: &Job, from: usize) -> Vec<(TaskId, Step)> {
    let tasks = job.sent[from..].iter().filter_map(|(_, command)| match command {
        Command::Trainer(TrainerCommand::Tasks { tasks, .. }) => {
            Some(tasks.iter().map(|grant| (grant.task, grant.start)))
        }
        _ => None,
    });
    let mut tasks: Vec<_> = tasks.flatten().collect();
    tasks.sort();
    tasks
}

#[test]
fn takeover_raises_no_epoch_and_rolls_no_shard_back() {
    let mut job = Job::bsp();
    let everybody: Vec<Member> = job.processes.keys().copied().collect();
    let before = job.core.view().epoch;
    restart(&mut job, 2);
    assert!(
        job.asks.is_empty(),
        "no container is replaced because the ApplicationMaster restarted"
    );
    for member in &everybody {
        job.registers(*member);
    }
    let view = job.core.view();
    assert_eq!((view.epoch, view.state), (before, JobState::Running));
    assert_eq!(job.processes.keys().copied().collect::<Vec<_>>(), everybody);
    job.end_phase(9);
    assert_eq!(job.outcome.as_ref().unwrap().state, JobState::Finished);
    assert!(job.checkpoints.last().unwrap().manifest.cut > job.checkpoints[0].manifest.cut);
    assert_eq!(
        job.checkpoints.last().unwrap().manifest.cut.generation,
        Generation(2),
        "no cut name twice"
    );
}

#[test]
fn loss_of_the_application_master_is_a_recovery() {
    let mut job = Job::bsp();
    let everybody: Vec<Member> = job.processes.keys().copied().collect();
    restart(&mut job, 2);
    job.now += 700;
    for member in &everybody {
        job.registers(*member);
    }
    let under_way = job.core.view().recoveries.pop().unwrap();
    assert_eq!((under_way.slot, under_way.done), (None, false));
    job.now += 300;
    // It lost the other one four seconds ago, and this one began one second ago.
    job.beat(everybody[0], |beat| beat.control_lost_ms = Some(4_000));
    let view = job.core.view();
    let recovery = &view.recoveries[0];
    assert_eq!(recovery.cause, "the ApplicationMaster was lost; attempt 2 took over");
    assert!(recovery.done);
    assert_eq!(recovery.notice_ms, Some(3_000));
    assert_eq!(recovery.restart_ms, Some(700));
    assert_eq!(
        (recovery.checkpoint_ms, recovery.load_ms, recovery.resume_ms),
        (None, None, None),
        "containers trained on"
    );
    assert_eq!(recovery.epoch_before, recovery.epoch_after);
    let told = |notice: &&Notice| matches!(notice, Notice::Recovered(_));
    assert_eq!(job.notices.iter().filter(told).count(), 1);
    // Later heartbeats repeat it.
    job.beat(everybody[1], |beat| beat.control_lost_ms = Some(9_000));
    assert_eq!(job.core.view().recoveries, view.recoveries);
}

#[test]
fn am_lost_with_a_pserver_is_two_recoveries_with_one_rollback() {
    let mut job = Job::bsp();
    let gone = job.pserver(0);
    job.processes.remove(&gone);
    restart(&mut job, 2);
    for member in job.processes.keys().copied().collect::<Vec<_>>() {
        job.registers(member);
    }
    assert_eq!(job.core.view().state, JobState::Running);
    job.end_phase(9);
    let view = job.core.view();
    let slots: Vec<_> = view.recoveries.iter().map(|recovery| recovery.slot).collect();
    assert_eq!((slots, view.recoveries_total), (vec![None, Some(gone.slot)], 2));
    for recovery in &view.recoveries {
        assert!(recovery.done, "{recovery:?}");
        assert_eq!(recovery.epoch_after, Epoch::first(Generation(2)));
        assert!(recovery.base.is_some() && recovery.checkpoint_ms.is_some());
        assert!(recovery.restart_ms.is_some() && recovery.load_ms.is_some());
    }
    let cause = &view.recoveries[1].cause;
    assert_eq!(cause, "pserver-0 did not come back after the ApplicationMaster's restart");
    assert!(view.recoveries[1].notice_ms.is_some() && view.recoveries[1].resume_ms.is_some());
    assert_eq!(recovered(&job), 2, "each is reported once");
}

fn recovered(job: &Job) -> usize {
    job.notices.iter().filter(|notice| matches!(notice, Notice::Recovered(_))).count()
}

/// The attempt before had noticed losses, and was lost before they were over.
#[test]
fn unfinished_recoveries_go_on_in_the_next_attempt() {
    let mut job = Job::bsp();
    job.kill(job.pserver(0));
    let noticed = job.core.view().recoveries.pop().unwrap();
    assert!(!noticed.done);
    // Two attempts, and no container has registered with the first of them.
    for attempt in [2, 3] {
        let unfinished = job.core.view().recoveries;
        let kept: Vec<ContainerName> =
            job.processes.values().filter_map(|process| process.container.clone()).collect();
        job.processes.values_mut().for_each(|process| process.connection = None);
        job.core = Core::new(job.config.clone());
        job.now += 5_000;
        job.asks.clear();
        job.calls.clear();
        job.recover_with(attempt, attempt, kept, unfinished);
    }
    for member in job.processes.keys().copied().collect::<Vec<_>>() {
        job.registers(member);
    }
    job.beat(job.trainer(0), |beat| beat.control_lost_ms = Some(11_000));
    job.end_phase(9);
    let view = job.core.view();
    let lost: Vec<_> = view.recoveries.iter().map(|recovery| recovery.slot).collect();
    assert_eq!(lost, [noticed.slot, None, None]);
    assert!(view.recoveries.iter().all(|recovery| recovery.done), "{:#?}", view.recoveries);
    assert_eq!(
        (view.recoveries[0].at_ms, &view.recoveries[0].cause),
        (noticed.at_ms, &noticed.cause)
    );
    assert_eq!(view.recoveries[0].epoch_before, noticed.epoch_before);
    assert!(view.recoveries[0].notice_ms >= Some(10_000), "the time without an attempt counts");
    assert!(view.recoveries[1].cause.ends_with("attempt 2 took over"));
    assert!(view.recoveries[2].cause.ends_with("attempt 3 took over"));
}

#[test]
fn recovery_of_the_am_is_reported_with_the_time_of_its_loss() {
    let mut job = Job::bsp();
    let everybody: Vec<Member> = job.processes.keys().copied().collect();
    restart(&mut job, 2);
    everybody.iter().for_each(|member| job.registers(*member));
    // The phase ends before the first heartbeat.
    job.end_phase(9);
    let ended = job.notices.iter().find_map(|notice| match notice {
        Notice::Recovered(recovery) => Some(recovery.clone()),
        _ => None,
    });
    assert_eq!(
        ended.as_ref(),
        job.core.view().recoveries.first(),
        "what is printed is what is shown"
    );
    assert!(ended.is_some_and(|recovery| recovery.done), "the end of the job waits for nothing");
}

#[test]
fn missing_shard_rolls_back_in_an_epoch_of_the_generation() {
    let mut job = Job::bsp();
    job.kill(job.pserver(0));
    let gone = job.pserver(0);
    restart(&mut job, 2);
    job.processes.remove(&gone);
    for member in job.processes.keys().copied().collect::<Vec<_>>() {
        job.registers(member);
    }
    job.pass(120_000);
    assert_eq!(job.core.view().epoch, Epoch::first(Generation(2)));
    assert!(job.pserver(0).incarnation.0 > 10_000, "no incarnation is given twice");
    assert_eq!(job.core.view().state, JobState::Running);
}

#[test]
fn pserver_lost_before_the_attempt_began_is_not_awaited() {
    let mut job = Job::bsp();
    let gone = job.pserver(0);
    // The ApplicationMaster and a pserver were on one node.
    job.processes.remove(&gone);
    restart(&mut job, 2);
    let began = job.now;
    for member in job.processes.keys().copied().collect::<Vec<_>>() {
        assert_eq!(job.core.view().epoch, Epoch::first(Generation(1)));
        job.registers(member);
    }
    assert_eq!(job.core.view().epoch, Epoch::first(Generation(2)));
    assert_eq!(job.core.view().state, JobState::Running);
    assert_eq!(job.now, began, "no other container could have come");
}

#[test]
fn takeover_does_not_wait_for_containers_of_lost_nodes() {
    let mut job = Job::bsp();
    let (lost, silent) = (job.pserver(0), job.trainer(0));
    let container = |job: &Job, member| job.process(member).container.clone().unwrap();
    let (lost_in, silent_in) = (container(&job, lost), container(&job, silent));
    restart(&mut job, 2);
    let began = job.now;
    for member in [job.pserver(1), job.trainer(1)] {
        job.registers(member);
    }
    job.processes.remove(&lost);
    job.on(Event::NodeUnreachable {
        container: silent_in,
        cause: "its NodeManager does not answer either".to_owned(),
    });
    assert_eq!(job.core.view().epoch, Epoch::first(Generation(1)));
    job.on(Event::Exited { container: lost_in, exit: Exit::NodeLost, text: String::new() });
    assert_eq!(job.core.view().epoch, Epoch::first(Generation(2)));
    assert_eq!(job.now, began);
}

#[test]
fn kept_container_without_a_report_may_register_later() {
    let mut job = Job::bsp();
    let epoch = job.core.view().epoch;
    let late = job.pserver(0);
    restart(&mut job, 2);
    let container = job.process(late).container.clone().unwrap();
    job.on(Event::NodeUnreachable {
        container,
        cause: "its NodeManager does not answer either".to_owned(),
    });
    let everybody: Vec<Member> = job.processes.keys().copied().collect();
    for member in &everybody {
        job.registers(*member);
    }
    assert_eq!(job.core.view().epoch, epoch, "nothing was lost");
    assert_eq!(job.processes.keys().copied().collect::<Vec<_>>(), everybody);
}

#[test]
fn shard_behind_the_journals_epoch_rolls_back_to_the_first_step() {
    // Epoch 1 is journaled, pserver 0 has returned, pserver 1 has not received it.
    let mut job = Job::bsp();
    let first = job.core.view().epoch;
    job.auto.hold = false;
    job.kill(job.pserver(0));
    let (p0, p1) = (job.pserver(0), job.pserver(1));
    let second = job.core.view().epoch;
    job.auto.hold = true;
    restart(&mut job, 2);
    registers_with(&mut job, p0, Some(held(second, 0, &[0, 2], |_| (0, false, Vec::new()))), None);
    assert_ne!(job.process(p1).epoch, second);
    registers_with(&mut job, p1, Some(held(first, 0, &[1, 3], |_| (3, false, Vec::new()))), None);
    assert_eq!(job.core.view().epoch, Epoch::first(Generation(2)));
    assert_eq!(
        job.process(p0).epoch,
        Epoch::first(Generation(2)),
        "even the one that was there already"
    );
    for member in job.trainers() {
        job.registers(member);
    }
    assert_eq!(job.core.view().state, JobState::Running);
}

#[test]
fn epoch_that_the_journal_lacks_leads_to_a_rollback() {
    let mut job = Job::bsp();
    job.auto.journal = false;
    job.kill(job.pserver(0));
    assert!(
        job.durable < job.records.len(),
        "the record of epoch 1 was lost with the ApplicationMaster"
    );
    job.auto.journal = true;
    job.records.truncate(job.durable);
    let (p0, p1) = (job.pserver(0), job.pserver(1));
    restart(&mut job, 2);
    let lost = Epoch { generation: Generation(1), count: 1 };
    registers_with(&mut job, p0, Some(held(lost, 0, &[0, 2], |_| (0, false, Vec::new()))), None);
    registers_with(&mut job, p1, Some(held(lost, 0, &[1, 3], |_| (0, false, Vec::new()))), None);
    assert_eq!(job.core.view().epoch, Epoch::first(Generation(2)));
}

#[test]
fn task_restarts_at_the_lowest_step_of_all_shards() {
    let mut job = Job::asp(6);
    let epoch = job.core.view().epoch;
    let (p0, p1) = (job.pserver(0), job.pserver(1));
    for trainer in job.trainers() {
        job.processes.remove(&trainer);
    }
    restart(&mut job, 2);
    registers_with(
        &mut job,
        p0,
        Some(held(epoch, 0, &[0, 2], |_| (0, false, vec![task(0, 4, false), task(1, 7, false)]))),
        None,
    );
    let from = job.sent.len();
    registers_with(
        &mut job,
        p1,
        Some(held(epoch, 0, &[1, 3], |_| (0, false, vec![task(0, 2, false)]))),
        None,
    );
    job.pass(121_000);
    let grants = grants(&job, from);
    assert!(grants.contains(&(TaskId(0), Step(2))), "{grants:?}");
    assert!(grants.contains(&(TaskId(1), Step(0))), "{grants:?}");
}

#[test]
fn task_is_done_only_if_every_shard_marks_it() {
    let mut job = Job::asp(6);
    let epoch = job.core.view().epoch;
    let (p0, p1) = (job.pserver(0), job.pserver(1));
    for trainer in job.trainers() {
        job.processes.remove(&trainer);
    }
    restart(&mut job, 2);
    let marks = |shard: u32| (0, false, vec![task(0, 9, true), task(1, 9, shard == 1)]);
    registers_with(&mut job, p0, Some(held(epoch, 0, &[0, 2], marks)), None);
    registers_with(&mut job, p1, Some(held(epoch, 0, &[1, 3], marks)), None);
    assert_eq!(job.core.view().tasks_done, 1);
}

#[test]
fn takeover_continues_in_the_lowest_phase_of_all_shards() {
    let mut two = spec(Consistency::Bsp);
    two.data.passes = 2;
    let mut job = Job::started(two, 4, 0);
    let epoch = job.core.view().epoch;
    let (p0, p1) = (job.pserver(0), job.pserver(1));
    restart(&mut job, 2);
    registers_with(&mut job, p0, Some(held(epoch, 1, &[0, 2], |_| (0, false, Vec::new()))), None);
    registers_with(&mut job, p1, Some(held(epoch, 0, &[1, 3], |_| (7, true, Vec::new()))), None);
    for member in job.trainers() {
        job.registers(member);
    }
    assert_eq!(job.core.view().phase, PhaseNo(1));
    assert_eq!(job.process(p1).phase.unwrap().no, PhaseNo(1));
}

#[test]
fn trainers_keep_their_tasks_and_hand_outs_in_a_takeover() {
    let mut job = Job::asp(6);
    let (trainers, pservers) = (job.trainers(), job.pservers());
    let kept: Vec<_> =
        trainers.iter().flat_map(|member| job.process(*member).tasks.clone()).collect();
    restart(&mut job, 2);
    for member in trainers.iter().chain(&pservers) {
        job.registers(*member);
    }
    for member in &trainers {
        for grant in job.process(*member).tasks.clone() {
            if kept.contains(&grant) {
                job.finish(*member, grant.task);
            } else {
                assert!(grant.attempt.0 > 10_000, "no hand-out is numbered twice");
            }
        }
    }
    assert_eq!(job.core.view().tasks_done as usize, kept.len());
    job.finish_all();
    assert!(job.outcome.is_some());
}

#[test]
fn trainers_keep_their_lanes() {
    let mut job = Job::bsp();
    let lanes = |job: &Job| {
        job.trainers()
            .iter()
            .map(|member| job.process(*member).lanes.clone())
            .collect::<Vec<Vec<LaneGrant>>>()
    };
    let before = lanes(&job);
    let everybody: Vec<Member> = job.processes.keys().rev().copied().collect();
    restart(&mut job, 2);
    for member in everybody {
        job.registers(member);
    }
    assert_eq!(lanes(&job), before, "with the same hand-outs");
}

#[test]
fn lane_hand_out_after_a_takeover_exceeds_all_before() {
    let mut job = Job::bsp();
    let (t0, t1) = (job.trainer(0), job.trainer(1));
    let before = job.process(t0).lanes[0];
    let everybody: Vec<Member> = job.processes.keys().copied().collect();
    restart(&mut job, 2);
    for member in everybody {
        job.registers(member);
    }
    job.kill(t0);
    let lanes = &job.process(t1).lanes;
    let moved = lanes.iter().find(|grant| grant.lane == before.lane);
    assert!(moved.expect("it runs both").hand_out > before.hand_out);
}

/// The attempt before gave the lane to a trainer that queried the shards, and both are gone.
#[test]
fn trainer_whose_lane_shards_reject_gets_it_again() {
    let mut job = Job::bsp();
    let t0 = job.trainer(0);
    let before = job.process(t0).lanes[0];
    let everybody: Vec<Member> = job.processes.keys().copied().collect();
    restart(&mut job, 2);
    for member in everybody {
        job.registers(member);
    }
    let process = job.process(t0);
    let (epoch, phase) = (process.epoch, process.phase.expect("it works").no);
    let refused = Report::Trainer(TrainerReport::LaneFenced { epoch, phase, lane: before });
    job.report(t0, refused.clone());
    let again = job.process(t0).lanes[0];
    assert_eq!(again.lane, before.lane);
    assert!(again.hand_out > before.hand_out);
    let other = job.trainer(1);
    job.report(other, refused.clone());
    job.report(t0, refused);
    assert_eq!(
        job.process(t0).lanes,
        [again],
        "a report of a trainer without the lane, or of a hand-out before, changes nothing"
    );
}

#[test]
fn kept_containers_that_never_register_are_released() {
    let mut job = Job::bsp();
    let container = ContainerName("forgotten".to_owned());
    job.processes.insert(
        Member { slot: Slot::trainer(1), incarnation: Incarnation(0) },
        Process { container: Some(container.clone()), ..Process::default() },
    );
    restart(&mut job, 2);
    for member in job.pservers().into_iter().chain(job.trainers()) {
        if member.incarnation.0 > 0 {
            job.registers(member);
        }
    }
    job.pass(140_000);
    assert!(job.released.contains(&container));
}

#[test]
fn second_run_continues_from_the_newest_checkpoint() {
    let mut job = Job::bsp();
    job.operate(1, heddle_protocol::control::Operation::Stop { checkpoint: true });
    let cut = job.cut();
    job.snap_all(cut, 5);
    job.save_all(cut);
    assert_eq!(job.outcome.as_ref().unwrap().state, JobState::Stopped);
    let mut next = job.successor();
    next.recover(1, 2, Vec::new());
    let Some((
        _,
        Command::Pserver(PserverCommand::LoadShards(LoadShards {
            base: Some(base),
            epoch,
            step,
            ..
        })),
    )) = next
        .sent
        .iter()
        .find(|(_, command)| matches!(command, Command::Pserver(PserverCommand::LoadShards(_))))
    else {
        panic!("it starts from the checkpoint")
    };
    assert_eq!((base.cut, *epoch, *step), (cut, Epoch::first(Generation(2)), Step(5)));
    assert!(next.checkpoints.len() == job.checkpoints.len(), "checkpoint 0 is not taken again");
    next.end_phase(9);
    assert_eq!(next.outcome.as_ref().unwrap().state, JobState::Finished);
}

#[test]
fn run_with_completed_training_only_exports_its_model() {
    let mut job = Job::bsp();
    job.auto.export = false;
    job.end_phase(9);
    assert_eq!(job.core.view().state, JobState::Finishing);
    let mut next = job.successor();
    next.recover(1, 2, Vec::new());
    assert_eq!(next.outcome.as_ref().unwrap().state, JobState::Finished);
    assert!(next.sent.iter().all(|(_, command)| !matches!(
        command,
        Command::Pserver(PserverCommand::LoadShards(_))
            | Command::Trainer(TrainerCommand::Work { .. })
    )));
}

#[test]
fn finished_job_is_never_run_again() {
    let mut job = Job::bsp();
    job.end_phase(9);
    let outcome = job.outcome.clone().unwrap();
    let mut next = job.successor();
    next.recover(2, 2, Vec::new());
    assert_eq!(next.outcome, Some(outcome));
    assert!(next.processes.is_empty());
    assert_eq!(next.records.len(), job.records.len());
}

/// The first of three passes and its evaluation are over.
fn after_an_evaluation() -> Job {
    let mut with_test = spec(Consistency::Bsp);
    with_test.data.passes = 3;
    with_test.data.test = with_test.data.train.clone();
    let mut job = Job::started(with_test, 4, 3);
    job.end_phase(3);
    job.finish_all();
    job
}

#[test]
fn journaled_scores_survive_a_takeover_but_not_a_rollback() {
    let mut job = after_an_evaluation();
    assert_eq!(job.core.view().evaluations.len(), 1);
    assert!(job.records.iter().any(|record| matches!(record, Record::Evaluated { .. })));
    let everybody: Vec<Member> = job.processes.keys().copied().collect();
    restart(&mut job, 2);
    for member in everybody {
        job.registers(member);
    }
    assert_eq!(job.core.view().evaluations.len(), 1);
    job.kill(job.pserver(0));
    assert_eq!(job.core.view().evaluations.len(), 0, "its values are gone: it will be done again");
    assert_eq!(job.core.view().phase, PhaseNo(0));
}

/// Its successor would count one evaluation less, and end training later.
#[test]
fn score_is_kept_if_only_some_shards_serve_the_phase_after_it() {
    let mut job = after_an_evaluation();
    let (epoch, p0, p1) = (job.core.view().epoch, job.pserver(0), job.pserver(1));
    restart(&mut job, 2);
    registers_with(&mut job, p0, Some(held(epoch, 2, &[0, 2], |_| (0, false, Vec::new()))), None);
    registers_with(&mut job, p1, Some(held(epoch, 1, &[1, 3], |_| (0, false, Vec::new()))), None);
    for member in job.trainers() {
        job.registers(member);
    }
    assert_eq!((job.core.view().phase, job.core.view().evaluations.len()), (PhaseNo(2), 1));
}

#[test]
fn older_container_never_takes_the_slot_of_a_newer_one() {
    let mut job = Job::bsp();
    let old = job.trainer(0);
    let process = job.process(old).clone();
    job.processes.remove(&old);
    restart(&mut job, 2);
    for member in job.processes.keys().copied().collect::<Vec<_>>() {
        job.registers(member);
    }
    job.pass(121_000);
    let new = job.trainer(0);
    assert!(new.incarnation > old.incarnation);
    job.processes.insert(old, Process { connection: None, ..process });
    job.registers(old);
    assert!(job.refused.contains(&old));
    job.report(new, TrainerReport::Stepping { epoch: job.core.view().epoch });
}
