//! Reading libsvm beside a plain scan of the same text: a loop that reads every byte once, adds up labels, indices and
//! values, and checks nothing.
//!
//! `hashed` has 40 indices below a million per line, all values 1; `real` has values with three decimals. The table at
//! the end alternates between both readers, since on a shared machine only ratios of consecutive measurements are
//! meaningful. `HEDDLE_BENCH_QUICK=1` measures just enough to verify that it runs.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};
use heddle_bench::read::{parse, scan, text};

fn main() {
    let quick = std::env::var_os("HEDDLE_BENCH_QUICK").is_some();
    let mut criterion = Criterion::default().configure_from_args();
    if quick {
        criterion = criterion
            .sample_size(10)
            .warm_up_time(Duration::from_millis(100))
            .measurement_time(Duration::from_millis(300));
    }
    let rows = if quick { 2_000 } else { 50_000 };
    let texts = [("hashed", text(rows, false)), ("real", text(rows, true))];
    for (name, text) in &texts {
        let mut group = criterion.benchmark_group(*name);
        group.throughput(Throughput::Bytes(text.len() as u64));
        group.bench_function("read", |b| b.iter(|| parse(black_box(text))));
        group.bench_function("scan", |b| b.iter(|| scan(black_box(text))));
        group.finish();
    }
    criterion.final_summary();

    println!("\n| | read, GB/s | scan, GB/s | read / scan |\n| --- | --- | --- | --- |");
    for (name, text) in &texts {
        let (mut ours, mut plain) = (Vec::new(), Vec::new());
        for _ in 0..if quick { 5 } else { 41 } {
            ours.push(timed(|| parse(text).expect("the text is sound")));
            plain.push(timed(|| scan(text)));
        }
        let rate = |times: &mut Vec<Duration>| {
            times.sort();
            text.len() as f64 / times[times.len() / 2].as_secs_f64() / 1e9
        };
        let (ours, plain) = (rate(&mut ours), rate(&mut plain));
        println!("| {name} | {ours:.2} | {plain:.2} | {:.2} |", ours / plain);
    }
}

fn timed<T>(work: impl FnOnce() -> T) -> Duration {
    let start = Instant::now();
    black_box(work());
    start.elapsed()
}
