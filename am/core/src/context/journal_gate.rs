//! The journal gate: actions wait for the journal here. It is the one place that orders effects.
//!
//! The rule: **what others can see waits until every decision recorded before it is durable.** If the
//! ApplicationMaster dies in between, no process has seen a decision that its successor lacks.
//! Waiting is first in, first out, so that the order on a connection never changes. What only the
//! cluster or users see (asks, launches, stops, notices) and the journal itself do not wait: they
//! decide nothing that a successor would have to know.
//!
//! A record that only notes what is true without it (a checkpoint that its directory shows, scores)
//! is [no decision](Record::is_decision), and only store calls wait for it: they would fail where the
//! journal cannot be written, and an old checkpoint goes when the newer one is recorded. So while a
//! file system cannot be written training goes on without checkpoints, and a rollback's record, which
//! comes later in the same journal, waits for both.

use std::collections::VecDeque;

use heddle_protocol::mutation::Mutation;

use crate::action::{Action, RecordId};
use crate::record::Record;

/// Actions on their way out.
#[derive(Clone, Debug, Default)]
pub(crate) struct JournalGate {
    ready: Vec<Action>,
    /// Messages, each with the last decision before it.
    messages: VecDeque<(RecordId, Action)>,
    /// Store calls, and answers to orders that are recorded, each with the last record before it.
    calls: VecDeque<(RecordId, Action)>,
    asked: RecordId,
    /// The last of them that is a decision.
    decided: RecordId,
    durable: RecordId,
}

impl JournalGate {
    /// Adds an action; it leaves when the decisions before it are durable, a store call when all
    /// records before it are.
    pub(crate) fn push(&mut self, action: Action) {
        match wait(&action) {
            Wait::Decisions
                if self.durable < self.decided && !Mutation::CommandsBeforeJournal.is_on() =>
            {
                self.messages.push_back((self.decided, action));
            }
            Wait::Records if self.durable < self.asked => {
                self.calls.push_back((self.asked, action));
            }
            Wait::Decisions | Wait::Records | Wait::Nothing => self.ready.push(action),
        }
    }

    /// Asks for a record; returns its number.
    pub(crate) fn journal(&mut self, record: Record) -> RecordId {
        if record.is_decision() {
            return self.decide(record);
        }
        self.ask(record)
    }

    /// Asks for a record that is a decision in this job, whatever it is in others.
    pub(crate) fn decide(&mut self, record: Record) -> RecordId {
        let id = self.ask(record);
        self.decided = id;
        id
    }

    fn ask(&mut self, record: Record) -> RecordId {
        self.asked = RecordId(self.asked.0 + 1);
        self.ready.push(Action::Journal { id: self.asked, record: Box::new(record) });
        self.asked
    }

    /// The journal holds this record and all before it.
    pub(crate) fn durable(&mut self, record: RecordId) {
        // One that was never asked for must not free what waits for a later one.
        self.durable = self.durable.max(record.min(self.asked));
        for queue in [&mut self.messages, &mut self.calls] {
            while queue.front().is_some_and(|(after, _)| *after <= self.durable) {
                self.ready.extend(queue.pop_front().map(|(_, action)| action));
            }
        }
    }

    /// Forgets what waits and what was just decided: the journal is lost, so no process may see it.
    pub(crate) fn abandon(&mut self) {
        self.messages.clear();
        self.calls.clear();
        self.ready.retain(|action| matches!(wait(action), Wait::Nothing));
        self.durable = self.asked;
    }

    /// Adds an action that leaves when all records before it are durable, though processes of the job do not see it.
    pub(crate) fn push_recorded(&mut self, action: Action) {
        if self.durable < self.asked && !Mutation::OrderAnsweredEarly.is_on() {
            self.calls.push_back((self.asked, action));
        } else {
            self.ready.push(action);
        }
    }

    /// Adds a store call that the caller has judged: the records before it [are durable](Self::has).
    pub(crate) fn push_judged(&mut self, call: Action) {
        self.ready.push(call);
    }

    /// The last record asked for.
    pub(crate) fn asked(&self) -> RecordId {
        self.asked
    }

    /// Whether the records up to this one are durable, and every decision.
    pub(crate) fn has(&self, record: RecordId) -> bool {
        self.durable >= record.max(self.decided)
    }

    /// Whether every record asked for is durable.
    pub(crate) fn is_settled(&self) -> bool {
        self.durable == self.asked
    }

    /// Whether every decision asked for is durable.
    pub(crate) fn are_decisions_durable(&self) -> bool {
        self.durable >= self.decided
    }

    /// What may be done now.
    pub(crate) fn take(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.ready)
    }
}

/// What an action waits for.
enum Wait {
    Nothing,
    Decisions,
    Records,
}

/// Whether an action shows a decision to others. All variants by name, so that a new one makes its author choose.
fn wait(action: &Action) -> Wait {
    match action {
        Action::Send { .. } | Action::Disconnect { .. } | Action::Finish(_) => Wait::Decisions,
        Action::Store { .. } => Wait::Records,
        Action::Container(_)
        | Action::Journal { .. }
        | Action::ProbePort { .. }
        | Action::Notice(_)
        | Action::Fault(_)
        | Action::Answer { .. } => Wait::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::{
        CallId, ConnectionId, ContainerName, ContainerOrder, OperationId, StoreCall,
    };
    use crate::outcome::Outcome;
    use heddle_protocol::exit_code::ExitCode;
    use heddle_protocol::ids::{CutId, Generation, PhaseNo, Step};
    use heddle_protocol::view::JobState;

    fn record() -> Record {
        let state = JobState::Finished;
        Record::Outcome(Outcome {
            state,
            exit_code: ExitCode::Ok,
            message: String::new(),
            model: None,
        })
    }

    fn visible() -> Action {
        Action::Disconnect { connection: ConnectionId(1) }
    }

    #[test]
    fn visible_actions_wait_for_earlier_records_in_order() {
        let mut gate = JournalGate::default();
        gate.push(visible());
        assert_eq!(gate.take().len(), 1, "nothing was recorded yet, so nothing is waited for");
        let first = gate.journal(record());
        gate.push(visible());
        let second = gate.journal(record());
        gate.push(visible());
        gate.push(Action::Container(ContainerOrder::Release(ContainerName("c".to_owned()))));
        assert_eq!(
            gate.take().len(),
            3,
            "both records, and the release that only the cluster sees"
        );
        gate.durable(first);
        assert_eq!(gate.take().len(), 1);
        assert!(!gate.is_settled());
        gate.durable(second);
        assert_eq!(gate.take().len(), 1);
        assert!(gate.is_settled());
    }

    #[test]
    fn note_delays_store_calls_and_the_decision_after_it() {
        let note = Record::Commit {
            cut: CutId { generation: Generation(1), number: 1 },
            dir: String::new(),
            phase: PhaseNo(0),
            step: Step(0),
            at_ms: 0,
        };
        let mut gate = JournalGate::default();
        let first = gate.journal(note);
        gate.push(visible());
        let keep = StoreCall::Retain {
            keep: 2,
            generation: Generation(1),
            base: CutId::default(),
            best: None,
            held: None,
        };
        gate.push(Action::Store { id: CallId(1), call: Box::new(keep) });
        assert_eq!(gate.take().len(), 2, "the record and the message");
        assert!(!gate.is_settled(), "the end waits for notes too");
        let second = gate.journal(record());
        gate.push(visible());
        gate.durable(first);
        let ready = gate.take();
        assert!(
            matches!(ready.as_slice(), [Action::Journal { .. }, Action::Store { .. }]),
            "{ready:?}"
        );
        gate.durable(second);
        assert_eq!(gate.take().len(), 1);
    }

    #[test]
    fn recorded_answer_waits_for_its_record() {
        let mut gate = JournalGate::default();
        let answer = || Action::Answer { id: OperationId(1), result: Ok(String::new()) };
        gate.push_recorded(answer());
        assert!(matches!(gate.take().as_slice(), [Action::Answer { .. }]));
        let record = gate.journal(record());
        gate.push_recorded(answer());
        assert!(matches!(gate.take().as_slice(), [Action::Journal { .. }]));
        gate.durable(record);
        assert!(matches!(gate.take().as_slice(), [Action::Answer { .. }]));
    }

    #[test]
    fn a_record_number_from_nowhere_frees_nothing_later() {
        let mut gate = JournalGate::default();
        gate.durable(RecordId(9));
        gate.journal(record());
        gate.push(visible());
        assert_eq!(gate.take().len(), 1, "the record alone");
    }
}
