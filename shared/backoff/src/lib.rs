//! Waits between attempts: the first one, doubled after each attempt up to the longest one.
//!
//! [`Backoff`] holds no clock and draws no random number. Its owner waits, decides which errors are retried, and gives up.
//! An owner that retries in a loop calls [`Backoff::next_ms`]. A state machine that counts its tries calls
//! [`Backoff::after_ms`]. A client among many of one server calls [`Backoff::jittered_ms`] with a random number.
//!
//! ```
//! use heddle_backoff::Backoff;
//!
//! let mut backoff = Backoff::new(100, 300);
//! assert_eq!([backoff.next_ms(), backoff.next_ms(), backoff.next_ms()], [100, 200, 300]);
//! backoff.reset();
//! assert_eq!(backoff.next_ms(), 100);
//! ```

use std::time::Duration;

/// Waits of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    min_ms: u64,
    max_ms: u64,
    wait_ms: u64,
}

impl Backoff {
    /// Waits from `min_ms` to `max_ms`. `min_ms` is at most `max_ms`.
    #[must_use]
    pub const fn new(min_ms: u64, max_ms: u64) -> Self {
        debug_assert!(min_ms <= max_ms, "the first wait is longer than the longest");
        Self { min_ms, max_ms, wait_ms: min_ms }
    }

    /// The first wait in milliseconds.
    #[must_use]
    pub const fn min_ms(&self) -> u64 {
        self.min_ms
    }

    /// The longest wait in milliseconds.
    #[must_use]
    pub const fn max_ms(&self) -> u64 {
        self.max_ms
    }

    /// The wait in milliseconds after `tries` earlier failures, for owners that count their tries.
    #[must_use]
    pub const fn after_ms(&self, tries: u32) -> u64 {
        let wait_ms = self.min_ms.saturating_mul(2_u64.saturating_pow(tries));
        if wait_ms < self.max_ms { wait_ms } else { self.max_ms }
    }

    /// [`after_ms`](Self::after_ms) times a factor of 0.5 to 1.5 that follows from `random`, which is any random number.
    /// Many clients that failed at the same time do not retry in step.
    #[must_use]
    pub const fn jittered_ms(&self, tries: u32, random: u64) -> u64 {
        // The factor is 512/1024 to 1535/1024.
        let wait_ms = self.after_ms(tries) as u128 * (512 + random % 1024) as u128 / 1024;
        if wait_ms < u64::MAX as u128 { wait_ms as u64 } else { u64::MAX }
    }

    /// The next wait in milliseconds. Does not advance.
    #[must_use]
    pub const fn wait_ms(&self) -> u64 {
        self.wait_ms
    }

    /// The next wait in milliseconds. The one after it is twice as long.
    pub fn next_ms(&mut self) -> u64 {
        let wait_ms = self.wait_ms;
        self.wait_ms = wait_ms.saturating_mul(2).min(self.max_ms);
        wait_ms
    }

    /// [`next_ms`](Self::next_ms) as a duration.
    pub fn next_wait(&mut self) -> Duration {
        Duration::from_millis(self.next_ms())
    }

    /// Begins with the first wait again, after a success.
    pub fn reset(&mut self) {
        self.wait_ms = self.min_ms;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn waits_double_up_to_the_longest() {
        let mut backoff = Backoff::new(20, 1_000);
        let waits: Vec<u64> = (0..8).map(|_| backoff.next_ms()).collect();
        assert_eq!(waits, [20, 40, 80, 160, 320, 640, 1000, 1000]);
        let counted: Vec<u64> = (0..8).map(|tries| backoff.after_ms(tries)).collect();
        assert_eq!(counted, waits);
        assert_eq!(backoff.after_ms(u32::MAX), 1_000);
        backoff.reset();
        assert_eq!(backoff.wait_ms(), 20);
    }

    #[test]
    fn longest_wait_without_a_bound_does_not_overflow() {
        let mut backoff = Backoff::new(u64::MAX / 2, u64::MAX);
        for _ in 0..3 {
            backoff.next_ms();
        }
        assert_eq!(backoff.next_ms(), u64::MAX);
        assert_eq!(backoff.jittered_ms(u32::MAX, 1023), u64::MAX);
    }

    proptest! {
        #[test]
        fn jitter_stays_within_half_and_one_and_a_half(tries: u32, random: u64) {
            let backoff = Backoff::new(100, 1_000);
            let (plain, jittered) = (backoff.after_ms(tries), backoff.jittered_ms(tries, random));
            prop_assert!(plain / 2 <= jittered && jittered < plain * 3 / 2);
        }
    }
}
