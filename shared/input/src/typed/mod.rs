//! Files whose values have types as sources of records: [`layout`] finds the columns of the job in a file, a [`BlockSource`] of
//! each format reads the values of some rows, and they become records in [`rows`].

mod block_source;
mod format;
mod heads;
mod layout;
mod rejected;
mod rows;
mod stored;
mod thread;

pub(crate) use block_source::{BlockSource, FileBlock};
pub use format::{TypedFormat, TypedHead};
pub(crate) use heads::FileHeads;
pub(crate) use layout::FileLayout;
pub(crate) use rows::TypedRows;
pub(crate) use stored::StoredFile;
pub(crate) use thread::{BlockProducer, BlocksAhead, read_on_thread};
