//! The input of a job: its files cut into the tasks that trainers read, the records in them, and the values of keys that follow
//! from them.
//!
//! The ApplicationMaster plans the tasks once; they are recorded in checkpoints and do not change in the life of a job.
//! [`TaskReader`] turns a task into minibatches ([`Batch`]), with a policy for malformed records; the table of [`formats`] has
//! the source of its records. [`sample()`] shows what the beginning of the data is like, [`has_record`] whether there is a record
//! at all. Assigning tasks is the ApplicationMaster's, reading ahead the trainer's.
//!
//! ```
//! use heddle_input::{TaskLength, compression_of, plan_input};
//! use heddle_protocol::manifest::InputFile;
//! use heddle_protocol::job_spec::DataFormat;
//!
//! let name = "train.libsvm";
//! let file = InputFile { url: name.to_owned(), bytes: 300, modified_ms: 0, compression: compression_of(name) };
//! let plan = plan_input(DataFormat::Libsvm, vec![file], Vec::new(), TaskLength::Bytes(100));
//! assert_eq!(plan.train.len(), 3);
//! ```

mod avro;
mod batch;
mod batch_size;
mod columns;
mod decision;
mod error;
mod files;
mod first_record;
pub mod formats;
mod head;
pub mod lines;
mod packing;
mod parquet;
mod plan;
mod reader;
mod record_format;
mod sample;
mod source;
mod storage_wait;
mod stream;
mod table_format;
mod table_sample;
mod typed;

pub use batch::Batch;
pub use columns::{ColumnsError, ModelColumns, find_columns};
pub use decision::{InitialJob, Sample, ValueDecision, decide};
pub use error::ReadError;
pub use files::{check_unchanged, input_files};
pub use first_record::has_record;
pub use formats::typed_format;
pub use head::{Head, TextHead};
pub use packing::{compression_of, unpack_beginning, unpacked_name};
pub use plan::{
    FileParts, TaskLength, parallelism_warning, plan_input, plan_parts, plan_tasks, workers,
};
pub use reader::{BadCount, BadPolicy, TaskReader};
pub use record_format::{Labels, RecordFormat};
pub use sample::sample;
pub use source::{BatchLimit, Filled, InputFormat, RecordSource};
pub use storage_wait::{ReaderWait, StorageWaits};
pub use table_format::TableFormat;
pub use table_sample::{SampleError, TextTable, sample_words};
pub use typed::{TypedFormat, TypedHead};
