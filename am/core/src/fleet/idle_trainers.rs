//! Idle trainers: containers that stand still while others could use them.
//!
//! **Rule.** A trainer that has been without work for `trainers.idle-timeout` leaves, down to `trainers.min`: there were fewer
//! lanes than trainers, or at the end of a phase fewer tasks. Its slot stays empty until there is work for it: when the work of
//! a phase is dispatched, when a task is late, or when an operator sets the number of trainers.
//!
//! **Limits.** Time in which work is not dispatched does not count. Spares and extra trainers have rules of their own. A
//! new attempt of the ApplicationMaster asks for all trainers again.

use std::collections::{BTreeMap, BTreeSet};

use heddle_protocol::ids::{Member, Slot};

use super::Fleet;
use crate::context::Context;
use crate::time::MonotonicMs;

/// Which trainers are idle, and which slots are empty for that reason.
#[derive(Clone, Debug, Default)]
pub(super) struct IdleTrainers {
    /// Members without work, and since when.
    since: BTreeMap<Member, MonotonicMs>,
    released: BTreeSet<Slot>,
}

impl IdleTrainers {
    /// Whether a slot is left empty.
    pub(super) fn has_released(&self, slot: Slot) -> bool {
        self.released.contains(&slot)
    }

    /// How many slots are left empty.
    pub(super) fn count(&self) -> usize {
        self.released.len()
    }
}

impl Fleet {
    /// Releases trainers that have been idle for long; `idle`: all workers without work, while work is dispatched. Returns the
    /// slots that have to drain.
    pub(crate) fn release_idle_trainers(
        &mut self,
        idle: BTreeSet<Member>,
        ctx: &mut Context,
    ) -> Vec<Slot> {
        let (now, config) = (ctx.now(), ctx.config());
        let trainers = &config.spec.trainers;
        let before = std::mem::take(&mut self.idle.since);
        let since = |member: Member| (member, before.get(&member).copied().unwrap_or(now));
        let idle = idle.into_iter().filter(|member| !self.extra.has(member.slot));
        self.idle.since = idle.map(since).collect();
        let surplus =
            self.workers_wanted().saturating_sub(self.extra.count() + trainers.min as usize);
        let is_due = |since: MonotonicMs| now.since(since) >= trainers.idle_timeout.0;
        let due = self.idle.since.iter().rev().filter(|(_, since)| is_due(**since));
        let due: Vec<Slot> = due.map(|(member, _)| member.slot).take(surplus).collect();
        if due.is_empty() {
            return due;
        }
        self.idle.released.extend(due);
        self.leave_unwanted(ctx)
    }

    /// Whether a slot is left empty until there is work.
    pub(crate) fn has_released_trainers(&self) -> bool {
        self.idle.count() > 0
    }

    /// There is work for this number of trainers: released ones are asked for again, as far as it needs them.
    pub(crate) fn recall_trainers(&mut self, useful: usize) {
        self.idle.since.clear();
        let mut recalled = false;
        while self.workers_wanted() < useful && self.idle.released.pop_first().is_some() {
            recalled = true;
        }
        if recalled {
            self.set_wanted();
        }
    }

    /// An operator sets the number of trainers: it holds for idle ones too, for a while.
    pub(super) fn forget_released_trainers(&mut self) {
        self.idle = IdleTrainers::default();
    }
}
