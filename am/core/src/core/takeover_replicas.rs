//! Takeover of a job with replicas: the journal's views, and the copies that containers report, say where each shard is served.
//!
//! The views are settled first: copies that did not come back leave the sets, and backups are promoted. A pserver registers
//! at once, whatever of it is not at its backups yet; positions are the lowest of all copies that count, so nothing is taken
//! for done that the loss of one copy could undo.

use std::collections::BTreeMap;

use heddle_protocol::control::ShardState;
use heddle_protocol::ids::{Epoch, Member, PhaseNo, Role, ShardId};
use heddle_protocol::view::WarningCode;

use super::Core;
use crate::record::{Record, RecordedView};
use crate::stage::shard_map::ShardMap;
use crate::stage::shard_names::shards_text;
use crate::stage::takeover::{ReplicasThere, Takeover};

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

impl Core {
    /// What the copies allow that have registered.
    pub(super) fn copies_there(&mut self) -> ReplicasThere {
        let (epoch, are_unknown) = (self.ctx.epoch(), self.stage.losses().are_unknown());
        match self.stage.takeover_by_views().filter(|_| !are_unknown) {
            Some((takeover, views)) => takeover.copies_there(views, epoch, &self.fleet),
            None => ReplicasThere::Missing,
        }
    }

    /// Why a takeover has to roll back.
    pub(super) fn cause_without_copies(&mut self) -> String {
        if self.stage.losses().are_unknown() {
            return "the ApplicationMaster ended during a local recovery".to_owned();
        }
        let (epoch, moves_shards) = (self.ctx.epoch(), self.moves_shards());
        let map = self.stage.map().clone();
        let Some((takeover, views)) = self.stage.takeover_by_views() else {
            return "the earlier attempt ended before all copies were in one state".to_owned();
        };
        let lost = takeover.without_copy(views, epoch, &self.fleet);
        let missing: Vec<String> = takeover.missing(&map).map(|slot| slot.to_string()).collect();
        let after = "after the ApplicationMaster's restart";
        match (missing.is_empty(), lost.is_empty()) {
            (_, true) => "a copy follows a view that is not in the journal".to_owned(),
            (_, false) if moves_shards => {
                format!("no copy of {} came back {after}", shards_text(&lost))
            }
            (true, false) => {
                "the pservers that an earlier attempt left are in different epochs".to_owned()
            }
            (false, false) => format!("{} did not come back {after}", missing.join(", ")),
        }
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
            views.keep(|member, shard| takeover.whole_copy(member, shard, epoch, fleet).is_some())
        });
        let Some(Ok(changed)) = kept else {
            debug_assert!(false, "asked before");
            return false;
        };
        let serves = |member, shard, term| {
            let copy = takeover.whole_copy(member, shard, epoch, fleet);
            copy.is_some_and(|copy| copy.serves(term))
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
