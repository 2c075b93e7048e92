//! The machine without sockets: the frames that it sends, and its reactions to replies.

mod hand_outs;
mod promotion;
mod refusals;
mod ssp;

use proptest::prelude::*;

use super::*;
use crate::error::RequestError;
use crate::gradient::{Gradient, TableGradient};
use crate::layout::{Rows, TableShape};
use heddle_protocol::control::{LaneGrant, Sharing, TaskGrant};
use heddle_protocol::frame::flags;
use heddle_protocol::ids::{
    Generation, HandOut, Incarnation, Lane, Member, Part, PhaseNo, ShardId, Slot, Step, TableId,
    TaskAttempt, TaskId,
};
use heddle_protocol::job_spec::TableKind;
use heddle_protocol::metrics::LossSum;

const LANE: Lane = Lane(1);
const TASK: TaskId = TaskId(5);

fn endpoint(n: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 7000 + n))
}

fn epoch(count: u32) -> Epoch {
    Epoch { generation: Generation(1), count }
}

fn phase(no: u32) -> Phase {
    Phase { no: PhaseNo(no), sharing: Sharing::Queue }
}

fn cut(number: u32) -> CutId {
    CutId { generation: Generation(1), number }
}

fn grant(lane: Lane, count: u32) -> LaneGrant {
    let generation = Generation(1);
    LaneGrant { lane, hand_out: HandOut { generation, count } }
}

/// Shard `s` at endpoint `s`, shifted by `moved`.
fn places(shards: u32, moved: u16) -> Vec<ShardPlace> {
    let place = |s: u32| ShardPlace {
        shard: ShardId(s),
        holder: Member { slot: Slot::pserver(s), incarnation: Incarnation(1) },
        endpoint: endpoint(s as u16 + moved),
    };
    (0..shards).map(place).collect()
}

/// A machine over two shards, each at its own endpoint, connected. Table 0 has 8 rows of 2, table 1 one row of 1.
struct World {
    machine: ClientMachine,
    now_ms: u64,
}

impl World {
    fn new() -> Self {
        Self::of(false)
    }

    fn of(shards_move: bool) -> Self {
        let tables = [(8, 2), (1, 1)]
            .map(|(rows, cols)| TableShape { kind: TableKind::Dense, rows, cols })
            .to_vec();
        let layout = Layout::new(2, tables).expect("sound tables");
        let machine = ClientMachine::of(layout, shards_move);
        let mut world = Self { machine, now_ms: 0 };
        world.work(epoch(0), places(2, 0));
        world.connect_all();
        assert!(matches!(world.event(), Some(ClientEvent::Begun { .. })));
        world
    }

    fn on(&mut self, request: DataRequest) {
        self.machine.on(request, self.now_ms);
    }

    fn work(&mut self, epoch: Epoch, places: Vec<ShardPlace>) {
        self.on(DataRequest::Work { epoch, phase: phase(0), places });
    }

    fn connect_all(&mut self) {
        while let Some(endpoint) = self.machine.next_connect(self.now_ms) {
            self.machine.opened(endpoint, self.now_ms);
        }
    }

    fn era(&self) -> Era {
        self.machine.era().expect("work was given")
    }

    fn event(&mut self) -> Option<ClientEvent> {
        self.machine.next_event()
    }

    /// What waits to be written to this endpoint.
    fn sent(&mut self, n: u16) -> Vec<Header> {
        std::iter::from_fn(|| self.machine.next_frame(endpoint(n)))
            .map(|frame| frame.header)
            .collect()
    }

    fn kinds(&mut self, n: u16) -> Vec<Kind> {
        self.sent(n).iter().map(|header| header.kind).collect()
    }

    fn reply(&mut self, request: &Header, kind: Kind, status: Status) {
        self.machine.frame(
            endpoint(request.shard.0 as u16),
            &request.reply(kind, status),
            self.now_ms,
        );
    }

    fn acknowledge(&mut self, requests: &[Header]) {
        for request in requests {
            self.reply(request, Kind::Ack, Status::Ok);
        }
    }

    fn refuse(&mut self, request: &Header, status: Status) {
        self.reply(request, Kind::Refused, status);
    }

    fn stand(&mut self, request: &Header, step: u64, flags: u16, rows: u32) {
        let mut reply = request.reply(Kind::Progress, Status::Ok);
        (reply.step, reply.flags) = (Step(step), flags);
        (reply.rows, reply.loss) = (rows, loss_of(rows));
        self.machine.frame(endpoint(request.shard.0 as u16), &reply, self.now_ms);
    }

    /// Takes [`LANE`] over with these answers (step, flags, rows) of the two shards.
    fn take_over(&mut self, answers: [(u64, u16, u32); 2]) {
        let era = self.era();
        self.on(DataRequest::TakeOver { era, grant: grant(LANE, 1) });
        self.answer_queries(answers);
    }

    fn answer_queries(&mut self, answers: [(u64, u16, u32); 2]) {
        for (n, (step, flags, rows)) in answers.into_iter().enumerate() {
            let asked = self.sent(n as u16);
            assert_eq!(asked.len(), 1, "one question a shard");
            assert_eq!((asked[0].kind, asked[0].unit), (Kind::Query, LANE.0));
            self.stand(&asked[0], step, flags, rows);
        }
    }

    fn push(&mut self, unit: Unit, step: u64, gradient: Gradient, end: bool) {
        let rows = u32::from(!gradient.tables.is_empty()) * 9;
        let era = self.era();
        self.on(DataRequest::PushStep {
            era,
            unit,
            push: StepPush { step: Step(step), gradient, rows, loss: loss_of(rows), end },
        });
    }

    fn hold(&mut self, task: TaskId) {
        let era = self.era();
        self.on(DataRequest::HoldTask {
            era,
            grant: TaskGrant { task, attempt: TaskAttempt(1), start: Step(0) },
        });
    }

    fn pull(&mut self, number: u64, at: PullAt, rows: Rows) {
        let era = self.era();
        let item = PullItem { table: TableId(0), rows, values: Vec::new() };
        self.on(DataRequest::Pull { era, pull: PullId(number), at, items: vec![item] });
    }

    fn wait(&mut self) {
        self.now_ms = self.machine.next_deadline().expect("something is due");
        self.machine.timer(self.now_ms);
    }
}

/// What records lose.
fn loss_of(rows: u32) -> LossSum {
    LossSum::new(f64::from(rows) / 4.0)
}

/// All rows of table 0 and the row of table 1.
fn gradient() -> Gradient {
    let weights =
        TableGradient { table: TableId(0), rows: Rows::Range(0..8), values: vec![0.5; 16] };
    let bias = TableGradient { table: TableId(1), rows: Rows::Keys(vec![0]), values: vec![1.0] };
    Gradient { tables: vec![weights, bias] }
}

fn reached(event: Option<ClientEvent>) -> (Unit, u64) {
    match event {
        Some(ClientEvent::Reached { unit, step, .. }) => (unit, step.0),
        other => panic!("expected a step reached, got {other:?}"),
    }
}

// ---- BSP ----

#[test]
fn bsp_step_is_reached_when_all_dones_are_acknowledged() {
    let mut world = World::new();
    world.take_over([(0, 0, 0); 2]);
    assert_eq!(world.event(), Some(ClientEvent::Compute { lane: LANE, step: Step(0) }));
    world.push(Unit::Lane(LANE), 0, gradient(), false);
    let parts = [world.sent(0), world.sent(1)];
    world.acknowledge(&parts[0]);
    assert!(world.sent(0).is_empty(), "no Done before every shard has every part");
    world.acknowledge(&parts[1]);
    let dones = [world.sent(0), world.sent(1)].concat();
    let sums = |h: &Header| (h.kind, h.rows, h.loss);
    assert_eq!(dones.iter().map(sums).collect::<Vec<_>>(), [(Kind::Done, 9, loss_of(9)); 2]);
    world.acknowledge(&dones[..1]);
    assert_eq!(
        world.event(),
        None,
        "staged everywhere is not reached: the Dones could die with the trainer"
    );
    world.acknowledge(&dones[1..]);
    assert_eq!(reached(world.event()), (Unit::Lane(LANE), 0));
}

#[test]
fn next_pull_is_sent_at_once_and_next_push_waits() {
    let mut world = World::new();
    world.take_over([(0, 0, 0); 2]);
    world.push(Unit::Lane(LANE), 0, gradient(), false);
    world.pull(1, PullAt::Before(LANE, Step(1)), Rows::Range(0..8));
    let sent = [world.sent(0), world.sent(1)].concat();
    assert!(sent.iter().any(|h| h.kind == Kind::Pull && h.step == Step(1) && !h.has(flags::FREE)));
    world.push(Unit::Lane(LANE), 1, gradient(), false);
    assert!(world.sent(0).is_empty(), "a shard could not distinguish the steps");
    let parts: Vec<_> = sent.into_iter().filter(|h| h.kind == Kind::Push).collect();
    world.acknowledge(&parts);
    let dones = [world.sent(0), world.sent(1)].concat();
    world.acknowledge(&dones);
    let next = world.sent(0);
    assert!(next.iter().all(|h| h.kind == Kind::Push && h.step == Step(1)) && !next.is_empty());
}

#[test]
fn steps_pushed_ahead_are_sent_one_by_one() {
    let mut world = World::new();
    world.take_over([(0, 0, 0); 2]);
    world.event();
    world.push(Unit::Lane(LANE), 0, gradient(), false);
    world.push(Unit::Lane(LANE), 1, gradient(), false);
    world.pull(1, PullAt::Before(LANE, Step(2)), Rows::Range(0..8));
    world.push(Unit::Lane(LANE), 2, Gradient::default(), true);
    let mut seen = Vec::new();
    loop {
        let sent = [world.sent(0), world.sent(1)].concat();
        if sent.is_empty() {
            break;
        }
        seen.extend(sent.iter().filter(|h| h.shard == ShardId(0)).map(|h| (h.kind, h.step.0)));
        seen.dedup();
        let pushes: Vec<_> = sent.into_iter().filter(|h| h.kind != Kind::Pull).collect();
        world.acknowledge(&pushes);
    }
    let (push, done) = (Kind::Push, Kind::Done);
    assert_eq!(seen, [(push, 0), (Kind::Pull, 2), (done, 0), (push, 1), (done, 1), (done, 2)]);
    let ended = std::iter::from_fn(|| world.event()).last();
    assert_eq!(ended, Some(ClientEvent::Ended { lane: LANE }));
}

#[test]
fn successor_computes_again_when_no_shard_has_done() {
    for staged in [0, flags::STAGED] {
        let mut world = World::new();
        world.take_over([(3, flags::STAGED, 9), (3, staged, 0)]);
        assert_eq!(world.event(), Some(ClientEvent::Compute { lane: LANE, step: Step(3) }));
        assert!(world.sent(0).is_empty() && world.sent(1).is_empty());
    }
}

#[test]
fn successor_sends_only_missing_dones() {
    // A has applied step 3, so B holds all of it and lacks this lane's Done; or A has the Done and waits for other lanes.
    for a in [(4, 0, 0), (3, flags::STAGED | flags::DONE, 9)] {
        let mut world = World::new();
        world.take_over([a, (3, flags::STAGED, 9)]);
        assert!(world.sent(0).is_empty(), "A has it");
        let dones = world.sent(1);
        assert_eq!(dones.len(), 1);
        assert_eq!(
            (dones[0].kind, dones[0].step, dones[0].rows, dones[0].flags),
            (Kind::Done, Step(3), 9, 0)
        );
        assert_eq!(world.event(), None);
        world.acknowledge(&dones);
        assert_eq!(world.event(), Some(ClientEvent::Compute { lane: LANE, step: Step(4) }));
    }
}

#[test]
fn successor_completes_the_end_of_a_lane() {
    let mut world = World::new();
    world.take_over([(4, flags::END, 0), (3, flags::STAGED, 9)]);
    let dones = world.sent(1);
    assert_eq!((dones[0].kind, dones[0].rows, dones[0].flags), (Kind::Done, 9, flags::END));
    assert_eq!(dones[0].loss, loss_of(9));
    world.acknowledge(&dones);
    assert_eq!(world.event(), Some(ClientEvent::Ended { lane: LANE }));

    let mut world = World::new();
    world.take_over([(3, flags::END | flags::DONE, 0), (3, 0, 0)]);
    let dones = world.sent(1);
    assert_eq!(dones[0].flags, flags::END | flags::EMPTY, "the last step had no gradient");

    let mut world = World::new();
    world.take_over([(9, flags::END, 0), (9, flags::END, 0)]);
    assert_eq!(world.event(), Some(ClientEvent::Ended { lane: LANE }));
}

#[test]
fn successor_asks_again_while_a_shard_is_behind() {
    let mut world = World::new();
    // B has the Done of step 3 and waits for another lane; A has the end at step 4 already.
    world.take_over([(4, flags::END | flags::DONE, 0), (3, flags::STAGED | flags::DONE, 9)]);
    assert_eq!(world.event(), None);
    world.wait();
    world.answer_queries([(5, flags::END, 0), (4, flags::STAGED, 9)]);
    let dones = world.sent(1);
    assert_eq!((dones[0].step, dones[0].flags), (Step(4), flags::END));
}

#[test]
fn stale_pull_drops_the_work_and_asks_again() {
    let mut world = World::new();
    world.take_over([(1, 0, 0); 2]);
    world.event();
    world.pull(1, PullAt::Before(LANE, Step(1)), Rows::Range(0..8));
    let pulls = [world.sent(0), world.sent(1)].concat();
    world.refuse(&pulls[1], Status::Stale);
    world.push(Unit::Lane(LANE), 1, gradient(), false);
    world.answer_queries([(1, flags::STAGED, 9), (2, 0, 0)]);
    let dones = world.sent(0);
    assert_eq!(dones.iter().map(|h| (h.kind, h.step)).collect::<Vec<_>>(), [(Kind::Done, Step(1))]);
    world.acknowledge(&dones);
    assert_eq!(world.event(), Some(ClientEvent::Compute { lane: LANE, step: Step(2) }));
    let mut late = pulls[0].reply(Kind::Values, Status::Ok);
    late.value_bytes = 8 * 4;
    world.machine.frame_with(endpoint(0), &late, &[1.0; 8], 0);
    assert_eq!(world.event(), None, "half of an old pull is nothing");
}

#[test]
fn lane_without_data_sends_one_done_per_shard() {
    let mut world = World::new();
    world.take_over([(0, 0, 0); 2]);
    world.event();
    world.push(Unit::Lane(LANE), 0, Gradient::default(), true);
    let dones = [world.sent(0), world.sent(1)].concat();
    assert_eq!(dones.len(), 2);
    assert!(
        dones
            .iter()
            .all(|h| h.kind == Kind::Done && h.flags == flags::END | flags::EMPTY && h.rows == 0)
    );
    world.acknowledge(&dones);
    assert_eq!(reached(world.event()), (Unit::Lane(LANE), 0));
    assert_eq!(world.event(), Some(ClientEvent::Ended { lane: LANE }));
    world.push(Unit::Lane(LANE), 1, gradient(), false);
    assert_eq!(world.event(), Some(ClientEvent::Fault(RequestError::LaneEnded(LANE).into())));
}

#[test]
fn later_delays_one_lane_only() {
    let mut world = World::new();
    let other = Lane(0);
    world.take_over([(0, 0, 0); 2]);
    world.event();
    let era = world.era();
    world.on(DataRequest::TakeOver { era, grant: grant(other, 1) });
    for n in 0..2 {
        let asked = world.sent(n);
        world.stand(&asked[0], 0, 0, 0);
    }
    world.event();
    world.push(Unit::Lane(LANE), 0, gradient(), false);
    let early = world.sent(1);
    world.refuse(&early[0], Status::Later);
    for part in &early[1..] {
        world.refuse(part, Status::OutOfOrder);
    }
    assert!(world.sent(1).is_empty());
    world.push(Unit::Lane(other), 0, gradient(), false);
    assert!(world.sent(1).iter().all(|h| h.unit == other.0), "the other lane continues at once");
    while world.machine.next_deadline().is_some() {
        world.wait();
    }
    let again = world.sent(1);
    assert_eq!(again, early, "all parts come again, in order");
    assert_eq!(world.event(), None);
}

// ---- parts ----

#[test]
fn every_shard_gets_one_last_part_with_rising_numbers() {
    let mut world = World::new();
    world.hold(TASK);
    let only_first =
        TableGradient { table: TableId(0), rows: Rows::Keys(vec![0, 2]), values: vec![1.0; 4] };
    world.push(Unit::Task(TASK), 0, Gradient { tables: vec![only_first] }, false);
    let (a, b) = (world.sent(0), world.sent(1));
    assert_eq!(
        (a.len(), a[0].flags, a[0].count, a[0].value_bytes),
        (1, flags::KEYS | flags::LAST, 2, 16)
    );
    assert_eq!((b.len(), b[0].flags, b[0].count, b[0].payload_bytes()), (1, flags::LAST, 0, 0));
    world.push(Unit::Task(TASK), 1, gradient(), false);
    let b = world.sent(1);
    assert_eq!(
        b.iter().map(|h| (h.part, h.has(flags::LAST))).collect::<Vec<_>>(),
        [(Part(0), false), (Part(1), true)]
    );
}

proptest! {
    #[test]
    fn parts_do_not_depend_on_values(
        picks in prop::collection::btree_set(0u32..8, 0..8),
        values in prop::collection::vec(any::<f32>(), 16),
    ) {
        let headers = |scale: f32| {
            let mut world = World::new();
            world.hold(TASK);
            let keys: Vec<_> = picks.iter().copied().collect();
            let values = values[..keys.len() * 2].iter().map(|v| v * scale).collect();
            let part = TableGradient { table: TableId(0), rows: Rows::Keys(keys), values };
            world.push(Unit::Task(TASK), 0, Gradient { tables: vec![part] }, false);
            [world.sent(0), world.sent(1)].concat()
        };
        prop_assert_eq!(headers(1.0), headers(0.0));
    }

    #[test]
    fn pulled_values_are_in_the_requested_order(
        picks in prop::collection::btree_set(0u32..8, 0..8),
        backwards in any::<bool>(),
    ) {
        let mut world = World::new();
        let keys: Vec<u32> = picks.into_iter().collect();
        world.pull(1, PullAt::Now, Rows::Keys(keys.clone()));
        let mut frames: Vec<_> = (0..2)
            .flat_map(|n| {
                let next = || world.machine.next_frame(endpoint(n));
                std::iter::from_fn(next).collect::<Vec<_>>()
            })
            .collect();
        if backwards {
            frames.reverse();
        }
        for frame in frames {
            let keys = frame.payload.key_words();
            let values: Vec<f32> =
                keys.iter().flat_map(|&k| [k as f32, -(k as f32)]).collect();
            let mut reply = frame.header.reply(Kind::Values, Status::Ok);
            reply.value_bytes = values.len() as u32 * 4;
            world.machine.frame_with(endpoint(frame.header.shard.0 as u16), &reply, &values, 0);
        }
        let Some(ClientEvent::Pulled { items, .. }) = world.event() else {
            panic!("all answers came")
        };
        let expected: Vec<f32> = keys.iter().flat_map(|&k| [k as f32, -(k as f32)]).collect();
        prop_assert_eq!(&items[0].values, &expected);
        prop_assert_eq!(&items[0].rows, &Rows::Keys(keys));
    }
}

// ---- ASP ----

#[test]
fn step_that_one_shard_lacks_blocks_all_later_ones() {
    let mut world = World::new();
    world.hold(TASK);
    for step in 0..3 {
        world.push(Unit::Task(TASK), step, gradient(), false);
    }
    let a = world.sent(0);
    world.acknowledge(&a);
    let b = world.sent(1);
    let (first, rest): (Vec<_>, Vec<_>) = b.into_iter().partition(|h| h.step == Step(0));
    world.acknowledge(&rest);
    assert_eq!(world.event(), None);
    assert_eq!(world.machine.positions()[0].step, Step(0));
    world.acknowledge(&first);
    assert_eq!((0..3).map(|_| reached(world.event()).1).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(world.machine.positions()[0].step, Step(3));
}

#[test]
fn task_is_finished_when_all_shards_marked_it_done() {
    let mut world = World::new();
    world.hold(TASK);
    world.push(Unit::Task(TASK), 0, gradient(), false);
    let era = world.era();
    world.on(DataRequest::EndTask { era, task: TASK });
    let parts = [world.sent(0), world.sent(1)].concat();
    assert!(
        parts.iter().all(|h| h.kind == Kind::Push),
        "a done mark before the last part would refuse it"
    );
    world.acknowledge(&parts);
    reached(world.event());
    let marks = [world.sent(0), world.sent(1)].concat();
    assert_eq!(marks.iter().map(|h| h.kind).collect::<Vec<_>>(), [Kind::TaskDone; 2]);
    world.acknowledge(&marks[..1]);
    assert_eq!(world.event(), None);
    assert_eq!(world.machine.positions().len(), 1, "until then it is unfinished");
    world.acknowledge(&marks[1..]);
    let finished = ClientEvent::Finished {
        task: TASK,
        attempt: TaskAttempt(1),
        steps: 1,
        cut: CutId::default(),
    };
    assert_eq!(world.event(), Some(finished));
    assert!(world.machine.positions().is_empty());
}

#[test]
fn repeated_part_counts_as_acknowledged() {
    let mut world = World::new();
    world.hold(TASK);
    world.push(Unit::Task(TASK), 0, gradient(), false);
    for part in [world.sent(0), world.sent(1)].concat() {
        world.reply(&part, Kind::Ack, Status::Already);
    }
    reached(world.event());
}

#[test]
fn shard_behind_the_grant_is_a_fault() {
    let mut world = World::new();
    world.hold(TASK);
    world.push(Unit::Task(TASK), 0, gradient(), false);
    let parts = world.sent(0);
    world.refuse(&parts[0], Status::OutOfOrder);
    assert!(matches!(
        world.event(),
        Some(ClientEvent::Fault(Fault::Refused { status: Status::OutOfOrder, .. }))
    ));
}

#[test]
fn steps_of_a_task_are_consecutive_and_bounded() {
    let mut world = World::new();
    world.hold(TASK);
    world.push(Unit::Task(TASK), 1, gradient(), false);
    let step = RequestError::Step { task: TASK, got: Step(1), expected: Step(0) };
    assert_eq!(world.event(), Some(ClientEvent::Fault(step.into())));
    for step in 0..=UNREACHED_STEPS_MAX as u64 {
        world.push(Unit::Task(TASK), step, gradient(), false);
    }
    assert_eq!(
        world.event(),
        Some(ClientEvent::Fault(RequestError::TooManySteps(Unit::Task(TASK)).into()))
    );
}

#[test]
fn part_with_nan_is_reported_and_counts_as_seen() {
    let mut world = World::new();
    world.hold(TASK);
    world.push(Unit::Task(TASK), 0, gradient(), false);
    let parts = [world.sent(0), world.sent(1)].concat();
    world.refuse(&parts[0], Status::NotFinite);
    world.acknowledge(&parts[1..]);
    let reported = ClientEvent::NotFinite {
        unit: Unit::Task(TASK),
        step: Step(0),
        table: TableId(0),
        shard: ShardId(0),
    };
    assert_eq!(world.event(), Some(reported));
    reached(world.event());
}

// ---- epochs ----

#[test]
fn reply_of_an_old_epoch_is_ignored() {
    let mut world = World::new();
    world.pull(1, PullAt::Now, Rows::Range(0..8));
    let old = [world.sent(0), world.sent(1)].concat();
    world.work(epoch(1), places(2, 0));
    assert!(matches!(world.event(), Some(ClientEvent::Begun { era }) if era.epoch == epoch(1)));
    world.pull(1, PullAt::Now, Rows::Range(0..8));
    for request in &old {
        let mut reply = request.reply(Kind::Values, Status::Ok);
        reply.value_bytes = 8 * 4;
        world.machine.frame_with(endpoint(request.shard.0 as u16), &reply, &[1.0; 8], 0);
    }
    assert_eq!(world.event(), None);
    assert_eq!(world.machine.counters().dropped, 2);
}

#[test]
fn free_pull_waits_for_a_shard_in_a_later_epoch() {
    let mut world = World::new();
    world.pull(1, PullAt::Now, Rows::Range(0..4));
    let pulls = world.sent(0);
    world.refuse(&pulls[0], Status::Stale);
    assert_eq!(world.event(), None, "the new epoch is on its way");
    world.wait();
    assert_eq!(world.sent(0), pulls);
}

#[test]
fn rejected_epoch_is_never_an_acknowledgement() {
    let mut world = World::new();
    world.hold(TASK);
    world.push(Unit::Task(TASK), 0, gradient(), false);
    let parts = [world.sent(0), world.sent(1)].concat();
    for part in &parts {
        world.refuse(part, Status::WrongEpoch);
    }
    assert_eq!(world.event(), None);
    assert_eq!(world.machine.positions()[0].step, Step(0));
}

#[test]
fn requests_of_another_era_are_dropped() {
    let mut world = World::new();
    let old = world.era();
    world.work(epoch(1), places(2, 0));
    world.event();
    world.on(DataRequest::HoldTask {
        era: old,
        grant: TaskGrant { task: TASK, attempt: TaskAttempt(1), start: Step(0) },
    });
    world.on(DataRequest::TakeOver { era: old, grant: grant(LANE, 1) });
    assert!(world.machine.positions().is_empty());
    assert!(world.sent(0).is_empty());
}

#[test]
fn lower_epoch_of_a_stale_attempt_is_ignored() {
    let mut world = World::new();
    world.work(epoch(2), places(2, 0));
    world.event();
    world.work(epoch(1), places(2, 4));
    assert_eq!(world.event(), None);
    assert!(world.machine.wants(endpoint(0)));
}

#[test]
fn new_addresses_in_the_same_era_move_connections() {
    let mut world = World::new();
    world.hold(TASK);
    world.push(Unit::Task(TASK), 0, gradient(), false);
    let before = [world.sent(0), world.sent(1)];
    world.work(epoch(0), places(2, 1));
    assert_eq!(world.event(), None);
    assert!(!world.machine.wants(endpoint(0)));
    world.connect_all();
    // Shard 0 is served where shard 1 was; its parts go there.
    assert_eq!(world.sent(1), before[0]);
    assert_eq!(world.sent(2), before[1]);
}

// ---- connections ----

#[test]
fn unacknowledged_frames_are_resent_in_order() {
    let mut world = World::new();
    world.hold(TASK);
    world.push(Unit::Task(TASK), 0, gradient(), false);
    world.push(Unit::Task(TASK), 1, gradient(), false);
    let sent = world.sent(0);
    world.acknowledge(&sent[..1]);
    world.machine.closed(endpoint(0), Closed::Broke, 0);
    let member = Member { slot: Slot::pserver(0), incarnation: Incarnation(1) };
    assert_eq!(world.event(), Some(ClientEvent::Unreachable { member, refused: false }));
    assert_eq!(world.event(), Some(ClientEvent::Outages { members: vec![(member, 0)] }));
    world.push(Unit::Task(TASK), 2, gradient(), false);
    assert!(world.machine.next_frame(endpoint(0)).is_none());
    world.now_ms = world.machine.next_deadline().expect("a reconnect is due");
    world.connect_all();
    let again = world.sent(0);
    assert_eq!(again[..sent.len() - 1], sent[1..]);
    assert!(again[sent.len() - 1..].iter().all(|h| h.step == Step(2)));
}

#[test]
fn outage_is_reported_once_and_a_refusal_once_more() {
    let mut world = World::new();
    let mut reported = Vec::new();
    for how in [Closed::Broke, Closed::Failed, Closed::Refused, Closed::Refused, Closed::NotMember]
    {
        world.machine.closed(endpoint(1), how, world.now_ms);
        world.now_ms = world.machine.next_deadline().expect("another try is due");
        assert_eq!(world.machine.next_connect(world.now_ms), Some(endpoint(1)));
        reported.extend(std::iter::from_fn(|| world.machine.next_event()));
    }
    let refused: Vec<_> = reported
        .iter()
        .filter_map(|event| match event {
            ClientEvent::Unreachable { refused, .. } => Some(*refused),
            _ => None,
        })
        .collect();
    assert_eq!(refused, [false, true]);
}

/// The last list of outages among the events.
fn outages(world: &mut World) -> Option<Vec<(Member, u64)>> {
    std::iter::from_fn(|| world.machine.next_event())
        .filter_map(|event| match event {
            ClientEvent::Outages { members } => Some(members),
            _ => None,
        })
        .last()
}

#[test]
fn outage_is_listed_until_the_connection_is_open() {
    let mut world = World::new();
    let member = Member { slot: Slot::pserver(0), incarnation: Incarnation(1) };
    world.machine.closed(endpoint(0), Closed::Broke, 0);
    assert_eq!(outages(&mut world), Some(vec![(member, 0)]));
    for _ in 0..3 {
        world.now_ms = world.machine.next_deadline().expect("another try is due");
        assert_eq!(world.machine.next_connect(world.now_ms), Some(endpoint(0)));
        world.machine.closed(endpoint(0), Closed::Failed, world.now_ms);
    }
    assert_eq!(outages(&mut world), None, "nothing has changed");
    world.now_ms = world.machine.next_deadline().expect("another try is due");
    world.connect_all();
    assert_eq!(outages(&mut world), Some(Vec::new()));
}

#[test]
fn s38_open_connection_without_a_path_is_an_outage() {
    let mut world = World::new();
    world.hold(TASK);
    assert!(!world.machine.awaits(endpoint(0)));
    world.push(Unit::Task(TASK), 0, gradient(), false);
    let _sent = world.sent(0);
    assert!(world.machine.awaits(endpoint(0)));
    let member = Member { slot: Slot::pserver(0), incarnation: Incarnation(1) };
    world.machine.probed(endpoint(0), Some(4_000), 6_500);
    assert_eq!(outages(&mut world), Some(vec![(member, 2_500)]));
    world.machine.closed(endpoint(0), Closed::Broke, 9_000);
    assert_eq!(outages(&mut world), None, "it is the same outage");
    world.now_ms = world.machine.next_deadline().expect("another try is due");
    world.connect_all();
    assert_eq!(outages(&mut world), Some(Vec::new()));
    world.machine.probed(endpoint(0), Some(9_500), 12_000);
    world.machine.probed(endpoint(0), None, 12_500);
    assert_eq!(outages(&mut world), Some(Vec::new()), "it is whole again");
}

// ---- cuts ----

#[test]
fn barrier_follows_whole_steps_while_pulls_are_parked() {
    let mut world = World::new();
    world.hold(TASK);
    world.push(Unit::Task(TASK), 0, gradient(), false);
    world.pull(1, PullAt::Now, Rows::Range(0..8));
    world.on(DataRequest::Barrier { cut: cut(4), epoch: epoch(0) });
    world.push(Unit::Task(TASK), 1, gradient(), false);
    let Some(ClientEvent::AtBarrier { cut: at, tasks, .. }) = world.event() else {
        panic!("nothing holds it back")
    };
    assert_eq!((at, tasks.len(), tasks[0].task, tasks[0].step), (cut(4), 1, TASK, Step(0)));
    for n in 0..2 {
        let sent = world.sent(n);
        let barrier =
            sent.iter().position(|h| h.kind == Kind::Barrier).expect("one down every connection");
        assert_eq!(sent[barrier].cut, cut(4));
        assert!(sent[..barrier].iter().all(|h| h.kind == Kind::Pull || h.step == Step(0)));
        assert!(sent[barrier + 1..].iter().all(|h| h.step == Step(1)), "no step is split");
    }
}

#[test]
fn later_reports_carry_the_cut_and_barriers_repeat() {
    let mut world = World::new();
    world.hold(TASK);
    world.push(Unit::Task(TASK), 0, gradient(), false);
    world.on(DataRequest::Barrier { cut: cut(2), epoch: epoch(0) });
    let first = world.event();
    let parts: Vec<_> = [world.sent(0), world.sent(1)]
        .concat()
        .into_iter()
        .filter(|h| h.kind == Kind::Push)
        .collect();
    world.acknowledge(&parts);
    assert!(
        matches!(world.event(), Some(ClientEvent::Reached { cut: said, .. }) if said == cut(2))
    );
    world.on(DataRequest::Barrier { cut: cut(2), epoch: epoch(0) });
    assert_eq!(world.event(), first, "positions of the barrier, not of now");
    assert!(world.kinds(0).is_empty());
    world.on(DataRequest::Barrier { cut: cut(1), epoch: epoch(0) });
    world.on(DataRequest::Barrier { cut: cut(3), epoch: epoch(1) });
    assert_eq!(world.event(), None, "an older cut and another epoch's are nothing");
}

#[test]
fn barrier_is_resent_until_a_later_frame_is_answered() {
    let mut world = World::new();
    world.hold(TASK);
    world.on(DataRequest::Barrier { cut: cut(2), epoch: epoch(0) });
    assert_eq!(world.kinds(0), [Kind::Barrier]);
    let reopen = |world: &mut World| {
        world.machine.closed(endpoint(0), Closed::Broke, world.now_ms);
        world.now_ms = world.machine.next_deadline().expect("a reconnect is due");
        world.connect_all();
        world.sent(0)
    };
    assert_eq!(reopen(&mut world)[0].kind, Kind::Barrier);
    world.push(Unit::Task(TASK), 0, gradient(), false);
    let parts = world.sent(0);
    world.acknowledge(&parts[..1]);
    assert!(reopen(&mut world).iter().all(|h| h.kind == Kind::Push));
}

// ---- faults ----

#[test]
fn mismatched_reply_is_a_fault() {
    let mut world = World::new();
    world.pull(1, PullAt::Now, Rows::Range(0..8));
    let pulls = [world.sent(0), world.sent(1)].concat();
    let mut short = pulls[0].reply(Kind::Values, Status::Ok);
    short.value_bytes = 4;
    assert!(world.machine.destination(endpoint(0), &short).is_none());
    world.machine.frame(endpoint(0), &short, 0);
    assert!(matches!(world.event(), Some(ClientEvent::Fault(Fault::Answer { .. }))));
    world.refuse(&pulls[1], Status::BadRange);
    assert!(matches!(
        world.event(),
        Some(ClientEvent::Fault(Fault::Refused { status: Status::BadRange, .. }))
    ));
}

proptest! {
    #[test]
    fn arbitrary_replies_do_not_panic(
        answers in prop::collection::vec(
            (0u64..40, 0u16..4, 32u16..36, 0u16..15, 0u64..3, 0u16..256, 0u32..3),
            0..200,
        ),
    ) {
        let mut world = World::new();
        world.hold(TASK);
        world.push(Unit::Task(TASK), 0, gradient(), false);
        world.pull(1, PullAt::Now, Rows::Range(0..8));
        let era = world.era();
        world.on(DataRequest::TakeOver { era, grant: grant(LANE, 1) });
        for (request, shard, kind, status, step, flags, values) in answers {
            for n in 0..2 {
                world.sent(n);
            }
            let mut header = Header::new(Kind::from_u16(kind).expect("a reply"), epoch(0));
            header.request = request;
            header.shard = ShardId(u32::from(shard % 2));
            header.status = Status::from_u16(status).expect("a status");
            header.step = Step(step);
            header.flags = flags;
            header.value_bytes = values * 32;
            let values = vec![0.0; values as usize * 8];
            world.machine.frame_with(endpoint(shard / 2), &header, &values, world.now_ms);
            if let Some(due) = world.machine.next_deadline() {
                world.now_ms = world.now_ms.max(due);
                world.machine.timer(world.now_ms);
                world.connect_all();
            }
            while world.event().is_some() {}
        }
    }
}
