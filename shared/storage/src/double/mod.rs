//! Storages for tests: one in memory with HDFS's semantics, and one that makes another one fail at a
//! chosen call.
//!
//! Only compiled for tests and with the feature `double`.

mod faulty;
mod memory;

pub use faulty::{Faults, Faulty, InjectedFault, run_interleaved};
pub use memory::MemoryStorage;
