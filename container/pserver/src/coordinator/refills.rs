//! Refills of copies on this pserver: each gets a shard of zeros, which a worker makes.

use heddle_protocol::ids::{Epoch, ShardId, ViewVersion};
use heddle_shard::Shard;

use super::Coordinator;
use crate::message::DataCommand;
use crate::workers::WorkerJob;

impl Coordinator {
    /// A refill needs a shard of zeros.
    pub(super) fn fill_ordered(
        &mut self,
        thread: usize,
        (epoch, shard, order): (Epoch, ShardId, ViewVersion),
    ) {
        let Some(job) = self.job.as_ref().filter(|_| epoch == self.epoch) else { return };
        tracing::info!(%epoch, %shard, "refill_ordered");
        self.owners.insert(shard, thread);
        let config = Box::new(job.shard(shard, self.owners.len()));
        self.workers.give(WorkerJob::Empty { epoch, order, config });
    }

    /// A thread has dropped its copy. Another thread may have got one since.
    pub(super) fn copy_left(&mut self, thread: usize, epoch: Epoch, shard: ShardId) {
        if epoch == self.epoch && self.owners.get(&shard) == Some(&thread) {
            self.owners.remove(&shard);
        }
    }

    /// A worker has made the shard of zeros.
    pub(super) fn made_empty(&mut self, epoch: Epoch, order: ViewVersion, shard: Box<Shard>) {
        if let Some(&thread) = self.owners.get(&shard.id()).filter(|_| epoch == self.epoch) {
            self.threads.send(thread, DataCommand::InstallEmpty { epoch, order, shard });
        }
    }
}
