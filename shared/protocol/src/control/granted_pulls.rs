//! SSP: what shards measure of the pulls that they grant.

use serde::{Deserialize, Serialize};

/// Upper bounds of the classes of [`GrantedPulls::by_gap`], ascending; one more class has all that is above.
pub const GAP_BOUNDS: [u64; 8] = [0, 1, 2, 4, 8, 16, 32, 64];

/// Granted pulls since the start of a data thread or, added up, of several.
///
/// The gap of a pull is its number minus the lowest clock at the moment of the grant: how many steps of the slowest
/// trainer its values may lack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct GrantedPulls {
    /// Pulls by class of their gap.
    pub by_gap: [u64; GAP_BOUNDS.len() + 1],
    /// Sum of the gaps.
    pub gap_sum: u64,
    /// The largest gap.
    pub gap_max: u64,
    /// Pulls that waited for clocks.
    pub waited: u64,
    /// How long they waited together, microseconds.
    pub waited_us: u64,
}

impl GrantedPulls {
    /// Counts a pull. `waited_us`: none for a pull that did not wait.
    pub fn grant(&mut self, gap: u64, waited_us: Option<u64>) {
        let class = GAP_BOUNDS.partition_point(|bound| *bound < gap);
        if let Some(pulls) = self.by_gap.get_mut(class) {
            *pulls += 1;
        }
        self.gap_sum = self.gap_sum.saturating_add(gap);
        self.gap_max = self.gap_max.max(gap);
        if let Some(us) = waited_us {
            self.waited += 1;
            self.waited_us = self.waited_us.saturating_add(us);
        }
    }

    /// Adds the pulls of others.
    pub fn add(&mut self, other: &Self) {
        for (sum, pulls) in self.by_gap.iter_mut().zip(&other.by_gap) {
            *sum = sum.saturating_add(*pulls);
        }
        self.gap_sum = self.gap_sum.saturating_add(other.gap_sum);
        self.gap_max = self.gap_max.max(other.gap_max);
        self.waited = self.waited.saturating_add(other.waited);
        self.waited_us = self.waited_us.saturating_add(other.waited_us);
    }

    /// All pulls.
    #[must_use]
    pub fn pulls(&self) -> u64 {
        self.by_gap.iter().fold(0, |sum, pulls| sum.saturating_add(*pulls))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pulls_are_counted_by_class_of_gap() {
        let mut granted = GrantedPulls::default();
        for (gap, waited) in [(0, None), (1, Some(5)), (3, None), (4, Some(7)), (65, None)] {
            granted.grant(gap, waited);
        }
        assert_eq!(granted.by_gap, [1, 1, 0, 2, 0, 0, 0, 0, 1]);
        assert_eq!((granted.gap_sum, granted.gap_max), (73, 65));
        assert_eq!((granted.waited, granted.waited_us, granted.pulls()), (2, 12, 5));
        let mut both = granted.clone();
        both.add(&granted);
        assert_eq!((both.pulls(), both.gap_sum, both.gap_max), (10, 146, 65));
    }
}
