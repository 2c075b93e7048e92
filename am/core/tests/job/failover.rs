//! Jobs with replicas: a lost pserver costs no rollback while a copy of each of its shards is left.
//!
//! The names S… are those of the schedules that break a protocol without the rule.

use std::collections::BTreeSet;

use heddle_am_core::{Event, Record, RecordedView};
use heddle_protocol::control::{
    Command, LoadShards, Operation, PserverCommand, PserverReport, Report, SetViews, ShardCommand,
    ShardPlace, ShardReport, ShardView, TrainerCommand, TrainerReport,
};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::{Epoch, Member, Role, ShardId, Slot, TaskId, Term};
use heddle_protocol::job_spec::{Bytes, Consistency, JobSpec};
use heddle_protocol::view::{JobEvent, JobState, RecoveryKind};

use crate::harness::{Job, spec};

pub(crate) fn replicated(consistency: Consistency, pservers: u32, replicas: u32) -> JobSpec {
    let mut spec = spec(consistency);
    (spec.pservers.count, spec.pservers.replicas) = (pservers, replicas);
    (spec.pservers.shards, spec.pservers.memory) = (2 * pservers, Bytes::mib(256));
    spec
}

pub(crate) fn started(consistency: Consistency, pservers: u32, replicas: u32) -> Job {
    Job::started(replicated(consistency, pservers, replicas), 4, 0)
}

pub(crate) fn views_of(job: &Job) -> Vec<Vec<RecordedView>> {
    let views = |record: &Record| match record {
        Record::Views { views, .. } => Some(views.clone()),
        _ => None,
    };
    job.records.iter().filter_map(views).collect()
}

pub(crate) fn restores(job: &Job) -> usize {
    job.records.iter().filter(|record| matches!(record, Record::Restore { .. })).count()
}

pub(crate) fn views_sent(job: &Job, member: Member) -> Vec<ShardView> {
    let views = |(to, command): &(Member, Command)| match command {
        Command::Shards(ShardCommand::Views(SetViews { views, .. })) if *to == member => {
            Some(views.clone())
        }
        _ => None,
    };
    job.sent.iter().filter_map(views).flatten().collect()
}

pub(crate) fn last_places(job: &Job, member: Member) -> Vec<ShardPlace> {
    let places = |(to, command): &(Member, Command)| match command {
        Command::Trainer(TrainerCommand::Work { places, .. }) if *to == member => {
            Some(places.clone())
        }
        _ => None,
    };
    job.sent.iter().rev().find_map(places).unwrap_or_default()
}

pub(crate) fn epoch(job: &Job) -> Epoch {
    job.core.view().epoch
}

#[test]
fn copies_are_placed_when_all_pservers_are_there() {
    let mut job = Job::new(replicated(Consistency::Bsp, 2, 1), 4, 0);
    job.auto.register = false;
    job.start();
    let members: Vec<Member> = job.processes.keys().copied().collect();
    job.registers(members.iter().copied().find(|it| it.slot == Slot::pserver(0)).unwrap());
    let loads = |job: &Job| {
        job.sent
            .iter()
            .filter(|(_, it)| matches!(it, Command::Pserver(PserverCommand::LoadShards(_))))
            .count()
    };
    assert_eq!(loads(&job), 0, "nothing says yet where the backups are");
    job.registers(members.iter().copied().find(|it| it.slot == Slot::pserver(1)).unwrap());
    assert_eq!(loads(&job), 2);
    for (to, command) in &job.sent {
        if let Command::Pserver(PserverCommand::LoadShards(LoadShards { shards, views, .. })) =
            command
        {
            assert_eq!(shards.len(), 4, "two of its own and two backups");
            assert_eq!(views.len(), 4);
            let own = views.iter().filter(|view| view.primary == *to).count();
            assert_eq!(own, 2);
            for view in views {
                assert_eq!(view.in_sync.len(), 2);
                assert_eq!(view.backups.len(), 1);
                assert_ne!(view.backups[0].member, view.primary);
            }
        }
    }
    assert_eq!(views_of(&job).last().map(Vec::len), Some(4), "recorded when all have loaded");
}

#[test]
fn s29_trainers_begin_after_the_record_of_the_views() {
    let mut job = started(Consistency::Asp, 2, 1);
    job.auto.hold = false;
    job.kill(job.pserver(0));
    job.kill(job.pserver(1));
    let epoch = epoch(&job);
    assert_eq!(epoch.count, 1, "rolled back");
    let before = views_of(&job).len();
    job.sent.clear();
    job.report(
        job.pserver(0),
        PserverReport::ShardsReady { epoch, from_memory: 0, from_storage: 4, loaded: Vec::new() },
    );
    assert_eq!(views_of(&job).len(), before, "the backup loads");
    job.auto.journal = false;
    job.report(
        job.pserver(1),
        PserverReport::ShardsReady { epoch, from_memory: 0, from_storage: 4, loaded: Vec::new() },
    );
    assert_eq!(views_of(&job).len(), before + 1);
    assert!(last_places(&job, job.trainer(0)).is_empty(), "the record is not durable");
    job.all_durable();
    assert_eq!(last_places(&job, job.trainer(0)).len(), 4);
}

#[test]
fn a_lost_primary_is_replaced_by_its_backup_in_the_epoch() {
    let mut job = started(Consistency::Asp, 3, 1);
    let (epoch, lost) = (epoch(&job), job.pserver(0));
    let own: Vec<ShardId> = last_places(&job, job.trainer(0))
        .iter()
        .filter(|it| it.holder == lost)
        .map(|it| it.shard)
        .collect();
    assert_eq!(own.len(), 2);
    job.kill(lost);
    let view = job.core.view();
    assert_eq!((view.epoch, view.state), (epoch, JobState::Running));
    assert_eq!(restores(&job), 1, "the start alone");
    for trainer in 0..2 {
        let places = last_places(&job, job.trainer(trainer));
        assert_eq!(places.len(), 6);
        let holders: BTreeSet<Member> =
            places.iter().filter(|it| own.contains(&it.shard)).map(|it| it.holder).collect();
        assert_eq!(holders.len(), 2, "its shards are spread over both survivors");
        assert!(!holders.contains(&lost));
    }
    let last = views_of(&job)[1].clone();
    assert_eq!(last.len(), 4, "two primaries and two backups in one record");
    for view in &last {
        let promoted = own.contains(&view.shard);
        assert_eq!(view.term, Term(if promoted { 2 } else { 1 }));
        assert_eq!(view.in_sync, [view.primary]);
    }
    let replication = job.core.view().replication.unwrap();
    assert_eq!(
        (replication.in_sync, replication.under_replicated, replication.promotions),
        (2, 4, 2)
    );
    let recovery = job.core.view().recoveries.pop().unwrap();
    assert_eq!(recovery.kind, RecoveryKind::Failover);
    assert!(recovery.restart_ms.is_some() && recovery.load_ms.is_some());
    job.report(job.trainer(0), TrainerReport::Stepping { epoch });
    assert!(job.core.view().recoveries.pop().unwrap().done, "the next step is done");
    assert!(
        job.notices
            .iter()
            .any(|it| matches!(it, JobEvent::FailedOver { promoted: 2, backups_lost: 2, .. }))
    );
}

#[test]
fn s10_nothing_carries_a_view_before_its_record_is_durable() {
    let mut job = started(Consistency::Asp, 3, 1);
    job.auto.journal = false;
    job.sent.clear();
    job.kill(job.pserver(0));
    assert!(matches!(job.records.last(), Some(Record::Views { .. })));
    assert!(job.sent.is_empty(), "{:?}", job.sent);
    job.all_durable();
    assert!(!views_sent(&job, job.pserver(1)).is_empty());
    assert_eq!(last_places(&job, job.trainer(0)).len(), 6);
}

#[test]
fn s8_a_copy_leaves_the_set_before_its_primary_stops_waiting() {
    let mut job = started(Consistency::Asp, 3, 1);
    let view = views_of(&job)[0][0].clone();
    let backup = *view.in_sync.iter().find(|it| **it != view.primary).unwrap();
    let epoch = epoch(&job);
    job.auto.journal = false;
    job.sent.clear();
    let lags = Report::Shard {
        epoch,
        report: ShardReport::Lagging { shard: view.shard, term: view.term, member: backup },
    };
    job.report(view.primary, lags.clone());
    assert!(job.sent.is_empty(), "the primary waits until the record is durable");
    // The primary dies before it is: the backup is not promoted any more.
    job.kill(view.primary);
    job.all_durable();
    assert_eq!(restores(&job), 2);
    let Some(Record::Restore { cause, .. }) =
        job.records.iter().rev().find(|it| matches!(it, Record::Restore { .. }))
    else {
        panic!("no rollback")
    };
    assert!(cause.contains(&format!("no copy is left of shard {}", view.shard)), "{cause}");
}

#[test]
fn a_lagging_backup_leaves_once_and_by_its_primary_alone() {
    let mut job = started(Consistency::Bsp, 3, 1);
    let view = views_of(&job)[0][0].clone();
    let backup = *view.in_sync.iter().find(|it| **it != view.primary).unwrap();
    let epoch = epoch(&job);
    let lags = |term| Report::Shard {
        epoch,
        report: ShardReport::Lagging { shard: view.shard, term, member: backup },
    };
    job.report(backup, lags(view.term));
    job.report(view.primary, lags(Term(9)));
    assert_eq!(views_of(&job).len(), 1, "not its primary, or not in its term");
    job.report(view.primary, lags(view.term));
    let after = views_of(&job).len();
    job.report(view.primary, lags(view.term));
    assert_eq!(views_of(&job).len(), after);
    let sent = views_sent(&job, view.primary);
    let last = sent.iter().rev().find(|it| it.shard == view.shard).unwrap();
    assert_eq!(last.in_sync, [view.primary]);
    assert!(last.backups.iter().all(|it| it.fill.is_some()), "another copy is being filled");
    assert_eq!(last.term, view.term);
}

#[test]
fn s30_loss_of_primary_and_backup_is_a_rollback_with_names() {
    let mut job = started(Consistency::Bsp, 2, 1);
    let before = epoch(&job);
    job.kill(job.pserver(0));
    assert_eq!(epoch(&job), before);
    job.kill(job.pserver(1));
    assert_eq!(epoch(&job), before.next());
    let Some(Record::Restore { cause, .. }) =
        job.records.iter().rev().find(|it| matches!(it, Record::Restore { .. }))
    else {
        panic!("no rollback")
    };
    assert!(cause.contains("no copy is left of shards 0, 1, 2 and 3"), "{cause}");
    // With the next epoch all shards have their backups again.
    let replication = job.core.view().replication.unwrap();
    assert_eq!((replication.in_sync, replication.under_replicated), (4, 0));
    assert_eq!(job.core.view().recoveries.last().map(|it| it.kind), Some(RecoveryKind::Rollback));
}

#[test]
fn s23_both_survivors_of_a_primary_stay_in_the_set() {
    let mut job = started(Consistency::Asp, 3, 2);
    let first = views_of(&job)[0].clone();
    assert!(first.iter().all(|view| view.in_sync.len() == 3));
    let (before, lost) = (epoch(&job), job.pserver(2));
    job.kill(lost);
    for (was, is) in first.iter().zip(views_of(&job)[1].clone()) {
        let others: BTreeSet<Member> =
            was.in_sync.iter().copied().filter(|it| *it != lost).collect();
        assert_eq!(is.in_sync.iter().copied().collect::<BTreeSet<_>>(), others);
        assert_eq!(is.in_sync[0], is.primary);
        assert_eq!(is.term > was.term, was.primary == lost);
    }
    assert_eq!(epoch(&job), before);
}

#[test]
fn two_of_three_pservers_may_be_lost_at_once() {
    for second in [0, 1] {
        let mut job = started(Consistency::Asp, 3, 2);
        let before = epoch(&job);
        job.kill(job.pserver(2));
        job.kill(job.pserver(second));
        assert_eq!((epoch(&job), restores(&job)), (before, 1));
        let left = job.pserver(1 - second);
        let places = last_places(&job, job.trainer(0));
        assert!(places.iter().all(|place| place.holder == left), "{places:?}");
    }
}

#[test]
fn s21_copy_with_more_is_promoted_instead() {
    let mut job = started(Consistency::Asp, 3, 2);
    let (before, lost) = (epoch(&job), job.pserver(2));
    job.kill(lost);
    let view = views_of(&job)[1].iter().find(|it| it.term == Term(2)).cloned().unwrap();
    let (shard, primary) = (view.shard, view.primary);
    let other = *view.in_sync.iter().find(|it| **it != primary).unwrap();
    let ahead = |term, member| Report::Shard {
        epoch: before,
        report: ShardReport::Ahead { shard, term, member },
    };
    let known = views_of(&job).len();
    job.report(other, ahead(Term(2), primary));
    job.report(primary, ahead(Term(1), other));
    job.report(primary, ahead(Term(2), lost));
    job.report(primary, ahead(Term(2), primary));
    assert_eq!(views_of(&job).len(), known, "not its primary, term or copy");
    job.report(primary, ahead(Term(2), other));
    let [is] = <[RecordedView; 1]>::try_from(views_of(&job)[known].clone()).unwrap();
    assert_eq!((is.primary, is.term, &is.in_sync), (other, Term(3), &vec![other, primary]));
    assert_eq!(last_places(&job, job.trainer(0))[shard.0 as usize].holder, other);
    assert_eq!(restores(&job), 1);
}

#[test]
fn a_lost_backup_is_left_out_and_no_trainer_receives_a_thing() {
    let mut job = started(Consistency::Asp, 3, 1);
    // Its own shards move away first.
    job.kill(job.pserver(0));
    let before = epoch(&job);
    let backups: Vec<Member> = job.pservers();
    job.sent.clear();
    let view = views_of(&job)[0].iter().find(|view| view.in_sync.len() == 2).cloned().unwrap();
    assert!(backups.contains(&job.pserver(1)));
    let lags = Report::Shard {
        epoch: before,
        report: ShardReport::Lagging {
            shard: view.shard,
            term: view.term,
            member: *view.in_sync.iter().find(|it| **it != view.primary).unwrap(),
        },
    };
    job.report(view.primary, lags);
    assert!(
        job.sent.iter().all(|(_, it)| !matches!(it, Command::Trainer(TrainerCommand::Work { .. })))
    );
}

#[test]
fn the_replacement_gets_its_copies_by_refills_alone() {
    let mut job = started(Consistency::Asp, 3, 1);
    let before = epoch(&job);
    job.kill(job.pserver(0));
    let new = job.pserver(0);
    assert!(job.process(new).shards.is_empty(), "it loads nothing");
    let cut = job.cut();
    job.save_all(cut);
    assert_eq!(epoch(&job), before, "a checkpoint brings no shard back");
    // It is lost again: it had nothing that counts.
    job.kill(new);
    assert_eq!(epoch(&job), before);
}

#[test]
fn a_promotion_while_a_phase_begins_asks_the_new_primary_again() {
    let mut asp = replicated(Consistency::Asp, 2, 1);
    asp.data.passes = 2;
    let mut job = Job::started(asp, 1, 0);
    job.auto.begin = false;
    job.finish(job.trainer(0), TaskId(0));
    let lost = job.pserver(0);
    let epoch = epoch(&job);
    let phase = job.core.view().phase;
    job.report(job.pserver(1), PserverReport::Begun { epoch, phase });
    job.sent.clear();
    job.kill(lost);
    assert!(last_places(&job, job.trainer(0)).is_empty(), "its shards may not have begun");
    let begins = job
        .sent
        .iter()
        .filter(|(_, it)| matches!(it, Command::Pserver(PserverCommand::Begin(_))))
        .count();
    assert!(begins >= 1);
    job.report(job.pserver(1), PserverReport::Begun { epoch, phase });
    assert_eq!(last_places(&job, job.trainer(0)).len(), 4);
}

pub(crate) fn kept(job: &Job) -> Vec<heddle_am_core::ContainerName> {
    job.processes.values().filter_map(|process| process.container.clone()).collect()
}

/// The second attempt of a job, with which all processes have registered.
pub(crate) fn taken_over(job: &Job) -> Job {
    let mut next = job.successor();
    next.processes = job.processes.clone();
    next.auto.cluster = false;
    next.recover(2, 2, kept(job));
    let members: Vec<Member> = next.processes.keys().copied().collect();
    for member in members {
        next.registers(member);
    }
    next
}

#[test]
fn s32_a_primary_lost_with_the_am_is_replaced_at_the_takeover() {
    let mut job = started(Consistency::Asp, 3, 1);
    let before = epoch(&job);
    let lost = job.pserver(0);
    job.processes.remove(&lost);
    let mut next = taken_over(&job);
    assert_eq!(epoch(&next), before, "no rollback");
    assert_eq!(next.core.view().state, JobState::Running);
    let places = last_places(&next, next.trainer(0));
    assert_eq!(places.len(), 6);
    assert!(places.iter().all(|it| it.holder != lost));
    assert!(views_of(&next).iter().any(|views| views.len() == 4));
    let recoveries = next.core.view().recoveries;
    let kinds: Vec<_> = recoveries.iter().map(|it| (it.slot, it.kind)).collect();
    let expected =
        [(None, RecoveryKind::ApplicationMaster), (Some(lost.slot), RecoveryKind::Failover)];
    assert_eq!(kinds, expected, "each loss is a recovery");
    let epoch = epoch(&next);
    next.report(next.trainer(0), TrainerReport::Stepping { epoch });
    assert!(next.core.view().recoveries[1].done, "with the first step at the promoted copies");
}

#[test]
fn s11_recorded_promotions_hold_at_a_takeover() {
    let mut job = started(Consistency::Asp, 3, 1);
    let before = epoch(&job);
    let lost = job.pserver(0);
    let (container, connection) = {
        let process = job.process(lost);
        (process.container.clone().unwrap(), process.connection.unwrap())
    };
    // The old primary is cut off: it lives and keeps its copies.
    let zombie = job.process(lost).clone();
    job.auto.exit = false;
    job.on(Event::Exited { container, exit: heddle_am_core::Exit::NodeLost, text: String::new() });
    let _cut_off = connection;
    let mut next = job.successor();
    next.processes = job.processes.clone();
    next.processes.insert(lost, zombie);
    next.auto.cluster = false;
    next.recover(2, 2, kept(&job));
    let members: Vec<Member> = next.processes.keys().copied().collect();
    for member in
        members.into_iter().filter(|it| it.slot.role == Role::Trainer || it.slot.index > 0)
    {
        next.registers(member);
    }
    next.registers(lost);
    next.pass(11_000);
    assert_eq!(epoch(&next), before);
    let places = last_places(&next, next.trainer(0));
    assert!(!places.is_empty() && places.iter().all(|it| it.holder != lost), "{places:?}");
}

/// It has served shards in the epoch and is no member of a view any more. A phase may have begun without it meanwhile, and it
/// may serve a shard again.
#[test]
fn a_pserver_that_is_there_after_the_takeover_gets_what_holds() {
    let job = started(Consistency::Asp, 3, 1);
    let before = epoch(&job);
    let absent = job.pserver(2);
    let mut next = job.successor();
    next.processes = job.processes.clone();
    next.auto.cluster = false;
    next.recover(2, 2, kept(&job));
    let members: Vec<Member> = next.processes.keys().copied().filter(|it| *it != absent).collect();
    members.into_iter().for_each(|member| next.registers(member));
    next.pass(11_000);
    assert_eq!(epoch(&next), before, "its copies are not needed");
    let from = next.sent.len();
    next.registers(absent);
    let told = next.told(absent, from);
    let phase = next.core.view().phase;
    let begins = |it: &&&Command| match it {
        Command::Pserver(PserverCommand::Begin(begin)) => begin.phase.no == phase,
        _ => false,
    };
    assert_eq!(told.iter().filter(begins).count(), 1, "{told:?}");
    let views = |it: &&&Command| match it {
        Command::Shards(ShardCommand::Views(set)) => set.views.len() == 6,
        _ => false,
    };
    assert_eq!(told.iter().filter(views).count(), 1, "{told:?}");
}

/// The storage keeps its tries: the cut is taken again.
#[test]
fn failover_is_no_failed_try_of_the_final_cut() {
    let mut job = started(Consistency::Bsp, 3, 1);
    (job.auto.store, job.auto.snap) = (false, false);
    job.end_phase(3);
    job.fail_final_cuts_but_the_last();
    job.kill(job.pserver(1));
    assert_eq!(job.outcome, None);
    job.takes_the_final_cut_again();
}

#[test]
fn a_takeover_without_a_copy_of_a_shard_rolls_back() {
    let mut job = started(Consistency::Bsp, 2, 1);
    let before = epoch(&job);
    job.kill(job.pserver(0));
    let last = job.pserver(1);
    job.processes.remove(&last);
    let mut next = job.successor();
    next.processes = job.processes.clone();
    next.recover(2, 2, kept(&job));
    let members: Vec<Member> = next.processes.keys().copied().collect();
    for member in members {
        next.registers(member);
    }
    next.pass(11_000);
    assert!(epoch(&next) > before);
    let Some(Record::Restore { cause, .. }) =
        next.records.iter().rev().find(|it| matches!(it, Record::Restore { .. }))
    else {
        panic!("no rollback")
    };
    assert!(cause.contains("no copy of shards"), "{cause}");
}

#[test]
fn replicas_that_are_not_wanted_leave_no_trace() {
    let job = Job::asp(4);
    assert!(views_of(&job).is_empty());
    assert!(job.core.view().replication.is_none());
    for (_, command) in &job.sent {
        if let Command::Pserver(PserverCommand::LoadShards(LoadShards { views, .. })) = command {
            assert!(views.is_empty());
        }
        assert!(!matches!(command, Command::Shards(ShardCommand::Views(_))));
    }
}

/// The checkpoint waits for nothing but the record of a view, which the successor does not take any more.
#[test]
fn fenced_attempt_commits_no_complete_checkpoint() {
    let mut job = started(Consistency::Asp, 3, 1);
    job.auto.save = false;
    job.operate(1, Operation::Checkpoint);
    job.auto.journal = false;
    let view = views_of(&job)[0][0].clone();
    let member = *view.in_sync.iter().find(|member| **member != view.primary).expect("a backup");
    let (epoch, shard, term) = (epoch(&job), view.shard, view.term);
    job.report(
        view.primary,
        Report::Shard { epoch, report: ShardReport::Lagging { shard, term, member } },
    );
    assert!(job.durable < job.records.len(), "a view waits for the journal");
    job.snap_all(job.cut(), 0);
    job.save_all(job.cut());
    let calls = job.calls.len();
    job.on(Event::Fenced { reason: "another generation".to_owned() });
    assert_eq!(job.outcome.as_ref().unwrap().exit_code, ExitCode::Fenced);
    assert_eq!(job.calls.len(), calls, "{:?}", job.calls.last());
}
