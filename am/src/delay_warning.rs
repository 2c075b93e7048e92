//! Warnings about delayed writes: after five seconds, then once a minute, and at the end of the delay.
//!
//! A file system that is unavailable for a while (a NameNode restarts or is in safe mode) delays checkpoints and stops
//! nothing else, so warnings are rare. Pure: the caller passes the time.

use std::time::{Duration, Instant};

/// Shorter delays cause no warning.
const FIRST_WARNING_AFTER: Duration = Duration::from_secs(5);
/// Time between two warnings.
const REPEAT_AFTER: Duration = Duration::from_secs(60);

/// The delay of one kind of write.
#[derive(Debug)]
pub struct DelayWarning {
    /// The subject of the warnings: "the journal".
    what: &'static str,
    since: Option<Instant>,
    warned: Option<Instant>,
}

impl DelayWarning {
    /// No write is delayed.
    #[must_use]
    pub fn new(what: &'static str) -> Self {
        Self { what, since: None, warned: None }
    }

    /// Records a failed attempt. Returns the warning that is due.
    pub fn failed(&mut self, now: Instant, error: &str) -> Option<String> {
        let since = *self.since.get_or_insert(now);
        let late = now.saturating_duration_since(since);
        let due = match self.warned {
            None => late >= FIRST_WARNING_AFTER,
            Some(warned) => now.saturating_duration_since(warned) >= REPEAT_AFTER,
        };
        due.then(|| {
            self.warned = Some(now);
            format!("{} is {} s late and tried again: {error}", self.what, late.as_secs())
        })
    }

    /// Records a successful or last attempt. Returns a message where there was a warning before.
    pub fn over(&mut self, now: Instant) -> Option<String> {
        let since = self.since.take()?;
        self.warned.take()?;
        let late = now.saturating_duration_since(since);
        Some(format!("{} was {} s late", self.what, late.as_secs()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warning_after_five_seconds_then_each_minute_then_at_the_end() {
        let begin = Instant::now();
        let mut delay = DelayWarning::new("the journal");
        let mut warnings = Vec::new();
        for second in 0..150 {
            let now = begin + Duration::from_secs(second);
            warnings.extend(delay.failed(now, "safe mode").map(|text| (second, text)));
        }
        let seconds: Vec<u64> = warnings.iter().map(|(second, _)| *second).collect();
        assert_eq!(seconds, [5, 65, 125]);
        assert!(warnings[1].1.contains("65 s") && warnings[1].1.ends_with("safe mode"));
        let end = begin + Duration::from_secs(150);
        assert_eq!(delay.over(end).as_deref(), Some("the journal was 150 s late"));
        assert_eq!(delay.over(end), None);
    }

    #[test]
    fn short_delay_causes_no_warning() {
        let begin = Instant::now();
        let mut delay = DelayWarning::new("a checkpoint");
        assert_eq!(delay.failed(begin, "x"), None);
        assert_eq!(delay.over(begin + Duration::from_secs(2)), None);
        // The next one counts from its own beginning.
        assert_eq!(delay.failed(begin + Duration::from_secs(60), "x"), None);
    }
}
