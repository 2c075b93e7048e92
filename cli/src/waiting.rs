//! A command that is silent for two seconds says on stderr what it waits for.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::pin::pin;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A person takes a longer silence for a hang.
const SAID_AFTER: Duration = Duration::from_secs(2);

/// Awaits `future`; names `what` it waits for if that takes long. Each text is printed once per process.
pub async fn on<T>(what: impl Display, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    if let Ok(value) = tokio::time::timeout(SAID_AFTER, &mut future).await {
        return value;
    }
    say(&format!("waiting for {what}"));
    future.await
}

/// As [`on`], for work that blocks its thread.
pub fn while_blocked<T>(what: impl Display, work: impl FnOnce() -> T) -> T {
    let text = format!("waiting for {what}");
    let (done, is_done) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if is_done.recv_timeout(SAID_AFTER) == Err(RecvTimeoutError::Timeout) {
                say(&text);
            }
        });
        // Dropped at the end of the work, also of one that panics.
        let _done = done;
        work()
    })
}

/// Says on stderr what is waited for, once per process and text.
pub fn say(text: &str) {
    if is_new(text) {
        eprintln!("{text}");
    }
}

fn is_new(text: &str) -> bool {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    said.insert(text.to_owned())
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
