//! Reports of shards and trainers about the open cut.
//!
//! Only reports that carry the cut's number and the current epoch count. The dispatcher checks that they come from the slot
//! that holds the shard. So no snapshot of another cut or state ever gets into a manifest.

use heddle_protocol::control::{Command, CutAt, EndCut, TaskPosition};
use heddle_protocol::failure::Failure;
use heddle_protocol::ids::{CutId, Epoch, Member, PhaseNo, ShardId, Slot, Step, TaskId};
use heddle_protocol::manifest::ShardFile;
use heddle_protocol::mutation::Mutation;
use heddle_protocol::table_statistics::TableStatistics;

use super::cut::{Cut, CutProgress, OrderedCut};
use super::{Checkpoints, CutEnded, TRIES_MAX};
use crate::context::Context;
use crate::fleet::Fleet;
use crate::stage::shard_map::ShardMap;

/// What a shard that abandons the open cut needs of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AbortedCut {
    pub phase: PhaseNo,
    /// BSP: a try with a later step can follow.
    pub can_name_later_step: bool,
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
        (shard, step): (ShardId, Step),
        fleet: &Fleet,
        ctx: &mut Context,
    ) -> Option<CutEnded> {
        let cut = self.matching(id, epoch, ctx)?;
        cut.snapped.insert(shard, step);
        let steps = cut.different_steps(step)?;
        self.give_up(&format!("shards cut at different steps: {steps:?}"), fleet, ctx)
    }

    /// The file of a shard is durable.
    pub(crate) fn saved(
        &mut self,
        id: CutId,
        epoch: Epoch,
        (file, tables): (ShardFile, Vec<TableStatistics>),
        ctx: &Context,
    ) {
        if let Some(cut) = self.matching(id, epoch, ctx) {
            cut.tables.insert(file.shard, tables);
            cut.saved.insert(file.shard, file);
        }
    }

    /// Whether a shard can still give the cut up, and what follows from it.
    pub(crate) fn can_be_given_up(
        &mut self,
        id: CutId,
        epoch: Epoch,
        ctx: &Context,
    ) -> Option<AbortedCut> {
        let more_tries = self.late_tries < TRIES_MAX;
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
                self.late_tries + 1
            ),
            None => format!("{slot} gave it up for shard {shard}: {cause}"),
        };
        self.give_up(&cause, fleet, ctx)
    }

    /// A shard could not be written.
    pub(crate) fn save_failed(
        &mut self,
        id: CutId,
        epoch: Epoch,
        (shard, failure): (ShardId, Failure),
        fleet: &Fleet,
        ctx: &mut Context,
    ) -> Option<CutEnded> {
        self.matching(id, epoch, ctx)?;
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
        let waits = map.of(slot).iter().any(|shard| !ordered.saved.contains_key(shard));
        if let Some(command) = cut.command().filter(|_| waits) {
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
        fleet.send(slot, Command::CutEnd(EndCut { cut: received, committed }), ctx);
    }

    /// A primary is lost, and its shards have another one. A cut that needs pservers is given up: the lost one had the order,
    /// and what of the cut it had taken and saved.
    pub(crate) fn primary_lost(
        &mut self,
        slot: Slot,
        fleet: &Fleet,
        ctx: &mut Context,
    ) -> Option<CutEnded> {
        let needs = |cut: &&Cut| cut.is_ordered() && cut.commit().is_none();
        self.open.as_ref().filter(needs)?;
        self.give_up(&format!("{slot} was lost before it was complete"), fleet, ctx)
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
            fleet.send(member.slot, Command::Barrier { cut: cut.id, epoch: cut.epoch }, ctx);
        }
    }
}
