//! Shards that go back alone (`pservers.recovery = "local"`), and the updates that are lost with them.
//!
//! A shard is lost from the loss of its pserver until all shards are loaded. A further loss meanwhile adds to these shards,
//! and all of them are loaded again in the next epoch. This is possible while the other shards have the state of training;
//! a rollback of all shards that is not over must be completed by a rollback of all.

use std::collections::{BTreeMap, BTreeSet};

use heddle_protocol::control::ShardState;
use heddle_protocol::ids::{PhaseNo, ShardId, Step};

use crate::work::queue::QueueProgress;

/// Updates that each shard has lost; shards without a loss are left out.
pub(crate) type LostByShard = BTreeMap<ShardId, u64>;

/// A lost shard as it was loaded from its file.
#[derive(Clone, Debug)]
pub(crate) struct LoadedState {
    /// The phase of the file.
    pub phase: PhaseNo,
    /// How far the tasks of this phase are in it.
    pub positions: QueueProgress,
    /// Steps of training in it, of all phases together.
    pub step: Step,
}

/// The present local recovery, and the losses of those before.
#[derive(Clone, Debug, Default)]
pub(crate) struct LocalLosses {
    /// The shards that wait for their state.
    shards: BTreeSet<ShardId>,
    /// All other shards have the state of training.
    others_are_whole: bool,
    lost: LostByShard,
    /// Updates that each shard had lost before the base, while shards go back to it.
    of_base: Option<LostByShard>,
    /// Lost shards that are loaded.
    loaded: BTreeMap<ShardId, LoadedState>,
    /// The attempt before this one has ended during a local recovery, without a record of its losses.
    are_unknown: bool,
}

impl LocalLosses {
    /// The pserver of these shards is lost.
    pub(crate) fn lose(&mut self, shards: &[ShardId]) {
        self.shards.extend(shards);
    }

    /// The shards that go back, if that is enough.
    pub(crate) fn alone(&self) -> Option<Vec<ShardId>> {
        let alone = self.others_are_whole && !self.shards.is_empty();
        alone.then(|| self.shards.iter().copied().collect())
    }

    /// The shards go back to a base, before which each shard had lost `of_base`.
    pub(crate) fn open(&mut self, of_base: LostByShard) {
        self.of_base = Some(of_base);
        self.loaded.clear();
    }

    /// Shards as they were loaded.
    pub(crate) fn loaded(&mut self, states: &[ShardState]) {
        for state in states {
            let mut positions = QueueProgress::default();
            state.done.iter().for_each(|task| positions.finished(task));
            state.tasks.iter().for_each(|at| positions.reached(at.task, at.step));
            let (phase, step) = (state.phase, state.step);
            self.loaded.insert(state.shard, LoadedState { phase, positions, step });
        }
    }

    /// A shard as it was loaded, if that was reported.
    pub(crate) fn loaded_state(&self, shard: ShardId) -> Option<&LoadedState> {
        self.loaded.get(&shard)
    }

    /// What each shard has lost when the lost ones are back. `steps` of each of these: what it lacks since the base. A shard that
    /// went back to it before loses only what came since then. Also the number of updates that this recovery loses. Nothing
    /// if no shard goes back alone.
    pub(crate) fn after(&self, steps: impl Fn(ShardId) -> u64) -> Option<(u64, LostByShard)> {
        let of_base = self.of_base.as_ref()?;
        let mut after = self.lost.clone();
        for shard in &self.shards {
            let before = of_base.get(shard).copied().unwrap_or_default();
            after.insert(*shard, before.saturating_add(steps(*shard)));
        }
        after.retain(|_, updates| *updates > 0);
        Some((sum(&after).saturating_sub(sum(&self.lost)), after))
    }

    /// All shards go back to a checkpoint that has lost these updates.
    pub(crate) fn all_go_back(&mut self, lost: LostByShard) {
        *self = Self { lost, ..Self::default() };
    }

    /// All shards are in one state of training; `after`: what each has lost then, if some went back alone.
    pub(crate) fn all_are_whole(&mut self, after: Option<LostByShard>) {
        let lost = after.unwrap_or_else(|| std::mem::take(&mut self.lost));
        *self = Self { others_are_whole: true, lost, ..Self::default() };
    }

    /// What an earlier attempt has recorded. `are_unknown`: it has ended during a local recovery.
    pub(crate) fn take_over(&mut self, lost: LostByShard, are_unknown: bool) {
        (self.lost, self.are_unknown) = (lost, are_unknown);
    }

    /// Whether only a rollback of all shards leads to a state whose losses are known.
    pub(crate) fn are_unknown(&self) -> bool {
        self.are_unknown
    }

    /// Updates that each shard has lost.
    pub(crate) fn lost(&self) -> &LostByShard {
        &self.lost
    }

    /// Updates that the job has lost.
    pub(crate) fn total(&self) -> u64 {
        sum(&self.lost)
    }
}

fn sum(lost: &LostByShard) -> u64 {
    lost.values().fold(0, |sum, updates| sum.saturating_add(*updates))
}
