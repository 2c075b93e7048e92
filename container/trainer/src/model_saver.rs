//! Saves of the model that a program asks for while training goes on.
//!
//! A program with its own algorithm gets a [`ModelSaver`] from [`main_with_saver`](crate::main_with_saver). All trainers of a
//! job run the same program and may ask at the same time: the ApplicationMaster grants one request, and the others have
//! to wait. The model is written by one trainer from a checkpoint that is cut after the request, so training does not pause.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use heddle_agent::Reporter;
use heddle_protocol::control::{Command, Report, SaveAnswer, SaveRequest};

/// Requests without an answer that a program may have: the ApplicationMaster answers within a moment, and one that asks
/// at every step while it is away must not fill the queue of reports.
const PENDING_MAX: usize = 16;

/// Asks for saves of the model. Clones share their requests, and may be used by any thread.
#[derive(Clone, Debug, Default)]
pub struct ModelSaver {
    shared: Arc<SharedRequests>,
}

/// A request of [`ModelSaver::ask`].
#[derive(Debug)]
pub struct PendingSave {
    shared: Arc<SharedRequests>,
    request: u64,
}

#[derive(Debug, Default)]
struct SharedRequests {
    state: Mutex<SaverState>,
    answered: Condvar,
}

#[derive(Debug, Default)]
struct SaverState {
    /// None before the process has registered.
    reporter: Option<Reporter>,
    last: u64,
    requests: BTreeMap<u64, KnownRequest>,
}

#[derive(Debug)]
struct KnownRequest {
    line: SaveRequest,
    answer: Option<SaveAnswer>,
}

impl SharedRequests {
    fn lock(&self) -> MutexGuard<'_, SaverState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SaverState {
    fn send(&self, line: SaveRequest) {
        if let Some(reporter) = &self.reporter {
            reporter.send(Report::SaveModel(line));
        }
    }
}

impl ModelSaver {
    /// Asks for a save. `block`, 1 ms to 1 h: for how long requests of other trainers have to wait if this one is granted.
    /// Returns at once. The answer is lost if the [`PendingSave`] is dropped; a save that is granted is made in any case.
    #[must_use]
    pub fn ask(&self, block: Duration) -> PendingSave {
        let state = &mut *self.shared.lock();
        state.last += 1;
        let request = state.last;
        let block_ms = u64::try_from(block.as_millis()).unwrap_or(u64::MAX);
        let line = SaveRequest { request, block_ms };
        let unanswered = state.requests.values().filter(|known| known.answer.is_none()).count();
        let answer = (unanswered >= PENDING_MAX).then(|| SaveAnswer::Refused {
            reason: format!("{PENDING_MAX} requests wait for an answer"),
        });
        if answer.is_none() {
            state.send(line);
        }
        state.requests.insert(request, KnownRequest { line, answer });
        PendingSave { shared: Arc::clone(&self.shared), request }
    }

    /// The process has started: requests go this way.
    pub(crate) fn start(&self, reporter: Reporter) {
        self.shared.lock().reporter = Some(reporter);
    }

    /// Takes in what concerns requests; returns other commands. On a new connection requests without an answer are
    /// repeated: the answer may be lost.
    pub(crate) fn take(&self, command: Command) -> Option<Command> {
        match command {
            Command::SaveAnswer { request, outcome } => {
                tracing::info!(request, ?outcome, "save_answered");
                let state = &mut *self.shared.lock();
                if let Some(known) = state.requests.get_mut(&request) {
                    known.answer.get_or_insert(outcome);
                }
                self.shared.answered.notify_all();
                None
            }
            Command::Welcome(_) => {
                let state = &*self.shared.lock();
                let unanswered = state.requests.values().filter(|known| known.answer.is_none());
                unanswered.for_each(|known| state.send(known.line));
                Some(command)
            }
            other => Some(other),
        }
    }
}

impl PendingSave {
    /// The answer, if it is there.
    #[must_use]
    pub fn answer(&self) -> Option<SaveAnswer> {
        self.shared.lock().requests.get(&self.request)?.answer.clone()
    }

    /// Waits for the answer, at most this long. It takes a round trip, and longer while the ApplicationMaster is replaced. A
    /// program that waits in a step computes nothing meanwhile.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> Option<SaveAnswer> {
        let state = self.shared.lock();
        let is_open = |state: &mut SaverState| {
            state.requests.get(&self.request).is_some_and(|known| known.answer.is_none())
        };
        let waited = self.shared.answered.wait_timeout_while(state, timeout, is_open);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.requests.get(&self.request)?.answer.clone()
    }
}

impl Drop for PendingSave {
    fn drop(&mut self) {
        self.shared.lock().requests.remove(&self.request);
    }
}

#[cfg(test)]
mod tests {
    use heddle_protocol::control::TrainerCommand;
    use heddle_protocol::ids::SaveNo;

    use super::*;

    fn granted(request: u64, save: u32) -> Command {
        Command::SaveAnswer { request, outcome: SaveAnswer::Granted { save: SaveNo(save) } }
    }

    #[test]
    fn answer_reaches_the_request_that_it_names() {
        let saver = ModelSaver::default();
        let (first, second) = (saver.ask(Duration::from_secs(5)), saver.ask(Duration::ZERO));
        assert!(saver.take(granted(2, 7)).is_none());
        assert_eq!(first.answer(), None);
        assert_eq!(first.wait(Duration::from_millis(1)), None);
        assert_eq!(second.answer(), Some(SaveAnswer::Granted { save: SaveNo(7) }));
        // A repeated answer changes nothing, and one to a request that was dropped is ignored.
        saver.take(granted(2, 8));
        assert_eq!(second.answer(), Some(SaveAnswer::Granted { save: SaveNo(7) }));
        drop(first);
        saver.take(granted(1, 9));
        assert!(matches!(
            saver.take(Command::Trainer(TrainerCommand::Drain)),
            Some(Command::Trainer(TrainerCommand::Drain))
        ));
    }

    #[test]
    fn waiting_thread_wakes_with_the_answer() {
        let saver = ModelSaver::default();
        let pending = saver.ask(Duration::from_secs(1));
        let waits = std::thread::spawn(move || pending.wait(Duration::from_secs(60)));
        saver.take(granted(1, 1));
        let answer = waits.join().expect("no panic");
        assert_eq!(answer, Some(SaveAnswer::Granted { save: SaveNo(1) }));
    }

    #[test]
    fn requests_without_an_answer_are_limited() {
        let saver = ModelSaver::default();
        let pending: Vec<PendingSave> =
            (0..=PENDING_MAX).map(|_| saver.ask(Duration::from_secs(1))).collect();
        assert!(pending[..PENDING_MAX].iter().all(|one| one.answer().is_none()));
        assert!(matches!(pending[PENDING_MAX].answer(), Some(SaveAnswer::Refused { .. })));
    }
}
