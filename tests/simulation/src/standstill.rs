//! How long something stands still: by the clock, as a process that is stopped, or by events, of which a quiet cluster has one or
//! two a second and a busy one a thousand.

use super::chance::Chance;

/// Until when something stands still.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standstill {
    until_event: u64,
    until_ms: u64,
}

impl Standstill {
    /// For ever.
    pub const ENDLESS: Self = Self { until_event: u64::MAX, until_ms: 0 };

    /// Before this event.
    #[must_use]
    pub fn before_event(event: u64) -> Self {
        Self { until_event: event, until_ms: 0 }
    }

    /// Of a random length: up to three hundred events, or a blip, a pause that a job has to bear, or one that is longer than any
    /// limit for a silent process.
    #[must_use]
    pub fn random(events: u64, now_ms: u64, chance: &mut Chance) -> Self {
        if chance.one_in(2) {
            return Self::before_event(events + chance.below(300) as u64);
        }
        let most_ms = [3_000, 12_000, 40_000][chance.below(3)];
        Self { until_event: 0, until_ms: now_ms + chance.below(most_ms) as u64 }
    }

    /// Whether it still stands.
    #[must_use]
    pub fn holds(self, events: u64, now_ms: u64) -> bool {
        self.until_event > events || self.until_ms > now_ms
    }

    /// When it ends by the clock, if it does so later than now.
    #[must_use]
    pub fn ends_ms(self, now_ms: u64) -> Option<u64> {
        Some(self.until_ms).filter(|until| *until > now_ms)
    }
}
