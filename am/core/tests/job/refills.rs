//! Refills: shards that have lost a copy get another one while the job goes on.

use heddle_am_core::{Event, Record, RecordedView};
use heddle_protocol::control::{Command, Report, ShardCommand, ShardReport, ShardView};
use heddle_protocol::ids::{Epoch, Incarnation, Member, ShardId, Slot, Term, ViewVersion};
use heddle_protocol::job_spec::Consistency;
use heddle_protocol::view::{RecoveryKind, WarningCode};

use crate::failover::{
    epoch, last_places, replicated, restores, started, taken_over, views_of, views_sent,
};
use crate::harness::Job;

/// The last recorded view of each shard.
pub(crate) fn last_views(job: &Job) -> Vec<RecordedView> {
    let mut last: Vec<RecordedView> = Vec::new();
    for view in views_of(job).into_iter().flatten() {
        last.retain(|it| it.shard != view.shard);
        last.push(view);
    }
    last.sort_by_key(|view| view.shard);
    last
}

fn last_view(job: &Job, shard: ShardId) -> RecordedView {
    last_views(job).into_iter().find(|it| it.shard == shard).unwrap()
}

/// The refills that are ordered and not over.
fn open(job: &Job) -> Vec<(ShardId, Member, ViewVersion)> {
    let of = |view: RecordedView| {
        let fills: Vec<_> = view.open_fills().copied().collect();
        fills.into_iter().map(move |fill| (view.shard, fill.member, fill.version))
    };
    last_views(job).into_iter().flat_map(of).collect()
}

fn in_sync(job: &Job, (shard, member, order): (ShardId, Member, ViewVersion)) -> Report {
    let term = last_view(job, shard).term;
    Report::Shard { epoch: epoch(job), report: ShardReport::InSync { shard, term, member, order } }
}

/// Ends all refills, also those that follow.
pub(crate) fn fill_all(job: &mut Job) {
    for _ in 0..100 {
        let Some(fill) = open(job).first().copied() else { return };
        let report = in_sync(job, fill);
        job.report(last_view(job, fill.0).primary, report);
    }
    panic!("refills do not end: {:?}", open(job));
}

fn last_sent(job: &Job, to: Member, shard: ShardId) -> ShardView {
    views_sent(job, to).into_iter().rev().find(|view| view.shard == shard).unwrap()
}

#[test]
fn each_shard_gets_another_copy_on_another_host() {
    let mut job = started(Consistency::Asp, 3, 1);
    job.kill(job.pserver(0));
    let ordered = open(&job);
    assert!(!ordered.is_empty());
    for (shard, member, order) in &ordered {
        let view = last_view(&job, *shard);
        assert_eq!((view.version, view.in_sync.len()), (*order, 1));
        assert_ne!(*member, view.primary);
        for holder in [view.primary, *member] {
            let sent = last_sent(&job, holder, *shard);
            assert_eq!(sent.in_sync, [view.primary]);
            assert_eq!(sent.backups.len(), 1);
            assert_eq!(sent.backups[0].fill.map(|fill| fill.version), Some(*order));
        }
    }
    assert_eq!(job.core.view().replication.unwrap().refills.len(), ordered.len());
    fill_all(&mut job);
    let replication = job.core.view().replication.unwrap();
    assert_eq!((replication.in_sync, replication.under_replicated), (6, 0));
    assert!(replication.refills.is_empty());
    for view in last_views(&job) {
        assert_eq!(view.in_sync.len(), 2);
        assert_ne!(view.in_sync[0].slot, view.in_sync[1].slot);
    }
    assert_eq!(restores(&job), 1, "the start alone");
}

#[test]
fn a_second_loss_after_the_refills_is_a_failover() {
    let mut job = started(Consistency::Bsp, 3, 1);
    let before = epoch(&job);
    for slot in [0, 1, 2, 0] {
        job.kill(job.pserver(slot));
        fill_all(&mut job);
        assert_eq!(epoch(&job), before);
        let places = last_places(&job, job.trainer(0));
        for (place, view) in places.iter().zip(last_views(&job)) {
            assert_eq!(place.holder, view.primary);
        }
    }
    assert_eq!(restores(&job), 1);
}

#[test]
fn one_refill_at_a_time_is_sent_and_received_by_a_thread() {
    let mut job = started(Consistency::Asp, 3, 1);
    job.kill(job.pserver(0));
    for _ in 0..100 {
        let fills = open(&job);
        let Some(first) = fills.first().copied() else { return };
        let mut senders: Vec<Member> =
            fills.iter().map(|(shard, ..)| last_view(&job, *shard).primary).collect();
        let mut receivers: Vec<Member> = fills.iter().map(|(_, member, _)| *member).collect();
        for ends in [&mut senders, &mut receivers] {
            ends.sort_unstable();
            // Pservers of this test have one data thread.
            assert!(ends.windows(2).all(|pair| pair[0] != pair[1]), "{fills:?}");
        }
        let report = in_sync(&job, first);
        job.report(last_view(&job, first.0).primary, report);
    }
    panic!("refills do not end");
}

#[test]
fn s7_copy_counts_after_its_record_and_by_its_primary_alone() {
    let mut job = started(Consistency::Asp, 3, 1);
    job.kill(job.pserver(0));
    let fill = open(&job)[0];
    let (shard, member, order) = fill;
    let (primary, right) = (last_view(&job, shard).primary, in_sync(&job, fill));
    let before = views_of(&job).len();
    job.report(member, right.clone());
    let (epoch, term) = (epoch(&job), last_view(&job, shard).term);
    let wrong_term = Report::Shard {
        epoch,
        report: ShardReport::InSync { shard, term: Term(9), member, order },
    };
    let wrong_order = Report::Shard {
        epoch,
        report: ShardReport::InSync { shard, term, member, order: ViewVersion(order.0 - 1) },
    };
    job.report(primary, wrong_term);
    job.report(primary, wrong_order);
    let other = Epoch { count: 9, ..epoch };
    job.report(
        primary,
        Report::Shard { epoch: other, report: ShardReport::InSync { shard, term, member, order } },
    );
    assert_eq!(views_of(&job).len(), before, "not its primary, term, refill or epoch");
    job.auto.journal = false;
    job.sent.clear();
    job.report(primary, right.clone());
    assert_eq!(last_view(&job, shard).in_sync, [primary, member]);
    assert!(job.sent.is_empty(), "the record is not durable");
    job.all_durable();
    assert_eq!(last_sent(&job, primary, shard).in_sync, [primary, member]);
    let after = views_of(&job).len();
    job.report(primary, right);
    assert_eq!(views_of(&job).len(), after, "reported again: nothing changes");
}

#[test]
fn loss_of_a_receiver_ends_its_refills_and_costs_nothing() {
    let mut job = started(Consistency::Asp, 3, 1);
    job.kill(job.pserver(0));
    // The replacement of the lost one has no copy that counts.
    let new = job.pserver(0);
    let before = (epoch(&job), job.core.view().recoveries.len());
    let of = |job: &Job, to| open(job).into_iter().filter(|(_, member, _)| *member == to).count();
    for _ in 0..100 {
        if of(&job, new) > 0 {
            break;
        }
        let fill = open(&job)[0];
        let report = in_sync(&job, fill);
        job.report(last_view(&job, fill.0).primary, report);
    }
    assert!(of(&job, new) > 0);
    job.kill(new);
    assert_eq!(of(&job, new), 0);
    assert_eq!(epoch(&job), before.0);
    let recoveries = job.core.view().recoveries;
    assert_eq!(recoveries.len(), before.1 + 1);
    let last = recoveries.last().unwrap();
    assert_eq!((last.kind, last.done), (RecoveryKind::Failover, true), "{last:?}");
    // Its successor as well, as soon as it is there.
    job.pass(10_000);
    job.kill(job.pserver(0));
    let last = job.core.view().recoveries.pop().unwrap();
    assert_eq!((last.kind, last.done), (RecoveryKind::Failover, true), "{last:?}");
    job.pass(10_000);
    fill_all(&mut job);
    assert_eq!(job.core.view().replication.unwrap().under_replicated, 0);
}

#[test]
fn s15_new_attempt_orders_refills_under_another_number() {
    let mut job = started(Consistency::Asp, 3, 1);
    job.kill(job.pserver(0));
    let earlier = open(&job);
    let mut next = taken_over(&job);
    assert_eq!(epoch(&next), epoch(&job), "no rollback");
    let later = open(&next);
    assert!(!later.is_empty());
    for (shard, _, order) in &later {
        let same = earlier.iter().find(|(of, ..)| of == shard);
        assert!(same.is_none_or(|(.., before)| order > before));
    }
    let stale = earlier.iter().find(|(shard, ..)| later.iter().any(|(of, ..)| of == shard));
    let (shard, member, order) = *stale.unwrap();
    let term = last_view(&next, shard).term;
    let report = Report::Shard {
        epoch: epoch(&next),
        report: ShardReport::InSync { shard, term, member, order },
    };
    next.report(last_view(&next, shard).primary, report);
    assert_eq!(last_view(&next, shard).in_sync.len(), 1, "of an order that does not hold any more");
    fill_all(&mut next);
    assert_eq!(next.core.view().replication.unwrap().under_replicated, 0);
}

#[test]
fn hosts_that_are_lacking_get_no_second_copy() {
    let mut job = started(Consistency::Asp, 2, 1);
    job.auto.cluster = false;
    job.kill(job.pserver(0));
    assert!(open(&job).is_empty(), "one pserver is left");
    let records =
        |job: &Job| job.records.iter().filter(|it| matches!(it, Record::Views { .. })).count();
    assert_eq!(records(&job), 2);
    assert!(job.sent.iter().all(|(_, it)| match it {
        Command::Shards(ShardCommand::Views(views)) =>
            views.views.iter().all(|view| view.backups.is_empty()),
        _ => true,
    }));
}

fn warnings_of_backups(job: &Job) -> usize {
    job.warnings(WarningCode::BackupsMissing).len()
}

#[test]
fn shards_without_a_host_for_a_backup_are_named_once() {
    let mut job = started(Consistency::Asp, 2, 1);
    job.auto.cluster = false;
    job.kill(job.pserver(0));
    let replication = job.core.view().replication.unwrap();
    assert_eq!(replication.lacking, [0, 1, 2, 3].map(ShardId));
    job.pass(29_000);
    assert_eq!(warnings_of_backups(&job), 0, "a container may come");
    job.pass(2_000);
    assert!(job.warned("shards 0, 1, 2 and 3 have no backup: no other host"));
    job.pass(600_000);
    assert_eq!(warnings_of_backups(&job), 1);
    // With the backups that come at last the next time is another one.
    for incarnation in [2, 3] {
        job.grant(Slot::pserver(0), Incarnation(incarnation));
        job.on(Event::Timer);
        fill_all(&mut job);
        assert!(job.core.view().replication.unwrap().lacking.is_empty());
        if incarnation == 2 {
            job.kill(job.pserver(0));
            job.pass(31_000);
            assert_eq!(warnings_of_backups(&job), 2);
        }
    }
    assert_eq!(restores(&job), 1, "nothing is rolled back");
}

#[test]
fn rows_that_no_frame_can_carry_are_named_at_the_start() {
    let warned = |classes: u32| {
        let mut spec = replicated(Consistency::Asp, 2, 1);
        spec.model.classes = classes;
        Job::started(spec, 4, 0).warned("shards that lose a copy get no other one")
    };
    assert!(!warned(2));
    assert!(warned(2 << 20));
}

fn lagging(job: &Job, (shard, member, _): (ShardId, Member, ViewVersion)) -> Report {
    Report::Shard {
        epoch: epoch(job),
        report: ShardReport::Lagging { shard, term: last_view(job, shard).term, member },
    }
}

/// Two pservers that do not reach each other, but the ApplicationMaster and the trainers.
#[test]
fn s38_copy_that_cannot_be_sent_goes_to_another_pserver() {
    let mut job = started(Consistency::Asp, 4, 1);
    let before = epoch(&job);
    job.kill(job.pserver(0));
    let first = open(&job)[0];
    let primary = last_view(&job, first.0).primary;
    job.report(primary, lagging(&job, first));
    let second = open(&job).into_iter().find(|fill| fill.0 == first.0).expect("another refill");
    assert_ne!(second.1, first.1);
    assert!(second.1 != primary && second.2 > first.2);
    let warning = format!("{} takes no copy of shard {}", first.1.slot, first.0);
    assert!(job.warned(&warning) && job.warned("another pserver gets it"), "{:?}", job.notices);
    // What the first one reports of its refill after that does not count.
    let before_late = last_view(&job, first.0);
    job.report(primary, in_sync(&job, first));
    assert_eq!(last_view(&job, first.0), before_late);
    fill_all(&mut job);
    let views = last_views(&job);
    assert!(views.iter().all(|view| view.in_sync.len() == 2), "{views:?}");
    assert!(!last_view(&job, first.0).in_sync.contains(&first.1));
    assert_eq!((epoch(&job), restores(&job)), (before, 1));
}

#[test]
fn a_refill_without_another_place_goes_on_and_is_named_once() {
    let mut job = started(Consistency::Asp, 2, 1);
    job.kill(job.pserver(0));
    let fill = open(&job)[0];
    let primary = last_view(&job, fill.0).primary;
    for _ in 0..3 {
        job.report(primary, lagging(&job, fill));
        job.pass(10_000);
    }
    assert!(open(&job).contains(&fill), "it is the only place");
    let warnings = job.warnings(WarningCode::RefillStalled);
    assert!(matches!(&warnings[..], [one] if one.contains("no other pserver can get it")));
    fill_all(&mut job);
    assert!(last_views(&job).iter().all(|view| view.in_sync.len() == 2));
}
