//! Which copies are to be filled: of which shard, where, and on which data thread.
//!
//! **Rule.** A shard with fewer copies than wanted gets one on another host than those that it has, at the pserver that holds the
//! fewest, if it has room. One refill at a time on a data thread, at both ends: a refill takes time from the pushes of its
//! shard's thread, and two would take twice as much. Refills that wait for a thread are ordered when it is free.

use std::collections::{BTreeMap, BTreeSet};

use heddle_protocol::ids::{Member, ShardId, Slot, Term, ViewVersion};

use super::{ChangedViews, ShardViews};
use crate::record::{RecordedFill, RecordedView};

/// What a decision about refills depends on.
pub(crate) struct RefillPlaces {
    /// By slot: the pservers that can take copies.
    pub(crate) pservers: BTreeMap<Slot, RefillPlace>,
    /// Wanted copies of each shard, the primary included.
    pub(crate) copies: usize,
    /// By shard: the data thread of its primary.
    pub(crate) senders: Vec<(Slot, usize)>,
}

/// A pserver that can take copies.
pub(crate) struct RefillPlace {
    pub(crate) member: Member,
    pub(crate) host: String,
    pub(crate) threads: usize,
    /// Copies that fit into its memory.
    pub(crate) room: usize,
    /// Whether it is to get new copies: its node does not leave.
    pub(crate) stays: bool,
}

/// The copies that a shard has or is getting.
fn members(view: &RecordedView) -> impl Iterator<Item = Member> + '_ {
    view.in_sync.iter().copied().chain(view.open_fills().map(|fill| fill.member))
}

impl ShardViews {
    /// Orders the refills that can begin now.
    pub(crate) fn order_fills(&mut self, places: &RefillPlaces) -> ChangedViews {
        let mut held: BTreeMap<Slot, usize> = BTreeMap::new();
        let (mut sending, mut receiving) = (BTreeSet::new(), BTreeSet::new());
        for (view, sender) in self.views.iter().zip(&places.senders) {
            for member in members(view) {
                *held.entry(member.slot).or_default() += 1;
            }
            for fill in view.open_fills() {
                sending.insert(*sender);
                receiving.insert((fill.member.slot, fill.thread as usize));
            }
        }
        let mut changed = ChangedViews::default();
        let spread = places.pservers.len().max(1) as u32;
        for (view, sender) in self.views.iter_mut().zip(&places.senders) {
            if members(view).count() >= places.copies || sending.contains(sender) {
                continue;
            }
            let of = members(view).filter_map(|member| places.pservers.get(&member.slot));
            let hosts: BTreeSet<&str> = of.map(|place| place.host.as_str()).collect();
            let thread = |threads: usize| (view.shard.0 / spread) as usize % threads.max(1);
            let held_by = |slot: &Slot| held.get(slot).copied().unwrap_or_default();
            let can = |(slot, place): &(&Slot, &RefillPlace)| {
                place.stays
                    && !hosts.contains(place.host.as_str())
                    && held_by(slot) < place.room
                    && !receiving.contains(&(**slot, thread(place.threads)))
            };
            let open = places.pservers.iter().filter(can);
            let Some((slot, place)) = open.min_by_key(|(slot, _)| (held_by(slot), **slot)) else {
                continue;
            };
            let thread = thread(place.threads);
            let version = view.version.next();
            // One that it had before, and lost, is of an earlier order.
            view.fills.retain(|old| old.member != place.member);
            view.fills.push(RecordedFill { member: place.member, thread: thread as u32, version });
            view.version = version;
            *held.entry(*slot).or_default() += 1;
            sending.insert(*sender);
            receiving.insert((*slot, thread));
            self.touched.insert((*slot, view.shard));
            changed.shards.push(view.shard);
        }
        changed
    }

    /// A primary reports that a copy has everything. Returns the changed view, unless another one holds by now.
    pub(crate) fn filled(
        &mut self,
        primary: Member,
        (shard, term): (ShardId, Term),
        (member, order): (Member, ViewVersion),
    ) -> Option<ChangedViews> {
        let view = self.views.get_mut(shard.0 as usize)?;
        let is_current = view.primary == primary && view.term == term;
        let is_open = view.open_fills().any(|fill| (fill.member, fill.version) == (member, order));
        if !is_current || !is_open {
            return None;
        }
        view.in_sync.push(member);
        view.version = view.version.next();
        Some(ChangedViews { shards: vec![shard], promoted: Vec::new(), sets: 1 })
    }

    /// The data threads of copies that were brought by a refill, or are being.
    pub(crate) fn filled_threads(&self) -> BTreeMap<(Slot, ShardId), u32> {
        let fills = self.views.iter().flat_map(|view| view.fills.iter().map(|it| (view.shard, it)));
        fills.map(|(shard, fill)| ((fill.member.slot, shard), fill.thread)).collect()
    }

    /// Whether the slot was ordered to fill a copy of the shard in this epoch.
    pub(crate) fn was_filled(&self, slot: Slot, shard: ShardId) -> bool {
        self.touched.contains(&(slot, shard))
    }

    /// Whether a view names a copy in this slot.
    pub(crate) fn names(&self, slot: Slot) -> bool {
        self.views.iter().any(|view| members(view).any(|member| member.slot == slot))
    }
}
