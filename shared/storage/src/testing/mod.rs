//! Storages for tests: one in memory with HDFS's semantics, and one that injects faults into another.
//!
//! Only compiled for tests and with the feature `testing`.

mod faulty;
mod memory;

pub use faulty::{Faults, Faulty, InjectedFault, run_interleaved};
pub use memory::MemoryStorage;
