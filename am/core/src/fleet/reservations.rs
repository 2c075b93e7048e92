//! Requests of containers that the job can do without step back for those of trainers.
//!
//! YARN serves the requests of an application by priority, and parameter servers come first. A request that fits on no node gets
//! a reservation on one, and after some heartbeats on further ones; a node with a reservation runs no other container
//! (`RegularContainerAllocator.shouldAllocOrReserveNewContainer`, `FSAppAttempt.reserve`). So in a full cluster the replacement of
//! a parameter server whose shards others have taken over would keep trainers from the room that there is.

use heddle_protocol::ids::{Member, Role, Slot};
use heddle_protocol::job_spec::JobSpec;

use super::slots::{SlotStatus, Slots};
use crate::time::MonotonicMs;

/// How long a request steps back before it is considered again.
const STEP_BACK_MS: u64 = 5_000;

/// Whether a trainer fits wherever a parameter server does.
pub(super) fn are_trainers_smaller(spec: &JobSpec) -> bool {
    spec.trainers.memory <= spec.pservers.memory && spec.trainers.resources.is_empty()
}

/// While one of the first `trainers_min` trainers has no container, parameter servers without shards are not requested.
/// `serves`: whether a slot has shards. Returns the members whose requests are to be withdrawn.
pub(super) fn step_back(
    slots: &mut Slots,
    trainers_min: u32,
    serves: impl Fn(Slot) -> bool,
    now: MonotonicMs,
) -> Vec<Member> {
    let mut withdrawn = Vec::new();
    let lacks = slots.entries.iter().any(|(slot, entry)| {
        // One that waits before it is started again needs no room yet.
        let waits = match entry.status {
            SlotStatus::Empty { not_before } => not_before <= now,
            SlotStatus::Asked => true,
            SlotStatus::Starting { .. } | SlotStatus::Held(_) => false,
        };
        slot.role == Role::Trainer && slot.index < trainers_min && entry.wanted && waits
    });
    if !lacks {
        return withdrawn;
    }
    let not_before = now + STEP_BACK_MS;
    for (&slot, entry) in &mut slots.entries {
        if slot.role != Role::Pserver || serves(slot) {
            continue;
        }
        match entry.status {
            SlotStatus::Asked => {
                withdrawn.push(Member { slot, incarnation: entry.incarnation });
                entry.status = SlotStatus::Empty { not_before };
            }
            SlotStatus::Empty { not_before: at } if at <= now => {
                entry.status = SlotStatus::Empty { not_before };
            }
            SlotStatus::Empty { .. } | SlotStatus::Starting { .. } | SlotStatus::Held(_) => {}
        }
    }
    withdrawn
}
