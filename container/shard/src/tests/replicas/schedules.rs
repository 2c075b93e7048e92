//! The schedules that break simpler protocols, and the rules one by one.

use heddle_protocol::process_figures::ProcessFigure;

use super::*;

const OK: Option<(Kind, Status)> = Some((Kind::Ack, Status::Ok));
const ALREADY: Option<(Kind, Status)> = Some((Kind::Ack, Status::Already));

fn asp(count: usize) -> Copies {
    Copies::new(count, Sharing::Queue, config(SGD))
}

fn bsp(lanes: u32) -> Copies {
    Copies::new(2, Sharing::Lanes { lanes }, config(SGD))
}

#[test]
fn s2_acknowledged_push_survives_its_primary() {
    let mut copies = asp(2);
    copies.push(0, 1, whole(0, 0), -1.0);
    assert_eq!(copies.answer(0, 1), None, "the backup does not have it");
    copies.deliver(0, 1, 1);
    assert_eq!(copies.answer(0, 1), None, "its answer has not come");
    copies.acknowledge();
    assert_eq!(copies.answer(0, 1), OK);
    copies.promote(1, 2);
    assert_eq!(copies.values(1), copies.values(0));
    copies.push(1, 2, whole(0, 0), -1.0);
    assert_eq!(copies.answer(1, 2), ALREADY, "it is not applied twice");
}

#[test]
fn s3_repeated_push_is_answered_when_the_backup_has_it() {
    let mut copies = asp(2);
    copies.push(0, 1, whole(0, 0), -1.0);
    copies.push(0, 2, whole(0, 0), -1.0);
    assert_eq!(copies.answer(0, 2), None, "`Already` is an acknowledgement too");
    copies.replicate(0, 1);
    assert_eq!((copies.answer(0, 1), copies.answer(0, 2)), (OK, ALREADY));
}

#[test]
fn s4_snapshot_is_reported_when_the_backup_has_it() {
    let mut copies = asp(2);
    copies.push(0, 1, whole(0, 0), -1.0);
    let command = take(cut(1), epoch(1), CutAt::Barriers(Vec::new()));
    for host in [0, 1] {
        copies.act(host, |set, now, out| set.cut(&command, now, out)).expect("this epoch");
    }
    assert!(copies.reports.is_empty(), "{:?}", copies.reports);
    copies.replicate(0, 1);
    let taken = |report: &ShardReport| matches!(report, ShardReport::SnapshotTaken { .. });
    assert!(matches!(&copies.reports_of(0)[..], [report] if taken(report)));
    assert!(copies.hosts[1].snapshot_head(ShardId(0), cut(1)).is_ok(), "it can be saved there");
}

#[test]
fn s5_done_is_acknowledged_when_the_backup_has_it() {
    let mut copies = bsp(2);
    copies.push(0, 1, whole(0, 0), -1.0);
    copies.ask(0, 2, Kind::Done, whole(0, 0));
    copies.deliver(0, 1, 1);
    copies.acknowledge();
    assert_eq!((copies.answer(0, 1), copies.answer(0, 2)), (OK, None));
    copies.promote(1, 2);
    copies.ask(1, 3, Kind::Done, whole(0, 0));
    assert_eq!(copies.answer(1, 3), OK, "the trainer sends it again");
}

#[test]
fn s6_question_is_answered_when_the_backup_has_what_it_tells() {
    let mut copies = bsp(2);
    copies.push(0, 1, whole(1, 0), -1.0);
    copies.ask(0, 2, Kind::Query, whole(1, 0));
    assert_eq!(copies.answer(0, 2), None);
    copies.replicate(0, 1);
    assert_eq!(copies.answer(0, 2), Some((Kind::Progress, Status::Ok)));
}

#[test]
fn s8_primary_waits_until_a_view_leaves_the_backup_out() {
    let mut copies = asp(2);
    copies.push(0, 1, whole(0, 0), -1.0);
    copies.now += LAG;
    assert!(copies.hosts[0].deadline().is_some_and(|deadline| deadline <= copies.now));
    copies.act(0, |set, now, out| set.tick(now, out));
    copies.act(0, |set, now, out| set.tick(now, out));
    let lagging = ShardReport::Lagging { shard: ShardId(0), term: Term(1), member: pserver(1) };
    assert_eq!(copies.reports_of(0), [&lagging], "reported once");
    assert_eq!(copies.answer(0, 1), None, "the primary never decides it");
    copies.view(0, view(1, 2, &[0]));
    assert_eq!(copies.answer(0, 1), OK);
    let taken =
        ShardReport::ViewTaken { shard: ShardId(0), term: Term(1), version: ViewVersion(2) };
    assert_eq!(copies.reports_of(0)[1..], [&taken]);
}

#[test]
fn backup_is_reported_after_the_time_that_is_set() {
    let lag = Duration::from_millis(300);
    let mut copies = asp(2);
    copies.hosts[0]
        .set_replication_limits(ReplicationLimits { lag, ..ReplicationLimits::default() });
    copies.load(2, Sharing::Queue, &[0, 1]);
    copies.push(0, 1, whole(0, 0), -1.0);
    assert_eq!(copies.hosts[0].deadline(), Some(copies.now + lag));
    copies.now += lag;
    copies.act(0, |set, now, out| set.tick(now, out));
    let lagging = ShardReport::Lagging { shard: ShardId(0), term: Term(1), member: pserver(1) };
    assert_eq!(copies.reports_of(0), [&lagging]);
    // Until a view answers it: the ApplicationMaster may be lost before the record of the view is durable.
    copies.now += LAG;
    assert!(copies.hosts[0].deadline().is_some_and(|deadline| deadline <= copies.now));
    copies.act(0, |set, now, out| set.tick(now, out));
    copies.act(0, |set, now, out| set.tick(now, out));
    assert_eq!(copies.reports_of(0), [&lagging; 2]);
    copies.view(0, view(1, 2, &[0]));
    copies.now += LAG;
    copies.act(0, |set, now, out| set.tick(now, out));
    assert_eq!(copies.reports_of(0).iter().filter(|it| **it == &lagging).count(), 2);
    assert_eq!(copies.hosts[0].deadline(), None);
}

#[test]
fn s9_superseded_primary_cannot_answer_a_question() {
    let mut copies = bsp(2);
    copies.ask(0, 1, Kind::Query, whole(1, 0));
    copies.replicate(0, 1);
    assert!(copies.answer(0, 1).is_some());
    copies.promote(1, 2);
    copies.ask(0, 2, Kind::Query, whole(1, 0));
    copies.replicate(0, 1);
    // The copy with the higher term does not follow.
    assert_eq!(copies.answer(0, 2), Some((Kind::Refused, Status::WrongShard)));
    copies.ask(0, 3, Kind::Query, whole(1, 0));
    assert_eq!(copies.answer(0, 3), Some((Kind::Refused, Status::WrongShard)));
}

#[test]
fn s12_copy_with_a_higher_term_refuses_the_stream() {
    let mut copies = asp(2);
    copies.push(0, 1, whole(0, 0), -1.0);
    copies.replicate(0, 1);
    copies.promote(1, 2);
    let refused = copies.hosts[1].figures().get(ProcessFigure::FramesRefused);
    let number = copies.state(1).number;
    copies.push(0, 2, whole(0, 1), -1.0);
    copies.replicate(0, 1);
    // A superseded primary acknowledges nothing.
    assert_eq!(copies.answer(0, 2), Some((Kind::Refused, Status::WrongShard)));
    assert_eq!(copies.state(1).number, number);
    let after = copies.hosts[1].figures().get(ProcessFigure::FramesRefused);
    assert_eq!(after, refused + 1, "its write is counted");
    assert!(!copies.state(0).primary, "the refusal stops it");
}

#[test]
fn s13_superseded_primary_keeps_its_copy_until_it_is_left_out() {
    let mut copies = asp(2);
    copies.push(0, 1, whole(0, 0), -1.0);
    copies.replicate(0, 1);
    copies.promote(1, 2);
    copies.push(0, 2, whole(0, 1), -1.0);
    copies.replicate(0, 1);
    assert!(copies.state(0).whole && copies.hosts[0].shard(ShardId(0)).is_some());
    copies.view(0, view(2, 1, &[1]));
    assert!(copies.hosts[0].shard(ShardId(0)).is_none());
    assert!(copies.hosts[0].is_whole(), "nothing is loaded either");
}

#[test]
fn s14_earlier_views_change_nothing() {
    let mut copies = asp(2);
    copies.view(0, view(1, 3, &[0]));
    copies.reports.clear();
    copies.view(0, view(1, 2, &[0, 1]));
    copies.view(0, view(1, 3, &[0]));
    assert!(copies.reports.is_empty());
    copies.push(0, 1, whole(0, 0), -1.0);
    assert_eq!(copies.answer(0, 1), OK, "the set without the backup is the later one");
}

#[test]
fn s17_copies_take_the_snapshot_at_the_same_entry() {
    let mut copies =
        Copies::new(2, Sharing::Lanes { lanes: 1 }, config(Optimizer::ftrl(0.3, 1.0, 1e-3, 0.1)));
    let command = take(cut(1), epoch(1), CutAt::Steps(Step(1)));
    for host in [0, 1] {
        copies.act(host, |set, now, out| set.cut(&command, now, out)).expect("this epoch");
    }
    for step in 0..2 {
        copies.push(0, 2 * step, whole(0, step), -0.7);
        copies.ask(0, 2 * step + 1, Kind::Done, whole(0, step));
    }
    copies.replicate(0, 1);
    let saved: Vec<_> = [0, 1]
        .map(|host: usize| {
            let head = copies.hosts[host].snapshot_head(ShardId(0), cut(1)).expect("it is open");
            let mut cells = Vec::new();
            for (section, of) in copies.config.sections(&head.sparse_rows).iter().enumerate() {
                let mut piece = vec![0.0; of.values()];
                let set = &mut copies.hosts[host];
                set.save(ShardId(0), cut(1), section, 0, &mut piece).expect("it is open");
                cells.extend(piece.iter().map(|cell| cell.to_bits()));
            }
            (head, cells)
        })
        .into();
    assert_eq!(saved[0], saved[1]);
    assert_ne!(saved[0].1[0], copies.values(0)[0], "the second step is not in it");
}

#[test]
fn s25_entries_ahead_of_the_view_wait_for_it() {
    let mut copies = asp(3);
    copies.push(0, 1, whole(0, 0), -1.0);
    copies.replicate(0, 1);
    copies.replicate(0, 2);
    copies.view(1, view(2, 1, &[1, 2]));
    copies.connect(&[1, 2]);
    copies.push(1, 2, whole(0, 1), -1.0);
    let entry = copies.entries(1, 2, 1).remove(0);
    assert_eq!(copies.give(1, 2, &entry), Flow::Wait, "its view is on its way");
    copies.view(2, view(2, 1, &[1, 2]));
    let conn = copies.streams[0].2;
    let again = entry.change.clone();
    let frame = Frame { conn, ..again.frame() };
    assert_eq!(copies.act(2, |set, _, out| set.on_frame(&frame, out)), Flow::Taken);
    // The first entry was the one that both had: its commit number had not come.
    copies.acknowledge();
    assert_eq!(copies.answer(1, 2), None);
    copies.replicate(1, 2);
    assert_eq!(copies.answer(1, 2), OK);
    assert_eq!(copies.values(1), copies.values(2));
}

#[test]
fn s28_full_tail_stops_trainers_and_not_backups() {
    let values = 1 << 20;
    let wide = ShardConfig { tables: vec![dense_table(0, "w", values, 1, SGD)], ..config(SGD) };
    let mut copies = Copies::new(2, Sharing::Queue, wide);
    let big = vec![-1.0; values as usize];
    let mut header = copies.header(Kind::Push, whole(0, 0));
    (header.count, header.rows, header.value_bytes) = (values as u32, 1, 4 * values as u32);
    for step in 0..9 {
        let header = Header { request: step, step: Step(step), ..header };
        assert_eq!(copies.send(0, header, &[], &big), Flow::Taken);
    }
    let state = copies.state(0);
    let header = Header { request: 9, step: Step(9), ..header };
    assert_eq!(copies.send(0, header, &[], &big), Flow::Taken, "held, so that pulls are served");
    assert_eq!(copies.state(0), state, "36 MiB wait for the backup");
    copies.pull(0, 10, 0);
    assert_eq!(copies.answer(0, 10), Some((Kind::Values, Status::Ok)));
    copies.replicate(0, 1);
    copies.replicate(0, 1);
    assert!((0..=9).all(|request| copies.answer(0, request) == OK));
    assert_eq!(copies.values(0), copies.values(1));
}

#[test]
fn s33_values_of_pulls_do_not_wait() {
    let mut copies = asp(2);
    copies.push(0, 1, whole(0, 0), -1.0);
    copies.pull(0, 2, 0);
    assert_eq!(copies.answer(0, 2), Some((Kind::Values, Status::Ok)));
    assert_eq!(copies.answer(0, 1), None);
}

#[test]
fn connection_that_broke_is_repeated_from_the_last_answer() {
    let mut copies = asp(2);
    for step in 0..4 {
        copies.push(0, step, whole(0, step), -1.0);
    }
    copies.deliver(0, 1, 3);
    // The answers to two of them are lost with the connection.
    copies.back.truncate(1);
    copies.acknowledge();
    copies.connect(&[0, 1]);
    assert_eq!(copies.entries(0, 1, 9).len(), 3, "after the last acknowledged one");
    copies.connect(&[0, 1]);
    copies.replicate(0, 1);
    assert!((0..4).all(|request| copies.answer(0, request) == OK));
    assert_eq!(copies.values(1), copies.values(0));
}

#[test]
fn gap_is_answered_with_the_position_and_sent_again() {
    let mut copies = asp(2);
    for step in 0..3 {
        copies.push(0, step, whole(0, step), -1.0);
    }
    let entries = copies.entries(0, 1, 3);
    assert_eq!(copies.give(0, 1, &entries[2]), Flow::Taken);
    assert_eq!(copies.back[0].2.kind, Kind::Position);
    copies.acknowledge();
    copies.replicate(0, 1);
    assert!((0..3).all(|request| copies.answer(0, request) == OK));
    assert_eq!(copies.values(1), copies.values(0));
}

#[test]
fn backup_does_not_serve_and_begins_the_phase_by_its_stream() {
    let mut copies = asp(2);
    copies.push(1, 1, whole(0, 0), -1.0);
    assert_eq!(copies.answer(1, 1), Some((Kind::Refused, Status::NotReady)));
    let phase = Phase { no: PhaseNo(1), sharing: Sharing::ReadOnly };
    let begin = BeginPhase { epoch: epoch(1), phase };
    for host in [1, 0] {
        copies.act(host, |set, _, out| set.begin(begin, out)).expect("this epoch");
    }
    assert!(copies.hosts[1].settle(7), "a backup changes nothing by itself");
    assert!(!copies.hosts[0].settle(8));
    assert_eq!(copies.hosts[1].states()[0].phase, PhaseNo(0));
    copies.replicate(0, 1);
    assert_eq!(copies.settled, [8]);
    assert_eq!(copies.hosts[1].states()[0].phase, PhaseNo(1));
}

#[test]
fn promoted_backup_begins_the_phase_that_its_primary_missed() {
    let mut copies = asp(2);
    let phase = Phase { no: PhaseNo(1), sharing: Sharing::Queue };
    let begin = BeginPhase { epoch: epoch(1), phase };
    copies.act(1, |set, _, out| set.begin(begin, out)).expect("this epoch");
    copies.promote(1, 2);
    assert_eq!(copies.hosts[1].states()[0].phase, PhaseNo(1));
}

#[test]
fn promoted_backup_reports_the_end_of_the_phase() {
    let mut copies = bsp(1);
    copies.push(0, 1, whole(0, 0), -1.0);
    let end = Header { flags: flags::END, rows: 1, ..copies.header(Kind::Done, whole(0, 0)) };
    assert_eq!(copies.send(0, end, &[], &[]), Flow::Taken);
    copies.deliver(0, 1, 2);
    assert!(copies.reports.is_empty(), "neither of them reports yet");
    copies.promote(1, 2);
    let ended = |report: &&ShardReport| matches!(report, ShardReport::PhaseEnded { .. });
    assert_eq!(copies.reports_of(1).into_iter().filter(ended).count(), 1);
}

#[test]
fn rollback_begins_again_with_the_first_term() {
    let mut copies = asp(2);
    copies.push(0, 1, whole(0, 0), -1.0);
    copies.replicate(0, 1);
    copies.promote(1, 5);
    copies.load(2, Sharing::Queue, &[0, 1]);
    let state = copies.state(1);
    assert_eq!((state.term, state.number, state.primary), (Term(1), 0, false));
    copies.push(0, 2, whole(0, 0), -1.0);
    copies.replicate(0, 1);
    assert_eq!(copies.answer(0, 2), OK);
}

#[test]
fn entry_of_an_earlier_epoch_is_refused() {
    let mut copies = asp(2);
    copies.push(0, 1, whole(0, 0), -1.0);
    let entry = copies.entries(0, 1, 1).remove(0);
    copies.load(2, Sharing::Queue, &[0, 1]);
    assert_eq!(copies.give(0, 1, &entry), Flow::Taken);
    assert_eq!(copies.back[0].2.status, Status::WrongEpoch);
    assert_eq!(copies.state(1).number, 0);
}

#[test]
fn change_that_does_not_fit_ends_the_copy() {
    let mut copies = asp(2);
    copies.push(0, 1, whole(0, 0), -1.0);
    let entry = copies.entries(0, 1, 1).remove(0);
    let other = Header { step: Step(5), ..entry.change.frame().header };
    let change = crate::ShardChange::of(&Frame { header: other, ..entry.change.frame() });
    let entry = StreamEntry { change: std::sync::Arc::new(change), ..entry };
    assert_eq!(copies.give(0, 1, &entry), Flow::Taken);
    copies.acknowledge();
    assert!(!copies.state(1).whole);
    let lagging = |report: &&ShardReport| matches!(report, ShardReport::Lagging { .. });
    assert_eq!(copies.reports_of(0).into_iter().filter(lagging).count(), 1, "at once");
    assert_eq!(copies.answer(0, 1), None);
}

#[test]
fn primary_shows_how_far_its_slowest_backup_is_behind() {
    let mut copies = asp(3);
    let lag = |copies: &Copies, host: usize| copies.hosts[host].replication_lag(copies.now);
    assert_eq!(lag(&copies, 0), Some(ReplicationLag::default()));
    copies.push(0, 1, whole(0, 0), -1.0);
    copies.push(0, 2, whole(0, 1), -1.0);
    copies.now += Duration::from_millis(30);
    copies.replicate(0, 1);
    let behind = lag(&copies, 0).expect("a primary");
    assert_eq!((behind.entries, behind.ms), (2, 30), "backup 2 has none of both");
    assert!(behind.bytes > 0);
    copies.replicate(0, 2);
    assert_eq!(lag(&copies, 0), Some(ReplicationLag::default()));
    assert_eq!(lag(&copies, 1), None, "a backup");
}

#[test]
fn shards_without_views_are_sets_of_one() {
    let mut set = ShardSet::new(pserver(0), 0);
    let load = load(1, (0, Sharing::Queue), 0, None);
    let mut out = Vec::new();
    set.load(&load, &load.shards, &mut out).expect("a later epoch");
    set.install(epoch(1), Shard::initial(&config(SGD)), &mut out).expect("it fits");
    assert!(set.peers().is_empty() && set.deadline().is_none() && set.settle(1));
    assert_eq!(set.states()[0].replica, ReplicaState::ALONE);
}

/// What waits for backups has to fit into the memory that is counted for it.
#[test]
fn frames_wait_when_backups_owe_more_than_is_set() {
    let mut copies = Copies::new(2, Sharing::Queue, config(SGD));
    let limits = ReplicationLimits { unacknowledged_bytes: 0, ..ReplicationLimits::default() };
    copies.hosts[0].set_replication_limits(limits);
    copies.load(2, Sharing::Queue, &[0, 1]);
    copies.push(0, 1, whole(0, 0), -1.0);
    copies.push(0, 2, whole(0, 1), -1.0);
    assert_eq!(copies.state(0).number, 1, "the backup owes the first one");
    copies.replicate(0, 1);
    assert_eq!((copies.answer(0, 1), copies.state(0).number), (OK, 2));
    copies.replicate(0, 1);
    assert_eq!(copies.answer(0, 2), OK);
}
