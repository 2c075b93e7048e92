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
        epoch: Epoch,
        shard: ShardId,
        order: ViewVersion,
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crossbeam::channel::unbounded;
    use heddle_protocol::ids::Generation;
    use heddle_shard::LocalReport;

    use super::*;
    use crate::message::{CoordinatorInput, DataReport};
    use crate::status::PserverStatus;
    use crate::workers::Workers;

    #[test]
    fn dropped_copy_has_no_owner_unless_another_thread_got_one() {
        let epoch = |count| Epoch { generation: Generation(1), count };
        let (shard, kept) = (ShardId(3), ShardId(4));
        for (thread, of, is_owned) in [(1, 2, false), (0, 2, true), (1, 1, true)] {
            let (inputs, _queue) = unbounded();
            let workers = Workers::start(&inputs).expect("threads");
            let status = Arc::new(PserverStatus::default());
            let mut coordinator = Coordinator::new(Vec::new(), workers, Box::new(drop), status);
            coordinator.epoch = epoch(2);
            coordinator.owners.extend([(shard, 1), (kept, 1)]);
            let report = LocalReport::CopyLeft { shard };
            let left = DataReport::Local { thread, epoch: epoch(of), report };
            coordinator.on(CoordinatorInput::Data(left));
            let context = format!("thread {thread}, epoch {of}");
            assert_eq!(coordinator.owners.contains_key(&shard), is_owned, "{context}");
            assert!(coordinator.owners.contains_key(&kept), "{context}");
        }
    }
}
