//! Refills: shards that have lost a copy get another one, while training goes on.
//!
//! The order of records and streams is in `docs/replication.md`. A refill ends with its primary or its receiver, and with this
//! attempt: the next one orders it again. Where it goes is decided in `stage::replicas::refills`.

use std::collections::BTreeSet;

use heddle_protocol::frame::VALUE_BYTES_MAX;
use heddle_protocol::ids::{Epoch, Member, Role, ShardId, ViewVersion};
use heddle_protocol::job_spec::{JobSpec, PserverMemory};
use heddle_protocol::view::{RefillView, WarningCode};

use super::Core;
use crate::context::deadlines::Purpose;
use crate::stage::replicas::{ChangedViews, RefillPlace, RefillPlaces, ServedShard, SettledViews};
use crate::stage::shard_names::shards_text;

impl Core {
    /// Orders refills of shards with too few copies, or one that makes the numbers of copies more even, and leaves out copies
    /// in whose place others have come.
    pub(super) fn refill(&mut self) {
        if !self.moves_shards() || self.stage.views_in_phase().is_none() {
            return;
        }
        let places = self.refill_places();
        if !rows_fit(&self.ctx.config().spec) {
            return self.watch_backups(&places);
        }
        while let Some(changed) =
            self.stage.views_in_phase().and_then(|views| views.drop_surplus(&places))
        {
            let cause = format!("{} has more copies than wanted", shards_text(&changed.shards));
            self.change_views(&changed, cause);
        }
        let mut changed = self.order_copies(|views| views.order_fills(&places));
        self.watch_backups(&places);
        if changed.shards.is_empty() {
            changed = self.order_copies(|views| views.order_spread(&places));
        }
        if changed.shards.is_empty() {
            return;
        }
        // The map has the data threads of filled copies.
        let filled = self.stage.views().all().filled_threads();
        self.stage.set_map(self.stage.map().clone().with_filled(filled));
        self.change_views(&changed, format!("another copy of {}", shards_text(&changed.shards)));
    }

    fn order_copies(
        &mut self,
        order: impl FnOnce(&mut SettledViews) -> ChangedViews,
    ) -> ChangedViews {
        self.stage.views_in_phase().map(order).unwrap_or_default()
    }

    /// The shards that lack a backup and can get none now.
    fn without_place(&self, places: &RefillPlaces) -> Vec<ShardId> {
        let (views, fills) = (self.stage.views().all(), rows_fit(&self.ctx.config().spec));
        let mut lacking = self.lacking_backups();
        lacking.retain(|shard| {
            let view = views.view(*shard);
            view.is_some_and(|view| !fills || !places.can_fill(views, view))
        });
        lacking
    }

    /// Shards that lack a backup for as long as a lost pserver is replaced, and have no host for another one, are named in a
    /// warning, once.
    fn watch_backups(&mut self, places: &RefillPlaces) {
        let lacking = self.without_place(places);
        let Some(views) = self.stage.views_in_phase() else { return };
        if lacking.is_empty() || lacking == views.warned_of() {
            views.set_warned_of(lacking);
            self.ctx.clear_deadline(Purpose::Backups);
        } else {
            let at = self.ctx.now() + self.ctx.limits().replacement_ms;
            self.ctx.set_deadline_at_latest(Purpose::Backups, at);
        }
    }

    /// Shards have lacked a backup for a while.
    pub(super) fn warn_of_lacking_backups(&mut self) {
        if self.stage.views_in_phase().is_none() {
            return;
        }
        let lacking = self.without_place(&self.refill_places());
        if lacking.is_empty() {
            return;
        }
        let wanted = match self.ctx.config().spec.pservers.replicas {
            1 => "no backup".to_owned(),
            replicas => format!("fewer than {replicas} backups"),
        };
        let has = if lacking.len() == 1 { "has" } else { "have" };
        self.ctx.warn(WarningCode::BackupsMissing, format!(
            "{} {has} {wanted}: no other host has a pserver with room for one (pservers.replicas)",
            shards_text(&lacking)
        ));
        if let Some(views) = self.stage.views_in_phase() {
            views.set_warned_of(lacking);
        }
    }

    /// Rows that no frame can carry cannot be refilled.
    pub(super) fn warn_of_wide_rows(&mut self) {
        let tables = self.ctx.config().spec.tables();
        let wide = tables.iter().find(|table| table.row_bytes() > u64::from(VALUE_BYTES_MAX));
        if let Some(table) = wide {
            let (name, bytes) = (&table.name, table.row_bytes());
            self.ctx.warn(WarningCode::RowsTooWide, format!(
                "a row of table \"{name}\" has {bytes} bytes with its state, more than {VALUE_BYTES_MAX}: shards that lose a copy get no other one (pservers.replicas)"
            ));
        }
    }

    pub(super) fn refill_places(&self) -> RefillPlaces {
        let spec = &self.ctx.config().spec;
        let copies = 1 + spec.pservers.replicas as usize;
        let mut hosts = self.pserver_hosts();
        let leaving = self.fleet.emptied_pservers();
        // All but a few have what the spec gives them.
        let room_of = |memory| PserverMemory::shards_that_fit(spec, memory) as usize * copies;
        let room = room_of(spec.pservers.memory);
        let place = |slot| {
            let holder = self.fleet.holder(slot)?;
            let memory = self.fleet.memory_of(slot, &self.ctx);
            let other = memory.filter(|memory| *memory != spec.pservers.memory);
            let place = RefillPlace {
                member: holder.member,
                host: hosts.remove(&slot)?,
                threads: holder.endpoints.len(),
                room: other.map_or(room, room_of),
                stays: !leaving.contains(&slot),
            };
            Some((slot, place))
        };
        let pservers = self.fleet.registered_slots(Role::Pserver).into_iter().filter_map(place);
        let pservers: std::collections::BTreeMap<_, _> = pservers.collect();
        let sender = |(shard, slot)| {
            let threads = self.fleet.holder(slot).map_or(1, |holder| holder.endpoints.len().max(1));
            (slot, self.stage.map().turn(slot, shard) % threads)
        };
        let in_use = self.fleet.wanted().pservers as usize;
        let views = self.stage.views().settled();
        RefillPlaces {
            pservers,
            copies,
            in_use,
            senders: self.stage.map().iter().map(sender).collect(),
            avoided: views.map_or_else(BTreeSet::new, |views| views.avoided_paths(self.ctx.now())),
        }
    }

    /// A primary waits for a filled copy from now on, which has everything.
    pub(super) fn copy_filled(
        &mut self,
        epoch: Epoch,
        served: ServedShard,
        backup: Member,
        order: ViewVersion,
    ) {
        let views = self.views_of(epoch);
        if let Some(changed) = views.and_then(|views| views.filled(served, backup, order)) {
            let cause = format!("{} has a copy of shard {}", backup.slot, served.shard);
            self.change_views(&changed, cause);
        }
    }

    /// The refills under way.
    pub(super) fn refills(&self) -> Vec<RefillView> {
        let mut refills = Vec::new();
        for view in self.stage.views().all().iter() {
            for fill in view.open_fills() {
                let (shard, from, to) = (view.shard, view.primary.slot, fill.member.slot);
                let beat = self.fleet.member(view.primary).map(|holder| &holder.heartbeat.fills);
                let is_it = |it: &&heddle_protocol::control::FillProgress| {
                    it.shard == shard && it.member == fill.member
                };
                let progress = beat.and_then(|fills| fills.iter().find(is_it));
                let (bytes, of_bytes) = progress.map_or((0, 0), |it| (it.bytes, it.of_bytes));
                refills.push(RefillView { shard, from, to, bytes, of_bytes });
            }
        }
        refills
    }
}

/// Whether a row of each table fits into one frame with all of its state: a piece of a refill has whole rows.
pub(super) fn rows_fit(spec: &JobSpec) -> bool {
    spec.tables().iter().all(|table| table.row_bytes() <= u64::from(VALUE_BYTES_MAX))
}
