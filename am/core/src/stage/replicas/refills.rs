//! Which copies are to be filled: of which shard, where, and on which data thread.
//!
//! **Rule.** A shard with fewer copies than wanted gets one on another host than those that it has, at the pserver that holds the
//! fewest, if it has room. That is a spare, if there is one, until as many pservers hold copies as before the loss; then the
//! spares stay idle. One refill at a time on a data thread, at both ends: a refill takes time from the pushes of its
//! shard's thread, and two would take twice as much. Refills that wait for a thread are ordered when it is free.
//!
//! A pserver that the primary cannot reach, or that takes nothing of the copy, gets none while another one can.

use std::collections::{BTreeMap, BTreeSet};

use heddle_protocol::ids::{Member, ShardId, Slot, ViewVersion};

use super::{ChangedViews, ServedShard, SettledViews, ViewList};
use crate::record::{RecordedFill, RecordedView};
use crate::time::MonotonicMs;

/// What a decision about refills depends on.
pub(crate) struct RefillPlaces {
    /// By slot: the pservers that can take copies.
    pub(crate) pservers: BTreeMap<Slot, RefillPlace>,
    /// Wanted copies of each shard, the primary included.
    pub(crate) copies: usize,
    /// Pservers that hold copies where none is lost: the others are spares.
    pub(crate) in_use: usize,
    /// By shard: the data thread of its primary.
    pub(crate) senders: Vec<(Slot, usize)>,
    /// Paths that have failed, each from a primary to a backup.
    pub(crate) avoided: BTreeSet<(Member, Member)>,
}

/// What becomes of a refill of which the receiver takes nothing.
pub(crate) enum FailedFill {
    /// Another pserver can get the copy.
    Ends(ChangedViews),
    /// There is no other: it is tried again and again.
    GoesOn,
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

impl RefillPlaces {
    /// Whether the path from the primary of a shard to this pserver has failed.
    pub(super) fn avoids(&self, view: &RecordedView, place: &RefillPlace) -> bool {
        self.avoided.contains(&(view.primary, place.member))
    }

    /// Copies that a shard has or is getting, but those on nodes that leave.
    pub(super) fn staying(&self, view: &RecordedView) -> usize {
        let leaves = |slot| self.pservers.get(&slot).is_some_and(|place| !place.stays);
        view.members().filter(|member| !leaves(member.slot)).count()
    }

    /// The data thread that gets a copy of this shard.
    fn thread(&self, shard: ShardId, threads: usize) -> usize {
        let spread = self.pservers.len().max(1) as u32;
        (shard.0 / spread) as usize % threads.max(1)
    }

    /// Pservers whose nodes stay.
    pub(super) fn staying_slots(&self) -> impl Iterator<Item = Slot> + '_ {
        self.pservers.iter().filter(|(_, place)| place.stays).map(|(slot, _)| *slot)
    }

    /// Whether fewer pservers hold copies than the job has without its spares.
    pub(super) fn needs_spares(&self, held: &BTreeMap<Slot, usize>) -> bool {
        let held_by = |slot: &Slot| held.get(slot).copied().unwrap_or_default();
        self.pservers.keys().filter(|slot| held_by(slot) > 0).count() < self.in_use
    }

    /// Whether a shard of these views is getting another copy, or can get one.
    pub(crate) fn can_fill(&self, views: &ViewList, view: &RecordedView) -> bool {
        let held = views.held_copies();
        view.open_fills().next().is_some() || self.open(view, &held).next().is_some()
    }

    /// Where another copy of a shard can be. `held`: copies by slot.
    fn open<'a>(
        &'a self,
        view: &RecordedView,
        held: &'a BTreeMap<Slot, usize>,
    ) -> impl Iterator<Item = (&'a Slot, &'a RefillPlace)> + use<'a> {
        self.open_without(view, held, None)
    }

    /// Where another copy could be if the one in this slot were gone.
    pub(super) fn open_without<'a>(
        &'a self,
        view: &RecordedView,
        held: &'a BTreeMap<Slot, usize>,
        without: Option<Slot>,
    ) -> impl Iterator<Item = (&'a Slot, &'a RefillPlace)> + use<'a> {
        let others = view.members().filter(|member| Some(member.slot) != without);
        let of = others.filter_map(|member| self.pservers.get(&member.slot));
        let of = of.filter(|place| place.stays);
        let hosts: BTreeSet<String> = of.map(|place| place.host.clone()).collect();
        let slots: BTreeSet<Slot> = view.members().map(|member| member.slot).collect();
        let held_by = |slot: &Slot| held.get(slot).copied().unwrap_or_default();
        let fits = move |slot: &Slot, place: &RefillPlace| {
            place.stays
                && !slots.contains(slot)
                && !hosts.contains(&place.host)
                && held_by(slot) < place.room
        };
        let mut in_use = self.pservers.iter().filter(|(slot, _)| held_by(slot) > 0);
        let spares_stay = !self.needs_spares(held) && in_use.any(|(slot, place)| fits(slot, place));
        let can = move |(slot, place): &(&Slot, &RefillPlace)| {
            fits(slot, place) && (held_by(slot) > 0 || !spares_stay)
        };
        self.pservers.iter().filter(can)
    }
}

/// Orders a refill of the shard at this pserver.
fn fill(view: &mut RecordedView, place: &RefillPlace, thread: usize) {
    let version = view.version.next();
    // One that it had before, and lost, is of an earlier order.
    view.fills.retain(|old| old.member != place.member);
    view.fills.push(RecordedFill { member: place.member, thread: thread as u32, version });
    view.version = version;
}

impl SettledViews {
    /// Orders the refills that can begin now. Copies on nodes that leave do not count.
    pub(crate) fn order_fills(&mut self, places: &RefillPlaces) -> ChangedViews {
        let mut held: BTreeMap<Slot, usize> = BTreeMap::new();
        let (mut sending, mut receiving) = (BTreeSet::new(), BTreeSet::new());
        for (view, sender) in self.views.iter().zip(&places.senders) {
            for member in view.members() {
                *held.entry(member.slot).or_default() += 1;
            }
            for fill in view.open_fills() {
                sending.insert(*sender);
                receiving.insert((fill.member.slot, fill.thread as usize));
            }
        }
        let mut changed = ChangedViews::default();
        let stopping: BTreeSet<ShardId> =
            self.views.iter().map(|it| it.shard).filter(|it| self.is_stopping(*it)).collect();
        for (view, sender) in self.views.0.iter_mut().zip(&places.senders) {
            let is_busy = sending.contains(sender) || stopping.contains(&view.shard);
            if places.staying(view) >= places.copies || is_busy {
                continue;
            }
            let thread = |threads| places.thread(view.shard, threads);
            let held_by = |slot: &Slot| held.get(slot).copied().unwrap_or_default();
            let is_free = |(slot, place): &(&Slot, &RefillPlace)| {
                !receiving.contains(&(**slot, thread(place.threads)))
            };
            let open = places.open(view, &held).filter(is_free);
            let fewest = open
                .min_by_key(|(slot, place)| (places.avoids(view, place), held_by(slot), **slot));
            let Some((slot, place)) = fewest.map(|(slot, place)| (*slot, place)) else {
                continue;
            };
            let thread = thread(place.threads);
            fill(view, place, thread);
            *held.entry(slot).or_default() += 1;
            sending.insert(*sender);
            receiving.insert((slot, thread));
            self.touched.insert((slot, view.shard));
            changed.shards.push(view.shard);
        }
        changed
    }

    /// Orders the refill of a shard in this slot.
    pub(super) fn order_fill(
        &mut self,
        shard: ShardId,
        slot: Slot,
        places: &RefillPlaces,
    ) -> ChangedViews {
        let view = self.views.view_mut(shard);
        let Some((view, place)) = view.zip(places.pservers.get(&slot)) else {
            return ChangedViews::default();
        };
        fill(view, place, places.thread(shard, place.threads));
        self.touched.insert((slot, shard));
        ChangedViews { shards: vec![shard], ..ChangedViews::default() }
    }

    /// A primary reports that the receiver of a refill takes nothing. The refill ends if another pserver can get the copy; otherwise
    /// it goes on, and the path counts as failed.
    pub(crate) fn fill_fails(
        &mut self,
        served: ServedShard,
        receiver: Member,
        now: MonotonicMs,
        places: &RefillPlaces,
    ) -> Option<FailedFill> {
        let view = self.views.view(served.shard)?;
        if !served.is_of(view) || !view.open_fills().any(|fill| fill.member == receiver) {
            return None;
        }
        let held = self.views.held_copies();
        let mut others = places.open_without(view, &held, Some(receiver.slot));
        let has_other =
            others.any(|(_, place)| place.member != receiver && !places.avoids(view, place));
        self.failed_paths.fails(served.primary, receiver, now);
        if !has_other {
            return Some(FailedFill::GoesOn);
        }
        let changed = self.remove(|member, of| member == receiver && of == served.shard);
        changed.if_any().map(FailedFill::Ends)
    }

    /// The paths that have failed, each from a primary to a backup.
    pub(crate) fn avoided_paths(&self, now: MonotonicMs) -> BTreeSet<(Member, Member)> {
        self.failed_paths.avoided(now)
    }

    /// A primary reports that a copy has everything. Returns the changed view, unless another one holds by now.
    pub(crate) fn filled(
        &mut self,
        served: ServedShard,
        backup: Member,
        order: ViewVersion,
    ) -> Option<ChangedViews> {
        let view = self.views.view_mut(served.shard)?;
        let is_open = view.open_fills().any(|fill| (fill.member, fill.version) == (backup, order));
        if !served.is_of(view) || !is_open {
            return None;
        }
        view.in_sync.push(backup);
        view.version = view.version.next();
        self.failed_paths.works(served.primary, backup);
        // Its primary goes on with the view.
        self.hand_over.take_if(|order| order.has_any(&[served.shard]));
        Some(ChangedViews { shards: vec![served.shard], promoted: Vec::new(), sets: 1 })
    }

    /// Whether the slot was ordered to fill a copy of the shard in this epoch.
    pub(crate) fn was_filled(&self, slot: Slot, shard: ShardId) -> bool {
        self.touched.contains(&(slot, shard))
    }
}
