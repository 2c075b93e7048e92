//! Counts what a saver has written and how long it took, for heartbeats.

use std::time::{Duration, Instant};

use heddle_protocol::process_figures::{FigureCells, ProcessFigure};

/// A saver at work. Its time is counted piece by piece: a save may take minutes.
pub(crate) struct SaverTime<'a> {
    figures: &'a FigureCells,
    since: Instant,
    throttled: Duration,
    /// Milliseconds that are counted: of the time since `since`, and of `throttled`.
    counted_ms: [u64; 2],
}

impl<'a> SaverTime<'a> {
    /// Begins to time a saver, until the result is dropped.
    pub(crate) fn start(figures: &'a FigureCells) -> Self {
        Self { figures, since: Instant::now(), throttled: Duration::ZERO, counted_ms: [0; 2] }
    }

    /// It has written `bytes` and waited `throttled` for the limit before them.
    pub(crate) fn wrote(&mut self, bytes: usize, throttled: Duration) {
        self.figures.add(ProcessFigure::SavedBytes, bytes as u64);
        self.throttled += throttled;
        self.count_time();
    }

    fn count_time(&mut self) {
        let passed = [self.since.elapsed(), self.throttled].map(|time| time.as_millis() as u64);
        let figures = [ProcessFigure::SaverTime, ProcessFigure::SaverThrottled];
        for ((figure, now), counted) in figures.into_iter().zip(passed).zip(&mut self.counted_ms) {
            self.figures.add(figure, now - std::mem::replace(counted, now));
        }
    }
}

impl Drop for SaverTime<'_> {
    fn drop(&mut self) {
        // The figures of saving are shown from the first byte on.
        if self.figures.read().known(ProcessFigure::SavedBytes).is_some() {
            self.count_time();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_times_add_up() {
        let figures = FigureCells::new();
        drop(SaverTime::start(&figures));
        assert_eq!(figures.read().known(ProcessFigure::SaverTime), None);
        let mut first = SaverTime::start(&figures);
        let mut second = SaverTime::start(&figures);
        std::thread::sleep(Duration::from_millis(20));
        first.wrote(1000, Duration::from_micros(6_500));
        first.wrote(0, Duration::from_micros(500));
        drop(first);
        second.wrote(24, Duration::ZERO);
        drop(second);
        let saved = figures.read();
        assert_eq!(saved.get(ProcessFigure::SavedBytes), 1024);
        assert_eq!(saved.get(ProcessFigure::SaverThrottled), 7, "parts of milliseconds add up");
        let saver_ms = saved.get(ProcessFigure::SaverTime);
        assert!(saver_ms >= 40, "two savers of 20 ms each: {saver_ms}");
    }
}
