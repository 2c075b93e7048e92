//! Membership: registered trainers become members of the job.
//!
//! Pservers serve members alone, and each change of the membership is a list of all members to every pserver. If trainers
//! joined one by one, a job of thousands would send lists of thousands thousands of times. **Rule:** before the work begins
//! no trainer joins until the trainers that the work needs are registered; then all join at once. Later the first few
//! join when they register. When more register in a short time, they wait for the end of a window and join together. A
//! small job and the replacement of a lost trainer never wait.
//!
//! With `trainers.spares` more trainers are registered than work. Those that find no place among the members wait; one of
//! them joins with the event that makes a place.
//!
//! Independent of this rule, no trainer joins between the order of a cut and its last snapshot.

use std::sync::Arc;

use heddle_protocol::control::{Command, ShardCommand};
use heddle_protocol::ids::{Member, Role, Slot};
use heddle_protocol::mutation::Mutation;

use super::Fleet;
use super::slots::RegisteredContainer;
use crate::context::Context;
use crate::context::deadlines::Purpose;
use crate::time::MonotonicMs;

/// Lists sent without waiting in one window.
const BURST: u32 = 8;
/// Length of a window.
const WINDOW_MS: u64 = 100;
/// The window is longer by a millisecond for this many members.
const MEMBERS_PER_MS: u64 = 8;

/// How many lists were sent recently.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct JoinBatching {
    window_ends: MonotonicMs,
    sent: u32,
    /// Length of the last list.
    members: usize,
    /// Trainers joined before the work began: then the number of those that are joining does not tell how many there are.
    early: bool,
}

impl JoinBatching {
    /// When the next list can be sent, if not now.
    fn closed_until(&self, now: MonotonicMs) -> Option<MonotonicMs> {
        (now < self.window_ends && self.sent >= BURST).then_some(self.window_ends)
    }

    /// A list of this length is sent.
    fn note(&mut self, now: MonotonicMs, members: usize) {
        if now >= self.window_ends {
            self.window_ends = now + (WINDOW_MS + members as u64 / MEMBERS_PER_MS);
            self.sent = 0;
        }
        self.sent += 1;
    }
}

impl Fleet {
    /// How many trainers the work needs to begin.
    pub(crate) fn trainers_to_start(&self, ctx: &Context) -> u32 {
        ctx.config().spec.trainers.min.min(self.wanted.size.trainers)
    }

    /// Number of members as the pservers were last sent them.
    pub(crate) fn member_count(&self) -> usize {
        self.join_batching.members
    }

    /// Whether trainers wait to join, and not as spares alone. Asked after nearly every event.
    pub(crate) fn has_joining(&self) -> bool {
        !self.slots.joining.is_empty() && (self.spares.trainers == 0 || self.open_places() > 0)
    }

    /// How many trainers work at the most, extra ones included.
    pub(super) fn workers_wanted(&self) -> usize {
        let trainers = (self.wanted.size.trainers as usize).saturating_sub(self.idle.count());
        trainers + self.extra.count()
    }

    /// How many more trainers can be members.
    pub(super) fn open_places(&self) -> usize {
        let workers = self.slots.holders(Role::Trainer);
        let workers = workers.filter(|holder| holder.joined && holder.draining.is_none()).count();
        match Mutation::SparesJoin.is_on() {
            true => usize::MAX,
            false => self.workers_wanted().saturating_sub(workers),
        }
    }

    /// Makes registered trainers members of the job; returns them. `started`: work was dispatched before; `starting`: it
    /// waits for trainers alone.
    pub(crate) fn admit(
        &mut self,
        started: bool,
        starting: bool,
        ctx: &mut Context,
    ) -> Vec<Member> {
        let needed = self.trainers_to_start(ctx) as usize;
        let enough = self.join_batching.early || self.slots.joining.len() >= needed;
        let can_join = started || (starting && enough);
        if !can_join {
            return Vec::new();
        }
        if let Some(at) = self.join_batching.closed_until(ctx.now()) {
            ctx.set_deadline_at_latest(Purpose::Join, at);
            return Vec::new();
        }
        let mut joining = std::mem::take(&mut self.slots.joining);
        joining.retain(|slot| self.slots.holder(*slot).is_some_and(|holder| !holder.joined));
        let ready =
            |holder: &&RegisteredContainer| holder.link.is_connected() && holder.draining.is_none();
        let joiners: Vec<Member> = joining
            .iter()
            .filter_map(|slot| self.slots.holder(*slot))
            .filter(ready)
            .map(|holder| holder.member)
            .take(self.open_places())
            .collect();
        self.slots.joining = joining;
        if joiners.is_empty() {
            return Vec::new();
        }
        let together = self.joined().len() + joiners.len();
        if !started && together < needed {
            return Vec::new();
        }
        self.join_batching.early |= !started;
        self.join_batching.note(ctx.now(), together);
        for member in &joiners {
            if let Some(holder) = self.slots.holder_mut(member.slot) {
                holder.joined = true;
            }
        }
        self.send_members(ctx);
        joiners
    }

    /// Sends all pservers the trainers that may connect.
    pub(crate) fn send_members(&mut self, ctx: &mut Context) {
        let trainers: Vec<Member> = self.joined().into_iter().collect();
        self.join_batching.members = trainers.len();
        self.members = ShardCommand::Members { trainers }.into();
        self.send_to_all(Role::Pserver, Arc::clone(&self.members), ctx);
    }

    /// Sends the members to a pserver that has just registered. Thousands register at once, so the list is not made for each.
    pub(crate) fn send_members_to(&self, slot: Slot, ctx: &mut Context) {
        debug_assert!(
            match &*self.members {
                Command::Shards(ShardCommand::Members { trainers }) =>
                    trainers.iter().eq(&self.joined()),
                _ => false,
            },
            "each change of the membership is sent to all pservers"
        );
        self.send(slot, Arc::clone(&self.members), ctx);
    }
}
