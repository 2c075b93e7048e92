//! Spares: containers that are registered and idle, and take the place of a lost one at once.
//!
//! A spare pserver is one without shards. A rollback gives it the shards of a lost pserver, so that no container has to
//! start first. The container that follows in the lost pserver's slot is the next spare: shards do not return to it. With
//! replicas a spare gets the copies that the shards have lost (`refill`). A spare trainer is one that has not joined
//! (`fleet::membership`).

use std::collections::BTreeSet;

use heddle_protocol::ids::{Member, Role, Slot};
use heddle_protocol::view::{SpareCounts, SparesView};

use super::Core;
use crate::stage::StageKind;
use crate::stage::shard_map::ShardMap;

impl Core {
    /// Slots of the registered pservers.
    pub(super) fn pservers_there(&self) -> BTreeSet<Slot> {
        self.fleet.holders(Role::Pserver).map(|holder| holder.member.slot).collect()
    }

    /// A rollback has another map: spares take the shards of pservers that are not there.
    pub(super) fn spares_take_over(&mut self, before: &ShardMap) {
        let there = self.pservers_there();
        let replaced: Vec<Slot> =
            before.missing(&there).filter(|slot| self.stage.map().of(*slot).is_empty()).collect();
        for slot in replaced {
            self.stage.recoveries_mut().spare_loads(slot);
        }
    }

    /// A pserver has registered while shards of a lost one wait for a container. Returns whether it takes them.
    pub(super) fn spare_takes_waiting_shards(&mut self, slot: Slot) -> bool {
        if self.stage.kind() != StageKind::Restoring || !self.stage.has_started() {
            return false;
        }
        let (there, map) = (self.pservers_there(), self.returned_map());
        let takes = !map.of(slot).is_empty() && self.stage.map().of(slot).is_empty();
        let helps = map.missing(&there).count() < self.stage.map().missing(&there).count();
        if takes && helps {
            self.restore(format!("{slot} takes the shards of a lost pserver"));
        }
        takes && helps
    }

    /// Trainers have joined: spares that take the places of lost ones.
    pub(super) fn spares_joined(&mut self, joined: &[Member]) {
        if self.ctx.config().spec.trainers.spares > 0 {
            self.stage.recoveries_mut().spares_joined(joined, &self.ctx);
        }
    }

    /// Whether the registered container of a slot is a spare.
    pub(super) fn is_spare(&self, slot: Slot) -> bool {
        let spec = &self.ctx.config().spec;
        let Some(holder) = self.fleet.holder(slot) else {
            return false;
        };
        match slot.role {
            Role::Pserver if spec.pservers.spares == 0 => false,
            Role::Pserver => {
                let (map, views) = (self.stage.map(), self.stage.views().all());
                !map.is_empty() && map.copies_of(slot).is_empty() && !views.names(slot)
            }
            Role::Trainer => {
                let waits = !holder.joined && holder.draining.is_none();
                spec.trainers.spares > 0 && self.stage.has_started() && waits
            }
        }
    }

    /// The spares of the job as they are reported; none without spares.
    pub(super) fn spares_view(&self) -> Option<SparesView> {
        let spec = &self.ctx.config().spec;
        let counts = |role, wanted| {
            let slots = self.fleet.registered_slots(role).into_iter();
            SpareCounts { wanted, ready: slots.filter(|slot| self.is_spare(*slot)).count() as u32 }
        };
        let (pservers, trainers) = (spec.pservers.spares, spec.trainers.spares);
        (pservers > 0 || trainers > 0).then(|| SparesView {
            pservers: counts(Role::Pserver, pservers),
            trainers: counts(Role::Trainer, trainers),
        })
    }
}
