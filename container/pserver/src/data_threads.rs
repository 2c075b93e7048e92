//! All data threads of the pserver: sends commands, and counts answers to commands for all of them.

use std::collections::BTreeMap;

use heddle_protocol::control::PserverReport;
use heddle_protocol::ids::CutId;

use crate::message::{DataAnswer, DataCommand, DataThreadHandle};

/// The data threads.
pub(crate) struct DataThreads {
    threads: Vec<DataThreadHandle>,
    /// By number: commands for all threads that some thread has not answered.
    pending: BTreeMap<u64, PendingCommand>,
    last: u64,
}

struct PendingCommand {
    /// Threads without an answer.
    threads: usize,
    /// Sent when all threads have answered; none after an error.
    report: Option<PserverReport>,
    cut: Option<CutId>,
}

/// A command that all threads have answered.
pub(crate) struct AnsweredCommand {
    pub(crate) report: Option<PserverReport>,
    /// The cut, if the command was one.
    pub(crate) cut: Option<CutId>,
}

impl DataThreads {
    pub(crate) fn new(threads: Vec<DataThreadHandle>) -> Self {
        Self { threads, pending: BTreeMap::new(), last: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.threads.len()
    }

    pub(crate) fn get(&self, thread: usize) -> Option<&DataThreadHandle> {
        self.threads.get(thread)
    }

    /// Sends a command to one thread.
    pub(crate) fn send(&self, thread: usize, command: DataCommand) {
        let sent = self.threads.get(thread).map(|thread| thread.send(command));
        if !matches!(sent, Some(Ok(()))) {
            tracing::error!(thread, "data_thread_ended");
        }
    }

    /// Sends a command to all threads.
    pub(crate) fn broadcast(&self, command: impl Fn() -> DataCommand) {
        for thread in 0..self.threads.len() {
            self.send(thread, command());
        }
    }

    /// Sends a numbered command to all threads; `report` is sent when all have performed it.
    pub(crate) fn ask(
        &mut self,
        report: PserverReport,
        cut: Option<CutId>,
        command: impl Fn(u64) -> DataCommand,
    ) {
        self.last += 1;
        let ask = self.last;
        let threads = self.threads.len();
        self.pending.insert(ask, PendingCommand { threads, report: Some(report), cut });
        self.broadcast(|| command(ask));
    }

    /// Counts an answer. Returns the command after its last answer.
    pub(crate) fn answered(&mut self, answer: DataAnswer) -> Option<AnsweredCommand> {
        let DataAnswer { ask, result } = answer;
        let Some(pending) = self.pending.get_mut(&ask) else {
            debug_assert!(false, "a thread answers each command once");
            return None;
        };
        pending.threads -= 1;
        if let Err(error) = result {
            tracing::info!(%error, "stale_command_ignored");
            pending.report = None;
        }
        if pending.threads > 0 {
            return None;
        }
        self.pending
            .remove(&ask)
            .map(|PendingCommand { report, cut, .. }| AnsweredCommand { report, cut })
    }

    /// Ends the threads: each ends when it finds its commands disconnected.
    pub(crate) fn end(self) {
        for DataThreadHandle { commands, wake, .. } in self.threads {
            drop(commands);
            wake.notify_one();
        }
    }
}
