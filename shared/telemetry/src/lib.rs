//! Logs, metrics, recovery timing and the limit of open files, the same in every process of a job.
//!
//! - [`logs`] initialises tracing: stderr for users, and a log file of bounded size ([`rotate`]).
//! - [`metrics`] writes figures as Prometheus text.
//! - [`recovery`] shows the timing of a recovery as five rows.
//! - [`descriptors`] raises the limit of open files.
//!
//! Which events are logged, counted and timed is decided by the crates that use this one.
//!
//! ```
//! use heddle_telemetry::metrics::{Metric, Page};
//!
//! let mut page = Page::new();
//! page.value(Metric::counter("heddle_rows_total", "Records computed."), 12.0);
//! assert!(page.finish().ends_with("heddle_rows_total 12\n"));
//! ```

pub mod descriptors;
pub mod logs;
pub mod metrics;
pub mod recovery;
pub mod rotate;
