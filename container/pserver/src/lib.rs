//! The parameter server process: data threads, savers, loaders.
//!
//! ```text
//!  trainers ═══ frames ═══▶ data thread 0 ── owns shards 0, 2, 4 …    ┐ each an event loop with its own
//!           ═══ frames ═══▶ data thread 1 ── owns shards 1, 3, 5 …    ┘ port; only they hold parameters
//!                               ▲  │ answers, reports      ▲
//!                      commands │  ▼                       │ requests for pieces
//!  AM ── control ── agent ──▶ coordinator ── jobs ──▶ workers ── files, sums ──▶ storage
//! ```
//!
//! `heddle-shard` decides what frames and commands do, without sockets. This crate has the sockets, threads and files. No
//! lock guards parameters, and neither storage nor control makes a data thread wait.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let environment: heddle_agent::ContainerEnvironment = unimplemented!();
//! use heddle_pserver::{Options, run};
//!
//! let exit = run(environment, Options { threads: 4, ..Options::default() })?;
//! # drop(exit);
//! # Ok(())
//! # }
//! ```

mod coordinator;
mod current_cut;
mod data;
mod data_threads;
mod exit_on_panic;
mod job;
mod layout;
mod load;
mod load_error;
mod message;
mod process;
mod save;
mod saved_shard;
mod saver_time;
mod shard_content;
pub mod standalone;
mod status;
mod throttle;
mod warm_start;
mod workers;

#[cfg(test)]
mod tests;

pub use process::{Options, run};
