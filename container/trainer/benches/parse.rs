//! Reading libsvm beside a plain scan of the same text: a loop that reads every byte once, adds up labels, indices and
//! values, and checks nothing.
//!
//! `hashed` has 40 indices below a million per line, all values 1; `real` has values with three decimals. The table at
//! the end alternates between both readers, since on a shared machine only ratios of consecutive measurements are
//! meaningful. `HEDDLE_BENCH_QUICK=1` measures just enough to verify that it runs.

use std::fmt::Write;
use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};
use heddle_protocol::spec::{DataFormat, LabelRange};
use heddle_trainer::Batch;
use heddle_trainer::reader::{Labels, RecordFormat};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

const FORMAT: RecordFormat = RecordFormat {
    format: DataFormat::Libsvm,
    index_base: 1,
    features: 1_000_000,
    labels: Labels::Within(LabelRange::TwoClasses),
};
const FEATURES: usize = 40;
/// Records of a minibatch.
const ROWS: usize = 512;

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
        group.bench_function("read", |b| b.iter(|| read(black_box(text))));
        group.bench_function("scan", |b| b.iter(|| scan(black_box(text))));
        group.finish();
    }
    criterion.final_summary();

    println!("\n| | read, GB/s | scan, GB/s | read / scan |\n| --- | --- | --- | --- |");
    for (name, text) in &texts {
        let (mut ours, mut plain) = (Vec::new(), Vec::new());
        for _ in 0..if quick { 5 } else { 41 } {
            ours.push(timed(|| read(text)));
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

/// The trainer's parser: rows into a batch that is reused.
fn read(text: &[u8]) -> usize {
    let (mut batch, mut at, mut rows) = (Batch::default(), 0, 0);
    while at < text.len() {
        if batch.rows() == ROWS {
            rows += batch.rows();
            batch.clear();
        }
        at += FORMAT.read_line(&text[at..], &mut batch).expect("the text is sound").0;
    }
    rows + batch.rows()
}

/// The plain loop.
fn scan(text: &[u8]) -> (u64, u64, f64) {
    let (mut rows, mut indices, mut values, mut at) = (0, 0, 0.0, 0);
    let digit = |at: usize| text[at].wrapping_sub(b'0');
    while at < text.len() {
        values += f64::from(digit(at));
        at += 1;
        while text[at] != b'\n' {
            at += 1;
            let (mut index, mut value, mut scale) = (0u64, 0.0, 1.0);
            while digit(at) <= 9 {
                index = index * 10 + u64::from(digit(at));
                at += 1;
            }
            at += 1;
            while digit(at) <= 9 {
                value = value * 10.0 + f64::from(digit(at));
                at += 1;
            }
            if text[at] == b'.' {
                at += 1;
                while digit(at) <= 9 {
                    value = value * 10.0 + f64::from(digit(at));
                    scale *= 10.0;
                    at += 1;
                }
            }
            indices += index;
            values += value / scale;
        }
        at += 1;
        rows += 1;
    }
    (rows, indices, values)
}

fn text(rows: usize, real: bool) -> Vec<u8> {
    let mut lots = ChaCha8Rng::from_seed([7; 32]);
    let mut text = String::new();
    for _ in 0..rows {
        let mut indices: Vec<u64> =
            (0..FEATURES).map(|_| lots.next_u64() % 1_000_000 + 1).collect();
        indices.sort_unstable();
        indices.dedup();
        text.push_str(if lots.next_u64() & 1 == 0 { "0" } else { "1" });
        for index in indices {
            // Writing to a string cannot fail.
            let _ = if real {
                write!(text, " {index}:{:.3}", (lots.next_u64() % 100_000) as f64 / 1000.0)
            } else {
                write!(text, " {index}:1")
            };
        }
        text.push('\n');
    }
    text.into_bytes()
}
