//! Numbered events: what `GET /v1/events` answers, and what the history of attempts and the report keep.
//!
//! An attempt of the ApplicationMaster begins with the events of earlier attempts that it could read, and counts on from the
//! last of them. A number therefore identifies an event only together with its attempt: the last events of an attempt
//! may be lost, and the next attempt uses their numbers again.

use serde::{Deserialize, Deserializer, Serialize};

use super::JobEvent;
use crate::ids::Attempt;

/// An event with its place in the stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NumberedEvent {
    /// Its number, from 0. Numbers ascend; a number is missing where a newer progress event replaced one.
    pub seq: u64,
    /// The attempt of the ApplicationMaster in which it happened.
    pub in_attempt: Attempt,
    /// What happened.
    #[serde(flatten)]
    pub event: JobEvent,
}

/// A part of the stream, oldest event first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventPage {
    /// The attempt of the ApplicationMaster that answers. Another attempt has another stream: the reader starts from 0.
    pub attempt: Attempt,
    /// The first number from which no event is missing. A reader that asks for an earlier one has missed events.
    pub first: u64,
    /// The number to ask for next.
    pub next: u64,
    /// The events from the number that was asked for, as many as one answer holds.
    #[serde(deserialize_with = "readable_events")]
    pub events: Vec<NumberedEvent>,
}

/// Reads a list of events and leaves out those that this version cannot read: one such event must not hide the others.
///
/// # Errors
/// The value is not a list.
pub fn readable_events<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<NumberedEvent>, D::Error> {
    let values = Vec::<serde_json::Value>::deserialize(from)?;
    Ok(values.into_iter().filter_map(|value| serde_json::from_value(value).ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::Figure;
    use crate::ids::{CutId, Generation, PhaseNo, RunId, Step};
    use crate::view::{CheckpointView, EvaluationView, JobState, JobView};

    #[test]
    fn each_form_of_event_is_read_back_with_its_number() {
        let run = RunId(uuid::Uuid::from_u128(7));
        let cut = CutId { generation: Generation(1), number: 2 };
        let events = [
            JobEvent::Started {
                run,
                name: "ctr".to_owned(),
                attempt: Attempt(2),
                address: "http://am/".to_owned(),
                resumed_from: Some(cut),
            },
            JobEvent::Evaluated(EvaluationView {
                pass: 1,
                rows: u64::MAX,
                figures: [(Figure::LogLoss, 0.5), (Figure::Accuracy, 1.0)].into_iter().collect(),
            }),
            JobEvent::CheckpointCommitted(CheckpointView {
                cut,
                phase: PhaseNo(0),
                step: Step(7),
                at_ms: 1,
                took_ms: 2,
                bytes: 3,
                dir: "file:///c".to_owned(),
                tables: Vec::new(),
            }),
            JobEvent::Ended {
                state: JobState::Finished,
                exit_code: crate::exit_code::ExitCode::Ok,
                message: String::new(),
                model: None,
                view: Box::new(JobView::starting(run, "ctr", Attempt(2), 1)),
            },
        ];
        for event in events {
            let numbered = NumberedEvent { seq: 9, in_attempt: Attempt(1), event };
            let json = serde_json::to_string(&numbered).expect("plain fields are JSON");
            assert_eq!(serde_json::from_str::<NumberedEvent>(&json).ok(), Some(numbered), "{json}");
        }
    }
}
