//! The interval of heartbeats to the ResourceManager.
//!
//! **Intuition.** Grants and ends wait on the ResourceManager until the next heartbeat. While the job awaits one, the
//! interval is lost time; otherwise each heartbeat is load on a machine that thousands of jobs share.
//!
//! **Rule.** 50 ms for the first seconds of a wait, then longer the longer the wait lasts: a container that took a minute
//! is unlikely in the next tenth of a second. 1 s when nothing is awaited. New requests are sent at once, but never two
//! heartbeats within 10 ms, so that the core's requests of one event are one call.

use std::time::Duration;

/// When nothing is awaited; the same as Java's.
const QUIET: Duration = Duration::from_secs(1);
/// Between any two.
pub(super) const LEAST: Duration = Duration::from_millis(10);

/// Time until the next heartbeat, when something has been awaited for this long.
pub(super) fn interval(awaited: Option<Duration>) -> Duration {
    match awaited {
        None => QUIET,
        Some(since) if since < Duration::from_secs(10) => Duration::from_millis(50),
        Some(since) if since < Duration::from_secs(60) => Duration::from_millis(200),
        Some(_) => Duration::from_millis(500),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_grows_while_waiting_up_to_the_idle_one() {
        let waits = [None, Some(0), Some(9), Some(30), Some(3_600)];
        let intervals: Vec<_> =
            waits.iter().map(|wait| interval(wait.map(Duration::from_secs)).as_millis()).collect();
        assert_eq!(intervals, [1000, 50, 50, 200, 500]);
    }
}
