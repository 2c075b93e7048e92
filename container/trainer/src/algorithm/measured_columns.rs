//! Numbers of columns, measured before an algorithm trains with their scaled values (`[[data.columns]]`).
//!
//! Table `column-stats` is `[(columns + 1) × 3]`, as `stats` of a standardised job is, with two differences: a mean is over the
//! records that have the number, since a missing number is not 0, and batches come scaled, so that the algorithm computes
//! with the features of its records alone.

use heddle_client::machine::PullItem;
use heddle_columns::ColumnScales;
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::job_spec::table::COLUMN_STATS;
use heddle_protocol::job_spec::{JobPhase, JobSpec, LabelScale, Stage};
use heddle_protocol::metrics::TaskMetrics;

use super::standard::{Columns, STATS_COLS, too_large, why_not};
use super::{Algorithm, StepWork};

/// An algorithm whose columns are measured first.
pub(crate) struct MeasuredColumns {
    algorithm: Box<dyn Algorithm>,
    columns: Columns,
    /// The names.
    names: Vec<String>,
    /// The measurement of the phase.
    stage: Option<Stage>,
    mean: Vec<f64>,
    scales: Vec<ColumnScales>,
}

impl MeasuredColumns {
    /// Of a job whose algorithm is `algorithm`.
    pub(super) fn new(spec: &JobSpec, algorithm: Box<dyn Algorithm>) -> Self {
        let table = spec.tables().into_iter().find(|table| table.name == COLUMN_STATS);
        let table = table.map(|table| table.id).unwrap_or_default();
        let columns = Columns::of_table(table, spec.measured_columns());
        let schema = spec.schema.iter();
        let names = schema
            .flat_map(|schema| schema.measured().map(|place| schema.columns[place].name.clone()));
        let (names, mean, scales) = (names.collect(), Vec::new(), Vec::new());
        Self { algorithm, columns, names, stage: None, mean, scales }
    }
}

impl Algorithm for MeasuredColumns {
    fn features(&self, spec: &JobSpec) -> u64 {
        self.algorithm.features(spec)
    }

    fn constants(&self, phase: JobPhase) -> Vec<PullItem> {
        match phase.stage {
            Some(Stage::Centre) => Vec::new(),
            Some(_) => vec![self.columns.pull()],
            None => {
                [self.columns.pull()].into_iter().chain(self.algorithm.constants(phase)).collect()
            }
        }
    }

    fn begin(&mut self, phase: JobPhase, mut constants: Vec<PullItem>) -> Result<(), Failure> {
        self.stage = phase.stage;
        // A rollback may lead back to the measurements.
        self.scales.clear();
        if phase.stage == Some(Stage::Centre) {
            return Ok(());
        }
        if constants.is_empty() {
            return Err(Failure::training(format!("no constants for {phase:?}")));
        }
        let stats = constants.remove(0).values;
        if phase.stage.is_some() {
            self.mean = means(&stats, &self.names)?;
            return Ok(());
        }
        self.scales = scales(&stats, &self.names)?;
        self.algorithm.begin(phase, constants)
    }

    fn scales(&self) -> &[ColumnScales] {
        &self.scales
    }

    fn indexes_features(&self, phase: JobPhase) -> bool {
        phase.stage.is_some() || self.algorithm.indexes_features(phase)
    }

    fn prepare(&mut self, work: &mut StepWork) {
        if self.stage.is_none() {
            self.algorithm.prepare(work);
        }
    }

    fn compute(&mut self, work: &mut StepWork, metrics: &mut TaskMetrics) {
        match self.stage {
            None => self.algorithm.compute(work, metrics),
            Some(Stage::Centre) => self.columns.centre(work, metrics),
            Some(_) => self.columns.spread(&self.mean, LabelScale::NONE, work, metrics),
        }
    }
}

/// The rows of the columns.
fn rows(stats: &[f32]) -> impl Iterator<Item = &[f32]> {
    stats[..stats.len().saturating_sub(STATS_COLS)].chunks_exact(STATS_COLS)
}

/// The means of the columns; 0 of those without a number.
fn means(stats: &[f32], names: &[String]) -> Result<Vec<f64>, Failure> {
    let mean = |(row, name): (&[f32], &String)| {
        if too_large(row[0]) {
            return Err(not_scalable(name, "they are too large"));
        }
        Ok(if row[1] > 0.0 { f64::from(row[0]) / f64::from(row[1]) } else { 0.0 })
    };
    rows(stats).zip(names).map(mean).collect()
}

/// The scales of the columns, from table `column-stats`.
///
/// # Errors
/// A column cannot be scaled.
pub(crate) fn scales(stats: &[f32], names: &[String]) -> Result<Vec<ColumnScales>, Failure> {
    let means = means(stats, names)?;
    let scales = |((row, name), mean): ((&[f32], &String), f64)| {
        let count = f64::from(row[1]);
        let variance = if count > 0.0 { f64::from(row[2]) / count } else { 0.0 };
        if let Some(reason) = why_not(row[0], row[2], variance) {
            return Err(not_scalable(name, reason));
        }
        let inverse = if variance > 0.0 { 1.0 / variance.sqrt() } else { 1.0 };
        Ok(ColumnScales { mean, inverse })
    };
    rows(stats).zip(names).zip(means).map(scales).collect()
}

fn not_scalable(name: &str, reason: &str) -> Failure {
    let text = format!(
        "the numbers of column {name:?} cannot be scaled in 32 bits: {reason}; set scale = \"none\" in its rule of data.columns, or a transform"
    );
    Failure::new(ErrorClass::Input, text)
}

#[cfg(test)]
mod tests {
    use heddle_protocol::ids::PhaseNo;
    use heddle_protocol::job_spec::columns::{ColumnUsage, FeatureColumn, NumberUsage, Schema};
    use heddle_protocol::job_spec::job_phase;

    use super::super::LinearAlgorithm;
    use super::*;

    #[test]
    fn a_measurement_after_training_has_no_scales_of_before() {
        let mut spec = heddle_protocol::job_spec::job::sample();
        spec.schema = Some(Schema {
            columns: vec![FeatureColumn {
                name: "a".to_owned(),
                usage: ColumnUsage::Number(NumberUsage::default()),
            }],
            ..Schema::default()
        });
        let mut measured = MeasuredColumns::new(&spec, Box::new(LinearAlgorithm::new(&spec)));
        let stats = |phase: JobPhase| {
            let mut pulls = measured.constants(phase);
            pulls[0].values.copy_from_slice(&[6.0, 2.0, 8.0, 2.0, 2.0, 0.0]);
            pulls
        };
        let (pass, spread) = (JobPhase::training(0), job_phase(&spec, PhaseNo(1)).expect("one"));
        let (of_pass, of_spread) = (stats(pass), stats(spread));
        measured.begin(pass, of_pass).expect("it trains");
        assert_eq!(measured.scales(), [ColumnScales { mean: 3.0, inverse: 0.5 }]);
        measured.begin(spread, of_spread).expect("it measures");
        assert_eq!(measured.scales(), []);
    }

    #[test]
    fn records_without_the_number_do_not_count() {
        let names = ["a", "b", "c"].map(str::to_owned);
        // Two of four records have the first, all have the second, which does not vary; the third is empty.
        let stats = [6.0, 2.0, 8.0, 20.0, 4.0, 0.0, 0.0, 0.0, 0.0, 4.0, 4.0, 0.0];
        let of = |mean, inverse| ColumnScales { mean, inverse };
        assert_eq!(scales(&stats, &names), Ok(vec![of(3.0, 0.5), of(5.0, 1.0), of(0.0, 1.0)]));
        let large = [f32::MAX, 2.0, 0.0, 1.0, 2.0, 0.0];
        let error = scales(&large, &names[..1]).expect_err("beyond the range").text;
        assert!(error.starts_with("the numbers of column \"a\" cannot be scaled"), "{error}");
    }
}
