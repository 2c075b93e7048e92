//! What the savers of a pserver have written, for its heartbeats.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use heddle_protocol::control::SavedBytes;

/// Counters that savers write and the control thread reads.
#[derive(Debug, Default)]
pub(crate) struct SaveCounters {
    bytes: AtomicU64,
    saver_us: AtomicU64,
    throttled_us: AtomicU64,
}

impl SaveCounters {
    /// Times a saver, until the result is dropped.
    pub(crate) fn saver(&self) -> SaverTime<'_> {
        SaverTime { counters: self, since: Instant::now() }
    }

    /// The figures; none before the first byte.
    pub(crate) fn read(&self) -> Option<SavedBytes> {
        let ms = |us: &AtomicU64| us.load(Ordering::Relaxed) / 1000;
        let bytes = self.bytes.load(Ordering::Relaxed);
        let (saver_ms, throttled_ms) = (ms(&self.saver_us), ms(&self.throttled_us));
        (bytes > 0).then_some(SavedBytes { bytes, saver_ms, throttled_ms })
    }
}

/// A saver at work. Its time is counted piece by piece: a save may take minutes.
pub(crate) struct SaverTime<'a> {
    counters: &'a SaveCounters,
    since: Instant,
}

impl SaverTime<'_> {
    /// It has written `bytes` and waited `throttled` for the limit before them.
    pub(crate) fn wrote(&mut self, bytes: usize, throttled: Duration) {
        let add = |sum: &AtomicU64, more: u64| sum.fetch_add(more, Ordering::Relaxed);
        add(&self.counters.bytes, bytes as u64);
        add(&self.counters.throttled_us, throttled.as_micros() as u64);
        self.count_time();
    }

    fn count_time(&mut self) {
        let now = Instant::now();
        let passed = now.duration_since(self.since).as_micros() as u64;
        self.counters.saver_us.fetch_add(passed, Ordering::Relaxed);
        self.since = now;
    }
}

impl Drop for SaverTime<'_> {
    fn drop(&mut self) {
        self.count_time();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_times_add_up() {
        let counters = SaveCounters::default();
        assert_eq!(counters.read(), None, "nothing was written");
        let mut first = counters.saver();
        let mut second = counters.saver();
        std::thread::sleep(Duration::from_millis(20));
        first.wrote(1000, Duration::from_millis(7));
        drop(first);
        second.wrote(24, Duration::ZERO);
        drop(second);
        let saved = counters.read().expect("bytes");
        assert_eq!((saved.bytes, saved.throttled_ms), (1024, 7));
        assert!(saved.saver_ms >= 40, "two savers of 20 ms each: {saved:?}");
    }
}
