//! SSP with backups: what a promoted copy and an old primary grant.

use super::*;

/// Copies of a shard in a phase without look-ahead; both trainers are connected to the primary.
struct Clocks {
    copies: Copies,
    /// Connections of the second trainer, by pserver.
    other: Vec<Option<Conn>>,
}

impl Clocks {
    fn new(count: usize) -> Self {
        let sharing = Sharing::ClockedQueue { staleness: 0 };
        let mut clocks =
            Self { copies: Copies::new(count, sharing, config(SGD)), other: vec![None; count] };
        clocks.other_connects(0);
        clocks
    }

    fn other_connects(&mut self, host: usize) {
        let conn = self.copies.act(host, |set, _, out| set.connect(member(1), out));
        self.other[host] = Some(conn.expect("a member"));
    }

    /// A trainer sends its clock. The second one needs a connection.
    fn clock(&mut self, host: usize, trainer: usize, clock: u64, has_task: bool) {
        let conn = match trainer {
            0 => self.copies.conns[host],
            _ => self.other[host].expect("a connection"),
        };
        let header = Header::clock(epoch(1), PhaseNo(0), clock, has_task);
        let frame = Frame { conn, header, keys: &[], values: &[] };
        let flow = self.copies.act(host, |set, _, out| set.on_frame(&frame, out));
        assert_eq!(flow, Flow::Taken);
    }

    /// In the second phase, the first trainer sends its clock and pulls for the step that follows.
    fn pull_in_second_phase(&mut self, host: usize, request: u64, clock: u64) {
        let header = Header::clock(epoch(1), PhaseNo(1), clock, true);
        assert_eq!(self.copies.send(host, header, &[], &[]), Flow::Taken);
        let header = self.copies.header(Kind::Pull, whole(0, clock));
        let header = Header { request, count: 1, phase: PhaseNo(1), ..header };
        assert_eq!(self.copies.send(host, header, &[], &[]), Flow::Taken);
    }

    /// The second phase begins.
    fn begin_second_phase(&mut self, host: usize) {
        let sharing = Sharing::ClockedQueue { staleness: 0 };
        let begin = BeginPhase { epoch: epoch(1), phase: Phase { no: PhaseNo(1), sharing } };
        self.copies.act(host, |set, _, out| set.begin(begin, out)).expect("this epoch");
    }

    /// The first trainer's pull at the primary waits for the second one.
    fn pull_waits(&mut self) {
        self.clock(0, 0, 1, true);
        self.clock(0, 1, 0, true);
        self.copies.pull(0, 1, 1);
    }

    fn is_granted(&self, host: usize, request: u64) -> bool {
        matches!(self.copies.answer(host, request), Some((Kind::Values, _)))
    }
}

/// The second trainer is slow, and its connection to the new primary opens late: the first one would be granted pulls
/// across any gap.
#[test]
fn s55_promoted_copy_waits_for_the_clock_of_each_member() {
    for has_task in [true, false] {
        let mut clocks = Clocks::new(2);
        clocks.copies.promote(1, 2);
        clocks.clock(1, 0, 4, true);
        clocks.copies.pull(1, 1, 4);
        assert!(!clocks.is_granted(1, 1), "nothing is known of the second trainer");
        clocks.copies.ask(1, 2, Kind::ClockQuery, whole(0, 0));
        let refused = Some((Kind::Refused, Status::NotReady));
        assert_eq!(clocks.copies.answer(1, 2), refused, "nor is the lowest clock");
        clocks.other_connects(1);
        assert!(!clocks.is_granted(1, 1));
        clocks.clock(1, 1, 3, has_task);
        assert_eq!(clocks.is_granted(1, 1), !has_task, "a clock of 3 forbids pull 4");
        if has_task {
            clocks.clock(1, 1, 4, true);
            assert!(clocks.is_granted(1, 1));
        }
    }
}

/// A trainer that was known before has connected again and has a task by now, which its new clock says; or it is gone.
#[test]
fn s55_closed_connections_are_awaited_and_lost_trainers_are_not() {
    let mut clocks = Clocks::new(2);
    clocks.other_connects(1);
    clocks.clock(1, 1, 0, false);
    let conn = clocks.other[1].expect("a connection");
    clocks.copies.act(1, |set, _, out| set.disconnect(conn, out));
    clocks.copies.promote(1, 2);
    clocks.clock(1, 0, 1, true);
    clocks.copies.pull(1, 1, 1);
    assert!(!clocks.is_granted(1, 1), "it may have got a task since");
    clocks.copies.act(1, |set, _, out| set.members(&[member(0)], out));
    assert!(clocks.is_granted(1, 1));
}

#[test]
fn s55_a_new_phase_waits_for_nobody() {
    let mut clocks = Clocks::new(2);
    clocks.copies.promote(1, 2);
    clocks.begin_second_phase(1);
    clocks.pull_in_second_phase(1, 1, 0);
    assert!(clocks.is_granted(1, 1));
}

/// The order of the ApplicationMaster's commands to a pserver and of trainers' frames is not known, and a clock is not sent
/// again.
#[test]
fn s55_clock_that_comes_before_its_phase_or_member_is_kept() {
    let mut clocks = Clocks::new(2);
    let newer = Member { incarnation: Incarnation(2), ..member(1) };
    let conn = clocks.copies.act(1, |set, _, out| set.connect(newer, out)).expect("newer");
    for clock in [3, 4] {
        let header = Header::clock(epoch(1), PhaseNo(1), clock, true);
        let frame = Frame { conn, header, keys: &[], values: &[] };
        let flow = clocks.copies.act(1, |set, _, out| set.on_frame(&frame, out));
        assert_eq!(flow, Flow::Taken);
    }
    clocks.copies.act(1, |set, _, out| set.members(&[member(0), newer], out));
    clocks.begin_second_phase(1);
    assert!(clocks.copies.answers.is_empty(), "{:?}", clocks.copies.answers);
    clocks.copies.promote(1, 2);
    clocks.pull_in_second_phase(1, 1, 4);
    clocks.pull_in_second_phase(1, 2, 5);
    assert!(clocks.is_granted(1, 1), "the clock of the newer trainer is known");
    assert!(!clocks.is_granted(1, 2), "and it is 4");
}

/// The old primary of a lost view serves on. The second trainer has the new map and is ahead elsewhere; the first one
/// would get values without the steps of the second one since.
#[test]
fn s56_trainer_that_has_left_an_old_primary_counts_there() {
    let mut clocks = Clocks::new(2);
    clocks.pull_waits();
    let conn = clocks.other[0].expect("a connection");
    clocks.copies.act(0, |set, _, out| set.disconnect(conn, out));
    assert!(!clocks.is_granted(0, 1), "a closed connection grants nothing");
    clocks.other_connects(0);
    clocks.clock(0, 1, 1, true);
    assert!(clocks.is_granted(0, 1), "it has come back");
    clocks.clock(0, 0, 2, true);
    clocks.copies.pull(0, 2, 2);
    clocks.copies.act(0, |set, _, out| set.members(&[member(0)], out));
    assert!(clocks.is_granted(0, 2), "the ApplicationMaster has taken it out");
}

/// Both trainers are served by both pservers. The second one has the new map and sends its clock on all connections, also
/// to the old primary, which has not received the view yet.
#[test]
fn s57_shard_that_is_handed_over_grants_nothing() {
    let mut clocks = Clocks::new(2);
    clocks.pull_waits();
    clocks.copies.stop(0, 1, 1);
    clocks.clock(0, 1, 1, true);
    clocks.copies.pull(0, 2, 1);
    assert!(!clocks.is_granted(0, 1) && !clocks.is_granted(0, 2), "it lacks step 0 of trainer 1");
    clocks.copies.view(0, hand_over::handed_over(2, &[1, 0], 0));
    let elsewhere = |status| matches!(status, Some((Kind::Refused, Status::WrongShard)));
    assert!(elsewhere(clocks.copies.answer(0, 1)) && elsewhere(clocks.copies.answer(0, 2)));
}

/// The ApplicationMaster was lost: the shard goes on by itself, or by a view of the same primary.
#[test]
fn s57_pulls_go_on_when_the_hand_over_does_not_come() {
    for by_view in [false, true] {
        let mut clocks = Clocks::new(2);
        clocks.clock(0, 0, 0, true);
        clocks.clock(0, 1, 0, false);
        clocks.copies.stop(0, 1, 1);
        clocks.copies.pull(0, 1, 0);
        assert!(!clocks.is_granted(0, 1));
        if by_view {
            clocks.copies.view(0, view(1, 2, &[0, 1]));
        } else {
            clocks.copies.now += Duration::from_secs(3);
            clocks.copies.act(0, |set, now, out| set.tick(now, out));
        }
        assert!(clocks.is_granted(0, 1));
    }
}
