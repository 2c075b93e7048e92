//! The position of a follower in the events of a job, over the attempts of its ApplicationMaster. Pure.
//!
//! **Intuition.** Each attempt has a stream of its own, which begins with the events of earlier attempts that it could
//! read. An event is identified by its attempt and its number in it, so a follower that reads the next stream from its
//! beginning prints what it has not printed.

use std::collections::BTreeMap;

use heddle_protocol::ids::Attempt;
use heddle_protocol::view::{EventPage, JobEvent, NumberedEvent, WarningCode};

/// What a follower has printed, and where it reads on.
#[derive(Debug, Default)]
pub struct EventCursor {
    /// The attempt whose stream is read; 0 before the first page.
    attempt: Attempt,
    /// The number in it to read from.
    next: u64,
    /// The number after the last one that was printed, for each attempt.
    printed: BTreeMap<Attempt, u64>,
    /// The attempt whose start was printed last.
    started: Option<Attempt>,
}

impl EventCursor {
    /// The number to ask for.
    pub fn from(&self) -> u64 {
        self.next
    }

    /// Takes the answer to a request for the events from [`from`](Self::from) on; returns those to print, oldest first.
    /// `None`: the stream is another attempt's; ask again.
    pub fn take(&mut self, page: EventPage) -> Option<Vec<JobEvent>> {
        if page.attempt < self.attempt {
            // A stale ApplicationMaster.
            return Some(Vec::new());
        }
        let asked = std::mem::replace(&mut self.next, page.next);
        if page.attempt > self.attempt {
            self.attempt = page.attempt;
            if asked > 0 {
                self.next = 0;
                return None;
            }
        }
        let mut events = Vec::new();
        // What is missing at the beginning of a later attempt's stream may have been printed.
        if asked < page.first && (asked > 0 || self.printed.is_empty()) {
            events.push(JobEvent::warning(
                WarningCode::EventsNotShown,
                "earlier events are not shown: the ApplicationMaster keeps the newest ones",
            ));
        }
        events.extend(self.unprinted(page.events));
        Some(events)
    }

    /// The events that were not printed yet, in the words of a follower. They count as printed afterwards. The end of
    /// the job is left out: the report has it, with the facts that belong to it.
    pub fn unprinted(&mut self, events: Vec<NumberedEvent>) -> Vec<JobEvent> {
        let new = |numbered: &NumberedEvent| {
            let printed = self.printed.entry(numbered.in_attempt).or_default();
            let is_new = numbered.seq >= *printed;
            *printed = numbered.seq.saturating_add(1).max(*printed);
            is_new
        };
        let new: Vec<NumberedEvent> = events.into_iter().filter(new).collect();
        new.into_iter().filter_map(|numbered| self.in_words_of_a_follower(numbered.event)).collect()
    }

    fn in_words_of_a_follower(&mut self, event: JobEvent) -> Option<JobEvent> {
        match event {
            JobEvent::Started { attempt, .. } => match self.started.replace(attempt) {
                Some(before) if before != attempt => Some(JobEvent::warning(
                    WarningCode::AmRestarted,
                    format!("the ApplicationMaster was started again, attempt {}", attempt.0),
                )),
                _ => Some(event),
            },
            JobEvent::Ended { .. } => None,
            _ => Some(event),
        }
    }
}

#[cfg(test)]
mod tests {
    use heddle_protocol::exit_code::ExitCode;
    use heddle_protocol::ids::RunId;
    use heddle_protocol::view::{JobState, JobView};
    use uuid::Uuid;

    use super::*;

    fn warning(seq: u64, attempt: u32, text: &str) -> NumberedEvent {
        let event = JobEvent::warning(WarningCode::Unknown, text);
        NumberedEvent { seq, in_attempt: Attempt(attempt), event }
    }

    fn started(seq: u64, attempt: u32) -> NumberedEvent {
        let event = JobEvent::Started {
            run: RunId(Uuid::nil()),
            name: "ctr".to_owned(),
            attempt: Attempt(attempt),
            address: String::new(),
            resumed_from: None,
        };
        NumberedEvent { seq, in_attempt: Attempt(attempt), event }
    }

    fn ended(seq: u64, attempt: u32) -> NumberedEvent {
        let event = JobEvent::Ended {
            state: JobState::Finished,
            exit_code: ExitCode::Ok,
            message: String::new(),
            model: None,
            view: Box::new(JobView::starting(RunId(Uuid::nil()), "ctr", Attempt(attempt), 0)),
        };
        NumberedEvent { seq, in_attempt: Attempt(attempt), event }
    }

    /// An ApplicationMaster's answer.
    fn page(attempt: u32, first: u64, stream: &[NumberedEvent], cursor: &EventCursor) -> EventPage {
        let from = cursor.from();
        EventPage {
            attempt: Attempt(attempt),
            first,
            next: stream.last().map_or(0, |last| last.seq + 1),
            events: stream.iter().filter(|event| event.seq >= from).cloned().collect(),
        }
    }

    fn words(events: Vec<JobEvent>) -> Vec<String> {
        let word = |event| match event {
            JobEvent::Started { .. } => "started".to_owned(),
            JobEvent::Warning { text, .. } => text,
            other => panic!("{other:?}"),
        };
        events.into_iter().map(word).collect()
    }

    fn read(cursor: &mut EventCursor, attempt: u32, stream: &[NumberedEvent]) -> Vec<String> {
        let first = stream.first().map_or(0, |event| event.seq);
        for _ in 0..2 {
            if let Some(events) = cursor.take(page(attempt, first, stream, cursor)) {
                return words(events);
            }
        }
        panic!("the second answer is of the same attempt");
    }

    #[test]
    fn each_event_is_printed_once_and_the_end_is_left_to_the_report() {
        let mut cursor = EventCursor::default();
        let mut stream = vec![started(0, 1), warning(1, 1, "a")];
        assert_eq!(read(&mut cursor, 1, &stream), ["started", "a"]);
        assert_eq!(cursor.from(), 2);
        assert_eq!(read(&mut cursor, 1, &stream), [""; 0]);
        // A number is missing where progress was replaced.
        stream.extend([warning(7, 1, "b"), ended(8, 1)]);
        assert_eq!(read(&mut cursor, 1, &stream), ["b"]);
        // The report has the same events, and one that came after the last request.
        stream.push(warning(9, 1, "c"));
        assert_eq!(words(cursor.unprinted(stream)), ["c"]);
    }

    #[test]
    fn next_attempt_repeats_nothing_and_reuses_numbers() {
        let mut cursor = EventCursor::default();
        let first = [started(0, 1), warning(1, 1, "a"), warning(2, 1, "b")];
        assert_eq!(read(&mut cursor, 1, &first), ["started", "a", "b"]);
        // The first attempt died before it had saved b, and before c was read.
        let mut stream = vec![started(0, 1), warning(1, 1, "a"), started(2, 2), warning(3, 2, "d")];
        let again = "the ApplicationMaster was started again, attempt 2";
        assert_eq!(read(&mut cursor, 2, &stream), [again, "d"]);
        stream.extend([warning(4, 2, "e"), warning(5, 3, "f")]);
        assert_eq!(read(&mut cursor, 3, &stream), ["e", "f"]);
        // A stale ApplicationMaster still answers.
        assert_eq!(read(&mut cursor, 2, &[warning(9, 2, "stale")]), [""; 0]);
        assert_eq!(cursor.from(), 6);
    }

    #[test]
    fn attempt_without_a_history_is_read_from_its_beginning() {
        let mut cursor = EventCursor::default();
        read(&mut cursor, 1, &[started(0, 1), warning(1, 1, "a")]);
        let again = "the ApplicationMaster was started again, attempt 2";
        assert_eq!(read(&mut cursor, 2, &[started(0, 2), warning(1, 2, "b")]), [again, "b"]);
    }

    #[test]
    fn reader_of_a_later_attempt_alone_begins_with_its_start() {
        let mut cursor = EventCursor::default();
        assert_eq!(read(&mut cursor, 2, &[started(0, 2)]), ["started"]);
    }

    #[test]
    fn start_that_is_repeated_is_no_other_attempt() {
        let mut cursor = EventCursor::default();
        assert_eq!(read(&mut cursor, 1, &[started(0, 1), started(1, 1)]), ["started", "started"]);
    }

    #[test]
    fn missing_events_are_reported_once() {
        let mut cursor = EventCursor::default();
        let gap = "earlier events are not shown: the ApplicationMaster keeps the newest ones";
        assert_eq!(read(&mut cursor, 1, &[warning(5, 1, "a")]), [gap, "a"]);
        assert_eq!(read(&mut cursor, 1, &[warning(6, 1, "b")]), ["b"]);
        assert_eq!(read(&mut cursor, 1, &[warning(9, 1, "c")]), [gap, "c"]);
    }
}
