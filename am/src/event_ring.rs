//! The newest events of a job with their numbers: what `GET /v1/events` answers from. Pure.
//!
//! **Rule.** Every event gets the next number. The newest [`EVENTS_MAX`] stay, within [`BYTES_MAX`] of JSON. Of progress
//! events the newest one alone stays, so that a job that trains for a week keeps its losses and checkpoints. The start
//! of the job stays too: a reader that attaches late prints it first.
//!
//! **Rejected:** numbers that last over attempts. The last events of an attempt may be written nowhere, so the next
//! attempt cannot know which numbers are taken; each event has the number of its attempt beside its own instead.

use std::collections::VecDeque;

use heddle_protocol::ids::Attempt;
use heddle_protocol::view::{JobEvent, NumberedEvent};

/// Most events. A job of a thousand containers that loses each of them once has some 3,000 events.
const EVENTS_MAX: usize = 4096;
/// Most bytes of their JSON, the newest event not counted. A loss may have the last lines of a process.
const BYTES_MAX: usize = 4 << 20;
/// Bytes after which a page ends. A reader asks for the rest with its next request.
const PAGE_BYTES_MAX: usize = 1 << 20;
/// Events that the next attempt and the report get, as many as the history has of each kind.
const RECENT_MAX: usize = 500;

/// An event, and the same as JSON: clients without a proof may ask at any rate, so that no request encodes it again.
#[derive(Clone, Debug)]
struct RingEntry {
    numbered: NumberedEvent,
    json: String,
}

impl RingEntry {
    fn is_progress(&self) -> bool {
        matches!(self.numbered.event, JobEvent::Progress { .. })
    }
}

/// The newest events of a job.
#[derive(Debug)]
pub(crate) struct EventRing {
    attempt: Attempt,
    /// Oldest first.
    kept: VecDeque<RingEntry>,
    bytes: usize,
    /// From here on only replaced progress is missing.
    first: u64,
    next: u64,
    /// The newest start of the job that had to leave `kept`.
    started: Option<RingEntry>,
}

impl EventRing {
    /// The ring of an attempt, after the events of earlier attempts.
    pub(crate) fn new(attempt: Attempt, earlier: Vec<NumberedEvent>) -> Self {
        let first = earlier.first().map_or(0, |event| event.seq);
        let mut ring =
            Self { attempt, kept: VecDeque::new(), bytes: 0, first, next: 0, started: None };
        for numbered in earlier {
            ring.next = ring.next.max(numbered.seq.saturating_add(1));
            ring.add(numbered);
        }
        ring
    }

    /// Adds an event of this attempt.
    pub(crate) fn push(&mut self, event: JobEvent) {
        let numbered = NumberedEvent { seq: self.next, in_attempt: self.attempt, event };
        self.next += 1;
        self.add(numbered);
    }

    fn add(&mut self, numbered: NumberedEvent) {
        let json = numbered.to_json().expect("plain fields are JSON");
        let entry = RingEntry { numbered, json };
        if entry.is_progress()
            && let Some(at) = self.kept.iter().rposition(RingEntry::is_progress)
            && let Some(replaced) = self.kept.remove(at)
        {
            self.bytes -= replaced.json.len();
        }
        self.bytes += entry.json.len();
        let newest = entry.json.len();
        self.kept.push_back(entry);
        while self.kept.len() > EVENTS_MAX || self.bytes > BYTES_MAX.saturating_add(newest) {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        let Some(oldest) = self.kept.pop_front() else {
            return;
        };
        self.bytes -= oldest.json.len();
        self.first = oldest.numbered.seq + 1;
        if matches!(oldest.numbered.event, JobEvent::Started { .. }) {
            self.started = Some(oldest);
        }
    }

    /// The events from number `from` on, as the JSON of an [`EventPage`](heddle_protocol::view::EventPage).
    pub(crate) fn page(&self, from: u64) -> String {
        let started = self.started.iter();
        let mut events = String::new();
        let mut next = self.next;
        for entry in started.chain(&self.kept).filter(|entry| entry.numbered.seq >= from) {
            if events.len() >= PAGE_BYTES_MAX {
                next = entry.numbered.seq;
                break;
            }
            if !events.is_empty() {
                events.push(',');
            }
            events.push_str(&entry.json);
        }
        let (attempt, first) = (self.attempt.0, self.first);
        format!(r#"{{"attempt":{attempt},"first":{first},"next":{next},"events":[{events}]}}"#)
    }

    /// The newest events without progress and without the end of the job, oldest first.
    pub(crate) fn recent(&self) -> Vec<NumberedEvent> {
        let lasts = |entry: &&RingEntry| {
            !matches!(entry.numbered.event, JobEvent::Progress { .. } | JobEvent::Ended { .. })
        };
        let all: Vec<_> = self.started.iter().chain(&self.kept).filter(lasts).collect();
        all[all.len().saturating_sub(RECENT_MAX)..]
            .iter()
            .map(|entry| entry.numbered.clone())
            .collect()
    }

    /// The events of this attempt.
    pub(crate) fn own(&self) -> impl Iterator<Item = &JobEvent> {
        let all = self.started.iter().chain(&self.kept).map(|entry| &entry.numbered);
        all.filter(|numbered| numbered.in_attempt == self.attempt).map(|numbered| &numbered.event)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
    use heddle_protocol::ids::RunId;
    use heddle_protocol::view::{EventPage, WarningCode};

    use super::*;

    fn warning(text: impl Into<String>) -> JobEvent {
        JobEvent::warning(WarningCode::Unknown, text)
    }

    fn progress(rows: u64) -> JobEvent {
        JobEvent::Progress {
            text: "pass 1 of 2".to_owned(),
            rows,
            rows_per_second: 1.0,
            training_loss: None,
            done: None,
            left_ms: None,
        }
    }

    fn started(attempt: Attempt) -> JobEvent {
        JobEvent::Started {
            run: RunId(uuid::Uuid::nil()),
            name: "ctr".to_owned(),
            attempt,
            address: String::new(),
            resumed_from: None,
        }
    }

    fn page(ring: &EventRing, from: u64) -> EventPage {
        serde_json::from_str(&ring.page(from)).unwrap()
    }

    fn numbers(page: &EventPage) -> Vec<u64> {
        page.events.iter().map(|event| event.seq).collect()
    }

    #[test]
    fn reader_gets_the_events_from_its_number_on() {
        let mut ring = EventRing::new(Attempt(1), Vec::new());
        assert_eq!(ring.page(0), r#"{"attempt":1,"first":0,"next":0,"events":[]}"#);
        for n in 0..3 {
            ring.push(warning(n.to_string()));
        }
        let all = page(&ring, 0);
        assert_eq!((all.attempt, all.first, all.next), (Attempt(1), 0, 3));
        assert_eq!(numbers(&all), [0, 1, 2]);
        assert_eq!(all.events[1].event, warning("1"));
        assert_eq!(numbers(&page(&ring, 2)), [2]);
        // A number beyond the end: of an earlier attempt, for example.
        let beyond = page(&ring, 1000);
        assert_eq!((beyond.next, beyond.events), (3, Vec::new()));
    }

    #[test]
    fn oldest_events_leave_but_the_start_stays() {
        let mut ring = EventRing::new(Attempt(1), Vec::new());
        ring.push(started(Attempt(1)));
        for n in 0..EVENTS_MAX + 9 {
            ring.push(warning(n.to_string()));
        }
        let all = page(&ring, 0);
        assert_eq!((all.first, all.next), (10, EVENTS_MAX as u64 + 10));
        assert_eq!(numbers(&all)[..3], [0, 10, 11]);
        assert_eq!(all.events.len(), EVENTS_MAX + 1);
        // One that has read the start and asks for what is gone.
        assert_eq!(numbers(&page(&ring, 5))[..2], [10, 11]);
    }

    #[test]
    fn long_events_leave_by_their_bytes_and_pages_are_short() {
        let mut ring = EventRing::new(Attempt(1), Vec::new());
        let long = "x".repeat(64 << 10);
        for _ in 0..200 {
            ring.push(warning(&long));
        }
        assert!(ring.bytes <= BYTES_MAX + (65 << 10), "{}", ring.bytes);
        assert_eq!(ring.bytes, ring.kept.iter().map(|entry| entry.json.len()).sum::<usize>());
        let mut from = 0;
        let mut read = Vec::new();
        while from < 200 {
            let text = ring.page(from);
            assert!(text.len() < PAGE_BYTES_MAX + (66 << 10), "{}", text.len());
            let page: EventPage = serde_json::from_str(&text).unwrap();
            assert!(page.next > from);
            read.extend(numbers(&page));
            from = page.next;
        }
        assert_eq!(read, (ring.first..200).collect::<Vec<_>>());
        // One event above the limit is kept, alone.
        ring.push(warning("y".repeat(2 * BYTES_MAX)));
        ring.push(warning("after"));
        assert_eq!(numbers(&page(&ring, 0)).last(), Some(&201));
        assert!(ring.bytes <= BYTES_MAX + 100);
    }

    #[test]
    fn newest_progress_alone_is_kept_and_leaves_no_gap() {
        let mut ring = EventRing::new(Attempt(1), Vec::new());
        ring.push(warning("a"));
        for rows in 0..10_000 {
            ring.push(progress(rows));
        }
        ring.push(warning("b"));
        let all = page(&ring, 0);
        assert_eq!((all.first, numbers(&all)), (0, vec![0, 10_000, 10_001]));
        assert_eq!(all.events[1].event, progress(9_999));
        assert_eq!(ring.recent().len(), 2, "progress is not carried on");
    }

    #[test]
    fn next_attempt_counts_on_from_the_events_that_it_was_given() {
        let mut before = EventRing::new(Attempt(1), Vec::new());
        before.push(started(Attempt(1)));
        before.push(warning("a"));
        let mut ring = EventRing::new(Attempt(2), before.recent());
        ring.push(started(Attempt(2)));
        let all = page(&ring, 0);
        assert_eq!((all.attempt, all.first, numbers(&all)), (Attempt(2), 0, vec![0, 1, 2]));
        let attempts: Vec<u32> = all.events.iter().map(|event| event.in_attempt.0).collect();
        assert_eq!(attempts, [1, 1, 2]);
        assert_eq!(ring.own().count(), 1);
        // What was left out before stays named as missing.
        let late = EventRing::new(Attempt(2), before.recent().split_off(1));
        assert_eq!(page(&late, 0).first, 1);
    }
}
