//! Rows of a shard under FTRL, without a network: push and pull of sorted random keys, beside a loop over the keys, and beside
//! the loads and stores of the same cells alone, which are what a push takes at least.

use std::hint::black_box;
use std::io;

use heddle_protocol::control::{LoadShards, Phase, Sharing};
use heddle_protocol::frame::{Header, Kind, flags};
use heddle_protocol::ids::{Epoch, Generation, Incarnation, Member, PhaseNo, ShardId, Slot, Step};
use heddle_protocol::job_spec::{Optimizer, TableKind, TableSpec, dense_table};
use heddle_shard::{Conn, Flow, Frame, Shard, ShardConfig, ShardEffect, ShardSet, SparseLimits};
use memmap2::{Advice, MmapMut};

use crate::measurement::{Measurement, Samples, timed};
use crate::random::SplitMix;

/// Keys of a request: the distinct features of 4,096 records of a click log.
pub const KEYS: usize = 26_000;
/// Rows of a dense table.
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
        let (mut shard, mut plain) = (BenchShard::dense()?, PlainTable::new()?);
        let mut times = [(); 5].map(|()| Samples::default());
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
            let mut result = Ok(());
            add(2, &mut || result = shard.pull(&keys));
            result?;
            // Each side pulls after its own push, which has loaded the rows.
            add(1, &mut || plain.apply(&keys, &sums));
            add(3, &mut || plain.gather(&keys));
            // With warm caches the loop over these keys has just loaded the cells.
            if cold {
                add(4, &mut || plain.touch(&keys, &sums));
            }
        }
        let [push, plain_push, pull, plain_pull, touch] = &times;
        let loops = "one key at a time";
        let what = |kind| format!("{kind} of {KEYS} keys of {ROWS}, {word}");
        measured.push(Measurement::of_times(what("push"), "ns/key", push, loops, plain_push));
        if cold {
            let cells = "loads and stores alone";
            measured.push(Measurement::of_times(what("push"), "ns/key", push, cells, touch));
        }
        measured.push(Measurement::of_times(what("pull"), "ns/key", pull, loops, plain_pull));
    }
    Ok(measured)
}

/// The rule of these measurements.
#[must_use]
pub fn ftrl() -> Optimizer {
    Optimizer::ftrl(f64::from(ALPHA), 1.0, 0.0, 0.0)
}

/// FTRL as a loop over keys, each of which waits for its own cells. They are in huge pages, like a shard's.
struct PlainTable([MmapMut; 3]);

impl PlainTable {
    fn new() -> io::Result<Self> {
        let plane = || {
            let memory = MmapMut::map_anon(ROWS as usize * size_of::<f32>())?;
            // Where the system refuses, the pages stay small, as in a shard.
            let _refused = memory.advise(Advice::HugePage);
            io::Result::Ok(memory)
        };
        Ok(Self([plane()?, plane()?, plane()?]))
    }

    /// Values, and the two numbers of each row's state.
    fn planes(&mut self) -> [&mut [f32]; 3] {
        self.0.each_mut().map(|memory| bytemuck::cast_slice_mut(memory))
    }

    /// Applies a sum of gradients to each of these rows.
    fn apply(&mut self, keys: &[u32], sums: &[f32]) {
        let [w, z, n] = self.planes();
        for (&key, g) in keys.iter().zip(sums) {
            let at = key as usize;
            let (w, z, n) = (&mut w[at], &mut z[at], &mut n[at]);
            let square = g * g;
            let root = (*n + square).sqrt();
            *z += g - (root - n.sqrt()) * (1.0 / ALPHA) * *w;
            *n += square;
            *w = if z.abs() <= 0.0 { 0.0 } else { -*z / ((1.0 + root) * (1.0 / ALPHA)) };
        }
    }

    /// Loads and stores the cells that a push does.
    fn touch(&mut self, keys: &[u32], sums: &[f32]) {
        let mut planes = self.planes();
        for (&key, g) in keys.iter().zip(sums) {
            for plane in &mut planes {
                plane[key as usize] += g;
            }
        }
    }

    fn gather(&mut self, keys: &[u32]) {
        let [w, ..] = self.planes();
        black_box(keys.iter().map(|&key| w[key as usize]).collect::<Vec<f32>>());
    }
}

/// A shard set with one shard of one table, in ASP, without sockets.
pub struct BenchShard {
    set: ShardSet,
    conn: Conn,
    step: u64,
    out: Vec<ShardEffect>,
    is_sparse: bool,
}

impl BenchShard {
    /// A dense table of [`ROWS`] rows.
    fn dense() -> io::Result<Self> {
        Self::new(dense_table(0, "weights", ROWS, 1, ftrl()), SparseLimits::default())
    }

    /// A sparse table of `cols` columns with room for `rows_max` rows.
    ///
    /// # Errors
    /// The shard refuses its trainer.
    pub fn sparse(cols: u32, optimizer: Optimizer, rows_max: u32) -> io::Result<Self> {
        let dense = dense_table(0, "weights", 0, cols, optimizer);
        let table = TableSpec { kind: TableKind::Sparse, ..dense };
        Self::new(table, SparseLimits { rows_max, ..SparseLimits::default() })
    }

    fn new(table: TableSpec, sparse: SparseLimits) -> io::Result<Self> {
        let refused = || io::Error::other("the shard refuses its trainer");
        let is_sparse = table.kind == TableKind::Sparse;
        let config = ShardConfig {
            shard: ShardId(0),
            shards: 1,
            tables: vec![table],
            sparse,
            seed: 0,
            training_from: PhaseNo(0),
            copy_bytes_max: 1 << 20,
            early_bytes_max: 1 << 20,
            waiting_bytes_max: usize::MAX,
            fill_values: 1 << 16,
        };
        let own = Member { slot: Slot::pserver(0), incarnation: Incarnation(1) };
        let (mut set, mut out) = (ShardSet::new(own, 0), Vec::new());
        let epoch = Epoch { generation: Generation(1), count: 1 };
        let phase = Phase { no: PhaseNo(0), sharing: Sharing::Queue };
        let member = Member { slot: Slot::trainer(0), incarnation: Incarnation(1) };
        set.members(&[member], &mut out);
        let load = LoadShards {
            epoch,
            shards: vec![ShardId(0)],
            base: None,
            phase,
            step: Step(0),
            lost: None,
            views: Vec::new(),
        };
        set.load(&load, &[ShardId(0)], &mut out).map_err(io::Error::other)?;
        set.install(epoch, Shard::new(&config), &mut out).map_err(io::Error::other)?;
        let conn = set.connect(member, &mut out).map_err(|_| refused())?;
        Ok(Self { set, conn, step: 0, out, is_sparse })
    }

    fn header(&self, kind: Kind, keys: &[u32]) -> Header {
        let mut header = Header::new(kind, self.set.epoch());
        let (positions, words) = if self.is_sparse { (flags::POSITIONS, 2) } else { (0, 1) };
        let last = match kind {
            Kind::Push => flags::LAST,
            _ => flags::FREE,
        };
        header.flags = flags::KEYS | positions | last;
        header.step = Step(self.step);
        (header.count, header.rows) = (keys.len() as u32 / words, 4_096);
        header.key_bytes = 4 * keys.len() as u32;
        header
    }

    /// Pushes sums of gradients. `keys` are ascending rows, or positions of a sparse table as two words each.
    ///
    /// # Errors
    /// The shard refuses it.
    pub fn push(&mut self, keys: &[u32], sums: &[f32]) -> io::Result<()> {
        let mut header = self.header(Kind::Push, keys);
        header.value_bytes = 4 * sums.len() as u32;
        self.out.clear();
        let frame = Frame { conn: self.conn, header, keys, values: sums };
        let flow = self.set.on_frame(&frame, &mut self.out);
        let is_ack = matches!(
            &self.out[..],
            [ShardEffect::Reply { header, .. }] if header.kind == Kind::Ack
        );
        self.step += 1;
        match flow == Flow::Taken && is_ack {
            true => Ok(()),
            false => Err(io::Error::other("the shard refuses a push")),
        }
    }

    /// Pulls these rows, named as for [`Self::push`].
    ///
    /// # Errors
    /// The shard refuses it.
    pub fn pull(&mut self, keys: &[u32]) -> io::Result<()> {
        let header = self.header(Kind::Pull, keys);
        let mut values = Vec::with_capacity(header.count as usize);
        let gathered = self.set.gather(&header, keys, &mut values);
        black_box(values);
        gathered.ok_or_else(|| io::Error::other("the shard refuses a pull"))
    }

    /// Bytes of the rows and the index of a sparse table.
    #[must_use]
    pub fn sparse_bytes(&self) -> u64 {
        let sizes = self.set.shards().flat_map(Shard::sparse_tables);
        sizes.map(|size| size.bytes).sum()
    }
}
