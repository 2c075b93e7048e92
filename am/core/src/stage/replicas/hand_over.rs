//! Hand-over of shards by a living primary: which, and where to.
//!
//! **Rule.** Shards leave a pserver that is to serve none, since its node leaves or the cluster may take it, for the copy of the set
//! whose pserver serves the fewest. When nothing is being filled, shards also leave a pserver that serves at least two more
//! than another one, directly or along others with copies, until none does. One pserver hands over at a time, all of its shards in one decision, and an order
//! does not outlive a change of their views. A shard that is being filled stays where it is as long as that is only uneven: its
//! refill would end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use heddle_protocol::control::ShardStop;
use heddle_protocol::ids::{Member, ShardId, Slot};

use super::{ChangedViews, SettledViews};
use crate::record::RecordedView;

/// Shards that a primary was ordered to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OrderedHandOver {
    from: Member,
    cause: HandOverCause,
    shards: BTreeMap<ShardId, StoppingShard>,
}

impl OrderedHandOver {
    /// Whether one of these shards is among those of the order.
    pub(super) fn has_any(&self, shards: &[ShardId]) -> bool {
        shards.iter().any(|shard| self.shards.contains_key(shard))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StoppingShard {
    to: Member,
    stop: ShardStop,
    /// The number of its last change, once it has stopped.
    number: Option<u64>,
}

impl StoppingShard {
    fn of(view: &RecordedView, to: Member) -> Self {
        let (shard, term, version) = (view.shard, view.term, view.version);
        Self { to, stop: ShardStop { shard, term, version }, number: None }
    }
}

/// Why shards are handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandOverCause {
    /// The pserver is to serve none.
    Leaves,
    /// Another pserver serves fewer.
    Uneven,
}

/// A hand-over that all stopped shards allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HandedOver {
    pub(crate) from: Member,
    pub(crate) cause: HandOverCause,
    pub(crate) changed: ChangedViews,
}

impl SettledViews {
    /// Orders the hand-over that is wanted first. `is_there`: whether a slot can be reached; `serves`: whether it may serve
    /// shards. Returns the primary, and what it has to stop.
    pub(crate) fn order_hand_over(
        &mut self,
        is_there: impl Fn(Slot) -> bool,
        serves: impl Fn(Slot) -> bool,
    ) -> Option<(Member, Vec<ShardStop>)> {
        debug_assert!(self.hand_over.is_none(), "one at a time");
        let load = self.views.served();
        let can = |to: &Member| is_there(to.slot) && serves(to.slot);
        let mut sources: Vec<Member> = self.views.iter().map(|view| view.primary).collect();
        sources.retain(|from| is_there(from.slot));
        sources.sort_by_key(|from| (std::cmp::Reverse(load.get(&from.slot).copied()), *from));
        sources.dedup();
        let leaves = |from: &&Member| !serves(from.slot);
        let leaving = sources.iter().filter(leaves);
        let orders =
            leaving.map(|from| self.moves(*from, HandOverCause::Leaves, load.clone(), can));
        let mut order = orders.into_iter().find(|order| !order.shards.is_empty());
        if order.is_none() && self.views.iter().all(|view| view.open_fills().next().is_none()) {
            let even = sources
                .iter()
                .map(|from| self.moves(*from, HandOverCause::Uneven, load.clone(), can));
            order = even.into_iter().find(|order| !order.shards.is_empty());
            order = order.or_else(|| self.move_along_a_path(&sources, &load, can));
        }
        self.hand_over = order;
        let order = self.hand_over.as_ref()?;
        Some((order.from, order.shards.values().map(|shard| shard.stop).collect()))
    }

    /// The shards that leave a primary: all for which another copy can serve, or those of which such a copy's pserver serves at
    /// least two fewer.
    fn moves(
        &self,
        from: Member,
        cause: HandOverCause,
        mut load: BTreeMap<Slot, usize>,
        can: impl Fn(&Member) -> bool,
    ) -> OrderedHandOver {
        let mut shards = BTreeMap::new();
        for view in self.views.iter().filter(|view| view.primary == from) {
            let served = |slot: Slot| load.get(&slot).copied().unwrap_or_default();
            let others = view.in_sync.iter().filter(|it| **it != from && can(it));
            let Some(to) = others.min_by_key(|it| (served(it.slot), it.slot)) else { continue };
            if cause == HandOverCause::Uneven && served(to.slot) + 2 > served(from.slot) {
                continue;
            }
            *load.entry(to.slot).or_default() += 1;
            load.entry(from.slot).and_modify(|served| *served -= 1);
            shards.insert(view.shard, StoppingShard::of(view, *to));
        }
        OrderedHandOver { from, cause, shards }
    }

    /// No pserver serves two shards more than one that has a copy of them, but maybe two more than one that another can hand a
    /// shard to, in whose place it could then hand over. The last step of the shortest such path: the path is shorter after it.
    fn move_along_a_path(
        &self,
        sources: &[Member],
        load: &BTreeMap<Slot, usize>,
        can: impl Fn(&Member) -> bool,
    ) -> Option<OrderedHandOver> {
        let served = |slot: Slot| load.get(&slot).copied().unwrap_or_default();
        let path_from = |from: Member| {
            let (mut known, mut next) = (BTreeSet::from([from]), VecDeque::from([from]));
            while let Some(at) = next.pop_front() {
                for view in self.views.iter().filter(|view| view.primary == at) {
                    for to in view.in_sync.iter().filter(|it| can(it)) {
                        if served(to.slot) + 2 <= served(from.slot) {
                            let shards =
                                BTreeMap::from([(view.shard, StoppingShard::of(view, *to))]);
                            let cause = HandOverCause::Uneven;
                            return Some(OrderedHandOver { from: at, cause, shards });
                        }
                        if known.insert(*to) {
                            next.push_back(*to);
                        }
                    }
                }
            }
            None
        };
        sources.iter().find_map(|from| path_from(*from))
    }

    /// Whether this shard was ordered to stop.
    pub(super) fn is_stopping(&self, shard: ShardId) -> bool {
        self.hand_over.as_ref().is_some_and(|order| order.shards.contains_key(&shard))
    }

    /// The order does not hold any more: its shards go on by themselves, or by another view. Returns whether there was one.
    pub(crate) fn end_hand_over(&mut self) -> bool {
        self.hand_over.take().is_some()
    }

    /// A shard has stopped at this number. Returns the views when all shards of the order have.
    pub(crate) fn drained(
        &mut self,
        primary: Member,
        stop: ShardStop,
        number: u64,
    ) -> Option<HandedOver> {
        let order = self.hand_over.as_mut().filter(|order| order.from == primary)?;
        let shard = order.shards.get_mut(&stop.shard).filter(|shard| shard.stop == stop)?;
        shard.number = Some(number);
        if order.shards.values().any(|shard| shard.number.is_none()) {
            return None;
        }
        let OrderedHandOver { from, cause, shards } = self.hand_over.take()?;
        let mut changed = ChangedViews::default();
        for (shard, StoppingShard { to, number, stop }) in shards {
            let Some(view) = self.views.view_mut(shard) else { continue };
            debug_assert_eq!(
                (view.term, view.version),
                (stop.term, stop.version),
                "it ends with the view"
            );
            debug_assert!(view.in_sync.contains(&to), "only a copy of the set serves");
            (view.primary, view.began_at) = (to, number);
            view.in_sync.sort_by_key(|member| *member != to);
            (view.term, view.version) = (view.term.next(), view.version.next());
            // Those that the primary was sending end with it.
            let in_sync = view.in_sync.clone();
            view.fills.retain(|fill| in_sync.contains(&fill.member));
            changed.shards.push(shard);
            changed.promoted.push(shard);
        }
        self.moves.handed_over += changed.promoted.len() as u64;
        self.awaited.extend(&changed.promoted);
        Some(HandedOver { from, cause, changed })
    }
}
