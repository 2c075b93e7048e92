//! Local recovery (`pservers.recovery = "local"`): lost shards alone go back to the last checkpoint.
//!
//! 1. One record has the epoch, the places of the shards and the shards that go back.
//! 2. The other pservers enter the epoch with the state that they have: frames of the lost process, which may live, are
//!    refused. The lost shards are loaded.
//! 3. A second record has the number of updates lost. Trainers get their tasks again, at the first steps that were not
//!    acknowledged by every shard. The lost shards take nothing before these steps, so nothing is applied twice, and what they
//!    lack is known. The other shards refuse what they have.
//!
//! **The number** is exact: for each lost shard, the steps between those in its file and those with which tasks go on. (The
//! positions of the checkpoint are those that trainers knew to be applied; its files may have more.) A step is one update of
//! each shard, also where it has no row there.
//!
//! **Where it is unknown, all shards go back.** The steps of a finished task are known from its trainer, from the checkpoint,
//! or from an earlier pass. A new attempt lacks those of tasks that finished first between the last checkpoint and the end of
//! the attempt before it; it takes a checkpoint at once, after which they do not matter. Nor is it known how much of a task
//! was applied that was set aside since the checkpoint. An attempt that ends between the two records leaves no number. The
//! alternative, a number that may be too low, would hide work that is missing.
//!
//! **Before the data are measured, all shards go back** (columns, labels, first centres): an update that is lost there makes a
//! model that looks right and is not. So it is until the checkpoint behind these phases is committed.
//!
//! The lost shards wait for a spare or a container. If none comes within `pservers.replacement`, survivors take them over as
//! in every job, which is a rollback of all shards. The loss of shards during a rollback of all is part of it.

use heddle_protocol::control::LostShards;
use heddle_protocol::ids::{PhaseNo, ShardId, Slot, Step, TaskId};
use heddle_protocol::job_spec::{JobPhase, RecoveryScope, job_phase, training_from};
use heddle_protocol::mutation::Mutation;
use heddle_protocol::task_set::TaskSet;
use heddle_protocol::view::WarningCode;

use super::Core;
use crate::checkpoint::manifest::task_positions;
use crate::record::{LostUpdates, Record};
use crate::stage::local_losses::LostByShard;
use crate::stage::shard_names::shards_text;
use crate::work::queue::QueueProgress;

/// Steps between positions and the present ones.
#[derive(Clone, Copy, Debug, Default)]
struct StepsSince {
    /// All of them.
    all: u64,
    /// Those of training.
    training: u64,
    /// Those of some task are not known: there may be others.
    some_unknown: bool,
}

impl Core {
    /// Whether lost shards go back alone.
    pub(super) fn recovers_locally(&self) -> bool {
        self.ctx.config().spec.pservers.recovery == RecoveryScope::Local
    }

    /// The shards that go back, if the others can keep their state.
    fn shards_lost_alone(&self) -> Option<Vec<ShardId>> {
        self.stage.losses().alone().filter(|_| self.stage.has_started())
    }

    /// The same, if what they lose is known. A file may have more than the positions of the base, never less.
    pub(super) fn shards_to_return_alone(&mut self) -> Option<Vec<ShardId>> {
        let lost = self.shards_lost_alone()?;
        let of = shards_text(&lost);
        let cause = if self.base_lacks_measurements() {
            format!("what was measured of the data for {of} is not in it yet")
        } else if self.steps_since_base().some_unknown {
            format!("the number of updates that {of} would lose is unknown")
        } else {
            return Some(lost);
        };
        self.ctx.warn(
            WarningCode::AllShardsReturn,
            format!("all shards return to the last checkpoint: {cause}"),
        );
        None
    }

    /// Whether the base is from before the end of the phases that measure the data: a lost shard would never get its share
    /// again.
    fn base_lacks_measurements(&self) -> bool {
        let measured = training_from(&self.ctx.config().spec);
        self.checkpoints.base().map_or(PhaseNo(0), |base| base.manifest.phase) < measured
    }

    /// The shards of a pserver are lost.
    pub(super) fn note_lost_shards(&mut self, slot: Slot) {
        if self.recovers_locally() {
            let shards = self.stage.map().of(slot).to_vec();
            self.stage.losses_mut().lose(&shards);
        }
    }

    /// The part of an order to load that names the shards which go back alone; none if all do.
    pub(super) fn lost_shards(&self) -> Option<LostShards> {
        let shards = self.shards_lost_alone()?;
        let positions = self.work.positions().unwrap_or_default();
        Some(LostShards {
            shards,
            tasks: positions.at.iter().map(|(task, step)| (*task, *step)).collect(),
            done: positions.done.iter().copied().collect::<TaskSet>(),
            steps: self.steps_since_base().training,
        })
    }

    /// All shards are in one state of training.
    pub(super) fn shards_are_whole(&mut self) {
        let losses = self.stage.losses();
        let by_base = self.steps_since_base();
        let since = |shard: ShardId| match losses.loaded_state(shard) {
            Some(loaded) => self.steps_since(loaded.phase, &loaded.positions),
            None => by_base,
        };
        let shards = losses.alone().unwrap_or_default();
        debug_assert!(!shards.iter().any(|shard| since(*shard).some_unknown), "all go back then");
        let after = losses.after(|shard| since(shard).all);
        if let Some((updates, by_shard)) = &after {
            let (updates, by_shard) =
                (*updates, by_shard.iter().map(|(shard, lost)| (*shard, *lost)).collect());
            let to =
                shards.iter().filter_map(|shard| losses.loaded_state(*shard)).map(|it| it.step);
            let text = self.loss_text(&shards, updates, to.min());
            let (epoch, at_ms) = (self.ctx.epoch(), self.ctx.wall_ms());
            self.ctx.journal(Record::UpdatesLost(LostUpdates { epoch, updates, by_shard, at_ms }));
            self.ctx.warn(WarningCode::UpdatesLost, text);
            self.stage.recoveries_mut().lose_updates(Some(updates));
        }
        self.stage.losses_mut().all_are_whole(after.map(|(_, lost)| lost));
        self.checkpoints.set_updates_lost(self.stage.losses().lost().clone());
    }

    /// The warning about a loss. `step`: the steps of training that the lost shards have.
    fn loss_text(&self, shards: &[ShardId], updates: u64, step: Option<Step>) -> String {
        let base = self.checkpoints.base_manifest().map(|base| base.cut).zip(step);
        let to = match base {
            Some((cut, step)) => format!("step {step} (checkpoint {cut})"),
            None => "the initial values".to_owned(),
        };
        let (shards, updates) = (shards_text(shards), updates_text(updates));
        format!(
            "{shards} returned to {to}: {updates} lost. To lose fewer, shorten checkpoint.every; to lose none, set pservers.replicas"
        )
    }

    /// Updates that each shard had lost before the base.
    pub(super) fn lost_in_base(&self) -> LostByShard {
        let base = self.checkpoints.base_manifest();
        base.map(|base| base.progress.updates_lost.clone()).unwrap_or_default()
    }

    /// Updates lost by the job, as its journal has them.
    pub(super) fn take_over_losses(&mut self, journal: &[Record]) {
        let last = journal.iter().rposition(|record| matches!(record, Record::Restore { .. }));
        let epoch = &journal[last.unwrap_or(0)..];
        let is_local =
            matches!(epoch.first(), Some(Record::Restore { lost, .. }) if !lost.is_empty());
        let recorded = epoch.iter().find_map(|record| match record {
            Record::UpdatesLost(lost) => Some(lost.by_shard.iter().copied().collect()),
            _ => None,
        });
        let is_unknown = is_local && recorded.is_none();
        let recorded = recorded.filter(|_| !Mutation::LostUpdatesForgotten.is_on());
        let lost = recorded.unwrap_or_else(|| self.lost_in_base());
        self.stage.losses_mut().take_over(lost, is_unknown);
    }

    /// Steps that every shard had acknowledged and that the base lacks by its positions.
    fn steps_since_base(&self) -> StepsSince {
        let base = self.checkpoints.base_manifest();
        let from = base.map_or(PhaseNo(0), |base| base.phase);
        let before = base.map(|base| task_positions(&base.work)).unwrap_or_default();
        self.steps_since(from, &before)
    }

    /// Steps that every shard had acknowledged, without those before these positions of a phase.
    fn steps_since(&self, from: PhaseNo, before: &QueueProgress) -> StepsSince {
        let config = self.ctx.config();
        let (spec, tasks) = (&config.spec, config.plan.train.len() as u32);
        let now = self.work.positions().unwrap_or_default();
        let set_aside =
            self.checkpoints.base_manifest().map_or(0, |it| it.progress.set_aside.len());
        let some_unknown = self.work.set_aside().len() > set_aside;
        let mut since = StepsSince { some_unknown, ..StepsSince::default() };
        for no in from.0..=self.work.phase().0 {
            let phase = PhaseNo(no);
            let Some(kind) = job_phase(spec, phase).filter(JobPhase::pushes) else { continue };
            let is_over = phase < self.work.phase();
            for task in (0..tasks).map(TaskId) {
                if phase == from && before.done.contains(&task) {
                    continue;
                }
                let end = match is_over || now.done.contains(&task) {
                    true => {
                        let steps = self.work.task_steps().get(&task).copied();
                        since.some_unknown |= steps.is_none();
                        steps.unwrap_or(0)
                    }
                    false => now.at.get(&task).map_or(0, |step| step.0),
                };
                let begin = before.at.get(&task).filter(|_| phase == from).map_or(0, |step| step.0);
                let steps = end.saturating_sub(begin);
                since.all = since.all.saturating_add(steps);
                since.training =
                    since.training.saturating_add(if kind.trains.is_some() { steps } else { 0 });
            }
        }
        since
    }
}

fn updates_text(updates: u64) -> String {
    match updates {
        1 => "1 update is".to_owned(),
        _ => format!("{updates} updates are"),
    }
}
