//! Logs, recovery timing and the limit of open files, the same in every process of a job.
//!
//! - [`logs`] initialises tracing: stderr for users, and a log file of bounded size ([`rotate`]).
//! - [`recovery`] shows the timing of a recovery as five rows.
//! - [`descriptors`] raises the limit of open files.
//!
//! Which events are logged and timed is decided by the crates that use this one.
//!
//! ```
//! use heddle_telemetry::recovery::RecoveryPhases;
//!
//! let phases = RecoveryPhases { restart_ms: Some(700), load_ms: Some(40), ..RecoveryPhases::default() };
//! assert_eq!(phases.total_ms(), 740);
//! assert!(phases.to_string().contains("until the replacement is started"));
//! ```

pub mod descriptors;
pub mod logs;
pub mod recovery;
pub mod rotate;

/// Target of the events that time each step. `RUST_LOG=info,heddle_steps=trace` shows them.
pub const STEP_TIMES: &str = "heddle_steps";
