//! The input of a job: its files cut into the tasks that trainers read, the records in them, and the values of keys that follow
//! from them.
//!
//! The ApplicationMaster plans the tasks once; they are recorded in checkpoints and do not change in the life of a job.
//! [`TaskReader`] turns a task into minibatches ([`Batch`]), with a policy for malformed records. [`sample()`] shows what the
//! beginning of the data is like, [`has_record`] whether there is a record at all. Listing files is the storage's, assigning
//! tasks the ApplicationMaster's, reading ahead the trainer's.
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
mod batch_size;
mod decision;
mod error;
mod first_record;
mod formats;
mod lines;
mod plan;
mod reader;
mod sample;
mod storage_wait;

pub use batch::Batch;
pub use decision::{InitialJob, Sample, ValueDecision, decide};
pub use error::ReadError;
pub use first_record::has_record;
pub use formats::words::{Labels, RecordFormat};
pub use lines::RowLines;
pub use lines::gunzip::GunzipReader;
pub use lines::task_bytes::{BYTE_ORDER_MARK, LINE_BYTES_MAX, kind_of, refusal};
pub use plan::{TaskLength, compression_of, parallelism_warning, plan_input, plan_tasks, workers};
pub use reader::{BadCount, BadPolicy, TaskReader};
pub use sample::sample;
pub use storage_wait::{ReaderWait, StorageWaits};
