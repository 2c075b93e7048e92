//! The shard set as a holder of copies: views, incoming streams of primaries, outgoing ones to backups.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use heddle_protocol::control::{LoadShards, ReplicaState, SetViews, ShardView};
use heddle_protocol::frame::{Header, Kind, Status};
use heddle_protocol::ids::{CutId, Member, ShardId};

use super::{ShardSet, ShardSetError, serves};
use crate::change::ShardChange;
use crate::effect::{Conn, Flow, ShardEffect, ShardReport};
use crate::frame::Frame;
use crate::replication::{Peer, Replication, StreamEntry, Turn};

/// How long a backup waits for the saver of its snapshot before it drops it: well below [`crate::LAG`].
const SAVER_WAIT: Duration = Duration::from_secs(1);

/// The copies of the set, and the connections of their primaries.
pub(super) struct Replicas {
    pub(super) copies: Box<Replication>,
    /// Connections of pservers that stream to this thread, each with the entry whose change has not come.
    incoming: BTreeMap<Conn, PeerConnection>,
    /// Backups to which a connection is open.
    connected: BTreeSet<Peer>,
    changes: Vec<(usize, Arc<ShardChange>)>,
    /// The highest cut that a backup here has taken with its primary.
    pub(super) followed_cut: CutId,
    /// Since when a backup has waited for the saver of its snapshot.
    waits_since: Option<Duration>,
}

struct PeerConnection {
    member: Member,
    entry: Option<Header>,
}

impl Replicas {
    /// The copies of a new epoch. Connections continue from the epoch before.
    pub(super) fn of(
        own: Member,
        load: &LoadShards,
        shards: &[ShardId],
        before: Option<Box<Self>>,
    ) -> Option<Box<Self>> {
        let copies = Replication::of(own, load, shards)?;
        let (incoming, connected) =
            before.map(|before| (before.incoming, before.connected)).unwrap_or_default();
        let (changes, followed_cut, waits_since) = (Vec::new(), CutId::default(), None);
        Some(Box::new(Self { copies, incoming, connected, changes, followed_cut, waits_since }))
    }

    pub(super) fn is_primary(&self, shard: ShardId) -> bool {
        self.copies.is_primary(shard)
    }

    /// Whether backups have waited long enough for the savers of their snapshots.
    pub(super) fn stops_waiting(&mut self, now: Duration) -> bool {
        self.waits_since.take_if(|since| now >= *since + SAVER_WAIT).is_some()
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
        let waits = self.waits_since.map(|since| since + SAVER_WAIT);
        self.copies.deadline().into_iter().chain(waits).min()
    }

    pub(super) fn report_lagging(&mut self, now: Duration, out: &mut Vec<ShardEffect>) {
        self.copies.report_lagging(now, out);
    }

    /// Whether a trainer's frame may be handled now. [`Flow::Wait`]: the backups have too much to acknowledge.
    ///
    /// # Errors
    /// The refusal of a copy that does not serve.
    pub(super) fn admit(&self, header: &Header) -> Result<Flow, Status> {
        if header.kind != Kind::Clock && !self.copies.is_primary(header.shard) {
            return Err(self.copies.refusal(header.shard));
        }
        let waits = header.kind.is_held_by_cuts() && self.copies.is_full();
        Ok(if waits { Flow::Wait } else { Flow::Taken })
    }
}

impl ShardSet {
    /// A set of this pserver's thread, without shards and in no epoch. A set without a member keeps no copies.
    #[must_use]
    pub fn of(own: Member) -> Self {
        Self { own: Some(own), ..Self::default() }
    }

    /// How long a backup may take to acknowledge before it is reported. Call it after [`Self::hold`].
    pub fn set_lag(&mut self, lag: Duration) {
        if let Some(replicas) = &mut self.replicas {
            replicas.copies.set_lag(lag);
        }
    }

    /// Whether this thread serves the shard to trainers.
    pub(super) fn serves(&self, shard: ShardId) -> bool {
        serves(&self.replicas, shard)
    }

    pub(super) fn serves_any(&self) -> bool {
        self.replicas.is_none() || self.shards.keys().any(|&shard| self.serves(shard))
    }

    pub(super) fn replica(&self, shard: ShardId) -> Option<ReplicaState> {
        let whole = self.shards.contains_key(&shard);
        self.replicas.as_ref().and_then(|replicas| replicas.copies.state(shard, whole))
    }

    /// Primaries record their changes.
    pub(super) fn record_changes(&mut self) {
        if let Some(replicas) = &self.replicas {
            for (&id, shard) in &mut self.shards {
                shard.record_changes(replicas.is_primary(id));
            }
        }
    }

    /// Takes views. Those that are not later than the own ones, or of other threads' shards, change nothing.
    ///
    /// # Errors
    /// The epoch is not the set's.
    pub fn views(
        &mut self,
        command: &SetViews,
        now: Duration,
        out: &mut Vec<ShardEffect>,
    ) -> Result<(), ShardSetError> {
        self.check_epoch(command.epoch)?;
        for view in &command.views {
            let from = out.len();
            self.view(view, now, out);
            self.replicate(from, out);
        }
        let from = out.len();
        // Frames may have waited for a backup that is left out.
        self.release(out);
        self.replicate(from, out);
        Ok(())
    }

    fn view(&mut self, view: &ShardView, now: Duration, out: &mut Vec<ShardEffect>) {
        let Some(replicas) = &mut self.replicas else { return };
        if !replicas.copies.is_later(view) {
            return;
        }
        let (id, own) = (view.shard, replicas.copies.own);
        let Some(copy) = replicas.copies.copy_mut(id) else { return };
        let served = copy.is_primary();
        let promoted = copy.take_view(own, view.clone());
        copy.owe(now);
        let serves = copy.is_primary();
        if served && !serves {
            self.stop_serving(id, out);
        }
        if promoted && let Some(shard) = self.shards.get_mut(&id) {
            // The ApplicationMaster ends each cut of a command that this pserver has received, also after a restart.
            let open = (self.highest_cut > self.ended_cut).then_some(self.highest_cut);
            shard.promote(open, out);
            // The command to begin the phase may have come before this view.
            if let Some(phase) = self.phase.filter(|phase| phase.no > shard.phase()) {
                shard.begin(phase, out);
            }
        }
        if serves {
            let (term, version) = view.order();
            out.push(ShardEffect::Report(ShardReport::ViewTaken { shard: id, term, version }));
        }
        let is_backup = view.backups.iter().any(|place| place.member == own);
        if !serves && !is_backup && !view.in_sync.contains(&own) {
            // Left out: the copy is of no use, since a new one is filled from its beginning.
            self.shards.remove(&id);
            self.missing.remove(&id);
            if let Some(replicas) = &mut self.replicas {
                replicas.copies.remove(id);
            }
        }
    }

    /// A shard has another primary: waiting requests are sent to it.
    fn stop_serving(&mut self, id: ShardId, out: &mut Vec<ShardEffect>) {
        if let Some(shard) = self.shards.get_mut(&id) {
            shard.record_changes(false);
            shard.disarm();
            shard.refuse_waiting(Status::WrongShard, out);
        }
    }

    /// Numbers what changed since `from` effects, holds answers, and releases what waited.
    pub(super) fn replicate(&mut self, from: usize, out: &mut Vec<ShardEffect>) {
        let Some(replicas) = &mut self.replicas else { return };
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
                replicas.copies.append(shard, change, now);
            }
            out.extend(replicas.copies.gate(effect));
        }
        all.for_each(|(_, shard, change)| replicas.copies.append(shard, change, now));
        replicas.copies.release(out);
        if has_changes {
            out.push(ShardEffect::Replicate);
        }
    }

    /// Whether the backups have all that was changed so far. If not, [`ShardEffect::Settled`] with `ask` follows.
    pub fn settle(&mut self, ask: u64) -> bool {
        self.replicas.as_mut().is_none_or(|replicas| replicas.copies.settle(ask))
    }

    /// A frame of a primary: an entry, or the change of the entry before it.
    pub(super) fn on_peer_frame(&mut self, frame: &Frame<'_>, out: &mut Vec<ShardEffect>) -> Flow {
        let (conn, now) = (frame.conn, self.clocked.now());
        let Some(replicas) = &mut self.replicas else { return Flow::Taken };
        let Some(incoming) = replicas.incoming.get_mut(&conn) else { return Flow::Taken };
        let Some(entry) = incoming.entry else {
            match frame.header.kind {
                Kind::Entry => incoming.entry = Some(frame.header),
                // Without an entry before it the stream is of no use.
                _ => out.push(ShardEffect::Close { conn }),
            }
            return Flow::Taken;
        };
        let loading = self.missing.contains(&entry.shard);
        let mut snapped = false;
        let header = match replicas.copies.judge(&entry, loading) {
            Turn::Wait => return Flow::Wait,
            Turn::Answer(header) => header,
            Turn::Next => {
                let shard = self.shards.get_mut(&entry.shard);
                let fits = frame.header.shard == entry.shard;
                match shard.filter(|_| fits).map(|shard| shard.follow(frame)) {
                    Some(Ok(Flow::Wait)) => {
                        replicas.waits_since.get_or_insert(now);
                        return Flow::Wait;
                    }
                    Some(Ok(Flow::Taken)) => {
                        replicas.waits_since = None;
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
        out.push(ShardEffect::Reply { conn, header });
        Flow::Taken
    }

    /// A backup may have taken the snapshot of a cut with its primary.
    fn copy_snapped(&mut self, id: ShardId, cut: CutId, out: &mut Vec<ShardEffect>) {
        if let Some(replicas) = &mut self.replicas {
            replicas.followed_cut = replicas.followed_cut.max(cut);
        }
        let Some(shard) = self.shards.get_mut(&id) else { return };
        if cut <= self.ended_cut {
            // The end of the cut overtook the stream.
            shard.end_cut(cut, false);
        } else if shard.has_snapshot(cut) {
            let step = shard.step();
            out.push(ShardEffect::Report(ShardReport::CopySnapped { shard: id, cut, step }));
        }
    }

    /// Backups to which a connection has to exist; none without replicas.
    #[must_use]
    pub fn peers(&self) -> BTreeSet<Peer> {
        self.replicas.as_ref().map(|replicas| replicas.copies.peers()).unwrap_or_default()
    }

    /// A connection to a backup is open: entries can be sent.
    pub fn peer_connected(&mut self, peer: Peer) {
        if let Some(replicas) = &mut self.replicas {
            replicas.connected.insert(peer);
            replicas.copies.connected(peer);
        }
    }

    /// The connection to a backup is closed.
    pub fn peer_disconnected(&mut self, peer: Peer) {
        if let Some(replicas) = &mut self.replicas {
            replicas.connected.remove(&peer);
        }
    }

    /// The next entry to send to a backup, `last` being the shard of the one before: shards take turns.
    pub fn next_entry(&mut self, peer: Peer, last: ShardId) -> Option<StreamEntry> {
        let replicas = self.replicas.as_mut()?;
        let open = replicas.connected.contains(&peer);
        open.then(|| replicas.copies.next_entry(peer, last))?
    }

    /// Takes a backup's answer to an entry.
    pub fn on_peer_reply(
        &mut self,
        peer: Peer,
        reply: &Header,
        now: Duration,
        out: &mut Vec<ShardEffect>,
    ) {
        let Some(replicas) = &mut self.replicas else { return };
        let was_full = replicas.copies.is_full();
        let deposed = replicas.copies.answered(peer, reply, now);
        replicas.copies.report_lagging(now, out);
        let releases = was_full && !replicas.copies.is_full();
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
        if let Some(replicas) = &mut self.replicas {
            replicas.copies.ungated = true;
        }
    }

    /// Pservers that stream to this thread.
    #[must_use]
    pub fn primaries(&self) -> Vec<Member> {
        let incoming = self.replicas.iter().flat_map(|replicas| replicas.incoming.values());
        incoming.map(|incoming| incoming.member).collect()
    }
}
