use heddle_protocol::ids::Incarnation;
use proptest::prelude::*;

use super::*;

const LATE_MS: u64 = 10_000;

fn trainer(index: u32) -> Member {
    Member { slot: Slot::trainer(index), incarnation: Incarnation(1) }
}

fn loads(lanes: &[usize]) -> BTreeMap<Member, usize> {
    (0..).map(trainer).zip(lanes.iter().copied()).collect()
}

/// Trainers that run lanes as they are told, compared once a second.
struct Run {
    speeds: LaneSpeeds,
    loads: BTreeMap<Member, usize>,
    now: u64,
    decisions: Vec<(u64, LaneDecision)>,
}

impl Run {
    fn new(lanes: &[usize]) -> Self {
        let speeds = LaneSpeeds::default();
        Self { speeds, loads: loads(lanes), now: 0, decisions: Vec::new() }
    }

    /// Seconds in which trainers with lanes take these times for a record.
    fn pass(&mut self, seconds: u64, record_ns: &[u64]) {
        for _ in 0..seconds {
            self.now += 1_000;
            for (index, ns) in (0..).zip(record_ns) {
                if self.loads.get(&trainer(index)).is_some_and(|lanes| *lanes > 0) {
                    self.speeds.measured(trainer(index), *ns);
                }
            }
            let now = MonotonicMs(self.now);
            if let Some(decision) = self.speeds.check(&self.loads, LATE_MS, now) {
                self.decisions.push((self.now, decision));
                let lanes = self.loads.values().sum();
                let even = || divide(lanes, &self.loads, |_| MEDIAN);
                self.loads = self.speeds.division(lanes, &self.loads).unwrap_or_else(even);
            }
        }
    }

    fn lanes(&self) -> Vec<usize> {
        self.loads.values().copied().collect()
    }
}

#[test]
fn lanes_leave_a_trainer_that_is_slow_for_ten_seconds() {
    let mut run = Run::new(&[2, 2, 2, 2]);
    run.pass(60, &[100, 110, 90, 199]);
    assert_eq!(run.decisions, [], "not twice the median");
    run.pass(10, &[100, 100, 100, 400]);
    assert_eq!(run.decisions, []);
    run.pass(1, &[100, 100, 100, 400]);
    let slowest = trainer(3);
    assert_eq!(run.decisions, [(71_000, LaneDecision::Divide { slowest, times: 4_000 })]);
    assert_eq!(run.lanes(), [3, 3, 2, 0]);
}

#[test]
fn a_pause_shorter_than_ten_seconds_moves_nothing() {
    let mut run = Run::new(&[2, 2]);
    for _ in 0..10 {
        run.pass(9, &[100, 500]);
        run.pass(1, &[100, 100]);
    }
    assert_eq!(run.decisions, []);
}

#[test]
fn a_gain_below_a_fifth_moves_nothing() {
    let mut run = Run::new(&[1, 1, 1, 1]);
    run.pass(100, &[100, 100, 100, 220]);
    assert_eq!(run.decisions, [], "two lanes on one trainer take 200");
}

#[test]
fn a_trainer_below_a_tenth_of_the_median_is_replaced_once() {
    let mut run = Run::new(&[2, 2, 2, 2]);
    run.pass(11, &[100, 100, 100, 10_000]);
    let replaced = LaneDecision::Replace { slowest: trainer(3), times: 100_000 };
    assert_eq!(run.decisions, [(11_000, replaced)]);
    run.pass(60, &[100, 100, 100, 10_000]);
    let slowest = trainer(3);
    assert_eq!(
        run.decisions[1..],
        [(41_000, LaneDecision::Divide { slowest, times: 100_000 })],
        "its successor is as slow: lanes move"
    );
    assert_eq!(run.lanes(), [3, 3, 2, 0]);
}

#[test]
fn s42_lanes_do_not_move_back_and_forth() {
    let mut run = Run::new(&[2, 2, 2, 2]);
    run.pass(11, &[100, 100, 100, 250]);
    assert_eq!(run.lanes(), [3, 2, 2, 1]);
    run.pass(29, &[100, 100, 100, 100]);
    assert_eq!(run.decisions.len(), 1, "30 s between two decisions");
    // A gain from 3 lanes to 2 holds for ten seconds.
    run.pass(12, &[100, 100, 100, 100]);
    assert_eq!(run.decisions.len(), 2);
    assert_eq!(run.lanes(), [2, 2, 2, 2]);
    let before = run.now;
    // Slow and fast in turn, each for less than ten seconds.
    for _ in 0..20 {
        run.pass(6, &[100, 100, 100, 250]);
        run.pass(6, &[100, 100, 100, 100]);
    }
    assert_eq!(run.decisions.len(), 2, "{:?}", run.decisions);
    // Each for twenty: at most a decision in 30 s.
    for _ in 0..12 {
        run.pass(20, &[100, 100, 100, 250]);
        run.pass(20, &[100, 100, 100, 100]);
    }
    let times: Vec<u64> =
        run.decisions.iter().map(|(at, _)| *at).filter(|at| *at > before).collect();
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= DECISIONS_MS), "{times:?}");
}

#[test]
fn a_trainer_without_lanes_is_tried_again_after_ten_minutes() {
    let mut run = Run::new(&[1, 1]);
    run.pass(11, &[100, 900]);
    assert_eq!(run.lanes(), [2, 0]);
    run.pass(500, &[100, 100]);
    assert_eq!(run.lanes(), [2, 0], "nothing tells that it is fast again");
    run.pass(120, &[100, 100]);
    assert_eq!(run.lanes(), [1, 1]);
}

#[test]
fn the_division_outlives_phases_and_ends_with_the_slow_trainer() {
    let mut run = Run::new(&[2, 2, 2, 2]);
    run.pass(11, &[100, 100, 100, 250]);
    run.speeds.begin_phase();
    assert!(run.speeds.division(8, &run.loads).is_some());
    run.speeds.release(trainer(0));
    assert!(run.speeds.division(8, &run.loads).is_some());
    run.speeds.release(trainer(3));
    assert_eq!(run.speeds.division(8, &run.loads), None);
}

#[test]
fn a_trainer_keeps_the_lanes_that_it_computes_in_time() {
    let times = |member: &Member| [1_000, 1_000, 1_000, 2_500][member.slot.index as usize];
    assert_eq!(divide(8, &loads(&[2, 2, 2, 2]), times), loads(&[3, 2, 2, 1]));
    // Of equal trainers the one that has more now keeps them.
    assert_eq!(divide(8, &loads(&[2, 3, 2, 1]), times), loads(&[2, 3, 2, 1]));
    assert_eq!(divide(8, &loads(&[]), times), loads(&[]));
}

proptest! {
    #[test]
    fn every_lane_has_a_place_and_no_division_has_a_shorter_step(
        lanes in 1usize..100,
        times in prop::collection::vec(1u64..200_000, 1..12),
        before in prop::collection::vec(0usize..10, 12),
    ) {
        let loads = loads(&before[..times.len()]);
        let of = |member: &Member| times[member.slot.index as usize];
        let divided = divide(lanes, &loads, of);
        prop_assert_eq!(divided.values().sum::<usize>(), lanes);
        prop_assert_eq!(divided.len(), times.len());
        // The shortest time in which all trainers together compute this number of lanes.
        let fits = |within: u64| times.iter().map(|ns| within / ns).sum::<u64>() >= lanes as u64;
        let ends = (1..=lanes as u64).flat_map(|lane| times.iter().map(move |ns| lane * ns));
        let shortest = ends.filter(|end| fits(*end)).min();
        prop_assert_eq!(Some(step(&divided, of)), shortest);
    }
}
