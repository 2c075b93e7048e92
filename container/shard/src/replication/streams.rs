//! The primary's streams: what each backup was sent and has acknowledged.

use std::collections::BTreeSet;
use std::time::Duration;

use heddle_protocol::frame::{Header, Kind, Status};
use heddle_protocol::ids::ShardId;
use heddle_protocol::mutation::Mutation;

use super::backup_stream::{BackupStream, Peer};
use super::{CopyRole, Replication, ShardReplica, StreamEntry};
use crate::effect::{ShardEffect, ShardReport};

impl Replication {
    /// Backups to which a connection has to exist.
    pub(crate) fn peers(&self) -> BTreeSet<Peer> {
        let followers = self.copies.values().filter_map(ShardReplica::serving);
        let followers = followers.flat_map(|serving| serving.followers.values());
        followers.filter(|one| one.place.endpoint.port() != 0).map(BackupStream::peer).collect()
    }

    fn followers_of(&mut self, peer: Peer) -> impl Iterator<Item = &mut BackupStream> {
        let serving = self.copies.values_mut().filter_map(ShardReplica::serving_mut);
        let followers = serving.filter_map(move |serving| serving.followers.get_mut(&peer.0));
        followers.filter(move |follower| follower.peer() == peer)
    }

    /// A connection to a backup is open. What it has not acknowledged is sent again: it may not have arrived.
    pub(crate) fn connected(&mut self, peer: Peer) {
        for follower in self.followers_of(peer) {
            follower.sent = follower.acknowledged;
        }
    }

    /// The next entry for a backup: of the first shard after `last` that has one, so that shards take turns.
    pub(crate) fn next_entry(&mut self, peer: Peer, last: ShardId) -> Option<StreamEntry> {
        let after = self.copies.range(last.next()..).map(|(&shard, _)| shard);
        let turn: Vec<_> =
            after.chain(self.copies.range(..=last).map(|(&shard, _)| shard)).collect();
        turn.into_iter().find_map(|shard| self.entry_of(peer, shard))
    }

    fn entry_of(&mut self, peer: Peer, shard: ShardId) -> Option<StreamEntry> {
        let epoch = self.epoch;
        let copy = self.copies.get_mut(&shard)?;
        let (number, term, committed) = (copy.number(), copy.term(), copy.committed());
        let sent = copy.serving()?.followers.get(&peer.0)?.sent;
        let next = (sent < number).then(|| copy.change(sent + 1));
        let follower = copy.serving_mut()?.followers.get_mut(&peer.0)?;
        if follower.peer() != peer || follower.lost {
            return None;
        }
        let Some(change) = next? else {
            // The tail begins later: the backup has to be filled.
            follower.lost = true;
            return None;
        };
        follower.sent += 1;
        let head = Header::entry(epoch, shard, term, follower.sent, committed);
        Some(StreamEntry { head, change })
    }

    /// Takes the answer of a backup to an entry. Returns a shard that is deposed by it.
    pub(crate) fn answered(
        &mut self,
        peer: Peer,
        reply: &Header,
        now: Duration,
    ) -> Option<ShardId> {
        let copy = self.copies.get_mut(&reply.shard).filter(|_| reply.epoch == self.epoch)?;
        let (number, term) = (copy.number(), copy.term());
        if reply.kind == Kind::Refused && reply.status == Status::WrongTerm && reply.term() > term {
            copy.depose();
            return Some(reply.shard);
        }
        let follower = copy.serving_mut()?.followers.get_mut(&peer.0)?;
        if follower.peer() != peer || reply.term() != term {
            return None;
        }
        match reply.kind {
            Kind::Followed | Kind::Position if reply.request <= number => {
                if reply.request > follower.acknowledged {
                    follower.acknowledged = reply.request;
                    follower.owes_since = (reply.request < number).then_some(now);
                    follower.is_reported = false;
                }
                if reply.kind == Kind::Position {
                    follower.sent = reply.request;
                }
                follower.sent = follower.sent.max(reply.request);
                copy.commit();
            }
            // It has changes that this primary does not have, or refuses: its copy is not one of this shard.
            Kind::Followed | Kind::Position => follower.lost = true,
            Kind::Refused if reply.status != Status::WrongEpoch => follower.lost = true,
            _ => {}
        }
        None
    }

    /// Reports backups that are lost or slow.
    pub(crate) fn report_lagging(&mut self, now: Duration, out: &mut Vec<ShardEffect>) {
        let lag = self.lag;
        for (&shard, copy) in &mut self.copies {
            let term = copy.term();
            let CopyRole::Primary(serving) = &mut copy.role else { continue };
            for (&member, follower) in &mut serving.followers {
                if follower.lags(now, lag) {
                    follower.is_reported = true;
                    follower.in_sync &= !Mutation::PrimaryLeavesBackupOut.is_on();
                    let report = ShardReport::Lagging { shard, term, member };
                    out.push(ShardEffect::Report(report));
                }
            }
            if Mutation::PrimaryLeavesBackupOut.is_on() {
                copy.commit();
            }
        }
    }

    /// When a backup has to be reported at the latest.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let followers = self.copies.values().filter_map(ShardReplica::serving);
        let followers = followers.flat_map(|serving| serving.followers.values());
        let owing = followers.filter(|follower| follower.in_sync && !follower.is_reported);
        owing.filter_map(|one| one.owes_since.map(|since| since + self.lag)).min()
    }
}
