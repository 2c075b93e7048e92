//! Views of replicated shards: which copy serves, and which copies may be promoted (`pservers.replicas`).
//!
//! A view names the primary of a shard and its in-sync set, the copies that have every acknowledged update. The **term** grows
//! when the primary changes and by nothing else: shards refuse streams of lower terms. The **version** orders the views of an
//! epoch.
//!
//! - A copy is promoted only if the primary waits for its confirmations, at every moment. So the set of a new epoch is in the
//!   orders to load, before it is recorded, and a copy leaves it here before the primary stops waiting for it.
//! - All shards of a lost pserver change in one record. No process receives a view before its record is durable: the journal
//!   gate holds the commands back.
//! - With two backups both survivors of a lost primary stay in the set. They may differ by updates that were never
//!   acknowledged: the one that is promoted asks the other before it changes anything, and if that one has more, it is promoted
//!   instead. Which one has more need not be known before, and a copy that is lost meanwhile costs nothing.
//!
//! Without replicas there are no views, and nothing here has an effect.

mod hand_over;
mod paths;
mod refills;
mod spread;

use std::collections::{BTreeMap, BTreeSet};

use heddle_protocol::control::{BackupPlace, FillOrder, ShardView};
use heddle_protocol::ids::{Member, ShardId, Slot, Term, ViewVersion};

pub(crate) use hand_over::{HandOverCause, HandedOver};
pub(crate) use refills::{FailedFill, RefillPlace, RefillPlaces};

use super::shard_map::ShardMap;
use crate::fleet::Fleet;
use crate::record::RecordedView;
use crate::time::MonotonicMs;

/// The views of the present epoch, by shard.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShardViews {
    views: Vec<RecordedView>,
    /// All copies were in the common state, and the views are recorded. Before that no copy can be promoted.
    settled: bool,
    /// Promotions whose new primary does not serve yet.
    awaited: BTreeSet<ShardId>,
    promoted: u64,
    /// The hand-over that was ordered.
    hand_over: Option<hand_over::OrderedHandOver>,
    handed_over: u64,
    /// After a takeover: the copies that each pserver was ordered to load.
    placed: BTreeMap<Member, Vec<ShardId>>,
    /// Slots that were ordered to fill a copy in this epoch: they may still have it when a view does not name them any more.
    touched: BTreeSet<(Slot, ShardId)>,
    /// The shards that the last warning about missing backups named.
    told: Vec<ShardId>,
    failed_paths: paths::FailedPaths,
}

/// What the loss of a pserver changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReplicasLost {
    /// No shard had a copy there that counts.
    Nothing,
    /// These shards have another view: primaries that were lost are replaced by backups.
    Changed(ChangedViews),
    /// No copy of these shards is left.
    NoneLeft(Vec<ShardId>),
}

/// Views that a decision has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChangedViews {
    pub shards: Vec<ShardId>,
    /// Those of `shards` that have another primary.
    pub promoted: Vec<ShardId>,
    /// How many of `shards` have another in-sync set.
    pub sets: usize,
}

impl ShardViews {
    /// A new epoch begins: no copy is in its state yet. The numbers of promotions and hand-overs stay.
    pub(crate) fn begin_epoch(&mut self) {
        let (promoted, handed_over) = (self.promoted, self.handed_over);
        *self = Self { promoted, handed_over, ..Self::default() };
    }

    /// The first views of an epoch, for the orders to load. `backups`: by shard.
    pub(crate) fn place(&mut self, map: &ShardMap, backups: &[Vec<Slot>], fleet: &Fleet) {
        let member = |slot: &Slot| fleet.holder(*slot).map(|holder| holder.member);
        let view = |((shard, primary), backups): ((ShardId, Slot), &Vec<Slot>)| {
            let in_sync: Vec<Member> =
                std::iter::once(&primary).chain(backups).filter_map(member).collect();
            let primary = *in_sync.first()?;
            let (term, version) = (Term(1), ViewVersion(1));
            let fills = Vec::new();
            Some(RecordedView { shard, term, version, primary, in_sync, fills, began_at: None })
        };
        self.views = map.iter().zip(backups).filter_map(view).collect();
        debug_assert_eq!(self.views.len(), map.len(), "all pservers are there");
        self.settled = false;
    }

    /// The views that an earlier attempt recorded last, of all shards.
    pub(crate) fn take_over(
        &mut self,
        views: Vec<RecordedView>,
        placed: BTreeMap<Member, Vec<ShardId>>,
    ) {
        let touched = |view: &RecordedView| {
            let shard = view.shard;
            view.fills.iter().map(move |fill| (fill.member.slot, shard)).collect::<Vec<_>>()
        };
        self.touched = views.iter().flat_map(touched).collect();
        (self.views, self.settled, self.placed) = (views, true, placed);
    }

    /// After a takeover: the copies that each pserver was ordered to load, ascending.
    pub(crate) fn placed(&self) -> &BTreeMap<Member, Vec<ShardId>> {
        &self.placed
    }

    /// Promotions that were recorded and whose new primary does not serve yet: `serves` for a container, a shard and a term.
    pub(crate) fn await_primaries(&mut self, serves: impl Fn(Member, ShardId, Term) -> bool) {
        let waits = |view: &&RecordedView| !serves(view.primary, view.shard, view.term);
        self.awaited.extend(self.views.iter().filter(waits).map(|view| view.shard));
    }

    /// The views, by shard.
    pub(crate) fn all(&self) -> &[RecordedView] {
        &self.views
    }

    /// Whether the slot holds a copy of the shard that counts.
    pub(crate) fn counts(&self, slot: Slot, shard: ShardId) -> bool {
        let of_slot = |view: &RecordedView| view.in_sync.iter().any(|member| member.slot == slot);
        self.view(shard).is_some_and(of_slot)
    }

    /// Whether the epoch has views: copies were placed.
    pub(crate) fn are_placed(&self) -> bool {
        !self.views.is_empty()
    }

    /// Whether copies can be promoted.
    pub(crate) fn are_settled(&self) -> bool {
        self.settled
    }

    /// All copies are in the common state: the views as they are to be recorded.
    pub(crate) fn settle(&mut self) -> Vec<RecordedView> {
        self.settled = true;
        self.views.clone()
    }

    /// Promotions since the attempt began.
    pub(crate) fn promoted(&self) -> u64 {
        self.promoted
    }

    /// The shards with fewer copies in their set than `copies`, ascending.
    pub(crate) fn lacking(&self, copies: usize) -> Vec<ShardId> {
        let lacks = |view: &&RecordedView| view.in_sync.len() < copies;
        self.views.iter().filter(lacks).map(|view| view.shard).collect()
    }

    /// The shards that the last warning about missing backups named.
    pub(crate) fn told(&self) -> &[ShardId] {
        &self.told
    }

    /// A warning names these shards, or none lacks backups any more.
    pub(crate) fn set_told(&mut self, shards: Vec<ShardId>) {
        self.told = shards;
    }

    /// By shard: the backups that save their copy in a checkpoint with `files` files of each shard.
    pub(crate) fn savers(&self, files: u32) -> BTreeMap<ShardId, BTreeSet<Slot>> {
        let backups = |view: &RecordedView| -> BTreeSet<Slot> {
            let others = view.in_sync.iter().filter(|member| **member != view.primary);
            others.map(|member| member.slot).take(files.saturating_sub(1) as usize).collect()
        };
        let by_shard = self.views.iter().filter(|_| files > 1);
        let by_shard = by_shard.map(|view| (view.shard, backups(view)));
        by_shard.filter(|(_, backups)| !backups.is_empty()).collect()
    }

    /// Leaves a backup out of the set of one shard, since its copy is not equal to that of the primary.
    pub(crate) fn leave_out_copy(&mut self, shard: ShardId, slot: Slot) -> Option<ChangedViews> {
        let view = self.view(shard)?;
        let is_backup = view.primary.slot != slot;
        if !is_backup || !view.in_sync.iter().any(|member| member.slot == slot) {
            return None;
        }
        match self.remove(|member, of| member.slot == slot && of == shard) {
            ReplicasLost::Changed(changed) => Some(changed),
            ReplicasLost::Nothing | ReplicasLost::NoneLeft(_) => None,
        }
    }

    /// The slots that hold a copy which may be promoted, or serve, with their shards, ascending.
    pub(crate) fn held(&self) -> BTreeMap<Slot, Vec<ShardId>> {
        let mut held: BTreeMap<Slot, Vec<ShardId>> = BTreeMap::new();
        for view in &self.views {
            for member in &view.in_sync {
                held.entry(member.slot).or_default().push(view.shard);
            }
        }
        held
    }

    /// By shard: the slot of its primary.
    pub(crate) fn holders(&self) -> Vec<Slot> {
        self.views.iter().map(|view| view.primary.slot).collect()
    }

    fn view(&self, shard: ShardId) -> Option<&RecordedView> {
        self.views.get(shard.0 as usize)
    }

    /// The views of these shards, for the journal.
    pub(crate) fn recorded(&self, shards: &[ShardId]) -> Vec<RecordedView> {
        shards.iter().filter_map(|shard| self.view(*shard)).cloned().collect()
    }

    /// The views of these shards, for pservers. `turn`: the place of a shard in the order in which a pserver deals its copies
    /// to its data threads.
    pub(crate) fn wire(
        &self,
        shards: &[ShardId],
        turn: impl Fn(Slot, ShardId) -> usize,
        fleet: &Fleet,
    ) -> Vec<ShardView> {
        let place = |shard: ShardId, member: &Member| {
            let endpoints = &fleet.member(*member)?.endpoints;
            let endpoint = *endpoints.get(turn(member.slot, shard) % endpoints.len().max(1))?;
            let fills = &self.view(shard)?.fills;
            let fill = fills.iter().find(|fill| fill.member == *member);
            let fill = fill.map(|it| FillOrder { version: it.version, thread: it.thread });
            Some(BackupPlace { member: *member, endpoint, fill })
        };
        let view = |shard: &ShardId| {
            let view = self.view(*shard)?.clone();
            let filling: Vec<Member> = view.open_fills().map(|fill| fill.member).collect();
            let RecordedView { shard, term, version, primary, in_sync, fills: _, began_at } = view;
            let others = in_sync.iter().filter(|member| **member != primary).chain(&filling);
            let backups = others.filter_map(|member| place(shard, member)).collect();
            Some(ShardView { shard, term, version, primary, in_sync, backups, began_at })
        };
        shards.iter().filter_map(view).collect()
    }

    /// The pserver in this slot is lost: its copies do not count any more.
    pub(crate) fn lose(&mut self, slot: Slot) -> ReplicasLost {
        self.keep(|member, _| member.slot != slot)
    }

    /// Only these copies count: `is_whole` for a container and a shard. Nothing changes if a shard would have none.
    pub(crate) fn keep(&mut self, is_whole: impl Fn(Member, ShardId) -> bool) -> ReplicasLost {
        let none_left =
            |view: &&RecordedView| !view.in_sync.iter().any(|member| is_whole(*member, view.shard));
        let lost: Vec<ShardId> =
            self.views.iter().filter(none_left).map(|view| view.shard).collect();
        if !lost.is_empty() {
            return ReplicasLost::NoneLeft(lost);
        }
        self.remove(|member, shard| !is_whole(member, shard))
    }

    /// Takes copies out of the sets; each set keeps one.
    fn remove(&mut self, is_gone: impl Fn(Member, ShardId) -> bool) -> ReplicasLost {
        let mut changed = ChangedViews::default();
        let mut primaries: BTreeMap<Slot, usize> = BTreeMap::new();
        for view in &self.views {
            if !is_gone(view.primary, view.shard) {
                *primaries.entry(view.primary.slot).or_default() += 1;
            }
        }
        for view in &mut self.views {
            let before = view.in_sync.len();
            let shard = view.shard;
            let fills = view.fills.len();
            view.in_sync.retain(|member| !is_gone(*member, shard));
            view.fills.retain(|fill| !is_gone(fill.member, shard));
            if (view.in_sync.len(), view.fills.len()) == (before, fills) {
                continue;
            }
            view.version = view.version.next();
            changed.shards.push(shard);
            changed.sets += usize::from(view.in_sync.len() != before);
            if view.in_sync.contains(&view.primary) {
                continue;
            }
            // Those that the lost primary was sending end with it.
            view.fills.retain(|fill| view.in_sync.contains(&fill.member));
            // The one with the fewest primaries, so that those of a lost pserver are spread.
            let load = |member: &&Member| primaries.get(&member.slot).copied().unwrap_or_default();
            let Some(primary) =
                view.in_sync.iter().min_by_key(|member| (load(member), member.slot))
            else {
                debug_assert!(false, "each set keeps one copy");
                continue;
            };
            (view.primary, view.began_at) = (*primary, None);
            let primary = view.primary;
            view.in_sync.sort_by_key(|member| *member != primary);
            view.term = view.term.next();
            *primaries.entry(view.primary.slot).or_default() += 1;
            changed.promoted.push(shard);
        }
        // Its primaries go on with the view.
        self.hand_over.take_if(|order| order.has_any(&changed.shards));
        self.promoted += changed.promoted.len() as u64;
        self.awaited.extend(&changed.promoted);
        match changed.shards.is_empty() {
            true => ReplicasLost::Nothing,
            false => ReplicasLost::Changed(changed),
        }
    }

    /// The primary of a shard asks to leave a backup out that does not keep up, or that it cannot reach. The backup leaves the
    /// sets of all shards of this primary: it is the path between the two, or the backup, that is slow.
    pub(crate) fn leave_out(
        &mut self,
        primary: Member,
        (shard, term): (ShardId, Term),
        backup: Member,
        now: MonotonicMs,
    ) -> Option<ChangedViews> {
        let view = self.view(shard)?;
        let asks = view.primary == primary && view.term == term && backup != primary;
        if !asks || !view.in_sync.contains(&backup) {
            return None;
        }
        self.failed_paths.fails(primary, backup, now);
        let of: BTreeSet<ShardId> = self
            .views
            .iter()
            .filter(|view| view.primary == primary)
            .map(|view| view.shard)
            .collect();
        match self.remove(|member, shard| member == backup && of.contains(&shard)) {
            ReplicasLost::Changed(changed) => Some(changed),
            ReplicasLost::Nothing | ReplicasLost::NoneLeft(_) => None,
        }
    }

    /// A promoted primary reports that another copy of the set has changes which it lacks, and that it has made none: that copy
    /// is promoted instead.
    pub(crate) fn promote_instead(
        &mut self,
        primary: Member,
        (shard, term): (ShardId, Term),
        ahead: Member,
    ) -> Option<ChangedViews> {
        let view = self.views.get_mut(shard.0 as usize)?;
        let is_current = view.primary == primary && view.term == term && ahead != primary;
        if !is_current || !view.in_sync.contains(&ahead) {
            return None;
        }
        (view.primary, view.began_at) = (ahead, None);
        view.in_sync.sort_by_key(|member| *member != ahead);
        (view.term, view.version) = (view.term.next(), view.version.next());
        let in_sync = &view.in_sync;
        view.fills.retain(|fill| in_sync.contains(&fill.member));
        let shards = vec![shard];
        self.hand_over.take_if(|order| order.has_any(&shards));
        self.promoted += 1;
        self.awaited.insert(shard);
        Some(ChangedViews { promoted: shards.clone(), shards, sets: 0 })
    }

    /// A primary serves in this view. Returns whether that ends the last promotion that was waited for.
    pub(crate) fn taken(&mut self, member: Member, shard: ShardId, term: Term) -> bool {
        let current =
            self.view(shard).is_some_and(|view| (view.primary, view.term) == (member, term));
        current && self.awaited.remove(&shard) && self.awaited.is_empty()
    }

    /// Whether a shard is not served by its new primary yet.
    pub(crate) fn awaits_any(&self) -> bool {
        !self.awaited.is_empty()
    }

    /// Whether a promoted shard of this slot does not serve yet.
    pub(crate) fn awaits(&self, slot: Slot) -> bool {
        let of_slot =
            |shard: &ShardId| self.view(*shard).is_some_and(|view| view.primary.slot == slot);
        self.awaited.iter().any(of_slot)
    }
}
