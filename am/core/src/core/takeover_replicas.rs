//! Takeover of a job with replicas: the journal's views, and the copies that containers report, say where each shard is served.
//!
//! The views are settled first: copies that did not come back leave the sets, and backups are promoted. A pserver registers
//! at once, whatever of it is not at its backups yet; positions are the lowest of all copies that count, so nothing is taken
//! for done that the loss of one copy could undo.

use std::collections::BTreeMap;

use heddle_protocol::control::{ReplicaState, ShardState};
use heddle_protocol::ids::{Epoch, Member, PhaseNo, Role, ShardId};
use heddle_protocol::view::WarningCode;

use super::Core;
use crate::fleet::Fleet;
use crate::record::{Record, RecordedView};
use crate::stage::shard_map::ShardMap;
use crate::stage::shard_names::shards_text;
use crate::stage::takeover::Takeover;

/// Copies of shards that each pserver was ordered to load, ascending.
type PlacedReplicas = BTreeMap<Member, Vec<ShardId>>;

/// The views of all shards in this epoch, ascending by shard, if the journal has them; and the copies that each pserver was
/// ordered to load, ascending: it deals them to its data threads in this order, also those that do not count any more.
pub(super) fn last_views(
    journal: &[Record],
    epoch: Epoch,
    shards: usize,
) -> Option<(Vec<RecordedView>, PlacedReplicas)> {
    let mut last = BTreeMap::new();
    let mut placed = PlacedReplicas::new();
    for record in journal {
        if let Record::Views { epoch: of, views, .. } = record
            && *of == epoch
        {
            for view in views.iter().filter(|view| !last.contains_key(&view.shard)) {
                for member in &view.in_sync {
                    placed.entry(*member).or_default().push(view.shard);
                }
            }
            last.extend(views.iter().map(|view| (view.shard, view.clone())));
        }
    }
    (last.len() == shards).then(|| (last.into_values().collect(), placed))
}

/// The copy of a shard that a container has registered with, if it is whole and in this epoch.
fn whole_copy<'a>(
    takeover: &'a Takeover,
    fleet: &Fleet,
    epoch: Epoch,
    member: Member,
    shard: ShardId,
) -> Option<(&'a ShardState, ReplicaState)> {
    fleet.member(member)?;
    let state = takeover.copy(member.slot, shard, epoch)?;
    let replica = state.replica.filter(|replica| replica.whole)?;
    Some((state, replica))
}

impl Core {
    /// Whether no copy that has registered follows a view which the journal does not have.
    fn views_are_current(&mut self) -> bool {
        let epoch = self.ctx.epoch();
        let (views, fleet) = (self.stage.views().all().clone(), &self.fleet);
        let Some(takeover) = self.stage.takeover() else {
            return false;
        };
        views.iter().all(|view| {
            let copy = |member: &Member| whole_copy(takeover, fleet, epoch, *member, view.shard);
            let recorded = (view.term, view.version);
            view.in_sync
                .iter()
                .filter_map(copy)
                .all(|(_, replica)| (replica.term, replica.version) <= recorded)
        })
    }

    /// Whether the primary of every shard has registered.
    pub(super) fn has_all_primaries(&mut self) -> bool {
        self.all_views(|view, is_whole| is_whole(view.primary))
    }

    /// Whether every shard has a copy that can be promoted.
    pub(super) fn promotes_after_takeover(&mut self) -> bool {
        self.has_replicas()
            && self.all_views(|view, is_whole| view.in_sync.iter().any(|member| is_whole(*member)))
    }

    fn all_views(
        &mut self,
        holds: impl Fn(&RecordedView, &dyn Fn(Member) -> bool) -> bool,
    ) -> bool {
        if !self.stage.views().are_settled() || !self.views_are_current() {
            return false;
        }
        let epoch = self.ctx.epoch();
        let (views, fleet) = (self.stage.views().all().clone(), &self.fleet);
        let Some(takeover) = self.stage.takeover() else {
            return false;
        };
        views.iter().all(|view| {
            holds(view, &|member| whole_copy(takeover, fleet, epoch, member, view.shard).is_some())
        })
    }

    /// Why a takeover has to roll back.
    pub(super) fn cause_without_copies(&mut self) -> String {
        if !self.stage.views().are_settled() {
            return "the earlier attempt ended before all copies were in one state".to_owned();
        }
        if !self.views_are_current() {
            return "a copy follows a view that is not in the journal".to_owned();
        }
        let epoch = self.ctx.epoch();
        let (views, fleet) = (self.stage.views().all().clone(), &self.fleet);
        let Some(takeover) = self.stage.takeover() else {
            return String::new();
        };
        let lost = views.iter().filter(|view| {
            let whole =
                |member: &Member| whole_copy(takeover, fleet, epoch, *member, view.shard).is_some();
            !view.in_sync.iter().any(whole)
        });
        let lost: Vec<ShardId> = lost.map(|view| view.shard).collect();
        format!("no copy of {} came back after the ApplicationMaster's restart", shards_text(&lost))
    }

    /// The views are settled, and the job goes on where the shards are. Returns whether it does.
    pub(super) fn take_over_copies(&mut self) -> bool {
        let epoch = self.ctx.epoch();
        let gone = self.pservers_gone();
        let Some(takeover) = self.stage.takeover().map(std::mem::take) else {
            return false;
        };
        let (fleet, settled) = (&self.fleet, self.stage.views_mut().settled_mut());
        let kept = settled.map(|views| {
            views.keep(|member, shard| whole_copy(&takeover, fleet, epoch, member, shard).is_some())
        });
        let Some(Ok(changed)) = kept else {
            debug_assert!(false, "asked before");
            return false;
        };
        let serves = |member, shard, term| {
            whole_copy(&takeover, fleet, epoch, member, shard)
                .is_some_and(|(_, replica)| replica.primary && replica.term == term)
        };
        let Some(views) = self.stage.views_mut().settled_mut() else { return false };
        views.await_primaries(serves);
        let here = views.placed().iter().filter(|(member, _)| fleet.member(**member).is_some());
        let copies = here.map(|(member, shards)| (member.slot, shards.clone())).collect();
        let views = self.stage.views().all();
        let map = ShardMap::new(views.holders()).with_copies(copies);
        self.stage.set_map(map.with_filled(views.filled_threads()));
        if !changed.shards.is_empty() {
            let cause = "copies did not come back after the ApplicationMaster's restart".to_owned();
            if changed.sets > 0 {
                self.ctx.warn(
                    WarningCode::CopiesLost,
                    format!(
                        "{cause}: {} of {} shards lost a backup, {} of them their primary",
                        changed.sets,
                        self.stage.map().len(),
                        changed.promoted.len()
                    ),
                );
            }
            let position = self.position();
            for (slot, was_primary) in gone {
                let recoveries = self.stage.recoveries_mut();
                recoveries.open_at_takeover(slot, position, &self.ctx);
                recoveries.fail_over(slot, was_primary, &self.ctx);
            }
            // Before any command of this attempt: all of them may carry the new views.
            self.change_views(&changed, cause);
        }
        self.take_over(takeover);
        for slot in self.fleet.registered_slots(Role::Pserver) {
            // Those of an earlier attempt may be lost.
            self.send_views_again(slot);
        }
        true
    }

    /// The states that count, and the lowest phase that any of them is in.
    pub(super) fn states_taken_over<'a>(
        &self,
        takeover: &'a Takeover,
    ) -> (Vec<&'a ShardState>, PhaseNo) {
        let epoch = self.ctx.epoch();
        let primary = |(shard, slot)| takeover.copy(slot, shard, epoch);
        let primaries: Vec<&ShardState> = self.stage.map().iter().filter_map(primary).collect();
        let copies = self.stage.views().all().iter().flat_map(|view| {
            let copy = |member: &Member| takeover.copy(member.slot, view.shard, epoch);
            view.in_sync.iter().filter_map(copy)
        });
        let phases = primaries.iter().copied().chain(copies).map(|state| state.phase);
        let phase = phases.min().unwrap_or_default();
        (primaries, phase)
    }
}
