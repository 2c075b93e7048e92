//! Requests of containers that the job can do without step back for those of trainers.
//!
//! YARN serves the requests of an application by priority, and parameter servers come first. A request that fits on no node is given
//! a reservation on one, and after some heartbeats on further ones; a node with a reservation runs no other container
//! (`RegularContainerAllocator.shouldAllocOrReserveNewContainer`, `FSAppAttempt.reserve`). So in a full cluster the replacement of
//! a parameter server whose shards others have taken over would keep trainers from the room that there is.

use heddle_protocol::ids::{Member, Role, Slot};

use super::Fleet;
use super::slots::SlotStatus;
use crate::action::ContainerOrder;
use crate::context::Context;

/// How long a request steps back before it is considered again.
const STEP_BACK_MS: u64 = 5_000;

impl Fleet {
    /// While a trainer that the job needs has no container, parameter servers without shards are not requested. `serves`: whether
    /// a slot has shards. A trainer that needs more than a parameter server is not kept from any room.
    pub(super) fn let_trainers_go_first(
        &mut self,
        serves: impl Fn(Slot) -> bool,
        ctx: &mut Context,
    ) {
        let trainers = &ctx.config().spec.trainers;
        if trainers.memory > ctx.config().spec.pservers.memory || !trainers.resources.is_empty() {
            return;
        }
        let min = trainers.min;
        let entries = &mut self.slots.entries;
        let lacks = entries.iter().any(|(slot, entry)| {
            let waits = matches!(entry.place, SlotStatus::Empty { .. } | SlotStatus::Asked);
            slot.role == Role::Trainer && slot.index < min && entry.wanted && waits
        });
        if !lacks {
            return;
        }
        let not_before = ctx.now() + STEP_BACK_MS;
        for (&slot, entry) in entries {
            if slot.role != Role::Pserver || serves(slot) {
                continue;
            }
            match entry.place {
                SlotStatus::Asked => {
                    let member = Member { slot, incarnation: entry.incarnation };
                    ctx.order(ContainerOrder::CancelAsk(member));
                    entry.place = SlotStatus::Empty { not_before };
                }
                SlotStatus::Empty { not_before: at } if at <= ctx.now() => {
                    entry.place = SlotStatus::Empty { not_before };
                }
                SlotStatus::Empty { .. } | SlotStatus::Starting { .. } | SlotStatus::Held(_) => {}
            }
        }
    }
}
