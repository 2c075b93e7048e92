//! Trainers that compute a task which another one has finished: they are ordered to stop.
//!
//! A trainer stops after the step that it computes, and reports it. One that does not for `overdue_ms` is drained, and its
//! container replaced: it would begin its next task late. The order outlives the phase, since the last task of a phase is
//! the one that is late most often.

use std::collections::{BTreeMap, BTreeSet};

use heddle_protocol::control::TaskHandOut;
use heddle_protocol::ids::Member;
use heddle_protocol::view::StragglersView;

use crate::time::MonotonicMs;

/// Orders to stop that are not answered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Losers {
    /// By trainer: the hand-outs, and when the first order was sent.
    waiting: BTreeMap<Member, (MonotonicMs, BTreeSet<TaskHandOut>)>,
    /// Orders that were answered.
    answered: StragglersView,
}

impl Losers {
    /// A trainer is ordered to stop.
    pub(crate) fn ordered(&mut self, trainer: Member, hand_outs: &[TaskHandOut], now: MonotonicMs) {
        let (_, waiting) = self.waiting.entry(trainer).or_insert((now, BTreeSet::new()));
        waiting.extend(hand_outs);
    }

    /// A trainer has stopped work on these.
    pub(crate) fn stopped(&mut self, trainer: Member, hand_outs: &[TaskHandOut], now: MonotonicMs) {
        if let Some((since, waiting)) = self.waiting.get_mut(&trainer) {
            let before = waiting.len();
            waiting.retain(|hand_out| !hand_outs.contains(hand_out));
            let (stopped, ms) = ((before - waiting.len()) as u64, now.since(*since));
            if stopped > 0 {
                self.answered.stopped += stopped;
                self.answered.slowest_stop_ms = self.answered.slowest_stop_ms.max(ms);
            }
            if waiting.is_empty() {
                self.waiting.remove(&trainer);
            }
        }
    }

    /// A trainer has left the job, or has a new connection, on which its orders are sent again.
    pub(crate) fn forget(&mut self, trainer: Member) {
        self.waiting.remove(&trainer);
    }

    /// The orders that were answered; `None` before the first.
    pub(crate) fn view(&self) -> Option<StragglersView> {
        Some(self.answered).filter(|answered| answered.stopped > 0)
    }

    /// Forgets the orders of work that is given up. The figures of earlier ones stay.
    pub(crate) fn forget_all(&mut self) {
        self.waiting.clear();
    }

    /// Whether an answer is awaited.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes out the trainers that have not answered for `overdue_ms`.
    pub(crate) fn take_overdue(&mut self, now: MonotonicMs, overdue_ms: u64) -> Vec<Member> {
        let late = self.waiting.iter().filter(|(_, (since, _))| now.since(*since) >= overdue_ms);
        let late: Vec<Member> = late.map(|(trainer, _)| *trainer).collect();
        for trainer in &late {
            self.waiting.remove(trainer);
        }
        late
    }
}

#[cfg(test)]
mod tests {
    use heddle_protocol::ids::{Incarnation, Slot, TaskAttempt, TaskId};

    use super::*;

    #[test]
    fn a_loser_that_does_not_answer_is_late_once() {
        let trainer = Member { slot: Slot::trainer(1), incarnation: Incarnation(1) };
        let hand_out = |task| TaskHandOut { task: TaskId(task), attempt: TaskAttempt(1) };
        let mut losers = Losers::default();
        losers.ordered(trainer, &[hand_out(1)], MonotonicMs(0));
        losers.ordered(trainer, &[hand_out(2)], MonotonicMs(9_000));
        losers.stopped(trainer, &[hand_out(2)], MonotonicMs(9_400));
        assert_eq!(losers.view(), Some(StragglersView { stopped: 1, slowest_stop_ms: 9_400 }));
        assert_eq!(losers.take_overdue(MonotonicMs(9_999), 10_000), []);
        assert_eq!(losers.take_overdue(MonotonicMs(10_000), 10_000), [trainer]);
        assert!(losers.is_empty());
        losers.ordered(trainer, &[hand_out(3)], MonotonicMs(10_000));
        losers.stopped(trainer, &[hand_out(3), hand_out(4)], MonotonicMs(10_500));
        losers.stopped(trainer, &[hand_out(3)], MonotonicMs(90_000));
        assert_eq!(losers.view(), Some(StragglersView { stopped: 2, slowest_stop_ms: 9_400 }));
        assert_eq!(losers.take_overdue(MonotonicMs(90_000), 10_000), []);
    }
}
