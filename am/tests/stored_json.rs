//! JSON that an earlier version has written is read, and written again with the same names and values.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use heddle_am::report::JobReport;
use heddle_protocol::view::{JobView, NumberedEvent};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Adds the paths of what differs, with both values. A field that is left out is not one that is null.
fn compare(path: &str, stored: Option<&Value>, written: Option<&Value>, out: &mut Vec<String>) {
    match (stored, written) {
        (Some(Value::Object(stored)), Some(Value::Object(written))) => {
            let added = written.keys().filter(|name| !stored.contains_key(*name));
            for name in stored.keys().chain(added) {
                compare(&format!("{path}.{name}"), stored.get(name), written.get(name), out);
            }
        }
        (Some(Value::Array(stored)), Some(Value::Array(written))) => {
            for n in 0..stored.len().max(written.len()) {
                compare(&format!("{path}[{n}]"), stored.get(n), written.get(n), out);
            }
        }
        _ if stored == written => {}
        _ => out.push(format!("{path}: {stored:?} became {written:?}")),
    }
}

fn is_kept<T: DeserializeOwned + Serialize>(text: &str) {
    let stored: Value = serde_json::from_str(text).unwrap();
    let read: T = serde_json::from_str(text).unwrap();
    let mut differ = Vec::new();
    let written = serde_json::to_value(&read).unwrap();
    compare("", Some(&stored), Some(&written), &mut differ);
    assert!(differ.is_empty(), "{differ:#?}");
}

#[test]
fn a_stored_report_is_read_and_written_unchanged() {
    is_kept::<JobReport>(include_str!("stored/report.json"));
}

#[test]
fn a_stored_status_is_read_and_written_unchanged() {
    is_kept::<JobView>(include_str!("stored/status.json"));
}

#[test]
fn a_stored_event_stream_is_read_and_written_unchanged() {
    let lines = include_str!("stored/events.jsonl").lines();
    assert_eq!(lines.clone().count(), 22, "one of each kind");
    lines.for_each(is_kept::<NumberedEvent>);
}
