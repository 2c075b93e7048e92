//! The trainer process: reads data, computes gradients, and writes models.
//!
//! [`run()`] is the built-in trainer; [`main_with`] makes one of a program's own [`Algorithm`]. Parser threads
//! ([`reader`], [`feed`]) hand minibatches ([`batch`]) to the training loop, which sends what an [`algorithm`] asks for and
//! computes over `heddle-client` and tells the ApplicationMaster over `heddle-agent`. What a step is does not
//! depend on who computes it: see [`heddle_protocol::lanes`] for their order.
//!
//! Deliberately absent: placing shards, deciding who works on what, and everything about failures beyond doing a
//! step again when told to.

pub mod algorithm;
pub mod batch;
pub mod export;
pub mod feed;
mod input_plan;
pub mod predict;
pub mod reader;
pub mod run;
pub mod storage_wait;

pub use algorithm::{Algorithm, StepWork};
pub use batch::Batch;
pub use run::{TrainerError, main_with, run};
