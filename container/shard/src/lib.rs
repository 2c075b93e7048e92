//! Parameters without sockets: tables, optimizers, snapshots, consistency, exactly-once.
//!
//! A [`ShardSet`] is what one data thread of a pserver owns: some [`Shard`]s, who may speak to them, and
//! the cut that is open. Frames and commands go in, [`Effect`]s come out: replies, reports, closed
//! connections. The same code runs under sockets in `heddle-pserver` and under a simulation.
//!
//! Deliberately absent: sockets, files, threads, locks, clocks (the time is an argument) and random
//! numbers; the `clippy.toml` beside this crate refuses them. Whole files are `heddle-storage`'s;
//! this crate names the [`Section`]s of one and fills them piece by piece, so that no shard is ever
//! copied as a whole.

#[cfg(target_endian = "big")]
compile_error!("values travel and are saved little-endian, straight from memory");

mod arena;
mod content;
mod copy_on_write;
mod cut;
mod effect;
mod lanes;
mod shard_set;

mod dedup;
mod optimizer;
mod rowset;
mod shard;
mod table;
mod task_progress;

#[cfg(test)]
mod tests;

pub use content::{ContentError, Section, SnapshotGone};
pub use cut::WAIT_MAX;
pub use dedup::DedupError;
pub use effect::{Conn, Effect, Flow, Rows, ShardReport};
pub use shard::{Shard, ShardConfig};
pub use shard_set::{ShardSet, ShardSetError};
