//! What a pserver needs of the job.

use heddle_protocol::control::Welcome;
use heddle_protocol::ids::{RunId, ShardId};
use heddle_protocol::spec::{Optimizer, TableSpec};
use heddle_shard::ShardConfig;

/// BSP: part of the memory that gradients may take while they wait for lower lanes.
const EARLY_SHARE: u64 = 8;

/// The job, as far as it matters here.
pub(crate) struct Job {
    pub(crate) run: RunId,
    pub(crate) tables: Vec<TableSpec>,
    pub(crate) shards: u32,
    /// Of this pserver.
    pub(crate) memory_bytes: u64,
    /// Of it, what copies of snapshots may take.
    copy_bytes: u64,
}

impl Job {
    pub(crate) fn new(welcome: &Welcome) -> Self {
        let spec = &welcome.spec;
        Self {
            run: welcome.run,
            tables: spec.tables(),
            shards: spec.pservers.shards,
            memory_bytes: spec.pservers.memory.0,
            copy_bytes: spec.checkpoint.memory.of(spec.pservers.memory).0,
        }
    }

    /// A job by its parts.
    pub(crate) fn of(run: RunId, tables: Vec<TableSpec>, shards: u32, copy_bytes: u64) -> Self {
        let bytes: u64 = tables.iter().map(|table| 4 * table.values()).sum();
        Self {
            run,
            tables,
            shards,
            // Whatever the tables take, and as much again.
            memory_bytes: 2 * bytes + copy_bytes,
            copy_bytes,
        }
    }

    /// The shard as one of `here` shards of this pserver, which share its memory evenly.
    pub(crate) fn shard(&self, shard: ShardId, here: usize) -> ShardConfig {
        let part = |bytes: u64| usize::try_from(bytes / here.max(1) as u64).unwrap_or(usize::MAX);
        ShardConfig {
            shard,
            shards: self.shards,
            tables: self.tables.clone(),
            copy_bytes_max: part(self.copy_bytes),
            early_bytes_max: part(self.memory_bytes / EARLY_SHARE),
        }
    }
}

/// The optimizer by its name in the job file.
pub(crate) fn optimizer_name(optimizer: &Optimizer) -> &'static str {
    match optimizer {
        Optimizer::Sgd { .. } => "sgd",
        Optimizer::Ftrl { .. } => "ftrl",
        Optimizer::Add => "add",
    }
}
