//! The rate limit of checkpoints: `checkpoint.bandwidth`, shared by all savers of a pserver.
//!
//! A token bucket that fills at the rate and holds a little more than one piece. A saver takes bytes and waits until they
//! have flowed in. The rate therefore holds over any time longer than the bucket takes to fill, and savers share it piece by
//! piece. [`Throttle`] is pure: times are arguments.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The rate limit that all savers of a pserver share.
pub(crate) struct BandwidthLimit {
    started: Instant,
    /// Not on the data path: a saver takes from it once for each piece.
    throttle: Mutex<Throttle>,
}

impl BandwidthLimit {
    /// At most `bytes_per_second`.
    pub(crate) fn new(bytes_per_second: u64) -> Arc<Self> {
        Arc::new(Self {
            started: Instant::now(),
            throttle: Mutex::new(Throttle::new(bytes_per_second)),
        })
    }

    /// Waits until `bytes` may be written. Returns for how long.
    pub(crate) async fn wait(&self, bytes: usize) -> Duration {
        let wait = {
            let mut throttle = self.throttle.lock().unwrap_or_else(PoisonError::into_inner);
            throttle.take(bytes as u64, self.started.elapsed())
        };
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        wait
    }
}

/// Bytes that may be written at once after a pause: those of a tenth of a second, and at least one piece of a saver.
fn burst(rate: u64) -> u64 {
    (rate / 10).max(512 << 10)
}

/// The bucket.
#[derive(Debug)]
struct Throttle {
    /// Bytes per second.
    rate: u64,
    /// When all taken bytes have flowed in, on the same clock as `now`.
    paid: Duration,
}

impl Throttle {
    /// A bucket of `rate` bytes per second, at least 1.
    fn new(rate: u64) -> Self {
        Self { rate: rate.max(1), paid: Duration::ZERO }
    }

    /// Takes `bytes`, and returns how long to wait before they are written. Times are since a fixed moment.
    fn take(&mut self, bytes: u64, now: Duration) -> Duration {
        let room = self.time_of(burst(self.rate));
        // A full bucket overflows.
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
    fn burst_after_a_pause_is_free_then_the_rate_holds() {
        let mut throttle = Throttle::new(100 * MIB);
        let begin = Duration::from_secs(5);
        assert_eq!(throttle.take(10 * MIB, begin), Duration::ZERO);
        assert_eq!(throttle.take(MIB, begin), Duration::from_millis(10));
        assert_eq!(throttle.take(MIB, begin), Duration::from_millis(20));
        let later = begin + Duration::from_millis(20);
        assert_eq!(throttle.take(MIB, later), Duration::from_millis(10));
    }

    #[test]
    fn rate_below_one_piece_per_second_still_flows() {
        let mut throttle = Throttle::new(1024);
        assert_eq!(throttle.take(512 << 10, Duration::from_secs(600)), Duration::ZERO);
        assert_eq!(throttle.take(512 << 10, Duration::from_secs(600)), Duration::from_secs(512));
    }

    proptest! {
        /// A saver that waits as required never writes more than the rate and one burst.
        #[test]
        fn the_rate_holds(
            takes in prop::collection::vec((1u64..4 * MIB, 0u64..200), 1..100),
            rate in 1u64..1 << 30,
        ) {
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
