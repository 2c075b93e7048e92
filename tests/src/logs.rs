//! WARN and ERROR lines that a test does not expect fail it.
//!
//! Checked are the logs of the ApplicationMaster's attempts and of all containers, where `finish` of a run
//! ([`Run`](crate::local::Run)) returns code 0 and where `ends_well` of an application
//! ([`Submitted`](crate::yarn_job::Submitted)) succeeds. A job that fails is not checked: its errors are what its test reads.

use std::fmt::Display;
use std::path::Path;

use anyhow::{Result, ensure};

/// What may follow when processes of a run are killed: a process that was replaced ends; a checkpoint that gives way to
/// another loses its directory while savers write to it; a backup that is gone does not acknowledge; the ApplicationMaster
/// dies while it writes to its journal.
pub const KILLS: &[&str] = &[
    "container_ended",
    "shard_not_saved",
    "shard_file_not_written",
    "backup_lags",
    "journal_file_incomplete",
];

/// What may follow, besides [`KILLS`], when a node is lost.
pub const LOST_NODE: &[&str] =
    &["container_unreachable", "container_silent", "silence_explained", "container_not_started"];

/// What may follow when the ResourceManager is away for a while.
pub const RM_LOST: &[&str] = &["heartbeat_failed", "commit_delayed", "commit_retried"];

/// Accepted in every job: a measurement of the machine, which tests share, and a container that starts while a short job ends.
const ACCEPTED: [&str; 2] = ["save_slows_training", "refused this container: the job is ending"];

/// What any job on YARN may report: the nodes of a test cluster are small.
pub const SMALL_NODES: &[&str] = &["node_shared"];

/// What may follow when a process stands still or cannot be reached.
pub const SILENCE: &[&str] = &[
    "container_silent",
    "silence_explained",
    "pserver_unreachable",
    "refill_stalled",
    "backup_lags",
];

/// What may follow when a trainer is slower than others.
pub const SLOWNESS: &[&str] =
    &["trainer_slow", "slow_trainer_replaced", "trainer_not_stopping", "extra_trainer_started"];

/// What may follow when storage does not respond.
pub const OUTAGE: &[&str] = &[
    "storage_delayed",
    "journal_delayed",
    "mirror_delayed",
    "commit_retried",
    "copies_missing",
    "load_retried",
    "old_files_kept",
    "export_retried",
    "task_failed",
    "shard_not_saved",
    "shard_file_not_written",
];

/// The log files of a process.
pub const LOG_FILES: [&str; 3] = ["am.log", "pserver.log", "trainer.log"];

/// Fails if one of these logs, each with the name of its process, has a WARN or ERROR line that contains none of the
/// texts in `expected`: names of log events, which for a warning of the job are the names of its code.
///
/// # Errors
/// The lines, each with its process.
pub fn check<P: Display, L: AsRef<str>>(
    logs: impl IntoIterator<Item = (P, L)>,
    expected: &[String],
) -> Result<()> {
    let mut lines = Vec::new();
    for (process, log) in logs {
        lines.extend(unexpected(log.as_ref(), expected).map(|line| format!("{process}: {line}")));
    }
    ensure!(lines.is_empty(), "unexpected lines in logs:\n{}", lines.join("\n"));
    Ok(())
}

fn unexpected<'a>(log: &'a str, expected: &[String]) -> impl Iterator<Item = &'a str> {
    log.lines()
        .filter(|line| is_warning(line))
        .filter(|line| !ACCEPTED.iter().any(|text| line.contains(text)))
        .filter(|line| !expected.iter().any(|text| line.contains(text)))
}

/// A line is a time, a level, spans and an event. Other lines continue the one before.
fn is_warning(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let is_time = words.next().is_some_and(|time| {
        time.starts_with(|first: char| first.is_ascii_digit()) && time.ends_with('Z')
    });
    is_time && matches!(words.next(), Some("WARN" | "ERROR"))
}

/// The logs below `dir`, which has a folder for each process: their paths and content.
#[must_use]
pub fn logs_below(dir: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for folder in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        for name in LOG_FILES {
            if let Ok(bytes) = std::fs::read(folder.path().join(name)) {
                let process = folder.path().join(name).display().to_string();
                found.push((process, String::from_utf8_lossy(&bytes).into_owned()));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
        2026-11-22T18:30:45.927907Z  INFO job{job=\"a\" attempt=1}: job_started text=\" WARN ERROR \"\n\
        2026-11-22T18:30:45.927957Z  WARN container{job=\"a\" slot=trainer-0}: report_late wait_ms=3\n\
        2026-11-22T18:30:46.927957Z ERROR container{job=\"a\" slot=pserver-0}: shards_not_loaded\n\
        2026-11-22T18:30:47.927957Z  WARN job{job=\"a\" attempt=1}: save_slows_training text=\"by 30 %\"\n\
        ERROR of a program that is quoted\n";

    #[test]
    fn planted_lines_fail_a_test_that_does_not_expect_them() {
        let checked = |expected: &[&str]| {
            let expected: Vec<String> = expected.iter().map(|&text| text.to_owned()).collect();
            check([("am", "no log"), ("trainer-0", LOG)], &expected).map_err(|e| e.to_string())
        };
        let error = checked(&[]).expect_err("two lines");
        assert!(error.contains("trainer-0: 2026-11-22T18:30:45.927957Z  WARN"), "{error}");
        assert_eq!(error.lines().count(), 3, "{error}");
        let error = checked(&["report_late"]).expect_err("one line");
        assert!(error.contains("shards_not_loaded") && error.lines().count() == 2, "{error}");
        assert_eq!(checked(&["report_late", "shards_not_loaded"]), Ok(()));
    }

    #[test]
    fn logs_of_all_processes_of_a_run_are_read() {
        let dir = tempfile::tempdir().expect("a folder");
        for (process, name) in [("am", "am.log"), ("pserver-0-1", "pserver.log")] {
            std::fs::create_dir(dir.path().join(process)).expect("a folder");
            std::fs::write(dir.path().join(process).join(name), LOG).expect("a file");
        }
        let logs = logs_below(dir.path());
        assert_eq!(logs.len(), 2);
        assert!(check(logs, &[]).is_err());
    }
}
