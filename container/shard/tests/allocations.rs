//! How often requests allocate memory, once every buffer has its size: the way of a frame through the set, and of its values to
//! where they are written.

use heddle_protocol::control::{LoadShards, Phase, Sharing};
use heddle_protocol::frame::{Header, Kind, Status, flags};
use heddle_protocol::ids::{
    Epoch, Generation, Incarnation, Member, PhaseNo, ShardId, Slot, Step, TableId,
};
use heddle_protocol::job_spec::{Optimizer, TableKind, TableSpec, dense_table};
use heddle_shard::{
    Conn, Flow, Frame, PulledRows, Shard, ShardConfig, ShardEffect, ShardSet, SparseLimits,
};

const ROWS: u64 = 2_000;
const COLS: usize = 4;
/// Keys of a request of single rows.
const KEYS: u32 = 100;
const EPOCH: Epoch = Epoch { generation: Generation(1), count: 1 };
const DENSE: TableId = TableId(0);
const SPARSE: TableId = TableId(1);
const WARM_UP: u64 = 3;
const ROUNDS: u64 = 20;

/// A thread with one shard of a dense and a sparse table under FTRL, and one trainer.
struct Server {
    set: ShardSet,
    conn: Conn,
    out: Vec<ShardEffect>,
    /// Values of the last pull.
    pulled: Vec<f32>,
    /// Of the task or the lanes.
    step: u64,
}

/// Rows of a request.
#[derive(Clone, Copy)]
enum Asked<'a> {
    /// All of the dense table.
    All,
    Keys(&'a [u32]),
    /// Two words each.
    Positions(&'a [u32]),
}

impl Server {
    fn new(sharing: Sharing) -> Self {
        let tables =
            [TableKind::Dense, TableKind::Sparse].into_iter().zip(0..).map(|(kind, id)| {
                let rows = if kind == TableKind::Dense { ROWS } else { 0 };
                let ftrl = Optimizer::ftrl(0.2, 1.0, 0.0, 0.0);
                TableSpec { kind, ..dense_table(id, "w", rows, COLS as u32, ftrl) }
            });
        let config = ShardConfig {
            shard: ShardId(0),
            shards: 1,
            tables: tables.collect(),
            sparse: SparseLimits { rows_max: 1_000, ..SparseLimits::default() },
            seed: 0,
            training_from: PhaseNo(0),
            copy_bytes_max: 1 << 20,
            early_bytes_max: 1 << 20,
            waiting_bytes_max: usize::MAX,
            fill_values: 1 << 16,
        };
        let own = Member { slot: Slot::pserver(0), incarnation: Incarnation(1) };
        let (mut set, mut out) = (ShardSet::new(own, 0), Vec::new());
        let member = Member { slot: Slot::trainer(0), incarnation: Incarnation(1) };
        set.members(&[member], &mut out);
        let load = LoadShards {
            epoch: EPOCH,
            shards: vec![ShardId(0)],
            base: None,
            phase: Phase { no: PhaseNo(0), sharing },
            step: Step(0),
            lost: None,
            views: Vec::new(),
        };
        set.load(&load, &[ShardId(0)], &mut out).expect("the first epoch");
        set.install(EPOCH, Shard::new(&config), &mut out).expect("an initial shard fits");
        let conn = set.connect(member, &mut out).expect("it is a member");
        Self { set, conn, out, pulled: Vec::new(), step: 0 }
    }

    fn header(&self, kind: Kind, unit: u32, asked: Asked<'_>) -> Header {
        let mut header = Header::new(kind, EPOCH);
        (header.unit, header.step, header.rows) = (unit, Step(self.step), 64);
        header.flags = if kind == Kind::Push { flags::LAST } else { 0 };
        match asked {
            Asked::All => (header.table, header.count) = (DENSE, ROWS as u32),
            Asked::Keys(keys) => {
                header.flags |= flags::KEYS;
                (header.table, header.count) = (DENSE, keys.len() as u32);
            }
            Asked::Positions(words) => {
                header.flags |= flags::KEYS | flags::POSITIONS;
                (header.table, header.count) = (SPARSE, words.len() as u32 / 2);
            }
        }
        header
    }

    /// Passes a frame and reads the values that it asks for. Returns the status of the answer.
    fn pass(&mut self, mut header: Header, keys: &[u32], values: &[f32]) -> Status {
        (header.key_bytes, header.value_bytes) = (4 * keys.len() as u32, 4 * values.len() as u32);
        self.out.clear();
        self.pulled.clear();
        let frame = Frame { conn: self.conn, header, keys, values };
        assert_eq!(self.set.on_frame(&frame, &mut self.out), Flow::Taken);
        match &self.out[..] {
            [ShardEffect::Reply { header, .. }] => header.status,
            [ShardEffect::Values { header, rows: PulledRows::Range, .. }] => {
                self.pulled.extend(self.set.range(header).expect("of this step"));
                header.status
            }
            [ShardEffect::Values { header, rows: PulledRows::Keys(keys), .. }] => {
                self.set.gather(header, keys, &mut self.pulled).expect("of this step");
                header.status
            }
            other => panic!("one answer is due (got {other:?})"),
        }
    }

    fn push(&mut self, unit: u32, asked: Asked<'_>, values: &[f32]) -> Status {
        let header = self.header(Kind::Push, unit, asked);
        self.pass(header, asked.words(), &values[..header.count as usize * COLS])
    }

    fn pull(&mut self, asked: Asked<'_>) {
        let header = self.header(Kind::Pull, 0, asked);
        assert_eq!(self.pass(header, asked.words(), &[]), Status::Ok);
        assert_eq!(self.pulled.len(), header.count as usize * COLS);
    }

    fn done(&mut self, lane: u32) {
        let mut header = Header::new(Kind::Done, EPOCH);
        (header.unit, header.step, header.rows) = (lane, Step(self.step), 64);
        assert_eq!(self.pass(header, &[], &[]), Status::Ok);
    }

    /// A BSP step of two lanes, which push in this order; `asked` are the rows of each lane.
    fn lanes_step(&mut self, order: [u32; 2], asked: [Asked<'_>; 2], values: &[f32]) {
        for lane in order {
            assert_eq!(self.push(lane, asked[lane as usize], values), Status::Ok);
        }
        order.into_iter().for_each(|lane| self.done(lane));
        self.step += 1;
        assert_eq!(self.set.position(), Some((PhaseNo(0), Step(self.step))), "it is applied");
    }
}

impl<'a> Asked<'a> {
    fn words(self) -> &'a [u32] {
        match self {
            Self::All => &[],
            Self::Keys(words) | Self::Positions(words) => words,
        }
    }
}

/// Most allocations of a request after some to warm up.
fn allocations(mut request: impl FnMut()) -> u64 {
    (0..WARM_UP).for_each(|_| request());
    let count = |_| allocation_counter::measure(&mut request).count_total;
    (0..ROUNDS).map(count).max().unwrap_or_default()
}

/// Every `n`th row from `first` on.
fn keys(first: u32) -> Vec<u32> {
    (0..KEYS).map(|n| first + n * 3).collect()
}

/// Positions over the whole range.
fn positions() -> Vec<u32> {
    (0..KEYS).flat_map(|n| [n, n * (u32::MAX / KEYS)]).collect()
}

fn values() -> Vec<f32> {
    vec![0.25; ROWS as usize * COLS]
}

#[test]
fn asp_pushes_allocate_nothing() {
    let (keys, positions, values) = (keys(0), positions(), values());
    for asked in [Asked::All, Asked::Keys(&keys), Asked::Positions(&positions)] {
        let mut server = Server::new(Sharing::Queue);
        let fresh = allocations(|| {
            assert_eq!(server.push(0, asked, &values), Status::Ok);
            server.step += 1;
        });
        server.step -= 1;
        let repeated = allocations(|| assert_eq!(server.push(0, asked, &values), Status::Already));
        assert_eq!([fresh, repeated], [0, 0]);
    }
}

#[test]
fn pulls_allocate_no_more_than_the_copy_of_their_keys() {
    let (keys, positions, values) = (keys(0), positions(), values());
    let mut server = Server::new(Sharing::Queue);
    server.push(0, Asked::Positions(&positions), &values);
    assert_eq!(allocations(|| server.pull(Asked::All)), 0);
    // The values are read when the socket takes them, after the buffer that the keys came in has other bytes.
    assert_eq!(allocations(|| server.pull(Asked::Keys(&keys))), 1);
    assert_eq!(allocations(|| server.pull(Asked::Positions(&positions))), 1);
}

#[test]
fn bsp_steps_allocate_only_for_what_has_to_wait() {
    let (low, high, positions, values) = (keys(0), keys(1), positions(), values());
    let steps = |order, asked: [Asked<'_>; 2]| {
        let mut server = Server::new(Sharing::Lanes { lanes: 2 });
        allocations(|| server.lanes_step(order, asked, &values))
    };
    let (low, high) = (Asked::Keys(&low), Asked::Keys(&high));
    let positions = Asked::Positions(&positions);
    for asked in [[Asked::All; 2], [low; 2], [low, high], [positions; 2]] {
        assert_eq!(steps([0, 1], asked), 0, "lanes in order");
    }
    // A part that comes before those of a lower lane waits: its sums, the list of the lane's parts, and its keys.
    assert_eq!(steps([1, 0], [Asked::All; 2]), 2);
    assert_eq!(steps([1, 0], [low; 2]), 3);
    assert_eq!(steps([1, 0], [positions; 2]), 3);
}
