//! Telling that storage is late: when it has been for a few seconds, then once a minute, and when it is over.
//!
//! A file system that cannot be written for a while (a NameNode restarts or is in safe mode) delays checkpoints and
//! stops nothing else, so people are told seldom. Pure: time comes in.

use std::time::{Duration, Instant};

/// A hiccup shorter than this is nobody's business.
const WORTH_TELLING: Duration = Duration::from_secs(5);
/// From one warning to the next.
const AGAIN: Duration = Duration::from_secs(60);

/// One thing that may be late.
#[derive(Debug)]
pub struct DelayWarning {
    /// What, as the subject of a sentence: "the journal".
    what: &'static str,
    since: Option<Instant>,
    told: Option<Instant>,
}

impl DelayWarning {
    /// Nothing is late yet.
    #[must_use]
    pub fn new(what: &'static str) -> Self {
        Self { what, since: None, told: None }
    }

    /// Another try failed; what people should be told, if anything.
    pub fn failed(&mut self, now: Instant, error: &str) -> Option<String> {
        let since = *self.since.get_or_insert(now);
        let late = now.saturating_duration_since(since);
        let due = match self.told {
            None => late >= WORTH_TELLING,
            Some(told) => now.saturating_duration_since(told) >= AGAIN,
        };
        due.then(|| {
            self.told = Some(now);
            format!("{} is {} s late and tried again: {error}", self.what, late.as_secs())
        })
    }

    /// A try succeeded, or there will be no other; what people should be told, if they heard of it.
    pub fn over(&mut self, now: Instant) -> Option<String> {
        let since = self.since.take()?;
        self.told.take()?;
        let late = now.saturating_duration_since(since);
        Some(format!("{} was {} s late", self.what, late.as_secs()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_hear_of_it_after_some_seconds_then_once_a_minute_then_of_its_end() {
        let begin = Instant::now();
        let mut late = DelayWarning::new("the journal");
        let mut told = Vec::new();
        for second in 0..150 {
            let now = begin + Duration::from_secs(second);
            told.extend(late.failed(now, "safe mode").map(|text| (second, text)));
        }
        let seconds: Vec<u64> = told.iter().map(|(second, _)| *second).collect();
        assert_eq!(seconds, [5, 65, 125]);
        assert!(told[1].1.contains("65 s") && told[1].1.ends_with("safe mode"));
        let end = begin + Duration::from_secs(150);
        assert_eq!(late.over(end).as_deref(), Some("the journal was 150 s late"));
        assert_eq!(late.over(end), None);
    }

    #[test]
    fn a_hiccup_is_not_told_at_all() {
        let begin = Instant::now();
        let mut late = DelayWarning::new("a checkpoint");
        assert_eq!(late.failed(begin, "x"), None);
        assert_eq!(late.over(begin + Duration::from_secs(2)), None);
        // The next one counts from its own beginning.
        assert_eq!(late.failed(begin + Duration::from_secs(60), "x"), None);
    }
}
