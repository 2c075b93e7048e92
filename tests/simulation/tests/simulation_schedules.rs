//! Schedules that break the obvious protocol, played on two shards (A and B) and the clients of a few trainers, frame by
//! frame. Each test is named after its invariant; its comment has the error of the obvious protocol.

use std::collections::BTreeMap;

use heddle_client::machine::{ClientEvent, Unit};
use heddle_protocol::control::CutAt;
use heddle_protocol::frame::Kind;
use heddle_protocol::ids::Step;
use heddle_protocol::job_spec::Consistency;
use heddle_simulation::{A, B, Bits, Chance, Job, Scene};

/// Two lanes of four steps, or four tasks of two steps.
fn job(consistency: Consistency) -> Job {
    Job { tasks: vec![2, 2, 2, 2], ..Job::small(consistency) }
}

/// Trainer 1 runs lane 0, trainer 2 lane 1, both about to compute step 0.
fn bsp() -> Scene {
    let mut scene = Scene::new(job(Consistency::Bsp));
    for number in [1, 2] {
        scene.join(number);
        assert_eq!(scene.take_over(number, number as u32 - 1), Some(0));
    }
    scene
}

/// Trainers 1 and 2 with nothing to do.
fn asp() -> Scene {
    let mut scene = Scene::new(job(Consistency::Asp));
    scene.join(1);
    scene.join(2);
    scene
}

/// A step of both lanes without anything in its way.
fn whole_step(scene: &mut Scene, step: u64) {
    for number in [1, 2] {
        assert!(scene.compute(number, number as u32 - 1, step));
    }
    scene.settle(&[1, 2]);
}

/// The state after this number of job steps without a fault.
fn undisturbed(steps: u64) -> Bits {
    let mut scene = bsp();
    (0..steps).for_each(|step| whole_step(&mut scene, step));
    assert_eq!([scene.applied(A), scene.applied(B)], [steps; 2]);
    scene.bits()
}

/// Everything that two trainers have to do for a task from this step on.
fn whole_task(scene: &mut Scene, number: usize, task: u32, start: u64) {
    scene.grant(number, task, start);
    for step in start..2 {
        scene.compute_task(number, task, step);
        scene.settle(&[number]);
    }
    scene.task_done(number, task);
    scene.settle(&[number]);
    let finished =
        scene.events(number).iter().any(|event| matches!(event, ClientEvent::Finished { .. }));
    assert!(finished, "task {task} is acknowledged by every shard");
}

// ---- BSP ----

#[test]
fn a_death_between_two_pushes_changes_no_bit() {
    // Applying on arrival, A would be at step 1 with all lanes and B would wait for a gradient of values that are gone.
    let mut scene = bsp();
    assert!(scene.compute(1, 0, 0) && scene.compute(2, 1, 0));
    scene.settle(&[1]);
    scene.send(2, A, usize::MAX);
    scene.kill(2);
    assert_eq!([scene.applied(A), scene.applied(B)], [0; 2], "no trainer left step 0");
    assert_eq!(scene.take_over(1, 1), Some(0), "so computing again is exact");
    assert!(scene.compute(1, 1, 0));
    scene.settle(&[1]);
    assert_eq!(scene.bits(), undisturbed(1));
}

#[test]
fn a_death_between_two_dones_resends_only_the_missing_one() {
    let mut scene = bsp();
    assert!(scene.compute(1, 0, 0) && scene.compute(2, 1, 0));
    scene.settle(&[1]);
    for shard in [A, B] {
        scene.send(2, shard, usize::MAX);
        scene.hear(2, shard);
    }
    assert_eq!(scene.send(2, A, 1)[0].kind, Kind::Done);
    scene.kill(2);
    assert_eq!([scene.applied(A), scene.applied(B)], [1, 0]);
    assert_eq!(scene.take_over(1, 1), Some(1), "the successor does not compute step 0 again");
    assert_eq!(scene.bits(), undisturbed(1), "the mean is over the dead trainer's records too");
}

#[test]
fn a_successor_ends_a_lane_that_died_before_its_dones() {
    let mut scene = bsp();
    (0..3).for_each(|step| whole_step(&mut scene, step));
    assert!(scene.compute(1, 0, 3) && scene.compute(2, 1, 3));
    for shard in [A, B] {
        scene.send(1, shard, usize::MAX);
        scene.hear(1, shard);
    }
    let reached = scene
        .events(1)
        .iter()
        .any(|event| matches!(event, ClientEvent::Reached { step: Step(3), .. }));
    assert!(
        !reached,
        "staged everywhere is not reached, otherwise no trainer would inherit the lane"
    );
    scene.kill(1);
    scene.settle(&[2]);
    assert_eq!(scene.take_over(2, 0), Some(3));
    assert!(scene.compute(2, 0, 3));
    scene.settle(&[2]);
    assert_eq!(scene.bits(), undisturbed(4));
}

#[test]
fn a_stale_trainer_beside_its_successor_tears_no_gradient() {
    let mut scene = bsp();
    scene.join(3);
    assert!(scene.compute(1, 0, 0) && scene.compute(2, 1, 0));
    scene.settle(&[2]);
    scene.send(1, A, usize::MAX);
    // Believed dead: trainer 3 computes the same step, and holds what it pulled.
    assert_eq!(scene.take_over(3, 0), Some(0));
    assert!(scene.compute(3, 0, 0));
    scene.send(3, A, 1);
    scene.settle(&[1]);
    assert!(fenced(&mut scene, 1), "B was asked by the successor");
    assert_eq!([scene.applied(A), scene.applied(B)], [0; 2], "the stale trainer could not finish");
    scene.settle(&[3]);
    assert_eq!(scene.bits(), undisturbed(1), "the first copy of each part stays");
    assert!(scene.compute(3, 0, 1), "the successor goes on from there");
}

#[test]
fn a_stale_trainer_does_not_overtake_its_successors_pull() {
    let mut scene = bsp();
    scene.join(3);
    assert!(scene.compute(1, 0, 0) && scene.compute(2, 1, 0));
    scene.settle(&[2]);
    assert_eq!(scene.take_over(3, 0), Some(0));
    scene.settle(&[1]);
    assert!(fenced(&mut scene, 1));
    assert!(scene.compute(3, 0, 0), "no trainer left the values that it needs");
    scene.settle(&[3]);
    assert_eq!(scene.bits(), undisturbed(1));
}

/// Whether a trainer dropped a lane because shards refused it.
fn fenced(scene: &mut Scene, number: usize) -> bool {
    let events = scene.events(number);
    events.iter().any(|event| matches!(event, ClientEvent::LaneFenced { .. }))
}

/// Lane 1 goes from trainer 2 to trainer 3 while trainer 2 finishes its step. Trainer 3 receives of A "not staged", then
/// A gets the gradient, and of B "done". Together that means: done everywhere, nothing staged on A; and the lane was completed
/// on A as empty, so that A divided by the rows of the other lane alone.
#[test]
fn s1_a_lane_that_moves_during_a_step_changes_no_bit() {
    let mut scene = bsp();
    assert!(scene.compute(1, 0, 0) && scene.compute(2, 1, 0));
    scene.settle(&[1]);
    scene.send(2, B, usize::MAX);
    scene.hear(2, B);
    scene.join(3);
    scene.hand_out(3, 1);
    scene.send(3, A, usize::MAX);
    scene.hear(3, A);
    // The old trainer's frame to A was on its way.
    scene.send(2, A, usize::MAX);
    scene.hear(2, A);
    assert!(fenced(&mut scene, 2), "A was asked by the successor");
    scene.send(2, B, usize::MAX);
    scene.hear(2, B);
    scene.settle(&[3]);
    assert_eq!(
        [scene.applied(A), scene.applied(B)],
        [0; 2],
        "trainer 2 did not get as far as its Done"
    );
    assert!(scene.compute(3, 1, 0));
    scene.settle(&[1, 3]);
    assert_eq!(scene.bits(), undisturbed(1));
}

/// The same with every order of frames and answers that a seed chooses, over all steps, and with the old trainer's order delayed or
/// never that the lane moved; the lane moves back as well.
#[test]
fn lanes_that_move_at_any_moment_change_no_bit() {
    let want = undisturbed(4);
    for seed in 0..3_000 {
        let mut moves = LaneMoves::new(seed);
        for _ in 0..120 {
            moves.act();
        }
        moves.finish();
        assert_eq!(moves.scene.bits(), want, "seed {seed}");
    }
}

/// Three trainers run two lanes that change hands.
struct LaneMoves {
    scene: Scene,
    chance: Chance,
    /// The step that each trainer is to compute of each of its lanes.
    todo: BTreeMap<(usize, u32), u64>,
    /// The trainer that each lane was given to last.
    owners: [usize; 2],
}

const TRAINERS: [usize; 3] = [1, 2, 3];

impl LaneMoves {
    fn new(seed: u64) -> Self {
        let mut scene = Scene::new(job(Consistency::Bsp));
        TRAINERS.iter().for_each(|number| scene.join(*number));
        (0..2).for_each(|lane| scene.hand_out(1 + lane as usize, lane));
        Self { scene, chance: Chance::new(seed), todo: BTreeMap::new(), owners: [1, 2] }
    }

    fn act(&mut self) {
        let number = TRAINERS[self.chance.below(TRAINERS.len())];
        let shard = [A, B][self.chance.below(2)];
        match self.chance.below(12) {
            0..5 => drop(self.scene.send(number, shard, 1)),
            5..9 => self.scene.hear(number, shard),
            9 | 10 => self.compute(number),
            _ if self.chance.one_in(3) => self.hand_on(),
            _ => {
                // A trainer learns late that a lane is not its own any more.
                for lane in 0..2 {
                    if self.owners[lane as usize] != number {
                        self.scene.give_up(number, lane);
                        self.todo.remove(&(number, lane));
                    }
                }
            }
        }
        self.listen();
    }

    fn hand_on(&mut self) {
        let lane = self.chance.below(2);
        let to = TRAINERS[self.chance.below(TRAINERS.len())];
        if self.owners[lane] != to {
            self.owners[lane] = to;
            self.scene.hand_out(to, lane as u32);
        }
    }

    /// A trainer does what it can compute, if the pull would be answered at once.
    fn compute(&mut self, number: usize) {
        let at = [self.scene.applied(A), self.scene.applied(B)];
        for lane in 0..2 {
            if let Some(&step) = self.todo.get(&(number, lane))
                && at == [step; 2]
            {
                self.todo.remove(&(number, lane));
                self.scene.compute(number, lane, step);
                self.listen();
            }
        }
    }

    fn listen(&mut self) {
        for number in TRAINERS {
            for event in self.scene.events(number) {
                match event {
                    ClientEvent::Compute { lane, step } => {
                        self.todo.insert((number, lane.0), step.0);
                    }
                    ClientEvent::Reached { unit: Unit::Lane(lane), step, .. } if step.0 < 3 => {
                        self.todo.insert((number, lane.0), step.0 + 1);
                    }
                    ClientEvent::LaneFenced { grant } => {
                        let lane = grant.lane;
                        self.todo.remove(&(number, lane.0));
                        let owner = self.owners[lane.0 as usize];
                        assert_ne!(owner, number, "the owner of lane {lane} is fenced");
                    }
                    ClientEvent::Fault(fault) => panic!("{fault}"),
                    _ => {}
                }
            }
        }
    }

    /// Everything arrives, until all steps are applied.
    fn finish(&mut self) {
        for _ in 0..20 {
            self.scene.settle(&TRAINERS);
            self.scene.wait(10);
            self.listen();
            TRAINERS.iter().for_each(|number| self.compute(*number));
        }
        let applied = [self.scene.applied(A), self.scene.applied(B)];
        assert_eq!(applied, [4; 2], "all steps are applied");
    }
}

#[test]
fn a_cut_at_a_job_step_has_no_part_of_the_next() {
    // With barriers in the streams, one lane's half of step 1 would be in the snapshot and refuse its own repeat.
    let mut scene = bsp();
    scene.cut(A, 1, &CutAt::Steps(Step(1)));
    whole_step(&mut scene, 0);
    assert!(scene.compute(1, 0, 1));
    scene.send(1, B, usize::MAX);
    scene.cut(B, 1, &CutAt::Steps(Step(1)));
    assert_eq!(scene.snapped(1), [A, B], "B stands exactly there and snaps at once");
    scene.end_cut(1, true);
    scene.settle(&[1]);
    assert!(scene.compute(2, 1, 1));
    scene.settle(&[1, 2]);
    assert_eq!(scene.bits(), undisturbed(2));
    let cut = scene.cut_id(1);
    scene.roll_back(Some((cut, Step(1))));
    assert_eq!(scene.bits(), undisturbed(1));
    assert_ne!(undisturbed(1), undisturbed(2), "the comparison can tell");
    for number in [1, 2] {
        scene.order_work(number);
        assert_eq!(scene.take_over(number, number as u32 - 1), Some(1));
    }
    whole_step(&mut scene, 1);
    assert_eq!(scene.bits(), undisturbed(2), "what was staged before is taken again");
}

#[test]
fn a_cut_beyond_the_end_of_the_phase_is_taken_at_its_end() {
    let mut scene = bsp();
    for shard in [A, B] {
        scene.cut(shard, 1, &CutAt::Steps(Step(9)));
    }
    (0..4).for_each(|step| whole_step(&mut scene, step));
    assert_eq!(scene.snapped(1).len(), 2);
    for shard in [A, B] {
        scene.cut(shard, 2, &CutAt::Steps(Step(4)));
    }
    assert_eq!(scene.snapped(2).len(), 2, "the final cut finds all trainers there already");
}

#[test]
fn a_repeated_rollback_drops_nothing() {
    let mut scene = bsp();
    whole_step(&mut scene, 0);
    scene.roll_back(None);
    for number in [1, 2] {
        scene.order_work(number);
        assert_eq!(scene.take_over(number, number as u32 - 1), Some(0));
    }
    assert!(scene.compute(1, 0, 0));
    scene.settle(&[1]);
    scene.load(A, None);
    assert!(scene.compute(2, 1, 0));
    scene.settle(&[1, 2]);
    assert_eq!(scene.bits(), undisturbed(1));
}

#[test]
fn a_reply_of_the_epoch_before_is_not_part_of_a_gradient() {
    let mut scene = bsp();
    whole_step(&mut scene, 0);
    // Both lanes have pulled the values after step 0 when the job goes back to its start.
    assert!(scene.compute(1, 0, 1) && scene.compute(2, 1, 1));
    scene.roll_back(None);
    scene.settle(&[1]);
    assert_eq!(
        scene.bits(),
        Scene::new(job(Consistency::Bsp)).bits(),
        "shards refuse the old epoch"
    );
    for number in [1, 2] {
        scene.order_work(number);
        assert_eq!(scene.take_over(number, number as u32 - 1), Some(0));
    }
    whole_step(&mut scene, 0);
    assert_eq!(scene.bits(), undisturbed(1));
}

#[test]
fn a_broken_connection_costs_no_bit_wherever_it_breaks() {
    let mut frames = 0;
    loop {
        let mut scene = bsp();
        assert!(scene.compute(1, 0, 0) && scene.compute(2, 1, 0));
        scene.settle(&[2]);
        let sent = scene.send(1, A, frames).len();
        scene.reconnect(1, A);
        scene.settle(&[1, 2]);
        assert_eq!(scene.bits(), undisturbed(1), "broken behind frame {frames}");
        if sent < frames {
            return;
        }
        frames += 1;
    }
}

// ---- ASP ----

#[test]
fn a_step_torn_by_a_death_completes_exactly_once() {
    // "Last step applied" alone would refuse the second part of the step, or take the first twice.
    for frames in 0..4 {
        let mut scene = asp();
        scene.grant(1, 0, 0);
        scene.compute_task(1, 0, 0);
        scene.send(1, A, frames);
        scene.kill(1);
        whole_task(&mut scene, 2, 0, 0);
        assert_eq!(scene.counts()[..2], [1.0, 1.0], "killed behind frame {frames}");
    }
}

#[test]
fn a_report_contains_only_acknowledged_steps() {
    let mut scene = asp();
    scene.grant(1, 0, 0);
    scene.compute_task(1, 0, 0);
    scene.settle(&[1]);
    scene.compute_task(1, 0, 1);
    scene.send(1, A, usize::MAX);
    scene.hear(1, A);
    assert_eq!(scene.position(1, 0), Some(1), "B lacks step 1");
    scene.kill(1);
    whole_task(&mut scene, 2, 0, 1);
    assert_eq!(scene.counts()[..2], [1.0, 1.0]);
}

#[test]
fn late_frames_of_a_speculative_attempt_change_nothing() {
    let mut scene = asp();
    scene.grant(2, 0, 0);
    scene.compute_task(2, 0, 0);
    scene.send(2, B, 1);
    whole_task(&mut scene, 1, 0, 0);
    scene.settle(&[2]);
    scene.compute_task(2, 0, 1);
    scene.settle(&[2]);
    scene.task_done(2, 0);
    scene.settle(&[2]);
    assert_eq!(scene.counts()[..2], [1.0, 1.0]);
}

#[test]
fn a_task_restarts_at_the_lowest_step_that_a_shard_names() {
    let mut scene = asp();
    scene.grant(1, 0, 0);
    scene.compute_task(1, 0, 0);
    scene.send(1, B, usize::MAX);
    scene.hear(1, B);
    scene.compute_task(1, 0, 1);
    scene.send(1, B, usize::MAX);
    scene.kill(1);
    let named = [A, B].map(|shard| scene.task_on(shard, 0).map_or(0, |(step, _)| step));
    assert_ne!(named[A], named[B], "the shards do not stand together");
    whole_task(&mut scene, 2, 0, named[A].min(named[B]));
    assert_eq!(scene.counts()[..2], [1.0, 1.0]);
}

#[test]
fn a_task_is_done_only_when_every_shard_marks_it() {
    let mut scene = asp();
    scene.grant(1, 0, 0);
    for step in 0..2 {
        scene.compute_task(1, 0, step);
        scene.settle(&[1]);
    }
    scene.task_done(1, 0);
    scene.send(1, B, usize::MAX);
    scene.hear(1, B);
    assert!(!scene.events(1).iter().any(|event| matches!(event, ClientEvent::Finished { .. })));
    scene.kill(1);
    assert_eq!([A, B].map(|shard| scene.task_on(shard, 0)), [Some((2, false)), Some((0, true))]);
    whole_task(&mut scene, 2, 0, 0);
    assert_eq!(scene.counts()[..2], [1.0, 1.0], "shards refuse what they have");
}

#[test]
fn a_barrier_delays_later_pushes_and_no_pull() {
    let mut scene = asp();
    let set = CutAt::Barriers(scene.members());
    for shard in [A, B] {
        scene.cut(shard, 1, &set);
    }
    scene.grant(1, 0, 0);
    scene.compute_task(1, 0, 0);
    scene.barrier(1, 1);
    scene.settle(&[1]);
    // A pull behind the barrier is answered before the other trainer receives the cut.
    scene.compute_task(1, 0, 1);
    scene.settle(&[1]);
    assert_eq!(scene.counts()[..2], [1.0, 0.0], "step 1 is behind the barrier");
    assert_eq!(scene.snapped(1), [] as [usize; 0]);
    scene.barrier(2, 1);
    scene.settle(&[1, 2]);
    assert_eq!(scene.snapped(1).len(), 2);
    assert_eq!(scene.counts()[..2], [1.0, 1.0], "held frames follow the snapshot");
    scene.end_cut(1, true);
    let cut = scene.cut_id(1);
    scene.roll_back(Some((cut, Step(0))));
    assert_eq!(scene.counts()[..2], [1.0, 0.0]);
}

#[test]
fn a_cut_completes_after_the_death_of_a_trainer() {
    let mut scene = asp();
    let set = CutAt::Barriers(scene.members());
    for shard in [A, B] {
        scene.cut(shard, 1, &set);
    }
    scene.grant(1, 0, 0);
    scene.compute_task(1, 0, 0);
    scene.settle(&[1]);
    scene.compute_task(1, 0, 1);
    // Step 1 and the barrier reach A alone.
    scene.barrier(1, 1);
    scene.send(1, A, usize::MAX);
    assert_eq!(scene.position(1, 0), Some(1));
    scene.barrier(2, 1);
    scene.settle(&[2]);
    assert_eq!(scene.snapped(1), [A]);
    scene.kill(1);
    assert_eq!(scene.snapped(1), [A, B], "a death shrinks the set");
    scene.end_cut(1, true);
    let cut = scene.cut_id(1);
    scene.roll_back(Some((cut, Step(0))));
    scene.order_work(2);
    whole_task(&mut scene, 2, 0, 1);
    assert_eq!(scene.counts()[..2], [1.0, 1.0], "A refuses what its snapshot has, B takes it");
}

/// Schedules 33 and 44 on the data line. The ApplicationMaster dies with cut g1-c1 open, while trainer 1 has no connection to B.
/// Its successor opens g2-c1, and trainer 1 receives it later than trainer 2. The old barrier is not counted for the new cut: B would
/// snap without the step that trainer 1 pushes before it receives it, A with it, and every resume from that checkpoint would end
/// with a step out of order.
#[test]
fn a_barrier_of_an_earlier_attempt_belongs_to_another_cut() {
    let mut scene = asp();
    scene.grant(1, 0, 0);
    let set = CutAt::Barriers(scene.members());
    for shard in [A, B] {
        scene.cut(shard, 1, &set);
    }
    scene.disconnect(1, B);
    scene.barrier(1, 1);
    scene.settle(&[1]);
    scene.end_cut(1, false);
    scene.take_over_job();
    for shard in [A, B] {
        scene.cut(shard, 1, &set);
    }
    scene.connect(1, B);
    scene.barrier(2, 1);
    scene.settle(&[1, 2]);
    // The control line lags behind the data line: trainer 1 has not received g2-c1.
    scene.compute_task(1, 0, 0);
    scene.settle(&[1]);
    assert_eq!(scene.position(1, 0), Some(1), "every shard has step 0");
    scene.barrier(1, 1);
    scene.settle(&[1]);
    assert_eq!(scene.snapped(1), [A, B]);
    scene.end_cut(1, true);
    let cut = scene.cut_id(1);
    scene.roll_back(Some((cut, Step(0))));
    assert_eq!(
        [A, B].map(|shard| scene.task_on(shard, 0)),
        [Some((1, false)); 2],
        "the manifest has step 1, and both snapshots hold step 0"
    );
    for number in [1, 2] {
        scene.order_work(number);
    }
    whole_task(&mut scene, 2, 0, 1);
    assert_eq!(scene.counts()[..2], [1.0, 1.0]);
}
