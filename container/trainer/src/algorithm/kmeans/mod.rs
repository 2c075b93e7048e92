//! K-means: Lloyd's algorithm, begun by k-means|| (Bahmani et al., VLDB 2012).
//!
//! Each step is a function of its batch and of the constants of its phase, so that nothing depends on the trainer that
//! computes it. Two phases measure the columns: standardisation takes them, and the tolerance goes by the variance. In the
//! rounds of k-means|| each slot of a table draws a record with a probability proportional to its squared distance from the
//! candidates so far ([`draw`]). One phase counts the records nearest to each candidate. With the first pass every trainer
//! computes the same centres from that ([`initial`]).
//!
//! A step of a pass pushes Σx and the number of records of each cluster that it meets. The shards make the new centres when
//! the next phase begins (rule `mean`). Records count by their weights.

mod centres;
mod draw;
mod initial;
mod points;
mod scorer;

use heddle_client::gradient::TableGradient;
use heddle_client::layout::Rows;
use heddle_client::machine::PullItem;
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::TableId;
use heddle_protocol::job_spec::table::{CANDIDATE_COUNTS, CANDIDATES, CENTRES, PREVIOUS_CENTRES};
use heddle_protocol::job_spec::{JobPhase, JobSpec, LabelScale, LossFunction, Stage};
use heddle_protocol::metrics::{ClusterFigures, TaskMetrics};

use super::loss::count_distance;
use super::standard::{Columns, means, records};
use super::{Algorithm, RecordScorer, StepWork};
pub(crate) use centres::{PassCentres, previous_rows};
use draw::Draw;
use points::{PointSet, Space};
pub(crate) use scorer::ClusterScorer;

/// The built-in algorithm `kmeans`.
#[derive(Debug)]
pub struct Kmeans {
    clusters: usize,
    dim: usize,
    seed: u64,
    standardise: bool,
    candidate_rows: u64,
    centres: TableId,
    previous: TableId,
    candidates: TableId,
    counts: TableId,
    columns: Columns,
    mode: KmeansMode,
}

/// The work of a step in the present phase, with the constants of the phase.
#[derive(Debug)]
enum KmeansMode {
    /// Sums and counts of the columns.
    Centre,
    /// Squared distances from these means.
    Spread { mean: Vec<f64> },
    /// Draws records by their distance from these candidates; in round 0 there is none.
    Candidates { round: u32, candidates: ClusterScorer },
    /// Counts records by the nearest of these candidates, which are in these rows of their table.
    Counts { candidates: ClusterScorer, rows: Vec<u32> },
    /// Finds the nearest centre of each record.
    Assign {
        scorer: ClusterScorer,
        figures: Option<ClusterFigures>,
        /// The pass that is trained; none in an evaluation.
        pass: Option<u32>,
    },
}

impl Kmeans {
    /// The algorithm for a job.
    ///
    /// # Panics
    /// If the job lacks the tables of k-means.
    #[must_use]
    pub fn new(spec: &JobSpec) -> Self {
        let tables = spec.tables();
        let id = |name: &str| {
            let table = tables.iter().find(|table| table.name == name);
            table.expect("k-means has tables of centres and candidates").id
        };
        Self {
            clusters: spec.model.clusters as usize,
            dim: spec.model.features as usize,
            seed: spec.training.seed,
            standardise: spec.model.standardise,
            candidate_rows: spec.model.candidates(),
            centres: id(CENTRES),
            previous: id(PREVIOUS_CENTRES),
            candidates: id(CANDIDATES),
            counts: id(CANDIDATE_COUNTS),
            columns: Columns::of(spec),
            mode: KmeansMode::Centre,
        }
    }

    /// A pull of these rows of a table with a coordinate in each column and one beside.
    fn rows(&self, table: TableId, rows: std::ops::Range<u64>) -> PullItem {
        let values = vec![0.0; (rows.end - rows.start) as usize * (self.dim + 1)];
        PullItem { table, rows: Rows::Range(rows), values }
    }

    /// The candidates that were drawn before a round.
    fn candidates_before(&self, round: u32) -> PullItem {
        let rows = if round == 0 { 0 } else { self.slot_row(round, 0) };
        self.rows(self.candidates, 0..u64::from(rows))
    }

    /// The row of a slot of a round.
    fn slot_row(&self, round: u32, slot: u32) -> u32 {
        match round.checked_sub(1) {
            None => 0,
            Some(earlier) => 1 + earlier * 2 * self.clusters as u32 + slot,
        }
    }

    /// Slots of a round.
    fn slots(&self, round: u32) -> u32 {
        if round == 0 { 1 } else { 2 * self.clusters as u32 }
    }

    /// The centres after `pass`, with the constants of `previous-centres`.
    fn after(&self, pass: u32) -> [PullItem; 2] {
        let clusters = self.clusters as u64;
        let previous = previous_rows(pass, clusters);
        [self.rows(self.centres, 0..clusters), self.rows(self.previous, previous)]
    }

    /// Candidates that were drawn, and their rows.
    fn drawn(&self, values: &[f32]) -> (PointSet, Vec<u32>) {
        let (mut points, mut rows) = (PointSet::new(self.dim), Vec::new());
        for (row, values) in (0..).zip(values.chunks_exact(self.dim + 1)) {
            if values[0] < f32::MAX {
                points.push(values[1..].iter().map(|x| f64::from(*x)));
                rows.push(row);
            }
        }
        (points, rows)
    }

    /// The centres with which the first pass begins, as they are in a table.
    fn first_centres(&self, candidates: &[f32], counts: &[f32]) -> Result<PointSet, Failure> {
        let (points, rows) = self.drawn(candidates);
        if rows.is_empty() {
            return Err(Failure::training("no record has a weight above 0"));
        }
        let weights: Vec<f64> = rows.iter().map(|row| f64::from(counts[*row as usize])).collect();
        let exact = initial::initial_centres(&points, &weights, self.clusters, self.seed);
        let mut centres = PointSet::new(self.dim);
        exact.iter().for_each(|row| centres.push(row.iter().map(|x| f64::from(*x as f32))));
        Ok(centres)
    }

    /// The mode of a phase after the measurement of the columns.
    fn placed(
        &self,
        phase: JobPhase,
        space: Space,
        constants: &[PullItem],
    ) -> Result<KmeansMode, Failure> {
        let values = |n: usize| constants.get(n).map_or(&[][..], |item| &item.values[..]);
        Ok(match (phase.stage, phase.trains) {
            (Some(Stage::Candidates { round }), _) => {
                let (centres, _) = self.drawn(values(0));
                let candidates = ClusterScorer { space, centres };
                KmeansMode::Candidates { round, candidates }
            }
            (Some(_), _) => {
                let (centres, rows) = self.drawn(values(0));
                KmeansMode::Counts { candidates: ClusterScorer { space, centres }, rows }
            }
            (None, Some(0)) => {
                let centres = self.first_centres(values(0), values(1))?;
                let scorer = ClusterScorer { space, centres };
                KmeansMode::Assign { scorer, figures: None, pass: Some(0) }
            }
            (None, pass) => {
                let ended = pass.map_or(phase.scores, |pass| Some(pass - 1)).unwrap_or(0);
                let after = PassCentres::after(ended, self.dim, values(0), values(1))?;
                let figures = Some(after.figures(space.variance()));
                let scorer = ClusterScorer { space, centres: after.centres };
                KmeansMode::Assign { scorer, figures, pass }
            }
        })
    }

    /// A step of a round of k-means||: the record of the batch with the least key for each slot.
    fn draw(&self, round: u32, candidates: &ClusterScorer, work: &mut StepWork) {
        let slots = self.slots(round);
        let mut best = vec![(f64::INFINITY, 0usize); slots as usize];
        let mut x = Vec::new();
        for row in 0..work.batch.rows() {
            let (indices, values) = work.batch.row(row);
            let nearest = candidates.nearest(indices, values, &mut x);
            let distance = nearest.map_or(1.0, |(_, distance)| distance);
            let rate = distance * f64::from(work.batch.weight(row).unwrap_or(1.0));
            if rate > 0.0 {
                let record = work.first_record + row as u64;
                let draw = Draw::of(self.seed, round, work.task.0, record);
                for (slot, best) in (0..).zip(&mut best) {
                    if let Some(key) = draw.key_below(slot, rate, best.0) {
                        *best = (key, row);
                    }
                }
            }
        }
        let (mut keys, mut rows) = (Vec::new(), Vec::new());
        for (slot, (key, row)) in (0..).zip(best) {
            // A key beyond f32 is of a record that is all but a candidate.
            if (key as f32) < f32::MAX {
                keys.push(self.slot_row(round, slot));
                let (indices, values) = work.batch.row(row);
                candidates.space.place(indices, values, &mut x);
                rows.push(key as f32);
                rows.extend(x.iter().map(|x| *x as f32));
            }
        }
        push(work, self.candidates, Rows::Keys(keys), rows);
    }

    /// A step that counts records by their nearest candidate.
    fn count(&self, candidates: &ClusterScorer, rows: &[u32], work: &mut StepWork) {
        let mut counts = vec![0.0; rows.len()];
        let mut x = Vec::new();
        for row in 0..work.batch.rows() {
            let (indices, values) = work.batch.row(row);
            if let Some((nearest, _)) = candidates.nearest(indices, values, &mut x) {
                counts[nearest] += f64::from(work.batch.weight(row).unwrap_or(1.0));
            }
        }
        let met = || rows.iter().zip(&counts).filter(|(_, count)| **count > 0.0);
        let keys = met().map(|(row, _)| *row).collect();
        let values = met().map(|(_, count)| *count as f32).collect();
        push(work, self.counts, Rows::Keys(keys), values);
    }

    /// A step of a pass.
    fn assign(
        &self,
        scorer: &ClusterScorer,
        pass: u32,
        work: &mut StepWork,
        metrics: &mut TaskMetrics,
    ) {
        let cols = self.dim + 1;
        let mut sums = vec![0.0; self.clusters * cols];
        let mut x = Vec::new();
        for row in 0..work.batch.rows() {
            let (indices, values) = work.batch.row(row);
            let nearest = scorer.nearest(indices, values, &mut x);
            let Some((nearest, distance)) = nearest else { continue };
            let weight = count_distance(distance, work.batch.weight(row), metrics);
            if weight > 0.0 {
                let own = &mut sums[nearest * cols..(nearest + 1) * cols];
                for (sum, x) in own.iter_mut().zip(&x) {
                    *sum += weight * x;
                }
                own[cols - 1] += weight;
            }
        }
        let met = || (0..).zip(sums.chunks_exact(cols)).filter(|(_, row)| row[cols - 1] > 0.0);
        let keys = met().map(|(cluster, _)| cluster).collect();
        let values = met().flat_map(|(_, row)| row.iter().map(|sum| *sum as f32)).collect();
        push(work, self.centres, Rows::Keys(keys), values);
        if work.first_record == 0 {
            let rows = Rows::Range(previous_rows(pass, self.clusters as u64));
            let values = centres::previous_values(pass, &scorer.centres);
            work.gradient.tables.push(TableGradient { table: self.previous, rows, values });
        }
    }
}

/// Pushes keyed rows, if there are any.
fn push(work: &mut StepWork, table: TableId, rows: Rows, values: Vec<f32>) {
    if !values.is_empty() {
        work.gradient.tables.push(TableGradient { table, rows, values });
    }
}

impl Algorithm for Kmeans {
    fn constants(&self, phase: JobPhase) -> Vec<PullItem> {
        let mut items = match (phase.stage, phase.trains) {
            (Some(Stage::Centre), _) => return Vec::new(),
            (Some(Stage::Spread | Stage::Candidates { round: 0 }), _) => Vec::new(),
            (Some(Stage::Candidates { round }), _) => vec![self.candidates_before(round)],
            (Some(Stage::Counts), _) => vec![self.rows(self.candidates, 0..self.candidate_rows)],
            (None, Some(0)) => {
                let rows = 0..self.candidate_rows;
                let values = vec![0.0; self.candidate_rows as usize];
                let counts =
                    PullItem { table: self.counts, rows: Rows::Range(rows.clone()), values };
                vec![self.rows(self.candidates, rows), counts]
            }
            (None, Some(pass)) => self.after(pass - 1).into(),
            (None, None) => self.after(phase.scores.unwrap_or(0)).into(),
        };
        items.push(self.columns.pull());
        items
    }

    fn indexes_features(&self, phase: JobPhase) -> bool {
        matches!(phase.stage, Some(Stage::Centre | Stage::Spread))
    }

    fn begin(&mut self, phase: JobPhase, mut constants: Vec<PullItem>) -> Result<(), Failure> {
        let Some(stats) = constants.pop() else {
            self.mode = KmeansMode::Centre;
            return Ok(());
        };
        self.mode = match phase.stage {
            Some(Stage::Spread) => {
                let (records, clusters) = (records(&stats.values), self.clusters as f64);
                if records < clusters {
                    let text = format!(
                        "model.clusters: is {clusters}, must not be above the {records} records of the training data"
                    );
                    return Err(Failure::new(ErrorClass::Input, text));
                }
                KmeansMode::Spread { mean: means(&stats.values)? }
            }
            _ => self.placed(phase, Space::of(&stats.values, self.standardise)?, &constants)?,
        };
        Ok(())
    }

    fn prepare(&mut self, _work: &mut StepWork) {}

    fn compute(&mut self, work: &mut StepWork, metrics: &mut TaskMetrics) {
        let rows = work.batch.rows() as u64;
        match &self.mode {
            KmeansMode::Centre => self.columns.centre(work, metrics),
            KmeansMode::Spread { mean } => {
                self.columns.spread(mean, LabelScale::NONE, work, metrics)
            }
            KmeansMode::Candidates { round, candidates } => {
                self.draw(*round, candidates, work);
                metrics.rows += rows;
            }
            KmeansMode::Counts { candidates, rows: of } => {
                self.count(candidates, of, work);
                metrics.rows += rows;
            }
            KmeansMode::Assign { scorer, figures, pass } => {
                metrics.clusters = *figures;
                match pass {
                    Some(pass) => self.assign(scorer, *pass, work, metrics),
                    None => {
                        let (objective, batch) = (LossFunction::Distance.into(), &work.batch);
                        scorer.evaluate(objective, batch, &batch.indices, metrics);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use heddle_optimizer::{Optimizer, is_less};
    use heddle_protocol::ids::TaskId;
    use heddle_protocol::job_spec::AlgorithmKind;

    use super::*;
    use crate::run::tests::sample;

    fn spec() -> JobSpec {
        let mut spec = sample();
        spec.model.algorithm = AlgorithmKind::Kmeans;
        spec.model.optimizer = Optimizer::default();
        spec.model.features = 2;
        (spec.model.clusters, spec.model.init_rounds, spec.model.tolerance) = (2, 3, 1e-4);
        spec
    }

    /// Sums of two columns over `records` records.
    fn stats(records: f32) -> Vec<f32> {
        [[0.0, records, 8.0], [0.0, records, 8.0], [records, records, 0.0]].concat()
    }

    /// The algorithm in a phase, with these values of all constants but the sums of the columns.
    fn in_phase(phase: JobPhase, tables: &[&[f32]], records: f32) -> Result<Kmeans, Failure> {
        let mut kmeans = Kmeans::new(&spec());
        let mut constants = kmeans.constants(phase);
        let stats = stats(records);
        for (item, values) in constants.iter_mut().zip(tables.iter().copied().chain([&stats[..]])) {
            assert_eq!(item.values.len(), values.len(), "{phase:?}");
            item.values = values.to_vec();
        }
        kmeans.begin(phase, constants)?;
        Ok(kmeans)
    }

    /// A step over records `from` to `to` of the task, at (n, n² mod 7).
    fn step(kmeans: &mut Kmeans, from: u32, to: u32, metrics: &mut TaskMetrics) -> StepWork {
        let mut work =
            StepWork { task: TaskId(4), first_record: u64::from(from), ..StepWork::default() };
        for n in from..to {
            work.batch.indices.extend([0, 1]);
            work.batch.values.extend([n as f32, (n * n % 7) as f32]);
            work.batch.end_row_as_written(1.0);
        }
        kmeans.prepare(&mut work);
        kmeans.compute(&mut work, metrics);
        work
    }

    fn keys(rows: &Rows) -> Vec<u32> {
        match rows {
            Rows::Keys(keys) => keys.clone(),
            Rows::Range(range) => (range.start as u32..range.end as u32).collect(),
            Rows::Positions(_) => unreachable!("tables of k-means are dense"),
        }
    }

    #[test]
    fn draws_do_not_depend_on_batches() {
        let phase = JobPhase::measurement(Stage::Candidates { round: 2 });
        // One candidate of round 0, and three of the four slots of round 1.
        let mut candidates = vec![0.1, 3.0, 2.0, 0.5, 9.0, 4.0, 0.5, 0.0, 0.0, 0.5, 20.0, 1.0];
        candidates.extend([f32::MAX; 3]);
        let mut kmeans = in_phase(phase, &[&candidates], 40.0).expect("sound constants");
        let mut rows_of = |parts: &[(u32, u32)]| {
            let mut best = vec![[f32::MAX; 3]; 13];
            for (from, to) in parts {
                let work = step(&mut kmeans, *from, *to, &mut TaskMetrics::default());
                let push = &work.gradient.tables[0];
                for (key, row) in keys(&push.rows).iter().zip(push.values.chunks_exact(3)) {
                    let own = &mut best[*key as usize];
                    if is_less(row, own) {
                        own.copy_from_slice(row);
                    }
                }
            }
            best
        };
        let whole = rows_of(&[(0, 40)]);
        assert_eq!(whole, rows_of(&[(30, 40), (0, 7), (7, 30)]));
        let drawn: Vec<usize> = (0..13).filter(|row| whole[*row][0] < f32::MAX).collect();
        assert_eq!(drawn, [5, 6, 7, 8], "the slots of round 2");
        assert!(
            whole[5..9].iter().all(|row| row[1..] != [3.0, 2.0]),
            "a candidate is at no distance"
        );
    }

    #[test]
    fn pass_pushes_sums_and_the_centres_before_it() {
        let mut previous = vec![-3.0, 0.0, 0.0, -3.0, 100.0, 0.0];
        let centres = [0.0, 0.0, 5.0, 50.0, 3.0, 0.0];
        let phase = JobPhase::training(3);
        let mut kmeans = in_phase(phase, &[&centres, &previous], 40.0).expect("sound constants");
        let mut metrics = TaskMetrics::default();
        let work = step(&mut kmeans, 0, 3, &mut metrics);
        let [sums, before] = &work.gradient.tables[..] else { panic!("{:?}", work.gradient) };
        // (0, 0), (1, 1), (2, 4) are nearest to (0, 0).
        assert_eq!((keys(&sums.rows), &sums.values[..]), (vec![0], &[3.0, 5.0, 3.0][..]));
        // Cluster 1 had no record: its centre is that before the pass.
        assert_eq!(keys(&before.rows), [2, 3]);
        assert_eq!(before.values, [-4.0, 0.0, 0.0, -4.0, 100.0, 0.0]);
        assert_eq!((metrics.rows, metrics.loss_sum), (3, 22.0));
        assert_eq!(metrics.clusters, Some(ClusterFigures { moved: 0.0, empty: 1 }));
        let later = step(&mut kmeans, 3, 5, &mut metrics);
        assert_eq!(later.gradient.tables.len(), 1, "a task's first step alone has the centres");
        previous[0] = -2.0;
        assert!(in_phase(phase, &[&centres, &previous], 40.0).is_err());
    }

    #[test]
    fn more_clusters_than_records_are_an_error_of_the_input() {
        let phase = JobPhase::measurement(Stage::Spread);
        let failure = in_phase(phase, &[], 1.0).map(|_| ()).expect_err("two clusters");
        assert_eq!(failure.class, ErrorClass::Input);
        let text = "model.clusters: is 2, must not be above the 1 records of the training data";
        assert_eq!(failure.text, text);
        in_phase(phase, &[], 2.0).expect("enough");
    }
}
