//! The trainer's side of the data plane: pull values, push gradients, over all shards of a job.
//!
//! [`machine::Machine`] decides everything and knows no socket, no clock and no thread; the same code runs
//! in a simulation. The shell around it owns the connections and gives training loops a plain
//! synchronous handle.
//!
//! Deliberately absent: reading data, computing gradients (`heddle-trainer`), and what the
//! ApplicationMaster says (it comes in through `work` and `barrier`).

pub mod error;
pub mod gradient;
pub mod layout;
pub mod machine;
pub mod shell;
