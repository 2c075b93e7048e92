//! The baseline of a training run: one thread that reads the same records and trains the same model in its own memory,
//! without processes, sockets, checkpoints or lanes. And the records: a generated click log.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use click_log::{ClickLog, Shape, Split};
use heddle_input::formats::words;
use heddle_input::{Batch, Labels, RecordFormat};
use heddle_protocol::job_spec::{DataFormat, LabelRange, LossFunction};
use heddle_trainer::algorithm::loss::loss_and_slope;

/// Features of the records.
pub const FEATURES: u32 = 1_000_000;

/// FTRL as the job has it by default: alpha, beta; no l1 and l2.
const ALPHA: f64 = 0.2;
const BETA: f64 = 1.0;

/// Writes `rows` records to train on and a tenth of them to test on, as `train.libsvm` and `test.libsvm`.
///
/// # Errors
/// A file cannot be written.
pub fn write_records(dir: &Path, rows: u64) -> io::Result<()> {
    let shape = Shape { fields: 40, features: FEATURES };
    for (split, name, rows) in
        [(Split::Train, "train.libsvm", rows), (Split::Test, "test.libsvm", rows.div_ceil(10))]
    {
        let log = ClickLog::new(shape, 1, split);
        log.write_files(rows, &dir.join(name), None)
            .map_err(|error| io::Error::other(format!("{error:#}")))?;
    }
    Ok(())
}

/// Trains logistic regression on a file of libsvm records, one at a time. Returns the mean loss of a record at the weights
/// before it.
///
/// # Errors
/// The file cannot be read, or has another format.
pub fn train_plainly(path: &Path) -> io::Result<f64> {
    let format = RecordFormat {
        format: DataFormat::Libsvm,
        index_base: 1,
        features: u64::from(FEATURES),
        labels: Labels::Within(LabelRange::TwoClasses),
        table: None,
    };
    let (mut lines, mut text) = (words::<true>(format), Vec::new());
    File::open(path)?.read_to_end(&mut text)?;
    let mut weights = vec![FtrlCell::default(); FEATURES as usize + 1];
    let (mut batch, mut at, mut rows, mut loss_sum) = (Batch::default(), 0, 0u64, 0.0);
    while at < text.len() {
        batch.clear();
        at += lines
            .read_line(&text[at..], &mut batch)
            .map_err(|error| io::Error::other(error.to_string()))?
            .0;
        let Some(label) = batch.labels.first() else { continue };
        let bias = FEATURES as usize;
        let of = |index: &u32| weights[*index as usize].weight;
        let products = batch.indices.iter().zip(&batch.values).map(|(i, x)| of(i) * f64::from(*x));
        let z = weights[bias].weight + products.sum::<f64>();
        let (loss, slope) = loss_and_slope(LossFunction::Logistic, z, *label);
        (rows, loss_sum) = (rows + 1, loss_sum + loss);
        weights[bias].step(slope);
        for (index, x) in batch.indices.iter().zip(&batch.values) {
            weights[*index as usize].step(slope * f64::from(*x));
        }
    }
    Ok(loss_sum / rows.max(1) as f64)
}

/// A weight under FTRL (McMahan et al., KDD 2013, algorithm 1).
#[derive(Clone, Copy, Debug, Default)]
struct FtrlCell {
    weight: f64,
    z: f64,
    n: f64,
}

impl FtrlCell {
    fn step(&mut self, gradient: f64) {
        let root = (self.n + gradient * gradient).sqrt();
        self.z += gradient - (root - self.n.sqrt()) / ALPHA * self.weight;
        self.n += gradient * gradient;
        self.weight = -self.z * ALPHA / (BETA + root);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_training_learns() {
        let dir = std::env::temp_dir().join(format!("heddle-bench-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        write_records(&dir, 2_000).expect("records");
        let loss = train_plainly(&dir.join("train.libsvm")).expect("trained");
        std::fs::remove_dir_all(&dir).expect("removed");
        // ln 2 without learning.
        assert!((0.2..0.69).contains(&loss), "{loss}");
    }
}
