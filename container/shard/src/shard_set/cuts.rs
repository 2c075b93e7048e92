//! Commands to all shards of a thread, and its cuts: by barriers, at job steps, and their ends.

use std::time::Duration;

use heddle_protocol::control::{CutAt, EndCut, ShardCommand, TakeCut};
use heddle_protocol::ids::{CutId, ShardId, Step};

use super::{ShardSet, ShardSetError};
use crate::content::{SnapshotGone, SnapshotHead};
use crate::cut::{self, OpenCut};
use crate::effect::ShardEffect;
use crate::shard::Shard;

impl ShardSet {
    /// Carries out a command.
    ///
    /// # Errors
    /// Another epoch.
    pub fn command(
        &mut self,
        command: &ShardCommand,
        now: Duration,
        out: &mut Vec<ShardEffect>,
    ) -> Result<(), ShardSetError> {
        match command {
            ShardCommand::Members { trainers } => self.members(trainers, out),
            ShardCommand::Views(command) => return self.views(command, now, out),
            ShardCommand::HandOver(command) => return self.hand_over(command, now, out),
            ShardCommand::CutEnd(end) => self.cut_end(*end, out),
        }
        Ok(())
    }

    /// Takes a cut, or prepares it. An open cut is aborted; an earlier cut is not taken again.
    ///
    /// # Errors
    /// The epoch is not the set's.
    pub fn cut(
        &mut self,
        command: &TakeCut,
        now: Duration,
        out: &mut Vec<ShardEffect>,
    ) -> Result<(), ShardSetError> {
        let TakeCut { cut, epoch, phase, at, last, .. } = command;
        let (cut, epoch, phase) = (*cut, *epoch, *phase);
        self.check_epoch(epoch)?;
        let from = out.len();
        if cut <= self.highest_cut {
            return Ok(());
        }
        self.highest_cut = cut;
        self.end_stops(out);
        self.abort_cut(&format!("superseded by cut {cut}"), out);
        let refusal = match self.phase {
            Some(own) if own.no == phase && self.missing.is_empty() => {
                let serving = self.shards.values().filter(|shard| self.serves(shard.id()));
                cut::refusal(at, serving)
            }
            _ => Some("the shard is not in the phase of the cut"),
        };
        if let Some(reason) = refusal {
            let shards = self.shards.keys().chain(&self.missing);
            out.extend(shards.map(|&shard| cut::aborted(shard, cut, reason)));
            self.release(out);
            self.replicate(from, out);
            return Ok(());
        }
        if *last {
            self.shards.values_mut().for_each(|shard| shard.end_with(cut));
        }
        match at {
            // Backups take the snapshot where the primary's stream has it. No barrier comes to this thread.
            _ if !self.serves_any() => {}

            CutAt::Steps(step) => self.cut_at_step(cut, *step, out),
            CutAt::Barriers(set) => {
                // Trainers that have left since the command do not count.
                let set = set.iter().filter(|member| !self.members.has_left(**member));
                self.open = Some(OpenCut::new(cut, set.copied(), now));
                self.snap_if_complete(out);
                // Frames held for the previous cut come before the barrier of this one.
                self.release(out);
            }
        }
        self.replicate(from, out);
        Ok(())
    }

    fn cut_at_step(&mut self, cut: CutId, step: Step, out: &mut Vec<ShardEffect>) {
        let replicas = &self.replicas;
        for shard in self.shards.values_mut().filter(|shard| replicas.is_primary(shard.id())) {
            if shard.progress().lanes().is_some() {
                shard.arm(cut, step, out);
            } else {
                shard.snap(cut, out);
            }
        }
    }

    /// The cut is over. A committed snapshot is kept for a rollback; any other is dropped.
    pub fn cut_end(&mut self, end: EndCut, out: &mut Vec<ShardEffect>) {
        let EndCut { cut, committed } = end;
        self.highest_cut = self.highest_cut.max(cut);
        self.ended_cut = self.ended_cut.max(cut);
        self.open.take_if(|open| open.cut == cut);
        let from = out.len();
        for shard in self.shards.values_mut() {
            shard.end_cut(cut, committed);
        }
        self.pump_shards(out);
        self.replicate(from, out);
    }

    /// When [`Self::tick`] is due.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        let open = self.open.as_ref().map(|open| open.deadline);
        open.into_iter().chain(self.replicas.deadline()).min()
    }

    /// Aborts a cut that has held frames for too long, reports backups that lag, and drops snapshots whose savers are too slow
    /// for the stream of their primary.
    pub fn tick(&mut self, now: Duration, out: &mut Vec<ShardEffect>) {
        if let Some(open) = self.open.as_ref().filter(|open| now >= open.deadline) {
            let reason = format!("waited too long for the barrier of {}", open.missing());
            let from = out.len();
            self.abort_cut(&reason, out);
            self.release(out);
            self.replicate(from, out);
        }
        let from = out.len();
        if self.replicas.end_overdue_stops(now) {
            self.release(out);
        }
        self.replicas.tick(now, out);
        for id in self.replicas.end_waits(now) {
            // A copy may have been promoted meanwhile: then the cut waits for its file.
            let backup = self.shards.get_mut(&id).filter(|_| !self.replicas.is_primary(id));
            backup.into_iter().for_each(Shard::stop_saving);
        }
        // Answers may have waited for a copy whose refill begins again.
        self.replicate(from, out);
    }

    pub(super) fn snap_if_complete(&mut self, out: &mut Vec<ShardEffect>) {
        if let Some(open) = self.open.take_if(|open| open.is_complete()) {
            let replicas = &self.replicas;
            for shard in self.shards.values_mut().filter(|shard| replicas.is_primary(shard.id())) {
                shard.snap(open.cut, out);
            }
            self.release(out);
        }
    }

    /// Aborts the open or armed cut. The caller releases held frames.
    pub(super) fn abort_cut(&mut self, reason: &str, out: &mut Vec<ShardEffect>) {
        let barriers = self.open.take().map(|open| open.cut);
        for (&id, shard) in &mut self.shards {
            if let Some(cut) = shard.disarm().or(barriers) {
                out.push(cut::aborted(id, cut, reason));
            }
        }
    }

    /// Fills `out` with a piece of the snapshot of `cut`; [`crate::ShardConfig::sections`] has the order. Pieces come in
    /// order; all but the last of a section are a multiple of 256 f32. Call [`Self::pump`] afterwards.
    ///
    /// # Errors
    /// The cut is over.
    pub fn save(
        &mut self,
        shard: ShardId,
        cut: CutId,
        section: usize,
        at: usize,
        out: &mut [f32],
    ) -> Result<(), SnapshotGone> {
        let gone = SnapshotGone { shard, cut };
        self.shards.get_mut(&shard).ok_or(gone)?.save(cut, section, at, out)
    }

    /// The head of the snapshot of `cut`, for a saver that reads the sections next.
    ///
    /// # Errors
    /// The cut is over.
    pub fn snapshot_head(
        &mut self,
        shard: ShardId,
        cut: CutId,
    ) -> Result<SnapshotHead, SnapshotGone> {
        let gone = SnapshotGone { shard, cut };
        self.shards.get_mut(&shard).ok_or(gone)?.snapshot_head(cut)
    }
}
