//! The parameter server process: data threads, saver, loader.
//!
//! ```text
//!  trainers ═══ frames ═══▶ data thread 0 ── owns shards 0, 2, 4 …    ┐ each an event loop with its own
//!           ═══ frames ═══▶ data thread 1 ── owns shards 1, 3, 5 …    ┘ port; parameters live here alone
//!                               ▲  │ answers, reports      ▲
//!                      commands │  ▼                       │ "next piece, please"
//!  AM ── control ── agent ──▶ coordinator ── jobs ──▶ workers ── files, sums ──▶ storage
//! ```
//!
//! What frames and commands mean is decided in `heddle-shard`, which knows no sockets; here are the
//! sockets, the threads and the files. Deliberately absent: locks around parameters, and any way for
//! storage or control to make a data thread wait.

mod command;
mod coordinator;
mod data;
mod hook;
mod job;
mod layout;
mod load;
mod process;
mod save;
pub mod standalone;
mod throttle;
mod workers;

#[cfg(test)]
mod tests;

pub use process::{Options, run};
