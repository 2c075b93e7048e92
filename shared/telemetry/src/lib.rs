//! Logs, metrics and the phases of recoveries, the same in every process.
//!
//! [`logs`] sets tracing up: for people on stderr, and in files of our own that are capped in size.
//! [`metrics`] writes figures as Prometheus text. [`recovery`] is the table of five rows by which a
//! recovery is told. [`descriptors`] raises the limit of open files. What is logged, counted and timed is the business of whoever does it.

pub mod descriptors;
pub mod logs;
pub mod metrics;
pub mod recovery;
pub mod rotate;
