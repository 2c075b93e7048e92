//! Where actions wait for the journal: the one place that orders effects.
//!
//! The rule: **what others can see waits until every record asked for before it is durable.** If the
//! ApplicationMaster dies in between, nobody has heard of a decision that its successor does not know.
//! Waiting is first in, first out, so that the order on a connection never changes. What only the
//! cluster or people see (asks, launches, stops, notices) and the journal itself do not wait: they
//! decide nothing that a successor would have to know.

use std::collections::VecDeque;

use crate::action::{Action, RecordId};
use crate::record::Record;

/// Actions on their way out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outbox {
    ready: Vec<Action>,
    /// Each with the last record asked for before it.
    waiting: VecDeque<(RecordId, Action)>,
    asked: RecordId,
    durable: RecordId,
}

impl Outbox {
    /// Adds an action; it leaves when the records before it are durable.
    pub(crate) fn push(&mut self, action: Action) {
        if waits(&action) && (self.durable < self.asked) {
            self.waiting.push_back((self.asked, action));
        } else {
            self.ready.push(action);
        }
    }

    /// Asks for a record; returns its number.
    pub(crate) fn journal(&mut self, record: Record) -> RecordId {
        self.asked = RecordId(self.asked.0 + 1);
        self.ready.push(Action::Journal {
            id: self.asked,
            record: Box::new(record),
        });
        self.asked
    }

    /// The journal holds this record and all before it.
    pub(crate) fn durable(&mut self, record: RecordId) {
        // One that was never asked for must not free what waits for a later one.
        self.durable = self.durable.max(record.min(self.asked));
        while self
            .waiting
            .front()
            .is_some_and(|(after, _)| *after <= self.durable)
        {
            self.ready
                .extend(self.waiting.pop_front().map(|(_, action)| action));
        }
    }

    /// Forgets what waits and what was just decided: the journal is lost, so nobody may hear of it.
    pub(crate) fn abandon(&mut self) {
        self.waiting.clear();
        self.ready.retain(|action| !waits(action));
        self.durable = self.asked;
    }

    /// Whether every record asked for is durable.
    pub(crate) fn is_settled(&self) -> bool {
        self.durable == self.asked
    }

    /// What may be done now.
    pub(crate) fn take(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.ready)
    }
}

/// Whether an action tells others of a decision. All variants by name, so that a new one makes its author choose.
fn waits(action: &Action) -> bool {
    match action {
        Action::Send { .. }
        | Action::Disconnect { .. }
        | Action::Store { .. }
        | Action::Finish(_) => true,
        Action::Ask { .. }
        | Action::CancelAsk { .. }
        | Action::Release { .. }
        | Action::Launch { .. }
        | Action::Stop { .. }
        | Action::Journal { .. }
        | Action::ProbePort { .. }
        | Action::Notice(_)
        | Action::Answer { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::{ConnectionId, ContainerId, Outcome};
    use heddle_protocol::view::JobState;

    fn record() -> Record {
        let state = JobState::Finished;
        Record::Outcome(Outcome {
            state,
            exit_code: 0,
            message: String::new(),
            model: None,
        })
    }

    fn visible() -> Action {
        Action::Disconnect {
            connection: ConnectionId(1),
        }
    }

    #[test]
    fn what_others_can_see_waits_for_the_records_before_it_and_keeps_its_order() {
        let mut outbox = Outbox::default();
        outbox.push(visible());
        assert_eq!(
            outbox.take().len(),
            1,
            "nothing was recorded yet, so nothing is waited for"
        );
        let first = outbox.journal(record());
        outbox.push(visible());
        let second = outbox.journal(record());
        outbox.push(visible());
        outbox.push(Action::Release {
            container: ContainerId("c".to_owned()),
        });
        assert_eq!(
            outbox.take().len(),
            3,
            "both records, and the release that nobody else sees"
        );
        outbox.durable(first);
        assert_eq!(outbox.take().len(), 1);
        assert!(!outbox.is_settled());
        outbox.durable(second);
        assert_eq!(outbox.take().len(), 1);
        assert!(outbox.is_settled());
    }

    #[test]
    fn a_record_number_from_nowhere_frees_nothing_later() {
        let mut outbox = Outbox::default();
        outbox.durable(RecordId(9));
        outbox.journal(record());
        outbox.push(visible());
        assert_eq!(outbox.take().len(), 1, "the record alone");
    }
}
