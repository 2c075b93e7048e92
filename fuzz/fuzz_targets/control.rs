//! Lines of control connections, of both directions, from arbitrary bytes. A decoded message can be encoded.
#![no_main]

use heddle_protocol::control::{CommandEnvelope, ReportEnvelope};
use heddle_protocol::lines::LineBuffer;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut lines = LineBuffer::default();
    let Ok(()) = lines.push(bytes) else { return };
    while let Some(line) = lines.next_line() {
        if let Ok(report) = ReportEnvelope::from_json(&line) {
            report.to_json().expect("a decoded report can be encoded");
        }
        if let Ok(command) = CommandEnvelope::from_json(&line) {
            command.to_json().expect("a decoded command can be encoded");
        }
    }
});
