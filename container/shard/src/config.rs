//! The part of the job's configuration that a shard needs.

use heddle_protocol::ids::{PhaseNo, ShardId};
use heddle_protocol::job_spec::TableSpec;

use crate::content::ShardSection;
use crate::sparse_rows::{SliceSetup, SparseLimits};
use crate::tables::Tables;

/// Configuration of a shard.
#[derive(Clone, Debug)]
pub struct ShardConfig {
    /// The shard.
    pub shard: ShardId,
    /// Shards of the job.
    pub shards: u32,
    /// All tables of the job, in the order of their ids.
    pub tables: Vec<TableSpec>,
    /// Limits of sparse tables.
    pub sparse: SparseLimits,
    /// Seed of initial values.
    pub seed: u64,
    /// The first phase whose steps count for schedules: measuring phases come before it.
    pub training_from: PhaseNo,
    /// Bytes that copies for snapshots of this shard may take (its part of `checkpoint.memory`).
    pub copy_bytes_max: usize,
    /// BSP: bytes of gradients that may wait for lower lanes.
    pub early_bytes_max: usize,
    /// Bytes of pulls that may wait for their step, and of frames that the shard set may hold for this shard during a cut;
    /// the limit applies to each of the two.
    pub waiting_bytes_max: usize,
    /// Values of a piece of a refill; a row is never divided.
    pub fill_values: usize,
}

impl ShardConfig {
    /// Bytes of the tables' slices with their optimizer state, without copies; of sparse tables for all rows that fit.
    #[must_use]
    pub fn table_bytes(&self) -> usize {
        self.slices().cells() * 4
    }

    /// Sections of this shard's file after the dedup state, in the order of the file. `sparse_rows` are the rows of each
    /// sparse table, by table id.
    #[must_use]
    pub fn sections(&self, sparse_rows: &[u32]) -> Vec<ShardSection> {
        self.slices().sections(sparse_rows)
    }

    pub(crate) fn slices(&self) -> Tables {
        let &Self { shard, shards, sparse: limits, seed, .. } = self;
        Tables::new(&self.tables, SliceSetup { shard, shards, limits, seed })
    }
}
