//! Hand-over of a shard by its living primary: it stops, its backups get everything, and a view makes one of them primary.
//!
//! From the order on, frames that change the shard wait, whatever connection they come on. When every in-sync copy has the last
//! change, its number is reported. The view of the next term has this number: a copy of its set that is there continues from
//! it, the old primary as a backup. A copy that is not there has changes of its own, and is of no use.
//!
//! A stop ends by any later view, a phase or a cut, and by itself after two seconds: an ApplicationMaster that is lost meanwhile
//! leaves no shard standing. A primary that has gone on after its report loses nothing
//! either: its answers wait for its backups, as before.

use std::time::Duration;

use heddle_protocol::control::{ShardReport, ShardStop};
use heddle_protocol::ids::{Member, ShardId};
use heddle_protocol::mutation::Mutation;

use super::copy::Useless;
use super::{CopyRole, Replication, ShardReplica};
use crate::effect::ShardEffect;

/// How long a shard stands still at the most: more than a round trip to backups and a record take.
const STOP_MAX: Duration = Duration::from_secs(2);

/// A shard that has stopped.
pub(super) struct StoppedShard {
    order: ShardStop,
    /// When it goes on by itself.
    until: Duration,
    is_reported: bool,
}

impl Replication {
    /// Stops a shard, if this copy serves it in this view.
    pub(crate) fn stop(&mut self, order: ShardStop, now: Duration) {
        let copy = self.copies.get(&order.shard).filter(|copy| copy.is_primary());
        if copy.is_some_and(|copy| copy.view().order() == (order.term, order.version)) {
            let stopped = StoppedShard { order, until: now + STOP_MAX, is_reported: false };
            self.stopped.insert(order.shard, stopped);
            self.alone = false;
        }
    }

    /// Whether frames that change the shard have to wait.
    pub(crate) fn is_stopped(&self, shard: ShardId) -> bool {
        self.stopped.contains_key(&shard) && !Mutation::HandOverWithoutDraining.is_on()
    }

    /// A shard goes on.
    pub(crate) fn end_stop(&mut self, shard: ShardId) {
        self.stopped.remove(&shard);
    }

    /// All shards go on. Returns whether one had stopped.
    pub(crate) fn end_stops(&mut self) -> bool {
        !std::mem::take(&mut self.stopped).is_empty()
    }

    /// Shards that have stopped for too long go on. Returns whether there are any.
    pub(crate) fn end_overdue_stops(&mut self, now: Duration) -> bool {
        self.stopped.extract_if(.., |_, stopped| now >= stopped.until).count() > 0
    }

    /// When the first stop ends by itself.
    pub(super) fn stop_deadline(&self) -> Option<Duration> {
        self.stopped.values().map(|stopped| stopped.until).min()
    }

    /// Reports stopped shards of which every in-sync copy has everything, each once. `is_busy`: a step that is partially
    /// applied may be followed by changes.
    pub(crate) fn report_drained(
        &mut self,
        is_busy: impl Fn(ShardId) -> bool,
        out: &mut Vec<ShardEffect>,
    ) {
        for (&shard, stopped) in &mut self.stopped {
            let Some(copy) = self.copies.get(&shard) else { continue };
            let number = copy.number();
            let drained = copy.has_committed(number) && !is_busy(shard);
            let drained = drained || Mutation::HandOverWithoutDraining.is_on();
            if drained && !stopped.is_reported {
                stopped.is_reported = true;
                let ShardStop { shard, term, version } = stopped.order;
                let report = ShardReport::Drained { shard, term, version, number };
                out.push(ShardEffect::Report(report));
            }
        }
    }
}

impl ShardReplica {
    /// The copy is in a term that a hand-over began, at the change with this number.
    pub(super) fn continue_from(&mut self, own: Member, number: u64) {
        let (view, is_there) = (self.view(), self.number() == number);
        if !view.in_sync.contains(&own) {
            return;
        }
        // The next primary has at least what was acknowledged; those that are not where it is leave the set.
        let is_lost = !is_there && view.primary != own;
        if is_there {
            self.all_have(number);
        }
        if is_lost && !Mutation::HandOverWithoutDraining.is_on() {
            self.set_useless(Useless::OwnChanges);
        }
        self.role = CopyRole::Backup;
    }
}
