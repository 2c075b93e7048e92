//! Extra trainers: containers beyond `trainers.max` for late tasks, while no trainer is idle.
//!
//! **Rule.** One more is asked for at each look (once a second) at which a late task has found no idle trainer and no
//! trainer is awaited, up to `trainers.extra`. It gets the late task first; afterwards it works as the others do. Extra trainers
//! leave at the end of a phase of tasks in which none was late, and one that has been idle for [`IDLE_MS`] leaves at
//! once. A slow trainer is late in each pass, and a container may take long to start: so they stay from one late
//! task to the next.
//!
//! **Limits.** Their slots follow those of the other trainers, so that an operator's number of trainers does not concern
//! them. A new attempt of the ApplicationMaster takes in those that register with it, and asks for none before a task is
//! late again.

use std::collections::BTreeSet;
use std::ops::Range;

use heddle_protocol::ids::{Role, Slot};
use heddle_protocol::job_spec::TrainerSpec;
use heddle_protocol::mutation::Mutation;

use super::Fleet;
use super::slots::SlotStatus;
use crate::context::Context;

/// An extra trainer without work for this time leaves: ten times what a container usually takes to start.
pub(super) const IDLE_MS: u64 = 30_000;

/// Which extra trainers the job has.
#[derive(Clone, Debug)]
pub(super) struct ExtraTrainers {
    /// Indices of their slots.
    indices: Range<u32>,
    /// Those to be filled.
    wanted: BTreeSet<u32>,
}

impl ExtraTrainers {
    pub(super) fn new(spec: &TrainerSpec) -> Self {
        let slots = spec.slots();
        Self { indices: slots - spec.extra.min(slots)..slots, wanted: BTreeSet::new() }
    }

    /// Whether a slot is one of an extra trainer.
    pub(super) fn has(&self, slot: Slot) -> bool {
        slot.role == Role::Trainer && self.indices.contains(&slot.index)
    }

    /// Whether a slot is to be filled by an extra trainer.
    pub(super) fn is_wanted(&self, slot: Slot) -> bool {
        slot.role == Role::Trainer && self.wanted.contains(&slot.index)
    }

    /// These are not needed any more.
    pub(super) fn forget(&mut self, slots: &[Slot]) {
        self.wanted.retain(|index| !slots.contains(&Slot::trainer(*index)));
    }

    /// How many there are, or are asked for.
    pub(super) fn count(&self) -> usize {
        self.wanted.len()
    }
}

impl Fleet {
    /// A late task has found no idle trainer. Returns the slot that another one is asked for in; none while any trainer is
    /// awaited.
    pub(crate) fn want_extra_trainer(&mut self) -> Option<Slot> {
        if self.open_places() > 0 {
            return None;
        }
        let index = self.extra.indices.clone().find(|index| {
            let entry = self.slots.entries.get(&Slot::trainer(*index));
            let is_empty =
                entry.is_some_and(|entry| matches!(entry.status, SlotStatus::Empty { .. }));
            is_empty && !self.extra.wanted.contains(index)
        })?;
        self.extra.wanted.insert(index);
        self.set_wanted();
        Some(Slot::trainer(index))
    }

    /// No extra trainer is needed any more. Returns the slots that have to drain.
    pub(crate) fn leave_extra_trainers(&mut self, ctx: &mut Context) -> Vec<Slot> {
        if self.extra.wanted.is_empty() || Mutation::ExtraTrainersStay.is_on() {
            return Vec::new();
        }
        self.extra.wanted.clear();
        self.leave_unwanted(ctx)
    }

    /// A trainer that an earlier attempt started for late tasks registers: its slot is wanted again.
    pub(super) fn adopts_extra_trainer(&mut self, slot: Slot) -> bool {
        let adopts = self.adopting && self.extra.has(slot) && !self.extra.is_wanted(slot);
        if adopts {
            self.extra.wanted.insert(slot.index);
            self.set_wanted();
        }
        adopts
    }

    /// It is refused for another reason.
    pub(super) fn forget_extra_trainer(&mut self, slot: Slot) {
        self.extra.wanted.remove(&slot.index);
        self.set_wanted();
    }
}
