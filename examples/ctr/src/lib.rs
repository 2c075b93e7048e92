//! A generated click log: sparse records of which a known logistic model gives the labels.
//!
//! A record has one value for each of its fields. Each field has its own vocabulary, from ten values to a quarter of the
//! features, and draws from it by a power law: a few values are common, most are rare. The values of all fields are hashed
//! into one space of features, as a program that prepares a click log does it. The label is drawn with the probability that
//! the sum of the features' hidden weights gives. So the log has what makes click logs hard, and its size is free.
//!
//! All numbers come from the seed and from functions of `libm`: the same arguments give the same bytes on every machine.
//!
//! ```
//! use click_log::{ClickLog, Shape, Split};
//!
//! let shape = Shape { fields: 3, features: 100 };
//! let mut log = ClickLog::new(shape, 7, Split::Train);
//! let record = log.next_record();
//! assert!(record.features.len() <= 3 && record.features.is_sorted());
//! let mut line = Vec::new();
//! record.write_libsvm(&mut line);
//! assert!(line.ends_with(b":1\n"));
//! ```

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::Context;

/// Size of a record and of the feature space.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Fields of a record, at least 2.
    pub fields: u32,
    /// Features, at least 64.
    pub features: u32,
}

impl Default for Shape {
    /// 40 fields, a million features.
    fn default() -> Self {
        Self { fields: 40, features: 1_000_000 }
    }
}

/// Which records of a seed: both have the same hidden weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Records to train on.
    Train,
    /// Other records, to evaluate on.
    Test,
}

/// The source of records.
pub struct ClickLog {
    shape: Shape,
    random: Random,
    /// By feature.
    weights: Vec<f32>,
    /// By field: the logarithm of the number of its values.
    log_values: Vec<f64>,
    record: ClickRecord,
}

/// A record: its label and its features, all of which have the value 1.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClickRecord {
    /// Whether the record is a click.
    pub clicked: bool,
    /// Ascending, each once, from 1 to the number of features.
    pub features: Vec<u32>,
}

impl ClickLog {
    /// The records of a seed.
    ///
    /// # Panics
    /// With fewer than 2 fields or 64 features.
    #[must_use]
    pub fn new(shape: Shape, seed: u64, split: Split) -> Self {
        assert!(shape.fields >= 2 && shape.features >= 64, "2 fields and 64 features at least");
        let stream = u64::from(split == Split::Test);
        let (fewest, most) = (libm::log(10.0), libm::log(f64::from(shape.features) / 4.0));
        let step = (most - fewest) / f64::from(shape.fields - 1);
        Self {
            shape,
            random: Random(mix(seed ^ stream << 32)),
            weights: (0..shape.features).map(|feature| hidden_weight(seed, feature)).collect(),
            log_values: (0..shape.fields).map(|field| fewest + step * f64::from(field)).collect(),
            record: ClickRecord::default(),
        }
    }

    /// The next record.
    pub fn next_record(&mut self) -> &ClickRecord {
        let Self { shape, random, weights, log_values, record } = self;
        record.features.clear();
        for (field, log_values) in (1u64..).zip(&*log_values) {
            let u = random.unit();
            let value = libm::exp(u * u * log_values) as u64;
            record.features.push((mix(field << 40 ^ value) % u64::from(shape.features)) as u32);
        }
        record.features.sort_unstable();
        record.features.dedup();
        let sum: f64 = record.features.iter().map(|&at| f64::from(weights[at as usize])).sum();
        record.clicked = random.unit() < 1.0 / (1.0 + libm::exp(BIAS - sum));
        for feature in &mut record.features {
            *feature += 1;
        }
        record
    }

    /// Writes the next `rows` records as libsvm text, and the same to `vw` for Vowpal Wabbit. Returns the number of clicks.
    ///
    /// # Errors
    /// A file cannot be created or written; the error names it.
    pub fn write_files(
        mut self,
        rows: u64,
        libsvm: &Path,
        vw: Option<&Path>,
    ) -> anyhow::Result<u64> {
        let mut libsvm = RecordFile::create(libsvm)?;
        let mut vw = vw.map(RecordFile::create).transpose()?;
        let (mut line, mut clicks) = (Vec::new(), 0);
        for _ in 0..rows {
            let record = self.next_record();
            clicks += u64::from(record.clicked);
            line.clear();
            record.write_libsvm(&mut line);
            libsvm.write(&line)?;
            if let Some(vw) = &mut vw {
                line.clear();
                record.write_vw(&mut line);
                vw.write(&line)?;
            }
        }
        libsvm.close()?;
        vw.map_or(Ok(()), RecordFile::close)?;
        Ok(clicks)
    }
}

/// Clicks are the rarer label.
const BIAS: f64 = 1.0;
/// Standard deviation of the hidden weights.
const WEIGHT_DEVIATION: f64 = 0.35;

impl ClickRecord {
    fn label(&self) -> &'static str {
        if self.clicked { "1" } else { "-1" }
    }

    /// Appends the record as a line of libsvm text.
    pub fn write_libsvm(&self, out: &mut Vec<u8>) {
        self.write(out, "", ":1");
    }

    /// Appends the record as a line for Vowpal Wabbit.
    pub fn write_vw(&self, out: &mut Vec<u8>) {
        self.write(out, " |", "");
    }

    fn write(&self, out: &mut Vec<u8>, after_label: &str, after_feature: &str) {
        // Writing to a vector never fails.
        let _infallible = write!(out, "{}{after_label}", self.label());
        for feature in &self.features {
            let _infallible = write!(out, " {feature}{after_feature}");
        }
        out.push(b'\n');
    }
}

/// A file whose errors name it.
struct RecordFile {
    file: BufWriter<File>,
    path: String,
}

impl RecordFile {
    fn create(path: &Path) -> anyhow::Result<Self> {
        let file =
            File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self { file: BufWriter::with_capacity(1 << 20, file), path: path.display().to_string() })
    }

    fn write(&mut self, line: &[u8]) -> anyhow::Result<()> {
        self.file.write_all(line).with_context(|| format!("cannot write {}", self.path))
    }

    fn close(mut self) -> anyhow::Result<()> {
        self.file.flush().with_context(|| format!("cannot write {}", self.path))
    }
}

/// The weight of a feature: normal, from the seed and the number alone (Box and Muller).
fn hidden_weight(seed: u64, feature: u32) -> f32 {
    let first = mix(seed ^ u64::from(feature) << 20);
    let (u, v) = (unit_of(first), unit_of(mix(first)));
    let normal = libm::sqrt(-2.0 * libm::log(1.0 - u)) * libm::cos(std::f64::consts::TAU * v);
    (WEIGHT_DEVIATION * normal) as f32
}

/// A generator whose state is a counter.
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        unit_of(mix(self.0))
    }
}

/// The top 53 bits as a number of `[0, 1)`.
fn unit_of(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014).
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_have_other_records_of_the_same_model() {
        let shape = Shape { fields: 10, features: 1_000 };
        let mut train = ClickLog::new(shape, 1, Split::Train);
        let mut test = ClickLog::new(shape, 1, Split::Test);
        assert_eq!(train.weights, test.weights);
        assert_ne!(train.next_record(), test.next_record());
        let mut again = ClickLog::new(shape, 1, Split::Train);
        again.next_record();
        assert_eq!(train.next_record(), again.next_record());
    }

    #[test]
    fn labels_follow_the_hidden_model() {
        let mut log = ClickLog::new(Shape { fields: 20, features: 10_000 }, 3, Split::Train);
        let (mut clicks, mut expected) = (0.0, 0.0);
        for _ in 0..20_000 {
            log.next_record();
            let weight = |&feature: &u32| f64::from(log.weights[feature as usize - 1]);
            let sum: f64 = log.record.features.iter().map(weight).sum();
            expected += 1.0 / (1.0 + (BIAS - sum).exp());
            clicks += f64::from(u8::from(log.record.clicked));
        }
        let spread = (expected * 0.25).sqrt();
        assert!((clicks - expected).abs() < 5.0 * spread, "{clicks} clicks, {expected} expected");
    }
}
