//! Cuts of all shards of a host, and their snapshots.

use std::time::Duration;

use heddle_protocol::control::CutAt;
use heddle_protocol::frame::Status;
use heddle_protocol::ids::{CutId, Epoch, PhaseNo, ShardId};

use super::{ShardSet, ShardSetError};
use crate::content::SnapshotGone;
use crate::cut::OpenCut;
use crate::effect::{Effect, ShardReport};
use crate::shard::Shard;

impl ShardSet {
    /// Takes a cut, or prepares to. One that was open is given up; one heard of before is not taken again.
    ///
    /// # Errors
    /// The epoch is not the host's.
    pub fn cut(
        &mut self,
        cut: CutId,
        epoch: Epoch,
        phase: PhaseNo,
        at: &CutAt,
        now: Duration,
        out: &mut Vec<Effect>,
    ) -> Result<(), ShardSetError> {
        if epoch != self.epoch {
            return Err(ShardSetError::Epoch { own: self.epoch, told: epoch });
        }
        if cut <= self.heard {
            return Ok(());
        }
        self.heard = cut;
        self.let_go(&format!("cut {cut} takes its place"), out);
        if self.phase.is_none_or(|own| own.no != phase) || !self.missing.is_empty() {
            return self.refuse_cut(cut, "not in the phase of the cut", out);
        }
        match at {
            CutAt::Steps(step) => {
                if self.shards.values().any(Shard::takes_pushes_at_once) {
                    return self.refuse_cut(cut, "no job steps in this phase", out);
                }
                for shard in self.shards.values_mut() {
                    if shard.has_lanes() {
                        shard.arm(cut, *step, out);
                    } else {
                        shard.snap(cut, out);
                    }
                }
            }
            CutAt::Barriers(set) => {
                if self.shards.values().any(Shard::has_lanes) {
                    return self.refuse_cut(cut, "lanes are cut by job steps", out);
                }
                // Who has left since the set was drawn up does not count.
                let set =
                    set.iter().filter(|member| self.standing(**member) != Err(Status::NotMember));
                self.open = Some(OpenCut::new(cut, set.copied(), now));
                self.snap_if_complete(out);
                // Held for the cut before this one: it comes before the barrier of this one.
                self.release(out);
            }
        }
        Ok(())
    }

    /// The cut is over: its snapshot is kept for a rollback if it was committed, else forgotten.
    pub fn cut_end(&mut self, cut: CutId, committed: bool, out: &mut Vec<Effect>) {
        self.heard = self.heard.max(cut);
        if self.open.as_ref().is_some_and(|open| open.cut == cut) {
            self.open = None;
        }
        for shard in self.shards.values_mut() {
            shard.end_cut(cut, committed);
        }
        self.pump(out);
    }

    /// When [`Self::tick`] has something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.open.as_ref().map(|open| open.deadline)
    }

    /// Lets go of a cut that holds frames back for too long.
    pub fn tick(&mut self, now: Duration, out: &mut Vec<Effect>) {
        if let Some(open) = self.open.as_ref().filter(|open| now >= open.deadline) {
            let reason = format!("waited too long for the barrier of {}", open.missing());
            self.let_go(&reason, out);
            self.release(out);
        }
    }

    /// Fills `out` with a piece of the snapshot of `cut`; see [`crate::ShardConfig::sections`] for the order.
    /// Pieces come in order; all but the last of a section are a multiple of 256 f32. Call
    /// [`Self::pump`] afterwards.
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

    /// The once-only memory of the snapshot of `cut`, as a file keeps it.
    ///
    /// # Errors
    /// The cut is over.
    pub fn snapshot_memory(&self, shard: ShardId, cut: CutId) -> Result<Vec<u8>, SnapshotGone> {
        let gone = SnapshotGone { shard, cut };
        self.shards.get(&shard).ok_or(gone)?.snapshot_memory(cut)
    }

    pub(super) fn snap_if_complete(&mut self, out: &mut Vec<Effect>) {
        if let Some(open) = self.open.take_if(|open| open.is_complete()) {
            for shard in self.shards.values_mut() {
                shard.snap(open.cut, out);
            }
            self.release(out);
        }
    }

    /// Gives up what is open. Whoever calls this releases what was held.
    pub(super) fn let_go(&mut self, reason: &str, out: &mut Vec<Effect>) {
        let barriers = self.open.take().map(|open| open.cut);
        for (&shard, machine) in &mut self.shards {
            if let Some(cut) = machine.disarm().or(barriers) {
                let reason = reason.to_owned();
                out.push(Effect::Report(ShardReport::CutAborted {
                    shard,
                    cut,
                    step: None,
                    reason,
                }));
            }
        }
    }

    fn refuse_cut(
        &mut self,
        cut: CutId,
        reason: &str,
        out: &mut Vec<Effect>,
    ) -> Result<(), ShardSetError> {
        for &shard in self.shards.keys().chain(&self.missing) {
            let reason = reason.to_owned();
            out.push(Effect::Report(ShardReport::CutAborted { shard, cut, step: None, reason }));
        }
        self.release(out);
        Ok(())
    }
}
