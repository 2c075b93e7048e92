//! Clocks on one data thread. The schedules S1 to S10 break rules that look right; each test has the number of its schedule.
//! Those that need the trainer's side are in the tests of the client and in `tests/tests/ssp_schedules.rs`.
use heddle_protocol::process_figures::ProcessFigure::*;

use super::*;

fn ssp(staleness: u32) -> Node {
    Node::new(Sharing::ClockedQueue { staleness })
}

impl Node {
    fn clock_header(&self, clock: u64, has_task: bool) -> Header {
        let phase = self.header(Kind::Clock, whole(0, 0)).phase;
        Header::clock(self.host.epoch(), phase, clock, has_task)
    }

    /// A trainer with a task sends its clock. The status, if it is refused.
    fn clock(&mut self, conn: Conn, clock: u64) -> Option<Status> {
        let header = self.clock_header(clock, true);
        self.send(conn, &header, &[], &[]).map(|reply| reply.status)
    }

    /// A trainer without a task sends its clock.
    fn no_task(&mut self, conn: Conn, clock: u64) {
        let header = self.clock_header(clock, false);
        assert_eq!(self.send(conn, &header, &[], &[]), None);
    }

    /// Where a trainer that asks now starts.
    fn start(&mut self, conn: Conn) -> u64 {
        let header = self.header(Kind::ClockQuery, whole(0, 0));
        let reply = self.send(conn, &header, &[], &[]).expect("answered at once");
        assert_eq!((reply.kind, reply.status), (Kind::Progress, Status::Ok));
        reply.step.0
    }

    /// Two counted trainers at these clocks.
    fn two(&mut self, clocks: [u64; 2]) -> [Conn; 2] {
        let conns = [self.connect(0), self.connect(1)];
        for (conn, clock) in conns.into_iter().zip(clocks) {
            assert_eq!(self.clock(conn, clock), None);
        }
        conns
    }

    /// Whether a pull that waited is answered by now. Later calls have the later answers.
    fn granted(&mut self, conn: Conn) -> bool {
        let later = std::mem::take(&mut self.later);
        later.contains(&(conn, Kind::Values, Status::Ok))
    }
}

const GRANTED: Option<Status> = Some(Status::Ok);

/// The rule itself: pull `c` is granted when every clock, the own one included, is at least `c − s`.
#[test]
fn pull_is_granted_within_the_staleness() {
    for staleness in [0, 1, 4] {
        let mut node = ssp(staleness);
        let [fast, slow] = node.two([10, 10]);
        let last = 10 + u64::from(staleness);
        assert_eq!(node.pull(fast, last), GRANTED);
        assert_eq!(node.pull(fast, last + 1), None, "the own clock counts");
        node.clock(fast, 11);
        assert!(!node.granted(fast), "the other one is behind");
        node.clock(slow, 11);
        assert!(node.granted(fast));
        let [largest, pulls] = [PullGapMax, PullGaps].map(|it| node.host.figures().get(it));
        assert_eq!((largest, pulls), (u64::from(staleness), 2));
    }
}

#[test]
fn waiting_pulls_are_measured_and_free_pulls_do_not_wait() {
    let mut node = ssp(1);
    let [fast, slow] = node.two([0, 0]);
    let mut constants = node.header(Kind::Pull, whole(0, 900));
    (constants.count, constants.flags) = (ROWS as u32, flags::FREE);
    assert!(node.send(fast, &constants, &[], &[]).is_some());
    node.now = Duration::from_millis(3);
    assert_eq!(node.pull(fast, 2), None);
    node.clock(fast, 2);
    node.now = Duration::from_millis(10);
    node.clock(slow, 1);
    assert!(node.granted(fast));
    let figures = [PullGaps, PullGapMax, PullsWaited, PullWait];
    let granted = figures.map(|figure| node.host.figures().get(figure));
    assert_eq!(granted, [1, 1, 1, 7_000], "constants are not counted");
}

/// S1: a pull waits for another trainer while a cut is open. The barrier of its trainer passes it, so the cut is taken and
/// the clock that the cut held grants the pull.
#[test]
fn s1_barrier_passes_a_waiting_pull() {
    let mut node = ssp(0);
    let [t0, t1] = node.two([1, 0]);
    assert_eq!(node.pull(t0, 1), None, "waits for T1");
    node.cut(1, CutAt::Barriers(vec![member(0), member(1)]));
    node.barrier(t1, 1);
    assert_eq!(node.push(t1, whole(1, 0), &[-1.0]), None, "held");
    assert_eq!(node.clock(t1, 1), None, "held");
    assert!(!node.granted(t0));
    assert_eq!(node.value(0), 0.0);
    node.barrier(t0, 1);
    assert_eq!(node.snapped(), [(1, 0)]);
    assert!(node.granted(t0), "the cut is taken, the held clock counts");
    assert_eq!(node.value(0), 1.0);
}

/// What a cut holds: pushes and clocks after the barrier, never pulls.
#[test]
fn pulls_after_a_barrier_are_not_held() {
    let mut node = ssp(1);
    let [t0, t1] = node.two([0, 0]);
    node.cut(1, CutAt::Barriers(vec![member(0), member(1)]));
    node.barrier(t0, 1);
    assert_eq!(node.pull(t0, 1), GRANTED);
    assert_eq!(node.pull(t1, 1), GRANTED);
    assert_eq!(node.start(t0), 0, "and questions are answered");
}

/// S2: a trainer without a task is not counted.
#[test]
fn s2_trainer_without_a_task_is_not_counted() {
    let mut node = ssp(0);
    let [t0, t1] = node.two([1, 1]);
    node.clock(t0, 2);
    assert_eq!(node.pull(t0, 2), None);
    node.no_task(t1, 1);
    assert!(node.granted(t0));
}

/// S3: a trainer dies while no ApplicationMaster is there to take it out of the list. Its connection closes.
#[test]
fn s3_closed_connection_is_not_counted() {
    let mut node = ssp(0);
    let [t0, t1] = node.two([1, 0]);
    assert_eq!(node.pull(t0, 1), None);
    node.disconnect(t1);
    assert!(node.granted(t0));
}

/// S4: a joiner starts where the slowest trainer is; where the fastest was, if no trainer is counted.
#[test]
fn s4_joiner_starts_at_the_lowest_clock() {
    let mut node = ssp(2);
    let [t0, t1] = node.two([1_000, 998]);
    node.members(&[member(0), member(1), member(2)]);
    let joiner = node.connect(2);
    assert_eq!(node.start(joiner), 998);
    assert_eq!(node.pull(joiner, 998), None, "it is not counted before it sends its clock");
    assert_eq!(node.pull(t0, 1_000), GRANTED, "and does not hold up the others");
    node.clock(joiner, 998);
    assert!(node.granted(joiner));
    for conn in [t0, t1, joiner] {
        node.disconnect(conn);
    }
    let next = node.connect(0);
    assert_eq!(node.start(next), 1_000, "no trainer is counted: the highest clock");
}

/// S5: a trainer gets a task again. Its old clock does not count meanwhile, and it starts at the lowest clock.
#[test]
fn s5_trainer_that_gets_a_task_again_starts_at_the_lowest_clock() {
    let mut node = ssp(0);
    let [t0, t1] = node.two([3, 3]);
    node.no_task(t1, 3);
    node.clock(t0, 500);
    assert_eq!(node.pull(t0, 500), GRANTED);
    assert_eq!(node.start(t1), 500);
    node.clock(t1, 500);
    assert_eq!(node.pull(t0, 500), GRANTED);
    assert_eq!(node.pull(t1, 500), GRANTED);
}

/// S7: a trainer is stopped. The others wait after `s` steps, go on when it is declared dead, and do not count its clock
/// when it continues.
#[test]
fn s7_trainer_that_is_declared_dead_is_not_counted_again() {
    let mut node = ssp(1);
    let [t0, stopped] = node.two([4, 4]);
    node.clock(t0, 6);
    assert_eq!(node.pull(t0, 5), GRANTED);
    assert_eq!(node.pull(t0, 6), None);
    node.members(&[member(0)]);
    assert!(node.granted(t0));
    assert_eq!(node.closed, [stopped]);
    assert_eq!(node.clock(stopped, 5), None, "its connection is closed");
    assert_eq!(node.push(stopped, whole(1, 4), &[-1.0]), None);
    assert_eq!(node.pull(t0, 6), GRANTED);
    assert_eq!(node.value(0), 0.0);
    assert!(node.act(|host, _, out| host.connect(member(1), out)).is_err());
}

/// S8: a rollback drops clocks and waiting pulls; a clock of the former epoch is refused.
#[test]
fn s8_clocks_do_not_outlive_the_epoch() {
    let mut node = ssp(0);
    let sharing = Sharing::ClockedQueue { staleness: 0 };
    let [t0, t1] = node.two([7, 6]);
    assert_eq!(node.pull(t0, 7), None);
    let in_flight = node.clock_header(7, true);
    node.load(2, sharing, 0, None);
    let reply = node.send(t1, &in_flight, &[], &[]).map(|reply| reply.status);
    assert_eq!(reply, Some(Status::WrongEpoch));
    assert!(!node.granted(t0), "the pull is gone");
    assert_eq!(node.start(t0), 0);
    assert_eq!(node.pull(t0, 0), None, "no trainer is counted yet");
    node.clock(t0, 0);
    assert!(node.granted(t0));
    assert_eq!(node.pull(t0, 1), None);
    // The same for a phase.
    let in_flight = node.clock_header(1, true);
    node.begin(1, sharing);
    let reply = node.send(t1, &in_flight, &[], &[]).map(|reply| reply.status);
    assert_eq!(reply, Some(Status::WrongPhase));
    assert_eq!(node.start(t0), 0);
    assert!(!node.granted(t0));
}

/// S9: the connection of a healthy trainer breaks, and it repeats its clock. A lower one than before is refused, and
/// nothing is applied.
#[test]
fn s9_clock_that_falls_is_refused() {
    let mut node = ssp(0);
    let [t0, t1] = node.two([5, 5]);
    node.disconnect(t1);
    node.clock(t0, 6);
    assert_eq!(node.pull(t0, 6), GRANTED);
    let t1 = node.connect(1);
    assert_eq!(node.clock(t1, 4), Some(Status::Stale));
    node.clock(t0, 7);
    assert_eq!(node.pull(t0, 7), GRANTED, "T1 is not counted by the refused clock");
    assert_eq!(node.clock(t1, 5), None);
    node.clock(t0, 8);
    assert_eq!(node.pull(t0, 8), None, "T1 is counted again");
    assert_eq!(node.clock(t1, 3), Some(Status::Stale));
    assert!(!node.granted(t0));
    node.clock(t1, 8);
    assert!(node.granted(t0));
    assert_eq!(node.host.figures().get(FramesRefused), 2, "both were counted as refused");
}

/// S10: the slowest trainer is drained; a trainer never gets a task; a task has no steps; the last step of a phase.
#[test]
fn s10_trainers_with_nothing_to_come_hold_up_nobody() {
    let mut node = ssp(0);
    let [t0, t1] = node.two([3, 1]);
    node.members(&[member(0), member(1), member(2)]);
    let _never = node.connect(2);
    assert_eq!(node.pull(t0, 3), None);
    // The drained trainer hands its tasks back.
    node.no_task(t1, 1);
    assert!(node.granted(t0));
    // A task without steps: it begins and ends at one clock.
    node.clock(t1, 3);
    node.clock(t0, 4);
    assert_eq!(node.pull(t0, 4), None);
    node.no_task(t1, 3);
    assert!(node.granted(t0));
    // The last step: the trainer waits for the end of its task, which needs no pull.
    node.clock(t0, 5);
    assert_eq!(node.task_done(t0, 0), Some(Status::Ok));
    node.no_task(t0, 5);
    assert_eq!(node.start(t1), 5);
}

#[test]
fn clocks_are_refused_in_other_phases() {
    let mut node = Node::asp();
    let conn = node.connect(0);
    assert_eq!(node.clock(conn, 0), Some(Status::Unsupported));
    assert_eq!(node.pull(conn, 9), GRANTED, "and pulls have no numbers");
    node.begin(1, Sharing::ReadOnly);
    assert_eq!(node.clock(conn, 0), Some(Status::Unsupported));
}

#[test]
fn waiting_pulls_take_bounded_memory() {
    let mut config = config(SGD);
    config.waiting_bytes_max = 1_000;
    let mut node = Node::with(Sharing::ClockedQueue { staleness: 0 }, config);
    let [t0, t1] = node.two([9, 0]);
    let mut waiting = 0;
    let refused = loop {
        match node.pull(t0, 9) {
            None => waiting += 1,
            Some(status) => break status,
        }
    };
    assert_eq!(refused, Status::Later);
    assert!((1..10).contains(&waiting), "{waiting}");
    assert_eq!(node.pull(t1, 0), GRANTED, "a pull that is granted needs no room");
    node.disconnect(t1);
    assert_eq!(node.later.len(), waiting);
    assert_eq!(node.pull(t0, 9), GRANTED);
}
