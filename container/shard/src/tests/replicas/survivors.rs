//! Two backups whose primary is lost: both stay in the set, wherever each of them is.

use super::*;

const OK: Option<(Kind, Status)> = Some((Kind::Ack, Status::Ok));
const ALREADY: Option<(Kind, Status)> = Some((Kind::Ack, Status::Already));

/// Three copies with one change; one of the backups has another one, which is not acknowledged.
fn with_a_change_at(ahead: usize) -> Copies {
    let mut copies = Copies::new(3, Sharing::Queue, config(SGD));
    copies.push(0, 1, whole(0, 0), -1.0);
    copies.replicate(0, 1);
    copies.replicate(0, 2);
    assert_eq!(copies.answer(0, 1), OK);
    copies.push(0, 2, whole(0, 1), -2.0);
    copies.replicate(0, ahead);
    assert_eq!(copies.answer(0, 2), None, "the other backup does not have it");
    assert_eq!((copies.state(ahead).number, copies.state(3 - ahead).number), (2, 1));
    copies
}

/// Both survivors of the primary in the next view.
fn promote(copies: &mut Copies, term: u64, primary: usize, other: usize) {
    for host in [primary, other] {
        copies.view(host, view(term, 1, &[primary, other]));
    }
    copies.connect(&[primary, other]);
}

#[test]
fn s24_survivor_that_is_behind_gets_the_rest_first() {
    let mut copies = with_a_change_at(1);
    promote(&mut copies, 2, 1, 2);
    copies.push(1, 3, whole(0, 1), -2.0);
    assert_eq!(copies.answer(1, 3), None, "the other copy has not said what it has");
    assert_eq!(copies.deliver(1, 2, 9), 1, "nothing is sent before that");
    copies.acknowledge();
    copies.push(1, 4, whole(0, 2), -3.0);
    copies.replicate(1, 2);
    assert_eq!((copies.answer(1, 3), copies.answer(1, 4)), (ALREADY, OK));
    assert_eq!(copies.state(2).number, 3);
    assert_eq!(copies.values(2), copies.values(1));
}

#[test]
fn s21_survivor_with_more_is_promoted_instead() {
    let mut copies = with_a_change_at(1);
    promote(&mut copies, 2, 2, 1);
    copies.push(2, 3, whole(0, 1), -7.0);
    copies.replicate(2, 1);
    assert_eq!(copies.answer(2, 3), None, "the frame waits");
    let ahead = ShardReport::Ahead { shard: ShardId(0), term: Term(2), member: pserver(1) };
    assert!(copies.reports_of(2).contains(&&ahead), "{:?}", copies.reports);
    // Until another view comes the report is repeated, in case it was lost.
    assert_eq!(copies.hosts[2].deadline(), Some(copies.now + LAG));
    copies.now += LAG;
    copies.act(2, |set, now, out| set.tick(now, out));
    assert_eq!(copies.reports_of(2).iter().filter(|it| ***it == ahead).count(), 2);
    promote(&mut copies, 3, 1, 2);
    copies.push(1, 4, whole(0, 1), -2.0);
    copies.replicate(1, 2);
    copies.replicate(1, 2);
    assert_eq!(copies.answer(1, 4), ALREADY, "it has the change of the lost primary");
    assert_eq!((copies.state(1).number, copies.state(2).number), (2, 2));
    assert_eq!(copies.values(1), copies.values(2));
}

#[test]
fn s23_next_loss_after_it_costs_nothing() {
    for ahead in [1, 2] {
        let mut copies = with_a_change_at(ahead);
        // The promoted copy is lost before it has said anything to the other one.
        promote(&mut copies, 2, 1, 2);
        copies.view(2, view(3, 1, &[2]));
        copies.push(2, 3, whole(0, 0), -1.0);
        assert_eq!(copies.answer(2, 3), ALREADY, "all that was acknowledged is there");
    }
}

#[test]
fn survivor_with_other_changes_than_the_primary_is_lost() {
    let mut copies = with_a_change_at(1);
    promote(&mut copies, 2, 2, 1);
    // The next phase begins before the other copy has answered: the change is the primary's own.
    let begin =
        BeginPhase { epoch: epoch(1), phase: Phase { no: PhaseNo(1), sharing: Sharing::Queue } };
    copies.act(2, |set, _, out| set.begin(begin, out)).expect("this epoch");
    copies.replicate(2, 1);
    let lagging = ShardReport::Lagging { shard: ShardId(0), term: Term(2), member: pserver(1) };
    assert!(copies.reports_of(2).contains(&&lagging), "{:?}", copies.reports);
    assert_eq!(copies.state(1).number, 2, "it takes nothing");
    // Were that one promoted instead after all, the changes of this one would be of no use.
    promote(&mut copies, 3, 1, 2);
    assert!(copies.state(1).whole && !copies.state(2).whole);
}

#[test]
fn survivor_that_does_not_answer_is_reported() {
    let mut copies = with_a_change_at(1);
    promote(&mut copies, 2, 1, 2);
    copies.push(1, 3, whole(0, 1), -2.0);
    copies.now += LAG;
    copies.act(1, |set, now, out| set.tick(now, out));
    let lagging = ShardReport::Lagging { shard: ShardId(0), term: Term(2), member: pserver(2) };
    assert!(copies.reports_of(1).contains(&&lagging), "{:?}", copies.reports);
    copies.view(1, view(2, 2, &[1]));
    assert_eq!(copies.answer(1, 3), ALREADY, "it goes on without it");
}

#[test]
fn s25_question_that_overtakes_the_view_waits() {
    let mut copies = with_a_change_at(1);
    copies.view(1, view(2, 1, &[1, 2]));
    copies.connect(&[1, 2]);
    let asks = copies.entries(1, 2, 9);
    assert_eq!(asks.len(), 1);
    assert_eq!(copies.give(1, 2, &asks[0]), Flow::Wait);
    // The connection breaks; after it the copy is asked again.
    copies.connect(&[1, 2]);
    copies.view(2, view(2, 1, &[1, 2]));
    copies.replicate(1, 2);
    copies.replicate(1, 2);
    assert_eq!(copies.values(1), copies.values(2));
}

/// It may have other content than was acknowledged. No primary makes such a change but by a defect.
#[test]
fn copy_that_a_change_did_not_fit_does_not_serve() {
    let mut copies = Copies::new(2, Sharing::Queue, config(SGD));
    copies.push(0, 1, whole(0, 0), -1.0);
    let entry = copies.entries(0, 1, 1).pop().expect("a change");
    let conn = copies.streams[0].2;
    let change = entry.change.frame();
    let far = Header { start: 1 << 20, ..change.header };
    for frame in [
        Frame { conn, header: entry.head, keys: &[], values: &[] },
        Frame { conn, header: far, ..change },
    ] {
        assert_eq!(copies.act(1, |set, _, out| set.on_frame(&frame, out)), Flow::Taken);
    }
    assert!(!copies.state(1).whole);
    // The primary is lost before a view has left the copy out.
    copies.promote(1, 2);
    assert_eq!(copies.cannot_serve, [(1, ShardId(0))]);
    assert!(copies.reports_of(1).is_empty(), "it is in no view: {:?}", copies.reports);
    copies.push(1, 2, whole(0, 0), -1.0);
    assert_eq!(copies.answer(1, 2), Some((Kind::Refused, Status::WrongShard)));
}
