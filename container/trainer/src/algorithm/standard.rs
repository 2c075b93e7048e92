//! Standardisation: each column gets mean 0 and variance 1, from sums that shards have added up.
//!
//! Table `stats` is `[(features + 1) × 3]`. Row `j` has the sum of column `j`, the number of its entries in the text, and
//! the sum of their squared distances from the mean; the last row has the number of records in column 1, where a record
//! counts by its weight, and in column 0, where it counts as 1. Entries that the
//! text omits are zeros: their share of the variance is `(records − entries) · mean²`, which is added here and never
//! pushed. The mean is known before distances are summed (two phases), because Σx² − (Σx)²/n loses all digits if the mean
//! is large relative to the standard deviation.
//!
//! Table `label` `[1 × 3]` has the same of the labels, if a squared loss scales them: their sum, the records' weights and the
//! squared distances.

use std::ops::Range;

use heddle_client::gradient::TableGradient;
use heddle_client::layout::Rows;
use heddle_client::machine::PullItem;
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::TableId;
use heddle_protocol::job_spec::table::{LABEL, STATS};
use heddle_protocol::job_spec::{JobPhase, JobSpec, LabelScale, LabelScaling, Stage};
use heddle_protocol::metrics::TaskMetrics;

use super::StepWork;

/// Columns of table `stats`.
pub(super) const STATS_COLS: usize = 3;

/// The table of a job's columns, and the steps that fill it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Columns {
    /// Not used without standardisation.
    table: TableId,
    features: u64,
    standardise: bool,
    labels: LabelScaling,
    /// Used if labels are measured.
    label_table: TableId,
}

impl Columns {
    /// The table of a job.
    pub(super) fn of(spec: &JobSpec) -> Self {
        let tables = spec.tables();
        let id = |name: &str| {
            let table = tables.iter().find(|table| table.name == name);
            table.map(|table| table.id).unwrap_or_default()
        };
        Self {
            table: id(STATS),
            features: spec.model.features,
            standardise: spec.model.standardise,
            labels: spec.model.scale_labels,
            label_table: id(LABEL),
        }
    }

    /// The columns of a table, numbered by their places.
    pub(super) fn of_table(table: TableId, columns: u64) -> Self {
        let labels = LabelScaling::Off;
        Self { table, features: columns, standardise: false, labels, label_table: TableId(0) }
    }

    /// The constants of a phase (see [`super::Algorithm::constants`]). `model` are all rows of a standardised model, which an
    /// evaluation pulls once.
    pub(super) fn constants(
        self,
        phase: JobPhase,
        model: impl FnOnce() -> Vec<PullItem>,
    ) -> Vec<PullItem> {
        match phase.stage {
            // k-means has the other stages, and constants of its own.
            Some(Stage::Centre | Stage::Candidates { .. } | Stage::Counts) => Vec::new(),
            None if !self.standardise => Vec::new(),
            Some(Stage::Spread) => self.measured(),
            None if phase.pushes() => self.measured(),
            None => self.measured().into_iter().chain(model()).collect(),
        }
    }

    /// The scale of the labels, and the other constants.
    pub(super) fn labels(
        self,
        constants: &[PullItem],
    ) -> Result<(LabelScale, &[PullItem]), Failure> {
        match (self.labels, constants) {
            (LabelScaling::Measured, [label, others @ ..]) => {
                Ok((label_scale(&label.values)?, others))
            }
            (LabelScaling::By(scale), _) => Ok((scale, constants)),
            // Before the labels are measured nothing depends on their scale.
            (LabelScaling::Measured | LabelScaling::Off, _) => Ok((LabelScale::NONE, constants)),
        }
    }

    /// The tables of what was measured, the labels' table first.
    fn measured(self) -> Vec<PullItem> {
        let is_measured = self.labels == LabelScaling::Measured;
        let label = is_measured.then(|| pull_first(self.label_table, 1));
        label.into_iter().chain([self.pull()]).collect()
    }

    /// Whether the steps of a phase need the distinct features of their batch: not those of a standardised model, which has
    /// no zeros.
    pub(super) fn indexes_features(self, phase: JobPhase) -> bool {
        phase.stage.is_some() || !self.standardise
    }

    /// The whole table.
    pub(super) fn pull(self) -> PullItem {
        pull_first(self.table, self.features + 1)
    }

    /// A step of the first phase: sums and counts of the columns, and the number of records.
    pub(super) fn centre(self, work: &mut StepWork, metrics: &mut TaskMetrics) {
        let beyond = |weight: &f32| f64::from(*weight) - 1.0;
        let beyond: f64 = work.batch.weights.iter().map(beyond).sum();
        let records = work.batch.rows() as f64 + beyond;
        let of_all = [work.batch.rows() as f64, records, 0.0];
        self.push(work, |_, x| [f64::from(x), 1.0, 0.0], of_all);
        self.push_labels(work, |label| [label, 1.0, 0.0]);
        metrics.rows += work.batch.rows() as u64;
    }

    /// A step of the second phase: squared distances from the means.
    pub(super) fn spread(
        self,
        mean: &[f64],
        labels: LabelScale,
        work: &mut StepWork,
        metrics: &mut TaskMetrics,
    ) {
        let square = |index: u32, x: f32| {
            let distance = f64::from(x) - mean[index as usize];
            [0.0, 0.0, distance * distance]
        };
        self.push(work, square, [0.0; STATS_COLS]);
        self.push_labels(work, |label| [0.0, 0.0, (label - labels.mean) * (label - labels.mean)]);
        metrics.rows += work.batch.rows() as u64;
    }

    /// Adds the row of the labels, if they are measured.
    fn push_labels(self, work: &mut StepWork, value: impl Fn(f64) -> [f64; STATS_COLS]) {
        if self.labels != LabelScaling::Measured {
            return;
        }
        let mut sums = [0.0; STATS_COLS];
        for (row, label) in work.batch.labels.iter().enumerate() {
            let weight = work.batch.weight(row).map_or(1.0, f64::from);
            for (sum, term) in sums.iter_mut().zip(value(f64::from(*label))) {
                *sum += weight * term;
            }
        }
        let (table, rows) = (self.label_table, Rows::Range(0..1));
        let values = sums.map(narrow).to_vec();
        work.gradient.tables.push(TableGradient { table, rows, values });
    }

    /// Adds one row of `stats` per feature of the batch, and counts its records.
    fn push(
        self,
        work: &mut StepWork,
        value: impl Fn(u32, f32) -> [f64; STATS_COLS],
        of_all: [f64; STATS_COLS],
    ) {
        let batch = &work.batch;
        let mut keys = std::mem::take(&mut work.keys);
        let mut sums = vec![0.0; (keys.len() + 1) * STATS_COLS];
        let mut add = |entries: Range<usize>, weight: Option<f32>| {
            let (indices, values) =
                (&batch.indices[entries.clone()], &batch.values[entries.clone()]);
            for ((index, x), local) in indices.iter().zip(values).zip(&work.local[entries]) {
                let row = *local as usize * STATS_COLS;
                let mut terms = value(*index, *x);
                if let Some(weight) = weight {
                    terms.iter_mut().for_each(|term| *term *= f64::from(weight));
                }
                for (sum, term) in sums[row..row + STATS_COLS].iter_mut().zip(terms) {
                    *sum += term;
                }
            }
        };
        // The records that may have a weight are the first ones.
        for (row, weight) in batch.weights.iter().enumerate() {
            add(batch.offsets[row] as usize..batch.offsets[row + 1] as usize, Some(*weight));
        }
        add(batch.offsets[batch.weights.len()] as usize..batch.indices.len(), None);
        sums[keys.len() * STATS_COLS..].copy_from_slice(&of_all);
        // Row `features` is after all features, so the keys stay sorted. `features` is below 2³² − 1.
        keys.push(self.features as u32);
        let values = sums.into_iter().map(narrow).collect();
        let (table, rows) = (self.table, Rows::Keys(keys));
        work.gradient.tables.push(TableGradient { table, rows, values });
    }
}

/// The first rows of a table of sums.
fn pull_first(table: TableId, rows: u64) -> PullItem {
    PullItem { table, rows: Rows::Range(0..rows), values: vec![0.0; rows as usize * STATS_COLS] }
}

/// As an f32, which shards add up. A sum that is not 0 stays so: a column that varies must not look like one that does not.
/// One beyond the range stays in it, so that the phase ends and [`too_large`] finds the column.
fn narrow(sum: f64) -> f32 {
    match sum as f32 {
        0.0 if sum != 0.0 => f32::MIN_POSITIVE.copysign(sum as f32),
        narrow => narrow.clamp(-f32::MAX, f32::MAX),
    }
}

/// Whether sums of [`narrow`] may have left the range.
pub(super) fn too_large(sum: f32) -> bool {
    !sum.is_finite() || sum.abs() >= f32::MAX / 4.0
}

/// Mean and deviation of the labels from table `label`.
///
/// # Errors
/// No record was counted, or they cannot be scaled.
pub(crate) fn label_scale(values: &[f32]) -> Result<LabelScale, Failure> {
    let &[sum, weight, squares] = values else {
        return Err(bad_data(format!(
            "table {LABEL} has {} values, not {STATS_COLS}",
            values.len()
        )));
    };
    let weight = f64::from(weight);
    if weight <= 0.0 {
        return Err(bad_data(NO_RECORDS));
    }
    let variance = f64::from(squares) / weight;
    if let Some(reason) = why_not(sum, squares, variance) {
        return Err(bad_data(format!(
            "the labels cannot be scaled in 32 bits (table {LABEL}): {reason}; set model.scale-labels = false, or give the labels in another unit"
        )));
    }
    let deviation = if variance > 0.0 { variance.sqrt() } else { 1.0 };
    Ok(LabelScale { mean: f64::from(sum) / weight, deviation })
}

/// Why values with these sums cannot be scaled, if so.
pub(super) fn why_not(sum: f32, squares: f32, variance: f64) -> Option<&'static str> {
    if too_large(sum) || too_large(squares) || !variance.is_finite() {
        return Some("they are too large");
    }
    // 0: they do not vary.
    let is_small = variance != 0.0 && variance < f64::from(f32::MIN_POSITIVE);
    is_small.then_some("they differ too little")
}

const NO_RECORDS: &str = "the training data has no records to standardise by";

/// Means and scales of all columns: standardised `x` is `(x − mean) · inverse`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Standard {
    /// `[features]`
    pub mean: Vec<f64>,
    /// `[features]`: 1 over the standard deviation (population); 1 if a column does not vary.
    pub inverse: Vec<f64>,
    /// `[features]`: population variance.
    pub variance: Vec<f64>,
}

impl Standard {
    /// Means and scales from table `stats`, row-major.
    ///
    /// # Errors
    /// No record was counted, or a sum is not finite.
    pub fn of(stats: &[f32]) -> Result<Self, Failure> {
        let (columns, records) = split(stats)?;
        let mut standard = Self { mean: means(stats)?, inverse: Vec::new(), variance: Vec::new() };
        for (n, (column, mean)) in columns.chunks_exact(STATS_COLS).zip(&standard.mean).enumerate()
        {
            let zeros = (records - f64::from(column[1])).max(0.0);
            let variance = (f64::from(column[2]) + zeros * mean * mean) / records;
            if let Some(reason) = why_not(column[0], column[2], variance) {
                return Err(not_scalable(n, reason));
            }
            standard.variance.push(variance);
            standard.inverse.push(if variance > 0.0 { 1.0 / variance.sqrt() } else { 1.0 });
        }
        Ok(standard)
    }
}

/// The number of records, whatever their weights.
pub(crate) fn records(stats: &[f32]) -> f64 {
    stats.len().checked_sub(STATS_COLS).map_or(0.0, |last| f64::from(stats[last]))
}

/// The means alone, after the first phase of standardisation.
pub(crate) fn means(stats: &[f32]) -> Result<Vec<f64>, Failure> {
    let (columns, records) = split(stats)?;
    let mean = |(n, column): (usize, &[f32])| match too_large(column[0]) {
        false => Ok(f64::from(column[0]) / records),
        true => Err(not_scalable(n, "they are too large")),
    };
    columns.chunks_exact(STATS_COLS).enumerate().map(mean).collect()
}

fn not_scalable(column: usize, reason: &str) -> Failure {
    bad_data(format!(
        "the values of column {column} (from 0) cannot be scaled in 32 bits (table {STATS}): {reason}; set model.standardise = false, or give the column in another unit"
    ))
}

fn bad_data(text: impl Into<String>) -> Failure {
    Failure::new(ErrorClass::Input, text)
}

fn split(stats: &[f32]) -> Result<(&[f32], f64), Failure> {
    let columns = stats.len().saturating_sub(STATS_COLS);
    let records = stats.get(columns + 1).map_or(0.0, |records| f64::from(*records));
    if records > 0.0 && stats.len().is_multiple_of(STATS_COLS) {
        Ok((&stats[..columns], records))
    } else {
        Err(bad_data(NO_RECORDS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_population_variance_with_zeros_not_written() {
        // Column 0 holds 1, 3, 0, 0: mean 1, variance (0 + 4 + 1 + 1) / 4. Column 1 is always 5.
        let stats = [4.0, 2.0, 4.0, 20.0, 4.0, 0.0, 0.0, 4.0, 0.0];
        let standard = Standard::of(&stats).expect("four records");
        assert_eq!(standard.mean, [1.0, 5.0]);
        assert_eq!(standard.inverse, [1.0 / 1.5f64.sqrt(), 1.0]);
    }

    #[test]
    fn record_of_weight_two_counts_as_two() {
        use crate::algorithm::KeyIndex;
        use crate::run::tests::sample;
        let columns = Columns::of(&sample());
        let pushed = |rows: &[(f32, f32, f32)]| {
            let mut work = StepWork::default();
            for (row, (a, b, weight)) in rows.iter().enumerate() {
                work.batch.indices.extend([0, 3]);
                work.batch.values.extend([*a, *b]);
                work.batch.end_row(1.0);
                if *weight != 1.0 {
                    work.batch.weigh(row, *weight);
                }
            }
            work.index_features(&mut KeyIndex::new(10));
            columns.centre(&mut work, &mut TaskMetrics::default());
            work.gradient.tables.remove(0).values
        };
        let weighted = pushed(&[(1.0, 2.0, 2.0), (4.0, 8.0, 0.0), (0.5, -1.0, 1.0)]);
        assert_eq!(weighted, pushed(&[(1.0, 2.0, 1.0), (1.0, 2.0, 1.0), (0.5, -1.0, 1.0)]));
        assert_eq!(weighted, [2.5, 3.0, 0.0, 3.0, 3.0, 0.0, 3.0, 3.0, 0.0]);
    }

    #[test]
    fn no_records_and_infinite_sums_are_refused() {
        assert!(Standard::of(&[]).is_err());
        assert!(Standard::of(&[0.0; 6]).is_err());
        assert!(Standard::of(&[f32::INFINITY, 1.0, 0.0, 0.0, 1.0, 0.0]).is_err());
        assert!(Standard::of(&[1.0, 1.0, f32::NAN, 0.0, 1.0, 0.0]).is_err());
    }

    #[test]
    fn column_that_varies_beyond_32_bits_is_named() {
        for (squares, why) in
            [(narrow(1e-60), "differ too little"), (narrow(1e60), "are too large")]
        {
            let stats = [4.0, 2.0, 4.0, 2.0, 4.0, squares, 4.0, 4.0, 0.0];
            let error = Standard::of(&stats).expect_err("the second column");
            assert_eq!(error.class, ErrorClass::Input);
            let text = error.text;
            assert!(
                text.starts_with("the values of column 1 (from 0) cannot be scaled in 32 bits"),
                "{text}"
            );
            assert!(text.contains(why), "{text}");
            let text = label_scale(&[4.0, 4.0, squares]).expect_err("not scalable").text;
            assert!(text.contains("(table label)") && text.contains(why), "{text}");
        }
    }

    #[test]
    fn squares_beyond_32_bits_are_pushed_as_finite_and_refused() {
        use crate::algorithm::KeyIndex;
        use crate::run::tests::sample;
        let (columns, mut metrics) = (Columns::of(&sample()), TaskMetrics::default());
        let step = || {
            let mut work = StepWork::default();
            for value in [1e20, 1e25, 0.5] {
                work.batch.indices.push(0);
                work.batch.values.push(value);
                work.batch.end_row(1.0);
            }
            work.index_features(&mut KeyIndex::new(10));
            work
        };
        let pushed = |mut work: StepWork| work.gradient.tables.remove(0).values;
        let mut work = step();
        columns.centre(&mut work, &mut metrics);
        let mut stats = pushed(work);
        let mean = means(&stats).expect("the sum fits");
        let mut work = step();
        columns.spread(&mean, LabelScale::NONE, &mut work, &mut metrics);
        let squares = pushed(work);
        assert!(squares.iter().all(|value| value.is_finite()), "{squares:?}");
        stats.iter_mut().zip(&squares).for_each(|(sum, square)| *sum += square);
        let text = Standard::of(&stats).expect_err("too large").text;
        assert!(text.contains("column 0 (from 0)") && text.contains("too large"), "{text}");
    }

    #[test]
    fn labels_have_mean_and_population_deviation() {
        // Labels 1, 3, 3, 5 about 3.
        let scale = label_scale(&[12.0, 4.0, 8.0]).expect("four records");
        assert_eq!(scale, LabelScale { mean: 3.0, deviation: 2f64.sqrt() });
        assert_eq!(label_scale(&[12.0, 4.0, 0.0]).expect("equal").deviation, 1.0);
        assert!(label_scale(&[0.0; 3]).is_err());
    }
}
