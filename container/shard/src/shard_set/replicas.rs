//! The shard set as a holder of copies: views, incoming streams of primaries, outgoing ones to backups.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use heddle_protocol::control::{
    LoadShards, ReplicaState, ReplicationLag, SetViews, ShardReport, ShardView,
};
use heddle_protocol::frame::{Header, Kind, Status};
use heddle_protocol::ids::{CutId, Epoch, Member, ShardId, ViewVersion};
use heddle_protocol::mutation::Mutation;

use super::{ShardSet, ShardSetError};
use crate::change::ShardChange;
use crate::effect::{Conn, Flow, LocalReport, ShardEffect};
use crate::frame::Frame;
use crate::replication::{FillTurn, Peer, Replication, ReplicationLimits, StreamEntry, Turn};
use crate::shard::Shard;

/// The copies of the set, and the connections of their primaries.
pub(super) struct Replicas {
    pub(super) copies: Replication,
    /// Connections of pservers that stream to this thread, each with the entry whose change has not come.
    incoming: BTreeMap<Conn, PeerConnection>,
    /// Backups to which a connection is open.
    connected: BTreeSet<Peer>,
    changes: Vec<(usize, Arc<ShardChange>)>,
    /// The highest cut that a backup here has taken with its primary.
    pub(super) followed_cut: CutId,
    /// Backups that wait for the savers of their snapshots, each with the time since which it does.
    waits_since: BTreeMap<ShardId, Duration>,
    /// How long one does before it drops the snapshot: well below the time within which it has to acknowledge.
    saver_wait: Duration,
}

struct PeerConnection {
    member: Member,
    entry: Option<Header>,
}

impl Replicas {
    /// Of a pserver before its first epoch.
    pub(super) fn new(own: Member) -> Self {
        Self {
            copies: Replication::new(own),
            incoming: BTreeMap::new(),
            connected: BTreeSet::new(),
            changes: Vec::new(),
            followed_cut: CutId::default(),
            waits_since: BTreeMap::new(),
            saver_wait: Duration::ZERO,
        }
    }

    /// The copies of a new epoch. Connections continue from the epoch before.
    pub(super) fn begin_epoch(
        &mut self,
        load: &LoadShards,
        shards: &[ShardId],
        limits: ReplicationLimits,
    ) {
        self.copies.begin_epoch(load, shards, limits);
        self.followed_cut = CutId::default();
        self.waits_since.clear();
        self.saver_wait = limits.lag / 2;
    }

    pub(super) fn is_primary(&self, shard: ShardId) -> bool {
        self.copies.is_primary(shard)
    }

    /// Takes the backups that have waited long enough for the savers of their snapshots.
    pub(super) fn end_waits(&mut self, now: Duration) -> Vec<ShardId> {
        let is_over = |_: &ShardId, since: &mut Duration| now >= *since + self.saver_wait;
        self.waits_since.extract_if(.., is_over).map(|(shard, _)| shard).collect()
    }

    /// Opens a connection of a pserver.
    pub(super) fn connect(&mut self, member: Member, conn: Conn) -> Conn {
        self.incoming.insert(conn, PeerConnection { member, entry: None });
        conn
    }

    pub(super) fn close(&mut self, conn: Conn) {
        self.incoming.remove(&conn);
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        let waits = self.waits_since.values().map(|since| *since + self.saver_wait);
        self.copies.deadline(&self.connected).into_iter().chain(waits).min()
    }

    /// Time has passed: reports backups that lag, and begins refills again.
    pub(super) fn tick(&mut self, now: Duration, out: &mut Vec<ShardEffect>) {
        self.copies.report_lagging(&self.connected, now, out);
        if self.copies.fill_waits_end(now) {
            out.push(ShardEffect::Replicate);
        }
    }

    /// Numbers a change of a primary; the state for refills has the number of the change before it.
    fn changed(&mut self, shard: ShardId, change: Arc<ShardChange>, now: Duration) {
        match change.kind() {
            Kind::FillBegin => self.copies.begin_fills(shard, &change, now),
            _ => self.copies.append(shard, change, now),
        }
    }

    /// Whether a trainer's frame may be handled now. [`Flow::Wait`]: the backups have too much to acknowledge.
    ///
    /// # Errors
    /// The refusal of a copy that does not serve.
    pub(super) fn admit(&self, header: &Header) -> Result<Flow, Status> {
        // A clock is for the data thread and changes no shard.
        if self.copies.are_alone() || header.kind == Kind::Clock {
            return Ok(Flow::Taken);
        }
        if !self.copies.is_primary(header.shard) {
            return Err(self.copies.refusal(header.shard));
        }
        let waits = header.kind.is_held_by_cuts() && self.copies.is_full();
        // Questions about lanes are changes too.
        let changes = header.kind.is_held_by_cuts() || header.kind == Kind::Query;
        let stands = self.copies.is_stopped(header.shard) || self.copies.is_aligning(header.shard);
        let waits = waits || (changes && stands);
        Ok(if waits { Flow::Wait } else { Flow::Taken })
    }
}

impl ShardSet {
    /// What backups are allowed in epochs that begin from now on.
    pub fn set_replication_limits(&mut self, limits: ReplicationLimits) {
        self.limits = limits;
    }

    /// Whether this thread serves the shard to trainers.
    pub(super) fn serves(&self, shard: ShardId) -> bool {
        self.replicas.is_primary(shard)
    }

    pub(super) fn serves_any(&self) -> bool {
        self.shards.keys().any(|&shard| self.serves(shard))
    }

    /// What this thread is as a copy of a shard; not whole where it lacks one.
    #[must_use]
    pub fn replica(&self, shard: ShardId) -> ReplicaState {
        self.replicas.copies.state(shard, self.shards.contains_key(&shard))
    }

    /// Primaries that stream record their changes.
    pub(super) fn record_changes(&mut self) {
        for (&id, shard) in &mut self.shards {
            shard.record_changes(self.replicas.copies.streams(id));
        }
    }

    /// Takes views. Those that are not later than the own ones, or of other threads' shards, change nothing.
    ///
    /// # Errors
    /// The epoch is not the set's.
    pub(crate) fn views(
        &mut self,
        command: &SetViews,
        now: Duration,
        out: &mut Vec<ShardEffect>,
    ) -> Result<(), ShardSetError> {
        self.check_epoch(command.epoch)?;
        self.replicas.copies.set_alone(false);
        for view in &command.views {
            let from = out.len();
            self.view(view, now, out);
            if !Mutation::FillIsNotRecorded.is_on() {
                self.record_changes();
            }
            self.replicate(from, out);
        }
        let from = out.len();
        // Frames may have waited for a backup that is left out.
        self.release(out);
        self.replicate(from, out);
        self.replicas.copies.set_alone(true);
        Ok(())
    }

    fn view(&mut self, view: &ShardView, now: Duration, out: &mut Vec<ShardEffect>) {
        let replicas = &mut self.replicas;
        if !replicas.copies.is_later(view) {
            return;
        }
        let (id, own, thread) = (view.shard, replicas.copies.own, self.thread);
        let place = view.backups.iter().find(|place| place.member == own);
        let place = place.filter(|it| it.fill.is_none_or(|order| order.thread == thread));
        let is_in_sync = view.in_sync.contains(&own);
        let order = place.and_then(|it| it.fill).filter(|_| !is_in_sync).map(|it| it.version);
        let Some(copy) = replicas.copies.copy_mut(id) else {
            if let Some(order) = order {
                replicas.copies.add(view, order);
                self.order_fill(id, order, out);
            }
            return;
        };
        let served = copy.is_primary();
        let promoted = copy.take_view(own, view.clone());
        copy.owe(now);
        let serves = copy.is_primary();
        let begins = order.filter(|order| copy.fill_order() != Some(*order));
        match begins {
            Some(order) => copy.fill(order),
            None if is_in_sync => copy.settle(),
            None => {}
        }
        replicas.copies.end_stop(id);
        if served && !serves {
            self.stop_serving(id, out);
        }
        if promoted {
            self.begin_serving(id, out);
        }
        if serves {
            let (term, version) = view.order();
            out.push(ShardEffect::Report(ShardReport::ViewTaken { shard: id, term, version }));
        }
        if let Some(order) = begins {
            self.order_fill(id, order, out);
        }
        if !serves && place.is_none() && !is_in_sync {
            // Left out: the copy is of no use, since a new one is filled from its beginning.
            self.shards.remove(&id);
            self.missing.remove(&id);
            self.replicas.copies.remove(id);
            self.replicas.waits_since.remove(&id);
            out.push(ShardEffect::Local(LocalReport::CopyLeft { shard: id }));
        }
    }

    /// A view orders to fill the copy. A shard that is here is used again.
    fn order_fill(&mut self, shard: ShardId, order: ViewVersion, out: &mut Vec<ShardEffect>) {
        self.missing.remove(&shard);
        if !self.shards.contains_key(&shard) {
            out.push(ShardEffect::Local(LocalReport::FillOrdered { shard, order }));
        }
    }

    /// Installs a shard of zeros for a refill ([`LocalReport::FillOrdered`]). It is dropped if the refill is not ordered any more.
    pub fn install_empty(&mut self, epoch: Epoch, order: ViewVersion, shard: Shard) {
        let copy = self.replicas.copies.copy_mut(shard.id()).filter(|_| epoch == self.epoch);
        if copy.is_some_and(|copy| copy.fill_order() == Some(order)) {
            self.shards.entry(shard.id()).or_insert(shard);
        }
    }

    /// Numbers what changed since `from` effects, holds answers, and releases what waited.
    pub(super) fn replicate(&mut self, from: usize, out: &mut Vec<ShardEffect>) {
        let replicas = &mut self.replicas;
        if replicas.copies.are_alone() {
            return;
        }
        let mut changes = std::mem::take(&mut replicas.changes);
        let mut all: Vec<(usize, ShardId, Arc<ShardChange>)> = Vec::new();
        for (&id, shard) in &mut self.shards {
            shard.take_changes(&mut changes);
            all.extend(changes.drain(..).map(|(at, change)| (at, id, change)));
        }
        replicas.changes = changes;
        all.sort_by_key(|(at, ..)| *at);
        let has_changes = !all.is_empty();
        let mut all = all.into_iter().peekable();
        let now = self.clocked.now();
        for (at, effect) in out.split_off(from).into_iter().enumerate() {
            while let Some((_, shard, change)) = all.next_if(|(before, ..)| *before <= from + at) {
                replicas.changed(shard, change, now);
            }
            out.extend(replicas.copies.gate(effect));
        }
        all.for_each(|(_, shard, change)| replicas.changed(shard, change, now));
        replicas.copies.release(out);
        let shards = &self.shards;
        let is_busy = |shard| shards.get(&shard).is_some_and(Shard::is_busy);
        replicas.copies.report_drained(is_busy, out);
        // A shard whose step has just ended may have rows to send.
        if has_changes || replicas.copies.has_fills() {
            out.push(ShardEffect::Replicate);
        }
    }

    /// Whether the backups have all that was changed so far. If not, [`ShardEffect::Settled`] with `ask` follows.
    pub fn settle(&mut self, ask: u64) -> bool {
        self.replicas.copies.settle(ask)
    }

    /// A frame of a primary: an entry, or the change of the entry before it.
    pub(super) fn on_peer_frame(&mut self, frame: &Frame<'_>, out: &mut Vec<ShardEffect>) -> Flow {
        let (conn, now) = (frame.conn, self.clocked.now());
        let replicas = &mut self.replicas;
        let Some(incoming) = replicas.incoming.get_mut(&conn) else { return Flow::Taken };
        let Some(entry) = incoming.entry else {
            match frame.header.kind {
                Kind::Entry => incoming.entry = Some(frame.header),
                // Without an entry before it the stream is of no use.
                _ => out.push(ShardEffect::Close { conn }),
            }
            return Flow::Taken;
        };
        if matches!(frame.header.kind, Kind::FillBegin | Kind::FillChunk | Kind::FillEnd) {
            return self.on_fill(&entry, frame, out);
        }
        let loading = self.missing.contains(&entry.shard);
        let mut snapped = false;
        let turn = match frame.header.kind {
            Kind::TermBegun => replicas.copies.check_term(&entry, loading),
            _ => replicas.copies.check_entry(&entry, loading),
        };
        let header = match turn {
            Turn::Wait => return Flow::Wait,
            Turn::Ignore => {
                incoming.entry = None;
                return Flow::Taken;
            }
            Turn::Answer(header) => header,
            Turn::Next => {
                let shard = self.shards.get_mut(&entry.shard);
                let fits = frame.header.shard == entry.shard;
                match shard.filter(|_| fits).map(|shard| shard.follow(frame)) {
                    Some(Ok(Flow::Wait)) => {
                        replicas.waits_since.entry(entry.shard).or_insert(now);
                        return Flow::Wait;
                    }
                    Some(Ok(Flow::Taken)) => {
                        replicas.waits_since.remove(&entry.shard);
                        snapped = frame.header.kind == Kind::Barrier;
                        replicas.copies.followed(&entry, frame)
                    }
                    Some(Err(_)) | None => replicas.copies.unfit(&entry),
                }
            }
        };
        if let Some(incoming) = replicas.incoming.get_mut(&conn) {
            incoming.entry = None;
        }
        if snapped {
            self.copy_snapped(entry.shard, frame.header.cut, out);
        }
        // The stream of a primary that was superseded, for example.
        self.refused +=
            u64::from(header.kind == Kind::Refused && header.status != Status::NotReady);
        out.push(ShardEffect::Reply { conn, header });
        Flow::Taken
    }

    /// A backup may have taken the snapshot of a cut with its primary.
    fn copy_snapped(&mut self, id: ShardId, cut: CutId, out: &mut Vec<ShardEffect>) {
        self.replicas.followed_cut = self.replicas.followed_cut.max(cut);
        let Some(shard) = self.shards.get_mut(&id) else { return };
        if cut <= self.ended_cut {
            // The end of the cut overtook the stream.
            shard.end_cut(cut, false);
        } else if shard.has_snapshot(cut) {
            let step = shard.step();
            out.push(ShardEffect::Local(LocalReport::CopySnapped { shard: id, cut, step }));
        }
    }

    /// A part of a refill, behind its entry.
    fn on_fill(&mut self, entry: &Header, frame: &Frame<'_>, out: &mut Vec<ShardEffect>) -> Flow {
        let (id, conn) = (entry.shard, frame.conn);
        let replicas = &mut self.replicas;
        let shard = self.shards.get_mut(&id);
        let answer = match replicas.copies.check_fill(entry, &frame.header, shard.is_some()) {
            FillTurn::Wait => return Flow::Wait,
            FillTurn::Ignore => None,
            FillTurn::Answer(header) => Some(header),
            FillTurn::Next => {
                let take = |shard: &mut Shard| match frame.header.kind {
                    Kind::FillBegin => shard.begin_filling(frame),
                    Kind::FillChunk => shard.take_fill(frame),
                    _ => shard.end_filling(),
                };
                Some(match shard.filter(|_| frame.header.shard == id).map(take) {
                    Some(Ok(())) => replicas.copies.filled(entry, &frame.header),
                    Some(Err(_)) | None => replicas.copies.unfit(entry),
                })
            }
        };
        if let Some(incoming) = replicas.incoming.get_mut(&conn) {
            incoming.entry = None;
        }
        out.extend(answer.map(|header| ShardEffect::Reply { conn, header }));
        Flow::Taken
    }

    /// How far the slowest in-sync backup of the primaries is behind; none without primaries that have backups.
    #[must_use]
    pub fn replication_lag(&self, now: Duration) -> Option<ReplicationLag> {
        self.replicas.copies.lag(now)
    }

    /// Backups to which a connection has to exist.
    #[must_use]
    pub fn peers(&self) -> BTreeSet<Peer> {
        self.replicas.copies.peers()
    }

    /// A connection to a backup is open: entries can be sent.
    pub fn peer_connected(&mut self, peer: Peer) {
        self.replicas.connected.insert(peer);
        self.replicas.copies.connected(peer, self.clocked.now());
    }

    /// The connection to a backup is closed.
    pub fn peer_disconnected(&mut self, peer: Peer) {
        self.replicas.connected.remove(&peer);
    }

    /// The next entry to send to a backup, `last` being the shard of the one before: shards take turns.
    pub fn next_entry(&mut self, peer: Peer, last: ShardId) -> Option<StreamEntry> {
        if !self.replicas.connected.contains(&peer) {
            return None;
        }
        if self.replicas.copies.has_fills() {
            self.feed_fills(peer);
        }
        self.replicas.copies.next_entry(peer, last)
    }

    /// Takes a backup's answer to an entry.
    pub fn on_peer_reply(
        &mut self,
        peer: Peer,
        reply: &Header,
        now: Duration,
        out: &mut Vec<ShardEffect>,
    ) {
        let replicas = &mut self.replicas;
        let was_full = replicas.copies.is_full();
        let was_aligning = replicas.copies.is_aligning(reply.shard);
        let deposed = replicas.copies.answered(peer, reply, now);
        replicas.copies.report_lagging(&replicas.connected, now, out);
        let is_aligned = was_aligning && !replicas.copies.is_aligning(reply.shard);
        let releases = is_aligned || (was_full && !replicas.copies.is_full());
        let from = out.len();
        if let Some(shard) = deposed {
            self.stop_serving(shard, out);
        }
        if releases {
            self.release(out);
        }
        self.replicate(from, out);
    }

    /// Answers do not wait for backups.
    #[cfg(test)]
    pub(crate) fn ungate(&mut self) {
        self.replicas.copies.ungated = true;
    }

    /// Pservers that stream to this thread.
    #[must_use]
    pub fn primaries(&self) -> Vec<Member> {
        self.replicas.incoming.values().map(|incoming| incoming.member).collect()
    }
}
