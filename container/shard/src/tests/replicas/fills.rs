//! Refills: a new copy is brought up to date while training goes on.

use super::*;
use heddle_protocol::fill_frame::FillName;

const OK: Option<(Kind, Status)> = Some((Kind::Ack, Status::Ok));

/// A primary without a backup, whose copy on another pserver is to be filled.
fn under_replicated(sharing: Sharing) -> Copies {
    let mut copies = Copies::alone(2, sharing, config(SGD));
    copies.view(1, filling(1, 2, &[0], 1, 2));
    copies
}

fn asp() -> Copies {
    under_replicated(Sharing::Queue)
}

/// What is of the same bytes in all copies: values, state, and the once-only memory.
fn content(copies: &Copies, host: usize) -> (Vec<u32>, String) {
    let shard = copies.hosts[host].shard(ShardId(0)).expect("a copy");
    let state = ShardStateText(shard.state());
    (copies.values(host), state.to_string())
}

struct ShardStateText(heddle_protocol::control::ShardState);

impl std::fmt::Display for ShardStateText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = &self.0;
        write!(f, "{:?} {:?} {:?} {:?}", state.phase, state.step, state.tasks, state.done)
    }
}

fn in_sync(copies: &Copies) -> usize {
    let in_sync = |report: &&ShardReport| matches!(report, ShardReport::InSync { .. });
    copies.reports_of(0).into_iter().filter(in_sync).count()
}

/// Everything arrives until nothing moves.
fn fill(copies: &mut Copies) {
    for _ in 0..100 {
        copies.replicate(0, 1);
    }
}

#[test]
fn filled_copy_equals_its_primary() {
    let mut copies = asp();
    for task in 0..3 {
        copies.push(0, 1, whole(task, 0), -1.0);
    }
    copies.view(0, filling(1, 2, &[0], 1, 2));
    assert!(!copies.state(1).whole);
    fill(&mut copies);
    assert_eq!(in_sync(&copies), 1);
    assert!(copies.state(1).whole);
    assert_eq!(copies.state(1).number, copies.state(0).number);
    assert_eq!(content(&copies, 0), content(&copies, 1));
    copies.promote(1, 2);
    copies.push(1, 9, whole(1, 0), -1.0);
    assert_eq!(copies.answer(1, 9), Some((Kind::Ack, Status::Already)));
}

#[test]
fn refill_says_how_far_it_is() {
    let mut copies = asp();
    copies.view(0, filling(1, 2, &[0], 1, 2));
    let progress = |copies: &Copies| copies.hosts[0].fills().first().map(|it| it.bytes);
    assert_eq!(progress(&copies), Some(0));
    fill(&mut copies);
    let [done] = copies.hosts[0].fills()[..] else { panic!("one refill") };
    assert_eq!((done.bytes, done.of_bytes), (32, 32));
    copies.view(0, view(1, 3, &[0, 1]));
    assert_eq!(copies.hosts[0].fills(), []);
}

/// The ApplicationMaster may count C as soon as it is reported: by then the primary waits for it.
#[test]
fn s7_filled_copy_is_waited_for_before_it_is_reported() {
    let mut copies = asp();
    copies.push(0, 1, whole(0, 0), -1.0);
    assert_eq!(copies.answer(0, 1), OK);
    copies.view(0, filling(1, 2, &[0], 1, 2));
    copies.push(0, 2, whole(0, 1), -1.0);
    assert_eq!(copies.answer(0, 2), OK, "a copy that is being filled delays nothing");
    fill(&mut copies);
    assert_eq!(in_sync(&copies), 1);
    copies.push(0, 3, whole(0, 2), -1.0);
    assert_eq!(copies.answer(0, 3), None, "no view has it in the set yet");
    copies.replicate(0, 1);
    assert_eq!(copies.answer(0, 3), OK);
    copies.push(0, 4, whole(0, 3), -1.0);
    copies.view(0, view(1, 3, &[0, 1]));
    assert_eq!(copies.answer(0, 4), None, "nor does the view itself release an answer");
    copies.replicate(0, 1);
    assert_eq!(copies.answer(0, 4), OK);
}

#[test]
fn report_in_sync_comes_again_until_a_view_answers_it() {
    let mut copies = asp();
    copies.view(0, filling(1, 2, &[0], 1, 2));
    fill(&mut copies);
    copies.now += LAG;
    assert!(copies.hosts[0].deadline().is_some_and(|deadline| deadline <= copies.now));
    copies.act(0, |set, now, out| set.tick(now, out));
    assert_eq!(in_sync(&copies), 2);
    copies.view(0, view(1, 3, &[0, 1]));
    copies.view(1, view(1, 3, &[0, 1]));
    copies.now += LAG;
    copies.act(0, |set, now, out| set.tick(now, out));
    assert_eq!(in_sync(&copies), 2);
    assert_eq!(copies.hosts[0].deadline(), None);
}

/// Reports that the receiver of a refill takes nothing.
fn silent(copies: &Copies) -> usize {
    let lagging = ShardReport::Lagging { shard: ShardId(0), term: Term(1), member: pserver(1) };
    copies.reports_of(0).into_iter().filter(|it| **it == lagging).count()
}

/// Time passes as the deadlines of the primary have it.
fn pass(copies: &mut Copies, time: Duration) {
    let end = copies.now + time;
    while let Some(at) = copies.hosts[0].deadline().filter(|at| *at <= end) {
        copies.now = copies.now.max(at);
        copies.act(0, |set, now, out| set.tick(now, out));
        // What is sent is lost.
        copies.entries(0, 1, 8);
    }
    copies.now = end;
}

#[test]
fn s38_receiver_that_takes_nothing_is_reported_repeatedly() {
    for is_connected in [true, false] {
        let mut copies = asp();
        if !is_connected {
            copies.hosts[0].peer_disconnected(peer(1));
        }
        copies.view(0, filling(1, 2, &[0], 1, 2));
        copies.entries(0, 1, 8);
        pass(&mut copies, 5 * LAG - Duration::from_millis(1));
        assert_eq!(silent(&copies), 0, "{is_connected}");
        pass(&mut copies, Duration::from_millis(1));
        assert_eq!(silent(&copies), 1, "{is_connected}");
        pass(&mut copies, 5 * LAG);
        assert_eq!(silent(&copies), 2, "{is_connected}");
        copies.view(0, view(1, 3, &[0]));
        pass(&mut copies, 20 * LAG);
        assert_eq!(silent(&copies), 2, "another one gets the copy");
        assert_eq!(copies.hosts[0].deadline(), None);
    }
}

#[test]
fn receiver_that_waits_for_the_shard_is_not_reported() {
    let mut copies = Copies::alone(2, Sharing::Lanes { lanes: 2 }, config(SGD));
    // A step that is being applied: its state cannot be sent.
    copies.push(0, 1, whole(0, 0), -1.0);
    copies.view(0, filling(1, 2, &[0], 1, 2));
    copies.entries(0, 1, 8);
    pass(&mut copies, 20 * LAG);
    assert_eq!(silent(&copies), 0);
}

/// The refill overtakes the view that orders it; a view from before changes nothing afterwards.
#[test]
fn s14_earlier_view_does_not_touch_a_refill() {
    let mut copies = Copies::alone(2, Sharing::Queue, config(SGD));
    copies.view(0, filling(1, 3, &[0], 1, 3));
    let [begin] = &copies.entries(0, 1, 8)[..] else { panic!("the state alone") };
    let begin = begin.clone();
    assert_eq!(copies.give(0, 1, &begin), Flow::Taken);
    assert_eq!(copies.back[0].2.status, Status::NotReady, "its view has not come");
    copies.acknowledge();
    copies.view(1, filling(1, 3, &[0], 1, 3));
    copies.now += Duration::from_millis(100);
    copies.act(0, |set, now, out| set.tick(now, out));
    fill(&mut copies);
    assert!(copies.state(1).whole);
    for late in [view(1, 2, &[0]), filling(1, 1, &[0], 1, 1)] {
        copies.view(1, late);
        assert!(copies.state(1).whole);
    }
    copies.view(1, view(1, 4, &[0, 1]));
    assert_eq!(copies.give(0, 1, &begin), Flow::Taken);
    assert!(copies.state(1).whole, "a beginning that comes late begins nothing");
    assert_eq!(content(&copies, 0), content(&copies, 1));
}

/// The pserver divides its memory among the copies that are there.
#[test]
fn copy_that_is_left_out_is_reported_once() {
    let mut copies = Copies::new(2, Sharing::Queue, config(SGD));
    for _ in 0..2 {
        copies.view(1, view(1, 2, &[0]));
    }
    assert_eq!(copies.local_of(1), [&LocalReport::CopyLeft { shard: ShardId(0) }]);
    copies.view(0, view(1, 2, &[0]));
    let left = |it: &&LocalReport| matches!(it, LocalReport::CopyLeft { .. });
    assert_eq!(copies.local_of(0).into_iter().filter(left).count(), 0, "the primary stays");
}

#[test]
fn s14_view_from_before_the_copy_left_brings_none_back() {
    let mut copies = asp();
    copies.view(1, view(1, 5, &[0]));
    assert!(copies.hosts[1].states().is_empty());
    copies.view(1, filling(1, 4, &[0], 1, 4));
    assert!(copies.hosts[1].states().is_empty());
}

/// An answer to the end of one refill, on its way while the next one begins.
#[test]
fn s15_answer_to_an_earlier_refill_counts_for_no_later_one() {
    let mut copies = asp();
    copies.view(0, filling(1, 2, &[0], 1, 2));
    let mut late = None;
    for _ in 0..20 {
        copies.deliver(0, 1, 1);
        late = copies.back.iter().find(|(.., reply)| reply.has(flags::END)).copied().or(late);
        if late.is_some() {
            break;
        }
        copies.acknowledge();
    }
    let (_, _, late) = late.expect("the refill ends");
    copies.back.clear();
    assert_eq!(FillName::of(&late), FillName { order: ViewVersion(2), attempt: 1 });
    copies.view(0, view(1, 3, &[0]));
    copies.view(0, filling(1, 4, &[0], 1, 4));
    copies.view(1, view(1, 3, &[0]));
    copies.view(1, filling(1, 4, &[0], 1, 4));
    copies.deliver(0, 1, 1);
    copies.act(0, |set, now, out| set.on_peer_reply(peer(1), &late, now, out));
    assert_eq!(in_sync(&copies), 0);
    assert!(!copies.state(1).whole);
    fill(&mut copies);
    assert_eq!(in_sync(&copies), 1);
    assert_eq!(content(&copies, 0), content(&copies, 1));
}

/// Rows are read when they are sent: a change before them is in them, one after them is applied to them.
#[test]
fn s16_each_row_gets_each_change_once() {
    // Rows 0 to 7, one value each, in pieces of two rows.
    let mut copies =
        Copies::alone(2, Sharing::Queue, ShardConfig { fill_values: 2, ..config(SGD) });
    copies.view(1, filling(1, 2, &[0], 1, 2));
    copies.view(0, filling(1, 2, &[0], 1, 2));
    let push = |copies: &mut Copies, request: u64, step: u64| {
        let header = copies.header(Kind::Push, whole(0, step));
        let header = Header { request, count: ROWS as u32, rows: 1, value_bytes: 32, ..header };
        assert_eq!(copies.send(0, header, &[], &[-1.0; ROWS as usize]), Flow::Taken);
    };
    for step in 0..12 {
        push(&mut copies, step, step);
        copies.deliver(0, 1, 1);
        copies.acknowledge();
    }
    fill(&mut copies);
    assert_eq!(in_sync(&copies), 1);
    assert_eq!(copies.values(1), vec![12f32.to_bits(); ROWS as usize]);
    assert_eq!(content(&copies, 0), content(&copies, 1));
}

#[test]
fn bsp_refill_begins_right_after_a_step() {
    let mut copies = under_replicated(Sharing::Lanes { lanes: 2 });
    copies.push(0, 1, whole(0, 0), -1.0);
    copies.view(0, filling(1, 2, &[0], 1, 2));
    assert!(copies.entries(0, 1, 8).is_empty(), "a part is staged");
    copies.ask(0, 2, Kind::Query, whole(1, 0));
    copies.push(0, 3, whole(1, 0), -2.0);
    copies.ask(0, 4, Kind::Done, whole(0, 0));
    // Ahead: it is staged as soon as the step is applied.
    copies.push(0, 5, whole(0, 1), -4.0);
    copies.ask(0, 6, Kind::Done, whole(1, 0));
    assert_eq!(copies.answer(0, 5), OK);
    fill(&mut copies);
    assert_eq!(in_sync(&copies), 1);
    assert_eq!(content(&copies, 0), content(&copies, 1));
    copies.promote(1, 2);
    copies.push(1, 7, whole(0, 1), -4.0);
    assert_eq!(copies.answer(1, 7), Some((Kind::Ack, Status::Already)));
}

#[test]
fn hand_outs_that_asked_are_part_of_a_refill() {
    let mut copies = under_replicated(Sharing::Lanes { lanes: 2 });
    let ask = |copies: &mut Copies, host, request, kind, of| {
        let header = copies.header(kind, whole(1, 0));
        let rows = u32::from(kind == Kind::Done);
        let header = Header { request, rows, hand_out: of, ..header };
        assert_eq!(copies.send(host, header, &[], &[]), Flow::Taken);
    };
    ask(&mut copies, 0, 1, Kind::Query, hand_out(1, 7));
    copies.view(0, filling(1, 2, &[0], 1, 2));
    fill(&mut copies);
    copies.promote(1, 2);
    ask(&mut copies, 1, 2, Kind::Done, hand_out(1, 6));
    assert_eq!(copies.answer(1, 2), Some((Kind::Refused, Status::Fenced)));
}

#[test]
fn refill_begins_again_on_a_new_connection() {
    let mut copies = asp();
    copies.view(0, filling(1, 2, &[0], 1, 2));
    copies.deliver(0, 1, 1);
    copies.acknowledge();
    copies.deliver(0, 1, 1);
    assert!(!copies.state(1).whole);
    copies.connect(&[0, 1]);
    copies.push(0, 1, whole(0, 0), -1.0);
    fill(&mut copies);
    assert_eq!(in_sync(&copies), 1);
    assert_eq!(content(&copies, 0), content(&copies, 1));
}

#[test]
fn silent_receiver_holds_no_changes_back() {
    let mut copies = asp();
    copies.view(0, filling(1, 2, &[0], 1, 2));
    copies.deliver(0, 1, 1);
    copies.acknowledge();
    copies.entries(0, 1, 8);
    copies.now += LAG;
    copies.act(0, |set, now, out| set.tick(now, out));
    copies.now += Duration::from_millis(100);
    copies.act(0, |set, now, out| set.tick(now, out));
    fill(&mut copies);
    assert_eq!(in_sync(&copies), 1, "another attempt");
    assert!(
        copies
            .reports_of(0)
            .iter()
            .all(|it| matches!(it, ShardReport::InSync { .. } | ShardReport::ViewTaken { .. }))
    );
}

#[test]
fn copy_that_is_being_filled_takes_no_snapshot() {
    let mut copies = asp();
    copies.view(0, filling(1, 2, &[0], 1, 2));
    copies.deliver(0, 1, 1);
    copies.acknowledge();
    let command = take(cut(1), epoch(1), CutAt::Barriers(Vec::new()));
    copies.act(0, |set, now, out| set.cut(&command, now, out)).expect("this epoch");
    fill(&mut copies);
    assert!(copies.hosts[0].snapshot_head(ShardId(0), cut(1)).is_ok());
    assert!(copies.hosts[1].snapshot_head(ShardId(0), cut(1)).is_err());
    assert_eq!(content(&copies, 0), content(&copies, 1));
}

/// Whatever a peer sends as part of a refill, the copy takes it or is of no use; nothing else happens.
#[test]
fn malformed_parts_of_a_refill_are_refused() {
    let parts = |copies: &mut Copies| {
        copies.view(0, filling(1, 2, &[0], 1, 2));
        let mut parts = Vec::new();
        for _ in 0..8 {
            parts.extend(copies.entries(0, 1, 1));
            for entry in parts.last().into_iter().cloned().collect::<Vec<_>>() {
                assert_eq!(copies.give(0, 1, &entry), Flow::Taken);
            }
            copies.acknowledge();
        }
        parts
    };
    for sharing in [Sharing::Queue, Sharing::Lanes { lanes: 2 }] {
        let count = parts(&mut under_replicated(sharing)).len();
        assert!(count >= 3, "beginning, rows, end");
        for at in 0..count {
            for change in 0..7 {
                let mut copies = under_replicated(sharing);
                copies.view(0, filling(1, 2, &[0], 1, 2));
                for number in 0..=at {
                    let entries = copies.entries(0, 1, 1);
                    let Some(entry) = entries.first() else { break };
                    if number < at {
                        assert_eq!(copies.give(0, 1, entry), Flow::Taken);
                        copies.acknowledge();
                        continue;
                    }
                    let conn = copies.streams[0].2;
                    let head = Frame { conn, header: entry.head, keys: &[], values: &[] };
                    let whole = entry.change.frame();
                    let (mut header, mut values) = (whole.header, whole.values.to_vec());
                    match change {
                        0 => values.truncate(values.len() / 2),
                        1 => values.push(1.0),
                        2 => header.table = TableId(9),
                        3 => header.start = u64::MAX,
                        4 => header.rows = u32::MAX,
                        5 => header.count = u32::MAX,
                        _ => values.iter_mut().for_each(|value| *value = f32::from_bits(!0)),
                    }
                    let frame = Frame { conn, header, keys: &[], values: &values };
                    for frame in [head, frame] {
                        let flow = copies.act(1, |set, _, out| set.on_frame(&frame, out));
                        assert_eq!(flow, Flow::Taken);
                    }
                    assert_eq!(copies.answers.len(), 0);
                }
                copies.acknowledge();
            }
        }
    }
}
