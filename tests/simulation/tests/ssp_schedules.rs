//! SSP: schedules that break rules which look right, on two shards (A and B) and the clients of a few trainers, frame by
//! frame. Each test has the number of its schedule; single shards and clients have tests of the same names beside them.

use heddle_protocol::control::CutAt;
use heddle_protocol::frame::Kind;
use heddle_protocol::ids::Step;
use heddle_protocol::job_spec::Consistency;
use heddle_simulation::{A, B, Job, Scene};

/// Trainers 1 and 2 with a long task each, both at clock 0.
fn ssp(staleness: u32) -> Scene {
    let job = Job { tasks: vec![9, 9, 9, 9], staleness, ..Job::small(Consistency::Ssp) };
    let mut scene = Scene::new(job);
    for number in [1, 2] {
        scene.join(number);
        scene.grant(number, number as u32 - 1, 0);
        scene.settle(&[number]);
    }
    scene
}

/// The trainer computes a step of its task, and all of it arrives. False: its pull waits.
fn step(scene: &mut Scene, number: usize, step: u64) -> bool {
    let pull = scene.pull_step(number, number as u32 - 1, step);
    scene.settle(&[number]);
    let ran = scene.push_pulled(number, number as u32 - 1, step, pull);
    scene.settle(&[1, 2]);
    ran
}

#[test]
fn fast_trainer_is_at_most_the_staleness_ahead() {
    for staleness in [0, 1, 4] {
        let mut scene = ssp(staleness);
        let ahead = u64::from(staleness);
        for at in 0..=ahead {
            assert!(step(&mut scene, 1, at), "step {at} of staleness {staleness}");
        }
        let waiting = scene.pull_step(1, 0, ahead + 1);
        scene.settle(&[1, 2]);
        assert!(!scene.push_pulled(1, 0, ahead + 1, waiting));
        assert!(step(&mut scene, 2, 0));
        assert!(scene.push_pulled(1, 0, ahead + 1, waiting), "the slow one has moved");
        assert_eq!(scene.gap_max(), ahead);
    }
}

/// "Barriers go between steps" never takes this cut: T1's pull waits for T2, whose clock the cut holds, and the cut waits
/// for T1's barrier.
#[test]
fn s1_cut_is_taken_while_a_pull_waits() {
    let mut scene = ssp(0);
    assert!(step(&mut scene, 1, 0));
    let waiting = scene.pull_step(1, 0, 1);
    scene.settle(&[1]);
    let at = CutAt::Barriers(scene.members());
    scene.cut(A, 1, &at);
    scene.cut(B, 1, &at);
    let pull = scene.pull_step(2, 1, 0);
    scene.settle(&[2]);
    scene.barrier(2, 1);
    assert!(scene.push_pulled(2, 1, 0, pull));
    scene.settle(&[1, 2]);
    assert!(!scene.push_pulled(1, 0, 1, waiting));
    scene.barrier(1, 1);
    scene.settle(&[1, 2]);
    assert_eq!(scene.snapped(1), [A, B]);
    assert!(scene.push_pulled(1, 0, 1, waiting), "the held push and clock are applied");
}

#[test]
fn s2_trainer_without_a_task_is_not_waited_for() {
    let mut scene = ssp(0);
    assert!(step(&mut scene, 1, 0) && step(&mut scene, 2, 0));
    assert!(step(&mut scene, 1, 1));
    let waiting = scene.pull_step(1, 0, 2);
    scene.settle(&[1]);
    scene.task_done(2, 1);
    scene.settle(&[1, 2]);
    assert!(scene.push_pulled(1, 0, 2, waiting));
}

/// "The ApplicationMaster takes members out" stops training while there is none.
#[test]
fn s3_dead_trainer_is_not_waited_for_while_the_master_is_away() {
    let mut scene = ssp(0);
    assert!(step(&mut scene, 1, 0));
    let waiting = scene.pull_step(1, 0, 1);
    scene.settle(&[1]);
    scene.disconnect(2, A);
    scene.settle(&[1]);
    assert!(!scene.push_pulled(1, 0, 1, waiting), "B still counts it");
    scene.disconnect(2, B);
    scene.settle(&[1]);
    assert!(scene.push_pulled(1, 0, 1, waiting));
}

/// A joiner that starts at 0 lets all others wait until it has made up for their steps.
#[test]
fn s4_joiner_starts_where_the_slowest_trainer_is() {
    let mut scene = ssp(1);
    for at in 0..6 {
        assert!(step(&mut scene, 1, at) && step(&mut scene, 2, at));
    }
    scene.join(3);
    scene.grant(3, 2, 0);
    scene.settle(&[3]);
    assert!(step(&mut scene, 1, 6) && step(&mut scene, 2, 6), "nothing waits for its first steps");
    let pull = scene.pull_step(3, 2, 0);
    scene.settle(&[3]);
    assert!(scene.push_pulled(3, 2, 0, pull));
}

/// The same with a trainer that had no task for a while.
#[test]
fn s5_trainer_with_a_task_again_starts_where_the_others_are() {
    let mut scene = ssp(0);
    assert!(step(&mut scene, 1, 0) && step(&mut scene, 2, 0));
    scene.task_done(2, 1);
    scene.settle(&[1, 2]);
    for at in 1..7 {
        assert!(step(&mut scene, 1, at));
    }
    scene.grant(2, 3, 0);
    scene.settle(&[2]);
    assert!(step(&mut scene, 1, 7), "its clock is not 1");
    let waiting = scene.pull_step(1, 0, 8);
    scene.settle(&[1]);
    assert!(!scene.push_pulled(1, 0, 8, waiting), "and it is counted");
}

/// "The clock counts a sent part" grants a pull on B for values that B lacks.
#[test]
fn s6_clock_counts_no_step_that_a_shard_lacks() {
    let mut scene = ssp(0);
    assert!(step(&mut scene, 1, 0));
    let waiting = scene.pull_step(1, 0, 1);
    scene.settle(&[1]);
    let pull = scene.pull_step(2, 1, 0);
    scene.settle(&[2]);
    assert!(scene.push_pulled(2, 1, 0, pull));
    scene.send(2, A, usize::MAX);
    scene.hear(2, A);
    assert!(scene.send(2, A, usize::MAX).is_empty(), "no clock yet");
    scene.settle(&[1]);
    assert!(!scene.push_pulled(1, 0, 1, waiting));
    scene.settle(&[1, 2]);
    assert!(scene.push_pulled(1, 0, 1, waiting));
    assert_eq!([scene.task_on(A, 1), scene.task_on(B, 1)], [Some((1, false)); 2]);
}

#[test]
fn s8_rollback_drops_clocks_and_waiting_pulls() {
    let mut scene = ssp(0);
    assert!(step(&mut scene, 1, 0));
    let waiting = scene.pull_step(1, 0, 1);
    scene.settle(&[1]);
    let in_flight = scene.pull_step(2, 1, 0);
    scene.settle(&[2]);
    assert!(scene.push_pulled(2, 1, 0, in_flight));
    // Its frames are on the way when the shards roll back.
    scene.roll_back(None);
    scene.settle(&[1, 2]);
    assert!(!scene.push_pulled(1, 0, 1, waiting));
    for number in [1, 2] {
        scene.order_work(number);
        scene.grant(number, number as u32 - 1, 0);
        scene.settle(&[number]);
    }
    assert!(step(&mut scene, 1, 0));
    let waiting = scene.pull_step(1, 0, 1);
    scene.settle(&[1, 2]);
    assert!(!scene.push_pulled(1, 0, 1, waiting), "T2's clock is 0 again");
    assert!(step(&mut scene, 2, 0));
    assert!(scene.push_pulled(1, 0, 1, waiting));
}

/// A connection breaks and opens again: the clock is repeated before anything else, so that the trainer is counted and its
/// own pulls are granted.
#[test]
fn s9_clock_is_repeated_first_on_a_new_connection() {
    let mut scene = ssp(0);
    assert!(step(&mut scene, 1, 0) && step(&mut scene, 2, 0));
    scene.disconnect(2, A);
    let pull = scene.pull_step(2, 1, 1);
    scene.wait(60_000);
    scene.connect(2, A);
    let sent: Vec<Kind> = scene.send(2, A, usize::MAX).iter().map(|header| header.kind).collect();
    assert_eq!(sent, [Kind::Clock, Kind::Pull]);
    scene.settle(&[2]);
    assert!(scene.push_pulled(2, 1, 1, pull));
    scene.settle(&[1, 2]);
    assert!(step(&mut scene, 1, 1));
}

/// Clocks are no part of a snapshot: after a return to it they are 0.
#[test]
fn snapshot_holds_no_clock() {
    let mut scene = ssp(0);
    assert!(step(&mut scene, 1, 0) && step(&mut scene, 2, 0));
    let at = CutAt::Barriers(scene.members());
    scene.cut(A, 1, &at);
    scene.cut(B, 1, &at);
    scene.barrier(1, 1);
    scene.barrier(2, 1);
    scene.settle(&[1, 2]);
    scene.end_cut(1, true);
    scene.roll_back(Some((scene.cut_id(1), Step(0))));
    for number in [1, 2] {
        scene.order_work(number);
        scene.grant(number, number as u32 - 1, 1);
        scene.settle(&[number]);
    }
    assert!(step(&mut scene, 1, 1));
    let waiting = scene.pull_step(1, 0, 2);
    scene.settle(&[1, 2]);
    assert!(!scene.push_pulled(1, 0, 2, waiting));
    assert_eq!(scene.gap_max(), 0);
}
