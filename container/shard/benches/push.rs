//! Pushes and pulls of sorted random keys to one shard, without sockets, beside the loop that applies one key at a time.
//!
//! Measured in turn in one run, medians of blocks: on a shared machine only ratios of neighbouring moments mean anything.
//! *Cold*: other memory was read before each request, as the cells of a table that is larger than the caches are.
//! `HEDDLE_BENCH_QUICK=1` measures just enough to see that it runs.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]

use std::hint::black_box;
use std::time::Instant;

use heddle_bench::random::SplitMix;
use heddle_bench::table::{BenchShard, KEYS, PlainTable, ROWS};

/// Memory that is read to empty the caches.
const OTHER_BYTES: usize = 64 << 20;

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
        let (mut bench, mut plain) =
            (BenchShard::dense().expect("it is accepted"), PlainTable::default());
        let mut times = [const { Vec::new() }; 3];
        let mut random = SplitMix(7);
        for _ in 0..rounds {
            let keys = random.keys(KEYS, ROWS);
            let sums: Vec<f32> = keys.iter().map(|_| random.centred()).collect();
            let evict = || {
                if cold {
                    black_box(other.iter().step_by(64).map(|&b| u64::from(b)).sum::<u64>());
                }
            };
            evict();
            times[0].push(nanos(|| plain.apply(&keys, &sums)));
            evict();
            times[1].push(nanos(|| bench.push(&keys, &sums).expect("taken")));
            evict();
            times[2].push(nanos(|| bench.pull(&keys).expect("answered")));
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
