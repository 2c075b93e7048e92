//! The sizes that a job can use, between its minimum and its top.

use std::iter::Sum;
use std::ops::Add;

use serde::{Deserialize, Serialize};

/// Numbers of containers of a job, or of a job's containers on a node. Ordered by trainers.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(default)]
pub struct ContainerCounts {
    /// Trainers.
    pub trainers: u32,
    /// Pservers.
    pub pservers: u32,
}

impl ContainerCounts {
    /// Trainers, pservers.
    #[must_use]
    pub const fn new(trainers: u32, pservers: u32) -> Self {
        Self { trainers, pservers }
    }

    /// What this has more than `other`, of each role.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self {
            trainers: self.trainers.saturating_sub(other.trainers),
            pservers: self.pservers.saturating_sub(other.pservers),
        }
    }

    /// Whether `other` has at least as many of each role.
    #[must_use]
    pub fn is_within(self, other: Self) -> bool {
        self.trainers <= other.trainers && self.pservers <= other.pservers
    }

    /// Without trainers and pservers.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }
}

impl Add for ContainerCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            trainers: self.trainers.saturating_add(other.trainers),
            pservers: self.pservers.saturating_add(other.pservers),
        }
    }
}

impl Sum for ContainerCounts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), Add::add)
    }
}

/// The range of a job's sizes, from its job file and what its ApplicationMaster reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeRange {
    /// At least 1. The caller bounds the range: one size each is listed.
    pub trainers_min: u32,
    /// At least `trainers_min`.
    pub trainers_max: u32,
    /// Trainers that the job can use at present: tasks that are left, or where more did not help.
    pub trainers_useful: u32,
    /// BSP: lanes of the job. ASP and SSP: absent.
    pub lanes: Option<u32>,
    /// Pservers at `trainers_min`.
    pub pservers_min: u32,
    /// Pservers at the top.
    pub pservers_max: u32,
}

impl SizeRange {
    /// The trainers above which the job does not grow: its maximum, or what is useful to it, but not below its minimum.
    #[must_use]
    pub fn top(&self) -> u32 {
        self.trainers_max.min(self.trainers_useful).max(self.trainers_min)
    }

    /// Ascending, from the minimum. Pservers grow in proportion to trainers.
    ///
    /// A BSP step takes as long as the trainer with most lanes, ⌈lanes / n⌉ of them. A number of trainers that leaves this as it
    /// is with one trainer less only costs containers, so it is left out. The minimum is in, whatever it gives.
    #[must_use]
    pub fn sizes(&self) -> Vec<ContainerCounts> {
        let top = self.top();
        let is_useful = |trainers: &u32| match self.lanes {
            Some(lanes) if *trainers > self.trainers_min.max(1) => {
                lanes.div_ceil(*trainers) < lanes.div_ceil(trainers - 1)
            }
            _ => true,
        };
        let trainers: Vec<u32> = (self.trainers_min..=top).filter(is_useful).collect();
        let range = u64::from(trainers.last().copied().unwrap_or(top) - self.trainers_min);
        let pservers = |trainers: u32| {
            let more = u64::from(self.pservers_max.saturating_sub(self.pservers_min));
            let grown = u64::from(trainers - self.trainers_min);
            let more = (more * grown).checked_div(range).unwrap_or(0);
            self.pservers_min + u32::try_from(more).expect("a part of a u32")
        };
        trainers.into_iter().map(|n| ContainerCounts::new(n, pservers(n))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(lanes: Option<u32>, min: u32, max: u32, useful: u32) -> SizeRange {
        SizeRange {
            trainers_min: min,
            trainers_max: max,
            trainers_useful: useful,
            lanes,
            pservers_min: 1,
            pservers_max: 4,
        }
    }

    fn trainers(range: SizeRange) -> Vec<u32> {
        range.sizes().iter().map(|size| size.trainers).collect()
    }

    #[test]
    fn sizes_skip_numbers_that_do_not_shorten_a_bsp_step() {
        assert_eq!(trainers(range(Some(12), 1, 12, 99)), [1, 2, 3, 4, 6, 12]);
        assert_eq!(trainers(range(Some(12), 5, 11, 99)), [5, 6], "the minimum is a size");
        assert_eq!(trainers(range(None, 2, 5, 99)), [2, 3, 4, 5]);
    }

    #[test]
    fn sizes_end_at_what_is_useful_but_not_below_the_minimum() {
        assert_eq!(trainers(range(None, 2, 9, 4)), [2, 3, 4]);
        assert_eq!(trainers(range(None, 3, 9, 1)), [3]);
    }

    #[test]
    fn pservers_grow_in_proportion_to_trainers() {
        let pservers: Vec<u32> =
            range(None, 1, 7, 99).sizes().iter().map(|size| size.pservers).collect();
        assert_eq!(pservers, [1, 1, 2, 2, 3, 3, 4]);
    }
}
