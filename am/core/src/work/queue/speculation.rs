//! Which tasks of other trainers an idle one computes too.
//!
//! **Late** is a task of a trainer that has taken more than twice as long for a record as the median of those that finished
//! tasks, for `overdue_ms`, when three of four tasks of the phase are done or none is todo. Only the trainer's own computing
//! time counts: waiting for others would make the fast ones look slow. At most one late task of ten that are held, and
//! at least one, has a speculative attempt at a time: if many are slow, the data are, or the cluster is full.

use heddle_protocol::ids::{Member, TaskId};

use super::Queue;
use crate::config::Limits;
use crate::time::MonotonicMs;

/// A trainer is slow whose computing time for a record is above this multiple of the median.
const SLOW: u64 = 2;
/// Slow trainers that one look for a late task considers.
const SLOW_LOOKED_AT: usize = 64;

impl Queue {
    /// The task that waits in the longest queue of another trainer, for an idle one. Costs logarithms of the number of
    /// trainers, since at the end of a phase it is asked for each trainer that becomes idle.
    pub(super) fn longest_queue_task(&self) -> Option<TaskId> {
        let (load, longest) = *self.by_load.last()?;
        // The one handed out last is worked on last.
        let mut waiting = self.held(longest).iter().rev().filter(|_| load > 1);
        waiting.find(|id| self.has_one_holder(**id)).copied()
    }

    /// A late task for a trainer without any: it delays the end of the phase more than a task that is todo.
    pub(super) fn share_overdue_task(
        &mut self,
        idle: Member,
        now: MonotonicMs,
        limits: &Limits,
    ) -> Option<TaskId> {
        let late = self.overdue_task(Some(idle), now, limits)?;
        self.speculative.insert(late);
        self.had_overdue_task = true;
        Some(late)
    }

    /// Whether a late task may have a speculative attempt and waits for an idle trainer.
    pub(crate) fn has_waiting_overdue_task(&mut self, now: MonotonicMs, limits: &Limits) -> bool {
        let waits = self.overdue_task(None, now, limits).is_some();
        self.had_overdue_task |= waits;
        waits
    }

    /// Whether a task of the phase was late.
    pub(crate) fn had_overdue_task(&self) -> bool {
        self.had_overdue_task
    }

    fn has_one_holder(&self, id: TaskId) -> bool {
        self.task(id).is_some_and(|task| task.grants.len() == 1)
    }

    /// The late task of the slowest trainer but `idle`, if another one may have a speculative attempt.
    fn overdue_task(
        &self,
        idle: Option<Member>,
        now: MonotonicMs,
        limits: &Limits,
    ) -> Option<TaskId> {
        let held = self.tasks.len() - (self.done + self.set_aside) as usize - self.todo.len();
        if !self.may_be_overdue() || self.speculative.len() >= (held / 10).max(1) {
            return None;
        }
        let late = |member: &Member| {
            let since = self.records.get(member).and_then(|record| record.slow_since);
            since.is_some_and(|since| now.since(since) >= limits.overdue_ms)
        };
        let slowest = self.slow.iter().rev().take(SLOW_LOOKED_AT).map(|(_, member)| *member);
        let mut slowest = slowest.filter(|member| Some(*member) != idle && late(member));
        slowest.find_map(|member| {
            self.held(member).iter().find(|id| self.has_one_holder(**id)).copied()
        })
    }

    /// A trainer's own computing time for a record, from its heartbeat; 0: not measured.
    pub(crate) fn measured(&mut self, member: Member, record_ns: u64, now: MonotonicMs) {
        let median_ns = self.paces.median_ns();
        let Some(record) = self.records.get_mut(&member).filter(|_| record_ns > 0) else {
            return;
        };
        if record.slow_since.is_some() {
            self.slow.remove(&(record.record_ns, member));
        }
        record.record_ns = record_ns;
        let is_slow = median_ns.is_some_and(|median| record_ns > median.saturating_mul(SLOW));
        if is_slow {
            record.slow_since.get_or_insert(now);
            self.slow.insert((record_ns, member));
        } else {
            record.slow_since = None;
        }
    }

    /// Whether a task can be late by now, so that a look now and then is worth it.
    pub(crate) fn may_be_overdue(&self) -> bool {
        let over = (self.done + self.set_aside) as usize;
        !self.is_done() && (self.todo.is_empty() || 4 * over >= 3 * self.tasks.len())
    }
}
