//! Pushes and pulls of random positions to a sparse table of one shard, without sockets, with FTRL.
//!
//! The table is filled with 26,000 new rows a request, which is measured too; then requests name rows at random.
//! `HEDDLE_BENCH_ROWS=100000000` measures a larger table than the default of 10⁷ rows (48 bytes a row).
//! `HEDDLE_BENCH_QUICK=1` measures just enough to see that it runs.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]

use std::time::{Duration, Instant};

use heddle_bench::random::SplitMix;
use heddle_bench::requests::position_words;
use heddle_bench::table::{BenchShard, KEYS, ftrl};
use heddle_protocol::job_spec::position::position_of_key;

fn main() {
    let quick = std::env::var_os("HEDDLE_BENCH_QUICK").is_some();
    let wanted = std::env::var("HEDDLE_BENCH_ROWS").ok().and_then(|rows| rows.parse().ok());
    let largest: u64 = wanted.unwrap_or(if quick { 100_000 } else { 10_000_000 });
    let rounds = if quick { 3 } else { 200 };
    let rows_max = u32::try_from(largest + KEYS as u64).expect("below 2³²");
    let mut bench = BenchShard::sparse(1, ftrl(), rows_max).expect("it is accepted");
    println!("{KEYS} random positions a request, FTRL, medians of {rounds} requests\n");
    println!(
        "| rows | push, ns a key | pull, ns a key | longest request of new rows, ms | bytes a row beyond values and state |"
    );
    println!("| --- | --- | --- | --- | --- |");
    let mut random = SplitMix(7);
    let push = |bench: &mut BenchShard, words: &[u32]| {
        bench.push(words, &vec![0.25; words.len() / 2]).expect("taken");
    };
    let mut rows = 0;
    let mut longest = Duration::ZERO;
    for target in [largest / 100, largest / 10, largest] {
        while rows < target {
            let count = (target - rows).min(KEYS as u64);
            let words = position_words((rows..rows + count).map(position_of_key).collect());
            longest = longest.max(timed(|| push(&mut bench, &words)));
            rows += count;
        }
        let (mut pushes, mut pulls) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let mut request = || (0..KEYS).map(|_| position_of_key(random.bits() % rows)).collect();
            let words = position_words(request());
            pushes.push(
                timed(|| push(&mut bench, &words)).as_nanos() as f64 / (words.len() / 2) as f64,
            );
            let words = position_words(request());
            pulls.push(
                timed(|| bench.pull(&words).expect("answered")).as_nanos() as f64
                    / (words.len() / 2) as f64,
            );
        }
        let extra = bench.sparse_bytes() as f64 / rows as f64 - 12.0;
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
