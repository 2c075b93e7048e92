//! What shards and trainers say of the open cut.
//!
//! Only reports that carry the cut's name and the current epoch, from the slot that holds the shard, count: no
//! snapshot of another cut or state ever gets into a manifest.

use std::collections::BTreeSet;
use std::sync::Arc;

use heddle_protocol::control::{Command, CutAt, Sharing, TaskPosition};
use heddle_protocol::failure::Failure;
use heddle_protocol::ids::{CutId, Epoch, Member, ShardId, Slot, Step, TaskId};
use heddle_protocol::manifest::ShardFile;
use heddle_protocol::mutation::Mutation;

use crate::checkpoint::cut::{Cut, Progress, TRIES_MAX};
use crate::core::{Core, JobStage};

impl Core {
    pub(crate) fn matching_cut(&mut self, id: CutId, epoch: Epoch) -> Option<&mut Cut> {
        let current = self.epoch;
        self.cuts.open.as_mut().filter(|cut| {
            cut.id == id && cut.epoch == epoch && epoch == current && cut.is_ordered()
        })
    }

    pub(crate) fn holds(&self, slot: Slot, shard: ShardId) -> bool {
        self.map.holds(slot, shard)
    }

    /// A pserver has heard of the cut.
    pub(crate) fn cut_armed(&mut self, slot: Slot, id: CutId, epoch: Epoch) {
        if let Some(Cut { progress: Progress::Arming(armed), .. }) = self.matching_cut(id, epoch) {
            armed.insert(slot);
        }
    }

    pub(crate) fn cut_armed_everywhere(&mut self) {
        let Some(cut) = &mut self.cuts.open else {
            return;
        };
        cut.progress = Progress::Snapping;
        let barrier = Arc::new(Command::Barrier { cut: cut.id, epoch: cut.epoch });
        let set: Vec<Member> = cut.set.keys().copied().collect();
        for member in set {
            self.send(member.slot, Arc::clone(&barrier));
        }
    }

    /// A shard's state of the cut is fixed.
    pub(crate) fn snapped(
        &mut self,
        slot: Slot,
        id: CutId,
        epoch: Epoch,
        shard: ShardId,
        step: Step,
    ) {
        if !self.holds(slot, shard) {
            return;
        }
        let Some(cut) = self.matching_cut(id, epoch) else {
            return;
        };
        cut.snapped.insert(shard, step);
        // All before it are equal, so two of them tell.
        let ends = [cut.snapped.first_key_value(), cut.snapped.last_key_value()];
        let ends = ends.into_iter().flatten().map(|(_, step)| *step);
        let steps: BTreeSet<Step> = ends.chain([step]).collect();
        if cut.sharing != Sharing::Queue && cut.sharing != Sharing::ReadOnly && steps.len() > 1 {
            self.end_cut(&format!("shards cut at different steps: {steps:?}"));
        }
    }

    /// A shard's file is durable.
    pub(crate) fn saved(&mut self, slot: Slot, id: CutId, epoch: Epoch, file: ShardFile) {
        if !self.holds(slot, file.shard) {
            return;
        }
        if let Some(cut) = self.matching_cut(id, epoch) {
            cut.saved.insert(file.shard, file);
        }
    }

    /// A shard has given the cut up. `step`: it stands there, beyond the step that the cut names.
    pub(crate) fn let_go(
        &mut self,
        slot: Slot,
        id: CutId,
        epoch: Epoch,
        shard: ShardId,
        step: Option<Step>,
        reason: &str,
    ) {
        if !self.holds(slot, shard) {
            return;
        }
        let Some(cut) = self.matching_cut(id, epoch) else {
            return;
        };
        if cut.progress != Progress::Snapping && !matches!(cut.progress, Progress::Arming(_)) {
            return;
        }
        let (lanes, phase) = (matches!(cut.at, CutAt::Steps(_)), cut.phase);
        if let Some(step) = step
            && phase == self.phase.no
        {
            self.saw_step(step);
        }
        if lanes && matches!(self.stage, JobStage::Working) && self.cuts.late_tries < TRIES_MAX {
            return self.name_later_step();
        }
        match step {
            Some(_) => self.end_cut(&format!(
                "training passed the step that was chosen for it, {} times in a row",
                self.cuts.late_tries + 1
            )),
            None => self.end_cut(&format!("{slot} gave it up for shard {shard}: {reason}")),
        }
    }

    /// A shard could not be written.
    pub(crate) fn save_failed(
        &mut self,
        slot: Slot,
        id: CutId,
        epoch: Epoch,
        shard: ShardId,
        failure: Failure,
    ) {
        if self.holds(slot, shard) && self.matching_cut(id, epoch).is_some() {
            self.cut_failed(failure.preventing(format_args!("shard {shard} could not be saved")));
        }
    }

    /// A trainer has sent its barrier; where its tasks stood there.
    pub(crate) fn at_barrier(
        &mut self,
        member: Member,
        id: CutId,
        epoch: Epoch,
        tasks: &[TaskPosition],
    ) {
        let Some(cut) = self.matching_cut(id, epoch) else {
            return;
        };
        if let Some(reached) = cut.set.get_mut(&member) {
            *reached = true;
            for position in tasks {
                cut.queue_progress.reached(position.task, position.step);
            }
        }
    }

    /// A report of a trainer that counts for the open cut's queue: the trainer is of its set and had not sent its barrier.
    pub(crate) fn cut_progress(&mut self, member: Member, carried: CutId, tasks: &[TaskPosition]) {
        if let Some(cut) = self.counting_cut(member, carried) {
            for position in tasks {
                cut.queue_progress.reached(position.task, position.step);
            }
        }
    }

    /// As `cut_progress`, of a finished task.
    pub(crate) fn cut_finished(&mut self, member: Member, carried: CutId, task: TaskId) {
        if let Some(cut) = self.counting_cut(member, carried) {
            cut.queue_progress.finished(task);
        }
    }

    pub(crate) fn counting_cut(&mut self, member: Member, carried: CutId) -> Option<&mut Cut> {
        let passes = Mutation::ProgressPassesBarrier.is_on();
        self.cuts.open.as_mut().filter(|cut| {
            (carried < cut.id || passes) && cut.is_ordered() && cut.set.contains_key(&member)
        })
    }

    /// A trainer is out of the job: it counts with what it had reached.
    pub(crate) fn leave_cut(&mut self, member: Member) {
        if let Some(cut) = &mut self.cuts.open {
            cut.set.remove(&member);
        }
    }

    /// A pserver's connection broke: what was said of the cut may be lost in both directions.
    pub(crate) fn order_cut_again(&mut self, slot: Slot) {
        let Some(cut) =
            self.cuts.open.as_ref().filter(|cut| cut.is_ordered() && cut.epoch == self.epoch)
        else {
            return;
        };
        let mut own = self.map.of(slot).iter();
        let waits = own.any(|shard| !cut.saved.contains_key(shard));
        if waits {
            let command = cut.command();
            self.send(slot, command);
        }
    }

    /// A trainer's connection broke: likewise.
    pub(crate) fn send_barrier_again(&mut self, member: Member) {
        if let Some(cut) = &self.cuts.open
            && cut.progress == Progress::Snapping
            && cut.set.get(&member) == Some(&false)
        {
            let (cut, epoch) = (cut.id, cut.epoch);
            self.send(member.slot, Command::Barrier { cut, epoch });
        }
    }
}
