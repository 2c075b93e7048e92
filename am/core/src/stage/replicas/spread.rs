//! Copies are spread evenly again: after a loss the first refills go to the survivors, and the replacement comes with none.
//!
//! **Rule.** When no shard needs a refill, a pserver that holds at least two copies fewer than another one gets a copy of a shard
//! of which that one has a backup, or with `pservers.replicas` = 0 the copy that serves. The backup is left out when the new copy
//! is in sync, and a copy that serves when it has handed over. One at a time, since it is not urgent. Each step makes the numbers
//! of copies more even, so it ends. Spares stay idle while as many pservers hold copies as before.

use std::collections::BTreeSet;

use heddle_protocol::ids::{Member, ShardId, Slot};
use heddle_protocol::mutation::Mutation;

use super::refills::RefillPlaces;
use super::{ChangedViews, SettledViews};
use crate::record::RecordedView;

impl SettledViews {
    /// Orders a refill that makes the numbers of copies more even.
    pub(crate) fn order_spread(&mut self, places: &RefillPlaces) -> ChangedViews {
        let needs_fill = |view: &RecordedView| {
            view.open_fills().next().is_some() || places.staying(view) < places.copies
        };
        if self.hand_over.is_some() || self.views.iter().any(needs_fill) {
            return ChangedViews::default();
        }
        let held = self.views.held_copies();
        let held_by = |slot: &Slot| held.get(slot).copied().unwrap_or_default();
        let mut most: Vec<Slot> = places.staying_slots().collect();
        most.sort_by_key(|slot| (std::cmp::Reverse(held_by(slot)), *slot));
        let order = most.iter().find_map(|from| {
            let of = |view: &&RecordedView| {
                let is_backup = view.in_sync.iter().any(|member| member.slot == *from);
                is_backup && (view.primary.slot != *from || places.copies == 1)
            };
            let to = |view: &RecordedView| {
                let open = places.open_without(view, &held, Some(*from));
                let is_wanted = |slot: &Slot| held_by(slot) > 0 || places.needs_spares(&held);
                let fewer = open.filter(|(slot, place)| {
                    held_by(slot) + 2 <= held_by(from)
                        && is_wanted(slot)
                        && !places.avoids(view, place)
                });
                Some((view.shard, *fewer.min_by_key(|(slot, _)| (held_by(slot), **slot))?.0))
            };
            self.views.iter().filter(of).find_map(to)
        });
        match order {
            Some((shard, slot)) => self.order_fill(shard, slot, places),
            None => ChangedViews::default(),
        }
    }

    /// Leaves a backup out of the set of a shard that has more copies than wanted on nodes that stay: that of the pserver with
    /// the most copies.
    pub(crate) fn drop_surplus(&mut self, places: &RefillPlaces) -> Option<ChangedViews> {
        let held = self.views.held_copies();
        let stays: BTreeSet<Slot> = places.staying_slots().collect();
        let surplus = |view: &&RecordedView| {
            let staying = view.in_sync.iter().filter(|member| stays.contains(&member.slot)).count();
            staying > places.copies && view.open_fills().next().is_none()
        };
        let held_by = |slot: &Slot| held.get(slot).copied().unwrap_or_default();
        let most = |view: &RecordedView| {
            let others = view.in_sync.iter().filter(|member| **member != view.primary);
            let backups = others.filter(|member| stays.contains(&member.slot));
            let most = *backups.max_by_key(|member| (held_by(&member.slot), member.slot))?;
            // The copy of the primary is in excess: it goes when it has handed over.
            let waits = places.copies == 1 && held_by(&view.primary.slot) > held_by(&most.slot);
            (!waits || Mutation::SurplusDoesNotWait.is_on()).then_some((view.shard, most))
        };
        let (shard, backup): (ShardId, Member) =
            self.views.iter().filter(surplus).find_map(most)?;
        self.remove(|member, of| (member, of) == (backup, shard)).if_any()
    }
}
