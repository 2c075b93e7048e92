//! Time as the core sees it: handed in with each event, never read.

use std::ops::Add;

use serde::{Deserialize, Serialize};

/// A point on the driver's monotonic clock: milliseconds since the driver started.
///
/// Comparable within one life of the ApplicationMaster only.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct MonotonicMs(pub u64);

impl MonotonicMs {
    /// Milliseconds from `earlier` to this; 0 if it is not earlier.
    #[must_use]
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<u64> for MonotonicMs {
    type Output = Self;

    /// This many milliseconds later.
    fn add(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }
}

/// The time of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// For deadlines and spans. Must not go back from one event to the next; one that does is taken
    /// as no time having passed.
    pub mono: MonotonicMs,
    /// For records and reports: milliseconds since 1970. Nothing is decided by it.
    pub wall_ms: u64,
}
