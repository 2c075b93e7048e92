//! Copies of the shards of one data thread: roles, streams of changes, and held answers.
//!
//! The protocol and its situations are in `docs/replication.md`. The primary judges a frame and applies it at once; what changed
//! the shard becomes a numbered entry. **An answer by which a trainer or the ApplicationMaster concludes something is held until
//! every in-sync backup has all entries that the shard had when the answer was made**; values of pulls are not held.
//!
//! Not here: sockets and times (arguments), the choice of the primary (the ApplicationMaster), rows (`shard::fill`).

mod backup_stream;
mod copy;
mod hand_over;
mod incoming_fill;
mod outgoing_fill;
mod streams;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use heddle_protocol::control::{
    FillProgress, LoadShards, ReplicaState, ReplicationLag, ShardReport, ShardView,
};
use heddle_protocol::frame::{Header, Kind, Status};
use heddle_protocol::ids::{Epoch, Member, ShardId, Term, ViewVersion};
use heddle_protocol::mutation::Mutation;

use crate::change::ShardChange;
use crate::effect::{LocalReport, ShardEffect};
pub use backup_stream::Peer;
use copy::Useless;
pub(crate) use copy::{CopyRole, ShardReplica};
use hand_over::StoppedShard;
pub(crate) use incoming_fill::FillTurn;
pub(crate) use outgoing_fill::FillNeed;

/// How long a refill may make no progress at the least before it begins again.
const FILL_LAG_MIN: Duration = Duration::from_secs(2);
/// Bytes of changes that the backups of a data thread keep for other backups, of all its shards together.
const TAIL_BYTES_MAX: usize = 64 << 20;

/// What the primaries of a data thread allow their backups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicationLimits {
    /// How long a backup may take to acknowledge before the primary reports it (`liveness.lag`).
    pub lag: Duration,
    /// Bytes of changes of the thread that the in-sync backups have not acknowledged, before frames of trainers wait.
    pub unacknowledged_bytes: usize,
}

impl Default for ReplicationLimits {
    /// 2 s; 32 MiB, which is more than a link of 100 Gbit/s carries in two milliseconds.
    fn default() -> Self {
        Self { lag: Duration::from_secs(2), unacknowledged_bytes: 32 << 20 }
    }
}

/// The copies of a data thread.
pub(crate) struct Replication {
    pub(crate) own: Member,
    epoch: Epoch,
    copies: BTreeMap<ShardId, ShardReplica>,
    /// The latest views of this epoch of shards without a copy here: earlier ones that come late do not bring one back.
    left: BTreeMap<ShardId, (Term, ViewVersion)>,
    /// By number: commands whose answer waits, with the entries that it covers.
    asks: Vec<(u64, Vec<(ShardId, u64)>)>,
    /// Shards that another copy is to serve.
    stopped: BTreeMap<ShardId, StoppedShard>,
    limits: ReplicationLimits,
    /// Whether shards can get other primaries in an epoch.
    can_move: bool,
    /// The shards here have this copy alone: changes are not streamed, and answers are not held. Read for each frame.
    alone: bool,
    /// Tests only: answers do not wait.
    #[cfg(test)]
    pub(crate) ungated: bool,
}

/// An entry on its way to a backup.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamEntry {
    /// The frame that precedes the change.
    pub head: Header,
    /// The change.
    pub change: Arc<ShardChange>,
}

/// The result of an entry on a backup.
pub(crate) enum Turn {
    /// Apply the change; it is the next one.
    Next,
    /// Answer with this.
    Answer(Header),
    /// Nothing can be decided before a command: a later epoch or view is on its way.
    Wait,
    /// Drop it: its sender does not wait for an answer any more.
    Ignore,
}

impl Replication {
    /// Of a pserver before its first epoch.
    pub(crate) fn new(own: Member) -> Self {
        Self {
            own,
            epoch: Epoch::default(),
            copies: BTreeMap::new(),
            left: BTreeMap::new(),
            asks: Vec::new(),
            stopped: BTreeMap::new(),
            limits: ReplicationLimits::default(),
            can_move: false,
            alone: true,
            #[cfg(test)]
            ungated: false,
        }
    }

    /// The copies that a new epoch begins with. A shard without a view in the order has this copy alone.
    pub(crate) fn begin_epoch(
        &mut self,
        load: &LoadShards,
        shards: &[ShardId],
        limits: ReplicationLimits,
    ) {
        *self = Self { epoch: load.epoch, limits, ..Self::new(self.own) };
        self.can_move = !load.views.is_empty();
        let here = load.views.iter().filter(|view| shards.contains(&view.shard)).cloned();
        let mut views: BTreeMap<ShardId, ShardView> = here.map(|view| (view.shard, view)).collect();
        for &shard in shards {
            let view = views.remove(&shard);
            let view = view.unwrap_or_else(|| ShardView::alone(shard, self.own));
            self.copies.insert(shard, ShardReplica::new(self.own, view));
        }
        self.set_alone(true);
    }

    /// Whether shards can get other primaries in an epoch.
    pub(crate) fn can_move(&self) -> bool {
        self.can_move
    }

    /// Whether the shards here have this copy alone.
    pub(crate) fn are_alone(&self) -> bool {
        self.alone
    }

    /// Copies may have changed; `may_be`: all that follows from it is done, so that they can be alone.
    pub(crate) fn set_alone(&mut self, may_be: bool) {
        self.alone = may_be
            && self.stopped.is_empty()
            && self.asks.is_empty()
            && self.copies.values().all(ShardReplica::is_alone);
    }

    /// Whether this copy is a primary with others to stream to.
    pub(crate) fn streams(&self, shard: ShardId) -> bool {
        self.copies.get(&shard).is_some_and(ShardReplica::streams)
    }

    /// How long a refill may make no progress before it begins again: it costs more than a round trip.
    fn fill_lag(&self) -> Duration {
        self.limits.lag.max(FILL_LAG_MIN)
    }

    /// How long a backup may take nothing of its refill before that is reported: as long as an unusable path is watched
    /// elsewhere before anything is decided (`liveness.dead` over `liveness.lag` is five by default).
    fn fill_silence(&self) -> Duration {
        5 * self.fill_lag()
    }

    /// Whether this copy serves trainers.
    pub(crate) fn is_primary(&self, shard: ShardId) -> bool {
        self.copies.get(&shard).is_some_and(ShardReplica::is_primary)
    }

    /// The status for a trainer's frame to a copy that does not serve. A backup may be about to be promoted.
    pub(crate) fn refusal(&self, shard: ShardId) -> Status {
        match self.copies.get(&shard).map(|copy| &copy.role) {
            Some(CopyRole::Backup) => Status::NotReady,
            Some(CopyRole::Primary(_) | CopyRole::Deposed) | None => Status::WrongShard,
        }
    }

    pub(crate) fn state(&self, shard: ShardId, whole: bool) -> ReplicaState {
        self.copies.get(&shard).map(|copy| copy.state(whole)).unwrap_or_default()
    }

    pub(crate) fn copy_mut(&mut self, shard: ShardId) -> Option<&mut ShardReplica> {
        self.copies.get_mut(&shard)
    }

    pub(crate) fn remove(&mut self, shard: ShardId) {
        self.end_stop(shard);
        if let Some(copy) = self.copies.remove(&shard) {
            self.left.insert(shard, copy.view().order());
        }
    }

    /// Takes a view of a shard without a copy here, which orders to fill one.
    pub(crate) fn add(&mut self, view: &ShardView, order: ViewVersion) {
        let mut copy = ShardReplica::new(self.own, view.clone());
        copy.fill(order);
        self.copies.insert(view.shard, copy);
    }

    /// Whether frames of trainers that change a shard have to wait for backups.
    pub(crate) fn is_full(&self) -> bool {
        let bytes =
            self.copies.values().filter(|copy| copy.is_primary()).map(ShardReplica::tail_bytes);
        bytes.sum::<usize>() > self.limits.unacknowledged_bytes
    }

    /// Whether a promoted copy does not know yet what the other copies of the set have: frames that change it wait.
    pub(crate) fn is_aligning(&self, shard: ShardId) -> bool {
        self.copies.get(&shard).is_some_and(ShardReplica::is_aligning)
    }

    /// Numbers a change of a primary.
    pub(crate) fn append(&mut self, shard: ShardId, change: Arc<ShardChange>, now: Duration) {
        if let Some(copy) = self.copies.get_mut(&shard) {
            copy.append(change, now);
        }
    }

    /// Holds an effect whose receiver concludes something from it, until the backups have what it covers. Drops reports of
    /// copies that do not serve. Returns the effect if it can be performed at once.
    pub(crate) fn gate(&mut self, effect: ShardEffect) -> Option<ShardEffect> {
        let shard = match &effect {
            ShardEffect::Reply { header, .. } if concludes(header) => header.shard,
            ShardEffect::Report(
                ShardReport::PhaseEnded { shard, .. }
                | ShardReport::SnapshotTaken { shard, .. }
                | ShardReport::CutAborted { shard, .. },
            )
            | ShardEffect::Local(LocalReport::TableFull { shard, .. }) => *shard,
            ShardEffect::Reply { .. }
            | ShardEffect::Values { .. }
            | ShardEffect::Report(_)
            | ShardEffect::Local(_)
            | ShardEffect::Close { .. }
            | ShardEffect::Replicate
            | ShardEffect::CannotServe { .. }
            | ShardEffect::Settled { .. } => return Some(effect),
        };
        #[cfg(test)]
        if self.ungated {
            return Some(effect);
        }
        if Mutation::AnswersDoNotWait.is_on() {
            return Some(effect);
        }
        match self.copies.get_mut(&shard) {
            Some(copy) => copy.gate(effect),
            None => Some(effect),
        }
    }

    /// Whether the backups have all entries of now. If not, [`ShardEffect::Settled`] follows when they have.
    pub(crate) fn settle(&mut self, ask: u64) -> bool {
        let open = self.copies.iter().filter(|(_, copy)| !copy.has_committed(copy.number()));
        let open: Vec<_> = open.map(|(&shard, copy)| (shard, copy.number())).collect();
        let settled = open.is_empty();
        if !settled {
            self.asks.push((ask, open));
        }
        settled
    }

    /// Releases what waited for entries that all in-sync backups have now.
    pub(crate) fn release(&mut self, out: &mut Vec<ShardEffect>) {
        for copy in self.copies.values_mut() {
            copy.release(out);
        }
        let copies = &self.copies;
        let committed = |&(shard, number): &(ShardId, u64)| {
            // A copy that does not serve any more has nothing to wait for: its successor answers for it.
            copies.get(&shard).is_none_or(|copy| !copy.is_primary() || copy.has_committed(number))
        };
        self.asks.retain(|(ask, open)| {
            let settled = open.iter().all(committed);
            if settled {
                out.push(ShardEffect::Settled { ask: *ask });
            }
            !settled
        });
    }

    /// The copy that an entry is for, if it follows the sender. `loading`: the shard is not installed yet.
    fn follower(&self, entry: &Header, loading: bool) -> Result<&ShardReplica, Turn> {
        let refuse = |status, term| {
            let head = Header::position(Kind::Refused, entry.epoch, entry.shard, term, 0);
            Err(Turn::Answer(Header { status, ..head }))
        };
        if entry.epoch > self.epoch || (entry.epoch == self.epoch && loading) {
            return Err(Turn::Wait);
        }
        if entry.epoch < self.epoch {
            return refuse(Status::WrongEpoch, entry.term());
        }
        let Some(copy) = self.copies.get(&entry.shard) else {
            return refuse(Status::WrongShard, entry.term());
        };
        let own = copy.term();
        if entry.term() < own {
            return refuse(Status::WrongTerm, own);
        }
        match &copy.role {
            CopyRole::Backup if copy.is_useless() => return refuse(Status::Unsupported, own),
            // Of a stream from before the refill.
            CopyRole::Backup if copy.awaits_fill() => return Err(Turn::Ignore),
            CopyRole::Backup => {}
            // Of a primary that this copy has to hear of by a view first; it is left out by that view.
            CopyRole::Primary(_) | CopyRole::Deposed => return refuse(Status::WrongShard, own),
        }
        if entry.term() > own {
            return Err(Turn::Wait);
        }
        Ok(copy)
    }

    /// A copy of the set was promoted: the answer has the number of this one.
    pub(crate) fn check_term(&self, entry: &Header, loading: bool) -> Turn {
        match self.follower(entry, loading) {
            Ok(copy) => {
                let (term, number) = (copy.term(), copy.number());
                let head = Header::position(Kind::Position, entry.epoch, entry.shard, term, number);
                Turn::Answer(copy.named(head))
            }
            Err(turn) => turn,
        }
    }

    /// Decides about an entry of a peer. `loading`: the shard is not installed yet.
    pub(crate) fn check_entry(&self, entry: &Header, loading: bool) -> Turn {
        let copy = match self.follower(entry, loading) {
            Ok(copy) => copy,
            Err(turn) => return turn,
        };
        let own = copy.term();
        let answer =
            |kind| copy.named(Header::position(kind, entry.epoch, entry.shard, own, copy.number()));
        match entry.request.cmp(&(copy.number() + 1)) {
            std::cmp::Ordering::Equal => Turn::Next,
            std::cmp::Ordering::Less => Turn::Answer(answer(Kind::Followed)),
            std::cmp::Ordering::Greater => Turn::Answer(answer(Kind::Position)),
        }
    }

    /// A backup has applied the entry. Returns its answer.
    pub(crate) fn followed(&mut self, entry: &Header, change: &crate::frame::Frame<'_>) -> Header {
        let answer = |number| {
            Header::position(Kind::Followed, entry.epoch, entry.shard, entry.term(), number)
        };
        match self.copies.get_mut(&entry.shard) {
            Some(copy) => {
                copy.followed(entry, change);
                let answer = copy.named(answer(copy.number()));
                self.trim_tails();
                answer
            }
            None => answer(0),
        }
    }

    /// Drops the oldest changes of the longest tails, until all tails of backups fit. A copy that is promoted without them sends no
    /// others: backups that lack them are filled.
    fn trim_tails(&mut self) {
        let is_backup = |copy: &&mut ShardReplica| !copy.is_primary();
        let tails = self.copies.values().filter(|copy| !copy.is_primary());
        let mut bytes: usize = tails.map(ShardReplica::tail_bytes).sum();
        while bytes > TAIL_BYTES_MAX {
            let backups = self.copies.values_mut().filter(is_backup);
            let Some(longest) = backups.max_by_key(|copy| copy.tail_bytes()) else { return };
            let before = longest.tail_bytes();
            longest.drop_oldest();
            bytes -= before - longest.tail_bytes();
        }
    }

    /// A backup could not apply the entry: its copy is of no use.
    pub(crate) fn unfit(&mut self, entry: &Header) -> Header {
        if let Some(copy) = self.copies.get_mut(&entry.shard) {
            copy.set_useless(Useless::Unfit);
        }
        let head = Header::position(Kind::Refused, entry.epoch, entry.shard, entry.term(), 0);
        let head = self.copies.get(&entry.shard).map_or(head, |copy| copy.named(head));
        Header { status: Status::Unsupported, ..head }
    }

    /// Whether a view is later than the copy's own.
    pub(crate) fn is_later(&self, view: &ShardView) -> bool {
        match self.copies.get(&view.shard) {
            Some(copy) => view.order() > copy.view().order(),
            None => self.left.get(&view.shard).is_none_or(|left| view.order() > *left),
        }
    }

    /// How far the slowest in-sync backup of this thread's primaries is behind, if some primary streams.
    pub(crate) fn lag(&self, now: Duration) -> Option<ReplicationLag> {
        let lags = self.copies.values().filter_map(|copy| copy.lag(now));
        lags.reduce(ReplicationLag::max)
    }

    /// How far the refills of this thread's primaries are. `bytes_of`: bytes of rows of a shard.
    pub(crate) fn fills(&self, bytes_of: impl Fn(ShardId) -> u64) -> Vec<FillProgress> {
        let mut fills = Vec::new();
        for (&shard, copy) in &self.copies {
            for (&member, follower) in copy.serving().into_iter().flat_map(|it| &it.followers) {
                if let Some(fill) = &follower.fill {
                    let of_bytes = bytes_of(shard);
                    let bytes = if fill.is_caught_up() { of_bytes } else { fill.bytes };
                    fills.push(FillProgress { shard, member, bytes, of_bytes });
                }
            }
        }
        fills
    }
}

/// Whether the receiver of this reply concludes something about the shard's state.
fn concludes(header: &Header) -> bool {
    match header.kind {
        Kind::Ack | Kind::Progress => true,
        Kind::Refused => {
            matches!(header.status, Status::Stale | Status::NotFinite | Status::Already)
        }
        _ => false,
    }
}
