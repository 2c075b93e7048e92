//! Turn counters: whether a thread of this process still runs.
//!
//! The control thread sends heartbeats whatever the other threads do. Each thread that must not hang notes its turns, and
//! the heartbeat names the one whose last turn is too long ago.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use heddle_protocol::control::ThreadTurn;

/// Stands for a thread that waits.
const WAITS: u64 = u64::MAX;
/// Idle threads take a turn each second; what is not older than this is not worth a word.
const REPORTED_MS: u64 = 2_000;

/// When a thread last took a turn. One thread writes it, and another reads it.
#[derive(Debug)]
pub struct TurnCounter {
    base: Instant,
    /// Milliseconds since `base`, or [`WAITS`].
    turned: AtomicU64,
}

impl Default for TurnCounter {
    /// A thread that waits.
    fn default() -> Self {
        Self { base: Instant::now(), turned: AtomicU64::new(WAITS) }
    }
}

impl TurnCounter {
    /// The thread takes a turn.
    pub fn turn(&self) {
        self.turned.store(self.elapsed_ms(), Ordering::Relaxed);
    }

    /// The thread waits for others, for as long as they take.
    pub fn wait(&self) {
        self.turned.store(WAITS, Ordering::Relaxed);
    }

    /// Time since the last turn, ms; 0 while it waits.
    #[must_use]
    pub fn age_ms(&self) -> u64 {
        match self.turned.load(Ordering::Relaxed) {
            WAITS => 0,
            turned => self.elapsed_ms().saturating_sub(turned),
        }
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.base.elapsed().as_millis()).unwrap_or(WAITS - 1)
    }
}

/// For a heartbeat: of these threads with their ages, the one whose last turn is longest ago, if that is long.
#[must_use]
pub fn slowest(threads: impl IntoIterator<Item = (String, u64)>) -> Option<ThreadTurn> {
    let slowest = threads.into_iter().max_by_key(|(_, turn_ms)| *turn_ms);
    let (thread, turn_ms) = slowest.filter(|(_, turn_ms)| *turn_ms >= REPORTED_MS)?;
    Some(ThreadTurn { thread, turn_ms })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a test waits")]
    use std::time::Duration;

    use super::*;

    #[test]
    fn waiting_thread_has_no_age() {
        let turn = TurnCounter::default();
        assert_eq!(turn.age_ms(), 0);
        turn.turn();
        std::thread::sleep(Duration::from_millis(20));
        assert!(turn.age_ms() >= 20);
        turn.wait();
        assert_eq!(turn.age_ms(), 0);
    }

    #[test]
    fn only_a_thread_that_is_late_is_named() {
        let ages = |first, second| [("data-0".to_owned(), first), ("data-1".to_owned(), second)];
        assert_eq!(slowest(ages(1_100, 900)), None);
        let late = ThreadTurn { thread: "data-1".to_owned(), turn_ms: 2_500 };
        assert_eq!(slowest(ages(1_100, 2_500)), Some(late));
        assert_eq!(slowest([]), None);
    }
}
