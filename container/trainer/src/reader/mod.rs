//! From input files to minibatches.
//!
//! [`mod@line`] turns one line of text into a row; [`bytes`] turns a task's file into runs of whole lines,
//! unpacking gzip; [`task`] puts both together and minds bad records. None of them knows how tasks
//! are shared out: that is [`crate::feed`].

pub mod bytes;
pub mod error;
pub mod line;
mod number;
pub mod task;

pub use error::ReadError;
pub use line::{Labels, RecordFormat};
pub use task::{BadPolicy, TaskReader};
