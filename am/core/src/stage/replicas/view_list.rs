//! The views of all shards of a job, and what can be read from them.

use std::collections::{BTreeMap, BTreeSet};

use heddle_protocol::control::{BackupPlace, FillOrder, ShardView};
use heddle_protocol::ids::{Member, ShardId, Slot};

use crate::fleet::Fleet;
use crate::record::RecordedView;

/// The views, by shard.
#[derive(Clone, Debug, Default)]
pub(crate) struct ViewList(pub(super) Vec<RecordedView>);

/// No view.
pub(super) static NO_VIEWS: ViewList = ViewList(Vec::new());

impl ViewList {
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, RecordedView> {
        self.0.iter()
    }

    pub(crate) fn view(&self, shard: ShardId) -> Option<&RecordedView> {
        self.0.get(shard.0 as usize)
    }

    pub(super) fn view_mut(&mut self, shard: ShardId) -> Option<&mut RecordedView> {
        self.0.get_mut(shard.0 as usize)
    }

    /// Whether the slot holds a copy of the shard that counts.
    pub(crate) fn counts(&self, slot: Slot, shard: ShardId) -> bool {
        self.view(shard).is_some_and(|view| view.in_sync.iter().any(|member| member.slot == slot))
    }

    /// Whether a view names a copy in this slot.
    pub(crate) fn names(&self, slot: Slot) -> bool {
        self.iter().any(|view| view.members().any(|member| member.slot == slot))
    }

    /// The shards with fewer copies in their set than `copies`, ascending.
    pub(crate) fn lacking(&self, copies: usize) -> Vec<ShardId> {
        self.iter().filter(|view| view.in_sync.len() < copies).map(|view| view.shard).collect()
    }

    /// By shard: the backups that save their copy in a checkpoint with `files` files of each shard.
    pub(crate) fn savers(&self, files: u32) -> BTreeMap<ShardId, BTreeSet<Slot>> {
        let mut savers = BTreeMap::new();
        for view in self.iter().filter(|_| files > 1) {
            let others = view.in_sync.iter().filter(|member| **member != view.primary);
            let backups: BTreeSet<Slot> =
                others.map(|member| member.slot).take(files as usize - 1).collect();
            if !backups.is_empty() {
                savers.insert(view.shard, backups);
            }
        }
        savers
    }

    /// The slots that hold a copy which may be promoted, or serve, with their shards, ascending.
    pub(crate) fn held(&self) -> BTreeMap<Slot, Vec<ShardId>> {
        let mut held: BTreeMap<Slot, Vec<ShardId>> = BTreeMap::new();
        for view in self.iter() {
            for member in &view.in_sync {
                held.entry(member.slot).or_default().push(view.shard);
            }
        }
        held
    }

    /// By slot: copies that it holds or is getting.
    pub(super) fn held_copies(&self) -> BTreeMap<Slot, usize> {
        let mut held = BTreeMap::new();
        for member in self.iter().flat_map(RecordedView::members) {
            *held.entry(member.slot).or_default() += 1;
        }
        held
    }

    /// By slot: how many shards are served there.
    pub(crate) fn served(&self) -> BTreeMap<Slot, usize> {
        let mut served = BTreeMap::new();
        for view in self.iter() {
            *served.entry(view.primary.slot).or_default() += 1;
        }
        served
    }

    /// By shard: the slot of its primary.
    pub(crate) fn holders(&self) -> Vec<Slot> {
        self.iter().map(|view| view.primary.slot).collect()
    }

    /// The data threads of copies that were brought by a refill, or are being.
    pub(crate) fn filled_threads(&self) -> BTreeMap<(Slot, ShardId), u32> {
        let fills = self.iter().flat_map(|view| view.fills.iter().map(|fill| (view.shard, fill)));
        fills.map(|(shard, fill)| ((fill.member.slot, shard), fill.thread)).collect()
    }

    /// Whether the slot can be emptied at no cost: it serves no shard, and each of its copies has `copies` others, as far as
    /// they can be had, and at least one. `stays`: whether a slot keeps its copies; `can_fill`: whether another copy of a
    /// shard can be filled.
    pub(crate) fn is_dispensable(
        &self,
        slot: Slot,
        copies: usize,
        stays: impl Fn(Slot) -> bool,
        can_fill: impl Fn(&RecordedView) -> bool,
    ) -> bool {
        self.iter().filter(|view| view.in_sync.iter().any(|it| it.slot == slot)).all(|view| {
            let others = view.in_sync.iter().filter(|it| it.slot != slot && stays(it.slot)).count();
            view.primary.slot != slot && others > 0 && (others >= copies || !can_fill(view))
        })
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
            let fill = fill.map(|fill| FillOrder { version: fill.version, thread: fill.thread });
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
}
