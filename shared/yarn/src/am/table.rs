//! The ask table: the target of each ask, the held containers, and the requests that the ResourceManager has.
//!
//! A pure state machine. **Reconciling**: the caller sets the number of containers of an ask *in all*. The table requests
//! target − held and computes it before each heartbeat, so repeated, late or lost messages cannot make it drift.
//! **Absolute**: a row has the number of outstanding containers and replaces the row before it. The table sends a row only
//! if it differs from the ResourceManager's, which is the last processed row minus the grants since.
//!
//! A container id moves forward only:
//!
//! ```text
//!  (unknown) ──grant, wanted──▶ held ──completion──▶ ended
//!      │                          │ release             ▲
//!      └──grant, not wanted──▶ releasing ──completion───┘
//! ```
//!
//! YARN's design leaves one race: the scheduler may grant a container while a row that replaces the count is in flight.
//! Its count is then higher than this table assumes. So if a response has a grant for an ask, and its request had a row of
//! that ask, the table sends the row again. Surplus containers are released.

use std::collections::{BTreeMap, BTreeSet};

use super::ask::{ANY, Ask, RequestRow, RequestedPlacement, RowKey, rows};
use super::event::{AmEvent, Excess};
use crate::container::{AskId, Container, ContainerStatus, Priority};
use crate::ids::ContainerId;

/// Ended containers to keep, to recognise repeated completions. Ids increase, so the oldest are dropped first. At some 60
/// bytes each this is 6 MB at most.
const ENDED_MAX: usize = 100_000;

/// One ask of the table.
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

/// The changes in one heartbeat. They are sent unchanged until a response arrives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TableChanges {
    pub(super) rows: BTreeMap<RowKey, RequestRow>,
    pub(super) releases: BTreeSet<ContainerId>,
}

impl TableChanges {
    /// The asks of the rows.
    pub(super) fn asks(&self) -> BTreeSet<AskId> {
        self.rows.keys().map(|key| key.ask).collect()
    }
}

/// Asks and releases of a refused request that may have caused the refusal. They are sent one at a time.
#[derive(Clone, Debug, Default)]
pub(super) struct Suspects {
    pub(super) asks: BTreeSet<AskId>,
    pub(super) releases: BTreeSet<ContainerId>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct AskTable {
    wants: BTreeMap<AskId, AskEntry>,
    /// Rows of the ResourceManager with counts above 0.
    believed: BTreeMap<RowKey, RequestRow>,
    /// Asks whose rows are sent again although they equal the ResourceManager's.
    again: BTreeSet<AskId>,
    /// Asks to remove when their last row is cancelled.
    forgotten: BTreeSet<AskId>,
    held: BTreeMap<ContainerId, Option<AskId>>,
    /// `true` if a processed heartbeat had the release.
    releasing: BTreeMap<ContainerId, bool>,
    ended: BTreeSet<ContainerId>,
}

impl AskTable {
    /// Sets the target of an ask. Held containers stay held, even above the target.
    pub(super) fn want(&mut self, id: AskId, ask: Ask, target: u32) {
        let held = self.wants.get(&id).map_or(0, |want| want.held);
        self.wants.insert(id, AskEntry { ask, target, held });
    }

    /// Removes an ask as soon as the ResourceManager has no rows of it.
    pub(super) fn forget(&mut self, id: AskId) {
        if let Some(want) = self.wants.get_mut(&id) {
            want.target = 0;
            self.forgotten.insert(id);
            self.drop_forgotten(id);
        }
    }

    /// Target and number of held containers of an ask.
    pub(super) fn counts(&self, id: AskId) -> Option<(u32, u32)> {
        self.wants.get(&id).map(|want| (want.target, want.held))
    }

    /// Whether a target is above the number of held containers.
    pub(super) fn is_waiting(&self) -> bool {
        self.wants.values().any(|entry| entry.outstanding() > 0)
    }

    /// Held containers with their asks.
    pub(super) fn held(&self) -> impl Iterator<Item = (ContainerId, Option<AskId>)> {
        self.held.iter().map(|(id, ask)| (*id, *ask))
    }

    /// Releases a container. Returns false if it is not held.
    pub(super) fn release(&mut self, id: ContainerId) -> bool {
        let Some(ask) = self.held.remove(&id) else {
            return false;
        };
        self.uncount(ask);
        self.releasing.insert(id, false);
        true
    }

    /// Assigns a container without an ask to `ask`. Returns false if it is not held or has an ask.
    pub(super) fn adopt(&mut self, id: ContainerId, ask: AskId) -> bool {
        let (Some(slot @ None), Some(want)) = (self.held.get_mut(&id), self.wants.get_mut(&ask))
        else {
            return false;
        };
        *slot = Some(ask);
        want.held += 1;
        true
    }

    /// The changes for the next heartbeat, with at most one ask and one release of `suspects`.
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
        // Rows are sorted by ask.
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

    /// Whether there are no changes to send.
    pub(super) fn is_settled(&self) -> bool {
        self.changes(&Suspects::default()) == TableChanges::default()
    }

    /// The ResourceManager has processed the changes.
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

    /// Handles a grant; `just_sent` are the asks with rows in the answered request.
    pub(super) fn granted(&mut self, container: Container, just_sent: &BTreeSet<AskId>) -> AmEvent {
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
        if just_sent.contains(&ask) {
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

    /// Handles a container of an earlier attempt.
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

    /// Handles a completion.
    pub(super) fn completed(&mut self, status: ContainerStatus) -> AmEvent {
        let id = status.id;
        let event = if let Some(ask) = self.held.remove(&id) {
            self.uncount(ask);
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

    /// The ResourceManager has lost the attempt. All rows and releases are sent again.
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

    /// It is unknown whether the ResourceManager processed `changes`. All rows and releases are sent again.
    pub(super) fn in_doubt(&mut self, changes: &TableChanges) {
        // Assuming them processed sends rows that are no longer wanted as 0.
        self.processed(changes);
        self.again = self.wants.keys().copied().collect();
        for id in &changes.releases {
            if let Some(sent) = self.releasing.get_mut(id) {
                *sent = false;
            }
        }
    }

    /// Sets the target of a refused ask to 0. `changes` is the refused request.
    pub(super) fn refused(&mut self, ask: AskId, changes: &TableChanges) {
        if let Some(want) = self.wants.get_mut(&ask) {
            want.target = 0;
        }
        let mut rows_of_ask = changes.rows.iter().filter(|(key, _)| key.ask == ask);
        if rows_of_ask.all(|(_, row)| row.count == 0) {
            // Even the cancellation is refused, so it is not repeated. Later grants are released.
            self.believed.retain(|key, _| key.ask != ask);
            self.again.remove(&ask);
        }
    }

    /// The ResourceManager refuses the release. It is not sent again.
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

    fn uncount(&mut self, ask: Option<AskId>) {
        if let Some(want) = ask.and_then(|ask| self.wants.get_mut(&ask)) {
            want.held -= 1;
        }
    }

    /// The ask of a grant: by its id, else by the priority of an unfilled ask, for schedulers that do not return the id.
    /// Never by size, because a grant may be larger than its ask.
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

    /// The ResourceManager has lowered its count by this grant. Which node and rack rows it lowered depends on the node, so
    /// those rows are sent again.
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

    /// A surplus grant shows that the ResourceManager's count is too high. The rows are sent again with 0 or the present
    /// count.
    fn cancel_again(&mut self, ask: AskId) {
        let ask_rows = rows(ask, &self.wants[&ask].ask, 1);
        for (key, row) in ask_rows {
            self.believed.entry(key).or_insert(row);
        }
        // If a container is wanted by then, its row must not count as sent.
        self.again.insert(ask);
    }
}
