//! The trainer's clock: schedules S1 to S10 as far as the trainer decides them; the shards' side is in `heddle-shard`.
use super::*;

const OTHER: TaskId = TaskId(6);

/// A machine in a phase with clocks.
fn ssp() -> World {
    let mut world = World::new();
    world.begin(1, Sharing::ClockedQueue { staleness: 1 });
    world
}

impl World {
    fn begin(&mut self, no: u32, sharing: Sharing) {
        let phase = Phase { no: PhaseNo(no), sharing };
        self.on(DataRequest::Work { epoch: epoch(0), phase, places: places(2, 0) });
        assert!(matches!(self.event(), Some(ClientEvent::Begun { .. })));
    }

    /// Takes the questions that wait for both shards.
    fn questions(&mut self) -> [Header; 2] {
        [0, 1].map(|n| {
            let sent = self.sent(n);
            assert_eq!(
                sent.iter().map(|header| header.kind).collect::<Vec<_>>(),
                [Kind::ClockQuery]
            );
            sent[0]
        })
    }

    fn lowest(&mut self, question: &Header, clock: u64) {
        let mut reply = question.reply(Kind::Progress, Status::Ok);
        reply.step = Step(clock);
        self.machine.frame(endpoint(question.shard.0 as u16), &reply, self.now_ms);
    }

    /// Holds [`TASK`] and starts at this clock.
    fn starts_at(&mut self, clock: u64) {
        self.hold(TASK);
        for question in self.questions() {
            self.lowest(&question, clock);
        }
        assert_eq!(self.clocks(), [(clock, true); 2]);
    }

    /// The only frame that waits for each shard is a clock: its number, and whether the trainer is counted.
    fn clocks(&mut self) -> Vec<(u64, bool)> {
        let clock = |header: Header| {
            assert_eq!(header.kind, Kind::Clock);
            (header.step.0, !header.has(flags::EMPTY))
        };
        [self.sent(0), self.sent(1)].concat().into_iter().map(clock).collect()
    }

    /// Pulls for a step of a task. The numbers in the frames.
    fn pull_step(&mut self, task: TaskId, step: u64) -> Vec<u64> {
        let pull = u64::from(task.0) * 100 + step;
        self.pull(pull, PullAt::Step(task, Step(step)), Rows::Range(0..8));
        let frames = [self.sent(0), self.sent(1)].concat();
        assert!(frames.iter().all(|frame| frame.kind == Kind::Pull && !frame.has(flags::FREE)));
        frames.iter().map(|frame| frame.step.0).collect()
    }

    /// Pushes a step and returns its frames.
    fn push_step(&mut self, task: TaskId, step: u64) -> [Vec<Header>; 2] {
        self.push(Unit::Task(task), step, gradient(), false);
        [self.sent(0), self.sent(1)]
    }

    fn reach(&mut self, task: TaskId, step: u64) {
        for frames in self.push_step(task, step) {
            self.acknowledge(&frames);
        }
        assert_eq!(reached(self.event()), (Unit::Task(task), step));
    }

    fn end(&mut self, task: TaskId) {
        let era = self.era();
        self.on(DataRequest::EndTask { era, task });
    }

    fn release(&mut self, task: TaskId) {
        let era = self.era();
        self.on(DataRequest::ReleaseTask { era, task });
    }
}

#[test]
fn pulls_are_numbered_in_order_over_all_tasks() {
    let mut world = ssp();
    world.starts_at(0);
    world.hold(OTHER);
    assert_eq!(world.pull_step(TASK, 0), [0, 0]);
    assert_eq!(world.pull_step(OTHER, 0), [1, 1]);
    assert_eq!(world.pull_step(TASK, 1), [2, 2]);
    world.reach(OTHER, 0);
    assert!(world.clocks().is_empty(), "step 0 of the first task is not over");
    world.reach(TASK, 0);
    assert_eq!(world.clocks(), [(2, true); 2]);
    assert_eq!(world.pull_step(OTHER, 1), [3, 3]);
}

#[test]
fn phases_without_clocks_have_free_pulls() {
    let mut world = World::new();
    for (no, sharing) in [(1, Sharing::Queue), (2, Sharing::ReadOnly)] {
        world.begin(no, sharing);
        world.hold(TASK);
        world.pull(1, PullAt::Step(TASK, Step(0)), Rows::Range(0..8));
        let frames = [world.sent(0), world.sent(1)].concat();
        assert!(frames.iter().all(|frame| frame.kind == Kind::Pull && frame.has(flags::FREE)));
        assert_eq!(frames.len(), 2);
    }
}

/// S1: the barrier goes while a pull waits for another trainer.
#[test]
fn s1_barrier_goes_while_a_pull_waits() {
    let mut world = ssp();
    world.starts_at(0);
    world.pull_step(TASK, 0);
    world.on(DataRequest::Barrier { cut: cut(1), epoch: epoch(0) });
    assert_eq!((world.kinds(0), world.kinds(1)), (vec![Kind::Barrier], vec![Kind::Barrier]));
    assert!(matches!(world.event(), Some(ClientEvent::AtBarrier { .. })));
}

/// S4: the start is the largest answer; pulls wait for it, and the clock goes first.
#[test]
fn s4_joiner_starts_at_the_largest_answer() {
    let mut world = ssp();
    world.hold(TASK);
    let [first, second] = world.questions();
    assert!(world.pull_step(TASK, 0).is_empty());
    world.lowest(&first, 998);
    assert!(world.clocks().is_empty());
    world.lowest(&second, 1_000);
    for n in [0, 1] {
        let sent: Vec<_> = world.sent(n).iter().map(|h| (h.kind, h.step.0)).collect();
        assert_eq!(sent, [(Kind::Clock, 1_000), (Kind::Pull, 1_000)]);
    }
}

/// S5: a trainer without steps to come is not counted, and asks before its next task. It never starts below its own clock.
#[test]
fn s5_trainer_asks_again_after_it_had_no_task() {
    let mut world = ssp();
    world.starts_at(3);
    world.pull_step(TASK, 0);
    world.reach(TASK, 0);
    assert_eq!(world.clocks(), [(4, true); 2]);
    world.end(TASK);
    let ended = [world.sent(0), world.sent(1)].concat();
    let ended: Vec<_> = ended.iter().map(|h| (h.kind, h.has(flags::EMPTY))).collect();
    assert_eq!(ended, [(Kind::TaskDone, false), (Kind::Clock, true)].repeat(2));
    world.hold(OTHER);
    for (question, lowest) in world.questions().iter().zip([500, 2]) {
        world.lowest(question, lowest);
    }
    assert_eq!(world.clocks(), [(500, true); 2]);
    world.release(OTHER);
    assert_eq!(world.clocks(), [(500, false); 2]);
    world.hold(OTHER);
    for question in world.questions() {
        world.lowest(&question, 499);
    }
    assert_eq!(world.clocks(), [(500, true); 2], "its own clock is higher");
}

/// S5: answers to a question before the trainer had no task do not count.
#[test]
fn s5_answers_to_an_earlier_question_are_ignored() {
    let mut world = ssp();
    world.hold(TASK);
    let early = world.questions();
    world.release(TASK);
    world.hold(TASK);
    let late = world.questions();
    world.lowest(&early[0], 7);
    world.lowest(&late[0], 3);
    world.lowest(&early[1], 7);
    assert!(world.clocks().is_empty());
    world.lowest(&late[1], 4);
    assert_eq!(world.clocks(), [(4, true); 2]);
}

/// S6: the clock counts a step when every shard has acknowledged all of it.
#[test]
fn s6_step_counts_when_every_shard_has_acknowledged_it() {
    let mut world = ssp();
    world.starts_at(0);
    world.pull_step(TASK, 0);
    let [first, second] = world.push_step(TASK, 0);
    world.acknowledge(&first);
    assert!(world.clocks().is_empty(), "the second shard lacks it");
    world.acknowledge(&second);
    assert_eq!(world.clocks(), [(1, true); 2]);
}

/// S8: a new epoch begins at 0, and drops what waits and what is numbered.
#[test]
fn s8_clock_begins_again_in_a_new_epoch() {
    let mut world = ssp();
    world.starts_at(30);
    world.pull_step(TASK, 0);
    let phase = Phase { no: PhaseNo(1), sharing: Sharing::ClockedQueue { staleness: 1 } };
    world.on(DataRequest::Work { epoch: epoch(1), phase, places: places(2, 0) });
    assert!(world.clocks().is_empty());
    world.starts_at(0);
    assert_eq!(world.pull_step(TASK, 0), [0, 0]);
}

/// S9: a connection that opens gets the present clock before anything else, and no earlier one.
#[test]
fn s9_connection_that_opens_gets_the_present_clock_first() {
    let mut world = ssp();
    world.starts_at(0);
    world.pull_step(TASK, 0);
    world.machine.closed(endpoint(1), Closed::Broke, 0);
    for step in 0..2 {
        world.pull_step(TASK, step + 1);
        let [first, _] = world.push_step(TASK, step);
        world.acknowledge(&first);
    }
    assert!(world.clocks().is_empty());
    world.wait();
    world.connect_all();
    let sent = world.sent(1);
    assert_eq!((sent[0].kind, sent[0].step), (Kind::Clock, Step(0)));
    assert!(sent[1..].iter().all(|header| header.kind != Kind::Clock));
    let pushes: Vec<_> = sent.iter().filter(|h| h.kind == Kind::Push).copied().collect();
    world.acknowledge(&pushes);
    let clocks: Vec<_> = world.clocks().iter().map(|(clock, _)| *clock).collect();
    assert_eq!(clocks, [1, 2, 1, 2], "every clock, rising");
}

/// S9: clocks that a broken connection did not send are not sent afterwards.
#[test]
fn s9_clocks_of_a_broken_connection_are_dropped() {
    let mut world = ssp();
    world.hold(TASK);
    for question in world.questions() {
        world.lowest(&question, 0);
    }
    // The clock waits on both connections; one breaks before it is sent.
    world.machine.closed(endpoint(1), Closed::Broke, 0);
    assert_eq!(world.kinds(0), [Kind::Clock]);
    world.pull(0, PullAt::Step(TASK, Step(0)), Rows::Range(0..8));
    world.wait();
    world.connect_all();
    assert_eq!(world.kinds(1), [Kind::Clock, Kind::Pull]);
}

/// S10: a released task gives its steps up, so the clock passes them; a task without steps holds up no trainer.
#[test]
fn s10_steps_that_are_given_up_are_over() {
    let mut world = ssp();
    world.starts_at(0);
    world.hold(OTHER);
    world.pull_step(TASK, 0);
    world.pull_step(OTHER, 0);
    world.reach(OTHER, 0);
    assert!(world.clocks().is_empty());
    world.release(TASK);
    assert_eq!(world.clocks(), [(2, true); 2]);
    assert_eq!(world.pull_step(OTHER, 1), [2, 2]);
    world.release(OTHER);
    assert_eq!(world.clocks(), [(3, false); 2]);
    world.hold(TASK);
    world.end(TASK);
    let kinds = world.kinds(0);
    assert_eq!(kinds, [Kind::ClockQuery, Kind::TaskDone], "it asked, and is not counted");
}

#[test]
fn steps_that_pull_nothing_are_counted() {
    let mut world = ssp();
    world.starts_at(0);
    world.reach(TASK, 0);
    assert_eq!(world.clocks(), [(1, true); 2]);
    assert_eq!(world.pull_step(TASK, 1), [1, 1]);
}

/// S55: a promoted copy grants nothing before it has a clock of each trainer, so trainers without a task send theirs too.
#[test]
fn s55_with_backups_every_connection_and_map_brings_a_clock() {
    let mut world = World::of(true);
    let work = |world: &mut World| {
        let phase = Phase { no: PhaseNo(1), sharing: Sharing::ClockedQueue { staleness: 1 } };
        world.on(DataRequest::Work { epoch: epoch(0), phase, places: places(2, 0) });
    };
    work(&mut world);
    assert!(matches!(world.event(), Some(ClientEvent::Begun { .. })));
    assert_eq!(world.clocks(), [(0, false); 2], "the phase has begun, and it has no task");
    world.machine.closed(endpoint(1), Closed::Broke, 0);
    world.wait();
    world.connect_all();
    assert_eq!(world.clocks(), [(0, false)]);
    world.hold(TASK);
    let questions = world.questions();
    work(&mut world);
    assert_eq!(world.clocks(), [(0, false); 2], "it does not know yet where it starts");
    for question in &questions {
        world.lowest(question, 3);
    }
    assert_eq!(world.clocks(), [(3, true); 2]);
    work(&mut world);
    assert_eq!(world.clocks(), [(3, true); 2], "shards may have moved");
}
