//! Holders of shards: which of them answer, and how far their shards are.

use heddle_protocol::ids::{Epoch, PhaseNo, Role, Slot, Step};

use super::Fleet;

impl Fleet {
    /// Whether the slot has a registered container of which no end, no broken connection and no silence is known.
    pub(crate) fn answers(&self, slot: Slot) -> bool {
        self.slots.holder(slot).is_some_and(|holder| {
            let runs = |name| self.slots.containers.contains_key(name);
            let connected = holder.link.is_connected() && !holder.link.is_silent();
            connected && holder.container.as_ref().is_none_or(runs)
        })
    }

    /// A shard of the pserver is at this step, as an answer between two heartbeats shows.
    pub(crate) fn shard_at(&mut self, slot: Slot, epoch: Epoch, phase: PhaseNo, step: Step) {
        if let Some(holder) = self.slots.holder_mut(slot) {
            let beat = &mut holder.heartbeat;
            (beat.epoch, beat.phase, beat.step) = (epoch, phase, step);
        }
    }

    /// BSP: the furthest step that shards are known to have applied. A trainer's step may be one ahead of it without end, where
    /// another one's lanes are missing.
    pub(crate) fn shards_step(&self, epoch: Epoch, phase: PhaseNo) -> Step {
        let beats = self.slots.holders(Role::Pserver).map(|holder| &holder.heartbeat);
        let current = beats.filter(|beat| (beat.epoch, beat.phase) == (epoch, phase));
        current.map(|beat| beat.step).max().unwrap_or_default()
    }
}
