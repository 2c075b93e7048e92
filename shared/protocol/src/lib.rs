//! The contract between Heddle's processes: ids, job spec, control messages, data frames, handshake, manifest.
//!
//! The ApplicationMaster and the containers share this crate and no other. All of it is pure: bytes in, values or typed
//! errors out. Sockets, files and clocks are in the crates that use it. `docs/formats.md` describes each byte.
//!
//! ```
//! use heddle_protocol::frame::{Header, Kind};
//! use heddle_protocol::ids::{Epoch, Generation};
//!
//! let header = Header::new(Kind::Pull, Epoch::first(Generation(1)));
//! assert_eq!(Header::decode(&header.encode()), Ok(header));
//! ```

pub mod admission;
pub mod begun_frame;
pub mod control;
pub mod environment;
pub mod exit_code;
pub mod failure;
pub mod figure;
pub mod fill_frame;
pub mod frame;
pub mod grant;
pub mod handshake;
pub mod ids;
pub mod job_spec;
mod json;
pub mod lanes;
pub mod lines;
pub mod manifest;
pub mod metrics;
pub mod model;
pub mod mutation;
pub mod plan_file;
pub mod process_figures;
pub mod set_aside;
pub mod table_statistics;
pub mod task_set;
pub mod url;
pub mod view;
