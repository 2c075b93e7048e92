//! The job as a fixed sequence of phases, numbered from 0.
//!
//! All collective work happens in phases: measuring the data before the first pass, the passes, the
//! evaluations between them. Which phase has which number follows from the spec alone, so that all
//! processes and attempts agree without a message. Early stopping ends the sequence sooner, and
//! raising `data.passes` of a resumed job makes it longer; neither renumbers a phase.

use serde::{Deserialize, Serialize};

use super::algorithm::AlgorithmKind;
use super::job::JobSpec;
use crate::ids::PhaseNo;

/// What a phase does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PhaseKind {
    /// Once over the training data to measure its columns, before the first pass.
    Measure(Stage),
    /// A pass over the training data.
    Train {
        /// From 0.
        pass: u32,
    },
    /// Scores the test data with the values after a pass, changing nothing.
    Evaluate {
        /// The pass it follows, from 0.
        pass: u32,
    },
}

impl PhaseKind {
    /// Whether it reads `data.train`; an evaluation reads `data.test`.
    #[must_use]
    pub fn reads_training_data(self) -> bool {
        match self {
            Self::Measure(_) | Self::Train { .. } => true,
            Self::Evaluate { .. } => false,
        }
    }
}

/// What is measured. Standardisation takes two passes, since a sum of squares in one loses digits
/// where the mean is large beside the spread. K-means takes the same two, and those that choose its first centres
/// (k-means||: Bahmani et al., VLDB 2012).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
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
        AlgorithmKind::Custom => 0,
        // Means and variances, the first candidate, the others, their counts.
        AlgorithmKind::Kmeans => 2 + 1 + spec.model.init_rounds + 1,
        _ if spec.model.standardise => 2,
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

/// The pass whose figures a phase gives: that of an evaluation, and of k-means without test data each pass itself.
#[must_use]
pub fn scored_pass(spec: &JobSpec, phase: PhaseNo) -> Option<u32> {
    let own_figures = spec.model.algorithm == AlgorithmKind::Kmeans && spec.data.test.is_empty();
    match phase_kind(spec, phase)? {
        PhaseKind::Evaluate { pass } => Some(pass),
        PhaseKind::Train { pass } if own_figures => Some(pass),
        PhaseKind::Train { .. } | PhaseKind::Measure(_) => None,
    }
}

/// The first training phase.
#[must_use]
pub fn training_from(spec: &JobSpec) -> PhaseNo {
    PhaseNo(measures(spec))
}

/// Phases per pass: training, and an evaluation if there is test data.
fn per_pass(spec: &JobSpec) -> u32 {
    if spec.data.test.is_empty() { 1 } else { 2 }
}

/// How many phases the job has if nothing stops it early.
#[must_use]
pub fn phase_count(spec: &JobSpec) -> u32 {
    // `check` bounds passes well below overflow.
    measures(spec) + spec.data.passes * per_pass(spec)
}

/// The kind of phase `phase`; `None` if the job ends before it.
#[must_use]
pub fn phase_kind(spec: &JobSpec, phase: PhaseNo) -> Option<PhaseKind> {
    if phase.0 >= phase_count(spec) {
        return None;
    }
    let Some(after) = phase.0.checked_sub(measures(spec)) else {
        return Some(PhaseKind::Measure(stage(spec, phase.0)));
    };
    let pass = after / per_pass(spec);
    match after % per_pass(spec) {
        0 => Some(PhaseKind::Train { pass }),
        _ => Some(PhaseKind::Evaluate { pass }),
    }
}

/// The passes that have begun where `phase` is the present one; `is_at_start`: nothing of it was done.
#[must_use]
pub fn passes_begun(spec: &JobSpec, phase: PhaseNo, is_at_start: bool) -> u32 {
    let after = phase.0.saturating_sub(measures(spec));
    let trains = phase.0 >= measures(spec) && after.is_multiple_of(per_pass(spec));
    after.div_ceil(per_pass(spec)) + u32::from(trains && !is_at_start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::job::sample;

    fn sequence(spec: &JobSpec) -> Vec<PhaseKind> {
        (0..).map_while(|n| phase_kind(spec, PhaseNo(n))).collect()
    }

    #[test]
    fn a_plain_job_is_its_passes() {
        let mut spec = sample();
        spec.data.passes = 2;
        assert_eq!(sequence(&spec), [PhaseKind::Train { pass: 0 }, PhaseKind::Train { pass: 1 }]);
    }

    #[test]
    fn kmeans_draws_its_candidates_before_the_first_pass() {
        let mut spec = sample();
        spec.data.passes = 2;
        spec.model.algorithm = AlgorithmKind::Kmeans;
        (spec.model.clusters, spec.model.init_rounds) = (3, 2);
        let draw = |round| PhaseKind::Measure(Stage::Candidates { round });
        assert_eq!(
            sequence(&spec),
            [
                PhaseKind::Measure(Stage::Centre),
                PhaseKind::Measure(Stage::Spread),
                draw(0),
                draw(1),
                draw(2),
                PhaseKind::Measure(Stage::Counts),
                PhaseKind::Train { pass: 0 },
                PhaseKind::Train { pass: 1 },
            ]
        );
        let scored = |spec: &JobSpec| -> Vec<u32> {
            (0..phase_count(spec)).filter_map(|no| scored_pass(spec, PhaseNo(no))).collect()
        };
        assert_eq!(scored(&spec), [0, 1], "each pass has figures of its own");
        spec.data.test = spec.data.train.clone();
        assert_eq!(scored(&spec), [0, 1]);
        assert_eq!(scored_pass(&spec, PhaseNo(6)), None, "those of the test data instead");
        spec.model.algorithm = AlgorithmKind::LogisticRegression;
        spec.data.test = Vec::new();
        assert!(scored(&spec).is_empty());
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
                PhaseKind::Measure(Stage::Centre),
                PhaseKind::Measure(Stage::Spread),
                PhaseKind::Train { pass: 0 },
                PhaseKind::Evaluate { pass: 0 },
                PhaseKind::Train { pass: 1 },
                PhaseKind::Evaluate { pass: 1 },
            ]
        );
        assert_eq!(phase_count(&spec), 6);
    }
}
