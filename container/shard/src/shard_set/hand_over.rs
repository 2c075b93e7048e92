//! The shard set as it hands shards over: which stop, and when they go on.

use std::time::Duration;

use heddle_protocol::control::HandOver;

use super::replicas::Replicas;
use super::{ShardSet, ShardSetError};
use crate::effect::ShardEffect;

impl Replicas {
    /// Shards that stopped for a hand-over go on. Returns whether there were any.
    pub(super) fn end_stops(&mut self) -> bool {
        self.copies.end_stops()
    }

    /// As [`Self::end_stops`], of those that have stopped for too long.
    pub(super) fn end_late_stops(&mut self, now: Duration) -> bool {
        self.copies.end_late_stops(now)
    }
}

impl ShardSet {
    /// Another copy is to serve these shards. Each stops, and reports when every in-sync copy has its last change
    /// ([`Drained`](crate::ShardReport::Drained)).
    ///
    /// # Errors
    /// The epoch is not the set's.
    pub fn hand_over(
        &mut self,
        command: &HandOver,
        now: Duration,
        out: &mut Vec<ShardEffect>,
    ) -> Result<(), ShardSetError> {
        self.check_epoch(command.epoch)?;
        if let Some(replicas) = &mut self.replicas {
            command.shards.iter().for_each(|stop| replicas.copies.stop(*stop, now));
        }
        self.replicate(out.len(), out);
        Ok(())
    }

    /// Shards that stopped for a hand-over go on: something is to change them.
    pub(super) fn end_stops(&mut self, out: &mut Vec<ShardEffect>) {
        if self.replicas.as_mut().is_some_and(|replicas| replicas.end_stops()) {
            self.release(out);
        }
    }
}
