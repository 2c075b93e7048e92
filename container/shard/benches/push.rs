//! Pushes and pulls of sorted random keys to one shard, without sockets, beside the loop that applies one key at a time.
//!
//! Measured in turn in one run, medians of blocks: on a shared machine only ratios of neighbouring moments mean anything.
//! *Cold*: other memory was read before each request, as the cells of a table that is larger than the caches are.
//! `HEDDLE_BENCH_QUICK=1` measures just enough to see that it runs.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]

use std::hint::black_box;
use std::time::Instant;

use heddle_protocol::control::{LoadShards, Phase, Sharing};
use heddle_protocol::frame::{Header, Kind, flags};
use heddle_protocol::ids::{Epoch, Generation, Incarnation, Member, PhaseNo, ShardId, Slot, Step};
use heddle_protocol::spec::{Optimizer, dense_table};
use heddle_shard::{Conn, Flow, Frame, Shard, ShardConfig, ShardEffect, ShardSet, SparseLimits};

/// Keys of a request: the distinct features of 4,096 records of a click log.
const KEYS: usize = 26_000;
const ROWS: u64 = 1_000_000;
/// Memory that is read to empty the caches.
const OTHER_BYTES: usize = 64 << 20;
const ALPHA: f32 = 0.2;

fn main() {
    let quick = std::env::var_os("HEDDLE_BENCH_QUICK").is_some();
    let rounds = if quick { 3 } else { 200 };
    let other = vec![1u8; OTHER_BYTES];
    println!(
        "{KEYS} sorted random keys of {ROWS} rows, FTRL, ns a key, medians of {rounds} requests\n"
    );
    println!("| caches | one key at a time | push | ratio | pull |");
    println!("| --- | --- | --- | --- | --- |");
    for cold in [false, true] {
        let (mut bench, mut plain) = (Bench::new(), Plain::new());
        let mut times = [const { Vec::new() }; 3];
        let mut random = Random(7);
        for _ in 0..rounds {
            let keys = random.keys();
            let sums: Vec<f32> = keys.iter().map(|_| random.unit() - 0.5).collect();
            let evict = || {
                if cold {
                    black_box(other.iter().step_by(64).map(|&b| u64::from(b)).sum::<u64>());
                }
            };
            evict();
            times[0].push(nanos(|| plain.apply(&keys, &sums)));
            evict();
            times[1].push(nanos(|| bench.push(&keys, &sums)));
            evict();
            times[2].push(nanos(|| bench.pull(&keys)));
        }
        let [before, push, pull] = times.map(median);
        let word = if cold { "cold" } else { "warm" };
        println!("| {word} | {before:.1} | {push:.1} | {:.2} | {pull:.1} |", push / before);
    }
}

fn nanos(work: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    work();
    begun.elapsed().as_nanos() as f64 / KEYS as f64
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// FTRL as a loop over keys, each of which waits for its own cells.
struct Plain {
    w: Vec<f32>,
    z: Vec<f32>,
    n: Vec<f32>,
}

impl Plain {
    fn new() -> Self {
        let zeros = || vec![0.0; ROWS as usize];
        Self { w: zeros(), z: zeros(), n: zeros() }
    }

    fn apply(&mut self, keys: &[u32], sums: &[f32]) {
        for (&key, g) in keys.iter().zip(sums) {
            let at = key as usize;
            let (w, z, n) = (&mut self.w[at], &mut self.z[at], &mut self.n[at]);
            let square = g * g;
            let root = (*n + square).sqrt();
            *z += g - (root - n.sqrt()) * (1.0 / ALPHA) * *w;
            *n += square;
            *w = if z.abs() <= 0.0 { 0.0 } else { -*z / ((1.0 + root) * (1.0 / ALPHA)) };
        }
    }
}

/// A shard set with one shard, in ASP.
struct Bench {
    set: ShardSet,
    conn: Conn,
    step: u64,
    out: Vec<ShardEffect>,
}

impl Bench {
    fn new() -> Self {
        let table =
            dense_table(0, "weights", ROWS, 1, Optimizer::ftrl(f64::from(ALPHA), 1.0, 0.0, 0.0));
        let config = ShardConfig {
            shard: ShardId(0),
            shards: 1,
            tables: vec![table],
            sparse: SparseLimits::default(),
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
        let missing = set.hold(&load, &[ShardId(0)], &mut out);
        assert_eq!(missing.expect("a later epoch").len(), 1);
        set.install(epoch, Shard::new(&config), &mut out).expect("initial values fit");
        let conn = set.connect(member, &mut out).expect("a member");
        Self { set, conn, step: 0, out }
    }

    fn header(&self, kind: Kind, keys: &[u32]) -> Header {
        let mut header = Header::new(kind, self.set.epoch());
        header.flags = flags::KEYS | flags::LAST | flags::FREE;
        header.step = Step(self.step);
        (header.count, header.rows) = (keys.len() as u32, 4_096);
        header.key_bytes = 4 * keys.len() as u32;
        header
    }

    fn push(&mut self, keys: &[u32], sums: &[f32]) {
        let mut header = self.header(Kind::Push, keys);
        header.flags = flags::KEYS | flags::LAST;
        header.value_bytes = 4 * sums.len() as u32;
        self.out.clear();
        let frame = Frame { conn: self.conn, header, keys, values: sums };
        assert_eq!(self.set.on_frame(&frame, &mut self.out), Flow::Taken);
        let taken = matches!(&self.out[..], [ShardEffect::Reply { header, .. }] if header.kind == Kind::Ack);
        assert!(taken, "{:?}", self.out.len());
        self.step += 1;
    }

    fn pull(&mut self, keys: &[u32]) {
        let header = self.header(Kind::Pull, keys);
        let mut values = Vec::with_capacity(keys.len());
        self.set.gather(&header, keys, &mut values).expect("the rows are here");
        black_box(values);
    }
}

/// A small generator (xorshift64*): the benchmark needs the same keys in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u32 << 24) as f32
    }

    fn keys(&mut self) -> Vec<u32> {
        let mut keys: Vec<u32> = Vec::with_capacity(KEYS + KEYS / 8);
        while keys.len() < KEYS {
            keys.extend((keys.len()..KEYS + 100).map(|_| (self.next() % ROWS) as u32));
            keys.sort_unstable();
            keys.dedup();
        }
        keys.truncate(KEYS);
        keys
    }
}
