//! Hand-over: a living pserver gives shards to pservers with a copy, without a rollback, a lost step or a repeated request.
//!
//! The order of stop, record and map is in `docs/replication.md`. It is done while work goes on and no cut is open, and a cut
//! waits for it: then only frames change a shard. Which shards go where is decided in `stage::replicas::hand_over`.

use std::collections::BTreeSet;

use heddle_protocol::control::{HandOver, ShardCommand, ShardStop};
use heddle_protocol::ids::{Epoch, Member, ShardId, Slot};
use heddle_protocol::view;

use super::Core;
use super::refill::rows_fit;
use crate::context::deadlines::{Purpose, Retried};
use crate::stage::replicas::{HandOverCause, HandedOver, SettledViews};
use crate::stage::shard_names::shards_text;

/// Time for the reports of the stopped shards: more than shards stand still.
const REPORTS_MS: u64 = 5_000;
/// Pause after a hand-over that came to nothing.
const PAUSE_MS: u64 = 10_000;

impl Core {
    /// Orders the next hand-over, if there is one to order. `changes_fleet`: pservers or copies may have changed.
    pub(super) fn hand_over(&mut self, changes_fleet: bool) {
        let works = self.moves_shards() && self.stage.is_working();
        if !works && let Some(views) = self.stage.views_mut().settled_mut() {
            views.end_hand_over();
        }
        let is_over = !self.stage.views().is_handing_over();
        if is_over {
            self.ctx.clear_deadline(Purpose::HandOver);
        }
        let can = works
            && changes_fleet
            && self.ctx.are_decisions_durable()
            && !self.checkpoints.is_open()
            && is_over
            && !self.ctx.waits_to_retry(Retried::HandOver);
        if !can {
            return;
        }
        let fleet = &self.fleet;
        let is_there = |slot| fleet.holder(slot).is_some_and(|holder| holder.link.is_connected());
        let serves = |slot| fleet.may_serve(slot);
        let views = self.stage.views_mut().settled_mut();
        let ordered = views.and_then(|views| views.order_hand_over(is_there, serves));
        let Some((from, shards)) = ordered else { return };
        self.ctx.set_deadline(Purpose::HandOver, self.ctx.now() + REPORTS_MS);
        let command = HandOver { epoch: self.ctx.epoch(), shards };
        self.fleet.send(from.slot, ShardCommand::HandOver(command), &mut self.ctx);
    }

    /// A shard has stopped, and all copies of its set have everything.
    pub(super) fn shard_drained(
        &mut self,
        primary: Member,
        epoch: Epoch,
        stop: ShardStop,
        number: u64,
    ) {
        if epoch != self.ctx.epoch() || !self.stage.is_working() || self.checkpoints.is_open() {
            return;
        }
        let views = self.stage.views_mut().settled_mut();
        let handed_over = views.and_then(|views| views.drained(primary, stop, number));
        let Some(handed_over) = handed_over else { return };
        let HandedOver { from, cause, changed } = handed_over;
        self.stage.follow_views(None);
        let cause = match cause {
            HandOverCause::Leaves => "it may be gone soon",
            HandOverCause::Uneven => "others serve fewer",
        };
        let shards = changed.promoted.len() as u32;
        let (slot, views) = (from.slot, self.stage.views().all());
        let serves = |shard: &ShardId| Some(views.view(*shard)?.primary.slot);
        let to: BTreeSet<Slot> = changed.promoted.iter().filter_map(serves).collect();
        let (to, cause_text) = (to.into_iter().collect(), cause.to_owned());
        self.ctx.notice(view::JobEvent::Moved { slot, shards, to, cause: cause_text });
        let moved = shards_text(&changed.promoted);
        self.change_views(&changed, format!("{slot} hands {moved} over: {cause}"));
    }

    /// A hand-over has taken too long: the next one follows after a pause.
    pub(super) fn hand_over_timed_out(&mut self) {
        let views = self.stage.views_mut().settled_mut();
        if views.is_some_and(SettledViews::end_hand_over) {
            self.ctx.set_deadline(Purpose::Retry(Retried::HandOver), self.ctx.now() + PAUSE_MS);
        }
    }

    /// Whether nothing is lost with this pserver, and its shards have other copies as far as they can be had.
    pub(super) fn is_dispensable(&self, slot: Slot) -> bool {
        self.moves_by_hand_over() && {
            let (places, leaving) = (self.refill_places(), self.fleet.emptied_pservers());
            let fills = rows_fit(&self.ctx.config().spec);
            let views = self.stage.views().all();
            let stays = |slot| !leaving.contains(&slot) && self.fleet.holder(slot).is_some();
            let can_fill = |view: &_| fills && places.can_fill(views, view);
            views.is_dispensable(slot, places.copies, stays, can_fill)
        }
    }

    /// Whether a pserver on a node that leaves stays until its shards are handed over and have copies elsewhere: not if one
    /// of them has none on another node, and can get none. A hand-over or a record that is under way only takes its time.
    pub(super) fn waits_for_copies(&self, slot: Slot) -> bool {
        self.moves_shards() && self.stage.is_in_phase() && {
            let (places, leaving) = (self.refill_places(), self.fleet.emptied_pservers());
            let fills = rows_fit(&self.ctx.config().spec);
            let views = self.stage.views().all();
            let stays = |slot| !leaving.contains(&slot);
            let here = views.iter().filter(|it| it.in_sync.iter().any(|it| it.slot == slot));
            here.into_iter().all(|view| {
                view.in_sync.iter().any(|it| it.slot != slot && stays(it.slot))
                    || (fills && places.can_fill(views, view))
            })
        }
    }

    fn moves_by_hand_over(&self) -> bool {
        let views = self.stage.views();
        self.moves_shards()
            && self.stage.is_in_phase()
            && self.ctx.are_decisions_durable()
            && !views.is_handing_over()
            && views.settled().is_some_and(|views| !views.awaits_any())
    }
}
