//! The cost of a cut for pushing trainers: the pause, the first pushes after it, and the slow-down while the
//! snapshot is saved, at 1 GB (64 MB with `HEDDLE_BENCH_QUICK=1`).
//!
//! Not a criterion benchmark: a cut happens once and what follows it differs from push to push.

use std::time::{Duration, Instant};

use heddle_bench::peer::{EPOCH, TrainerPeer, cut, pserver, wait};
use heddle_protocol::control::{
    Command, CutAt, EndCut, PserverCommand, PserverReport, Report, ShardCommand, ShardReport,
    TakeCut,
};
use heddle_protocol::ids::PhaseNo;
use heddle_pserver::standalone::Standalone;

/// Rows that a push names.
const KEYS: usize = 10_000;

/// Whether to measure just enough to see that it runs.
fn is_quick() -> bool {
    std::env::var_os("HEDDLE_BENCH_QUICK").is_some_and(|value| value != "0")
}

fn main() {
    let bytes: u64 = if is_quick() { 64 << 20 } else { 1 << 30 };
    let rows = bytes / 4;
    let server = pserver(rows, bytes / 4, 1).expect("a pserver");
    let mut peer = TrainerPeer::connect(server.endpoints()[0], 0).expect("it listens");
    let pushes = if is_quick() { 50 } else { 400 };
    let mut random = Random(1);
    let gradient = vec![1e-6f32; KEYS];
    let dense = vec![1e-6f32; 1 << 18];
    // Every page of the table is there before anything is measured.
    for start in (0..rows).step_by(dense.len()) {
        peer.push(start, &dense).expect("it is taken");
    }
    let mut scattered = |peer: &mut TrainerPeer| {
        let keys = random.keys(rows);
        timed(|| peer.push_keys(&keys, &gradient).expect("it is taken"))
    };
    let mut streamed = 0u64;
    let mut stream = |peer: &mut TrainerPeer| {
        let start = streamed % rows;
        streamed += dense.len() as u64;
        timed(|| peer.push(start, &dense).expect("it is taken"))
    };
    println!("{} MB of parameters, one data thread\n", bytes >> 20);

    let calm: Vec<_> = (0..pushes).map(|_| scattered(&mut peer)).collect();
    report("10,000 random rows, no cut", &calm);
    let calm_dense: Vec<_> = (0..pushes).map(|_| stream(&mut peer)).collect();
    report("1 MiB dense, no cut", &calm_dense);

    let dir = tempfile::tempdir().expect("a directory");
    saved_alone(bytes, dir.path());
    for (number, name) in [(1, "10,000 random rows"), (2, "1 MiB dense")] {
        let taken = take_cut(&server, number, dir.path());
        let first = if number == 1 { scattered(&mut peer) } else { stream(&mut peer) };
        println!("cut {number}: command to snapshot {:.0} us", taken.as_secs_f64() * 1e6);
        report(&format!("{name}, the first push after the cut"), &[first]);
        let started = Instant::now();
        let mut during = Vec::new();
        while server.reports().is_empty() {
            during.push(if number == 1 { scattered(&mut peer) } else { stream(&mut peer) });
        }
        wait(&server, |up| matches!(up, Report::Pserver(PserverReport::Saved { .. })))
            .expect("saved");
        let saved = started.elapsed();
        report(&format!("{name}, while it is saved"), &during);
        println!(
            "saved in {:.2} s, {:.2} GB/s\n",
            saved.as_secs_f64(),
            bytes as f64 / saved.as_secs_f64() / 1e9
        );
        server.command(Command::Shards(ShardCommand::CutEnd(EndCut {
            cut: cut(number),
            committed: true,
        })));
        let after: Vec<_> = (0..pushes)
            .map(|_| if number == 1 { scattered(&mut peer) } else { stream(&mut peer) })
            .collect();
        report(&format!("{name}, while it is kept for a rollback"), &after);
    }
}

/// How fast a snapshot of eight shards is saved without pushes.
fn saved_alone(bytes: u64, dir: &std::path::Path) {
    const SHARDS: u32 = 8;
    let server = pserver(bytes / 4, 0, SHARDS).expect("a pserver");
    let started = Instant::now();
    take_cut(&server, 99, dir);
    for _ in 0..SHARDS {
        wait(&server, |up| matches!(up, Report::Pserver(PserverReport::Saved { .. })))
            .expect("saved");
    }
    let took = started.elapsed().as_secs_f64();
    println!(
        "eight shards, saved without pushes: {took:.2} s, {:.2} GB/s\n",
        bytes as f64 / took / 1e9
    );
}

fn take_cut(server: &Standalone, number: u32, dir: &std::path::Path) -> Duration {
    let staging = dir.join(format!("cut-{number}"));
    std::fs::create_dir(&staging).expect("a new directory");
    let command = Command::Pserver(PserverCommand::Cut(TakeCut {
        cut: cut(number),
        epoch: EPOCH,
        phase: PhaseNo(0),
        at: CutAt::Barriers(Vec::new()),
        staging: staging.display().to_string(),
        copies: Vec::new(),
        initial: false,
        last: false,
    }));
    timed(|| {
        server.command(command);
        wait(server, |up| {
            matches!(up, Report::Shard { report: ShardReport::SnapshotTaken { .. }, .. })
        })
        .expect("taken");
    })
}

fn report(name: &str, times: &[Duration]) {
    let mut us: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e6).collect();
    us.sort_unstable_by(f64::total_cmp);
    let (Some(last), n) = (us.last(), us.len()) else {
        return;
    };
    println!(
        "{name}: n {n}, p50 {:.0} us, p99 {:.0} us, max {last:.0} us",
        us[n / 2],
        us[n * 99 / 100]
    );
}

fn timed(act: impl FnOnce()) -> Duration {
    let start = Instant::now();
    act();
    start.elapsed()
}

/// SplitMix64 (Steele, Lea, Flood 2014): the same rows in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Distinct rows, ascending.
    fn keys(&mut self, rows: u64) -> Vec<u32> {
        let mut keys: Vec<u32> = (0..KEYS * 11 / 10).map(|_| (self.next() % rows) as u32).collect();
        keys.sort_unstable();
        keys.dedup();
        assert!(keys.len() >= KEYS, "few repeat among so many rows");
        keys.truncate(KEYS);
        keys
    }
}
