//! Reports on stderr what a command waits for, after two seconds of silence.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::pin::pin;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Name of HDFS in the line that reports a wait.
pub const HDFS: &str = "HDFS";
/// A longer silence looks like a hang.
const REPORTED_AFTER: Duration = Duration::from_secs(2);

/// Awaits `future`, and reports `what` it waits for if that takes long. Each text is printed once per process.
pub async fn on<T>(what: impl Display, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    if let Ok(value) = tokio::time::timeout(REPORTED_AFTER, &mut future).await {
        return value;
    }
    report(&format!("waiting for {what}"));
    future.await
}

/// As [`on`], for work that blocks its thread.
pub fn while_blocked<T>(what: impl Display, work: impl FnOnce() -> T) -> T {
    let text = format!("waiting for {what}");
    let (done, is_done) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if is_done.recv_timeout(REPORTED_AFTER) == Err(RecvTimeoutError::Timeout) {
                report(&text);
            }
        });
        // Dropped at the end of the work, also if it panics.
        let _done = done;
        work()
    })
}

/// Prints a text on stderr, once per process and text.
pub fn report(text: &str) {
    if is_new(text) {
        eprintln!("{text}");
    }
}

fn is_new(text: &str) -> bool {
    static REPORTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut reported = REPORTED.lock().unwrap_or_else(PoisonError::into_inner);
    reported.insert(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_new_once() {
        assert!(is_new("waiting for the test"));
        assert!(!is_new("waiting for the test"));
    }
}
