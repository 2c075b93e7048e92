//! Failover: the loss of a pserver when its shards have backups. No epoch, no phase and no task changes.
//!
//! The order of record, views and map, and the situations, are in `docs/replication.md`. Which copy is promoted is decided in
//! `stage::replicas`; how shards get backups again in `core::refill`. A shard without a copy is a rollback, which names it.

use std::collections::BTreeMap;
use std::sync::Arc;

use heddle_protocol::control::{SetViews, ShardCommand};
use heddle_protocol::ids::{Epoch, Member, Role, ShardId, Slot};
use heddle_protocol::view::{self, PserversView, ReplicationView, ShardPlacesView, WarningCode};

use super::Core;
use crate::context::deadlines::Retried;
use crate::record::{Record, RecordedView};
use crate::stage::placement::place_backups;
use crate::stage::replicas::{ChangedViews, FailedFill, NoCopyLeft, ServedShard, SettledViews};
use crate::stage::shard_names::shards_text;
use crate::stage::{JobStage, StageKind};

impl Core {
    /// Whether shards can get other primaries during an epoch.
    pub(super) fn moves_shards(&self) -> bool {
        self.ctx.config().spec.pservers.moves_shards()
    }

    /// The host of each registered pserver. A run without a cluster is on one machine: it takes pservers for hosts.
    pub(super) fn pserver_hosts(&self) -> BTreeMap<Slot, String> {
        let is_local = self.ctx.config().cluster_lease_ms.is_none();
        let holders = self.fleet.holders(Role::Pserver);
        let host = |slot: Slot, host: &str| match self.fleet.node(slot) {
            _ if is_local => slot.to_string(),
            Some(node) => node.to_owned(),
            None => host.to_owned(),
        };
        holders.map(|it| (it.member.slot, host(it.member.slot, &it.host))).collect()
    }

    /// Places the copies of the epoch, once every pserver of the map is there. Returns whether that was now.
    pub(super) fn place_copies(&mut self) -> bool {
        if self.stage.views().are_placed()
            || !self.stage.map().slots().all(|slot| self.fleet.holder(slot).is_some())
        {
            return false;
        }
        let replicas = self.ctx.config().spec.pservers.replicas;
        let (map, mut hosts) = (self.stage.map().clone(), self.pserver_hosts());
        // Spares have no copies.
        hosts.retain(|slot, _| !map.of(*slot).is_empty());
        let backups = place_backups(&map, &hosts, replicas);
        self.stage.views_mut().place(&map, &backups, &self.fleet);
        if !self.moves_shards() {
            // They load already.
            return true;
        }
        let held = self.stage.views().all().held();
        self.stage.set_map(map.with_copies(held));
        self.warn_of_wide_rows();
        for slot in self.fleet.registered_slots(Role::Pserver) {
            self.load_shards(slot);
        }
        true
    }

    /// All copies are in the common state: from now on they can be promoted. Where shards do not move, the record of the epoch
    /// has all places.
    pub(super) fn settle_views(&mut self) {
        let views = self.stage.views_mut().settle();
        if let Some(views) = views.filter(|_| self.moves_shards()) {
            let (epoch, at_ms) = (self.ctx.epoch(), self.ctx.wall_ms());
            let cause = "all copies are in the state of the epoch".to_owned();
            self.ctx.journal(Record::Views { epoch, views, cause, at_ms });
        }
    }

    /// A pserver with copies is lost.
    ///
    /// # Errors
    /// A rollback has to follow.
    pub(super) fn fail_over(&mut self, slot: Slot, cause: &str) -> Result<(), NoCopyLeft> {
        let Some(views) = self.stage.views_mut().settled_mut() else {
            debug_assert!(false, "without settled views a loss is a rollback");
            return Ok(());
        };
        let changed = views.lose(slot)?;
        self.stage.follow_views(Some(slot));
        if changed.sets == 0 {
            self.nothing_to_promote(slot);
        }
        if changed.shards.is_empty() {
            return Ok(());
        }
        let promoted: Vec<(ShardId, Slot)> = changed
            .promoted
            .iter()
            .filter_map(|shard| Some((*shard, *self.stage.map().holders().get(shard.0 as usize)?)))
            .collect();
        let ended = self.checkpoints.holder_lost(slot, &promoted, &self.fleet, &mut self.ctx);
        self.cut_ended(ended);
        if self.stage.is_stopping() {
            return Ok(());
        }
        if changed.sets == 0 {
            // It was being filled: nothing that counted is lost.
            self.change_views(&changed, format!("{slot} {cause}"));
            return Ok(());
        }
        let promotes = !changed.promoted.is_empty();
        self.stage.recoveries_mut().fail_over(slot, promotes, &self.ctx);
        self.ctx.notice(view::JobEvent::FailedOver {
            slot,
            promoted: changed.promoted.len() as u32,
            backups_lost: (changed.sets - changed.promoted.len()) as u32,
            under_replicated: self.under_replicated(),
        });
        self.change_views(&changed, format!("{slot} {cause}"));
        Ok(())
    }

    /// A lost pserver had no copy that counts: the recovery is over when all decisions are durable.
    pub(super) fn nothing_to_promote(&mut self, slot: Slot) {
        self.stage.recoveries_mut().fail_over(slot, false, &self.ctx);
        self.decisions_durable();
    }

    /// Records changed views, and sends them, and the new map if primaries have changed.
    pub(super) fn change_views(&mut self, changed: &ChangedViews, cause: String) {
        let views = self.stage.views().all().recorded(&changed.shards);
        let (epoch, at_ms) = (self.ctx.epoch(), self.ctx.wall_ms());
        self.ctx.journal(Record::Views { epoch, views, cause, at_ms });
        for slot in self.fleet.registered_slots(Role::Pserver) {
            self.send_views(slot, &changed.shards);
        }
        if changed.promoted.is_empty() {
            return;
        }
        let mut primaries: Vec<Slot> = changed
            .promoted
            .iter()
            .filter_map(|shard| self.stage.map().holders().get(shard.0 as usize).copied())
            .collect();
        primaries.sort_unstable();
        primaries.dedup();
        match self.stage.kind() {
            StageKind::Beginning => primaries.into_iter().for_each(|slot| self.begin_again(slot)),
            StageKind::Working => {
                let work = self.work.command(self.stage.map(), &self.fleet, &self.ctx);
                for member in self.fleet.joined() {
                    self.fleet.send(member.slot, Arc::clone(&work), &mut self.ctx);
                }
            }
            _ => {}
        }
    }

    /// Sends a pserver the views of those of these shards of which it holds a copy.
    fn send_views(&mut self, slot: Slot, shards: &[ShardId]) {
        let loaded = self.stage.map().copies_of(slot);
        let views = self.stage.views().settled();
        let was_filled = |shard| views.is_some_and(|views| views.was_filled(slot, shard));
        let has = |shard: &ShardId| loaded.binary_search(shard).is_ok() || was_filled(*shard);
        let held: Vec<ShardId> = shards.iter().copied().filter(has).collect();
        if !held.is_empty() {
            self.send_views_of(slot, &held);
        }
    }

    fn send_views_of(&mut self, slot: Slot, shards: &[ShardId]) {
        let turn = |slot, shard| self.stage.map().turn(slot, shard);
        let views = self.stage.views().all().wire(shards, turn, &self.fleet);
        let epoch = self.ctx.epoch();
        self.fleet.send(slot, ShardCommand::Views(SetViews { epoch, views }), &mut self.ctx);
    }

    /// A pserver's connection broke, or an earlier attempt had it: views on the way may be lost. It may also have copies that no
    /// view names any more, which it drops by those of all shards.
    pub(super) fn send_views_again(&mut self, slot: Slot) {
        if self.moves_shards() && self.stage.views().are_settled() {
            let all: Vec<ShardId> = self.stage.map().iter().map(|(shard, _)| shard).collect();
            self.send_views_of(slot, &all);
        }
    }

    /// A promoted shard may not serve the phase that begins: its pserver answers again.
    fn begin_again(&mut self, slot: Slot) {
        self.stage.must_begin_again(slot);
        self.begin_on(slot);
    }

    /// The views, if copies of this epoch can be promoted now.
    pub(super) fn views_of(&mut self, epoch: Epoch) -> Option<&mut SettledViews> {
        let is_current = epoch == self.ctx.epoch();
        self.stage.views_in_phase().filter(|_| is_current)
    }

    /// A primary serves a shard in its view.
    pub(super) fn view_taken(&mut self, epoch: Epoch, served: ServedShard) {
        if epoch != self.ctx.epoch() {
            return;
        }
        let settled = self.stage.views_mut().settled_mut();
        if settled.is_some_and(|views| views.taken(served)) {
            self.stage.recoveries_mut().failed_over(&mut self.ctx);
        }
        let (begins, slot) = (self.stage.kind() == StageKind::Beginning, served.primary.slot);
        if begins && !self.stage.views().awaits(slot) && !self.stage.has_begun() {
            // An answer that it sent before does not count.
            self.begin_again(slot);
        }
    }

    /// A primary asks to leave out a backup that does not keep up, or that takes nothing of its refill.
    pub(super) fn backup_lags(&mut self, epoch: Epoch, served: ServedShard, backup: Member) {
        let (now, ServedShard { primary, shard, .. }) = (self.ctx.now(), served);
        let Some(views) = self.views_of(epoch) else { return };
        if let Some(changed) = views.leave_out(served, backup, now) {
            let cause = format!("{} does not keep up with {}", backup.slot, primary.slot);
            self.ctx.warn(
                WarningCode::BackupLags,
                format!("{cause}: {} lost a backup there", shards_text(&changed.shards)),
            );
            return self.change_views(&changed, cause);
        }
        let places = self.refill_places();
        let views = self.views_of(epoch);
        let failed = views.and_then(|views| views.fill_fails(served, backup, now, &places));
        let path = (primary, backup);
        let cause = format!("{} takes no copy of shard {shard} from {}", backup.slot, primary.slot);
        match failed {
            None => {}
            Some(FailedFill::Ends(changed)) => {
                self.ctx
                    .warn(WarningCode::RefillStalled, format!("{cause}: another pserver gets it"));
                self.change_views(&changed, cause);
            }
            // Named once, as long as it goes on.
            Some(FailedFill::GoesOn) if places.avoided.contains(&path) => {}
            Some(FailedFill::GoesOn) => {
                self.ctx.warn(
                    WarningCode::RefillStalled,
                    format!("{cause}: no other pserver can get it, so it is tried again"),
                );
            }
        }
    }

    /// A promoted primary lacks changes of another copy, which were never acknowledged. That one is promoted instead; while a
    /// cut is open it is left out: the cut was ordered where the shard is now.
    pub(super) fn copy_is_ahead(&mut self, epoch: Epoch, served: ServedShard, ahead: Member) {
        if self.checkpoints.is_open() {
            return self.backup_lags(epoch, served, ahead);
        }
        let views = self.views_of(epoch);
        let Some(changed) = views.and_then(|views| views.promote_instead(served, ahead)) else {
            return;
        };
        self.stage.follow_views(None);
        let ServedShard { primary, shard, .. } = served;
        let cause = format!("{} has more of shard {shard} than {}", ahead.slot, primary.slot);
        self.change_views(&changed, cause);
    }

    /// Shards with fewer backups than wanted, ascending.
    pub(super) fn lacking_backups(&self) -> Vec<ShardId> {
        self.stage.views().all().lacking(1 + self.ctx.config().spec.pservers.replicas as usize)
    }

    /// How many shards have fewer backups than wanted.
    pub(super) fn under_replicated(&self) -> u32 {
        self.lacking_backups().len() as u32
    }

    /// The copies of shards as they are reported; none where shards cannot move.
    pub(super) fn replication_view(&self) -> Option<ReplicationView> {
        let replicas = self.ctx.config().spec.pservers.replicas;
        let shards = self.ctx.config().spec.pservers.shards;
        let settled = self.stage.views().are_settled();
        let all = || (0..shards).map(ShardId).collect();
        self.moves_shards().then(|| {
            let lacking: Vec<ShardId> = if settled { self.lacking_backups() } else { all() };
            let under_replicated = lacking.len() as u32;
            ReplicationView {
                replicas,
                in_sync: shards.saturating_sub(under_replicated),
                under_replicated,
                lacking,
                promotions: self.stage.views().promoted(),
                lag: self.fleet.replication_lag(),
                hand_overs: self.stage.views().handed_over(),
                copies_differed: self.checkpoints.times_differed(),
                served: self
                    .stage
                    .views()
                    .all()
                    .served()
                    .into_iter()
                    .map(|(slot, of)| (slot, of as u32))
                    .collect(),
                refills: self.refills(),
            }
        })
    }

    /// Where the shards are, as it is reported.
    pub(super) fn shard_places(&self) -> ShardPlacesView {
        let others = |view: &RecordedView| {
            let others = view.in_sync.iter().filter(|member| **member != view.primary);
            others.map(|member| member.slot.index).collect::<Vec<u32>>()
        };
        let mut backups: Vec<Vec<u32>> = self.stage.views().all().iter().map(others).collect();
        if backups.iter().all(Vec::is_empty) {
            backups.clear();
        }
        let files = self.checkpoints.base_manifest().map(|base| base.shards.iter());
        ShardPlacesView {
            served_by: self.stage.map().holders().iter().map(|slot| slot.index).collect(),
            backups,
            bytes: files.into_iter().flatten().map(|file| file.bytes).collect(),
        }
    }

    /// The number of pservers of an elastic job, as it is reported.
    pub(super) fn pservers_view(&self) -> Option<PserversView> {
        let spec = &self.ctx.config().spec.pservers;
        let served = |slot| self.stage.map().of(slot).len() as u32;
        let departing = || self.fleet.unwanted_pservers().map(|slot| (slot, served(slot)));
        let wanted = self.fleet.wanted().pservers;
        (spec.least() < spec.most()).then(|| PserversView {
            wanted,
            set_by: self.fleet.wanted_size().set_by,
            least: spec.least(),
            most: spec.most(),
            present: self.fleet.held(Role::Pserver) as u32,
            departing: departing().collect(),
            waits_for: self.moves_wait_for(),
        })
    }

    /// What moves of shards wait for; empty while they go on, and without moves.
    fn moves_wait_for(&self) -> String {
        let wanted = (0..self.fleet.wanted().pservers).map(Slot::pserver);
        let mut missing = wanted.filter(|slot| self.fleet.holder(*slot).is_none());
        let is_filled = |view: &RecordedView| view.open_fills().next().is_some();
        let is_moving = self.fleet.unwanted_pservers().next().is_some()
            || self.stage.views().all().iter().any(is_filled);
        match missing.next() {
            Some(slot) => format!("a container for {slot}"),
            None if is_moving && !self.stage.is_in_phase() => {
                "the next phase of the job".to_owned()
            }
            None if is_moving => self.hand_over_waits_for(),
            None => String::new(),
        }
    }

    fn hand_over_waits_for(&self) -> String {
        let (places, views) = (self.refill_places(), self.stage.views().all());
        let leaving = self.fleet.emptied_pservers();
        let is_stuck = |view: &RecordedView| {
            let has_copy = view.in_sync.iter().any(|copy| !leaving.contains(&copy.slot));
            let is_filled = view.open_fills().next().is_some();
            !has_copy && !is_filled && !places.can_fill(views, view)
        };
        if let Some(cut) = self.checkpoints.open_cut() {
            format!("checkpoint {cut}")
        } else if !self.ctx.are_decisions_durable() {
            "the record of the last change".to_owned()
        } else if self.ctx.waits_to_retry(Retried::HandOver) {
            "a pause: shards took too long to stop".to_owned()
        } else if views.iter().any(is_stuck) {
            "a pserver with room for another copy".to_owned()
        } else {
            String::new()
        }
    }

    /// A record is durable: failovers whose views wait for it go on, and spares get the order to load.
    pub(super) fn decisions_durable(&mut self) {
        if self.ctx.are_decisions_durable() {
            self.stage.recoveries_mut().decisions_durable(&mut self.ctx);
        }
    }

    /// Whether a pserver has answered for a phase that begins; not while a shard that it was promoted for may not have it.
    pub(super) fn phase_begun(&mut self, slot: Slot) {
        if matches!(self.stage.now(), JobStage::Beginning { .. })
            && !self.stage.views().awaits(slot)
        {
            self.stage.begun(slot);
        }
    }
}
