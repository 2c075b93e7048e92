//! Views of replicated shards: which copy serves, and which copies may be promoted (`pservers.replicas`).
//!
//! ```text
//!            all pservers are there          all copies are loaded: recorded
//!  Unplaced ────────────────────────▶ Placed ────────────────────────────────▶ Settled
//!     ▲                                 │                                         │
//!     └────────── a new epoch ──────────┴─────────────────────────────────────────┘
//! ```
//!
//! The **term** of a view grows when the primary changes, and only then; the **version** orders the views of an epoch. What
//! they promise, and why, is in `docs/replication.md`. All shards of a lost pserver change in one record. No process receives
//! a view before its record is durable: the journal gate holds the commands back.
//!
//! Where shards do not move, a set has one copy, and views are not sent and not recorded: the order to load and the record of
//! the epoch have its place.

mod hand_over;
mod paths;
mod refills;
mod spread;
#[cfg(test)]
mod tables;
mod view_list;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use heddle_protocol::ids::{Incarnation, Member, ShardId, Slot, Term};

pub(crate) use hand_over::{HandOverCause, HandedOver};
pub(crate) use refills::{FailedFill, RefillPlace, RefillPlaces};
pub(crate) use view_list::ViewList;

use super::shard_map::ShardMap;
use super::shard_names::shards_text;
use crate::fleet::Fleet;
use crate::record::RecordedView;
use crate::time::MonotonicMs;
use view_list::NO_VIEWS;

/// The views of the present epoch.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShardViews {
    epoch: EpochViews,
    /// In the epochs before.
    moves: Moves,
}

/// How far the views of an epoch are.
#[derive(Clone, Debug, Default)]
enum EpochViews {
    /// Pservers are missing.
    #[default]
    Unplaced,
    /// In the orders to load. No copy can be promoted.
    Placed(ViewList),
    /// All copies were in the common state, and the views are recorded.
    Settled(Box<SettledViews>),
}

/// How often shards got another primary in this attempt.
#[derive(Clone, Copy, Debug, Default)]
struct Moves {
    promoted: u64,
    handed_over: u64,
}

/// Recorded views: copies can be promoted, handed over and filled.
#[derive(Clone, Debug, Default)]
pub(crate) struct SettledViews {
    views: ViewList,
    /// Promotions whose new primary does not serve yet.
    awaited: BTreeSet<ShardId>,
    /// The hand-over that was ordered.
    hand_over: Option<hand_over::OrderedHandOver>,
    /// After a takeover: the copies that each pserver was ordered to load.
    placed: BTreeMap<Member, Vec<ShardId>>,
    /// After a takeover: the journal had the slots of the primaries alone.
    are_places: bool,
    /// Slots that were ordered to fill a copy in this epoch: they may still have it when a view does not name them any more.
    touched: BTreeSet<(Slot, ShardId)>,
    /// The shards that the last warning about missing backups named.
    warned_of: Vec<ShardId>,
    failed_paths: paths::FailedPaths,
    moves: Moves,
}

/// A shard as a primary serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServedShard {
    pub primary: Member,
    pub shard: ShardId,
    pub term: Term,
}

impl ServedShard {
    /// Whether the view has this primary in this term.
    fn is_of(self, view: &RecordedView) -> bool {
        (view.primary, view.term) == (self.primary, self.term)
    }
}

/// Shards without a copy: they have to return to the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NoCopyLeft(Vec<ShardId>);

impl fmt::Display for NoCopyLeft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no copy is left of {}", shards_text(&self.0))
    }
}

/// Views that a decision has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChangedViews {
    pub shards: Vec<ShardId>,
    /// Of `shards`: with another primary.
    pub promoted: Vec<ShardId>,
    /// How many of `shards` have another in-sync set.
    pub sets: usize,
}

impl ChangedViews {
    /// The change, if there is one.
    fn if_any(self) -> Option<Self> {
        Some(self).filter(|changed| !changed.shards.is_empty())
    }
}

impl ShardViews {
    /// A new epoch begins: no copy is in its state yet. The numbers of promotions and hand-overs stay.
    pub(crate) fn begin_epoch(&mut self) {
        let moves = Moves { promoted: self.promoted(), handed_over: self.handed_over() };
        *self = Self { epoch: EpochViews::Unplaced, moves };
    }

    /// The first views of an epoch, for the orders to load. `backups`: by shard.
    pub(crate) fn place(&mut self, map: &ShardMap, backups: &[Vec<Slot>], fleet: &Fleet) {
        let member = |slot: &Slot| fleet.holder(*slot).map(|holder| holder.member);
        let view = |((shard, primary), backups): ((ShardId, Slot), &Vec<Slot>)| {
            let in_sync: Vec<Member> =
                std::iter::once(&primary).chain(backups).filter_map(member).collect();
            let primary = *in_sync.first()?;
            Some(RecordedView { in_sync, ..RecordedView::alone(shard, primary) })
        };
        let views: Vec<RecordedView> = map.iter().zip(backups).filter_map(view).collect();
        debug_assert_eq!(views.len(), map.len(), "all pservers are there");
        self.epoch = EpochViews::Placed(ViewList(views));
    }

    /// All copies are in the common state: the views as they are to be recorded. `None` unless they were placed just before.
    pub(crate) fn settle(&mut self) -> Option<Vec<RecordedView>> {
        let EpochViews::Placed(views) = &mut self.epoch else { return None };
        let views = std::mem::take(views);
        let recorded = views.0.clone();
        let settled = SettledViews { views, ..SettledViews::default() };
        self.epoch = EpochViews::Settled(Box::new(settled));
        Some(recorded)
    }

    /// The views that an earlier attempt recorded last, of all shards. `placed`: the copies that each pserver was ordered to
    /// load, ascending.
    pub(crate) fn take_over(
        &mut self,
        views: Vec<RecordedView>,
        placed: BTreeMap<Member, Vec<ShardId>>,
    ) {
        let touched = |view: &RecordedView| {
            let shard = view.shard;
            view.fills.iter().map(move |fill| (fill.member.slot, shard)).collect::<Vec<_>>()
        };
        let touched = views.iter().flat_map(touched).collect();
        let views = ViewList(views);
        let settled = SettledViews { views, placed, touched, ..SettledViews::default() };
        self.epoch = EpochViews::Settled(Box::new(settled));
    }

    /// Takes over where the record of the epoch has all places. Which containers are there shows as they register.
    pub(crate) fn take_over_places(&mut self, map: &ShardMap) {
        let unknown = |slot| Member { slot, incarnation: Incarnation::default() };
        let views = map.iter().map(|(shard, slot)| RecordedView::alone(shard, unknown(slot)));
        self.take_over(views.collect(), BTreeMap::new());
        if let Some(settled) = self.settled_mut() {
            settled.are_places = true;
        }
    }

    /// After [`Self::take_over_places`]: this container has registered in the slot of these shards.
    pub(crate) fn is_back(&mut self, member: Member, shards: &[ShardId]) {
        let Some(settled) = self.settled_mut().filter(|views| views.are_places) else { return };
        for shard in shards {
            if let Some(view) = settled.views.view_mut(*shard) {
                *view = RecordedView::alone(*shard, member);
            }
        }
    }

    /// The views, by shard; none before they are placed.
    pub(crate) fn all(&self) -> &ViewList {
        match &self.epoch {
            EpochViews::Unplaced => &NO_VIEWS,
            EpochViews::Placed(views) => views,
            EpochViews::Settled(settled) => &settled.views,
        }
    }

    /// Whether the epoch has views: copies were placed.
    pub(crate) fn are_placed(&self) -> bool {
        !matches!(self.epoch, EpochViews::Unplaced)
    }

    /// The views, if copies can be promoted.
    pub(crate) fn settled(&self) -> Option<&SettledViews> {
        match &self.epoch {
            EpochViews::Settled(settled) => Some(settled),
            EpochViews::Unplaced | EpochViews::Placed(_) => None,
        }
    }

    pub(crate) fn settled_mut(&mut self) -> Option<&mut SettledViews> {
        match &mut self.epoch {
            EpochViews::Settled(settled) => Some(settled),
            EpochViews::Unplaced | EpochViews::Placed(_) => None,
        }
    }

    /// Whether copies can be promoted.
    pub(crate) fn are_settled(&self) -> bool {
        self.settled().is_some()
    }

    /// Promotions since the attempt began.
    pub(crate) fn promoted(&self) -> u64 {
        self.moves.promoted + self.settled().map_or(0, |views| views.moves.promoted)
    }

    /// Shards that were handed over since the attempt began.
    pub(crate) fn handed_over(&self) -> u64 {
        self.moves.handed_over + self.settled().map_or(0, |views| views.moves.handed_over)
    }

    /// Whether a hand-over was ordered and is not over.
    pub(crate) fn is_handing_over(&self) -> bool {
        self.settled().is_some_and(|views| views.hand_over.is_some())
    }

    /// Whether a promoted shard of this slot does not serve yet.
    pub(crate) fn awaits(&self, slot: Slot) -> bool {
        self.settled().is_some_and(|views| views.awaits(slot))
    }
}

impl SettledViews {
    /// The views, by shard.
    pub(crate) fn list(&self) -> &ViewList {
        &self.views
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

    /// The shards that the last warning about missing backups named.
    pub(crate) fn warned_of(&self) -> &[ShardId] {
        &self.warned_of
    }

    /// A warning names these shards, or none lacks backups any more.
    pub(crate) fn set_warned_of(&mut self, shards: Vec<ShardId>) {
        self.warned_of = shards;
    }

    /// Leaves a backup out of the set of one shard, since its copy is not equal to that of the primary.
    pub(crate) fn leave_out_copy(&mut self, shard: ShardId, slot: Slot) -> Option<ChangedViews> {
        let is_primary = self.views.view(shard)?.primary.slot == slot;
        if is_primary || !self.views.counts(slot, shard) {
            return None;
        }
        self.remove(|member, of| member.slot == slot && of == shard).if_any()
    }

    /// The pserver in this slot is lost: its copies do not count any more.
    ///
    /// # Errors
    /// Nothing changes if a shard would have no copy.
    pub(crate) fn lose(&mut self, slot: Slot) -> Result<ChangedViews, NoCopyLeft> {
        self.keep(|member, _| member.slot != slot)
    }

    /// The pserver in this slot is to go, and every shard has a copy elsewhere that serves: it leaves the sets.
    pub(crate) fn leave(&mut self, slot: Slot) -> Option<ChangedViews> {
        debug_assert!(self.views.iter().all(|view| view.primary.slot != slot), "it serves none");
        self.remove(|member, _| member.slot == slot).if_any()
    }

    /// Only these copies count: `is_whole` for a container and a shard.
    ///
    /// # Errors
    /// Nothing changes if a shard would have no copy.
    pub(crate) fn keep(
        &mut self,
        is_whole: impl Fn(Member, ShardId) -> bool,
    ) -> Result<ChangedViews, NoCopyLeft> {
        let has_none =
            |view: &&RecordedView| !view.in_sync.iter().any(|member| is_whole(*member, view.shard));
        let lost: Vec<ShardId> =
            self.views.iter().filter(has_none).map(|view| view.shard).collect();
        match lost.is_empty() {
            true => Ok(self.remove(|member, shard| !is_whole(member, shard))),
            false => Err(NoCopyLeft(lost)),
        }
    }

    /// Takes copies out of the sets; each set keeps one.
    fn remove(&mut self, is_gone: impl Fn(Member, ShardId) -> bool) -> ChangedViews {
        let mut changed = ChangedViews::default();
        let mut primaries: BTreeMap<Slot, usize> = BTreeMap::new();
        for view in self.views.iter() {
            if !is_gone(view.primary, view.shard) {
                *primaries.entry(view.primary.slot).or_default() += 1;
            }
        }
        for view in &mut self.views.0 {
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
        self.moves.promoted += changed.promoted.len() as u64;
        self.awaited.extend(&changed.promoted);
        changed
    }

    /// The primary of a shard asks to leave a backup out that does not keep up, or that it cannot reach. The backup leaves the
    /// sets of all shards of this primary: it is the path between the two, or the backup, that is slow.
    pub(crate) fn leave_out(
        &mut self,
        served: ServedShard,
        backup: Member,
        now: MonotonicMs,
    ) -> Option<ChangedViews> {
        let (view, primary) = (self.views.view(served.shard)?, served.primary);
        if !served.is_of(view) || backup == primary || !view.in_sync.contains(&backup) {
            return None;
        }
        self.failed_paths.fails(primary, backup, now);
        let of: BTreeSet<ShardId> = self
            .views
            .iter()
            .filter(|view| view.primary == primary)
            .map(|view| view.shard)
            .collect();
        self.remove(|member, shard| member == backup && of.contains(&shard)).if_any()
    }

    /// A promoted primary reports that another copy of the set has changes which it lacks, and that it has made none: that copy
    /// is promoted instead.
    pub(crate) fn promote_instead(
        &mut self,
        served: ServedShard,
        ahead: Member,
    ) -> Option<ChangedViews> {
        let view = self.views.view_mut(served.shard)?;
        if !served.is_of(view) || ahead == served.primary || !view.in_sync.contains(&ahead) {
            return None;
        }
        (view.primary, view.began_at) = (ahead, None);
        view.in_sync.sort_by_key(|member| *member != ahead);
        (view.term, view.version) = (view.term.next(), view.version.next());
        let in_sync = &view.in_sync;
        view.fills.retain(|fill| in_sync.contains(&fill.member));
        let shards = vec![served.shard];
        self.hand_over.take_if(|order| order.has_any(&shards));
        self.moves.promoted += 1;
        self.awaited.insert(served.shard);
        Some(ChangedViews { promoted: shards.clone(), shards, sets: 0 })
    }

    /// A primary serves in this view. Returns whether that ends the last promotion that was waited for.
    pub(crate) fn taken(&mut self, served: ServedShard) -> bool {
        let is_current = self.views.view(served.shard).is_some_and(|view| served.is_of(view));
        is_current && self.awaited.remove(&served.shard) && self.awaited.is_empty()
    }

    /// Whether a shard is not served by its new primary yet.
    pub(crate) fn awaits_any(&self) -> bool {
        !self.awaited.is_empty()
    }

    fn awaits(&self, slot: Slot) -> bool {
        let mut views = self.awaited.iter().filter_map(|shard| self.views.view(*shard));
        views.any(|view| view.primary.slot == slot)
    }
}
