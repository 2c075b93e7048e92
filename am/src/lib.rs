//! The ApplicationMaster: runs a job by performing what the core decides.
//!
//! [`heddle_am_core`] makes all decisions; this crate owns sockets, disks and time. [`process::run`] leads a run on one
//! machine, [`process::run_on_yarn`] an application on YARN. Both claim the checkpoint directory ([`claim`]), open the
//! [`journal`], start the [`store`] and the HTTP server ([`api`]), and run the [`driver`]: one loop that waits on all
//! sources, makes one event, calls the core and performs its actions in order.
//!
//! Containers come from a [`cluster`]: child processes, or YARN. At the end [`report`] writes what is left to read. This
//! crate trains nothing and holds no model: gradients go from trainers to pservers directly.
//!
//! ```no_run
//! let exit_code = heddle_am::process::run("/tmp/run-1".as_ref(), "/usr/bin/heddle".as_ref())?;
//! # Ok::<(), std::io::Error>(())
//! ```

pub mod api;
pub mod attempt_history;
pub mod carried_files;
pub mod claim;
pub mod cluster;
pub mod continuation;
mod delay_warning;
pub mod driver;
mod encoded;
pub mod event_log;
mod event_ring;
pub mod grant;
pub mod import;
pub mod input;
pub mod journal;
pub mod known_parts;
pub mod lease;
pub mod mirrors;
pub mod node_address;
mod notices;
pub mod own_model;
mod plan_file;
pub mod process;
pub mod publish;
pub mod report;
pub mod run_dir;
pub mod staging;
pub mod storage_watch;
pub mod store;
pub mod wall_clock;
pub mod warm_start;
