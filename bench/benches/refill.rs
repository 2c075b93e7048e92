//! The cost of a refill for pushing trainers: how long pushes take while a copy of their shard is sent to another pserver,
//! beside how long they take without a copy, and with one that is in sync, which is the usual state of a job with backups. At
//! 256 MB (16 MB with `HEDDLE_BENCH_QUICK=1`); both pservers are in this process.
//!
//! The pushes of all three kinds follow each other in each round, so that they meet the same moments of a shared machine.

use std::time::{Duration, Instant};

use heddle_bench::peer::{TrainerPeer, order_fill, pserver_and_receiver, take_in};
use heddle_bench::random::SplitMix;
use heddle_protocol::control::{Report, ShardReport};

/// Rows that a push names.
const KEYS: usize = 10_000;

fn main() {
    let is_quick = std::env::var_os("HEDDLE_BENCH_QUICK").is_some_and(|value| value != "0");
    let (bytes, rounds, pushes) = if is_quick { (16 << 20, 1, 50) } else { (256 << 20, 7, 400) };
    let rows: u64 = bytes / 4;
    println!("{} MB of parameters, one data thread, {rounds} refills\n", bytes >> 20);
    for keyed in [true, false] {
        let name = if keyed { "10,000 random rows" } else { "1 MiB dense" };
        let (mut alone, mut during, mut in_sync) = (Vec::new(), Vec::new(), Vec::new());
        let mut fills = Vec::new();
        for _ in 0..rounds {
            let pservers = pserver_and_receiver(rows).expect("two pservers");
            let mut peer = TrainerPeer::connect(pservers[0].endpoints()[0], 0).expect("it listens");
            let dense = vec![1e-6f32; 1 << 18];
            // Every page of the table is there before anything is measured.
            for start in (0..rows).step_by(dense.len()) {
                peer.push(start, &dense).expect("it is taken");
            }
            let (mut random, gradient) = (SplitMix(1), vec![1e-6f32; KEYS]);
            let mut streamed = 0u64;
            let mut push = |peer: &mut TrainerPeer| {
                if keyed {
                    let keys = random.keys(KEYS, rows);
                    timed(|| peer.push_keys(&keys, &gradient).expect("it is taken"))
                } else {
                    let start = streamed % rows;
                    streamed += dense.len() as u64;
                    timed(|| peer.push(start, &dense).expect("it is taken"))
                }
            };
            alone.extend((0..pushes).map(|_| push(&mut peer)));
            let started = Instant::now();
            order_fill(&pservers);
            let is_over = || {
                pservers[0].reports().try_iter().any(|up| {
                    matches!(up, Report::Shard { report: ShardReport::InSync { .. }, .. })
                })
            };
            while !is_over() {
                during.push(push(&mut peer));
            }
            fills.push(started.elapsed().as_secs_f64());
            take_in(&pservers);
            in_sync.extend((0..pushes).map(|_| push(&mut peer)));
        }
        fills.sort_by(f64::total_cmp);
        println!("{name}; a refill takes {:.2} s", fills[fills.len() / 2]);
        for (what, times) in
            [("without a copy", &mut alone), ("refill", &mut during), ("in sync", &mut in_sync)]
        {
            let [p50, p99] = quantiles(times);
            println!("  {what:>14}: {:>5} pushes, p50 {p50:.0} us, p99 {p99:.0} us", times.len());
        }
    }
}

/// The median and the 99th percentile, us.
fn quantiles(times: &mut [Duration]) -> [f64; 2] {
    times.sort_unstable();
    let at = |share: usize| times.get(times.len() * share / 100).map_or(0.0, Duration::as_secs_f64);
    [at(50) * 1e6, at(99) * 1e6]
}

fn timed(act: impl FnOnce()) -> Duration {
    let start = Instant::now();
    act();
    start.elapsed()
}
