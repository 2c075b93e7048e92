//! Pushes and pulls of random positions to a sparse table of one shard, without sockets, with FTRL.
//!
//! The table is filled with 26,000 new rows a request, which is measured too; then requests name rows at random.
//! `HEDDLE_BENCH_ROWS=100000000` measures a larger table than the default of 10⁷ rows (48 bytes a row).
//! `HEDDLE_BENCH_QUICK=1` measures just enough to see that it runs.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use heddle_protocol::control::{LoadShards, Phase, Sharing};
use heddle_protocol::frame::{Header, Kind, flags};
use heddle_protocol::ids::{Epoch, Generation, Incarnation, Member, PhaseNo, ShardId, Slot, Step};
use heddle_protocol::spec::position::position_of_key;
use heddle_protocol::spec::{Optimizer, TableFull, TableKind, TableSpec, dense_table};
use heddle_shard::{Conn, Flow, Frame, Shard, ShardConfig, ShardEffect, ShardSet, SparseLimits};

/// Positions of a request.
const KEYS: usize = 26_000;

fn main() {
    let quick = std::env::var_os("HEDDLE_BENCH_QUICK").is_some();
    let wanted = std::env::var("HEDDLE_BENCH_ROWS").ok().and_then(|rows| rows.parse().ok());
    let largest: u64 = wanted.unwrap_or(if quick { 100_000 } else { 10_000_000 });
    let rounds = if quick { 3 } else { 200 };
    let mut bench = Bench::new(largest + KEYS as u64);
    println!("{KEYS} random positions a request, FTRL, medians of {rounds} requests\n");
    println!(
        "| rows | push, ns a key | pull, ns a key | longest request of new rows, ms | bytes a row beyond values and state |"
    );
    println!("| --- | --- | --- | --- | --- |");
    let mut random = Random(7);
    let mut rows = 0;
    let mut longest = Duration::ZERO;
    for target in [largest / 100, largest / 10, largest] {
        while rows < target {
            let count = (target - rows).min(KEYS as u64);
            let words = positions((rows..rows + count).map(position_of_key).collect());
            longest = longest.max(timed(|| bench.push(&words)));
            rows += count;
        }
        let (mut pushes, mut pulls) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let mut request = || (0..KEYS).map(|_| position_of_key(random.next() % rows)).collect();
            let words = positions(request());
            pushes.push(timed(|| bench.push(&words)).as_nanos() as f64 / (words.len() / 2) as f64);
            let words = positions(request());
            pulls.push(timed(|| bench.pull(&words)).as_nanos() as f64 / (words.len() / 2) as f64);
        }
        let extra = bench.bytes() as f64 / rows as f64 - 12.0;
        println!(
            "| {rows} | {:.0} | {:.0} | {:.1} | {extra:.1} |",
            median(pushes),
            median(pulls),
            longest.as_secs_f64() * 1e3
        );
    }
}

fn timed(work: impl FnOnce()) -> Duration {
    let begun = Instant::now();
    work();
    begun.elapsed()
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Sorted distinct positions as the words of a frame.
fn positions(mut positions: Vec<u64>) -> Vec<u32> {
    positions.sort_unstable();
    positions.dedup();
    positions.into_iter().flat_map(|p| [p as u32, (p >> 32) as u32]).collect()
}

/// A shard set with one shard, in ASP.
struct Bench {
    set: ShardSet,
    conn: Conn,
    step: u64,
    out: Vec<ShardEffect>,
}

impl Bench {
    fn new(rows_max: u64) -> Self {
        let table = dense_table(0, "weights", 0, 1, Optimizer::ftrl(0.2, 1.0, 0.0, 0.0));
        let rows_max = u32::try_from(rows_max).expect("below 2³²");
        let config = ShardConfig {
            shard: ShardId(0),
            shards: 1,
            tables: vec![TableSpec { kind: TableKind::Sparse, ..table }],
            sparse: SparseLimits { rows_max, when_full: TableFull::Fail },
            seed: 0,
            training_from: PhaseNo(0),
            copy_bytes_max: 1 << 20,
            early_bytes_max: 1 << 20,
            waiting_bytes_max: usize::MAX,
        };
        let (mut set, mut out) = (ShardSet::new(), Vec::new());
        let epoch = Epoch { generation: Generation(1), count: 1 };
        let phase = Phase { no: PhaseNo(0), sharing: Sharing::Queue };
        let member = Member { slot: Slot::trainer(0), incarnation: Incarnation(1) };
        set.members(&[member], &mut out);
        let load = LoadShards { epoch, shards: vec![ShardId(0)], base: None, phase, step: Step(0) };
        set.hold(&load, &[ShardId(0)], &mut out).expect("a later epoch");
        set.install(epoch, Shard::new(&config), &mut out).expect("initial values fit");
        let conn = set.connect(member, &mut out).expect("a member");
        Self { set, conn, step: 0, out }
    }

    fn header(&self, kind: Kind, words: &[u32]) -> Header {
        let mut header = Header::new(kind, self.set.epoch());
        header.flags = flags::KEYS | flags::POSITIONS;
        header.step = Step(self.step);
        (header.count, header.rows) = (words.len() as u32 / 2, 4_096);
        header.key_bytes = 4 * words.len() as u32;
        header
    }

    fn push(&mut self, words: &[u32]) {
        let mut header = self.header(Kind::Push, words);
        header.flags |= flags::LAST;
        let sums = vec![0.25; words.len() / 2];
        header.value_bytes = 4 * sums.len() as u32;
        self.out.clear();
        let frame = Frame { conn: self.conn, header, keys: words, values: &sums };
        assert_eq!(self.set.on_frame(&frame, &mut self.out), Flow::Taken);
        let taken = matches!(&self.out[..], [ShardEffect::Reply { header, .. }] if header.kind == Kind::Ack);
        assert!(taken, "{} effects", self.out.len());
        self.step += 1;
    }

    fn pull(&mut self, words: &[u32]) {
        let mut header = self.header(Kind::Pull, words);
        header.flags |= flags::FREE;
        let mut values = Vec::with_capacity(words.len() / 2);
        self.set.gather(&header, words, &mut values).expect("the rows are here");
        black_box(values);
    }

    /// Bytes of the table's rows and index.
    fn bytes(&self) -> u64 {
        let sizes = self.set.shards().flat_map(Shard::sparse_tables);
        sizes.map(|size| size.bytes).sum()
    }
}

/// A small generator (xorshift64*): the benchmark needs the same positions in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}
