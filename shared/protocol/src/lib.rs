//! What Heddle's processes say to each other: ids, job spec, control messages, data frames, secret.
//!
//! The ApplicationMaster and the containers meet in this crate and nowhere else. Everything here is
//! pure: bytes in, values or typed errors out; sockets, files and clocks are elsewhere.

pub mod admission;
pub mod control;
pub mod environment;
pub mod exit_code;
pub mod failure;
pub mod frame;
pub mod handshake;
pub mod ids;
pub mod lanes;
pub mod lines;
pub mod manifest;
pub mod metrics;
pub mod model;
pub mod mutation;
pub mod plan_file;
pub mod spec;
pub mod task_set;
pub mod url;
pub mod view;
