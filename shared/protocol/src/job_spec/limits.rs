//! The bounds of a job's values, and the error for a value outside them.

use std::fmt::Display;

use super::value::Bytes;

/// Most passes of a job. Far above use; phase numbers do not overflow.
pub const PASSES_MAX: u32 = 1_000_000;
/// Most shards of a job. A manifest lists each one.
pub const SHARDS_MAX: u32 = 4096;
/// Most backups of a shard.
pub const REPLICAS_MAX: u32 = 2;
/// Most files of a shard in a checkpoint: its primary's and those of its backups.
pub const COPIES_MAX: u32 = 1 + REPLICAS_MAX;
/// Most slots of a role, and most lanes.
pub const SLOTS_MAX: u32 = 4096;
/// Most rows of a batch: the values of a step must fit into memory many times over.
pub const BATCH_MAX: u32 = 1 << 24;
/// Staleness of SSP unless given: one step ahead hides reading and pulling, one more evens out uneven steps.
pub const STALENESS: u32 = 2;
/// Rounds of k-means|| unless given (Bahmani et al. 2012, section 5: five suffice).
pub const INIT_ROUNDS: u32 = 5;
/// Most of these rounds, each of which is a pass over the data.
pub const INIT_ROUNDS_MAX: u32 = 100;
/// Tolerance of k-means unless given, as in scikit-learn and Spark.
pub const TOLERANCE: f64 = 1e-4;
/// Highest staleness. Far above use: beyond a thousand steps it bounds nothing.
pub const STALENESS_MAX: u32 = 1_000_000;
/// Highest seed: integers of TOML are signed, 64 bits.
pub const SEED_MAX: u64 = i64::MAX as u64;
/// Most data threads of a pserver, and most vcores of any container.
pub const VCORES_MAX: u32 = 256;
/// Most rows of a dense table, whose keys are u32.
pub const ROWS_MAX: u64 = u32::MAX as u64;
/// The number that stands for `model.features = "any"`: features are u64, and their rows are in sparse tables.
pub const ANY_FEATURES: u64 = u64::MAX;
/// Rows for which each shard of a job with sparse tables must have room.
pub const SPARSE_ROWS_MIN: u64 = 1000;
/// Most values per row: a row must fit into one frame of 64 Ki values.
pub const COLS_MAX: u32 = 1 << 16;
/// Most values of all dense tables together: 2⁴⁰, 4 TiB of parameters.
pub const VALUES_MAX: u64 = 1 << 40;
/// Least memory of a process.
pub(super) const MEMORY_MIN: Bytes = Bytes::mib(32);
/// Least bytes a second of savers.
pub(super) const BANDWIDTH_MIN: Bytes = Bytes(1 << 10);
/// Bytes of records that a trainer keeps on disk, unless given.
pub(super) const CACHE_ON_DISK: Bytes = Bytes(10 << 30);
/// Mirrors of a checkpoint directory.
pub const MIRRORS_MAX: usize = 4;
/// Most checkpoints that are kept.
pub const CHECKPOINTS_MAX: u32 = 1_000_000;
/// Highest priority of an application: YARN's is a signed number of 32 bits.
pub const PRIORITY_MAX: u32 = i32::MAX as u32;
/// Most starts of the ApplicationMaster.
pub const ATTEMPTS_MAX: u32 = 100;

/// Why a set of values is not a job: the key at fault and the rule that it breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A value or a combination of values is impossible.
    #[error("{key}: {rule}")]
    Rule {
        /// Dotted, as in the job file.
        key: &'static str,
        /// What must hold and what is the case, with the numbers.
        rule: String,
    },
    /// The bytes are not the JSON of a spec.
    #[error("not a job spec: {0}")]
    Json(String),
}

/// An error of this key unless the rule holds.
pub(super) fn rule(
    holds: bool,
    key: &'static str,
    rule: impl FnOnce() -> String,
) -> Result<(), SpecError> {
    if holds { Ok(()) } else { Err(SpecError::Rule { key, rule: rule() }) }
}

/// An error of this key unless its value is within these bounds.
pub(super) fn within<T: PartialOrd + Display>(
    key: &'static str,
    value: T,
    min: T,
    max: T,
) -> Result<(), SpecError> {
    rule((&min..=&max).contains(&&value), key, || {
        format!("is {value}, must be from {min} to {max}")
    })
}

/// Default of `data.task-errors`.
pub(super) fn task_errors() -> u32 {
    4
}

/// The default is left out, so that a job file's identity stays the same.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
pub(super) fn is_task_errors(errors: &u32) -> bool {
    *errors == task_errors()
}

/// Default of `checkpoint.copies`.
pub(super) fn copies() -> u32 {
    1
}

/// The default is left out, so that a job file's identity stays the same.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
pub(super) fn is_copies(files: &u32) -> bool {
    *files == copies()
}
