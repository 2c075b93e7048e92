//! A minibatch in compressed rows, reused from step to step.

use heddle_columns::{Encoder, FeatureSink, key};
use heddle_protocol::job_spec::BatchFeatures;
use heddle_protocol::job_spec::limits::ANY_FEATURES;
use heddle_protocol::job_spec::position::position_of_key;

/// Records of one step: labels, and features in compressed sparse rows.
///
/// Row `r` has the features `indices[offsets[r]..offsets[r + 1]]` (0-based; rising, but for records of tables, where two columns
/// may have one index) with the values of the same positions. Buffers keep their memory when a batch is cleared.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// One per row: 0 or 1.
    pub labels: Vec<f32>,
    /// `[rows + 1]`, starting with 0.
    pub offsets: Vec<u32>,
    /// Features of all rows, concatenated; empty if features are any u64.
    pub indices: Vec<u32>,
    /// The same if features are any u64: their [positions](heddle_protocol::job_spec::position), in the order of the text.
    pub positions: Vec<u64>,
    /// A value for each feature, finite.
    pub values: Vec<f32>,
    /// Weights of the first records, finite and at least 0: empty where all are 1. Ask [`weight`](Self::weight).
    pub weights: Vec<f32>,
    /// The spellings of the negative class that occur.
    pub(crate) negatives: Negatives,
}

/// Which of the labels 0 and −1, which both mean the negative class, occur.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Negatives(u8);

impl Negatives {
    pub(crate) const ZERO: Self = Self(1);

    /// Those of `self` that `other` lacks.
    pub(crate) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Those of both.
    pub(crate) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The label as it is written.
    pub(crate) fn word(self) -> &'static str {
        if self == Self::ZERO { "0" } else { "-1" }
    }
}

impl Default for Batch {
    fn default() -> Self {
        Self {
            labels: Vec::new(),
            offsets: vec![0],
            indices: Vec::new(),
            positions: Vec::new(),
            values: Vec::new(),
            weights: Vec::new(),
            negatives: Negatives::default(),
        }
    }
}

impl Batch {
    /// Number of records.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.labels.len()
    }

    /// Whether there is no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Removes all records and keeps the memory.
    pub fn clear(&mut self) {
        self.labels.clear();
        self.offsets.truncate(1);
        self.indices.clear();
        self.positions.clear();
        self.values.clear();
        self.weights.clear();
        self.negatives = Negatives::default();
    }

    /// The features of row `row`: indices and values.
    ///
    /// # Panics
    /// If the row does not exist.
    #[must_use]
    pub fn row(&self, row: usize) -> (&[u32], &[f32]) {
        self.entries(&self.indices, row)
    }

    /// The features of row `row`: what `positions` has for them, of all features of the batch, and values.
    ///
    /// # Panics
    /// If the row does not exist.
    #[inline]
    #[must_use]
    pub fn entries<'a, P>(&'a self, positions: &'a [P], row: usize) -> (&'a [P], &'a [f32]) {
        let own = self.offsets[row] as usize..self.offsets[row + 1] as usize;
        (&positions[own.clone()], &self.values[own])
    }

    /// The weight of row `row`, from its text and of its class; `None` means 1.
    #[inline]
    #[must_use]
    pub fn weight(&self, row: usize) -> Option<f32> {
        self.weights.get(row).copied()
    }

    /// Multiplies the weight of row `row`.
    ///
    /// # Panics
    /// If the row does not exist.
    pub fn weigh(&mut self, row: usize, factor: f32) {
        assert!(row < self.rows(), "the row exists");
        if self.weights.len() <= row {
            self.weights.resize(row + 1, 1.0);
        }
        // Finite: a product beyond the range is as heavy as a record can be.
        self.weights[row] = (self.weights[row] * factor).min(f32::MAX);
    }

    /// Ends the row whose features were appended since the last one; a label of −1 becomes 0.
    pub fn end_row(&mut self, label: f32) {
        // Branchless: labels of real data are unordered.
        self.negatives.0 |= u8::from(label == 0.0) | u8::from(label < 0.0) << 1;
        self.end_row_as_written(label.max(0.0));
    }

    /// Ends the row whose features were appended since the last one.
    pub fn end_row_as_written(&mut self, label: f32) {
        self.labels.push(label);
        // `full` keeps the number of features of a batch below 2³²: a record has at most 5 Mi, since its line has 10 MiB.
        self.offsets.push(self.values.len() as u32);
    }

    /// Drops features appended since the last ended row.
    pub fn drop_unended(&mut self) {
        let end = self.offsets.last().map_or(0, |end| *end as usize);
        self.indices.truncate(end);
        self.positions.truncate(end);
        self.values.truncate(end);
    }

    /// Takes the last row out if it has more features than one may have.
    #[inline]
    pub(crate) fn check_last(&mut self, limit: BatchFeatures) -> Result<(), String> {
        let (features, most) = (self.last_features(), limit.record());
        if features <= most {
            return Ok(());
        }
        self.drop_row();
        Err(format!(
            "{features} features, more than the {most} of a record for which the trainers of this run have memory; a new run with more trainers.memory takes it"
        ))
    }

    /// Takes the last row out.
    pub(crate) fn drop_row(&mut self) {
        self.labels.pop();
        if self.rows() + 1 < self.offsets.len() {
            self.offsets.pop();
        }
        self.weights.truncate(self.rows());
        self.drop_unended();
    }

    /// Features of the last row; 0 without a row.
    pub(crate) fn last_features(&self) -> usize {
        match self.offsets[..] {
            [.., start, end] => (end - start) as usize,
            _ => 0,
        }
    }

    /// Whether it takes no further record: at the wanted rows, or above the limit of features. It depends on the data and the
    /// job alone, so steps do not depend on the trainer that reads them.
    #[must_use]
    pub fn full(&self, rows_max: usize, limit: BatchFeatures) -> bool {
        self.rows() >= rows_max || self.values.len() > limit.batch()
    }
}

/// Appends the features of a row of a table.
pub(crate) struct FeaturesOfRow<'b> {
    batch: &'b mut Batch,
    features: u64,
    keys_are_indices: bool,
}

impl<'b> FeaturesOfRow<'b> {
    /// `features`: of the model.
    #[inline]
    pub(crate) fn new(batch: &'b mut Batch, features: u64, encoder: &Encoder) -> Self {
        Self { batch, features, keys_are_indices: encoder.keys_are_indices() }
    }
}

impl FeatureSink for FeaturesOfRow<'_> {
    #[inline(always)]
    fn push(&mut self, key: u64, value: f32) {
        self.batch.values.push(value);
        match self.features {
            ANY_FEATURES => self.batch.positions.push(position_of_key(key)),
            _ if self.keys_are_indices => self.batch.indices.push(key as u32),
            features => self.batch.indices.push(key::folded(key, features)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cleared_batch_is_like_a_new_one() {
        let mut batch = Batch::default();
        batch.indices.extend([1, 5]);
        batch.values.extend([0.5, 2.0]);
        batch.end_row(1.0);
        assert_eq!(batch.row(0), (&[1, 5][..], &[0.5, 2.0][..]));
        batch.indices.push(9);
        batch.values.push(1.0);
        batch.drop_unended();
        assert_eq!(batch.indices, [1, 5]);
        batch.clear();
        assert_eq!(batch, Batch::default());
    }

    #[test]
    fn last_row_can_be_taken_out() {
        let mut batch = Batch::default();
        batch.drop_row();
        assert_eq!((&batch, batch.last_features()), (&Batch::default(), 0));
        batch.indices.push(1);
        batch.values.push(0.5);
        batch.end_row(1.0);
        let one = batch.clone();
        batch.indices.extend([2, 3]);
        batch.values.extend([0.5, 0.5]);
        batch.end_row(1.0);
        batch.weigh(1, 3.0);
        assert_eq!(batch.last_features(), 2);
        batch.drop_row();
        assert_eq!((batch.rows(), batch.row(0)), (1, one.row(0)));
        assert_eq!((batch.weight(0), batch.weights.len()), (Some(1.0), 1));
    }

    #[test]
    fn rows_without_a_weight_take_no_memory() {
        let mut batch = Batch::default();
        (0..4).for_each(|_| batch.end_row(1.0));
        assert_eq!(batch.weights.capacity(), 0);
        batch.weigh(1, 2.5);
        batch.weigh(1, 2.0);
        let weights: Vec<_> = (0..4).map(|row| batch.weight(row)).collect();
        assert_eq!(weights, [Some(1.0), Some(5.0), None, None]);
        batch.weigh(1, f32::MAX);
        assert_eq!(batch.weight(1), Some(f32::MAX));
        batch.clear();
        assert_eq!(batch, Batch::default());
    }
}
