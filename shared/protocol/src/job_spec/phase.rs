//! The job as a fixed sequence of phases, numbered from 0, each described by what it does.
//!
//! All collective work happens in phases: measuring the data before the first pass, the passes, the
//! evaluations between them. Which phase has which number follows from the spec alone, so that all
//! processes and attempts agree without a message. Early stopping ends the sequence sooner, and
//! raising `data.passes` of a resumed job makes it longer; neither renumbers a phase.
//!
//! A kind of job is a list of phases. The ApplicationMaster and the trainers read the fields of a [`JobPhase`] and do not ask
//! for the kind, so that another kind needs a list here and an algorithm.

use super::algorithm::AlgorithmKind;
use super::job::JobSpec;
use super::options::JobKind;
use crate::ids::PhaseNo;

/// What a phase does with the tables, in the order of what it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TableUse {
    /// It works without tables. If this holds for all phases, the job has no pservers.
    None,
    /// It reads them: its tasks may be computed several times.
    Read,
    /// It pushes to them, in the order of `training.consistency`.
    Push,
}

/// A phase, described by what it does. It ends when all of its tasks are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobPhase {
    /// Whether it reads `data.train`; else `data.test`.
    pub reads_training_data: bool,
    /// What it does with the tables.
    pub tables: TableUse,
    /// What it measures; `None` after the measurements.
    pub stage: Option<Stage>,
    /// The pass that it is, from 0: its loss is recorded, and checkpoints are due by it.
    pub trains: Option<u32>,
    /// The pass whose figures it gives, from 0: training may end after it.
    pub scores: Option<u32>,
}

impl JobPhase {
    /// Once over the training data to measure its columns, before the first pass.
    #[must_use]
    pub const fn measurement(stage: Stage) -> Self {
        Self { stage: Some(stage), trains: None, ..Self::training(0) }
    }

    /// A pass over the training data, from 0.
    #[must_use]
    pub const fn training(pass: u32) -> Self {
        Self {
            reads_training_data: true,
            tables: TableUse::Push,
            stage: None,
            trains: Some(pass),
            scores: None,
        }
    }

    /// Scores the test data with the values after a pass, from 0, changing nothing.
    #[must_use]
    pub const fn evaluation(pass: u32) -> Self {
        Self {
            reads_training_data: false,
            tables: TableUse::Read,
            stage: None,
            trains: None,
            scores: Some(pass),
        }
    }

    /// Whether it pushes to the tables.
    #[must_use]
    pub const fn pushes(&self) -> bool {
        matches!(self.tables, TableUse::Push)
    }
}

/// What is measured. Standardisation takes two passes, since a sum of squares in one loses digits
/// where the mean is large beside the spread. K-means takes the same two, and those that choose its first centres
/// (k-means||: Bahmani et al., VLDB 2012).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Sums of the columns and the number of rows: gives the means.
    Centre,
    /// Sums of squared distances from the means: gives the variances.
    Spread,
    /// K-means: draws records as candidates, each by its squared distance from the candidates of earlier rounds.
    Candidates {
        /// From 0: a single record, each by its weight.
        round: u32,
    },
    /// K-means: the records nearest to each candidate.
    Counts,
}

/// How many measurements come before the first pass.
fn measures(spec: &JobSpec) -> u32 {
    match spec.model.algorithm {
        _ if spec.kind != JobKind::Train => 0,
        AlgorithmKind::Custom => 0,
        // Means and variances, the first candidate, the others, their counts.
        AlgorithmKind::Kmeans => 2 + 1 + spec.model.init_rounds + 1,
        _ if spec.is_scaled() => 2,
        _ => 0,
    }
}

/// The measurement of a phase before the first pass.
fn stage(spec: &JobSpec, no: u32) -> Stage {
    match no {
        0 => Stage::Centre,
        1 => Stage::Spread,
        no if no - 2 <= spec.model.init_rounds => Stage::Candidates { round: no - 2 },
        _ => Stage::Counts,
    }
}

/// The phases of each pass.
fn of_pass(spec: &JobSpec) -> &'static [fn(u32) -> JobPhase] {
    match spec.kind {
        JobKind::Train if spec.data.test.is_empty() => &[JobPhase::training],
        JobKind::Train => &[JobPhase::training, JobPhase::evaluation],
        JobKind::Evaluate => &[JobPhase::evaluation],
    }
}

fn passes(spec: &JobSpec) -> u32 {
    match spec.kind {
        JobKind::Train => spec.data.passes,
        JobKind::Evaluate => 1,
    }
}

/// The first training phase.
#[must_use]
pub fn training_from(spec: &JobSpec) -> PhaseNo {
    PhaseNo(measures(spec))
}

/// How many phases the job has if nothing stops it early.
#[must_use]
pub fn phase_count(spec: &JobSpec) -> u32 {
    // `check` bounds passes well below overflow.
    measures(spec) + passes(spec) * of_pass(spec).len() as u32
}

/// The phase of this number; `None` if the job ends before it.
#[must_use]
pub fn job_phase(spec: &JobSpec, no: PhaseNo) -> Option<JobPhase> {
    if no.0 >= phase_count(spec) {
        return None;
    }
    let Some(after) = no.0.checked_sub(measures(spec)) else {
        return Some(JobPhase::measurement(stage(spec, no.0)));
    };
    let of_pass = of_pass(spec);
    let (pass, turn) = (after / of_pass.len() as u32, after as usize % of_pass.len());
    let mut phase = of_pass[turn](pass);
    if spec.model.algorithm == AlgorithmKind::Kmeans && spec.data.test.is_empty() {
        // Each pass gives the figures of the centres before it.
        phase.scores = phase.trains;
    }
    if spec.pservers.count == 0 && !phase.pushes() {
        phase.tables = TableUse::None;
    }
    Some(phase)
}

/// The most that a phase of the job does with the tables: what it needs pservers and checkpoints for.
#[must_use]
pub fn table_use(spec: &JobSpec) -> TableUse {
    // Each pass does the same.
    let phases = 0..measures(spec) + of_pass(spec).len() as u32;
    let used = phases.filter_map(|no| Some(job_phase(spec, PhaseNo(no))?.tables));
    used.max().unwrap_or(TableUse::None)
}

/// Phases after this one that read the training data, or the test data.
#[must_use]
pub fn phases_after(spec: &JobSpec, no: PhaseNo, training_data: bool) -> u32 {
    let reads = |phase: &JobPhase| phase.reads_training_data == training_data;
    let each = of_pass(spec).iter().filter(|phase| reads(&phase(0))).count() as u32;
    let (per_pass, next) = (of_pass(spec).len() as u32, no.0 + 1);
    // The phases up to the next pass one by one: passes are many.
    let pass = next.saturating_sub(measures(spec)).div_ceil(per_pass);
    let whole = passes(spec).saturating_sub(pass);
    let begun = next..measures(spec) + pass * per_pass;
    let begun = begun.filter_map(|no| job_phase(spec, PhaseNo(no))).filter(reads).count();
    begun as u32 + each * whole
}

/// The passes that have begun where `no` is the present phase; `is_at_start`: its work is all to be done.
#[must_use]
pub fn passes_begun(spec: &JobSpec, no: PhaseNo, is_at_start: bool) -> u32 {
    let (after, of_pass) = (no.0.saturating_sub(measures(spec)) as usize, of_pass(spec));
    let begins = no.0 >= measures(spec) && after.is_multiple_of(of_pass.len());
    after.div_ceil(of_pass.len()) as u32 + u32::from(begins && !is_at_start)
}

/// A phase in words, of the job's own.
#[must_use]
pub fn phase_text(spec: &JobSpec, no: PhaseNo) -> String {
    let passes = passes(spec);
    match job_phase(spec, no) {
        None => "all passes done".to_owned(),
        Some(JobPhase { stage: Some(_), .. }) => {
            format!("measuring, {} of {}", no.0 + 1, measures(spec))
        }
        Some(JobPhase { trains: Some(pass), .. }) => format!("pass {} of {passes}", pass + 1),
        Some(_) if spec.kind == JobKind::Evaluate => "evaluation".to_owned(),
        Some(JobPhase { scores, .. }) => {
            format!("evaluation after pass {} of {passes}", scores.unwrap_or(0) + 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job_spec::job::sample;

    fn sequence(spec: &JobSpec) -> Vec<JobPhase> {
        (0..).map_while(|n| job_phase(spec, PhaseNo(n))).collect()
    }

    #[test]
    fn a_plain_job_is_its_passes() {
        let mut spec = sample();
        spec.data.passes = 2;
        assert_eq!(sequence(&spec), [JobPhase::training(0), JobPhase::training(1)]);
    }

    #[test]
    fn kmeans_draws_its_candidates_before_the_first_pass() {
        let mut spec = sample();
        spec.data.passes = 2;
        spec.model.algorithm = AlgorithmKind::Kmeans;
        (spec.model.clusters, spec.model.init_rounds) = (3, 2);
        let draw = |round| JobPhase::measurement(Stage::Candidates { round });
        assert_eq!(
            sequence(&spec),
            [
                JobPhase::measurement(Stage::Centre),
                JobPhase::measurement(Stage::Spread),
                draw(0),
                draw(1),
                draw(2),
                JobPhase::measurement(Stage::Counts),
                JobPhase { scores: Some(0), ..JobPhase::training(0) },
                JobPhase { scores: Some(1), ..JobPhase::training(1) },
            ]
        );
        let scored = |spec: &JobSpec| -> Vec<u32> {
            sequence(spec).iter().filter_map(|phase| phase.scores).collect()
        };
        assert_eq!(scored(&spec), [0, 1], "each pass has figures of its own");
        spec.data.test = spec.data.train.clone();
        assert_eq!(scored(&spec), [0, 1]);
        assert_eq!(sequence(&spec)[6].scores, None, "the test data has them instead");
        spec.model.algorithm = AlgorithmKind::LogisticRegression;
        spec.data.test = Vec::new();
        assert!(scored(&spec).is_empty());
    }

    #[test]
    fn evaluation_of_a_model_is_one_phase_that_pushes_nothing() {
        let mut spec = sample();
        spec.data.test = spec.data.train.clone();
        spec.model.standardise = true;
        assert_eq!(table_use(&spec), TableUse::Push);
        spec.kind = JobKind::Evaluate;
        assert_eq!(sequence(&spec), [JobPhase::evaluation(0)]);
        assert_eq!((table_use(&spec), spec.shards()), (TableUse::Read, 4));
        assert_eq!(phase_text(&spec, PhaseNo(0)), "evaluation");
        spec.pservers.count = 0;
        assert_eq!((table_use(&spec), spec.shards()), (TableUse::None, 0));
        assert!(spec.tables().is_empty());
    }

    #[test]
    fn pass_has_begun_with_its_first_step() {
        let mut spec = sample();
        spec.model.standardise = true;
        let begun = |spec: &JobSpec| -> Vec<(u32, u32)> {
            (0..7)
                .map(|no| [true, false].map(|at| passes_begun(spec, PhaseNo(no), at)).into())
                .collect()
        };
        assert_eq!(begun(&spec), [(0, 0), (0, 0), (0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]);
        spec.data.test = spec.data.train.clone();
        assert_eq!(begun(&spec), [(0, 0), (0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (2, 3)]);
    }

    #[test]
    fn measurements_come_first_and_evaluations_after_each_pass() {
        let mut spec = sample();
        spec.data.passes = 2;
        spec.data.test = spec.data.train.clone();
        spec.model.standardise = true;
        assert_eq!(
            sequence(&spec),
            [
                JobPhase::measurement(Stage::Centre),
                JobPhase::measurement(Stage::Spread),
                JobPhase::training(0),
                JobPhase::evaluation(0),
                JobPhase::training(1),
                JobPhase::evaluation(1),
            ]
        );
        assert_eq!(phase_count(&spec), 6);
        for no in 0..6 {
            for training_data in [true, false] {
                let later = sequence(&spec).into_iter().skip(no + 1);
                let reads = later.filter(|phase| phase.reads_training_data == training_data);
                let after = phases_after(&spec, PhaseNo(no as u32), training_data);
                assert_eq!(after as usize, reads.count(), "phase {no}");
            }
        }
    }
}
