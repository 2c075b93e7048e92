//! How fast checkpoints may be written: `checkpoint.bandwidth`, shared by all savers of a pserver.
//!
//! A bucket that fills at the rate and holds a little more than one piece: who takes from it waits until what was
//! taken has flowed in. So the rate holds over any stretch longer than the bucket's content takes to fill, and savers
//! share it piece by piece. Pure: time comes in.

use std::time::Duration;

/// Bytes that may be written at once after a pause. A tenth of a second's worth, and at least one piece of a saver.
fn burst(rate: u64) -> u64 {
    (rate / 10).max(512 << 10)
}

/// The bucket.
#[derive(Debug)]
pub(crate) struct Throttle {
    /// Bytes a second.
    rate: u64,
    /// When all that was taken will have flowed in, counted from the same beginning as `now`.
    paid: Duration,
}

impl Throttle {
    /// Lets through `rate` bytes a second, at least 1.
    pub(crate) fn new(rate: u64) -> Self {
        Self { rate: rate.max(1), paid: Duration::ZERO }
    }

    /// Takes `bytes`; how long to wait before they are written. Times count from a fixed moment.
    pub(crate) fn take(&mut self, bytes: u64, now: Duration) -> Duration {
        let room = self.time_of(burst(self.rate));
        // What flowed in beyond the bucket's brim is lost.
        self.paid = self.paid.max(now.saturating_sub(room));
        self.paid = self.paid.saturating_add(self.time_of(bytes));
        self.paid.saturating_sub(now)
    }

    fn time_of(&self, bytes: u64) -> Duration {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn after_a_pause_a_burst_is_free_and_then_the_rate_holds() {
        let mut throttle = Throttle::new(100 * MIB);
        let begin = Duration::from_secs(5);
        assert_eq!(throttle.take(10 * MIB, begin), Duration::ZERO);
        assert_eq!(throttle.take(MIB, begin), Duration::from_millis(10));
        assert_eq!(throttle.take(MIB, begin), Duration::from_millis(20));
        let later = begin + Duration::from_millis(20);
        assert_eq!(throttle.take(MIB, later), Duration::from_millis(10));
    }

    #[test]
    fn a_rate_below_one_piece_a_second_still_flows() {
        let mut throttle = Throttle::new(1024);
        assert_eq!(throttle.take(512 << 10, Duration::from_secs(600)), Duration::ZERO);
        assert_eq!(throttle.take(512 << 10, Duration::from_secs(600)), Duration::from_secs(512));
    }

    proptest! {
        /// Whoever waits as told never writes more than the rate and one burst in any stretch from the beginning.
        #[test]
        fn the_rate_holds(takes in prop::collection::vec((1u64..4 * MIB, 0u64..200), 1..100), rate in 1u64..1 << 30) {
            let mut throttle = Throttle::new(rate);
            let begin = Duration::from_secs(1_000_000);
            let (mut now, mut written) = (begin, 0u64);
            for (bytes, pause_ms) in takes {
                now += Duration::from_millis(pause_ms);
                now += throttle.take(bytes, now);
                written += bytes;
                let flowed = (now - begin).as_secs_f64() * rate as f64 + burst(rate) as f64;
                prop_assert!(written as f64 <= flowed * 1.000_001 + 1.0, "{written} of {flowed}");
            }
        }
    }
}
