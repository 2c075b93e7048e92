//! The primary's streams: what each backup was sent and has acknowledged.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use heddle_protocol::control::ShardReport;
use heddle_protocol::frame::{Header, Kind, Status};
use heddle_protocol::ids::ShardId;
use heddle_protocol::mutation::Mutation;

use super::backup_stream::{Alignment, BackupStream, Peer};
use super::outgoing_fill::{self, FillNeed};
use super::{CopyRole, Replication, ShardReplica, StreamEntry};
use crate::change::ShardChange;
use crate::effect::ShardEffect;
use crate::shard::FillPiece;

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
    pub(crate) fn connected(&mut self, peer: Peer, now: Duration) {
        for follower in self.followers_of(peer) {
            follower.sent = follower.acknowledged;
            if follower.alignment == Alignment::Asked {
                follower.alignment = Alignment::Unknown;
            }
            if follower.fill.as_ref().is_some_and(|fill| !fill.is_caught_up()) {
                // Rows that were sent are not kept.
                follower.fill_again(now);
            }
        }
    }

    /// Whether a backup is being filled.
    pub(crate) fn has_fills(&self) -> bool {
        let serving = self.copies.values().filter_map(ShardReplica::serving);
        serving.flat_map(|it| it.followers.values()).any(|follower| follower.fill.is_some())
    }

    /// What the refill of this backup needs from the shard.
    pub(crate) fn fill_need(
        &mut self,
        shard: ShardId,
        peer: Peer,
        now: Duration,
    ) -> Option<FillNeed> {
        let serving = self.copies.get(&shard)?.serving()?;
        let follower = serving.followers.get(&peer.0).filter(|it| it.peer() == peer)?;
        follower.fill.as_ref()?.need(now)
    }

    /// Refills of the shard that wait for its state begin.
    pub(crate) fn begin_fills(&mut self, shard: ShardId, state: &ShardChange, now: Duration) {
        if let Some(copy) = self.copies.get_mut(&shard) {
            copy.begin_fills(state, now);
        }
    }

    /// A piece of a refill was read.
    pub(crate) fn push_piece(
        &mut self,
        shard: ShardId,
        peer: Peer,
        piece: FillPiece,
        now: Duration,
    ) {
        let Some(copy) = self.copies.get_mut(&shard) else { return };
        let number = copy.number();
        let follower = copy.serving_mut().and_then(|it| it.followers.get_mut(&peer.0));
        if let Some(follower) = follower {
            follower.owes(now);
            if let Some(fill) = &mut follower.fill {
                fill.push(number, piece);
            }
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
        if follower.alignment != Alignment::Known {
            let asks = follower.asks();
            let head = Header::entry(epoch, shard, term, number, committed);
            let change = Arc::new(ShardChange::bare(Header {
                shard,
                ..Header::new(Kind::TermBegun, epoch)
            }));
            return asks.then_some(StreamEntry { head, change });
        }
        if let Some(fill) = &mut follower.fill {
            if let Some((number, change)) = fill.take(sent) {
                let head = Header::entry(epoch, shard, term, number, committed);
                return Some(StreamEntry { head, change });
            }
            if !fill.takes_changes() {
                return None;
            }
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
        let (number, term, committed) = (copy.number(), copy.term(), copy.committed());
        if reply.kind == Kind::Refused && reply.status == Status::WrongTerm && reply.term() > term {
            copy.depose();
            return Some(reply.shard);
        }
        let serving = copy.serving_mut()?;
        let began = serving.began.unwrap_or(number);
        let follower = serving.followers.get_mut(&peer.0)?;
        if follower.peer() != peer || reply.term() != term {
            return None;
        }
        if follower.alignment != Alignment::Known {
            match reply.kind {
                Kind::Position => follower.is_at(reply.request, began, now),
                Kind::Refused if reply.status != Status::WrongEpoch => follower.lost = true,
                _ => {}
            }
            if follower.acknowledged < number && follower.alignment == Alignment::Known {
                follower.owes(now);
            }
            copy.commit();
            return None;
        }
        if follower.fill.as_ref().is_some_and(|fill| !fill.is_caught_up()) {
            answered_fill(follower, reply, number, committed, now);
            copy.commit();
            return None;
        }
        match reply.kind {
            Kind::Followed | Kind::Position if reply.request <= number => {
                if reply.request > follower.acknowledged {
                    follower.acknowledged = reply.request;
                    follower.owes_since = (reply.request < number).then_some(now);
                    follower.reported = None;
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

    /// Reports backups that are lost or slow, and those that a refill has brought up to date. A refill without progress begins
    /// again, and is reported if that goes on. `connected`: backups to which a connection is open.
    pub(crate) fn report_lagging(
        &mut self,
        connected: &BTreeSet<Peer>,
        now: Duration,
        out: &mut Vec<ShardEffect>,
    ) {
        let (lag, fill_lag, silence) = (self.limits.lag, self.fill_lag(), self.fill_silence());
        for (&shard, copy) in &mut self.copies {
            let (term, number) = (copy.term(), copy.number());
            let CopyRole::Primary(serving) = &mut copy.role else { continue };
            let stands = serving.began == Some(number);
            for (&member, follower) in &mut serving.followers {
                let is_connected = connected.contains(&follower.peer());
                let is_silent = follower.reports_silent_fill(is_connected, now, silence);
                if follower.is_stuck_in_fill(now, fill_lag) {
                    follower.fill_again(now + outgoing_fill::RETRY);
                }
                let acknowledged = follower.acknowledged;
                if let Some(fill) = &mut follower.fill
                    && fill.reports(acknowledged, now, fill_lag)
                {
                    let order = fill.name.order;
                    let report = ShardReport::InSync { shard, term, member, order };
                    out.push(ShardEffect::Report(report));
                }
                if follower.reports_ahead(now, fill_lag) {
                    if stands {
                        let report = ShardReport::Ahead { shard, term, member };
                        out.push(ShardEffect::Report(report));
                    } else {
                        // The two have different changes.
                        follower.lost = true;
                    }
                }
                let lags = follower.reports_lag(now, lag, fill_lag);
                if lags {
                    follower.in_sync &= !Mutation::PrimaryLeavesBackupOut.is_on();
                }
                if lags || is_silent {
                    let report = ShardReport::Lagging { shard, term, member };
                    out.push(ShardEffect::Report(report));
                }
            }
            copy.commit();
        }
    }

    /// Refills whose wait for the next attempt is over. Returns whether there are any.
    pub(crate) fn fill_waits_end(&mut self, now: Duration) -> bool {
        let serving = self.copies.values_mut().filter_map(ShardReplica::serving_mut);
        let fills = serving.flat_map(|it| it.followers.values_mut());
        let fills = fills.filter_map(|follower| follower.fill.as_mut());
        fills.filter_map(|fill| fill.wait_ends(now).then_some(())).count() > 0
    }

    /// When a backup has to be reported at the latest, or a refill begins again.
    pub(crate) fn deadline(&self, connected: &BTreeSet<Peer>) -> Option<Duration> {
        let followers = self.copies.values().filter_map(ShardReplica::serving);
        let followers = followers.flat_map(|serving| serving.followers.values());
        let at = |follower: &BackupStream| {
            let fill = follower.fill.as_ref().and_then(|fill| fill.deadline(self.fill_lag()));
            let lag = match follower.in_sync {
                true => Some(self.limits.lag),
                false => Some(self.fill_lag()).filter(|_| follower.fills_now()),
            };
            let owes = follower.owes_since.zip(lag).map(|(since, lag)| since + lag);
            let again = follower.reported.filter(|_| follower.in_sync);
            let again = again.map(|at| at + self.fill_lag());
            let ahead = follower.ahead_since().map(|at| at + self.fill_lag());
            let is_connected = connected.contains(&follower.peer());
            let silent = follower.silent_fill_deadline(is_connected, self.fill_silence());
            [fill, again.or(owes), ahead, silent].into_iter().flatten().min()
        };
        followers.filter_map(at).chain(self.stop_deadline()).min()
    }
}

/// Takes an answer of a backup that is being filled.
fn answered_fill(
    follower: &mut BackupStream,
    reply: &Header,
    number: u64,
    committed: u64,
    now: Duration,
) {
    let Some(fill) = follower.fill.as_mut().filter(|fill| fill.is_named(reply)) else { return };
    if reply.request > number || !fill.has_begun() {
        return;
    }
    if !fill.answered(reply, committed) {
        return follower.fill_again(now + outgoing_fill::RETRY);
    }
    let owes = fill.owes() || reply.request < number;
    follower.fill_silent_since = None;
    follower.acknowledged = follower.acknowledged.max(reply.request);
    follower.owes_since = owes.then_some(now);
}
