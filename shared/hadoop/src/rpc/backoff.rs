//! Pauses between the rounds of tries over all servers.

use std::time::Duration;

/// Pauses that double from `first` up to `max`, each multiplied by a random factor of 0.5 to 1.5.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JitteredBackoff {
    /// First pause. Default 200 ms.
    pub first: Duration,
    /// Longest pause. Default 2 s: an ApplicationMaster reconnects well within its expiry, and a server receives one call
    /// per client in 2 s.
    pub max: Duration,
}

impl Default for JitteredBackoff {
    fn default() -> Self {
        Self { first: Duration::from_millis(200), max: Duration::from_secs(2) }
    }
}

impl JitteredBackoff {
    /// The pause before round `round` (0 for the first pause). `random` is any random number.
    pub fn pause(&self, round: u32, random: u64) -> Duration {
        let doubled = self.first.saturating_mul(2_u32.saturating_pow(round.min(31))).min(self.max);
        // The factor is 512/1024 to 1535/1024.
        let factor = 512 + u32::try_from(random % 1024).expect("below 1024");
        doubled.saturating_mul(factor) / 1024
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BACKOFF: JitteredBackoff =
        JitteredBackoff { first: Duration::from_millis(100), max: Duration::from_secs(1) };

    proptest! {
        #[test]
        fn pauses_stay_within_half_and_one_and_a_half_of_the_limit(round: u32, random: u64) {
            let pause = BACKOFF.pause(round, random);
            prop_assert!(pause >= BACKOFF.first / 2);
            prop_assert!(pause < BACKOFF.max * 3 / 2);
        }
    }
}
