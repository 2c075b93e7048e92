//! Translates YARN's exit status of a container into the core's type.
//!
//! A container that YARN took (a lost node, preemption, the end of the application) does not count as a failure. A
//! container over its memory limit is reported with both figures, a failed start with its cause. All other exits are the
//! process's own.

use heddle_am_core::Exit;
use heddle_yarn::{ContainerStatus, ExitStatus};

/// The NodeManager could not launch the process (`ContainerLaunch.call`); a process's own code is not negative.
const LAUNCH_FAILED: ExitStatus = ExitStatus(-1);
/// Most bytes of a container's final output that are kept.
const WORDS_MAX: usize = 2048;
/// A NodeManager's text before the end of a container's standard error.
const STDERR_MARK: &str = " bytes of stderr";

/// The exit of a container as the core's type, and its final output.
pub(super) fn exit_of(status: &ContainerStatus) -> (Exit, String) {
    let words = || {
        let words = one_line(&status.diagnostics);
        if words.is_empty() { status.exit.to_string() } else { words }
    };
    let exit = match status.exit {
        ExitStatus::INVALID | LAUNCH_FAILED => Exit::NotStarted { error: words() },
        // "Container released on a *lost* node", and where disks failed or the NodeManager lost track.
        ExitStatus::ABORTED if status.diagnostics.contains("lost") => Exit::NodeLost,
        ExitStatus::DISKS_FAILED | ExitStatus::LOST => Exit::NodeLost,
        ExitStatus::PREEMPTED => Exit::Preempted,
        ExitStatus::KILLED_EXCEEDED_PMEM => {
            Exit::OutOfMemory { error: memory_words(&status.diagnostics) }
        }
        ExitStatus::KILLED_EXCEEDED_VMEM => Exit::OutOfMemory {
            error: format!(
                "{} (virtual memory, which the cluster limits by yarn.nodemanager.vmem-pmem-ratio)",
                memory_words(&status.diagnostics)
            ),
        },
        ExitStatus::ABORTED
        | ExitStatus::KILLED_BY_APPMASTER
        | ExitStatus::KILLED_BY_RESOURCEMANAGER
        | ExitStatus::KILLED_AFTER_APP_COMPLETION
        | ExitStatus::KILLED_BY_CONTAINER_SCHEDULER => Exit::ByCluster { error: words() },
        ExitStatus(code @ 129..=192) => Exit::Signal(code - 128),
        ExitStatus(code) => Exit::Code(code),
    };
    (exit, last_words(&status.diagnostics))
}

/// The end of a container's standard error, if the diagnostics have it.
pub(super) fn last_words(diagnostics: &str) -> String {
    let Some(at) = diagnostics.rfind(STDERR_MARK) else {
        return String::new();
    };
    let text = diagnostics[at + STDERR_MARK.len()..].trim_start_matches([' ', ':']).trim();
    tail(text, WORDS_MAX).to_owned()
}

/// "Current usage: 1.1 GB of 1 GB physical memory used; 2.9 GB of 2.1 GB virtual memory used", the figures of
/// `ContainersMonitorImpl`; all of the diagnostics where they are not found.
fn memory_words(diagnostics: &str) -> String {
    let figures = diagnostics.split_once("Current usage: ").map(|(_, rest)| {
        let end = rest.find(". Killing").or_else(|| rest.find('\n'));
        rest[..end.unwrap_or(rest.len())].trim().to_owned()
    });
    figures
        .filter(|figures| !figures.is_empty() && figures.len() < 300)
        .unwrap_or_else(|| one_line(diagnostics))
}

/// The diagnostics in one line, without times, empty lines and stack traces, cut to a readable size.
fn one_line(diagnostics: &str) -> String {
    let lines = diagnostics.lines().map(|line| {
        let line = line.trim();
        // "[2026-11-21 15:00:00.123]" before each message of the NodeManager.
        match line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((time, rest)) if time.starts_with(|c: char| c.is_ascii_digit()) => rest.trim(),
            _ => line,
        }
    });
    let kept: Vec<&str> = lines
        .filter(|line| !line.is_empty() && !line.starts_with("at ") && *line != "N/A")
        .collect();
    head(&kept.join(" "), WORDS_MAX).to_owned()
}

/// The first bytes of a text, at a character's end.
fn head(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// The last bytes of a text, at a character's start.
fn tail(text: &str, bytes_max: usize) -> &str {
    let mut start = text.len().saturating_sub(bytes_max);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_yarn::ContainerState;

    fn ended(code: i32, diagnostics: &str) -> (Exit, String) {
        let id = "container_1_0001_01_000002".parse().expect("an id");
        let mut status = ContainerStatus::new(id, ContainerState::Complete, ExitStatus(code));
        status.diagnostics = diagnostics.to_owned();
        exit_of(&status)
    }

    #[test]
    fn container_taken_by_the_cluster_does_not_count_as_failed() {
        assert_eq!(ended(-100, "Container released on a *lost* node").0, Exit::NodeLost);
        assert_eq!(ended(-102, "Container preempted by scheduler").0, Exit::Preempted);
        assert_eq!(ended(154, "").0, Exit::NodeLost);
        for code in [-100, -105, -106, -107, -108] {
            assert!(
                matches!(
                    ended(code, "Container killed").0,
                    Exit::ByCluster { error } if error == "Container killed"
                ),
                "{code}"
            );
        }
    }

    #[test]
    fn memory_above_the_limit_is_reported_with_both_figures() {
        let text = "[2026-11-21 15:00:00.123]Container [pid=7,containerID=c] is running 123904B \
            beyond the 'PHYSICAL' memory limit. Current usage: 64.1 MB of 64 MB physical memory \
            used; 300.0 MB of 134.4 MB virtual memory used. Killing container.\n\
            Dump of the process-tree for c :\n";
        let (exit, _) = ended(-104, text);
        assert!(
            matches!(
                &exit,
                Exit::OutOfMemory { error }
                    if error == "64.1 MB of 64 MB physical memory used; 300.0 MB of 134.4 MB \
                        virtual memory used"
            ),
            "{exit:?}"
        );
        let (exit, _) = ended(-103, text);
        assert!(
            matches!(&exit, Exit::OutOfMemory { error } if error.contains("vmem-pmem-ratio")),
            "{exit:?}"
        );
    }

    #[test]
    fn file_that_cannot_be_copied_is_named() {
        let text = "[2026-11-21 15:00:00.123]Failed to download resource \
            { { hdfs://nn:8020/a/heddle, 1, FILE, null },pending }\n\
            java.io.IOException: Resource hdfs://nn:8020/a/heddle changed on src filesystem \
            (expected 1, was 2\n\
            \tat org.apache.hadoop.yarn.util.FSDownload.verifyAndCopy(FSDownload.java:300)\n";
        let (exit, _) = ended(-1000, text);
        assert!(
            matches!(
                &exit,
                Exit::NotStarted { error }
                    if error.contains("hdfs://nn:8020/a/heddle changed")
                        && !error.contains("FSDownload.java")
            ),
            "{exit:?}"
        );
    }

    #[test]
    fn process_that_was_not_launched_has_not_exited() {
        let (exit, _) = ended(-1, "[2026-11-21 15:00:00.123]No space left on device");
        assert_eq!(exit, Exit::NotStarted { error: "No space left on device".to_owned() });
    }

    #[test]
    fn failed_process_keeps_its_final_output() {
        let text = "[2026-11-21 15:00:00.123]Exception from container-launch.\nContainer id: c\n\
            Exit code: 7\n\n\
            [2026-11-21 15:00:00.124]Container exited with a non-zero exit code 7. Error file: \
            prelaunch.err.\n\
            Last 4096 bytes of prelaunch.err :\nLast 4096 bytes of stderr :\n\
            heddle: no such table\n\n";
        assert_eq!(ended(7, text), (Exit::Code(7), "heddle: no such table".to_owned()));
        assert_eq!(ended(137, "").0, Exit::Signal(9));
        assert_eq!(ended(0, ""), (Exit::Code(0), String::new()));
    }

    #[test]
    fn long_output_is_truncated_between_characters() {
        let text = format!("Last 4096 bytes of stderr :\n{}", "ä".repeat(4000));
        let (_, words) = ended(1, &text);
        assert!(words.len() <= WORDS_MAX && words.starts_with('ä'));
    }
}
