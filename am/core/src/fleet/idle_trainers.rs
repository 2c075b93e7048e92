//! Idle trainers: containers that stand still while others could use them.
//!
//! **Rule.** A trainer that has been without work for `trainers.idle-timeout` leaves, down to `trainers.min`: there were fewer
//! lanes than trainers, or at the end of a phase fewer tasks. Its slot stays empty until there is work for it: when the work of
//! a phase is dispatched, when a task is late, or when an operator sets the number of trainers.
//!
//! **Limits.** Time in which work is not dispatched does not count. Extra trainers have a shorter time and leave for good,
//! spares stay. A new attempt of the ApplicationMaster asks for all trainers again.

use std::collections::{BTreeMap, BTreeSet};

use heddle_protocol::ids::{Member, Slot};
use heddle_protocol::view::JobEvent;

use super::{Fleet, extra_trainers};
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

    /// The slots of trainers that have been idle for this time, the last ones first.
    fn idle_for(&self, ms: u64, now: MonotonicMs) -> impl Iterator<Item = Slot> {
        let due = self.since.iter().rev().filter(move |(_, since)| now.since(**since) >= ms);
        due.map(|(member, _)| member.slot)
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
        let (least, idle_ms) =
            (config.spec.trainers.min as usize, config.spec.trainers.idle_timeout.0);
        let before = std::mem::take(&mut self.idle.since);
        let since = |member: Member| (member, before.get(&member).copied().unwrap_or(now));
        self.idle.since = idle.into_iter().map(since).collect();
        let surplus =
            (self.wanted.size.trainers as usize).saturating_sub(self.idle.released.len() + least);
        let is_extra = |slot: &Slot| self.extra.has(*slot);
        let extra = self.idle.idle_for(extra_trainers::IDLE_MS, now).filter(is_extra);
        let extra: Vec<Slot> = extra.collect();
        let others = self.idle.idle_for(idle_ms, now).filter(|slot| !is_extra(slot));
        let others: Vec<Slot> = others.take(surplus).collect();
        if extra.is_empty() && others.is_empty() {
            return others;
        }
        if let Ok(trainers @ 1..) = u32::try_from(others.len()) {
            ctx.notice(JobEvent::TrainersReleased { trainers, idle_ms });
        }
        self.extra.forget(&extra);
        self.idle.released.extend(others);
        self.leave_unwanted(ctx)
    }

    /// How many slots are left empty until there is work.
    pub(crate) fn released_trainers(&self) -> usize {
        self.idle.count()
    }

    /// There is work for this number of trainers: released ones are asked for again, as far as it needs them.
    pub(crate) fn recall_trainers(&mut self, useful: usize) {
        self.idle.since.retain(|member, _| self.extra.has(member.slot));
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
