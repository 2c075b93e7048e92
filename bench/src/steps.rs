//! Where the time of a step goes: what the logs of a run say about each of its steps.

use std::fs;
use std::io;
use std::path::Path;

use serde::Serialize;

use crate::measurement::Samples;

/// The filter of the log that has the times of steps (`RUST_LOG`).
pub const LOG_FILTER: &str = "info,heddle_steps=trace";

/// Fields of the log, with what they time.
const PARTS: [(&str, &str); 5] = [
    ("pull_us", "pull: from the request to the values"),
    ("compute_us", "compute: the gradient of a batch"),
    ("push_us", "push: until all shards have it"),
    ("wait_us", "wait for lanes, a shard: from the first push of a step to the last"),
    ("apply_us", "apply, a shard: the push that completes a step"),
];

/// Times of one part of a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimedPart {
    /// The mode of training.
    pub mode: String,
    /// What was timed.
    pub part: &'static str,
    /// Median, µs.
    pub p50_us: f64,
    /// 99th percentile, µs.
    pub p99_us: f64,
    /// Steps, or steps of shards.
    pub samples: usize,
}

/// Reads the logs of a run below a folder.
///
/// # Errors
/// A file cannot be read.
pub fn of_logs(mode: &str, folder: &Path) -> io::Result<Vec<TimedPart>> {
    let mut times = PARTS.map(|_| Samples::default());
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else if entry.file_name().to_string_lossy().contains(".log") {
                let text = fs::read(entry.path())?;
                for line in String::from_utf8_lossy(&text).lines() {
                    for ((field, _), times) in PARTS.iter().zip(&mut times) {
                        number(line, field).into_iter().for_each(|time| times.add(time));
                    }
                }
            }
        }
    }
    let parts = PARTS.iter().zip(times).filter(|(_, times)| times.count() > 0);
    Ok(parts
        .map(|((_, part), times)| TimedPart {
            mode: mode.to_owned(),
            part,
            p50_us: times.median(),
            p99_us: times.quantile(0.99),
            samples: times.count(),
        })
        .collect())
}

/// The number behind the name of a field, in text or JSON.
fn number(line: &str, field: &str) -> Option<f64> {
    let rest = line[line.find(field)? + field.len()..].trim_start_matches(['"', ':', '=', ' ']);
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_a_step_are_read_from_text_and_json() {
        let folder = tempfile::tempdir().expect("a folder");
        let logs = folder.path().join("logs");
        fs::create_dir(&logs).expect("created");
        fs::write(
            logs.join("trainer-0.log"),
            "TRACE step_timed pull_us=40 compute_us=7 push_us=9\n",
        )
        .expect("written");
        fs::write(logs.join("pserver-0.log"), "{\"fields\":{\"wait_us\":5,\"apply_us\":12}}\n")
            .expect("written");
        fs::write(folder.path().join("else.txt"), "pull_us=1").expect("written");
        let parts = of_logs("bsp", folder.path()).expect("read");
        let found: Vec<_> = parts.iter().map(|part| (part.p50_us, part.samples)).collect();
        assert_eq!(found, [(40.0, 1), (7.0, 1), (9.0, 1), (5.0, 1), (12.0, 1)]);
    }
}
