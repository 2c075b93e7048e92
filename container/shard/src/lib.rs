//! Parameters without sockets: tables, optimizers, snapshots, consistency, exactly-once.
//!
//! A [`ShardSet`] is the state of one data thread of a pserver: its [`Shard`]s, the trainers that may send frames, and the
//! open cut. [`Frame`]s and commands go in; [`ShardEffect`]s come out: replies, reports, closed connections. The same code runs
//! under sockets in `heddle-pserver` and in simulation.
//!
//! ```
//! use heddle_protocol::ids::{Epoch, Incarnation, Member, Slot};
//! use heddle_shard::ShardSet;
//!
//! let own = Member { slot: Slot::pserver(0), incarnation: Incarnation(1) };
//! let shards = ShardSet::new(own, 0);
//! assert_eq!(shards.epoch(), Epoch::default());
//! assert!(shards.is_whole(), "an empty set waits for no shard");
//! ```
//!
//! Not here: sockets, files, threads, locks, clocks (times are arguments) and random numbers; `clippy.toml` bans them.
//! `heddle-storage` writes whole files. This crate names the [`ShardSection`]s of a file and fills them piece by piece, so a
//! shard is never copied as a whole.

#[cfg(target_endian = "big")]
compile_error!(
    "values are sent and saved little-endian, straight from memory; big-endian targets are not supported"
);

mod ahead;
mod arena;
mod asp;
mod bsp;
mod cells;
mod change;
mod config;
mod content;
mod copy_on_write;
mod cut;
mod dedup;
mod effect;
mod frame;
mod lanes;
mod memory;
mod parked;
mod pass_end;
mod phase_progress;
mod position_index;
mod replication;
mod rowset;
mod shard;
mod shard_set;
mod snapshots;
mod sparse_rows;
mod step_count;
mod step_sums;
mod table;
mod tables;
mod task_progress;

#[cfg(test)]
mod tests;

pub use change::ShardChange;
pub use config::ShardConfig;
pub use content::{ContentError, ShardSection, SnapshotGone, SnapshotHead};
pub use cut::WAIT_MAX;
pub use dedup::{DedupError, applied_steps};
pub use effect::{Conn, Flow, LocalReport, PulledRows, ShardEffect};
pub use frame::Frame;
pub use replication::{Peer, ReplicationLimits, StreamEntry};
pub use shard::Shard;
pub use shard_set::{ShardSet, ShardSetError};
pub use sparse_rows::SparseLimits;
