//! Hand-overs of shards by living pservers: no rollback, no other epoch.

use std::collections::BTreeMap;

use heddle_am_core::{Event, RecordedView};
use heddle_protocol::control::{
    Command, HandOver, Operation, PserverCommand, Report, ShardCommand, ShardReport, ShardStop,
};
use heddle_protocol::ids::{Epoch, Member, Slot, Term};
use heddle_protocol::job_spec::Consistency;
use heddle_protocol::view::{JobEvent, JobState};

use crate::failover::{
    epoch, last_places, replicated, restores, started, taken_over, views_of, views_sent,
};
use crate::harness::Job;
use crate::refills::{fill_all, last_views};

/// A started job, each of whose pservers is on a node of its own.
fn on_nodes(pservers: u32) -> Job {
    let mut job = Job::new(replicated(Consistency::Asp, pservers, 1), 40, 0);
    job.node = |slot| match slot {
        Slot { role: heddle_protocol::ids::Role::Pserver, index } => format!("node-{index}"),
        Slot { .. } => "node-of-trainers".to_owned(),
    };
    job.start();
    job
}

fn leaves(job: &mut Job, node: u32) {
    // What is started again is elsewhere.
    job.node = |slot| format!("other-{slot}");
    job.on(Event::NodeLeaving { node: format!("node-{node}") });
}

/// The cut that the notice of a node asks for becomes a checkpoint.
fn save(job: &mut Job) {
    let cut = job.cut();
    job.snap_all(cut, 50);
    job.save_all(cut);
}

/// Shards served, by pserver.
fn served(job: &Job) -> BTreeMap<Slot, usize> {
    let mut served = BTreeMap::new();
    for view in last_views(job) {
        *served.entry(view.primary.slot).or_default() += 1;
    }
    served
}

/// The hand-overs that were ordered.
fn orders(job: &Job) -> Vec<(Member, HandOver)> {
    let order = |(to, command): &(Member, Command)| match command {
        Command::Shards(ShardCommand::HandOver(order)) => Some((*to, order.clone())),
        _ => None,
    };
    job.sent.iter().filter_map(order).collect()
}

fn drained(epoch: Epoch, stop: ShardStop, number: u64) -> Report {
    let ShardStop { shard, term, version } = stop;
    Report::Shard { epoch, report: ShardReport::Drained { shard, term, version, number } }
}

/// A job that has ordered a hand-over after a loss, which is not answered.
fn ordered() -> (Job, Member, Vec<ShardStop>) {
    let mut job = started(Consistency::Asp, 3, 1);
    job.auto.hand_over = false;
    job.kill(job.pserver(0));
    assert!(orders(&job).is_empty(), "nothing to hand over while copies are being filled");
    fill_all(&mut job);
    let (to, HandOver { shards, .. }) = orders(&job).pop().expect("the survivors serve three each");
    (job, to, shards)
}

#[test]
fn shards_spread_evenly_again_after_a_loss() {
    let mut job = started(Consistency::Bsp, 3, 1);
    let before = epoch(&job);
    job.kill(job.pserver(0));
    assert_eq!(served(&job), [1, 2].map(|slot| (Slot::pserver(slot), 3)).into());
    fill_all(&mut job);
    assert_eq!(served(&job), [0, 1, 2].map(|slot| (Slot::pserver(slot), 2)).into());
    for (view, place) in last_views(&job).iter().zip(last_places(&job, job.trainer(0))) {
        assert_eq!(place.holder, view.primary);
        assert_eq!(view.in_sync.len(), 2, "the old primary stays in the set");
    }
    assert_eq!((epoch(&job), restores(&job)), (before, 1));
    let replication = job.core.view().replication.expect("it has backups");
    assert_eq!((replication.promotions, replication.hand_overs), (2, 2));
    assert_eq!(replication.served, [0, 1, 2].map(|slot| (Slot::pserver(slot), 2)).into());
    assert!(job.notices.iter().any(|it| matches!(it, JobEvent::Moved { shards: 1, .. })));
}

#[test]
fn s26_all_shards_of_an_order_move_in_one_record() {
    let mut job = on_nodes(2);
    job.auto.hand_over = false;
    let (from, other) = (job.pserver(0), job.pserver(1));
    leaves(&mut job, 0);
    let (to, HandOver { shards, .. }) = orders(&job).pop().expect("its node leaves");
    assert_eq!((to, shards.len()), (from, 2));
    let before = views_of(&job).len();
    job.auto.journal = false;
    job.sent.clear();
    job.report(from, drained(epoch(&job), shards[0], 7));
    job.report(from, drained(epoch(&job), shards[0], 7));
    assert_eq!(views_of(&job).len(), before, "a shard is not drained");
    job.report(from, drained(epoch(&job), shards[1], 9));
    let views = views_of(&job)[before].clone();
    assert_eq!(views_of(&job).len(), before + 1, "the pserver stays until its successor serves");
    let of = |view: &RecordedView| (view.primary, view.in_sync.len(), view.term, view.began_at);
    assert_eq!(
        views.iter().map(of).collect::<Vec<_>>(),
        [(other, 2, Term(2), Some(7)), (other, 2, Term(2), Some(9))]
    );
    assert!(views_sent(&job, other).is_empty(), "the record is not durable");
    assert!(last_places(&job, job.trainer(0)).is_empty());
    job.all_durable();
    let numbers: Vec<_> = views_sent(&job, other).iter().map(|view| view.began_at).collect();
    assert_eq!(numbers, [Some(7), Some(9)]);
    assert!(last_places(&job, job.trainer(0)).iter().all(|place| place.holder == other));
}

#[test]
fn reports_of_others_change_nothing() {
    let (mut job, from, shards) = ordered();
    let (stop, now) = (shards[0], epoch(&job));
    let other = [1, 2].map(|slot| job.pserver(slot)).into_iter().find(|it| *it != from).unwrap();
    let before = views_of(&job).len();
    job.report(other, drained(now, stop, 0));
    job.report(from, drained(Epoch { count: 9, ..now }, stop, 0));
    job.report(from, drained(now, ShardStop { term: Term(9), ..stop }, 0));
    job.report(from, drained(now, ShardStop { version: stop.version.next(), ..stop }, 0));
    assert_eq!(views_of(&job).len(), before);
    job.report(from, drained(now, stop, 0));
    assert_eq!(views_of(&job).len(), before + 1);
}

#[test]
fn a_cut_waits_for_a_hand_over_which_may_be_given_up() {
    let (mut job, from, shards) = ordered();
    let calls = job.calls.len();
    job.operate(1, Operation::Checkpoint);
    assert_eq!(job.calls.len(), calls, "no cut while a primary stands");
    job.pass(6_000);
    assert!(job.calls.len() > calls);
    let before = views_of(&job).len();
    job.report(from, drained(epoch(&job), shards[0], 0));
    assert_eq!(views_of(&job).len(), before, "too late");
    let cut = job.cut();
    job.snap_all(cut, 50);
    job.save_all(cut);
    let known = orders(&job).len();
    job.pass(11_000);
    assert_eq!(orders(&job).len(), known + 1, "tried again");
}

#[test]
fn loss_of_the_next_primary_ends_the_order() {
    let (mut job, from, shards) = ordered();
    job.kill(job.pserver(0));
    let before = views_of(&job).len();
    job.report(from, drained(epoch(&job), shards[0], 0));
    assert_eq!(views_of(&job).len(), before, "its copy does not count any more");
    job.auto.hand_over = true;
    fill_all(&mut job);
    assert_eq!(restores(&job), 1);
}

#[test]
fn pserver_on_a_node_that_leaves_moves_without_a_rollback() {
    let mut job = on_nodes(3);
    let (before, first) = (epoch(&job), job.pserver(0));
    leaves(&mut job, 0);
    assert!(!served(&job).contains_key(&first.slot), "it serves nothing: {:?}", served(&job));
    save(&mut job);
    assert_eq!(job.pserver(0), first, "its shards get copies elsewhere first");
    fill_all(&mut job);
    assert!(job.pserver(0).incarnation > first.incarnation);
    assert!(job.stopped.contains(&first));
    fill_all(&mut job);
    let view = job.core.view();
    let replication = view.replication.expect("it has backups");
    assert_eq!((replication.under_replicated, replication.promotions), (0, 0));
    assert_eq!((epoch(&job), restores(&job), view.state), (before, 1, JobState::Running));
    assert_eq!(served(&job)[&first.slot], 2, "spread evenly again");
}

#[test]
fn pserver_without_another_host_moves_after_its_hand_over() {
    let mut job = on_nodes(2);
    let first = job.pserver(0);
    leaves(&mut job, 0);
    assert!(job.pserver(0).incarnation > first.incarnation);
    save(&mut job);
    fill_all(&mut job);
    assert_eq!(restores(&job), 1);
    assert_eq!(served(&job), [0, 1].map(|slot| (Slot::pserver(slot), 2)).into());
}

#[test]
fn two_nodes_that_leave_cost_no_rollback() {
    let mut job = on_nodes(4);
    let (before, first) = (epoch(&job), [job.pserver(0), job.pserver(1)]);
    job.node = |slot| format!("other-{slot}");
    for node in ["node-0", "node-1"] {
        job.on(Event::NodeLeaving { node: node.to_owned() });
    }
    save(&mut job);
    for _ in 0..4 {
        fill_all(&mut job);
    }
    for member in first {
        assert!(job.stopped.contains(&member), "{member:?}");
    }
    assert_eq!((epoch(&job), restores(&job)), (before, 1));
    assert_eq!(job.core.view().replication.expect("it has backups").under_replicated, 0);
}

#[test]
fn preempted_pserver_hands_its_shards_over_and_stays() {
    let mut job = on_nodes(3);
    let first = job.pserver(0);
    let container = job.process(first).container.clone().expect("it has one");
    job.on(Event::Preempting { container, deadline_ms: Some(10_000) });
    assert!(!served(&job).contains_key(&first.slot), "{:?}", served(&job));
    assert_eq!(job.pserver(0), first, "it need not come to that");
    let promotions = job.core.view().replication.expect("it has backups").promotions;
    job.kill(first);
    let replication = job.core.view().replication.expect("it has backups");
    assert_eq!(replication.promotions, promotions, "no shard was served there");
}

#[test]
fn recorded_hand_overs_hold_at_a_takeover() {
    let mut job = started(Consistency::Asp, 3, 1);
    job.kill(job.pserver(0));
    fill_all(&mut job);
    let next = taken_over(&job);
    assert_eq!(epoch(&next), epoch(&job), "no rollback");
    let primaries = |job: &Job| last_views(job).iter().map(|view| view.primary).collect::<Vec<_>>();
    let places = last_places(&next, next.trainer(0));
    assert_eq!(places.iter().map(|it| it.holder).collect::<Vec<_>>(), primaries(&job));
}

/// The orders for a phase that one pserver was sent.
fn begins(job: &Job, member: Member) -> usize {
    let is_one = |(to, it): &&(Member, Command)| {
        *to == member && matches!(it, Command::Pserver(PserverCommand::Begin(_)))
    };
    job.sent.iter().filter(is_one).count()
}

/// Streams moved its copies into the phase, but the order may have been lost with the attempt that sent it. A shard that is
/// handed to it later would refuse each cut of a phase that its pserver is not in.
#[test]
fn a_pserver_without_shards_gets_the_phase_at_a_takeover() {
    let mut job = started(Consistency::Asp, 3, 1);
    job.auto.hand_over = false;
    job.kill(job.pserver(0));
    assert_eq!(served(&job).get(&Slot::pserver(0)), None, "nothing is handed over yet");
    let next = taken_over(&job);
    assert_eq!(next.core.view().state, JobState::Running);
    for index in 0..3 {
        assert_eq!(begins(&next, next.pserver(index)), 1, "pserver-{index}");
    }
}

#[test]
fn a_pserver_that_registers_again_gets_the_phase() {
    let mut job = started(Consistency::Asp, 3, 1);
    job.auto.hand_over = false;
    job.kill(job.pserver(0));
    let member = job.pserver(0);
    job.sent.clear();
    job.disconnect(member);
    job.registers(member);
    assert_eq!(begins(&job, member), 1);
    assert_eq!(job.core.view().state, JobState::Running);
}

/// The phase began without it, and the job waits for a cut before the phase's work begins.
#[test]
fn a_pserver_that_was_away_as_a_phase_began_gets_it() {
    let mut asp = replicated(Consistency::Asp, 3, 1);
    asp.data.passes = 2;
    let mut job = Job::started(asp, 1, 0);
    job.auto.hand_over = false;
    job.kill(job.pserver(0));
    let member = job.pserver(0);
    job.disconnect(member);
    (job.auto.snap, job.auto.barrier) = (false, false);
    job.finish_all();
    let phase = job.core.view().phase;
    assert_eq!(begins(&job, member), 0, "it is away");
    job.sent.clear();
    job.registers(member);
    assert_eq!((job.core.view().phase, begins(&job, member)), (phase, 1));
    assert!(job.told(job.trainer(0), 0).is_empty(), "no work begins before the cut");
}
