//! How a host comes into an epoch and a phase.

use heddle_protocol::control::Phase;
use heddle_protocol::ids::{CutId, Epoch, ShardId, Step};

use super::{ShardSet, ShardSetError};
use crate::effect::Effect;
use crate::shard::Shard;

impl ShardSet {
    /// The epoch that it is in.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Moves to a later epoch with exactly these shards, in this phase, after `step` job steps (BSP).
    /// Drops what is parked, staged and held, and every open cut. Shards return to their snapshot of
    /// `base` where it is still whole and stands at this phase and step; the others are named and must be brought.
    ///
    /// # Errors
    /// The epoch is not later than the host's.
    pub fn hold(
        &mut self,
        epoch: Epoch,
        phase: Phase,
        step: Step,
        shards: &[ShardId],
        base: Option<CutId>,
        out: &mut Vec<Effect>,
    ) -> Result<Vec<ShardId>, ShardSetError> {
        if epoch <= self.epoch {
            return Err(ShardSetError::Epoch { own: self.epoch, told: epoch });
        }
        for connection in self.conns.values_mut() {
            // Whoever sent these is told the new epoch by the ApplicationMaster.
            connection.held.clear();
        }
        self.held_bytes = 0;
        self.open = None;
        self.epoch = epoch;
        (self.phase, self.step) = (Some(phase), step);
        self.shards.retain(|id, _| shards.contains(id));
        for shard in self.shards.values_mut() {
            shard.stop_serving(out);
        }
        if let Some(base) = base {
            self.heard = self.heard.max(base);
            self.shards.retain(|_, shard| shard.restore(base));
        } else {
            self.shards.clear();
        }
        // A snapshot that does not fit says nothing of the checkpoint's file.
        self.shards.retain(|_, shard| shard.resume(phase, step, out).is_ok());
        self.missing = shards.iter().filter(|id| !self.shards.contains_key(id)).copied().collect();
        Ok(self.missing.iter().copied().collect())
    }

    /// Brings a shard that [`Self::hold`] named, with its content.
    ///
    /// # Errors
    /// The epoch has passed, or the content does not fit the phase and step.
    pub fn install(
        &mut self,
        epoch: Epoch,
        mut shard: Shard,
        out: &mut Vec<Effect>,
    ) -> Result<(), ShardSetError> {
        let (Some(phase), true) = (self.phase, epoch == self.epoch) else {
            return Err(ShardSetError::Epoch { own: self.epoch, told: epoch });
        };
        shard.resume(phase, self.step, out)?;
        self.missing.remove(&shard.id());
        self.shards.insert(shard.id(), shard);
        Ok(())
    }

    /// Whether every shard is here.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.missing.is_empty()
    }

    /// Serves a later phase from its start. Repeating it changes nothing.
    ///
    /// # Errors
    /// The epoch is not the host's.
    pub fn begin(
        &mut self,
        epoch: Epoch,
        phase: Phase,
        out: &mut Vec<Effect>,
    ) -> Result<(), ShardSetError> {
        if epoch != self.epoch {
            return Err(ShardSetError::Epoch { own: self.epoch, told: epoch });
        }
        if self.phase.is_some_and(|own| own.no >= phase.no) {
            return Ok(());
        }
        (self.phase, self.step) = (Some(phase), Step(0));
        self.let_go("the phase is over", out);
        for shard in self.shards.values_mut() {
            shard.begin(phase, out);
        }
        self.release(out);
        Ok(())
    }
}
