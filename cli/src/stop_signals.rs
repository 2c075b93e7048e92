//! SIGINT and SIGTERM to a command that waits for a job: the first asks for an orderly stop, the second for one at once.
//!
//! A signal often arrives twice: a scheduler sends it to the process group, and a launcher in that group passes it on.
//! The same signal within a second therefore counts once. One signal of the system is turned into an error of the write.

use std::time::{Duration, Instant};

use heddle_protocol::exit_code::ExitCode;
use nix::sys::signal::{SigSet, Signal::SIGXFSZ};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::CommandFailure;

/// Longer than a launcher takes to pass a signal on, shorter than the decision to press Ctrl-C again.
const REPEATED_WITHIN: Duration = Duration::from_secs(1);

/// Blocks SIGXFSZ in this process and its children: a write beyond the limit of a file's size (`ulimit -f`) is then an error
/// with a message, where the signal would end the process without one. To be called before threads are started.
pub fn outlive_file_limits() {
    let mut signals = SigSet::empty();
    signals.add(SIGXFSZ);
    let _best_effort = signals.thread_block();
}

/// The signals of this process from now on.
#[derive(Debug)]
pub struct StopSignals {
    interrupts: Signal,
    terminations: Signal,
    interrupted: Repeats,
    terminated: Repeats,
}

impl StopSignals {
    /// Takes over the two signals.
    ///
    /// # Errors
    /// The system refuses.
    pub fn register() -> Result<Self, CommandFailure> {
        let fail = |error| CommandFailure::of_system("cannot handle signals", &error);
        Ok(Self {
            interrupts: signal(SignalKind::interrupt()).map_err(fail)?,
            terminations: signal(SignalKind::terminate()).map_err(fail)?,
            interrupted: Repeats::default(),
            terminated: Repeats::default(),
        })
    }

    /// The next signal, as the exit code of a command that it ends.
    ///
    /// # Cancel safety
    /// No signal is lost.
    pub async fn next(&mut self) -> ExitCode {
        loop {
            tokio::select! {
                _ = self.interrupts.recv() => if self.interrupted.counts(Instant::now()) {
                    return ExitCode::Interrupted;
                },
                _ = self.terminations.recv() => if self.terminated.counts(Instant::now()) {
                    return ExitCode::Terminated;
                },
            }
        }
    }
}

/// When a signal was counted last; pure.
#[derive(Debug, Default)]
struct Repeats(Option<Instant>);

impl Repeats {
    fn counts(&mut self, now: Instant) -> bool {
        let repeated =
            self.0.is_some_and(|last| now.saturating_duration_since(last) < REPEATED_WITHIN);
        if !repeated {
            self.0 = Some(now);
        }
        !repeated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_arrives_twice_within_a_second_counts_once() {
        let mut repeats = Repeats::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let counted: Vec<_> = [0, 300, 999, 1000, 1500, 2100, 2200]
            .into_iter()
            .filter(|ms| repeats.counts(at(*ms)))
            .collect();
        // The time runs from the last that counted, so that repeated presses count at most once a second.
        assert_eq!(counted, [0, 1000, 2100]);
    }
}
