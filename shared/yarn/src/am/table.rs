//! The ask table: a target for each ask, what we hold, and what the ResourceManager believes that we want.
//!
//! A pure state machine. **Reconciling**: the table is told how many containers an ask wants *in all*; what it asks for is
//! target − held, computed anew before each heartbeat, so nothing that arrives twice, late or never can make it drift.
//! **Absolute**: a row names how many are still wanted, and replaces the row before it; rows go out only where they
//! differ from what the ResourceManager believes, which is the last row that it processed less what it granted.
//!
//! A container id moves forward only:
//!
//! ```text
//!  (unknown) ──grant, wanted──▶ held ──completion──▶ ended
//!      │                          │ release             ▲
//!      └──grant, not wanted──▶ releasing ──completion───┘
//! ```
//!
//! One race is left, by YARN's design: the scheduler grants between heartbeats and does not know that a row which
//! replaces the count is on its way. It then owes us more than we believe. So when a response brings a grant for an ask
//! of which its request had carried a row, the row is said again; what came too much is released.

use std::collections::{BTreeMap, BTreeSet};

use super::ask::{ANY, Ask, RequestRow, RequestedPlacement, RowKey, rows};
use super::event::{AmEvent, Excess};
use crate::container::{AskId, Container, ContainerStatus, Priority};
use crate::ids::ContainerId;

/// How many ended containers are remembered to recognise repeated completions. Ids go up, so the oldest go first; at
/// some 60 bytes each this is 6 MB at most.
const ENDED_MAX: usize = 100_000;

/// One line of the table.
#[derive(Clone, Debug)]
struct AskEntry {
    ask: Ask,
    target: u32,
    held: u32,
}

impl AskEntry {
    fn outstanding(&self) -> u32 {
        self.target.saturating_sub(self.held)
    }
}

/// What goes out with one heartbeat. It is said again unchanged until an answer comes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TableChanges {
    pub(super) rows: BTreeMap<RowKey, RequestRow>,
    pub(super) releases: BTreeSet<ContainerId>,
}

impl TableChanges {
    /// The asks that rows are about.
    pub(super) fn asks(&self) -> BTreeSet<AskId> {
        self.rows.keys().map(|key| key.ask).collect()
    }
}

/// What a refused request said and what may be the reason of the refusal. It goes out one at a time.
#[derive(Clone, Debug, Default)]
pub(super) struct Suspects {
    pub(super) asks: BTreeSet<AskId>,
    pub(super) releases: BTreeSet<ContainerId>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct AskTable {
    wants: BTreeMap<AskId, AskEntry>,
    /// Rows that the ResourceManager has, with counts above 0.
    believed: BTreeMap<RowKey, RequestRow>,
    /// Asks whose rows are said again although they equal the belief.
    again: BTreeSet<AskId>,
    /// Asks that go when their last row has been cancelled.
    forgotten: BTreeSet<AskId>,
    held: BTreeMap<ContainerId, Option<AskId>>,
    /// `true`: an answered heartbeat has carried the release.
    releasing: BTreeMap<ContainerId, bool>,
    ended: BTreeSet<ContainerId>,
}

impl AskTable {
    /// From now on `target` containers of this kind are wanted in all. What is held stays held, even above the target.
    pub(super) fn want(&mut self, id: AskId, ask: Ask, target: u32) {
        let held = self.wants.get(&id).map_or(0, |want| want.held);
        self.wants.insert(id, AskEntry { ask, target, held });
    }

    /// Drops an ask as soon as the ResourceManager believes nothing of it any more.
    pub(super) fn forget(&mut self, id: AskId) {
        if let Some(want) = self.wants.get_mut(&id) {
            want.target = 0;
            self.forgotten.insert(id);
            self.drop_forgotten(id);
        }
    }

    /// (target, held) of an ask.
    pub(super) fn counts(&self, id: AskId) -> Option<(u32, u32)> {
        self.wants.get(&id).map(|want| (want.target, want.held))
    }

    /// Containers that are ours, with their asks.
    pub(super) fn held(&self) -> impl Iterator<Item = (ContainerId, Option<AskId>)> {
        self.held.iter().map(|(id, ask)| (*id, *ask))
    }

    /// Gives a container back. False when it is not ours.
    pub(super) fn release(&mut self, id: ContainerId) -> bool {
        let Some(ask) = self.held.remove(&id) else {
            return false;
        };
        self.let_go(ask);
        self.releasing.insert(id, false);
        true
    }

    /// Counts a container that belongs to no ask as one of `ask`. False when it is not ours, or has an ask.
    pub(super) fn adopt(&mut self, id: ContainerId, ask: AskId) -> bool {
        let (Some(slot @ None), Some(want)) = (self.held.get_mut(&id), self.wants.get_mut(&ask))
        else {
            return false;
        };
        *slot = Some(ask);
        want.held += 1;
        true
    }

    /// What the next heartbeat says. Of `suspects`, asks and releases of which one was refused, only one of each kind is
    /// among it.
    pub(super) fn changes(&self, suspects: &Suspects) -> TableChanges {
        let mut wanted = BTreeMap::new();
        for (id, want) in &self.wants {
            if want.outstanding() > 0 {
                wanted.extend(rows(*id, &want.ask, want.outstanding()));
            }
        }
        let mut changed = BTreeMap::new();
        for (key, row) in &wanted {
            if self.again.contains(&key.ask) || self.believed.get(key) != Some(row) {
                changed.insert(key.clone(), row.clone());
            }
        }
        for (key, row) in &self.believed {
            if !wanted.contains_key(key) {
                changed.insert(key.clone(), RequestRow { count: 0, ..row.clone() });
            }
        }
        // The rows are in the order of their asks.
        let tried =
            changed.keys().map(|key: &RowKey| key.ask).find(|ask| suspects.asks.contains(ask));
        changed.retain(|key, _| !suspects.asks.contains(&key.ask) || Some(key.ask) == tried);
        let mut releases: BTreeSet<ContainerId> =
            self.releasing.iter().filter(|(_, sent)| !**sent).map(|(id, _)| *id).collect();
        let is_suspect = |id: &ContainerId| suspects.releases.contains(id);
        let tried = releases.iter().copied().find(is_suspect);
        releases.retain(|id| !is_suspect(id) || Some(*id) == tried);
        TableChanges { rows: changed, releases }
    }

    /// Whether there is something to say.
    pub(super) fn is_settled(&self) -> bool {
        self.changes(&Suspects::default()) == TableChanges::default()
    }

    /// The ResourceManager has processed these.
    pub(super) fn processed(&mut self, changes: &TableChanges) {
        for (key, row) in &changes.rows {
            self.again.remove(&key.ask);
            if row.count == 0 {
                self.believed.remove(key);
            } else {
                self.believed.insert(key.clone(), row.clone());
            }
        }
        for ask in changes.asks() {
            self.drop_forgotten(ask);
        }
        for id in &changes.releases {
            if let Some(sent) = self.releasing.get_mut(id) {
                *sent = true;
            }
        }
    }

    /// A grant; `just_said` are the asks of which the request that it answers had rows.
    pub(super) fn granted(&mut self, container: Container, just_said: &BTreeSet<AskId>) -> AmEvent {
        let id = container.id;
        if self.held.contains_key(&id)
            || self.releasing.contains_key(&id)
            || self.ended.contains(&id)
        {
            return AmEvent::DuplicateGrant(id);
        }
        let Some(ask) = self.ask_of(&container) else {
            self.releasing.insert(id, false);
            return AmEvent::Excess { container: id, reason: Excess::Unknown };
        };
        self.believe_granted(ask, container.priority);
        if just_said.contains(&ask) {
            self.again.insert(ask);
        }
        let want = self.wants.get_mut(&ask).expect("ask_of names an ask of the table");
        if want.outstanding() == 0 {
            self.releasing.insert(id, false);
            self.cancel_again(ask);
            return AmEvent::Excess { container: id, reason: Excess::Filled };
        }
        want.held += 1;
        self.held.insert(id, Some(ask));
        AmEvent::Allocated { ask, container }
    }

    /// A container of an earlier attempt.
    pub(super) fn recovered(&mut self, container: Container) -> Option<AmEvent> {
        let id = container.id;
        if self.held.contains_key(&id)
            || self.releasing.contains_key(&id)
            || self.ended.contains(&id)
        {
            return None;
        }
        self.held.insert(id, None);
        Some(AmEvent::Recovered(container))
    }

    /// An end.
    pub(super) fn completed(&mut self, status: ContainerStatus) -> AmEvent {
        let id = status.id;
        let event = if let Some(ask) = self.held.remove(&id) {
            self.let_go(ask);
            AmEvent::Completed { ask, status }
        } else if self.releasing.remove(&id).is_some() {
            AmEvent::Released(status)
        } else if self.ended.contains(&id) {
            return AmEvent::DuplicateCompletion(status);
        } else {
            AmEvent::UnknownCompletion(status)
        };
        self.ended.insert(id);
        if self.ended.len() > ENDED_MAX {
            self.ended.pop_first();
        }
        event
    }

    /// The ResourceManager knows nothing of us any more: all is said again.
    pub(super) fn forgotten(&mut self) {
        self.believed.clear();
        self.again.clear();
        for id in std::mem::take(&mut self.forgotten) {
            self.wants.remove(&id);
        }
        for sent in self.releasing.values_mut() {
            *sent = false;
        }
    }

    /// It is not known whether the ResourceManager processed `changes`: they, and all else, are said again.
    pub(super) fn in_doubt(&mut self, changes: &TableChanges) {
        // Believing them makes rows that are no longer wanted go out as 0.
        self.processed(changes);
        self.again = self.wants.keys().copied().collect();
        for id in &changes.releases {
            if let Some(sent) = self.releasing.get_mut(id) {
                *sent = false;
            }
        }
    }

    /// Takes an ask out of play: nothing more is wanted of it. `changes` is the request that was refused because of it.
    pub(super) fn refused(&mut self, ask: AskId, changes: &TableChanges) {
        if let Some(want) = self.wants.get_mut(&ask) {
            want.target = 0;
        }
        let mut said = changes.rows.iter().filter(|(key, _)| key.ask == ask);
        if said.all(|(_, row)| row.count == 0) {
            // Not even the cancellation is taken. Saying it again and again would help nobody; grants are released.
            self.believed.retain(|key, _| key.ask != ask);
            self.again.remove(&ask);
        }
    }

    /// The ResourceManager does not take this release; it is not said again.
    pub(super) fn release_refused(&mut self, id: ContainerId) {
        if let Some(sent) = self.releasing.get_mut(&id) {
            *sent = true;
        }
    }

    fn drop_forgotten(&mut self, id: AskId) {
        let first = RowKey { ask: id, priority: Priority(i32::MIN), name: String::new() };
        let believed = self.believed.range(first..).next();
        let has_rows = believed.is_some_and(|(key, _)| key.ask == id);
        if !has_rows && self.forgotten.remove(&id) {
            self.wants.remove(&id);
            self.again.remove(&id);
        }
    }

    fn let_go(&mut self, ask: Option<AskId>) {
        if let Some(want) = ask.and_then(|ask| self.wants.get_mut(&ask)) {
            want.held -= 1;
        }
    }

    /// By its id; else, from schedulers that do not give it back, by the priority of an ask that still wants one. Never
    /// by size: what comes back may be larger.
    fn ask_of(&self, container: &Container) -> Option<AskId> {
        match container.ask {
            Some(ask) => self.wants.contains_key(&ask).then_some(ask),
            None => self
                .wants
                .iter()
                .find(|(_, want)| want.ask.priority == container.priority && want.outstanding() > 0)
                .map(|(id, _)| *id),
        }
    }

    /// The ResourceManager has counted this grant off. Which of the node and rack rows it lowered depends on where it
    /// found room, so those are said again.
    fn believe_granted(&mut self, ask: AskId, priority: Priority) {
        let key = RowKey { ask, priority, name: ANY.to_owned() };
        if matches!(self.wants[&ask].ask.placement, RequestedPlacement::Near { .. }) {
            self.again.insert(ask);
        }
        if let Some(row) = self.believed.get_mut(&key) {
            row.count -= 1;
            if row.count == 0 {
                self.believed.remove(&key);
            }
        }
    }

    /// More came than we asked for, so there may be still more to come: the ResourceManager is told a 0, or the count
    /// that is wanted now.
    fn cancel_again(&mut self, ask: AskId) {
        let ask_rows = rows(ask, &self.wants[&ask].ask, 1);
        for (key, row) in ask_rows {
            self.believed.entry(key).or_insert(row);
        }
        // Should one be wanted by then, the row must not pass for said.
        self.again.insert(ask);
    }
}
