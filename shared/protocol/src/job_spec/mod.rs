//! The job: what to train, on what data, with which resources, typed and checked once.
//!
//! All processes use [`JobSpec`]. Users write it as TOML, which the command line reads with positions and origins;
//! processes pass it on as JSON. [`check()`] checks it once; later code relies on it:
//! counts are above zero, `min ≤ max`, shards suffice for the data threads.
//!
//! This module also has the facts that follow from the values and that all processes must agree on: the sequence of phases ([`phase`]), the tables and how they are cut into shards ([`table`]),
//! whether two specs are the same job ([`identity`]), and what a job takes over from another one ([`warm_start`]).

mod algorithm;
mod batch_features;
mod check;
mod check_cluster;
mod check_pserver_bounds;
mod check_replicas;
pub mod columns;
mod data_section;
pub mod file;
pub mod identity;
pub mod job;
pub mod limits;
mod liveness;
pub mod location;
mod memory_retry;
mod objective;
mod options;
pub mod phase;
pub mod position;
mod process_sections;
pub mod pserver_memory;
mod secret_source;
mod sections;
mod shipped_file;
pub mod table;
pub mod value;
pub mod warm_start;
pub mod yarn;

pub use algorithm::{AlgorithmKind, LabelRange, LossFunction};
pub use batch_features::BatchFeatures;
pub use check::{check, from_json};
pub use file::ResumeRule;
pub use heddle_optimizer::{GradientKind, Initialiser, Optimizer, OptimizerKind, Schedule};
pub use identity::{Difference, SpecDigest};
pub use job::JobSpec;
pub use limits::SpecError;
pub use liveness::LivenessTimes;
pub use location::Location;
pub use memory_retry::MemoryRetry;
pub use options::{
    BadRecords, CheckpointDigest, Consistency, DataCache, DataFormat, Elasticity, JobKind,
    KeptPass, LabelScale, LabelScaling, ModelFormat, NanPolicy, NetworkProtection, OnCorrupt,
    RecoveryScope, TableFull, TaskSize,
};
pub use phase::{
    JobPhase, Stage, TableUse, job_phase, passes_begun, phase_count, phase_text, phases_after,
    table_use, training_from,
};
pub use pserver_memory::PserverMemory;
pub use secret_source::SecretSource;
pub use sections::{
    AmSpec, CheckpointSpec, ControllerSpec, DataSpec, LivenessSpec, ModelSpec, NetworkSpec,
    OutputSpec, PserverSpec, RunSpec, TrainerSpec, TrainingSpec,
};
pub use shipped_file::FileSpec;
pub use table::{TableKind, TableSpec, dense_table, shard_of_row, shard_rows};
pub use value::{Bytes, DurationMs, Every, Permissions, PortRange, Share, TaskShare};
pub use yarn::{SubmitSpec, YarnSpec};
