//! Dense push and pull over loopback, compared with raw TCP of the same sizes in the same run.
//!
//! Criterion measures each by itself; the table at the end alternates between ours and raw, since on
//! a shared machine only ratios of neighbouring moments mean anything. `HEDDLE_BENCH_QUICK=1` measures
//! just enough to see that it runs.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput};
use heddle_bench::net::{self, SIZES};
use heddle_bench::peer::{TrainerPeer, pserver};
use heddle_bench::raw_peer::RawPeer;

/// Whether to measure just enough to see that it runs.
fn is_quick() -> bool {
    std::env::var_os("HEDDLE_BENCH_QUICK").is_some_and(|value| value != "0")
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    if is_quick() {
        criterion = criterion
            .sample_size(10)
            .warm_up_time(Duration::from_millis(100))
            .measurement_time(Duration::from_millis(300));
    }
    let server = pserver(4 << 20, 0, 1).expect("a pserver");
    let mut peer = TrainerPeer::connect(server.endpoints()[0], 0).expect("it listens");
    for (name, bytes) in SIZES {
        let mut values = vec![1e-6f32; bytes / 4];
        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function("push", |b| b.iter(|| peer.push(0, black_box(&values))));
        group.bench_function("pull", |b| b.iter(|| peer.pull(0, black_box(&mut values))));
        for (kind, is_push) in [("raw push", true), ("raw pull", false)] {
            let mut raw = RawPeer::start(bytes, is_push).expect("a port");
            group.bench_function(kind, |b| b.iter(|| raw.exchange(black_box(&mut values))));
        }
        group.finish();
    }
    criterion.final_summary();
    println!("\n| | ours p50 | p99 us | raw p50 | p99 us | ours / raw, throughput at p50 |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for one in net::measure(if is_quick() { 20 } else { 300 }).expect("it runs") {
        println!(
            "| {} | {:.1} | {:.1} | {:.1} | {:.1} | {:.2} |",
            one.what, one.heddle, one.heddle_p99, one.baseline_value, one.baseline_p99, one.ratio
        );
    }
}
