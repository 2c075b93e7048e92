//! The trainer process: reads data, computes gradients, writes models.
//!
//! [`run()`] is the built-in trainer; [`main_with`] is the `main` of a program with its own [`Algorithm`]. Parser threads
//! ([`feed`]) read the minibatches ([`Batch`]) of `heddle-input` and pass them to the training loop. The loop pulls parameters
//! and pushes gradients through `heddle-client`, and reports to the ApplicationMaster through `heddle-agent`. [`export`] writes
//! the model of a checkpoint, [`ModelSaver`] lets a program ask for one while training goes on, [`predict`] scores records with
//! one. A step does not depend on the trainer that computes it: [`heddle_protocol::lanes`] defines the order of tasks.
//!
//! The trainer does not place shards, assign work, or handle failures, except that it repeats a step on request.

pub mod algorithm;
pub mod cache;
pub mod class_weights;
pub mod export;
pub mod feed;
mod feed_settings;
mod first_bad;
mod input_plan;
mod model_saver;
pub mod predict;
pub mod run;

pub use algorithm::{Algorithm, StepWork};
pub use heddle_input::Batch;
pub use model_saver::{ModelSaver, PendingSave};
pub use run::{TrainerError, main_with, main_with_saver, run};
