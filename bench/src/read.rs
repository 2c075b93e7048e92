//! Reading libsvm beside a plain scan of the same text: a loop that reads every byte once, adds up labels, indices and
//! values, and checks nothing.
//!
//! A line has 40 indices below a million; all values are 1, or have three decimals.

use std::fmt::Write;
use std::hint::black_box;
use std::io;

use heddle_input::formats::words;
use heddle_input::{Batch, Labels, RecordFormat};
use heddle_protocol::job_spec::{DataFormat, LabelRange};

use crate::measurement::{Measurement, Samples, timed};
use crate::random::SplitMix;

const FORMAT: RecordFormat = RecordFormat {
    format: DataFormat::Libsvm,
    index_base: 1,
    features: 1_000_000,
    labels: Labels::Within(LabelRange::TwoClasses),
    table: None,
};
const FEATURES: usize = 40;
/// Records of a minibatch.
const ROWS: usize = 512;
/// Lines of the text: some 16 MB.
const LINES: usize = 50_000;

/// Gigabytes of text per second, medians of `rounds`.
///
/// # Errors
/// The parser refuses its text.
pub fn measure(rounds: usize) -> io::Result<Vec<Measurement>> {
    let mut measured = Vec::new();
    for (what, real) in [("libsvm, values 1", false), ("libsvm, three decimals", true)] {
        let text = text(LINES, real);
        let (mut ours, mut plain) = (Samples::default(), Samples::default());
        let rate = |time: std::time::Duration| text.len() as f64 / time.as_secs_f64() / 1e9;
        for _ in 0..rounds {
            let mut result = Ok(0);
            ours.add(rate(timed(|| result = parse(black_box(&text)))));
            black_box(result?);
            plain.add(rate(timed(|| {
                black_box(scan(black_box(&text)));
            })));
        }
        measured.push(Measurement::of_rates(what, "GB/s", &ours, "plain scan", &plain));
    }
    Ok(measured)
}

/// Lines of 40 random features with values 1, or with three decimals.
#[must_use]
pub fn text(lines: usize, real: bool) -> Vec<u8> {
    let mut random = SplitMix(7);
    let mut text = String::new();
    for _ in 0..lines {
        let mut indices: Vec<u64> =
            (0..FEATURES).map(|_| random.bits() % FORMAT.features + 1).collect();
        indices.sort_unstable();
        indices.dedup();
        text.push_str(if random.bits() & 1 == 0 { "0" } else { "1" });
        for index in indices {
            // Writing to a string cannot fail.
            let _ = match real {
                true => {
                    write!(text, " {index}:{:.3}", (random.bits() % 100_000) as f64 / 1000.0)
                }
                false => write!(text, " {index}:1"),
            };
        }
        text.push('\n');
    }
    text.into_bytes()
}

/// The trainer's parser: rows into a batch that is reused.
///
/// # Errors
/// The parser refuses a line.
pub fn parse(text: &[u8]) -> io::Result<usize> {
    let (mut batch, mut at, mut rows) = (Batch::default(), 0, 0);
    let mut lines = words::<true>(FORMAT);
    while at < text.len() {
        if batch.rows() == ROWS {
            rows += batch.rows();
            batch.clear();
        }
        at += lines
            .read_line(&text[at..], &mut batch)
            .map_err(|error| io::Error::other(error.to_string()))?
            .0;
    }
    Ok(rows + batch.rows())
}

/// The plain loop: number of lines, sum of indices, sum of labels and values. It panics on text that is not sound.
#[must_use]
pub fn scan(text: &[u8]) -> (u64, u64, f64) {
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
