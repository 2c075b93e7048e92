//! What a pserver needs of the job.

use std::sync::Arc;

use heddle_protocol::control::Welcome;
use heddle_protocol::ids::{RunId, ShardId};
use heddle_protocol::spec::{JobSpec, Optimizer, TableSpec};
use heddle_shard::ShardConfig;
use heddle_telemetry::descriptors::{Limit, TooFew};

use crate::save::Pace;

/// BSP: the part of the memory that gradients may take at the most while they wait for lower lanes.
const EARLY_SHARE: u64 = 8;
/// Code, stacks and buffers.
const BASE_BYTES: u64 = 64 << 20;

/// The job, as far as it matters here.
pub(crate) struct Job {
    pub(crate) run: RunId,
    pub(crate) tables: Vec<TableSpec>,
    pub(crate) shards: u32,
    /// Of this pserver.
    pub(crate) memory_bytes: u64,
    /// Of it, what copies of snapshots may take.
    copy_bytes: u64,
    /// Of it, what frames that wait may take.
    waiting_bytes: u64,
    /// Of it, what code, connections and whatever does not depend on shards takes.
    fixed_bytes: u64,
    /// This pserver's part of `checkpoint.bandwidth`.
    pub(crate) pace: Option<Arc<Pace>>,
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
            waiting_bytes: JobSpec::pserver_waiting(spec.pservers.memory).0,
            fixed_bytes: BASE_BYTES + spec.pserver_memory().connections.0,
            pace: spec
                .checkpoint
                .bandwidth
                .map(|all| Pace::new(all.0 / u64::from(spec.pservers.count.max(1)))),
        }
    }

    /// Whether this process can hold a connection of every trainer to every data thread.
    ///
    /// # Errors
    /// The system allows too few open files.
    pub(crate) fn check_files(
        welcome: &Welcome,
        threads: usize,
        limit: Limit,
    ) -> Result<(), TooFew> {
        let trainers = welcome.spec.trainers.max;
        let what = format!("a parameter server of {trainers} trainers and {threads} data threads");
        limit.check(&what, u64::from(trainers).saturating_mul(threads as u64))
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
            waiting_bytes: u64::MAX,
            fixed_bytes: BASE_BYTES,
            pace: None,
        }
    }

    /// The shard as one of `here` shards of this pserver, which share its memory evenly.
    pub(crate) fn shard(&self, shard: ShardId, here: usize) -> ShardConfig {
        let here = here.max(1) as u64;
        let part = |bytes: u64| usize::try_from(bytes / here).unwrap_or(usize::MAX);
        let mut config = ShardConfig {
            shard,
            shards: self.shards,
            tables: self.tables.clone(),
            copy_bytes_max: part(self.copy_bytes),
            early_bytes_max: 0,
            // Half for pulls, half for what is held back in a cut.
            waiting_bytes_max: part(self.waiting_bytes / 2),
        };
        // What tables, the sums of a step (no larger than the tables) and copies leave.
        let tables = (config.table_bytes() as u64).saturating_mul(2 * here);
        let taken = tables.saturating_add(self.copy_bytes + self.fixed_bytes);
        let left = self.memory_bytes.saturating_sub(taken);
        config.early_bytes_max = part(left.min(self.memory_bytes / EARLY_SHARE));
        config
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
