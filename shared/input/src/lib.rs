//! The input of a job: its files, cut into the tasks that trainers read, and the values of keys that follow from it.
//!
//! The ApplicationMaster computes it once; it is recorded in checkpoints and does not change in the life of a job. Listing
//! files is the storage's, reading records the trainer's.
//!
//! ```
//! use heddle_input::{TaskLength, compression_of, plan_input};
//! use heddle_protocol::manifest::InputFile;
//!
//! let name = "train.libsvm";
//! let file = InputFile { url: name.to_owned(), bytes: 300, modified_ms: 0, compression: compression_of(name) };
//! let plan = plan_input(vec![file], Vec::new(), TaskLength::Bytes(100));
//! assert_eq!(plan.train.len(), 3);
//! ```

mod batch;
mod decision;
mod plan;

pub use decision::{InitialJob, Sample, ValueDecision, decide};
pub use plan::{TaskLength, compression_of, parallelism_warning, plan_input, plan_tasks, workers};
