//! The trainer's side of the data plane: pulls values and pushes gradients over all shards of a job.
//!
//! [`machine::ClientMachine`] decides everything. It takes [`machine::DataRequest`]s and frames of shards, and returns frames
//! and [`machine::ClientEvent`]s. It holds no socket, clock or thread, so the same code runs in simulation.
//! [`shell::Client`] owns the connections and gives training loops a synchronous handle.
//!
//! ```
//! use heddle_client::layout::{Layout, Rows, TableShape};
//! use heddle_protocol::job_spec::TableKind;
//!
//! let weights = TableShape { kind: TableKind::Dense, rows: 1000, cols: 8 };
//! let layout = Layout::new(4, vec![weights])?;
//! assert_eq!(layout.shards(), 4);
//! assert_eq!(Rows::Range(10..20).len(), 10);
//! # Ok::<(), heddle_client::error::RequestError>(())
//! ```
//!
//! Not here: reading data and computing gradients (`heddle-trainer`), and the ApplicationMaster's commands, which come in
//! as [`machine::DataRequest::Work`] and [`machine::DataRequest::Barrier`].

pub mod error;
pub mod gradient;
pub mod layout;
pub mod machine;
pub mod shell;
