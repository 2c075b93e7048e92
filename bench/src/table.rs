//! Rows of a shard under FTRL, without a network: push and pull of sorted random keys, beside a loop over the keys, each of
//! which waits for its own cells.

use std::hint::black_box;
use std::io;

use heddle_protocol::control::{LoadShards, Phase, Sharing};
use heddle_protocol::frame::{Header, Kind, flags};
use heddle_protocol::ids::{Epoch, Generation, Incarnation, Member, PhaseNo, ShardId, Slot, Step};
use heddle_protocol::spec::{Optimizer, dense_table};
use heddle_shard::{Conn, Flow, Frame, Shard, ShardConfig, ShardEffect, ShardSet, SparseLimits};

use crate::measurement::{Measurement, Samples, timed};
use crate::random::SplitMix;

/// Keys of a request: the distinct features of 4,096 records of a click log.
const KEYS: usize = 26_000;
const ROWS: u64 = 1_000_000;
/// Memory that is read to empty the caches.
const OTHER_BYTES: usize = 64 << 20;
const ALPHA: f32 = 0.2;

/// Nanoseconds a key, medians of `rounds` requests.
///
/// # Errors
/// A shard refuses a request.
pub fn measure(rounds: usize) -> io::Result<Vec<Measurement>> {
    let other = vec![1u8; OTHER_BYTES];
    let mut measured = Vec::new();
    for (word, cold) in [("warm caches", false), ("cold caches", true)] {
        let (mut shard, mut plain) = (BenchShard::new()?, PlainTable::new());
        let mut times = [(); 4].map(|()| Samples::default());
        let mut random = SplitMix(7);
        for _ in 0..rounds {
            let keys = random.keys(KEYS, ROWS);
            let sums: Vec<f32> = keys.iter().map(|_| random.centred()).collect();
            let evict = || {
                if cold {
                    black_box(other.iter().step_by(64).map(|&byte| u64::from(byte)).sum::<u64>());
                }
            };
            let mut add = |at: usize, work: &mut dyn FnMut()| {
                evict();
                times[at].add(timed(work).as_nanos() as f64 / KEYS as f64);
            };
            let mut result = Ok(());
            add(0, &mut || result = shard.push(&keys, &sums));
            result?;
            add(1, &mut || plain.apply(&keys, &sums));
            let mut result = Ok(());
            add(2, &mut || result = shard.pull(&keys));
            result?;
            add(3, &mut || plain.gather(&keys));
        }
        let [push, plain_push, pull, plain_pull] = &times;
        let loops = "one key at a time";
        let what = |kind| format!("{kind} of {KEYS} keys of {ROWS}, {word}");
        measured.push(Measurement::of_times(what("push"), "ns/key", push, (loops, plain_push)));
        measured.push(Measurement::of_times(what("pull"), "ns/key", pull, (loops, plain_pull)));
    }
    Ok(measured)
}

/// FTRL as a loop over keys, each of which waits for its own cells.
struct PlainTable {
    w: Vec<f32>,
    z: Vec<f32>,
    n: Vec<f32>,
}

impl PlainTable {
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

    fn gather(&self, keys: &[u32]) {
        black_box(keys.iter().map(|&key| self.w[key as usize]).collect::<Vec<f32>>());
    }
}

/// A shard set with one shard, in ASP.
struct BenchShard {
    set: ShardSet,
    conn: Conn,
    step: u64,
    out: Vec<ShardEffect>,
}

impl BenchShard {
    fn new() -> io::Result<Self> {
        let refused = || io::Error::other("the shard refuses its trainer");
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
        set.hold(&load, &[ShardId(0)], &mut out).map_err(io::Error::other)?;
        set.install(epoch, Shard::new(&config), &mut out).map_err(io::Error::other)?;
        let conn = set.connect(member, &mut out).map_err(|_| refused())?;
        Ok(Self { set, conn, step: 0, out })
    }

    fn header(&self, kind: Kind, keys: &[u32]) -> Header {
        let mut header = Header::new(kind, self.set.epoch());
        header.flags = flags::KEYS | flags::LAST | flags::FREE;
        header.step = Step(self.step);
        (header.count, header.rows) = (keys.len() as u32, 4_096);
        header.key_bytes = 4 * keys.len() as u32;
        header
    }

    fn push(&mut self, keys: &[u32], sums: &[f32]) -> io::Result<()> {
        let mut header = self.header(Kind::Push, keys);
        header.flags = flags::KEYS | flags::LAST;
        header.value_bytes = 4 * sums.len() as u32;
        self.out.clear();
        let frame = Frame { conn: self.conn, header, keys, values: sums };
        let flow = self.set.on_frame(&frame, &mut self.out);
        let is_ack = matches!(&self.out[..], [ShardEffect::Reply { header, .. }] if header.kind == Kind::Ack);
        self.step += 1;
        match flow == Flow::Taken && is_ack {
            true => Ok(()),
            false => Err(io::Error::other("the shard refuses a push")),
        }
    }

    fn pull(&mut self, keys: &[u32]) -> io::Result<()> {
        let header = self.header(Kind::Pull, keys);
        let mut values = Vec::with_capacity(keys.len());
        let gathered = self.set.gather(&header, keys, &mut values);
        black_box(values);
        gathered.ok_or_else(|| io::Error::other("the shard refuses a pull"))
    }
}
