//! The shard set as shards change their primary: which stop for a hand-over and when they go on, and which begin and end to serve.

use std::time::Duration;

use heddle_protocol::control::HandOver;
use heddle_protocol::frame::{Kind, Status};
use heddle_protocol::ids::ShardId;

use super::replicas::Replicas;
use super::{ShardSet, ShardSetError};
use crate::effect::ShardEffect;

impl Replicas {
    /// Shards that stopped for a hand-over go on. Returns whether there were any.
    pub(super) fn end_stops(&mut self) -> bool {
        self.copies.end_stops()
    }

    /// As [`Self::end_stops`], of those that have stopped for too long.
    pub(super) fn end_overdue_stops(&mut self, now: Duration) -> bool {
        self.copies.end_overdue_stops(now)
    }
}

impl ShardSet {
    /// Another copy is to serve these shards. Each stops, and reports when every in-sync copy has its last change
    /// ([`Drained`](heddle_protocol::control::ShardReport::Drained)).
    ///
    /// # Errors
    /// The epoch is not the set's.
    pub(crate) fn hand_over(
        &mut self,
        command: &HandOver,
        now: Duration,
        out: &mut Vec<ShardEffect>,
    ) -> Result<(), ShardSetError> {
        self.check_epoch(command.epoch)?;
        command.shards.iter().for_each(|stop| self.replicas.copies.stop(*stop, now));
        self.replicate(out.len(), out);
        Ok(())
    }

    /// Shards that stopped for a hand-over go on: something is to change them.
    pub(super) fn end_stops(&mut self, out: &mut Vec<ShardEffect>) {
        if self.replicas.end_stops() {
            self.release(out);
        }
    }

    /// Goes on where the copy's primary has stopped. A copy that a change did not fit may have other content than was
    /// acknowledged: it ends its process instead, so that the ApplicationMaster promotes another one, or rolls back.
    pub(super) fn begin_serving(&mut self, id: ShardId, out: &mut Vec<ShardEffect>) {
        if !self.serves(id) {
            return out.push(ShardEffect::CannotServe { shard: id });
        }
        self.clocked.promoted(self.members.iter());
        let Some(shard) = self.shards.get_mut(&id) else { return };
        // The ApplicationMaster ends each cut of a command that this pserver has received, also after a restart.
        let open = (self.highest_cut > self.ended_cut).then_some(self.highest_cut);
        shard.record_changes(self.replicas.copies.streams(id));
        shard.promote(open, out);
        // The command to begin the phase may have come before this view.
        if let Some(phase) = self.phase.filter(|phase| phase.no > shard.phase()) {
            shard.begin(phase, out);
        }
    }

    /// A shard has another primary: requests that wait, or whose answer does, are sent to it. A trainer may have sent them here for a
    /// later term than this copy knew of.
    pub(super) fn stop_serving(&mut self, id: ShardId, out: &mut Vec<ShardEffect>) {
        let copy = self.replicas.copies.copy_mut(id);
        for effect in copy.map(|copy| copy.take_unanswered()).unwrap_or_default() {
            if let ShardEffect::Reply { conn, header } = effect {
                let header = header.reply(Kind::Refused, Status::WrongShard);
                out.push(ShardEffect::Reply { conn, header });
            }
        }
        if let Some(shard) = self.shards.get_mut(&id) {
            shard.record_changes(false);
            shard.disarm();
            shard.refuse_waiting(Status::WrongShard, out);
        }
        self.clocked.stop_serving(id, out);
    }
}
