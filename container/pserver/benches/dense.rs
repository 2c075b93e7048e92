//! Dense push and pull over loopback, compared with raw TCP of the same sizes in the same run.
//!
//! Criterion measures each by itself; the table at the end alternates between ours and raw, since on
//! a shared machine only ratios of neighbouring moments mean anything. `HEDDLE_BENCH_QUICK=1` measures
//! just enough to see that it runs.

#[allow(dead_code, reason = "each benchmark uses its part of the rig")]
mod rig;

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};
use rig::{Peer, Raw, is_quick, pserver};

const SIZES: [(&str, usize); 3] = [("64 B", 64), ("1 MiB", 1 << 20), ("16 MiB", 16 << 20)];

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    if is_quick() {
        criterion = criterion
            .sample_size(10)
            .warm_up_time(Duration::from_millis(100))
            .measurement_time(Duration::from_millis(300));
    }
    let server = pserver(4 << 20, 0, 1);
    let mut peer = Peer::connect(server.endpoints()[0], 0);
    for (name, bytes) in SIZES {
        let mut values = vec![1e-6f32; bytes / 4];
        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function("push", |b| b.iter(|| peer.push(0, black_box(&values))));
        group.bench_function("pull", |b| b.iter(|| peer.pull(0, black_box(&mut values))));
        for (kind, is_push) in [("raw push", true), ("raw pull", false)] {
            let mut raw = Raw::start(bytes, is_push);
            group.bench_function(kind, |b| b.iter(|| raw.exchange(black_box(&mut values))));
        }
        group.finish();
    }
    criterion.final_summary();
    table(&mut peer);
}

/// Medians of alternating blocks.
fn table(peer: &mut Peer) {
    let rounds = if is_quick() { 20 } else { 300 };
    println!("\n| | ours p50 | p99 us | raw p50 | p99 us | ours / raw, throughput at p50 |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for (name, bytes) in SIZES {
        // Small exchanges are many to a block, so that switching between the two is not a part of it.
        let block = (1 << 20) / bytes.max(1 << 14);
        for is_push in [true, false] {
            let mut values = vec![1e-6f32; bytes / 4];
            let mut raw = Raw::start(bytes, is_push);
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            for _ in 0..rounds {
                for _ in 0..block.max(1) {
                    ours.push(timed(|| match is_push {
                        true => peer.push(0, &values),
                        false => peer.pull(0, &mut values),
                    }));
                }
                for _ in 0..block.max(1) {
                    theirs.push(timed(|| raw.exchange(&mut values)));
                }
            }
            let (ours, theirs) = (Spread::of(ours), Spread::of(theirs));
            let kind = if is_push { "push" } else { "pull" };
            println!(
                "| {kind} {name} | {:.1} | {:.1} | {:.1} | {:.1} | {:.2} |",
                ours.p50,
                ours.p99,
                theirs.p50,
                theirs.p99,
                theirs.p50 / ours.p50
            );
        }
    }
}

fn timed(exchange: impl FnOnce()) -> Duration {
    let start = Instant::now();
    exchange();
    start.elapsed()
}

/// Microseconds.
struct Spread {
    p50: f64,
    p99: f64,
}

impl Spread {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |part: usize| times[times.len() * part / 100].as_secs_f64() * 1e6;
        Self { p50: at(50), p99: at(99) }
    }
}
