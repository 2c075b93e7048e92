//! Restart policy: which ends of containers count as failures, when a container is replaced, and when the job fails.
//!
//! **Intuition.** A cluster preempts containers all day; that is not a fault of the job. A program that cannot start is.
//! In between is the process killed by signal 9: by an operator, by a kernel short of memory, or by a test. It matters only
//! if the job makes no progress between one kill and the next.
//!
//! **Rule.** Preemption, lost nodes, what the cluster or we ended: not counted. Exit codes, other
//! signals, memory above the limit: counted for the length of the window. Signal 9: counted as long as
//! the job has made no lasting progress (phase ended, checkpoint committed) since, and to twice the limit. A slot
//! above its limit or all slots above the job's limit end the job with the last error.
//!
//! A refused port shows that a process is gone seconds before the cluster reports why. It counts as a kill until then:
//! the report of a lost node or a preemption takes it back, an exit code or too much memory replaces it.
//!
//! **Backoff.** Replacements of counted failures are delayed. The first failure of a minute is replaced at once, since
//! most are single. From the second one on, the wait of a slot doubles from a quarter of a second. From the tenth failure
//! of the job in a minute on, every slot waits at least three seconds, doubled up to a minute.
//!
//! **Rejected.** A total since the start (Flink's and Spark's first rule): a month-long job would fail because of failures
//! from weeks ago.

use std::collections::{BTreeMap, VecDeque};

use heddle_backoff::Backoff;
use heddle_protocol::exit_code::{ContainerExitCode, ExitCode};
use heddle_protocol::ids::{Member, Slot};

use crate::config::Limits;
use crate::event::Exit;
use crate::time::MonotonicMs;

/// The pace is judged over the last minute.
const PACE_MS: u64 = 60_000;
/// Failures of a job within a minute that are not chance.
const STORM: usize = 10;
/// Waits of a slot, from its second failure within a minute.
const SLOT_BACKOFF: Backoff = Backoff::new(250, 64_000);
/// Waits of all slots, from the failure of the job that makes [`STORM`].
const STORM_BACKOFF: Backoff = Backoff::new(3_000, 60_000);
/// Failures of one node after which it is avoided.
const NODE_FAILURES: usize = 3;

/// How the end of a container counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureClass {
    /// Not at all.
    None,
    /// While the job gets nowhere.
    Killed,
    /// For the length of the window.
    Failure,
}

const STOPPED: i32 = ContainerExitCode::Stopped.number();
const REFUSED: i32 = ContainerExitCode::Refused.number();
const ORPHANED: i32 = ContainerExitCode::Orphaned.number();
const INTERRUPTED: i32 = ExitCode::Interrupted.code() as i32;
const TERMINATED: i32 = ExitCode::Terminated.code() as i32;
/// A shell reports a signal as 128 and its number; SIGKILL is 9.
const KILLED_IN_SHELL: i32 = 128 + 9;

/// Judges an end that we did not order.
pub(crate) fn classify(exit: &Exit) -> FailureClass {
    match exit {
        Exit::NodeLost | Exit::Preempted | Exit::ByCluster { .. } => FailureClass::None,
        // A refusal is the core's decision. A container without an ApplicationMaster has not failed itself.
        Exit::Code(REFUSED | ORPHANED) => FailureClass::None,
        Exit::Signal(9) | Exit::Code(KILLED_IN_SHELL) => FailureClass::Killed,
        Exit::Code(_) | Exit::Signal(_) | Exit::NotStarted { .. } | Exit::OutOfMemory { .. } => {
            FailureClass::Failure
        }
    }
}

/// Whether a container that we had ordered to end did so for its own reason before the order came.
pub(crate) fn by_itself(exit: &Exit) -> bool {
    match exit {
        Exit::Code(STOPPED | REFUSED | ORPHANED) => false,
        // The signals of the order, as a shell reports them.
        Exit::Code(INTERRUPTED | KILLED_IN_SHELL | TERMINATED) => false,
        Exit::Signal(2 | 9 | 15) | Exit::NodeLost | Exit::Preempted | Exit::ByCluster { .. } => {
            false
        }
        Exit::Code(_) | Exit::Signal(_) | Exit::OutOfMemory { .. } | Exit::NotStarted { .. } => {
            true
        }
    }
}

/// Lines of a container's final output that are kept.
const LAST_LINES: usize = 20;
/// And bytes.
const LAST_BYTES: usize = 2048;

/// Why a container ended.
#[derive(Clone, Debug)]
pub(crate) struct Cause {
    /// In one line: `exited with code 1: cannot open x`.
    pub words: String,
    /// The same and the last lines that it wrote.
    pub detail: String,
}

impl Cause {
    /// `text`: the end of what it wrote.
    pub(crate) fn new(exit: &Exit, text: &str) -> Self {
        let mut from = text.len().saturating_sub(LAST_BYTES);
        while !text.is_char_boundary(from) {
            from += 1;
        }
        let tail = text.get(from..).unwrap_or_default();
        let lines: Vec<&str> = tail.lines().filter(|line| !line.trim().is_empty()).collect();
        let lines = lines.get(lines.len().saturating_sub(LAST_LINES)..).unwrap_or_default();
        let words = words(exit);
        let Some(last) = lines.last() else {
            return Self::plain(&words);
        };
        Self {
            detail: format!("{words}; its final output:\n{}", lines.join("\n")),
            words: format!("{words}: {}", last.trim()),
        }
    }

    /// One without final output.
    pub(crate) fn plain(words: &str) -> Self {
        Self { words: words.to_owned(), detail: words.to_owned() }
    }
}

/// An end in words, without its subject: `exited with code 1`.
pub(crate) fn words(exit: &Exit) -> String {
    match exit {
        Exit::Code(code) => format!("exited with code {code}"),
        Exit::Signal(9) => "was killed by signal 9 (by an operator or by the kernel)".to_owned(),
        Exit::Signal(signal) => format!("was ended by signal {signal}"),
        Exit::NotStarted { error } => format!("could not be started: {error}"),
        Exit::NodeLost => "was lost with its node".to_owned(),
        Exit::Preempted => "was preempted".to_owned(),
        Exit::OutOfMemory { error } => format!("used more memory than it was given: {error}"),
        Exit::ByCluster { error } => format!("was ended by the cluster: {error}"),
    }
}

#[derive(Clone, Debug)]
struct FailureRecord {
    at: MonotonicMs,
    member: Member,
    node: String,
    class: FailureClass,
    /// The job's progress at that time.
    progress: u64,
    error: String,
}

/// The failures within the window.
#[derive(Clone, Debug, Default)]
pub(crate) struct FailureHistory {
    failures: VecDeque<FailureRecord>,
}

impl FailureHistory {
    /// Notes an end. `progress` grows with each phase that ends and each checkpoint that is committed.
    pub(crate) fn note(
        &mut self,
        now: MonotonicMs,
        member: Member,
        node: &str,
        class: FailureClass,
        progress: u64,
        error: &str,
    ) {
        if class != FailureClass::None {
            let (node, error) = (node.to_owned(), error.to_owned());
            self.failures.push_back(FailureRecord {
                at: now,
                member,
                node,
                class,
                progress,
                error,
            });
        }
    }

    /// Removes the kill that was noted when a container's port refused: the cluster's report names another cause.
    pub(crate) fn take_back(&mut self, member: Member) {
        self.failures
            .retain(|failure| failure.member != member || failure.class != FailureClass::Killed);
    }

    /// Forgets the ends of these containers.
    pub(crate) fn excuse(&mut self, members: &[Member]) {
        self.failures.retain(|failure| !members.contains(&failure.member));
    }

    /// The cluster's report names the cause of a kill that was noted when a container's port refused.
    pub(crate) fn explain(&mut self, member: Member, error: &str) {
        let mut kills = self.failures.iter_mut();
        if let Some(kill) = kills.find(|failure| failure.member == member) {
            error.clone_into(&mut kill.error);
        }
    }

    /// Drops what has left the window.
    fn forget(&mut self, now: MonotonicMs, window_ms: u64) {
        while self.failures.front().is_some_and(|failure| now.since(failure.at) > window_ms) {
            self.failures.pop_front();
        }
    }

    /// How long to wait before the slot is filled again, ms. A kill does not count after the job has made progress: an
    /// operator that kills a process each second finds it replaced each time.
    pub(crate) fn delay_ms(&self, now: MonotonicMs, progress: u64, slot: Slot) -> u64 {
        let recent = || {
            self.failures.iter().filter(|failure| {
                let counts = failure.class == FailureClass::Failure || failure.progress == progress;
                counts && now.since(failure.at) < PACE_MS
            })
        };
        let own = recent().filter(|failure| failure.member.slot == slot).count();
        let all = recent().count();
        let tries = |failures| u32::try_from(failures).unwrap_or(u32::MAX);
        let own_ms = match own {
            0 | 1 => 0,
            n => SLOT_BACKOFF.after_ms(tries(n - 2)),
        };
        let all_ms = match all {
            n if n < STORM => 0,
            n => STORM_BACKOFF.after_ms(tries(n - STORM)),
        };
        own_ms.max(all_ms)
    }

    /// The last error, if there have been too many.
    pub(crate) fn crash_loop(
        &mut self,
        now: MonotonicMs,
        progress: u64,
        slots: usize,
        limits: &Limits,
    ) -> Option<String> {
        self.forget(now, limits.failure_window_ms);
        // Half points, so that a kill weighs half of a failure.
        let weight = |failure: &FailureRecord| match failure.class {
            FailureClass::Failure => 2,
            FailureClass::Killed if failure.progress == progress => 1,
            FailureClass::Killed | FailureClass::None => 0,
        };
        let last = self.failures.back()?;
        let mut slots_points: BTreeMap<Slot, usize> = BTreeMap::new();
        for failure in &self.failures {
            *slots_points.entry(failure.member.slot).or_default() += weight(failure);
        }
        let own = slots_points.get(&last.member.slot).copied().unwrap_or(0);
        let all: usize = slots_points.values().sum();
        let slot_limit = limits.slot_failures as usize;
        let job_limit = (limits.job_failures as usize).max(2 * slots);
        if own >= 2 * slot_limit {
            return Some(format!("{} failed too often: it last {}", last.member.slot, last.error));
        }
        (all >= 2 * job_limit).then(|| {
            format!("containers failed too often: {} last {}", last.member.slot, last.error)
        })
    }

    /// Nodes on which too much failed, the worst third of `nodes` at the most.
    pub(crate) fn bad_nodes(&self, nodes: usize) -> Vec<String> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for failure in &self.failures {
            if failure.class == FailureClass::Failure && !failure.node.is_empty() {
                *counts.entry(&failure.node).or_default() += 1;
            }
        }
        let mut bad: Vec<_> =
            counts.into_iter().filter(|(_, count)| *count >= NODE_FAILURES).collect();
        bad.sort_by_key(|(node, count)| (std::cmp::Reverse(*count), *node));
        bad.into_iter().take(nodes / 3).map(|(node, _)| node.to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_protocol::ids::{Incarnation, Role};

    const SLOT: Slot = Slot { role: Role::Trainer, index: 0 };
    const MEMBER: Member = Member { slot: SLOT, incarnation: Incarnation(1) };

    fn note(history: &mut FailureHistory, at: u64, exit: &Exit, progress: u64) {
        history.note(MonotonicMs(at), MEMBER, "node", classify(exit), progress, &words(exit));
    }

    #[test]
    fn preemption_lost_nodes_and_our_own_refusals_are_not_failures() {
        let mut history = FailureHistory::default();
        for n in 0..100 {
            note(&mut history, n, &Exit::Preempted, 0);
            note(&mut history, n, &Exit::NodeLost, 0);
            note(&mut history, n, &Exit::Code(9), 0);
            note(&mut history, n, &Exit::Code(20), 0);
        }
        assert_eq!(history.delay_ms(MonotonicMs(100), 0, SLOT), 0);
        assert_eq!(history.crash_loop(MonotonicMs(100), 0, 4, &Limits::default()), None);
    }

    #[test]
    fn a_program_that_cannot_run_ends_the_job_with_its_last_error() {
        let mut history = FailureHistory::default();
        for n in 0..3 {
            note(&mut history, n, &Exit::Code(1), 0);
            assert_eq!(history.crash_loop(MonotonicMs(n), 0, 4, &Limits::default()), None);
        }
        note(&mut history, 3, &Exit::Code(77), 0);
        let error = history.crash_loop(MonotonicMs(3), 0, 4, &Limits::default());
        assert!(error.is_some_and(|error| error.contains("trainer-0") && error.contains("77")));
    }

    #[test]
    fn failures_spread_over_days_leave_the_window() {
        let mut history = FailureHistory::default();
        for day in 0..30 {
            let now = day * 86_400_000;
            note(&mut history, now, &Exit::Code(1), 0);
            assert_eq!(history.crash_loop(MonotonicMs(now), 0, 4, &Limits::default()), None);
        }
    }

    #[test]
    fn kills_count_only_while_the_job_gets_nowhere() {
        let mut history = FailureHistory::default();
        for n in 0..40 {
            note(&mut history, n, &Exit::Signal(9), n / 4);
            assert_eq!(history.crash_loop(MonotonicMs(n), n / 4, 4, &Limits::default()), None);
        }
        for n in 40..47 {
            note(&mut history, n, &Exit::Signal(9), 99);
            assert_eq!(history.crash_loop(MonotonicMs(n), 99, 4, &Limits::default()), None);
        }
        note(&mut history, 47, &Exit::Signal(9), 99);
        assert!(history.crash_loop(MonotonicMs(47), 99, 4, &Limits::default()).is_some());
    }

    #[test]
    fn kills_that_were_survived_are_not_paced() {
        let mut history = FailureHistory::default();
        for progress in 0..30 {
            note(&mut history, progress * 1_000, &Exit::Signal(9), progress);
            assert_eq!(history.delay_ms(MonotonicMs(progress * 1_000), progress, SLOT), 0);
        }
    }

    #[test]
    fn one_failure_is_replaced_at_once_and_more_are_paced() {
        let mut history = FailureHistory::default();
        note(&mut history, 0, &Exit::Code(1), 0);
        assert_eq!(history.delay_ms(MonotonicMs(0), 0, SLOT), 0);
        note(&mut history, 0, &Exit::Code(1), 0);
        assert_eq!(history.delay_ms(MonotonicMs(0), 0, SLOT), 250);
        for _ in 2..12 {
            note(&mut history, 0, &Exit::Code(1), 0);
        }
        assert!(
            history.delay_ms(MonotonicMs(0), 0, Slot::pserver(7)) >= 3_000,
            "a storm delays every slot"
        );
        assert!(history.delay_ms(MonotonicMs(0), 0, SLOT) <= 64_000);
        assert_eq!(history.delay_ms(MonotonicMs(60_000), 0, SLOT), 0);
    }

    #[test]
    fn the_last_words_are_the_end_of_what_was_written_and_bounded() {
        let text = format!("{}\u{e4}\nfirst\n\ncannot open x  \n\n", "y".repeat(5_000));
        let cause = Cause::new(&Exit::Code(1), &text);
        assert_eq!(cause.words, "exited with code 1: cannot open x");
        assert!(cause.detail.contains("first\ncannot open x"), "{}", cause.detail);
        assert!(cause.detail.len() < 2_200);
        let many = "line\n".repeat(100);
        let cause = Cause::new(&Exit::Code(1), &many);
        assert_eq!(cause.detail.lines().count(), 1 + LAST_LINES);
        let none = Cause::new(&Exit::Signal(9), " \n");
        assert_eq!(none.words, none.detail);
    }

    #[test]
    fn at_most_a_third_of_the_nodes_is_avoided() {
        let mut history = FailureHistory::default();
        for node in ["a", "b", "b", "a", "a", "b", "b", "c"] {
            history.note(MonotonicMs(0), MEMBER, node, FailureClass::Failure, 0, "x");
        }
        assert_eq!(history.bad_nodes(2), Vec::<String>::new());
        assert_eq!(history.bad_nodes(3), ["b"]);
        assert_eq!(history.bad_nodes(6), ["b", "a"]);
    }
}
