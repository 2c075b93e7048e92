//! The score of a job, and the order in which jobs are served.

use std::cmp::{Ordering, Reverse};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::resources::ResourceVector;

/// The part of its range that a job has: (trainers − min) / (top − min). An exact fraction, since equal jobs must compare equal.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Score {
    above_min: u32,
    /// At least 1.
    range: u32,
}

impl Score {
    /// Of a job with `trainers`. 1 if the range has one size, and above 1 above the top.
    #[must_use]
    pub fn new(trainers: u32, min: u32, top: u32) -> Self {
        match top.saturating_sub(min) {
            0 => Self { above_min: 1, range: 1 },
            range => Self { above_min: trainers.saturating_sub(min), range },
        }
    }
}

impl From<Score> for f64 {
    fn from(score: Score) -> Self {
        Self::from(score.above_min) / Self::from(score.range)
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Self) -> Ordering {
        let product = |a: u32, b: u32| u64::from(a) * u64::from(b);
        product(self.above_min, other.range).cmp(&product(other.above_min, self.range))
    }
}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Score {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Score {}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.above_min, self.range)
    }
}

/// The place of a job in its order: lower ranks are served first, higher ones give first. The fields compare in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    pub class: Reverse<u32>,
    pub score: Score,
    /// Of one trainer.
    pub demand: ResourceVector,
    pub submitted_ms: u64,
    /// Index of the job among all by id, so that the order is total.
    pub job: usize,
}
