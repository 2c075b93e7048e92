//! Trainers that are ready become members of the job.
//!
//! Pservers serve members alone, and each change of the members is a list of all of them to every pserver. So many
//! trainers that come one by one would make a job of thousands send lists of thousands thousands of times. **Rule:** before the
//! work begins nobody joins until those are there that it needs, and then all do at once; later the first few join
//! in the moment they come, and when more come in a short time they wait for its end and join together. A small
//! job and the replacement of a lost trainer never wait.
//!
//! What does not depend on this: nobody joins between the order of a cut and its last snapshot.

use std::sync::Arc;

use heddle_protocol::control::Command;
use heddle_protocol::ids::{Member, Role, Slot};

use crate::context::deadlines::Purpose;
use crate::core::{Core, JobStage};
use crate::fleet::slots::RegisteredContainer;
use crate::time::MonotonicMs;
use crate::work::phases::NextStep;

/// Lists sent without waiting in one window.
const BURST: u32 = 8;
/// Length of a window.
const WINDOW_MS: u64 = 100;
/// And longer with the length of the lists: by a millisecond per so many members.
const MEMBERS_PER_MS: u64 = 8;

/// How many lists went out lately.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct JoinBatching {
    window_ends: MonotonicMs,
    sent: u32,
    /// Length of the last list.
    pub members: usize,
    /// Some joined before the work began; it is not only those who are joining that count.
    early: bool,
}

impl JoinBatching {
    /// When the next list may go out, if not now.
    fn closed_until(&self, now: MonotonicMs) -> Option<MonotonicMs> {
        (now < self.window_ends && self.sent >= BURST).then_some(self.window_ends)
    }

    /// A list of so many goes out.
    fn note(&mut self, now: MonotonicMs, members: usize) {
        if now >= self.window_ends {
            self.window_ends = now + (WINDOW_MS + members as u64 / MEMBERS_PER_MS);
            self.sent = 0;
        }
        self.sent += 1;
    }
}

impl Core {
    /// How many trainers the work needs to begin.
    pub(crate) fn trainers_to_start(&self) -> u32 {
        self.config.spec.trainers.min.min(self.trainers_wanted)
    }

    /// Makes trainers that are ready members of the job.
    pub(crate) fn admit(&mut self) {
        let barred = match &self.stage {
            JobStage::New | JobStage::Takeover(_) | JobStage::Stopping(_) | JobStage::Over => true,
            _ => self.cuts.bars_joins(),
        };
        if barred {
            return;
        }
        // Called after nearly every event: whoever can be turned away without looking at each slot is.
        if self.slots.joining.is_empty() {
            return;
        }
        let needed = self.trainers_to_start() as usize;
        let dealing = matches!(self.stage, JobStage::Idle(NextStep::StartWork | NextStep::Resume));
        if !self.started
            && !(dealing && (self.join_batching.early || self.slots.joining.len() >= needed))
        {
            return;
        }
        if let Some(at) = self.join_batching.closed_until(self.now.mono) {
            return self.deadlines.at_latest(Purpose::Join, at);
        }
        let mut joining = std::mem::take(&mut self.slots.joining);
        joining.retain(|slot| self.slots.holder(*slot).is_some_and(|holder| !holder.joined));
        let ready = |holder: &&RegisteredContainer| {
            holder.connection.is_some() && holder.draining.is_none()
        };
        let joiners: Vec<Member> = joining
            .iter()
            .filter_map(|slot| self.slots.holder(*slot))
            .filter(ready)
            .map(|holder| holder.member)
            .collect();
        self.slots.joining = joining;
        if joiners.is_empty() {
            return;
        }
        let together = self.joined().len() + joiners.len();
        if !self.started && together < needed {
            return;
        }
        self.join_batching.early |= !self.started;
        self.join_batching.note(self.now.mono, together);
        for member in &joiners {
            if let Some(holder) = self.slots.holder_mut(member.slot) {
                holder.joined = true;
            }
        }
        self.send_members();
        if matches!(self.stage, JobStage::Working) {
            let work = self.work();
            for member in joiners {
                self.send(member.slot, Arc::clone(&work));
            }
            self.share_lanes();
            self.feed();
        }
    }

    /// Tells all pservers which trainers may be connected.
    pub(crate) fn send_members(&mut self) {
        let trainers: Vec<Member> = self.joined().into_iter().collect();
        self.join_batching.members = trainers.len();
        self.members = Arc::new(Command::Members { trainers });
        for slot in self.registered_slots(Role::Pserver) {
            self.send(slot, Arc::clone(&self.members));
        }
    }

    /// Tells a pserver that has just registered. Thousands of them come at once, so the list is not made for each.
    pub(crate) fn send_members_to(&mut self, slot: Slot) {
        debug_assert!(
            matches!(&*self.members, Command::Members { trainers } if trainers.iter().eq(&self.joined())),
            "who joins or leaves is told to all pservers"
        );
        self.send(slot, Arc::clone(&self.members));
    }
}
