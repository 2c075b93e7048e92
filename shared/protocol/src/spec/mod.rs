//! The job: what to train, on what data, with which resources, typed and checked once.
//!
//! [`JobSpec`] is what every process works from. People write it as TOML, which the command line reads with
//! positions and origins; processes hand it on as JSON. Past [`JobSpec::check`] nobody checks again:
//! counts are above zero, `min ≤ max`, shards suffice for the data threads.
//!
//! Beside the values stand the pure facts that follow from them and that all processes must agree
//! on: the sequence of phases ([`phase`]), the tables and how they are cut into shards ([`table`]),
//! and what makes two specs the same job ([`identity`]).

pub mod check;
pub mod file;
pub mod identity;
pub mod job;
pub mod location;
pub mod phase;
pub mod pserver_memory;
pub mod table;
pub mod value;
pub mod yarn;

pub use check::SpecError;
pub use identity::{Changeable, Difference, SpecDigest};
pub use job::{
    Algorithm, AmSpec, BadRecords, CheckpointSpec, Consistency, DataFormat, DataSpec, JobSpec,
    ModelFormat, ModelSpec, NanPolicy, NetworkSpec, OnCorrupt, OutputSpec, PserverSpec, RunSpec,
    TaskSize, TrainerSpec, TrainingSpec,
};
pub use location::Location;
pub use phase::{PhaseKind, Stage, phase_count, phase_kind};
pub use pserver_memory::PserverMemory;
pub use table::{Optimizer, TableKind, TableSpec, shard_of_row, shard_rows};
pub use value::{Bytes, DurationMs, Every, Permissions, PortRange, Share};
pub use yarn::{FileSpec, MemoryRetry, SubmitSpec, YarnSpec};
