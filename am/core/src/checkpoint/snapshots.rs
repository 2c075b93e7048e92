//! Reports of shards and trainers about the open cut.
//!
//! Only reports that carry the cut's number and the current epoch count. The dispatcher checks that they come from the slot
//! that holds the shard. So no snapshot of another cut or state ever gets into a manifest.

use std::collections::BTreeSet;

use heddle_protocol::control::{CutAt, EndCut, ShardCommand, TaskPosition, TrainerCommand};
use heddle_protocol::failure::Failure;
use heddle_protocol::ids::{CutId, Epoch, Member, PhaseNo, ShardId, Slot, Step, TaskId};
use heddle_protocol::manifest::ShardFile;
use heddle_protocol::mutation::Mutation;
use heddle_protocol::table_statistics::TableStatistics;

use super::cut::{Cut, CutProgress, OrderedCut};
use super::saved_files::DifferingFiles;
use super::{Checkpoints, CutEnded, TRIES_MAX};
use crate::context::Context;
use crate::fleet::Fleet;
use crate::stage::shard_map::ShardMap;

/// Copies that differ are counted for this time.
const DIFFERED_WITHIN_MS: u64 = 3_600_000;

/// What a shard that abandons the open cut needs of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AbortedCut {
    pub phase: PhaseNo,
    /// BSP: a try with a later step can follow.
    pub can_name_later_step: bool,
}

/// A pserver could not write its copy of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FailedSave {
    pub slot: Slot,
    pub shard: ShardId,
    pub failure: Failure,
}

impl Checkpoints {
    fn matching(&mut self, id: CutId, epoch: Epoch, ctx: &Context) -> Option<&mut OrderedCut> {
        let current = epoch == ctx.epoch();
        let open = self.open.as_mut();
        open.filter(|cut| cut.id == id && cut.epoch == epoch && current)?.ordered_mut()
    }

    /// A pserver has the order.
    pub(crate) fn armed(&mut self, slot: Slot, id: CutId, epoch: Epoch, ctx: &Context) {
        if let Some(OrderedCut { progress: CutProgress::Arming(armed), .. }) =
            self.matching(id, epoch, ctx)
        {
            armed.insert(slot);
        }
    }

    /// The state of a shard is fixed.
    pub(crate) fn snapped(
        &mut self,
        id: CutId,
        epoch: Epoch,
        shard: ShardId,
        step: Step,
        fleet: &Fleet,
        ctx: &mut Context,
    ) -> Option<CutEnded> {
        let cut = self.matching(id, epoch, ctx)?;
        cut.snapped.insert(shard, step);
        let steps = cut.different_steps(step)?;
        let steps: Vec<String> = steps.iter().map(ToString::to_string).collect();
        self.give_up(&format!("shards cut at different steps: {}", steps.join(", ")), fleet, ctx)
    }

    /// Whether the open cut awaits a file of the shard from a pserver that does not serve it.
    pub(crate) fn awaits_copy(&self, slot: Slot, shard: ShardId) -> bool {
        let ordered = self.open.as_ref().and_then(Cut::ordered);
        ordered.is_some_and(|ordered| ordered.saved.awaits(slot, shard))
    }

    /// The file of a shard is durable.
    ///
    /// # Errors
    /// It is not equal to another one of the shard: nothing of the cut may become a checkpoint.
    pub(crate) fn saved(
        &mut self,
        id: CutId,
        epoch: Epoch,
        slot: Slot,
        file: ShardFile,
        tables: Vec<TableStatistics>,
        ctx: &Context,
    ) -> Result<(), DifferingFiles> {
        let cut = self.matching(id, epoch, ctx).filter(|cut| cut.can_be_given_up());
        let Some(cut) = cut else {
            return Ok(());
        };
        cut.tables.insert(file.shard, tables);
        cut.saved.add(slot, file)
    }

    /// Copies of a shard differed. Returns how often that was within an hour.
    pub(crate) fn copies_differed(&mut self, ctx: &Context) -> usize {
        let now = ctx.now();
        self.differed.retain(|at| now.since(*at) < DIFFERED_WITHIN_MS);
        self.differed.push(now);
        self.times_differed += 1;
        self.differed.len()
    }

    /// How often copies of a shard differed in this attempt.
    pub(crate) fn times_differed(&self) -> u64 {
        self.times_differed
    }

    /// Whether a shard can still give the cut up, and what follows from it.
    pub(crate) fn can_be_given_up(
        &mut self,
        id: CutId,
        epoch: Epoch,
        ctx: &Context,
    ) -> Option<AbortedCut> {
        let more_tries = self.missed_step_tries < TRIES_MAX;
        let cut = self.matching(id, epoch, ctx).filter(|cut| cut.can_be_given_up())?;
        let can_name_later_step = more_tries && matches!(cut.at, CutAt::Steps(_));
        Some(AbortedCut { phase: cut.phase, can_name_later_step })
    }

    /// A shard has given the cut up. `step`: it is there, beyond the step that the cut names.
    pub(crate) fn shard_gave_up(
        &mut self,
        slot: Slot,
        shard: ShardId,
        step: Option<Step>,
        cause: &str,
        fleet: &Fleet,
        ctx: &mut Context,
    ) -> Option<CutEnded> {
        let cause = match step {
            Some(_) => format!(
                "training passed the step that was chosen for it, {} times in a row",
                self.missed_step_tries + 1
            ),
            None => format!("{slot} gave it up for shard {shard}: {cause}"),
        };
        self.give_up(&cause, fleet, ctx)
    }

    /// A shard could not be written by one of its pservers. Without another file of it the cut is given up.
    pub(crate) fn save_failed(
        &mut self,
        id: CutId,
        epoch: Epoch,
        failed: FailedSave,
        fleet: &Fleet,
        ctx: &mut Context,
    ) -> Option<CutEnded> {
        let cut = self.matching(id, epoch, ctx).filter(|cut| cut.can_be_given_up())?;
        let FailedSave { slot, shard, failure } = failed;
        cut.saved.fail(slot, shard, format!("{slot} could not save shard {shard}: {failure}"));
        if !cut.saved.is_hopeless() {
            return None;
        }
        self.cut_failed(
            failure.preventing(format_args!("shard {shard} could not be saved")),
            fleet,
            ctx,
        )
    }

    /// A trainer has sent its barrier; the positions of its tasks there.
    pub(crate) fn at_barrier(
        &mut self,
        member: Member,
        id: CutId,
        epoch: Epoch,
        tasks: &[TaskPosition],
        ctx: &Context,
    ) {
        let Some(cut) = self.matching(id, epoch, ctx) else {
            return;
        };
        if let Some(sent) = cut.trainers.get_mut(&member) {
            *sent = true;
            for position in tasks {
                cut.tasks.reached(position.task, position.step);
            }
        }
    }

    /// A trainer's report about the positions of its tasks, with the number of the latest cut that it had seen.
    pub(crate) fn task_progress(&mut self, member: Member, carried: CutId, tasks: &[TaskPosition]) {
        if let Some(cut) = self.counting(member, carried) {
            for position in tasks {
                cut.tasks.reached(position.task, position.step);
            }
        }
    }

    /// As `task_progress`, of a finished task.
    pub(crate) fn task_finished(&mut self, member: Member, carried: CutId, task: TaskId) {
        if let Some(cut) = self.counting(member, carried) {
            cut.tasks.finished(task);
        }
    }

    /// The open cut, if a trainer's report moves its queue: the trainer is of the cut and had not sent its barrier.
    fn counting(&mut self, member: Member, carried: CutId) -> Option<&mut OrderedCut> {
        let passes = Mutation::ProgressPassesBarrier.is_on();
        let open = self.open.as_mut().filter(|cut| carried < cut.id || passes);
        let ordered = open.and_then(Cut::ordered_mut);
        ordered.filter(|cut| cut.trainers.contains_key(&member))
    }

    /// A trainer has left the job: it counts with what it had reported.
    pub(crate) fn trainer_left(&mut self, member: Member) {
        if let Some(cut) = self.open.as_mut().and_then(Cut::ordered_mut) {
            cut.trainers.remove(&member);
        }
    }

    /// A pserver's connection broke: messages about the cut may be lost in both directions.
    pub(crate) fn order_again(&self, slot: Slot, map: &ShardMap, fleet: &Fleet, ctx: &mut Context) {
        let Some(cut) = self.open.as_ref().filter(|cut| cut.epoch == ctx.epoch()) else {
            return;
        };
        let Some(ordered) = cut.ordered() else {
            return;
        };
        let waits = map.of(slot).iter().any(|shard| !ordered.saved.has(*shard))
            || !ordered.saved.awaited_of(slot).is_empty();
        if let Some(command) = cut.command(slot).filter(|_| waits) {
            fleet.send(slot, command, ctx);
        }
    }

    /// A pserver registers again, or at a new attempt; `received` is the highest cut that it has received. The end of that cut
    /// may be lost. Without it the pserver keeps the copies of its snapshot, and once they fill their memory it applies no
    /// further step.
    pub(crate) fn end_again(&self, slot: Slot, received: CutId, fleet: &Fleet, ctx: &mut Context) {
        let is_open = self.open.as_ref().is_some_and(|cut| cut.id == received);
        if received == CutId::default() || is_open {
            return;
        }
        let committed = self.base_manifest().is_some_and(|base| base.cut == received);
        fleet.send(slot, ShardCommand::CutEnd(EndCut { cut: received, committed }), ctx);
    }

    /// A pserver with copies is lost; `promoted`: the shards that have another primary, which is there. A cut that all shards
    /// have snapped goes on: backups have the snapshots too, and a new primary saves what is not saved. Any other is given
    /// up: its barriers went to the lost primary.
    pub(crate) fn holder_lost(
        &mut self,
        slot: Slot,
        promoted: &[(ShardId, Slot)],
        fleet: &Fleet,
        ctx: &mut Context,
    ) -> Option<CutEnded> {
        let needs = |cut: &&mut Cut| cut.is_ordered() && cut.commit().is_none();
        let cut = self.open.as_mut().filter(needs)?;
        let snapped = cut.all_snapped() || promoted.is_empty();
        let saved = &mut cut.ordered_mut()?.saved;
        saved.lose(slot);
        promoted.iter().for_each(|(shard, primary)| saved.promoted(*shard, *primary));
        if !snapped || saved.is_hopeless() {
            let ended =
                self.give_up(&format!("{slot} was lost before it was complete"), fleet, ctx);
            return ended.map(CutEnded::with_own_limit);
        }
        let unsaved = promoted.iter().filter(|(shard, _)| !saved.has(*shard));
        let savers: BTreeSet<Slot> = unsaved.map(|(_, primary)| *primary).collect();
        for primary in savers {
            if let Some(command) = self.open.as_ref().and_then(|cut| cut.command(primary)) {
                fleet.send(primary, command, ctx);
            }
        }
        None
    }

    /// A trainer's connection broke: the barrier may be lost.
    pub(crate) fn send_barrier_again(&self, member: Member, fleet: &Fleet, ctx: &mut Context) {
        let Some(cut) = &self.open else {
            return;
        };
        if let Some(ordered) = cut.ordered()
            && ordered.progress == CutProgress::Snapping
            && ordered.trainers.get(&member) == Some(&false)
        {
            fleet.send(member.slot, TrainerCommand::Barrier { cut: cut.id, epoch: cut.epoch }, ctx);
        }
    }
}
