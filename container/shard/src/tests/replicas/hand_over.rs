//! Hand-overs of a shard by its living primary.

use heddle_protocol::control::{HandOver, ShardStop};

use super::*;

const OK: Option<(Kind, Status)> = Some((Kind::Ack, Status::Ok));
const NOT_READY: Option<(Kind, Status)> = Some((Kind::Refused, Status::NotReady));

fn asp(count: usize) -> Copies {
    Copies::new(count, Sharing::Queue, config(SGD))
}

/// A view of a term that began with a hand-over.
pub(super) fn handed_over(term: u64, holders: &[usize], at: u64) -> ShardView {
    ShardView { began_at: Some(at), ..view(term, 1, holders) }
}

impl Copies {
    /// Orders the primary of a view to stop.
    pub(super) fn stop(&mut self, host: usize, term: u64, version: u64) {
        let stop = ShardStop { shard: ShardId(0), term: Term(term), version: ViewVersion(version) };
        let command = HandOver { epoch: self.hosts[host].epoch(), shards: vec![stop] };
        self.act(host, |set, now, out| set.hand_over(&command, now, out)).expect("this epoch");
    }

    /// The numbers that a primary has reported to have stopped at.
    pub(super) fn drained(&self, host: usize) -> Vec<u64> {
        let number = |report: &&ShardReport| match report {
            ShardReport::Drained { number, .. } => Some(*number),
            _ => None,
        };
        self.reports_of(host).iter().filter_map(number).collect()
    }
}

#[test]
fn s26_primary_stops_and_its_backups_get_everything_first() {
    let mut copies = asp(2);
    copies.push(0, 1, whole(0, 0), -1.0);
    copies.stop(0, 1, 1);
    assert_eq!(copies.drained(0), [0; 0], "the backup does not have the push");
    copies.push(0, 2, whole(0, 1), -1.0);
    copies.pull(0, 3, 0);
    copies.replicate(0, 1);
    assert_eq!(copies.drained(0), [1]);
    assert_eq!((copies.answer(0, 1), copies.answer(0, 2)), (OK, None), "a frame waits");
    assert!(matches!(copies.answer(0, 3), Some((Kind::Values, _))), "values do not wait");
    copies.view(0, handed_over(2, &[1, 0], 1));
    copies.view(1, handed_over(2, &[1, 0], 1));
    assert_eq!(copies.answer(0, 2), NOT_READY, "it goes to the new primary");
    copies.connect(&[1, 0]);
    copies.push(1, 4, whole(0, 1), -1.0);
    assert_eq!(copies.answer(1, 4), None, "answers wait for the old primary");
    copies.replicate(1, 0);
    assert_eq!(copies.answer(1, 4), OK);
    assert_eq!(copies.values(0), copies.values(1));
    assert!(copies.state(0).whole && !copies.state(0).primary && copies.state(1).primary);
    // And back.
    copies.stop(1, 2, 1);
    assert_eq!(copies.drained(1), [2]);
    for host in [1, 0] {
        copies.view(host, handed_over(3, &[0, 1], 2));
    }
    copies.connect(&[0, 1]);
    copies.push(0, 5, whole(0, 2), -1.0);
    copies.replicate(0, 1);
    assert_eq!(copies.answer(0, 5), OK);
    assert_eq!(copies.values(0), copies.values(1));
}

#[test]
fn s27_frames_of_every_connection_wait() {
    let mut copies = asp(2);
    let other = copies.act(0, |set, _, out| set.connect(member(1), out)).expect("a member");
    copies.stop(0, 1, 1);
    assert_eq!(copies.drained(0), [0]);
    let header = Header {
        request: 7,
        count: 1,
        rows: 1,
        value_bytes: 4,
        ..copies.header(Kind::Push, whole(1, 0))
    };
    let frame = Frame { conn: other, header, keys: &[], values: &[-1.0] };
    assert_eq!(copies.act(0, |set, _, out| set.on_frame(&frame, out)), Flow::Taken);
    // The trainer leaves the connection, and its frame is dropped with it.
    copies.act(0, |set, _, out| set.disconnect(other, out));
    for host in [0, 1] {
        copies.view(host, handed_over(2, &[1, 0], 0));
    }
    assert_eq!((copies.state(0).number, copies.state(1).number), (0, 0));
    assert_eq!(copies.values(0), copies.values(1));
}

#[test]
fn all_copies_of_the_set_stay_in_it() {
    let mut copies = asp(3);
    copies.push(0, 1, whole(0, 0), -1.0);
    copies.stop(0, 1, 1);
    copies.replicate(0, 1);
    assert_eq!(copies.drained(0), [0; 0], "one of two backups has the push");
    copies.replicate(0, 2);
    assert_eq!(copies.drained(0), [1]);
    for host in 0..3 {
        copies.view(host, handed_over(2, &[1, 0, 2], 1));
    }
    copies.connect(&[1, 0, 2]);
    copies.push(1, 2, whole(0, 1), -1.0);
    copies.replicate(1, 0);
    assert_eq!(copies.answer(1, 2), None);
    copies.replicate(1, 2);
    assert_eq!(copies.answer(1, 2), OK);
    assert_eq!([copies.values(0), copies.values(2)], [copies.values(1), copies.values(1)]);
}

#[test]
fn question_about_a_lane_waits() {
    let mut copies = Copies::new(2, Sharing::Lanes { lanes: 2 }, config(SGD));
    copies.stop(0, 1, 1);
    copies.ask(0, 1, Kind::Query, whole(1, 0));
    copies.replicate(0, 1);
    assert_eq!((copies.answer(0, 1), copies.state(1).number), (None, 0));
    copies.view(0, handed_over(2, &[1, 0], 0));
    assert_eq!(copies.answer(0, 1), NOT_READY);
}

#[test]
fn order_of_an_earlier_view_is_ignored() {
    let mut copies = asp(2);
    copies.view(0, view(1, 2, &[0, 1]));
    copies.stop(0, 1, 1);
    copies.stop(1, 1, 1);
    copies.push(0, 1, whole(0, 0), -1.0);
    copies.replicate(0, 1);
    assert_eq!((copies.answer(0, 1), copies.drained(0), copies.drained(1)), (OK, vec![], vec![]));
}

#[test]
fn stop_ends_by_a_view_a_phase_a_cut_and_by_itself() {
    type End = fn(&mut Copies);
    let by_view: End = |copies| copies.view(0, view(1, 2, &[0, 1]));
    let by_cut: End = |copies| {
        let command = take(cut(1), epoch(1), CutAt::Barriers(Vec::new()));
        copies.act(0, |set, now, out| set.cut(&command, now, out)).expect("this epoch");
    };
    let by_time: End = |copies| {
        copies.now += LAG;
        assert_eq!(copies.hosts[0].deadline(), Some(copies.now));
        copies.act(0, |set, now, out| set.tick(now, out));
    };
    for end in [by_view, by_cut, by_time] {
        let mut copies = asp(2);
        copies.stop(0, 1, 1);
        copies.push(0, 1, whole(0, 0), -1.0);
        copies.replicate(0, 1);
        assert_eq!(copies.answer(0, 1), None);
        end(&mut copies);
        copies.replicate(0, 1);
        assert_eq!(copies.answer(0, 1), OK);
        assert_eq!(copies.hosts[0].deadline(), None);
    }
    let mut copies = asp(2);
    copies.stop(0, 1, 1);
    let phase = Phase { no: PhaseNo(1), sharing: Sharing::Queue };
    let begin = BeginPhase { epoch: epoch(1), phase };
    copies.act(0, |set, _, out| set.begin(begin, out)).expect("this epoch");
    copies.replicate(0, 1);
    let header = Header {
        request: 1,
        count: 1,
        rows: 1,
        value_bytes: 4,
        phase: PhaseNo(1),
        ..copies.header(Kind::Push, whole(0, 0))
    };
    assert_eq!(copies.send(0, header, &[], &[-1.0]), Flow::Taken);
    copies.replicate(0, 1);
    assert_eq!(copies.answer(0, 1), OK);
}

#[test]
fn copy_with_changes_of_its_own_leaves_the_set() {
    let mut copies = asp(2);
    copies.stop(0, 1, 1);
    assert_eq!(copies.drained(0), [0]);
    // The view is late: the primary goes on, and its backup is promoted before it has the next push.
    copies.now += LAG;
    copies.act(0, |set, now, out| set.tick(now, out));
    copies.push(0, 1, whole(0, 0), -1.0);
    for host in [1, 0] {
        copies.view(host, handed_over(2, &[1, 0], 0));
    }
    // It is not acknowledged, and applied once.
    assert_eq!(copies.answer(0, 1), Some((Kind::Refused, Status::WrongShard)));
    assert!(!copies.state(0).whole, "the copy counts no more");
    copies.connect(&[1, 0]);
    copies.push(1, 2, whole(0, 0), -1.0);
    copies.replicate(1, 0);
    let lagging = ShardReport::Lagging { shard: ShardId(0), term: Term(2), member: pserver(0) };
    assert!(copies.reports_of(1).contains(&&lagging), "{:?}", copies.reports);
    copies.view(1, view(2, 2, &[1]));
    assert_eq!(copies.answer(1, 2), OK);
}

/// A primary whose orders are late goes on after its stop; meanwhile its backup was promoted and lost.
fn went_on(mut copies: Copies) -> Copies {
    copies.stop(0, 1, 1);
    assert_eq!(copies.drained(0), [0]);
    copies.now += LAG;
    copies.act(0, |set, now, out| set.tick(now, out));
    copies.push(0, 1, whole(0, 0), -1.0);
    copies
}

/// The next term is its own again. Trainers may have sent their requests for that term before it knew of the one between: they are
/// told to send them again.
#[test]
fn copy_that_went_on_and_is_the_last_one_serves_again() {
    let mut copies = went_on(asp(2));
    copies.view(0, handed_over(2, &[1, 0], 0));
    assert_eq!(copies.answer(0, 1), Some((Kind::Refused, Status::WrongShard)));
    copies.view(0, view(3, 2, &[0]));
    assert!(copies.state(0).whole && copies.state(0).primary);
    copies.push(0, 2, whole(0, 0), -1.0);
    assert_eq!(copies.answer(0, 2), Some((Kind::Ack, Status::Already)), "it was applied once");
}

#[test]
fn copy_that_did_not_notice_that_it_was_superseded_answers() {
    let mut copies = went_on(asp(2));
    assert_eq!(copies.answer(0, 1), None);
    copies.view(0, view(3, 2, &[0]));
    assert_eq!(copies.answer(0, 1), OK);
}

/// The third copy followed the one that was lost: the two have different changes under the same number.
#[test]
fn copies_that_followed_another_primary_leave_the_set() {
    for notices in [true, false] {
        let mut copies = went_on(asp(3));
        copies.view(1, handed_over(2, &[1, 0, 2], 0));
        copies.view(2, handed_over(2, &[1, 0, 2], 0));
        copies.connect(&[1, 2]);
        copies.push(1, 1, whole(0, 0), -2.0);
        copies.replicate(1, 2);
        assert_eq!(copies.state(2).number, 1);
        if notices {
            copies.view(0, handed_over(2, &[1, 0, 2], 0));
        }
        let set = view(3, 2, &[0, 2]);
        for host in [0, 2] {
            copies.view(host, set.clone());
        }
        copies.connect(&[0, 2]);
        copies.act(0, |set, now, out| set.tick(now, out));
        let lagging = ShardReport::Lagging { shard: ShardId(0), term: Term(3), member: pserver(2) };
        assert!(copies.reports_of(0).contains(&&lagging), "{notices}: {:?}", copies.reports);
        copies.push(0, 2, whole(0, 0), -1.0);
        copies.replicate(0, 2);
        assert_eq!(copies.answer(0, 2), None, "not without a view");
        copies.view(0, view(3, 3, &[0]));
        assert_eq!(copies.answer(0, 2), Some((Kind::Ack, Status::Already)), "{notices}");
    }
}

#[test]
fn new_primary_that_has_more_than_was_reported_keeps_it() {
    let mut copies = asp(2);
    copies.stop(0, 1, 1);
    copies.now += LAG;
    copies.act(0, |set, now, out| set.tick(now, out));
    copies.push(0, 1, whole(0, 0), -1.0);
    copies.replicate(0, 1);
    assert_eq!(copies.answer(0, 1), OK);
    for host in [1, 0] {
        copies.view(host, handed_over(2, &[1, 0], 0));
    }
    assert!(copies.state(1).whole && copies.state(1).primary);
    copies.connect(&[1, 0]);
    copies.push(1, 2, whole(0, 0), -1.0);
    copies.replicate(1, 0);
    copies.view(1, view(2, 2, &[1]));
    assert_eq!(copies.answer(1, 2), Some((Kind::Ack, Status::Already)), "it was acknowledged");
}
