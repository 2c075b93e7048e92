//! How often the machine allocates memory for a step or a pull of two shards, once every buffer has its size. The caller's
//! buffers go round: gradients come back with the step that is reached, rows and values with the pull.

use std::net::SocketAddr;

use heddle_client::gradient::{Gradient, TableGradient};
use heddle_client::layout::{Layout, Rows, TableShape};
use heddle_client::machine::{
    ClientEvent, ClientMachine, DataRequest, Era, PullAt, PullId, PullItem, StepPush, Unit,
};
use heddle_protocol::control::{LaneGrant, Phase, ShardPlace, Sharing, TaskGrant};
use heddle_protocol::frame::{Header, Kind, Status};
use heddle_protocol::ids::{
    Epoch, Generation, HandOut, Incarnation, Lane, Member, PhaseNo, ShardId, Slot, Step, TableId,
    TaskAttempt, TaskId,
};
use heddle_protocol::job_spec::TableKind;
use heddle_protocol::metrics::LossSum;

const ROWS: u64 = 2_000;
const COLS: u32 = 4;
const SHARDS: u16 = 2;
const WARM_UP: u64 = 3;
const ROUNDS: u64 = 20;
const TASK: TaskId = TaskId(5);
const LANE: Lane = Lane(1);

/// A machine and the shards' answers.
struct Trainer {
    machine: ClientMachine,
    step: u64,
    pull: u64,
}

fn endpoint(shard: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 7000 + shard))
}

fn era() -> Era {
    Era { epoch: Epoch::first(Generation(1)), phase: PhaseNo(0) }
}

impl Trainer {
    fn new(sharing: Sharing) -> Self {
        let dense = TableShape { kind: TableKind::Dense, rows: ROWS, cols: COLS };
        let sparse = TableShape { kind: TableKind::Sparse, rows: 0, ..dense };
        let layout = Layout::new(u32::from(SHARDS), vec![dense, sparse]).expect("sound tables");
        let mut trainer = Self { machine: ClientMachine::new(layout), step: 0, pull: 0 };
        let place = |shard: u16| ShardPlace {
            shard: ShardId(u32::from(shard)),
            holder: Member { slot: Slot::pserver(u32::from(shard)), incarnation: Incarnation(1) },
            endpoint: endpoint(shard),
        };
        let places = (0..SHARDS).map(place).collect();
        let phase = Phase { no: era().phase, sharing };
        trainer.on(DataRequest::Work { epoch: era().epoch, phase, places });
        while let Some(endpoint) = trainer.machine.next_connect(0) {
            trainer.machine.opened(endpoint, 0);
        }
        match sharing {
            Sharing::Lanes { .. } => {
                let hand_out = HandOut { generation: Generation(1), count: 1 };
                let grant = LaneGrant { lane: LANE, hand_out };
                trainer.on(DataRequest::TakeOver { era: era(), grant });
            }
            Sharing::Queue | Sharing::ClockedQueue { .. } | Sharing::ReadOnly => {
                let grant = TaskGrant { task: TASK, attempt: TaskAttempt(1), start: Step(0) };
                trainer.on(DataRequest::HoldTask { era: era(), grant });
            }
        }
        trainer.answer_all();
        while trainer.machine.next_event().is_some() {}
        trainer
    }

    fn on(&mut self, request: DataRequest) {
        self.machine.on(request, 0);
    }

    /// Sends all frames and answers each at once.
    fn answer_all(&mut self) {
        let mut sent = true;
        while std::mem::take(&mut sent) {
            for shard in 0..SHARDS {
                while let Some(frame) = self.machine.next_frame(endpoint(shard)) {
                    sent = true;
                    let reply = answer(&frame.header);
                    // As a connection does: the frame is gone when its answer comes.
                    drop(frame);
                    if let Some(values) = self.machine.destination(endpoint(shard), &reply) {
                        values.fill(1.0);
                    }
                    self.machine.frame(endpoint(shard), &reply, 0);
                }
            }
        }
    }

    /// Pushes a step and returns its gradient.
    fn push(&mut self, unit: Unit, gradient: Gradient) -> Gradient {
        let (rows, loss) = (64, LossSum::default());
        let push = StepPush { step: Step(self.step), gradient, rows, loss, end: false };
        self.on(DataRequest::PushStep { era: era(), unit, push });
        self.answer_all();
        let Some(ClientEvent::Reached { step, gradient, .. }) = self.machine.next_event() else {
            panic!("every shard has acknowledged the step");
        };
        assert_eq!(step, Step(self.step));
        assert!(!gradient.tables.is_empty(), "its buffers come back");
        self.step += 1;
        gradient
    }

    /// Pulls items and returns them.
    fn pull(&mut self, items: Vec<PullItem>) -> Vec<PullItem> {
        self.pull += 1;
        let pull = PullId(self.pull);
        self.on(DataRequest::Pull { era: era(), pull, at: PullAt::Now, items });
        self.answer_all();
        let Some(ClientEvent::Pulled { items, .. }) = self.machine.next_event() else {
            panic!("every shard has sent its values");
        };
        items
    }
}

fn answer(header: &Header) -> Header {
    match header.kind {
        Kind::Pull => {
            let reply = header.reply(Kind::Values, Status::Ok);
            Header { value_bytes: header.count * COLS * 4, ..reply }
        }
        Kind::Query => header.reply(Kind::Progress, Status::Ok),
        _ => header.reply(Kind::Ack, Status::Ok),
    }
}

/// Rows of both shards: a range and keys of the dense table, positions of the sparse one.
fn rows() -> [(TableId, Rows); 3] {
    [
        (TableId(0), Rows::Range(0..ROWS)),
        (TableId(0), Rows::Keys((0..ROWS as u32).step_by(3).collect())),
        (TableId(1), Rows::Positions((0..100).map(|n| n * (u64::MAX / 100)).collect())),
    ]
}

/// Most allocations of a request after some to warm up. What it returns goes into the next one.
fn allocations<T: Default>(first: T, mut request: impl FnMut(T) -> T) -> u64 {
    let mut held = first;
    let mut most = 0;
    for round in 0..WARM_UP + ROUNDS {
        let counted = allocation_counter::measure(|| held = request(std::mem::take(&mut held)));
        most = if round < WARM_UP { 0 } else { counted.count_total.max(most) };
    }
    most
}

fn pushed(sharing: Sharing, unit: Unit) -> [u64; 3] {
    rows().map(|(table, rows)| {
        let mut trainer = Trainer::new(sharing);
        let values = vec![0.5; rows.len() * COLS as usize];
        let gradient = Gradient { tables: vec![TableGradient { table, rows, values }] };
        allocations(gradient, |gradient| trainer.push(unit, gradient))
    })
}

#[test]
fn steps_allocate_the_same_few_times_whatever_their_rows() {
    // The gradient that its frames share, the pieces of its rows, the frames, and the last frame of each shard.
    assert_eq!(pushed(Sharing::Queue, Unit::Task(TASK)), [4; 3]);
    // And the state of the lane's step.
    assert_eq!(pushed(Sharing::Lanes { lanes: 2 }, Unit::Lane(LANE)), [5; 3]);
}

#[test]
fn pulls_allocate_the_same_few_times_whatever_their_rows() {
    let counted = rows().map(|(table, rows)| {
        let mut trainer = Trainer::new(Sharing::Queue);
        let items = vec![PullItem { table, rows, values: Vec::new() }];
        allocations(items, |items| trainer.pull(items))
    });
    // The items while they wait and as they are returned, and the pieces of their rows; keys are shared by the frames.
    assert_eq!(counted, [3, 4, 4]);
}
