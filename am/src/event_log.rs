//! The events of a job: numbered for followers, recorded for pages and report, written to the log and, locally, to
//! standard output. Every event takes this way and no other.
//!
//! The log of events is there before the driver: preparation publishes its warnings here. From then on the driver
//! publishes, and the API reads.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use heddle_protocol::ids::{Attempt, Incarnation, Slot};
use heddle_protocol::view::{History, JobEvent, NumberedEvent, Placement, WarningCode};

use crate::event_ring::EventRing;
use crate::notices::{log, notice};
use crate::wall_clock::wall_ms;

/// Where events are written besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventOutput {
    /// Standard output and the log: the command line that started a local run reads the former.
    StandardOutput,
    /// The log alone. On YARN nothing reads standard output.
    LogOnly,
}

#[derive(Debug)]
struct RecordedEvents {
    ring: EventRing,
    history: History,
}

/// The events of a job. Clones are handles of the same log.
#[derive(Clone, Debug)]
pub struct EventLog {
    attempt: Attempt,
    output: EventOutput,
    recorded: Arc<Mutex<RecordedEvents>>,
}

impl EventLog {
    /// The log of an attempt, without events.
    #[must_use]
    pub fn new(attempt: Attempt, output: EventOutput) -> Self {
        let recorded = RecordedEvents {
            ring: EventRing::new(attempt, Vec::new()),
            history: History::default(),
        };
        Self { attempt, output, recorded: Arc::new(Mutex::new(recorded)) }
    }

    fn lock(&self) -> MutexGuard<'_, RecordedEvents> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts what earlier attempts have recorded before the events of this one. Called before anything reads the log: events
    /// of this attempt get new numbers.
    pub fn continue_from(&self, history: History, events: Vec<NumberedEvent>) {
        let mut recorded = self.lock();
        let continued = RecordedEvents { ring: EventRing::new(self.attempt, events), history };
        let own = std::mem::replace(&mut *recorded, continued);
        for event in own.ring.own() {
            recorded.add(event.clone(), |_, _| None);
        }
    }

    /// Records an event and writes it. `placement` is the container of the event's slot and incarnation, where there is
    /// one and it is known. Never blocks.
    pub fn publish(
        &self,
        event: JobEvent,
        placement: impl FnOnce(Slot, Incarnation) -> Option<Placement>,
    ) {
        match self.output {
            EventOutput::StandardOutput => notice(&event),
            EventOutput::LogOnly => log(&event),
        }
        self.lock().add(event, placement);
    }

    /// Publishes something unexpected that the job survives.
    pub fn warn(&self, code: WarningCode, text: String) {
        self.publish(JobEvent::warning(code, text), |_, _| None);
    }

    /// Past losses, aborted checkpoints and warnings.
    #[must_use]
    pub fn history(&self) -> History {
        self.lock().history.clone()
    }

    /// The events from number `from` on, as the JSON of an [`EventPage`](heddle_protocol::view::EventPage).
    #[must_use]
    pub fn page(&self, from: u64) -> String {
        self.lock().ring.page(from)
    }

    /// The newest events without progress and without the end of the job: for the next attempt and for the report.
    #[must_use]
    pub fn recent(&self) -> Vec<NumberedEvent> {
        self.lock().ring.recent()
    }
}

impl RecordedEvents {
    fn add(
        &mut self,
        event: JobEvent,
        placement: impl FnOnce(Slot, Incarnation) -> Option<Placement>,
    ) {
        event.record(&mut self.history, wall_ms(), placement);
        self.ring.push(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_of_the_preparation_follow_the_earlier_attempts() {
        let first = EventLog::new(Attempt(1), EventOutput::LogOnly);
        first.warn(WarningCode::Unknown, "of attempt 1".to_owned());
        let second = EventLog::new(Attempt(2), EventOutput::LogOnly);
        second.warn(WarningCode::Unknown, "of the preparation".to_owned());
        second.continue_from(first.history(), first.recent());
        let texts: Vec<(u64, u32, String)> = second
            .recent()
            .into_iter()
            .map(|numbered| {
                let JobEvent::Warning { text, .. } = numbered.event else { panic!("{numbered:?}") };
                (numbered.seq, numbered.in_attempt.0, text)
            })
            .collect();
        let expected = [(0, 1, "of attempt 1".to_owned()), (1, 2, "of the preparation".to_owned())];
        assert_eq!(texts, expected);
        // The page and the report have both.
        assert_eq!(second.history().warnings_total, 2);
    }
}
