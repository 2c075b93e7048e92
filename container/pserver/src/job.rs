//! The part of the job that a pserver needs, and its memory budget.

use std::sync::Arc;
use std::time::Duration;

use heddle_protocol::control::{Base, Welcome};
use heddle_protocol::frame::PART_VALUES_MAX;
use heddle_protocol::ids::{PhaseNo, RunId, ShardId, TableId};
use heddle_protocol::job_spec::position::position_of_key;
use heddle_protocol::job_spec::{
    CheckpointDigest, JobSpec, Location, PserverMemory, TableSpec, training_from,
};
use heddle_protocol::manifest::{CutIdentity, ShardFile};
use heddle_shard::{ReplicationLimits, ShardConfig, SparseLimits};
use heddle_telemetry::descriptors::{Limit, TooFew};

use crate::load::{LoadFrom, ShardSources};
use crate::throttle::BandwidthLimit;
use crate::warm_start::OtherJob;

/// BSP: gradients that wait for lower lanes take at most 1/8 of the memory.
const EARLY_SHARE: u64 = 8;
/// Code, stacks and buffers.
const BASE_BYTES: u64 = 64 << 20;

/// The job of a pserver.
pub(crate) struct PserverJob {
    pub(crate) run: RunId,
    pub(crate) tables: Vec<TableSpec>,
    pub(crate) shards: u32,
    /// Copies of shards that a pserver holds if none is lost.
    copies: u64,
    /// What backups are allowed.
    pub(crate) replication: ReplicationLimits,
    /// Memory of this pserver.
    pub(crate) memory_bytes: u64,
    /// Part of it for copies of snapshots.
    copy_bytes: u64,
    /// Part of it for waiting frames.
    waiting_bytes: u64,
    /// Part of it for code, connections and all else that does not depend on shards.
    fixed_bytes: u64,
    /// Limits of sparse tables.
    sparse: SparseLimits,
    seed: u64,
    training_from: PhaseNo,
    /// The job whose values this one begins with.
    other: Option<Arc<OtherJob>>,
    /// The sums of the files that this pserver writes.
    pub(crate) digest: CheckpointDigest,
    /// Directories with copies of the checkpoints.
    mirrors: Vec<Location>,
    /// This pserver's share of `checkpoint.bandwidth`.
    pub(crate) bandwidth: Option<Arc<BandwidthLimit>>,
}

/// By the spec: what waits for backups has to fit into the memory that is counted for it, in equal parts for the data threads.
fn replication_limits(spec: &JobSpec) -> ReplicationLimits {
    let threads = u64::from(spec.pservers.vcores.max(1));
    let all = PserverMemory::unconfirmed_of(spec, spec.pservers.memory, threads);
    ReplicationLimits {
        lag: Duration::from_millis(spec.liveness.lag.0),
        unacknowledged_bytes: usize::try_from(all.0 / threads).unwrap_or(usize::MAX),
    }
}

/// From the id of the run, which is drawn when the job begins: data cannot be chosen for it.
fn index_key(run: RunId) -> u64 {
    let (high, low) = run.0.as_u64_pair();
    position_of_key(high ^ position_of_key(low))
}

impl PserverJob {
    pub(crate) fn new(welcome: &Welcome) -> Self {
        let spec = &welcome.spec;
        Self {
            run: welcome.run,
            tables: spec.tables(),
            shards: spec.pservers.shards,
            copies: PserverMemory::own_copies(spec),
            replication: replication_limits(spec),
            sparse: SparseLimits {
                // At most 2³² − 2 rows.
                rows_max: PserverMemory::sparse_rows(spec).unwrap_or(0) as u32,
                when_full: spec.model.table_full,
                index_key: index_key(welcome.run),
            },
            seed: spec.training.seed,
            training_from: training_from(spec),
            other: OtherJob::of(spec).map(Arc::new),
            digest: spec.checkpoint.digest,
            mirrors: spec.checkpoint.mirrors.clone(),
            memory_bytes: spec.pservers.memory.0,
            copy_bytes: spec.checkpoint.memory.of(spec.pservers.memory).0,
            waiting_bytes: PserverMemory::waiting_of(spec.pservers.memory).0,
            fixed_bytes: BASE_BYTES + PserverMemory::of(spec).connections.0,
            bandwidth: spec
                .checkpoint
                .bandwidth
                .map(|all| BandwidthLimit::new(all.0 / u64::from(spec.pservers.most().max(1)))),
        }
    }

    /// Where shards come from that no checkpoint of this job has.
    pub(crate) fn initial_values(&self) -> LoadFrom {
        self.other.clone().map_or(LoadFrom::InitialValues, LoadFrom::OtherJob)
    }

    /// The copies of a shard's file in a checkpoint of this job.
    pub(crate) fn shard_sources(&self, base: &Base, file: &ShardFile) -> LoadFrom {
        let Base { cut, run, epoch, dir, .. } = base;
        let identity = CutIdentity { run: *run, cut: *cut, epoch: *epoch, shards: self.shards };
        let mirrors = self.mirrors.iter().map(|mirror| mirror.join(&cut.to_string()).url());
        let dirs = std::iter::once(dir.clone()).chain(mirrors).collect();
        LoadFrom::Checkpoint(Box::new(ShardSources { dirs, file: file.clone(), identity }))
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

    /// A job from its parts.
    pub(crate) fn of(
        run: RunId,
        tables: Vec<TableSpec>,
        shards: u32,
        sparse: SparseLimits,
        copy_bytes: u64,
    ) -> Self {
        let bytes: u64 = tables.iter().map(|table| 4 * table.values()).sum();
        Self {
            run,
            tables,
            shards,
            copies: u64::from(shards),
            replication: ReplicationLimits::default(),
            sparse,
            seed: 0,
            training_from: PhaseNo(0),
            other: None,
            digest: CheckpointDigest::Md5,
            mirrors: Vec::new(),
            // Twice the bytes of the tables.
            memory_bytes: 2 * bytes + copy_bytes,
            copy_bytes,
            waiting_bytes: u64::MAX,
            fixed_bytes: BASE_BYTES,
            bandwidth: None,
        }
    }

    /// Why a job ends for a sparse table that has no room.
    pub(crate) fn table_full(&self, shard: ShardId, table: TableId, rows: u32) -> String {
        let table = self.tables.get(usize::from(table.0));
        let (name, bytes) = table.map_or(("", 0), |table| (&*table.name, table.row_bytes()));
        format!(
            "table \"{name}\" is full: shard {shard} has {rows} rows of {bytes} bytes and room for no more; raise pservers.memory or pservers.count (and pservers.min, if it is given), or set model.table-full = \"drop\""
        )
    }

    /// The shard as one of `here` copies of shards on this pserver. They share its memory evenly, and those that are missing of
    /// the usual number have their part too: they may come one after the other. [`PserverMemory::copies`] counts on that.
    pub(crate) fn shard(&self, shard: ShardId, here: usize) -> ShardConfig {
        let here = self.copies.max(here as u64).max(1);
        let part = |bytes: u64| usize::try_from(bytes / here).unwrap_or(usize::MAX);
        let mut config = ShardConfig {
            shard,
            shards: self.shards,
            tables: self.tables.clone(),
            sparse: self.sparse,
            seed: self.seed,
            training_from: self.training_from,
            copy_bytes_max: part(self.copy_bytes),
            early_bytes_max: 0,
            // Half for pulls, half for frames that are held during a cut.
            waiting_bytes_max: part(self.waiting_bytes / 2),
            fill_values: PART_VALUES_MAX,
        };
        // The rest after tables, sums of a step (at most as large as the tables) and copies.
        let tables = (config.table_bytes() as u64).saturating_mul(2 * here);
        let taken = tables.saturating_add(self.copy_bytes + self.fixed_bytes);
        let left = self.memory_bytes.saturating_sub(taken);
        config.early_bytes_max = match self.sparse.rows_max {
            0 => part(left.min(self.memory_bytes / EARLY_SHARE)),
            // Sparse tables leave an eighth of what is left to the sums of a step and to what waits for them.
            _ => part(self.memory_bytes / EARLY_SHARE / 4),
        };
        config
    }
}

#[cfg(test)]
mod tests {
    use heddle_protocol::job_spec::{Bytes, job};
    use heddle_protocol::plan_file::PlanFile;

    use super::*;

    /// Two pservers with two shards each, half of whose memory is for copies.
    fn welcome(replicas: u32) -> Welcome {
        let mut spec = job::sample();
        spec.model.features = 16 << 20;
        (spec.pservers.count, spec.pservers.shards, spec.pservers.replicas) = (2, 4, replicas);
        spec.checkpoint.memory = "50%".parse().expect("a share");
        spec.pservers.memory = Bytes::mib(1 << 10);
        let run = RunId(uuid::Uuid::from_u128(7));
        Welcome { run, spec, plan: PlanFile::default(), heartbeat_ms: 1_000, orphan_ms: 1_000 }
    }

    /// The memory for copies of all shards, each with the number of them that were there with it, is what is counted.
    fn check(replicas: u32, here: &[usize], shards: u32) {
        let welcome = welcome(replicas);
        let job = PserverJob::new(&welcome);
        let bytes = |here: &usize| job.shard(ShardId(0), *here).copy_bytes_max as u64;
        let taken: u64 = here.iter().map(bytes).sum();
        let counted = PserverMemory::of_shards(&welcome.spec, shards).copies.0;
        assert!(taken <= counted, "{here:?}: {taken} of {counted}");
    }

    #[test]
    fn memory_for_copies_is_enough_for_the_shards_of_a_lost_pserver() {
        check(0, &[2, 2], 2);
        check(0, &[2, 2, 4, 4], 4);
        // A pserver that came late had one of them before.
        check(0, &[1, 2, 4, 4], 4);
    }

    #[test]
    fn memory_for_copies_is_enough_for_refills_one_after_the_other() {
        check(1, &[4, 4, 4, 4], 2);
        check(1, &[4, 4, 4, 4, 5, 6, 7, 8], 4);
        check(1, &[1, 2, 3, 4, 5, 6], 3);
    }
}
