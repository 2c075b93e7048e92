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

/// The two measurements of standardisation. Two passes, since a sum of squares in one loses digits
/// where the mean is large beside the spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// Sums of the columns and the number of rows: gives the means.
    Centre,
    /// Sums of squared distances from the means: gives the variances.
    Spread,
}

/// How many measurements come before the first pass.
fn measures(spec: &JobSpec) -> u32 {
    let built_in = spec.model.algorithm != AlgorithmKind::Custom;
    if built_in && spec.model.standardise { 2 } else { 0 }
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
        let stage = if phase.0 == 0 { Stage::Centre } else { Stage::Spread };
        return Some(PhaseKind::Measure(stage));
    };
    let pass = after / per_pass(spec);
    match after % per_pass(spec) {
        0 => Some(PhaseKind::Train { pass }),
        _ => Some(PhaseKind::Evaluate { pass }),
    }
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
